"""Writes the generated pages of docs/ from the catalogue and the settings table: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuscope.limits import limit_rows
from gpuscope.metrics.catalogue.fields import all_fields
from gpuscope.metrics.catalogue.native import NATIVE_METRICS
from gpuscope.metrics.families import family_names, load_family
from gpuscope.settings import env_name, setting_rows
from tests.hostile.catalogue import catalogue

INTRODUCTION = """# Metrics

Made from the catalogue in `src/gpuscope/metrics/catalogue/` by `make docs`; do not edit it by hand.

A number a card cannot give is absent: there is no sample, never a 0. GPUs are labelled `gpu` (nvidia-smi's
index, or `0_7_0` for GPU 0, GPU instance 7, compute instance 0) and `uuid`. The node's name is only in the info
series: join with `* on (uuid) group_left (node, model) gpuscope_gpu_info`.
"""


def metrics_page() -> Iterator[str]:
    yield INTRODUCTION
    yield "## Families\n"
    yield "| family | what it is |\n|---|---|"
    for name in family_names():
        yield f"| `{name}` | {_cell(load_family(name).summary)} |"
    yield "\n## Family `native`\n"
    yield "| metric | type | unit | labels | meaning |\n|---|---|---|---|---|"
    for row in NATIVE_METRICS:
        labels = row.labels if not row.name.startswith("gpuscope_gpu_") else ("gpu", "uuid", *row.labels)
        names = ", ".join(dict.fromkeys(labels))
        yield f"| `{row.name}` | {row.type} | {row.unit_name} | {names} | {_cell(row.help)} |"
    yield "\n## The same number in each family\n"
    yield "Fields that more than DCGM knows; `gpuscope fields` lists all of them, with what this machine has.\n"
    yield "| DCGM id | native | dcgm | nvidia-smi column | dcgm_legacy |\n|---|---|---|---|---|"
    for field in all_fields():
        if field.reading:
            number = "" if field.dcgm_id is None else str(field.dcgm_id)
            columns = (field.names.get(f, "") for f in ("native", "dcgm", "nvidia_smi", "dcgm_legacy"))
            yield f"| {number} | " + " | ".join(f"`{_cell(name)}`" if name else "" for name in columns) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


SETTINGS_INTRODUCTION = """# Settings

Made from `src/gpuscope/settings.py` by `make docs`; do not edit it by hand.

A flag wins over its environment variable, that over the settings file, that over the default. The file is TOML,
given with `--settings FILE` or `GPUSCOPE_SETTINGS`, else the first of `~/.config/gpuscope/gpuscope.toml` and
`/etc/gpuscope/gpuscope.toml`; its keys are the names in the first column.
"""


def settings_page() -> Iterator[str]:
    yield SETTINGS_INTRODUCTION
    yield "| setting | environment | default | what it decides |\n|---|---|---|---|"
    for row in setting_rows():
        default = "" if row.default in (None, "", ()) else f"`{row.default}`"
        yield f"| `{row.name}` | `{env_name(row)}` | {default} | {_cell(row.metadata['help'])} |"


LIMITS_BEGIN, LIMITS_END = "<!-- limits: made by `make docs` -->", "<!-- end of limits -->"
ATTACKS_BEGIN, ATTACKS_END = "<!-- attacks: made by `make docs` -->", "<!-- end of attacks -->"


def security_page() -> Iterator[str]:
    """The page as it is, with the tables of limits and of attacks put in anew."""
    before, _, rest = (DOCS / "security.md").read_text().partition(LIMITS_BEGIN)
    yield before + LIMITS_BEGIN
    yield "| limit | default | what it bounds | why this default |\n|---|---|---|---|"
    for row in limit_rows():
        default = row.metadata["metavar"] if row.metadata["metavar"] != "N" else row.default
        default = "see right" if default is None else default
        yield f"| `{row.name}` | {default} | {_cell(row.metadata['help'])} | {_cell(row.metadata['why'])} |"
    between, _, rest = rest.partition(LIMITS_END)[2].partition(ATTACKS_BEGIN)
    yield LIMITS_END + between + ATTACKS_BEGIN
    yield "| attack | what is sent | what holds |\n|---|---|---|"
    for attack in catalogue():
        yield f"| {attack.name} | {_cell(attack.sends)} | {_cell(attack.holds)} |"
    yield ATTACKS_END + rest.partition(ATTACKS_END)[2].removesuffix("\n")


DOCS = Path(__file__).parent.parent / "docs"
PAGES = {"metrics.md": metrics_page, "settings.md": settings_page, "security.md": security_page}


def main() -> None:
    for name, page in PAGES.items():
        text = "\n".join(page()) + "\n"
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()

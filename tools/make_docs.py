"""Writes the generated pages of docs/ from the catalogue and the settings table: `make docs`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import Field
from pathlib import Path
from typing import Any

from gpuscope.cli.parser import GROUPS
from gpuscope.health.checks import CHECKS as HEALTH_CHECKS
from gpuscope.health.findings import live_kinds
from gpuscope.limits import limit_rows
from gpuscope.metrics.catalogue.fields import all_fields
from gpuscope.metrics.families import family_names, load_family
from gpuscope.metrics.families.native.table import NATIVE_METRICS
from gpuscope.promql.ast_json import duration_text
from gpuscope.setting_values import parse_bytes
from gpuscope.settings import env_name, setting_rows
from tests.hostile.catalogue import catalogue
from tools.make_api_types import api_tables, typescript_file

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

A flag wins over its environment variable, that over the settings file, that over the default. The file is
TOML, given with `--settings FILE` or `GPUSCOPE_SETTINGS`, else the first of
`~/.config/gpuscope/gpuscope.toml` and `/etc/gpuscope/gpuscope.toml`; its keys are the names in the first
column ([an example with all of them](gpuscope.example.toml)). A key in a table with a command's name (`[up]`,
…) is for that command alone. A setting that a command does not take is an error, wherever it was given;
`doctor`, `store` and `user` take all of them, because they look at the configuration of another command.
"""


def _default(row: Field[Any]) -> str:
    """As one would write it: 30d, not 2592000.0."""
    if isinstance(row.default, float):
        return duration_text(round(row.default * 1000))
    if row.metadata["parse"] is parse_bytes:
        return _bytes(row.default)
    return str(row.default).lower() if isinstance(row.default, bool) else str(row.default)


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)


def settings_page() -> Iterator[str]:
    yield SETTINGS_INTRODUCTION
    yield "| setting | environment | default | what it decides |\n|---|---|---|---|"
    for row in setting_rows():
        default = "" if row.default in (None, "", ()) else f"`{_default(row)}`"
        yield f"| `{row.name}` | `{env_name(row)}` | {default} | {_cell(row.metadata['help'])} |"


EXAMPLE_INTRODUCTION = """\
# Settings of gpuscope, each with its default. Made by `make docs`.
# Copy this file to ~/.config/gpuscope/gpuscope.toml or /etc/gpuscope/gpuscope.toml, and remove the `#` before
# what you change. A key above the first table is for every command, and each of them must know it; a key in
# [up], [agent], [server] or [textfile] is for that command alone."""


EXAMPLES = {"N": 8, "HOST:PORT": "127.0.0.1:9470"}
"""Of settings without a default whose metavar is not an example itself."""


def example_file() -> Iterator[str]:
    yield EXAMPLE_INTRODUCTION
    rows = {row.name: row for row in setting_rows()}
    for title, names in GROUPS:
        yield f"\n# ---- {title}"
        for name in names:
            yield "\n" + "\n".join(f"# {line}" for line in textwrap.wrap(rows[name].metadata["help"], 108))
            yield f"#{name} = {_toml(rows[name])}"


def _toml(row: Field[Any]) -> str:
    """The default, or an example of its kind where that is nothing."""
    if isinstance(row.default, (bool, int)) and row.metadata["parse"] is not parse_bytes:
        return _default(row)
    if isinstance(row.default, tuple):
        return json.dumps(row.default)
    metavar = row.metadata["metavar"]
    return json.dumps(_default(row) if row.default is not None else EXAMPLES.get(metavar, metavar))


LIMITS_BEGIN, LIMITS_END = "<!-- limits: made by `make docs` -->", "<!-- end of limits -->"
ATTACKS_BEGIN, ATTACKS_END = "<!-- attacks: made by `make docs` -->", "<!-- end of attacks -->"


def security_page() -> Iterator[str]:
    """The page as it is, with the tables of limits and of attacks put in anew."""
    before, _, rest = (DOCS / "security.md").read_text().partition(LIMITS_BEGIN)
    yield before + LIMITS_BEGIN
    yield "| limit | default | what it bounds | why this default |\n|---|---|---|---|"
    for row in limit_rows():
        default = _default(row) if row.default is not None else "see right"
        reason = _cell(row.metadata["why"])
        yield f"| `{row.name}` | {default} | {_cell(row.metadata['help'])} | {reason} |"
    between, _, rest = rest.partition(LIMITS_END)[2].partition(ATTACKS_BEGIN)
    yield LIMITS_END + between + ATTACKS_BEGIN
    yield "| attack | what is sent | what holds |\n|---|---|---|"
    for attack in catalogue():
        yield f"| {attack.name} | {_cell(attack.sends)} | {_cell(attack.holds)} |"
    yield ATTACKS_END + rest.partition(ATTACKS_END)[2].removesuffix("\n")


FINDINGS_INTRODUCTION = """# Findings

Made from `src/gpuscope/health/` by `make docs`; do not edit it by hand.

`gpuscope findings`, `GET /api/findings` ([fields and rules](api.md)) and the page show the same list: what is
wrong now, most severe first, then oldest. A finding names the owner who can act: the pod, else the Slurm job,
else the container, else the user. A number that is absent is never a finding. The PromQL form of each kind is
its alert rule's expression; the live form must agree with it (`tests/health/test_forms_agree.py`).
"""


def findings_page() -> Iterator[str]:
    yield FINDINGS_INTRODUCTION
    live = set(live_kinds())
    for title, kinds in (
        ("Found live", [check for check in HEALTH_CHECKS.values() if check.kind in live]),
        ("Only over time, in PromQL", [check for check in HEALTH_CHECKS.values() if check.kind not in live]),
    ):
        yield f"\n## {title}\n"
        yield "| kind | severity | what it means | next step |\n|---|---|---|---|"
        for check in kinds:
            yield f"| `{check.kind}` | {check.severity} | {_cell(check.meaning)} | {_cell(check.next_step)} |"


API_BEGIN, API_END = "<!-- api: made by `make docs` -->", "<!-- end of api -->"


def api_page() -> Iterator[str]:
    """The page as it is, with the tables of our own answers put in anew."""
    before, _, rest = (DOCS / "api.md").read_text().partition(API_BEGIN)
    yield before + API_BEGIN
    yield from api_tables()
    yield API_END + rest.partition(API_END)[2].removesuffix("\n")


DOCS = Path(__file__).parent.parent / "docs"
PAGES = {
    "api.md": api_page,
    "findings.md": findings_page,
    "../web/src/api-types.ts": typescript_file,
    "metrics.md": metrics_page,
    "settings.md": settings_page,
    "security.md": security_page,
    "gpuscope.example.toml": example_file,
}


def main() -> None:
    for name, page in PAGES.items():
        text = "\n".join(page()) + "\n"
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()

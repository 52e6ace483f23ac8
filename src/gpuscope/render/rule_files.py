"""The shipped Prometheus rule files, as they are in the package. Unit tests of rules are not among them."""

from __future__ import annotations

from pathlib import Path

from gpuscope.render import FILES, RenderedFile

SUFFIX = ".rules.yml"


def rule_files() -> list[RenderedFile]:
    """`rules/NAME.rules.yml` for each file with that suffix, and for all of the folder `rules`."""
    folder = FILES / "prometheus"
    found = [
        *folder.glob(f"*{SUFFIX}"),
        *(path for path in (folder / "rules").glob("*.yml") if not _is_test(path)),
    ]
    return [
        RenderedFile(
            f"rules/{path.name.removesuffix('.yml').removesuffix('.rules')}{SUFFIX}", path.read_text("utf-8")
        )
        for path in sorted(found)
    ]


def _is_test(path: Path) -> bool:
    """promtool's unit tests, which Prometheus would refuse as a rule file."""
    return "test" in path.stem.replace("_", ".").replace("-", ".").split(".")

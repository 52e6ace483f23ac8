"""The shipped Prometheus rule files that fit the metrics that are scraped.

The same alerts exist for gpuscope's own metrics and for those of the exporters it replaces; with both, each
problem would be notified twice. Unit tests of rules are not among the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuscope.render import FILES, RenderedFile

SUFFIX: Final = ".rules.yml"
METRICS: Final = ("gpuscope", "dcgm", "nvidia_smi")
_ONLY_FOR: Final = {
    "gpuscope-gpu": "gpuscope",
    "gpuscope-node": "gpuscope",
    "gpuscope-use": "gpuscope",
    "dcgm-exporter": "dcgm",
    "nvidia-gpu-exporter": "nvidia_smi",
}
"""Files about one exporter's metrics; all others fit every one."""


def rule_files(metrics: str = "gpuscope") -> list[RenderedFile]:
    """As `rules/NAME.rules.yml`."""
    folder = FILES / "prometheus"
    paths = [*folder.glob(f"*{SUFFIX}"), *(folder / "rules").glob("*.yml")]
    names = {path: path.name.removesuffix(".yml").removesuffix(".rules") for path in sorted(paths)}
    return [
        RenderedFile(f"rules/{name}{SUFFIX}", path.read_text("utf-8"))
        for path, name in names.items()
        if _ONLY_FOR.get(name, metrics) == metrics and not _is_test(path)
    ]


def _is_test(path: Path) -> bool:
    """promtool's unit tests, which Prometheus would refuse as a rule file."""
    return "test" in path.stem.replace("_", ".").replace("-", ".").split(".")

"""The shipped Prometheus rule files that fit the metrics that are scraped.

The same alerts exist for gpuscope's own metrics and for those of the exporters it replaces; with both, each
problem would be notified twice.
"""

from __future__ import annotations

from typing import Final

from gpuscope.render import FILES, RenderedFile

SUFFIX: Final = ".rules.yml"
METRICS: Final = ("gpuscope", "dcgm", "nvidia_smi")
_ONLY_FOR: Final = {
    "gpuscope-gpu": "gpuscope",
    "gpuscope-node": "gpuscope",
    "gpuscope-rollups": "gpuscope",
    "gpuscope-use": "gpuscope",
    "dcgm-exporter": "dcgm",
    "nvidia-gpu-exporter": "nvidia_smi",
}
"""Files about one exporter's metrics; all others fit every one."""


def rule_files(metrics: str = "gpuscope") -> list[RenderedFile]:
    """As `rules/NAME.rules.yml`."""
    paths = sorted((FILES / "prometheus" / "rules").glob("*.yml"))
    return [
        RenderedFile(f"rules/{path.stem}{SUFFIX}", path.read_text("utf-8"))
        for path in paths
        if _ONLY_FOR.get(path.stem, metrics) == metrics
    ]

"""The shipped Prometheus rule files that fit the metrics that are scraped.

The same alerts exist for gpuscope's own metrics and for those of the exporters it replaces; with both, each
problem would be notified twice.
"""

from __future__ import annotations

from typing import Final

from gpuscope.judge.rules.shipped import rule_files as shipped_rule_files
from gpuscope.model.vendor import advices
from gpuscope.serve.render import FILES, RenderedFile

SUFFIX: Final = ".rules.yml"
_OF_EXPORTERS: Final = {
    rules.group: rules.metrics for advice in advices().values() for rules in advice.exporter_rules
}
METRICS: Final = ("gpuscope", *_OF_EXPORTERS.values())
_ONLY_FOR: Final = {
    "gpuscope-gpu": "gpuscope",
    "gpuscope-node": "gpuscope",
    "gpuscope-rollups": "gpuscope",
    "gpuscope-use": "gpuscope",
    **_OF_EXPORTERS,
}
"""Files about one exporter's metrics; all others fit every one."""


NOT_RENDERED: Final = frozenset({"instances"})
"""`InstanceDown` fires for every target, also where `HostDown` does."""


def rule_files(metrics: str = "gpuscope", page_url: str = "") -> list[RenderedFile]:
    """As `rules/NAME.rules.yml`. `page_url` is gpuscope's page as users reach it: without it, alerts have no
    `runbook_url`."""
    paths = sorted((FILES / "prometheus" / "rules").glob("*.yml"))
    explained = shipped_rule_files(page_url)
    return [
        RenderedFile(f"rules/{path.stem}{SUFFIX}", explained.get(path.name) or path.read_text("utf-8"))
        for path in paths
        if _ONLY_FOR.get(path.stem, metrics) == metrics and path.stem not in NOT_RENDERED
    ]

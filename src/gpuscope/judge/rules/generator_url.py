"""The link of an alert to its expression, as Prometheus makes it: `…/graph?g0.expr=…&g0.tab=1`."""

from __future__ import annotations

from urllib.parse import quote_plus

from gpuscope.judge.rules.rule_spec import RuleSpec


def generator_url(external_url: str, spec: RuleSpec) -> str:
    escaped = quote_plus(spec.expression, safe="~", errors="surrogateescape")
    return f"{external_url.rstrip('/')}/graph?g0.expr={escaped}&g0.tab=1"

"""What alerting and recording rules have in common: identity, health and the time of the last evaluation.

Written by the evaluation thread, read by HTTP handlers; each value is replaced as a whole.
"""

from __future__ import annotations

from gpuscope.base.errors import GpuscopeError
from gpuscope.history.promql.labels import assign
from gpuscope.judge.rules.rule_spec import RuleSpec
from gpuscope.model.series import Labels


class RuleFailed(GpuscopeError):
    """An evaluation that writes nothing; the text is the rule's `lastError`."""


class EvaluatedRule:
    def __init__(self, spec: RuleSpec) -> None:
        self.spec = spec
        self.health = "unknown"
        self.last_error = ""
        self.evaluation_seconds = 0.0
        self.evaluated_at_ns: int | None = None
        """When the last evaluation began, by the clock."""

    def failed(self, reason: str) -> None:
        self.health, self.last_error = "err", reason

    def succeeded(self) -> None:
        self.health, self.last_error = "ok", ""


def overlay(labels: Labels, over: Labels) -> Labels:
    """`labels` with the pairs of `over` set; an empty value removes the label."""
    if not over:
        return labels
    merged = dict(labels)
    merged.update(over)
    return tuple(sorted(pair for pair in merged.items() if pair[1]))


def with_name(labels: Labels, name: str) -> Labels:
    return assign(labels, "__name__", name)

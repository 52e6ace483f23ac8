"""A recording rule: the series of its expression under another name, with labels set."""

from __future__ import annotations

from gpuscope.judge.rules.evaluated_rule import EvaluatedRule, RuleFailed, overlay
from gpuscope.judge.rules.interfaces import RuleQueries, RuleSample
from gpuscope.judge.rules.rule_spec import RuleSpec


class RecordingRule(EvaluatedRule):
    def __init__(self, spec: RuleSpec) -> None:
        super().__init__(spec)
        self._set = (("__name__", spec.name), *spec.labels)

    def evaluate(self, queries: RuleQueries, query_at_ms: int, limit: int) -> list[RuleSample]:
        vector = queries.instant(self.spec.expression, query_at_ms)
        labels = [overlay(one, self._set) for one in vector.labels]
        if len(set(labels)) != len(labels):
            raise RuleFailed("vector contains metrics with the same labelset after applying rule labels")
        if 0 < limit < len(labels):
            raise RuleFailed(f"exceeded limit of {limit} with {len(labels)} series")
        return list(zip(labels, vector.values.tolist(), strict=True))

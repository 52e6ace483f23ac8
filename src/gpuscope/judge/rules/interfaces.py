"""What the rule engine needs from outside: a PromQL engine, a place for samples, and templates.

Input: expressions, samples, template texts. Every failure of an engine is a `RuleQueryError`, of a template a
`RuleTemplateError`; both carry the sentence that the rule shows as `lastError` or in the alert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuscope.base.errors import GpuscopeError
from gpuscope.history.promql.result import Vector
from gpuscope.model.series import Labels

RuleSample = tuple[Labels, float]
ForStateSample = tuple[Labels, int, float]
"""Labels, milliseconds, value."""
TemplateQuery = Callable[[str], list[tuple[dict[str, str], float]]]


class RuleQueryError(GpuscopeError):
    """The engine gives no result for an expression."""


class RuleTemplateError(GpuscopeError):
    """A template cannot be parsed or expanded."""


class RuleQueries(Protocol):
    def instant(self, expression: str, at_ms: int) -> Vector:
        """The value at one time; a scalar is one series without labels. Raises RuleQueryError."""
        ...


class SampleWriter(Protocol):
    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        """Store the samples of one rule, and stale markers for series that ended; return after the commit.
        `rule` identifies the rule. Returns "" or the reason why something was not stored."""
        ...

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        """The newest sample, stale markers included, of each series that has all these labels."""
        ...


@dataclass(frozen=True, slots=True)
class TemplateData:
    """What a label or annotation template can use. `labels` are those of the sample, `__name__` included."""

    labels: Mapping[str, str]
    external_labels: Mapping[str, str]
    external_url: str
    value: float
    query: TemplateQuery
    at_seconds: float
    """Evaluation time, for `now`."""


class ParsedTemplate(Protocol):
    def expand(self, data: TemplateData) -> str:
        """Raises TemplateError."""
        ...


class TemplateExpander(Protocol):
    def parse(self, text: str, name: str) -> ParsedTemplate:
        """`name` appears in messages. Raises TemplateError."""
        ...


class NoSamples:
    """For an engine that is only queried: nothing is stored."""

    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        return ""

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        return ()

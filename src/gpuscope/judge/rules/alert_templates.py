"""The templates of rules, which are Go's with Prometheus' data and functions; those of a rule are parsed once.

A template that fails leaves its error as the value. Annotations that contain `query` are lookups: each costs a
query per alert and evaluation, so a rule with many alerts looks up a part of them at each evaluation, those
whose texts are oldest first; the others keep the texts of an earlier evaluation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpuscope.base.errors import GpuscopeError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.rules import templates
from gpuscope.judge.rules.alert_state import ActiveAlert
from gpuscope.judge.rules.rule_io import RuleQueryError
from gpuscope.judge.rules.rule_spec import RuleSpec
from gpuscope.model.series import Labels

TemplateQuery = Callable[[str], list[tuple[dict[str, str], float]]]
NOT_LOOKED_UP = "<not looked up yet: many alerts of this rule began at once>"


class RuleTemplateError(GpuscopeError):
    """A template cannot be parsed or expanded."""


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


class _GoTemplate:
    def __init__(self, template: templates.Template) -> None:
        self._template = template

    def expand(self, data: TemplateData) -> str:
        values = templates.alert_data(data.labels, data.value, data.external_labels, data.external_url)
        try:
            functions = templates.prometheus_functions(data.query, data.at_seconds, data.external_url)
            return self._template.expand(values, functions)
        except templates.TemplateError as error:
            # Prometheus' own words, which end up in annotations.
            raise RuleTemplateError(f"error executing template {self._template.name}: {error}") from None


class GoTemplates:
    def __init__(self, limits: Limits) -> None:
        self._functions = templates.prometheus_functions()
        self._limits = limits

    def parse(self, text: str, name: str) -> ParsedTemplate:
        try:
            whole = templates.ALERT_PRELUDE + text
            return _GoTemplate(templates.parse(whole, name, self._functions, limits=self._limits))
        except templates.TemplateError as error:
            raise RuleTemplateError(str(error)) from None


def load_templates(limits: Limits | None = None) -> TemplateExpander:
    return GoTemplates(limits or Limits())


@dataclass(slots=True)
class TemplateCounts:
    """Any thread may count."""

    expansions: int = 0
    failures: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count_expansion(self) -> None:
        with self._lock:
            self.expansions += 1

    def count_failure(self) -> None:
        with self._lock:
            self.failures += 1


TEMPLATE_COUNTS = TemplateCounts()
"""One per process, like its /metrics."""


@dataclass(slots=True)
class LookupBudget:
    """Queries that the templates of a rule may still run in this evaluation."""

    left: int

    def count(self) -> None:
        self.left -= 1


@dataclass(slots=True, eq=False)
class AlertDraft:
    """An alert of this evaluation whose lookups are not done yet."""

    alert: ActiveAlert
    data: TemplateData
    known: ActiveAlert | None
    """The same alert at the evaluation before."""

    @property
    def looked_up_at_ns(self) -> int:
        return 0 if self.known is None else self.known.looked_up_at_ns


@dataclass(frozen=True, slots=True)
class _BrokenTemplate:
    """A label of a group that does not parse: Prometheus loads the file, and each expansion fails."""

    why: str

    def expand(self, data: TemplateData) -> str:
        raise RuleTemplateError(self.why)


@dataclass(slots=True)
class AlertTemplates:
    spec: RuleSpec
    templates: TemplateExpander
    _labels: list[tuple[str, str, ParsedTemplate | None]] = field(init=False)
    _annotations: list[tuple[str, str, ParsedTemplate | None]] = field(init=False)
    _lookups: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._labels = self._parse(self.spec.labels)
        self._annotations = self._parse(self.spec.annotations)
        self._lookups = frozenset(
            name for name, text, parsed in self._annotations if parsed is not None and "query" in text
        )

    def _parse(self, texts: Labels) -> list[tuple[str, str, ParsedTemplate | None]]:
        """A text without an action is constant: most labels are."""
        return [(key, text, self._parse_one(text) if "{{" in text else None) for key, text in texts]

    def _parse_one(self, text: str) -> ParsedTemplate:
        name = f"__alert_{self.spec.name}"
        try:
            return self.templates.parse(text, name)
        except RuleTemplateError as error:
            return _BrokenTemplate(f"error parsing template {name}: {error}")

    def expand_labels(self, data: TemplateData, failures: list[str]) -> Labels:
        return tuple((name, _expand(text, parsed, data, failures)) for name, text, parsed in self._labels)

    def annotate(
        self, drafts: Sequence[AlertDraft], budget: LookupBudget, at_ns: int, failures: list[str]
    ) -> None:
        """Set the annotations of all alerts. A query of a template counts in `budget`."""
        if self._lookups and len(drafts) * len(self._lookups) > budget.left:
            drafts = sorted(drafts, key=lambda draft: draft.looked_up_at_ns)
        may_look_up = True
        for draft in drafts:
            alert, known = draft.alert, draft.known
            may_look_up = budget.left > 0
            alert.looked_up_at_ns = at_ns if may_look_up else draft.looked_up_at_ns
            earlier = {} if may_look_up else dict(known.annotations if known is not None else ())
            alert.annotations = tuple(
                (name, self._text(name, text, parsed, draft.data, failures, earlier, may_look_up))
                for name, text, parsed in self._annotations
            )
        if self._lookups and not may_look_up:
            LIMITS_REACHED.count("rules_max_template_queries")

    def _text(
        self,
        name: str,
        text: str,
        parsed: ParsedTemplate | None,
        data: TemplateData,
        failures: list[str],
        earlier: Mapping[str, str],
        may_look_up: bool,
    ) -> str:
        if name in self._lookups and not may_look_up:
            return earlier.get(name, NOT_LOOKED_UP)
        return _expand(text, parsed, data, failures)


def _expand(text: str, parsed: ParsedTemplate | None, data: TemplateData, failures: list[str]) -> str:
    if parsed is None:
        return text
    TEMPLATE_COUNTS.count_expansion()
    try:
        return parsed.expand(data)
    except (RuleTemplateError, RuleQueryError) as error:
        TEMPLATE_COUNTS.count_failure()
        failures.append(str(error))
        return f"<error expanding template: {error}>"

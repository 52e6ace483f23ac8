"""Recording and alerting rules, evaluated: the series of an expression become samples, or alerts.

The `$labels` of a template are those of the series, `__name__` included, not those of the alert: a rule's own
label is empty there. A template that fails leaves its error as the value, and the alert goes out all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote_plus

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import GpuscopeError
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql.labels import assign
from gpuscope.judge.rules.alert_state import ActiveAlert, Alert, AlertState, AlertTable, TooManyAlerts
from gpuscope.judge.rules.alert_templates import (
    AlertDraft,
    AlertTemplates,
    LookupBudget,
    TemplateData,
    TemplateExpander,
)
from gpuscope.judge.rules.rule_io import RuleQueries, RuleSample
from gpuscope.judge.rules.rule_spec import SECOND_NS, RuleSpec
from gpuscope.model.series import Labels

log = logging.getLogger("gpuscope")


class RuleFailed(GpuscopeError):
    """An evaluation that writes nothing; the text is the rule's `lastError`."""


class EvaluatedRule:
    """Identity, health and the time of the last evaluation. Written by the evaluation thread, read by HTTP
    handlers; each value is replaced as a whole."""

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


class RecordingRule(EvaluatedRule):
    """The series of its expression under another name, with labels set."""

    def __init__(self, spec: RuleSpec) -> None:
        super().__init__(spec)
        self._set = (("__name__", spec.name), *spec.labels)

    def evaluate(self, queries: RuleQueries, query_at_ms: int, limit: int) -> list[RuleSample]:
        vector = queries.instant(self.spec.expression, query_at_ms)
        labels = [overlay(label, self._set) for label in vector.labels]
        if len(set(labels)) != len(labels):
            raise RuleFailed("vector contains metrics with the same labelset after applying rule labels")
        if 0 < limit < len(labels):
            raise RuleFailed(f"exceeded limit of {limit} with {len(labels)} series")
        return list(zip(labels, vector.values.tolist(), strict=True))


def generator_url(external_url: str, spec: RuleSpec) -> str:
    escaped = quote_plus(spec.expression, safe="~", errors="surrogateescape")
    return f"{external_url.rstrip('/')}/graph?g0.expr={escaped}&g0.tab=1"


@dataclass(frozen=True, slots=True)
class AlertContext:
    """What all alerting rules share. `external_labels` are for templates only; a sender adds them to alerts."""

    templates: TemplateExpander
    external_labels: Mapping[str, str]
    external_url: str
    resend_delay_ns: int = 60 * SECOND_NS
    max_alerts: int = 100_000
    max_template_queries: int = 500


class AlertingRule(EvaluatedRule):
    def __init__(self, spec: RuleSpec, context: AlertContext, *, is_restored: bool) -> None:
        super().__init__(spec)
        self._context = context
        self.is_restored = is_restored
        """False while old state may still be restored: until then no `ALERTS` are written."""
        self._templates = AlertTemplates(spec, context.templates)
        self.table = AlertTable(spec.for_ns, spec.keep_firing_for_ns)
        self._lock = threading.Lock()
        self._template_log = EpisodeLog(log, f"alert {spec.name}: a template fails")

    def copy_state(self, other: AlertingRule) -> None:
        self.table.copy_from(other.table)

    def evaluate(self, queries: RuleQueries, at_ns: int, query_at_ms: int, limit: int) -> list[RuleSample]:
        """The samples of `ALERTS` and `ALERTS_FOR_STATE`; raises RuleFailed or RuleQueryError."""
        vector = queries.instant(self.spec.expression, query_at_ms)
        self._check_count(len(vector.labels))
        drafts: dict[Labels, AlertDraft] = {}
        failures: list[str] = []
        budget = LookupBudget(self._context.max_template_queries)
        for labels, value in zip(vector.labels, vector.values.tolist(), strict=True):
            draft = self._draft(self._template_data(labels, value, at_ns, queries, budget), at_ns, failures)
            if draft.alert.labels in drafts:
                raise RuleFailed("vector contains metrics with the same labelset after applying alert labels")
            drafts[draft.alert.labels] = draft
        self._templates.annotate(list(drafts.values()), budget, at_ns, failures)
        self._log_template_failures(failures)
        returned = {labels: draft.alert for labels, draft in drafts.items()}
        with self._lock:
            try:
                active = self.table.update(returned, at_ns, limit)
            except TooManyAlerts as error:
                raise RuleFailed(str(error)) from None
        return [sample for alert in active for sample in self._samples(alert)] if self.is_restored else []

    def _check_count(self, count: int) -> None:
        if count > self._context.max_alerts:
            LIMITS_REACHED.count("rules_max_alerts")
            raise RuleFailed(
                f"the expression gives {count} alerts; at most {self._context.max_alerts} are kept "
                "(rules_max_alerts)"
            )

    def _template_data(
        self, labels: Labels, value: float, at_ns: int, queries: RuleQueries, budget: LookupBudget
    ) -> TemplateData:
        def query(expression: str) -> list[tuple[dict[str, str], float]]:
            # At the evaluation time, without the query offset, as Prometheus does it.
            budget.count()
            result = queries.instant(expression, at_ns // 1_000_000)
            return list(zip(map(dict, result.labels), result.values.tolist(), strict=True))

        context = self._context
        seconds = at_ns / SECOND_NS
        return TemplateData(dict(labels), context.external_labels, context.external_url, value, query, seconds)

    def _draft(self, data: TemplateData, at_ns: int, failures: list[str]) -> AlertDraft:
        own = self._templates.expand_labels(data, failures)
        final = overlay(drop_metric_name(tuple(data.labels.items())), (*own, ("alertname", self.spec.name)))
        known = self.table.get(final)
        if known is not None and known.state is AlertState.INACTIVE:
            known = None  # it ended: this is a new one
        return AlertDraft(ActiveAlert(final, (), data.value, at_ns), data, known)

    def _log_template_failures(self, failures: Sequence[str]) -> None:
        if failures:
            self._template_log.failed(failures[0])
        else:
            self._template_log.succeeded()

    def _samples(self, alert: ActiveAlert) -> Iterable[RuleSample]:
        # From the raw labels of the rule, as in Prometheus: a label that a template has made empty appears in
        # these series with the template's text.
        base = overlay(self.spec.labels, alert.labels)
        name = ("alertname", self.spec.name)
        yield overlay(base, (("__name__", "ALERTS"), name, ("alertstate", alert.state.text))), 1.0
        yield (
            overlay(base, (("__name__", "ALERTS_FOR_STATE"), name)),
            float(alert.active_at_ns // SECOND_NS),
        )

    def take_alerts_to_send(self, at_ns: int, interval_ns: int) -> list[Alert]:
        """The alerts that a receiver has to hear of now; marks them as sent."""
        delay, url = self._context.resend_delay_ns, generator_url(self._context.external_url, self.spec)
        valid_until = (at_ns + 4 * max(interval_ns, delay)) / SECOND_NS
        with self._lock:
            return [
                Alert(
                    labels=alert.labels,
                    annotations=alert.annotations,
                    starts_at=(alert.fired_at_ns or 0) / SECOND_NS,
                    ends_at=None if alert.resolved_at_ns is None else alert.resolved_at_ns / SECOND_NS,
                    generator_url=url,
                    valid_until=valid_until,
                )
                for alert in self.table.take_to_send(at_ns, delay)
            ]

    def current_alerts(self) -> list[ActiveAlert]:
        """Copies of all alerts, those that are resolved too."""
        with self._lock:
            return [replace(alert) for alert in self.table]

    def active_alerts(self) -> list[ActiveAlert]:
        return [alert for alert in self.current_alerts() if alert.resolved_at_ns is None]

    def has_pending(self) -> bool:
        with self._lock:
            return any(alert.state is AlertState.PENDING for alert in self.table)

    def state(self) -> AlertState:
        if self.evaluated_at_ns is None:
            return AlertState.UNKNOWN
        with self._lock:
            return max((alert.state for alert in self.table), default=AlertState.INACTIVE)


def drop_metric_name(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != "__name__")

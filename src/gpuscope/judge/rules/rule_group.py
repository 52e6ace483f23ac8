"""A rule group: its rules evaluated one after the other, by one thread at a time, and stale markers for series
that ended.

The samples of a rule are committed before the next rule runs. A rule that fails writes neither samples nor
stale markers and sends no alerts. `EvaluationTotals` are shared by all groups.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpuscope.base.clock import Clock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.judge.rules.alert_state import AlertSink
from gpuscope.judge.rules.evaluated_rules import AlertContext, AlertingRule, RecordingRule, RuleFailed
from gpuscope.judge.rules.rule_io import RuleQueries, RuleQueryError, RuleSample, SampleWriter
from gpuscope.judge.rules.rule_spec import GroupSpec, to_nanoseconds
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.model.series import Labels

log = logging.getLogger("gpuscope")

# Durations of many events as Prometheus shows them: a count, a sum, quantiles and four buckets.
#
# Prometheus' quantiles cover ten minutes. Here they cover the newest MAX_RECENT events of that time.

BUCKETS = (0.01, 0.1, 1.0, 10.0)
MAX_RECENT = 1000
RECENT_SECONDS = 600.0


class Timings:
    """Any thread may observe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque(maxlen=MAX_RECENT)
        self.bucket_counts = [0] * len(BUCKETS)
        self.count = 0
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._recent.append((self._clock(), seconds))
            self.count += 1
            self.sum_seconds += seconds
            for index, bound in enumerate(BUCKETS):
                if seconds <= bound:
                    self.bucket_counts[index] += 1

    def quantile(self, share: float) -> float:
        """NaN if nothing was observed in the last ten minutes."""
        since = self._clock() - RECENT_SECONDS
        recent = sorted(seconds for at, seconds in self._recent.copy() if at >= since)
        return recent[min(len(recent) - 1, int(share * len(recent)))] if recent else float("nan")


def timing_families(
    name: str,
    histogram: str,
    help_text: str,
    quantiles: Sequence[float],
    timings: Sequence[tuple[LabelSet, Timings]],
) -> Iterator[MetricFamily]:
    """The summary `name` and the histogram `histogram`, with a series for each of `timings`."""
    shares = [
        Sample(labels.plus(("quantile",), str(share)), timing.quantile(share))
        for labels, timing in timings
        for share in quantiles
    ]
    yield MetricFamily(name, "summary", help_text, shares)
    buckets = [
        Sample(labels.plus(("le",), bound), count)
        for labels, timing in timings
        for bound, count in zip(
            (*(f"{bound:g}" for bound in BUCKETS), "+Inf"), (*timing.bucket_counts, timing.count), strict=True
        )
    ]
    yield MetricFamily(f"{histogram}_bucket", "untyped", help_text, buckets)
    for family in (name, histogram):
        sums = [Sample(labels, timing.sum_seconds) for labels, timing in timings]
        yield MetricFamily(f"{family}_sum", "untyped", help_text, sums)
        counts = [Sample(labels, timing.count) for labels, timing in timings]
        yield MetricFamily(f"{family}_count", "untyped", help_text, counts)


def unlabelled(timings: Timings) -> list[tuple[LabelSet, Timings]]:
    return [(NO_LABELS, timings)]


MILLISECOND_NS = 1_000_000


@dataclass(slots=True)
class EvaluationTotals:
    rules: Timings = field(default_factory=Timings)
    groups: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class RuleEnvironment:
    """What every group uses."""

    queries: RuleQueries
    samples: SampleWriter
    alerts: AlertSink
    context: AlertContext
    clock: Clock
    default_query_offset_ns: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set at the end of the program: rules that have not begun are left out, and errors do not count."""
    totals: EvaluationTotals = field(default_factory=EvaluationTotals)


class RuleGroup:
    def __init__(self, spec: GroupSpec, environment: RuleEnvironment, *, is_restored: bool) -> None:
        self.spec = spec
        self._environment = environment
        self.rules: list[AlertingRule | RecordingRule] = [
            AlertingRule(rule, environment.context, is_restored=is_restored)
            if rule.is_alert
            else RecordingRule(rule)
            for rule in spec.rules
        ]
        self.previous: list[dict[Labels, None]] = [{} for _ in self.rules]
        """Series of the previous evaluation of each rule."""
        self.stale_series: list[Labels] = []
        """Series of rules that a reload has removed."""
        self.needs_restore = not is_restored
        self.last_slot_ns: int | None = None
        self.evaluations = self.failures = self.iterations = self.missed = 0
        self.last_samples = 0
        self.evaluation_seconds = 0.0
        self.evaluated_at_ns: int | None = None
        self.restore_seconds: float | None = None
        self._failure_logs: dict[int, EpisodeLog] = {}

    @property
    def query_offset_ns(self) -> int:
        own = self.spec.query_offset_ns
        return self._environment.default_query_offset_ns if own is None else own

    def alerting_rules(self) -> list[AlertingRule]:
        return [rule for rule in self.rules if isinstance(rule, AlertingRule)]

    def copy_state(self, other: RuleGroup) -> None:
        """At a reload: the n-th rule with a name and labels continues the n-th one of the old group."""
        self.evaluation_seconds, self.evaluated_at_ns = other.evaluation_seconds, other.evaluated_at_ns
        self.last_slot_ns = other.last_slot_ns
        self.evaluations, self.failures = other.evaluations, other.failures
        self.iterations, self.missed = other.iterations, other.missed
        waiting: dict[tuple[str, Labels], list[int]] = {}
        for index, rule in enumerate(other.rules):
            waiting.setdefault(rule.spec.key, []).append(index)
        for index, rule in enumerate(self.rules):
            matches = waiting.get(rule.spec.key)
            if not matches:
                continue
            before = other.rules[matches[0]]
            self.previous[index] = other.previous[matches.pop(0)]
            if isinstance(rule, AlertingRule) and isinstance(before, AlertingRule):
                rule.copy_state(before)
        removed = [index for left in waiting.values() for index in left]
        self.stale_series = [
            *other.stale_series, *(labels for index in removed for labels in other.previous[index])
        ]  # fmt: skip

    def evaluate(self, slot_ns: int) -> None:
        """One evaluation of all rules at `slot_ns`."""
        clock = self._environment.clock
        began, began_at = clock.monotonic(), clock.now()
        self.iterations += 1
        self.last_slot_ns = slot_ns
        self.last_samples = 0
        written: dict[Labels, float] = {}
        for index in range(len(self.rules)):
            self._evaluate_rule(index, slot_ns, written)
            if self._environment.stopping.is_set():
                return
        self._end_stale_series(slot_ns, written)
        self.evaluation_seconds = clock.monotonic() - began
        self.evaluated_at_ns = to_nanoseconds(began_at)
        self._environment.totals.groups.observe(self.evaluation_seconds)

    def _evaluate_rule(self, index: int, slot_ns: int, written: dict[Labels, float]) -> None:
        rule, clock = self.rules[index], self._environment.clock
        began, began_at = clock.monotonic(), clock.now()
        self.evaluations += 1
        try:
            samples = self._query(rule, slot_ns)
            self._send(rule, slot_ns)
            rule.succeeded()
            self.last_samples += len(samples)
            self._write(index, samples, slot_ns, written)
            self._log(index).succeeded()
        except (RuleFailed, RuleQueryError) as error:
            self._failed(index, str(error))
        except Exception as error:
            # One rule must not stop the others, whatever a template or a query raises.
            self._failed(index, f"{type(error).__name__}: {error}")
            log.debug("rule %s", rule.spec.name, exc_info=True)
        finally:
            rule.evaluation_seconds = clock.monotonic() - began
            rule.evaluated_at_ns = to_nanoseconds(began_at)
            self._environment.totals.rules.observe(rule.evaluation_seconds)

    def _query(self, rule: AlertingRule | RecordingRule, slot_ns: int) -> list[RuleSample]:
        queries, limit = self._environment.queries, self.spec.limit
        query_at_ms = self._sample_time_ms(slot_ns)
        if isinstance(rule, AlertingRule):
            return rule.evaluate(queries, slot_ns, query_at_ms, limit)
        return rule.evaluate(queries, query_at_ms, limit)

    def _send(self, rule: AlertingRule | RecordingRule, slot_ns: int) -> None:
        if isinstance(rule, AlertingRule):
            alerts = rule.take_alerts_to_send(slot_ns, self.spec.interval_ns)
            if alerts:
                self._environment.alerts.take(alerts)

    def _write(self, index: int, samples: list[RuleSample], slot_ns: int, written: dict[Labels, float]) -> None:
        conflicts = [labels for labels, value in samples if written.get(labels, value) != value]
        kept = [sample for sample in samples if sample[0] not in written] if written else samples
        returned = dict.fromkeys(labels for labels, _ in samples)
        stale = [labels for labels in self.previous[index] if labels not in returned and labels not in written]
        if kept or stale:
            at_ms = self._sample_time_ms(slot_ns)
            problem = self._environment.samples.append(f"{self.spec.key}/{index}", at_ms, kept, stale)
            if problem:
                raise RuleFailed(problem)
        written.update(kept)
        written.update((labels, float("nan")) for labels in stale)
        self.previous[index] = returned
        if conflicts:
            raise RuleFailed(f"duplicate sample for timestamp: {len(conflicts)} series of an earlier rule")

    def _failed(self, index: int, reason: str) -> None:
        if self._environment.stopping.is_set():
            return
        self.failures += 1
        self.rules[index].failed(reason)
        self._log(index).failed(reason)

    def _log(self, index: int) -> EpisodeLog:
        episode = self._failure_logs.get(index)
        if episode is None:
            spec = self.rules[index].spec
            place = f"{self.spec.file}, line {spec.line}: group {self.spec.name}, rule {spec.name}"
            episode = self._failure_logs[index] = EpisodeLog(log, f"{place}: the evaluation failed")
        return episode

    def _end_stale_series(self, slot_ns: int, written: Iterable[Labels]) -> None:
        if self.stale_series:
            alive = {*written}
            ended = [labels for labels in self.stale_series if labels not in alive]
            if not self.write_stale(ended, slot_ns):
                self.stale_series = []

    def write_stale(self, series: list[Labels], at_ns: int) -> str:
        if not series:
            return ""
        at_ms = self._sample_time_ms(at_ns)
        return self._environment.samples.append(f"{self.spec.key}/ended", at_ms, (), series)

    def _sample_time_ms(self, slot_ns: int) -> int:
        return (slot_ns - self.query_offset_ns) // MILLISECOND_NS

"""Runs rule groups on their schedule: `run_due()` evaluates what is due, and says when to call it again.

Several threads may call `run_due`, so that a slow group delays no other; a group is evaluated by one thread at
a time. Any thread may call `replace_groups` (a reload) and read `groups`. A reload is applied between
evaluations: equal groups go on untouched, changed ones keep the state of their alerts, and the series of
removed ones end two intervals later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuscope.judge.rules.alert_templates import TEMPLATE_COUNTS
from gpuscope.judge.rules.rule_group import (
    EvaluationTotals,
    RuleEnvironment,
    RuleGroup,
    timing_families,
    unlabelled,
)
from gpuscope.judge.rules.rule_spec import SECOND_NS, GroupSpec, first_slot_ns, missed_slots, to_nanoseconds
from gpuscope.judge.rules.saved_alerts import RuleStateFile, has_pending, restore_for_state, restore_group
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, single_metric
from gpuscope.model.series import Labels

log = logging.getLogger("gpuscope")

PENDING_SAVE_SECONDS = 10.0
"""While an alert is pending its state is saved this often: after a crash `for` continues from there."""
MAX_IDLE_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class _Scheduled:
    group: RuleGroup
    due_ns: int
    evaluations: int = 0
    """Since the start or the reload that began this schedule."""
    is_running: bool = False
    """A thread evaluates it now, or a reload has removed it: in both cases no thread may begin."""


@dataclass(frozen=True, slots=True)
class _EndedGroup:
    """A removed group whose series get stale markers once renamed rules had time to write theirs."""

    group: RuleGroup
    series: list[Labels]
    ended_ns: int
    due_ns: int


@dataclass(frozen=True, slots=True)
class _PendingReload:
    specs: tuple[GroupSpec, ...]
    environment: RuleEnvironment


class RuleRunner:
    def __init__(
        self, specs: Sequence[GroupSpec], environment: RuleEnvironment, state_file: RuleStateFile | None = None
    ) -> None:
        self._environment = environment
        self._state_file = state_file
        self._scheduled: list[_Scheduled] = []
        self._ended: list[_EndedGroup] = []
        self._reload: _PendingReload | None = None
        self._saved_at = environment.clock.monotonic()
        self._lock = threading.Lock()  # for all of the above, never held during an evaluation
        self.wake = threading.Event()
        """Set when `run_due` should be called before the time it returned."""
        self._is_started = False
        self.groups = _sorted(RuleGroup(spec, environment, is_restored=False) for spec in specs)
        """Sorted by file and name; replaced as a whole."""

    # For any thread.

    def replace_groups(self, specs: Sequence[GroupSpec], environment: RuleEnvironment) -> None:
        """Use these groups from now on."""
        with self._lock:
            self._reload = _PendingReload(tuple(specs), environment)
        self.wake.set()

    # For the evaluation threads.

    def _start(self) -> None:
        """Restore the state file and set the first evaluation times."""
        saved = self._state_file.load() if self._state_file is not None else {}
        now_ns = self._now_ns()
        for group in self.groups:
            due_ns = first_slot_ns(group.spec, now_ns)
            state = saved.get(group.spec.key)
            if state is not None and restore_group(group, state, due_ns):
                group.needs_restore = False
            self._scheduled.append(_Scheduled(group, due_ns))
        self._is_started = True

    def run_due(self) -> float:
        """Evaluate every group that is due and not being evaluated, once; return the seconds until the next one
        is due."""
        with self._lock:
            if not self._is_started:
                self._start()
            self._apply_reload()
            self._follow_clock()
            scheduled = sorted(self._scheduled, key=lambda scheduled: scheduled.due_ns)
        # Each group at most once: evaluations that take longer than the interval must not keep the caller here.
        for entry in scheduled:
            if self._begin(entry):
                try:
                    self._evaluate(entry)
                finally:
                    self._end(entry)
        with self._lock:
            self._end_removed()
            self._save()
            return self._idle_seconds()

    def _begin(self, entry: _Scheduled) -> bool:
        """Whether the caller may evaluate this group now; no other thread may until `_end`."""
        with self._lock:
            is_free = not entry.is_running and not self._is_changed_by_reload(entry)
            if not is_free or entry.due_ns > self._now_ns() or self._environment.stopping.is_set():
                return False
            entry.is_running = True
            return True

    def _end(self, entry: _Scheduled) -> None:
        with self._lock:
            entry.is_running = False
            self._apply_reload()

    def _idle_seconds(self) -> float:
        now_ns = self._now_ns()
        times = [
            _next_slot_ns(scheduled, now_ns)
            for scheduled in self._scheduled
            if not self._is_changed_by_reload(scheduled)
        ]
        times += [ended.due_ns for ended in self._ended]
        if not times:
            return MAX_IDLE_SECONDS
        return max(0.0, min((min(times) - now_ns) / SECOND_NS, MAX_IDLE_SECONDS))

    def stop(self) -> None:
        """Save the state of all alerts, after the last call of `run_due`."""
        if self._state_file is not None and self._is_started:
            self._state_file.save(self.groups)

    def _now_ns(self) -> int:
        return to_nanoseconds(self._environment.clock.now())

    def _follow_clock(self) -> None:
        """A clock that was set back must not stop evaluation until it catches up."""
        now_ns = self._now_ns()
        for scheduled in self._scheduled:
            if not scheduled.is_running and scheduled.due_ns - now_ns > scheduled.group.spec.interval_ns:
                scheduled.due_ns, scheduled.evaluations = first_slot_ns(scheduled.group.spec, now_ns), 0

    def _evaluate(self, due: _Scheduled) -> None:
        group, slot_ns, interval_ns = due.group, due.due_ns, due.group.spec.interval_ns
        if due.evaluations:
            missed = missed_slots(slot_ns - interval_ns, self._now_ns(), interval_ns)
            group.missed += missed
            group.iterations += missed
            slot_ns += missed * interval_ns
        group.evaluate(slot_ns)
        due.due_ns = slot_ns + interval_ns
        due.evaluations += 1
        # Prometheus restores after two evaluations: before, recording rules may have no values yet.
        if group.needs_restore and due.evaluations >= 2:
            self._restore(group)

    def _restore(self, group: RuleGroup) -> None:
        began = self._environment.clock.monotonic()
        for rule in group.alerting_rules():
            restore_for_state(rule, self._environment.samples, self._now_ns())
        group.needs_restore = False
        group.restore_seconds = self._environment.clock.monotonic() - began

    def _is_changed_by_reload(self, entry: _Scheduled) -> bool:
        """Whether a reload that is not applied yet changes or removes this group."""
        return self._reload is not None and entry.group.spec not in self._reload.specs

    def _apply_reload(self) -> None:
        """Not while a group that it changes is being evaluated: the end of that evaluation tries again."""
        reload = self._reload
        if reload is None or any(
            scheduled.is_running and self._is_changed_by_reload(scheduled) for scheduled in self._scheduled
        ):
            return
        self._reload = None
        self._environment = reload.environment
        before = {scheduled.group.spec.key: scheduled for scheduled in self._scheduled}
        now_ns = self._now_ns()
        scheduled: list[_Scheduled] = []
        for spec in reload.specs:
            known = before.pop(spec.key, None)
            if known is not None and known.group.spec == spec:
                scheduled.append(known)
                continue
            group = RuleGroup(spec, reload.environment, is_restored=True)
            if known is not None:
                group.copy_state(known.group)
            scheduled.append(_Scheduled(group, first_slot_ns(spec, now_ns)))
        self._ended += [_ended(scheduled.group, now_ns) for scheduled in before.values()]
        for entry in self._scheduled:
            entry.is_running |= entry not in scheduled
        self._scheduled = scheduled
        self.groups = _sorted(entry.group for entry in scheduled)
        self.wake.set()  # other threads sleep until the next slot of a group of before

    def _end_removed(self) -> None:
        due = [ended for ended in self._ended if ended.due_ns <= self._now_ns()]
        if not due:
            return
        self._ended = [ended for ended in self._ended if ended not in due]
        alive = {labels for group in self.groups for series in group.previous for labels in series}
        for ended in due:
            series = [labels for labels in ended.series if labels not in alive]
            problem = ended.group.write_stale(series, ended.ended_ns)
            if problem:
                log.warning(
                    "the series of the removed rule group %s were not ended: %s", ended.group.spec.key, problem
                )

    def _save(self) -> None:
        if self._state_file is None:
            return
        tables = [rule.table for group in self.groups for rule in group.alerting_rules()]
        has_changed = any(table.has_changed for table in tables)
        is_old = self._environment.clock.monotonic() - self._saved_at >= PENDING_SAVE_SECONDS
        if has_changed or (is_old and has_pending(self.groups)):
            for table in tables:
                table.has_changed = False
            self._state_file.save(self.groups)
            self._saved_at = self._environment.clock.monotonic()


def _next_slot_ns(entry: _Scheduled, now_ns: int) -> int:
    """When a thread should look at this group again. The next slot of one that is being evaluated counts: the
    thread that evaluates it may go on with another group."""
    if not entry.is_running:
        return entry.due_ns
    interval_ns = entry.group.spec.interval_ns
    return entry.due_ns + ((now_ns - entry.due_ns) // interval_ns + 1) * interval_ns


def _ended(group: RuleGroup, now_ns: int) -> _EndedGroup:
    series = [*group.stale_series, *(labels for entry in group.previous for labels in entry)]
    return _EndedGroup(group, series, now_ns, now_ns + 2 * group.spec.interval_ns)


def _sorted(groups: Iterable[RuleGroup]) -> tuple[RuleGroup, ...]:
    return tuple(sorted(groups, key=lambda group: (group.spec.file, group.spec.name)))


# Metrics of rule evaluation under Prometheus' names, so that its dashboards and alerts on rules work here.

_Row = tuple[str, str, str, Callable[[RuleGroup], float | None]]
_ROWS: tuple[_Row, ...] = (
    ("rule_evaluations_total", "counter", "Rule evaluations.", lambda group: group.evaluations),
    (
        "rule_evaluation_failures_total",
        "counter",
        "Rule evaluations that failed.",
        lambda group: group.failures,
    ),
    (
        "rule_group_iterations_total",
        "counter",
        "Scheduled evaluations of the group, run or missed.",
        lambda group: group.iterations,
    ),
    (
        "rule_group_iterations_missed_total",
        "counter",
        "Evaluations of the group that were skipped because the previous one was slow.",
        lambda group: group.missed,
    ),
    (
        "rule_group_interval_seconds",
        "gauge",
        "Evaluation interval of the group.",
        lambda group: group.spec.interval_ns / SECOND_NS,
    ),
    (
        "rule_group_last_evaluation_timestamp_seconds",
        "gauge",
        "When the last evaluation of the group began.",
        lambda group: (group.evaluated_at_ns or 0) / SECOND_NS,
    ),
    (
        "rule_group_last_duration_seconds",
        "gauge",
        "Duration of the last evaluation of the group.",
        lambda group: group.evaluation_seconds,
    ),
    (
        "rule_group_last_rule_duration_sum_seconds",
        "gauge",
        "Duration of the last evaluation of all rules of the group.",
        lambda group: sum(rule.evaluation_seconds for rule in group.rules),
    ),
    (
        "rule_group_last_restore_duration_seconds",
        "gauge",
        "Duration of restoring alerts from ALERTS_FOR_STATE; absent if that was not done.",
        lambda group: group.restore_seconds,
    ),
    ("rule_group_rules", "gauge", "Rules in the group.", lambda group: len(group.rules)),
    (
        "rule_group_last_evaluation_samples",
        "gauge",
        "Samples that the last evaluation of the group gave.",
        lambda group: group.last_samples,
    ),
)


def rule_families(groups: Sequence[RuleGroup], totals: EvaluationTotals) -> Iterator[MetricFamily]:
    labels = [LabelSet((("rule_group", group.spec.key),)) for group in groups]
    for name, kind, help_text, read in _ROWS:
        values = [(own, read(group)) for own, group in zip(labels, groups, strict=True)]
        samples = [Sample(own, value) for own, value in values if value is not None]
        yield MetricFamily(f"prometheus_{name}", kind, help_text, samples)
    yield from timing_families(
        "prometheus_rule_evaluation_duration_seconds",
        "prometheus_rule_evaluation_duration_histogram_seconds",
        "Duration of rule evaluations.",
        (0.5, 0.9, 0.99),
        unlabelled(totals.rules),
    )
    yield from timing_families(
        "prometheus_rule_group_duration_seconds",
        "prometheus_rule_group_duration_histogram_seconds",
        "Duration of rule group evaluations.",
        (0.01, 0.05, 0.5, 0.9, 0.99),
        unlabelled(totals.groups),
    )
    counts = (("expansions", TEMPLATE_COUNTS.expansions), ("expansion_failures", TEMPLATE_COUNTS.failures))
    for word, count in counts:
        help_text = f"Template text {word.replace('_', ' ')}."
        yield single_metric(f"prometheus_template_text_{word}_total", "counter", help_text, count)

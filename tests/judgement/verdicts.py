"""How a server judges a history, through the answers that a user gets. The only module here that knows them.

Input: an engine that holds the history (the embedded store, or another one behind `--store`), and the moment of
judgement. Output: findings of now and over time, alerts, hours, receipts and the steps of the idle policy, as
plain values that `test_situations.py` compares.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.idle_policy import IdlePolicyThread, PolicyTrust
from gpuscope.history.engines.query_engine import LabelledValue, QueryEngine, labelled_values
from gpuscope.history.promql.result import Matrix, Vector
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.judge.checks.finding import Finding
from gpuscope.judge.checks.judgement import JudgedMoment
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.judge.reports.findings.finding_windows import Window
from gpuscope.judge.reports.findings.past_findings import past_findings
from gpuscope.judge.reports.receipt.job_question import parse_job
from gpuscope.judge.reports.receipt.receipt_reader import read_receipt
from gpuscope.judge.reports.report_range import digest_range, last_due, next_digest
from gpuscope.judge.reports.usage.usage import parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.judge.rules.alert_state import Alert, AlertState
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.evaluated_rules import AlertContext
from gpuscope.judge.rules.rule_file import with_default_groups
from gpuscope.judge.rules.rule_group import RuleEnvironment, RuleGroup
from gpuscope.judge.rules.rule_io import EngineQueries
from gpuscope.judge.rules.rule_spec import SECOND_NS, GroupSpec, RuleSpec
from gpuscope.judge.rules.shipped.rule_files import inhibit_rules
from gpuscope.judge.rules.unit_tests import MemoryStorage
from gpuscope.model.series import Labels
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.gone_nodes import GoneWatch
from gpuscope.serve.live.judging import Judging
from gpuscope.serve.live.live_fleet import with_costs
from gpuscope.serve.live.picture import finding_json
from gpuscope.serve.live.stored_samples import EngineSamples
from tests.judgement.replay import Answers, ReplayedEngine, vector_at
from tests.notify.judged import read_judged
from tests.rules.rig import HeldClock

NewEngine = Callable[[], QueryEngine]
"""A connection belongs to one event loop: each question has its own engine."""
T = TypeVar("T")
RULE_INTERVAL = 60
NOT_A_VERDICT = frozenset({"Watchdog", "GpuMetricsMissing"})
"""Alerts about the monitoring itself."""
POLICY = """
command: [{true}, '{{job}}']
pod_command: [{true}, '{{namespace}}/{{pod}}']
dry_run: false
"""
POLICY_STEP_SECONDS = 180
"""The thread runs each minute; three minutes still count as watched."""


@dataclass(frozen=True, slots=True)
class FoundFinding:
    kind: str
    uuids: frozenset[str]
    owners: frozenset[str]
    """Every name by which a person may know the owner."""
    since: float | None
    gpu_hours: float | None
    text: str


@dataclass(frozen=True, slots=True)
class FoundAlert:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class FoundAlerts:
    firing: list[FoundAlert]
    """At the end, without those that another one explains."""
    fired: set[str]
    """At some time and not explained by another one, those of the end included."""


class Server:
    """A server over an engine, asked at one moment; what it learned from one question it keeps for the next."""

    def __init__(self, new_engine: NewEngine, start: float, now: float) -> None:
        """`start` is when the history begins, in seconds since the epoch like `now`."""
        self.new_engine = new_engine
        self.start = start
        self._engine = _EngineAt()
        self.move_to(now)
        self._ledger = FindingLedger(self._engine)

    def move_to(self, now: float) -> None:
        """Another moment of judgement; what was read stays known."""
        self.now = now
        self._engine.now_ms = int(now * 1000)

    async def _query_history(self, expression: str, at: float) -> list[LabelledValue]:
        return labelled_values(await self._engine.instant(expression, int(at * 1000)))

    def _ask(self, question: Callable[[QueryEngine], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            self._engine.engine = self.new_engine()
            try:
                return await question(self._engine)
            finally:
                await self._engine.close()

        return asyncio.run(ask())

    def findings_now(self, down: Sequence[TargetHealth]) -> list[FoundFinding]:
        """Those of `/api/findings`; `down` are the targets that do not answer now."""

        async def ask(engine: QueryEngine) -> list[Finding]:
            async def states() -> Sequence[TargetHealth]:
                return down

            await self._read_ledger(int(self.now * 1000))
            judging = Judging(engine, self._ledger, clock=lambda: self.now)
            await judging.evaluate_due()
            watch = GoneWatch(self._query_history, states, clock=lambda: self.now)
            samples = (await EngineSamples(engine).read())()
            missing = await watch.find_missing([one for found in samples.values() for one in found])
            return FleetJudge(judging).judge(samples, missing, self.now).findings

        findings = self._ask(ask)
        priced = {one["id"]: one["cost_gpu_hours"] for one in with_costs(map(finding_json, findings), self.now)}
        return [_found(replace(one, cost_gpu_hours=priced[one.id])) for one in findings]

    async def _read_ledger(self, now_ms: int) -> None:
        """Everything that is known at a time."""
        await self._ledger.recheck(now_ms)
        await self._ledger.update(now_ms)
        while await self._ledger.cover(int(self.start * 1000), now_ms):
            pass

    def findings_over_time(self) -> list[FoundFinding]:
        """Those of `/api/findings?since=`."""
        self.read_history()
        return self.findings_between(self.start, self.now)

    def read_history(self) -> None:
        """Two minutes later, when the range is complete."""

        async def ask(engine: QueryEngine) -> None:
            await self._read_ledger(int(self.now * 1000) + 120_000)

        self._ask(ask)

    def findings_between(self, start: float, end: float) -> list[FoundFinding]:
        """Of a range, as far as the history was read."""
        start_ms, end_ms = int(start * 1000), int(end * 1000)
        found = past_findings(self._ledger.windows(start_ms, end_ms), start_ms, end_ms, fold=False)
        assert not found.folded  # there are more than one answer has
        return [_found(one.finding) for one in found.findings]

    def alerts(self, is_evaluated: Callable[[float], bool], *, with_texts: bool) -> FoundAlerts:
        """Of the shipped rule files, each minute. `is_evaluated` is False while the server is down."""
        slots = [slot for slot in _minutes(self.start, self.now) if is_evaluated(slot)]
        answers = self._ask(lambda engine: _answers(engine, self.start, self.now))
        firing: dict[float, list[tuple[RuleSpec, Labels, str]]] = {slot: [] for slot in slots}
        lookups = EngineQueries(self.new_engine, 30.0)
        try:
            for group, rule, matrix in answers:
                spec = replace(group, rules=(rule if with_texts else replace(rule, annotations=()),))
                evaluated = RuleGroup(spec, _environment(matrix, rule, lookups), is_restored=True)
                present = matrix.times_ms[matrix.present.any(axis=0)] / 1000
                # Before its first result and after its last one an alert is not active.
                for slot in (one for one in slots if present[0] <= one <= present[-1] + RULE_INTERVAL):
                    evaluated.evaluate(round(slot) * SECOND_NS)
                    (alerting,) = evaluated.alerting_rules()
                    firing[slot] += [
                        (rule, one.labels, "\n".join(text for _, text in one.annotations))
                        for one in alerting.active_alerts()
                        if one.state is AlertState.FIRING
                    ]
                assert not evaluated.failures, evaluated.rules[0].last_error
        finally:
            lookups.close()
        shown = [
            [FoundAlert(rule.name, text) for rule, _, text in _without_inhibited(firing[slot])]
            for slot in slots
        ]
        return FoundAlerts(shown[-1], {one.name for at_slot in shown for one in at_slot})

    def hours(self, by: str) -> dict[str, dict[str, float]]:
        """Of the usage report, by name; `total` has what nobody held."""
        question = UsageQuestion(
            parse_grouping(by), int(self.start * 1000), int(self.now * 1000), source="samples"
        )
        report = self._ask(lambda engine: usage_report(engine, question))
        found = {
            "/".join(row.names): {"held": row.held, "busy": row.busy or 0.0, "idle_held": row.idle_held}
            for row in report.rows
        }
        parts = report.invariant
        found["total"] = {"free": parts.free, "lost": parts.lost, "gpu_hours": parts.gpu_hours}
        return found

    def receipt(self, job: str) -> dict[str, Any]:
        question = parse_job(job, int(self.start * 1000), int(self.now * 1000))

        async def windows(start_ms: int, end_ms: int) -> Sequence[Window]:
            return self._ledger.windows(start_ms, end_ms)

        self.read_history()
        receipt = self._ask(lambda engine: read_receipt(engine, question, windows))
        return {
            "efficiency": receipt.efficiency,
            "held": sum(run.gpu_hours for run in receipt.runs),
            "busy": receipt.busy_hours,
            "run": sum(run.run_seconds for run in receipt.runs) / 3600,
            "waited": None if receipt.waited_seconds is None else receipt.waited_seconds / 3600,
            "gpus": len(receipt.gpus),
            "requested": receipt.requested_gpus,
            "runs": len(receipt.runs),
            "notes": [note.text.key.removeprefix("receipt.") for note in receipt.notes],
        }

    def policy(self, folder: Path, is_running: Callable[[float], bool]) -> dict[str, str]:
        """By holder, what the idle policy did at most: `warned` or `command`. Every warning is delivered at
        once. `is_running` is False while the server is down; then it starts anew."""
        slots = self._ask(lambda engine: _policy_slots(engine, self.start, self.now))
        if not slots:
            return {}
        folder.mkdir(exist_ok=True)
        (folder / "policy.yml").write_text(POLICY.format(true=_true_program()))
        settings = Settings(idle_policy=str(folder / "policy.yml"), data=str(folder))
        clock = HeldClock()
        trust = PolicyTrust(is_verified=lambda labels: True)
        sink, answers = _DeliveredAtOnce(clock), Answers(slots)

        def new_engine() -> QueryEngine:
            return ReplayedEngine(self.new_engine(), answers)

        async def ask() -> JudgedMoment:
            engine = new_engine()
            try:
                return await read_judged(engine, clock.seconds)
            finally:
                await engine.close()

        def judge() -> JudgedMoment:
            return asyncio.run(ask())

        def start() -> IdlePolicyThread:
            return IdlePolicyThread(settings, new_engine, sink, trust, judge, clock)

        thread, was_running = start(), True
        for slot in slots:
            clock.seconds = slot
            if is_running(slot):
                thread = thread if was_running else start()
                thread.run_once()
            was_running = is_running(slot)
        return _outcomes(folder / "idle_policy_audit.jsonl")


def digests(every: str, zone: str, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """The ranges of the usage reports that a server in a time zone mails between two moments."""
    place, sent = ZoneInfo(zone), set[date]()
    mailed = []
    for number in range(int((end - begin).total_seconds() // 1800) + 1):
        now = begin.timestamp() + 1800 * number
        sent = sent or {last_due(now, every, place)}
        while (due := next_digest(now, every, place, sent)) is not None:
            sent.add(due)
            start_at, end_at = digest_range(due, every, place)
            mailed.append((datetime.fromtimestamp(start_at, place), datetime.fromtimestamp(end_at, place)))
    return mailed


class _EngineAt:
    """The engine of the current question. Its `now` is the moment of judgement."""

    name = "engine"

    def __init__(self) -> None:
        self.engine: QueryEngine | None = None
        self.now_ms = 0

    async def instant(self, expression: str, at_ms: int | None = None, **options: Any) -> Vector:
        assert self.engine is not None
        return await self.engine.instant(expression, self.now_ms if at_ms is None else at_ms, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def _found(finding: Finding) -> FoundFinding:
    owner = finding.owner
    names = {owner.label, owner.name, owner.user, f"{owner.kind} {owner.name}"} - {""}
    return FoundFinding(
        kind=finding.kind,
        uuids=frozenset(finding.uuids),
        owners=frozenset(names if owner.kind != "none" else ()),
        since=finding.since,
        gpu_hours=finding.cost_gpu_hours,
        text=f"{finding.node}: {finding.why} {finding.next}",
    )


def _minutes(start: float, end: float) -> list[float]:
    count = int((end - start) // RULE_INTERVAL)
    return [end - RULE_INTERVAL * number for number in range(count, -1, -1)]


@cache
def shipped_rules() -> tuple[GroupSpec, ...]:
    return with_default_groups((), RULE_INTERVAL * SECOND_NS, load_templates())


async def _answers(engine: QueryEngine, start: float, end: float) -> list[tuple[GroupSpec, RuleSpec, Matrix]]:
    """The rules that ever have a result, with their results at each evaluation."""
    slots = _minutes(start, end)
    found = []
    for group in shipped_rules():
        for rule in group.rules:
            if rule.name in NOT_A_VERDICT:
                continue
            matrix = await engine.range(
                rule.expression, int(slots[0] * 1000), int(slots[-1] * 1000), RULE_INTERVAL * 1000
            )
            if matrix.labels:
                found.append((group, rule, matrix))
    return found


@dataclass(frozen=True, slots=True)
class _Replayed:
    """Answers the rule's own expression from a range query, and the lookups of its texts from the engine."""

    expression: str
    matrix: Matrix
    lookups: EngineQueries

    def instant(self, expression: str, at_ms: int) -> Vector:
        if expression != self.expression:
            return self.lookups.instant(expression, at_ms)
        return vector_at(self.matrix, at_ms)


class _NoAlerts:
    def take(self, alerts: Sequence[Alert]) -> None:
        pass


def _environment(matrix: Matrix, rule: RuleSpec, lookups: EngineQueries) -> RuleEnvironment:
    return RuleEnvironment(
        queries=_Replayed(rule.expression, matrix, lookups),
        samples=MemoryStorage(),
        alerts=_NoAlerts(),
        context=AlertContext(load_templates(), {}, "http://gpuscope.example"),
        clock=HeldClock(),
    )


@cache
def _inhibitions() -> tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]:
    return tuple(inhibit_rules())


def _without_inhibited(firing: Iterable[tuple[RuleSpec, Labels, str]]) -> list[tuple[RuleSpec, Labels, str]]:
    """As the inhibition rules that belong to the shipped files say it."""
    alerts = list(firing)
    if len(alerts) < 2:
        return alerts

    def is_inhibited(rule: RuleSpec, labels: Labels) -> bool:
        mine = dict(labels)
        return any(
            source.name == by and all(mine.get(name, "") == dict(theirs).get(name, "") for name in equal)
            for by, targets, equal in _inhibitions()
            if rule.name in targets
            for source, theirs, _ in alerts
        )

    return [one for one in alerts if not is_inhibited(one[0], one[1])]


async def _policy_slots(engine: QueryEngine, start: float, end: float) -> list[float]:
    """From the first minute in which a holder may be warned; empty if none ever may."""
    slots = [end - POLICY_STEP_SECONDS * n for n in range(int((end - start) // POLICY_STEP_SECONDS), -1, -1)]
    idle = await engine.range(
        'max(gpuscope_owner_idle_seconds{kind=~"job|pod"}) > 3300',
        int(slots[0] * 1000),
        int(slots[-1] * 1000),
        POLICY_STEP_SECONDS * 1000,
    )
    if not idle.labels:
        return []
    first = idle.times_ms[idle.present[0]][0] / 1000
    return [slot for slot in slots if slot >= first]


@dataclass(frozen=True, slots=True)
class _DeliveredAtOnce:
    clock: HeldClock

    def take(self, alerts: Sequence[Alert]) -> None:
        pass

    def delivered_at(self, alerts: Iterable[Labels]) -> dict[Labels, float]:
        return dict.fromkeys(alerts, self.clock.seconds)


def _outcomes(audit: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    rows: list[Mapping[str, Any]] = []
    if audit.exists():
        rows = [json.loads(line) for line in audit.read_text().splitlines()]
    for row in rows:
        holder = f"{row['namespace']}/{row['name']}" if row["namespace"] else f"job {row['name']}"
        if row["action"] == "run":
            found[holder] = "command"
        elif row["action"] == "warned":
            found.setdefault(holder, "warned")
    return found


@cache
def _true_program() -> str:
    return next(path for path in ("/usr/bin/true", "/bin/true") if Path(path).exists())

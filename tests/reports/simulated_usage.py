"""A node whose truth is known second by second, read by a real agent's accounts and scraped every 15 seconds.

`SimulatedUsage` takes runs (who holds which unit when, how busy), agent restarts, scrape gaps, GPUs that come
and go and MIG layouts. `series()` are the samples a server would have; `truth` is what really happened.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope.agent.families.native.owner_metrics import OwnerMetrics
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.base.yaml_file import parse_first_document
from gpuscope.history.promql import Engine
from gpuscope.judge.rules.evaluated_rules import AlertContext
from gpuscope.judge.rules.rule_file import read_groups
from gpuscope.judge.rules.rule_group import RuleEnvironment, RuleGroup
from gpuscope.judge.rules.rule_io import EvaluatorQueries
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.judge.rules.shipped.rule_files import rollup_groups
from gpuscope.judge.rules.unit_tests import MemoryStorage
from gpuscope.model.readings import (
    ABSENT,
    Counters,
    Device,
    Maybe,
    Owner,
    Ownership,
    Pid,
    Process,
    Snapshot,
    Uuid,
)
from gpuscope.model.series import Labels, Matcher, Series
from gpuscope.vendors.nvidia.nvidia_values import make_device, make_instance
from tests.reports.test_counter_growth import Samples
from tests.rules.rig import HeldClock, KeptAlerts, LabelTemplates

SCRAPE_SECONDS = 15
MODEL = "NVIDIA H100 80GB HBM3"
COMPUTE_SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3}


@dataclass(frozen=True, slots=True)
class Run:
    """One process of a user's job on one unit: `gpu` is an index, `instance` the number of a MIG instance."""

    user: str
    job: str
    gpu: int
    start: int
    end: int
    sm: Maybe[float] = 1.0
    instance: int | None = None
    account: str = ""
    pod: str = ""
    """`NAMESPACE/POD`; such a run has no job."""

    @property
    def owner(self) -> Owner:
        namespace, _, pod = self.pod.rpartition("/")
        if pod:
            return Owner(user=self.user, pod=pod, namespace=namespace)
        return Owner(user=self.user, job=self.job, job_account=self.account or ABSENT)

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """By what a report may name it."""
        if self.pod:
            return ("user", self.user), ("pod", self.pod), ("namespace", self.pod.rpartition("/")[0])
        account = (("account", self.account),) if self.account else ()
        return ("user", self.user), ("job", self.job), *account


@dataclass(frozen=True, slots=True)
class Layout:
    """MIG profiles of a board from a second on; none is a whole GPU. `present` is False while it is away."""

    gpu: int
    since: int
    profiles: tuple[str, ...] = ()
    present: bool = True
    activity: Maybe[float] = ABSENT
    """Of each instance."""


@dataclass(slots=True)
class UsageTruth:
    """In GPU-seconds."""

    held: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """By kind and name."""
    busy: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    free: float = 0.0
    stranded: float = 0.0


@dataclass
class SimulatedUsage:
    end_ms: int
    seconds: int
    gpus: int = 1
    runs: Sequence[Run] = ()
    layouts: Sequence[Layout] = ()
    restarts: Sequence[int] = ()
    """Seconds at which the agent starts again: its counters begin at 0, and one cycle is lost."""
    gaps: Sequence[tuple[int, int]] = ()
    """Seconds without a scrape."""
    watts: float = 400.0
    node: str = "n1"
    model: str = MODEL
    cycle: int = 5
    """Seconds between two readings of the agent; runs and layouts should be multiples of it."""
    scrape_at: int = 5
    """The second of the first scrape, a multiple of the cycle."""
    truth: UsageTruth = field(default_factory=UsageTruth)
    # Not arguments: `replace` must not share them between two fleets.
    _points: dict[Labels, list[tuple[int, float]]] = field(
        init=False, default_factory=lambda: defaultdict(list)
    )
    _points_of: dict[tuple[str, Labels], list[tuple[int, float]]] = field(init=False, default_factory=dict)
    """The same lists, by what a sample has before a server adds its labels."""
    _devices: dict[Layout, Device] = field(init=False, default_factory=dict)

    @property
    def start_ms(self) -> int:
        return self.end_ms - self.seconds * 1000

    def simulate(self) -> SimulatedUsage:
        accounts, metrics = OwnerAccounts(), OwnerMetrics()
        for second in range(0, self.seconds + 1, self.cycle):
            if second in self.restarts:
                accounts, metrics = OwnerAccounts(), OwnerMetrics()
            devices = [device for gpu in range(self.gpus) if (device := self._device(gpu, second)) is not None]
            processes = [self._process(run) for run in self.runs if run.start < second <= run.end]
            counters = {device.uuid: Counters(energy_joules=self.watts * second) for device in devices}
            uses, left = accounts.advance(processes, devices, ABSENT, counters, float(second))
            if second:
                self._count(devices, second)
            is_gap = any(begin <= second < end for begin, end in self.gaps)
            if second % SCRAPE_SECONDS == self.scrape_at and not is_gap:
                ownership = Ownership(uses=uses, unattributed=left, times=accounts.times)
                self._scrape(metrics, devices, ownership, second)
        return self

    def _board(self, gpu: int) -> Uuid:
        return Uuid(f"GPU-{gpu}" if self.node == "n1" else f"GPU-{self.node}-{gpu}")

    def _instance(self, gpu: int, number: int) -> Uuid:
        return Uuid(self._board(gpu).replace("GPU", "MIG") + f"-{number}")

    def _layout(self, gpu: int, second: int) -> Layout:
        known = [one for one in self.layouts if one.gpu == gpu and one.since <= second]
        return known[-1] if known else Layout(gpu, 0)

    def _device(self, gpu: int, second: int) -> Device | None:
        layout = self._layout(gpu, second)
        if not layout.present:
            return None
        if layout not in self._devices:
            self._devices[layout] = self._new_device(layout)
        return self._devices[layout]

    def _new_device(self, layout: Layout) -> Device:
        instances = tuple(
            make_instance(
                uuid=self._instance(layout.gpu, number),
                gpu_instance=number + 7,
                compute_instance=0,
                profile=profile,
                engine_active_ratio={"graphics": layout.activity},
            )
            for number, profile in enumerate(layout.profiles)
        )
        return make_device(
            uuid=self._board(layout.gpu), index=layout.gpu, model=self.model, instances=instances
        )

    def _process(self, run: Run) -> Process:
        return Process(
            pid=Pid(1000 + self.runs.index(run)),
            gpu_uuid=self._board(run.gpu),
            instance_uuid=ABSENT if run.instance is None else self._instance(run.gpu, run.instance),
            sm_ratio=run.sm,
            owner=run.owner,
        )

    def _count(self, devices: Sequence[Device], second: int) -> None:
        for device in devices:
            layout = self._layout(device.index, second)
            weights = [COMPUTE_SLICES[profile] / 7 for profile in layout.profiles] or [1.0]
            self.truth.stranded += (1.0 - sum(weights)) * self.cycle
            for number, weight in enumerate(weights):
                here = [
                    run
                    for run in self.runs
                    if run.gpu == device.index
                    and run.start < second <= run.end
                    and (run.instance == number if layout.profiles else run.instance is None)
                ]
                if not here:
                    self.truth.free += weight * self.cycle
                self._count_unit(here, weight, layout)

    def _count_unit(self, here: Sequence[Run], weight: float, layout: Layout) -> None:
        known = [0.0 if run.sm is ABSENT else run.sm for run in here]
        total = sum(known)
        for run, sm in zip(here, known, strict=True):
            share = sm / total if total else 1 / len(here)
            busy: Maybe[float] = (
                run.sm if run.sm is not ABSENT else layout.activity if len(here) == 1 else ABSENT
            )
            everywhere = (("node", self.node), ("model", self.model))
            profile = ("mig-profile", layout.profiles[run.instance or 0] if layout.profiles else "whole GPU")
            for owner in (*run.names, *everywhere, profile):
                self.truth.held[owner] += weight * share * self.cycle
                if busy is not ABSENT:
                    self.truth.busy[owner] += weight * busy / max(1.0, total) * self.cycle

    def _scrape(
        self, metrics: OwnerMetrics, devices: Sequence[Device], ownership: Ownership, second: int
    ) -> None:
        snapshot = Snapshot(node=self.node, taken_at=float(second), devices=tuple(devices), ownership=ownership)
        at_ms = self.start_ms + second * 1000
        for family in metrics.to_families(snapshot):
            for labels, value in family.samples if family.name.endswith("_total") else ():
                points = self._points_of.get((family.name, labels.pairs))
                if points is None:
                    points = self._points[self._labels(family.name, dict(labels.pairs))]
                    self._points_of[family.name, labels.pairs] = points
                points.append((at_ms, float(value)))
        for device in devices:
            uuid, gpu = device.uuid, str(device.index)
            self.add(at_ms, "gpuscope_gpu_info", 1.0, gpu=gpu, uuid=uuid, model=self.model, node=self.node)
            self.add(at_ms, "gpuscope_gpu_up", 1.0, gpu=gpu, uuid=uuid)
            for instance in device.instances:
                self.add(
                    at_ms,
                    "gpuscope_mig_info",
                    1.0,
                    uuid=instance.uuid,
                    parent_uuid=uuid,
                    profile=str(instance.profile),
                )

    def add(self, at_ms: int, metric: str, value: float, **labels: str) -> None:
        self._points[self._labels(metric, labels)].append((at_ms, value))

    def _labels(self, metric: str, labels: Mapping[str, str]) -> Labels:
        pairs = {"__name__": metric, "instance": f"{self.node}:9400", "job": "gpuscope", **labels}
        return tuple(sorted((key, text) for key, text in pairs.items() if text))

    def series(self) -> list[Series]:
        return [
            Series(labels, np.array([at for at, _ in points], np.int64), np.array([one for _, one in points]))
            for labels, points in self._points.items()
        ]


def with_rollups(
    series: Sequence[Series], start_ms: int, end_ms: int, missed: Sequence[int] = ()
) -> list[Series]:
    """The series, and the roll-ups that the shipped rules make of them. `missed` are numbers of evaluations
    that do not happen."""
    rollups = MemoryStorage()
    rollups.show_until(2**62)
    environment = RuleEnvironment(
        queries=EvaluatorQueries(Engine(_RawAndRollups(Samples(series), rollups))),
        samples=rollups,
        alerts=KeptAlerts(),
        context=AlertContext(LabelTemplates(), {}, "http://x"),
        clock=HeldClock(),
    )
    groups = []
    for name, text in rollup_groups().items():
        document, _ = parse_first_document(f"groups:\n{text}", f"{name}.yml")
        (spec,) = read_groups(document, f"{name}.yml", SECOND_NS, LabelTemplates())
        groups.append(RuleGroup(spec, environment, is_restored=True))
    for group in groups:
        interval_ms = group.spec.interval_ns // 1_000_000
        # Off the full minute, as the hash of a group's name would have it.
        slots = range(start_ms + 23_456, end_ms + 1, interval_ms)
        for number, slot_ms in enumerate(slots):
            if number not in missed and number:
                group.evaluate(slot_ms * 1_000_000)
        assert not group.failures, [rule.last_error for rule in group.rules]
    return [*series, *rollups.select((), start_ms - 1, 2**61)]


@dataclass(frozen=True, slots=True)
class _RawAndRollups:
    raw: Samples
    rollups: MemoryStorage

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        (name,) = [one.value for one in matchers if one.name == "__name__"]
        return (self.rollups if ":" in name else self.raw).select(matchers, start_ms, end_ms)

"""What the agents of a situation export: readings go through the real composer and builders of metrics.

A node's agent reads its GPUs every minute, or at each scrape, on a monotonic clock of its own; its clock of the
day may be wrong. `scrapes.py` makes a history of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import gpuscope
from gpuscope.agent.collect.composer import Integrator, SnapshotComposer
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.families.host.builder import HostFamily
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.families.selection import MetricSelection
from gpuscope.agent.owners.allocation_matching import AllocationClaim, AllocationMatcher
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.agent.owners.pods import Pod, Pods, index_pods
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.judge.checks.checks import CHECKED_METRICS
from gpuscope.model.exposition.sample import NO_LABELS, MetricFamily, Sample
from gpuscope.model.readings import (
    ABSENT,
    Device,
    ErrorEvent,
    HostReading,
    Instance,
    Maybe,
    Owner,
    Pid,
    Process,
    ProcessWork,
    Reading,
    SlurmState,
    Snapshot,
    SourceStatus,
    Uuid,
)
from gpuscope.model.readings.host import Filesystem
from gpuscope.serve.exporter import SNAPSHOT_AGE
from gpuscope.vendors.nvidia.nvidia_values import THROTTLE_BITS, make_device, make_instance
from tests.fakes import xid_event
from tests.judgement.clusters import slurm_state
from tests.judgement.links import nccl_reading, rails_reading, slot_address
from tests.judgement.schedules import Schedule, parse_duration, parse_schedule
from tests.judgement.situation import Event, Grant, Node, Place, Program, Situation

CYCLE_SECONDS, MAX_CYCLE_SECONDS = 60.0, 180.0
"""An agent reads its GPUs every second; it bridges three minutes."""
JUDGING = ("judge", "serve", "cli/wiring")
"""The folders whose metrics are scraped: the others would only cost time."""
GIGABYTE = 1e9
MEMORY_BYTES = 80 * GIGABYTE
RESERVED_BYTES = 0.6 * GIGABYTE
POWER_LIMIT, IDLE_POWER = 700.0, 70.0
MAX_CLOCK, IDLE_CLOCK = 1980e6, 345e6
SLOWDOWN_CELSIUS = 87.0


def board_uuid(place: Place, generation: int = 0) -> Uuid:
    """`generation` counts the cards that were in this slot."""
    return Uuid(f"GPU-{place.node}-{place.gpu}" + (f"-card{generation + 1}" if generation else ""))


@cache
def judged_metrics() -> MetricSelection:
    """Every metric that a check reads, and those whose name, or what follows `gpuscope_` in it, occurs where
    something is judged: the names of a vendor's errors are made from its catalogue."""
    folder = Path(gpuscope.__file__).parent
    texts = (path.read_text("utf-8") for name in JUDGING for path in (folder / name).rglob("*.py"))
    words = {word for text in texts for word in re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", text)}
    names = {name for word in words for name in (word, f"gpuscope_{word}", f"gpuscope_{word}_total")}
    return MetricSelection(names | CHECKED_METRICS)


class SimulatedAgent:
    """One node. `read` must be called with ascending times."""

    def __init__(self, situation: Situation, node: Node) -> None:
        self._situation = situation
        self._node = node
        self.cycle_seconds = min(MAX_CYCLE_SECONDS, max(CYCLE_SECONDS, situation.interval))
        self._programs = [one for one in situation.programs if one.places[0].node == node.name]
        self._grants = [
            one
            for one in situation.grants
            if one.is_known_on_node and any(place.node == node.name for place in one.places)
        ]
        self._claims: dict[str, Maybe[tuple[AllocationClaim, ...]]] = {"job": ABSENT, "pod": ABSENT}
        self._pods = index_pods(())
        self.restart(0.0)

    def restart(self, at: float) -> None:
        """Nothing is remembered; the kernel log is read again."""
        self._reported = 0
        self._boot_error = self._clock_error(at)  # an agent reads the time of the boot once
        self._composer = SnapshotComposer(
            self._node.name,
            ledger=ErrorLedger(None),
            integrator=Integrator(max_gap_seconds=2 * self.cycle_seconds),
            owners=OwnerJoin(
                ProcessEnricher(),
                OwnerAccounts(max_gap_seconds=2 * self.cycle_seconds),
                AllocationMatcher(
                    [lambda: self._claims["pod"]], lambda: self._pods, [lambda: self._claims["job"]]
                ),
                node=self._node.name,
            ),
            expected_gpus=self._node.gpus if self._node.gpus else ABSENT,
        )
        self._builders = (NativeBuilder(judged_metrics()), HostFamily())

    def read(self, at: float, since: float) -> Snapshot:
        """`at` and `since`, the time of the last reading, are seconds of the situation."""
        now = self._situation.start + at + self._clock_error(at)
        self._update_claims(at)
        has_driver = not any(
            event.span.has(at) and event.values.get("node", self._node.name) == self._node.name
            for event in self._situation.of_kind("source_down", "nvml")
        )
        reading = Reading(
            devices=tuple(self._devices(at, since)) if has_driver else (),
            processes=self._processes(at, since) if has_driver else ABSENT,
            host=self._host(at),
            slurm=self._slurm(at),
            infiniband=rails_reading(self._situation, self._node.name, at),
            collectives=nccl_reading(self._situation, self._node.name, at),
            simulated=True,  # its processes bring what /proc would tell: owner, start, program
        )
        return self._composer.compose(
            [reading],
            self._new_xids(at),
            now=now,
            monotonic=100_000.0 + at,
            sources=tuple(self._sources(at)),
        )

    def families(self, snapshot: Snapshot, age_seconds: float) -> Iterator[MetricFamily]:
        for builder in self._builders:
            for family in builder.to_families(snapshot):
                is_age = family.name == SNAPSHOT_AGE
                yield replace(family, samples=[Sample(NO_LABELS, age_seconds)]) if is_age else family

    def _clock_error(self, at: float) -> float:
        return 0.0 if self._node.clock is None else self._node.clock.at(at)

    def _sources(self, at: float) -> Iterator[SourceStatus]:
        down = {
            str(event.what): str(event.values.get("why", "it does not answer"))
            for event in self._situation.of_kind("source_down")
            if event.span.has(at) and event.values.get("node", self._node.name) == self._node.name
        }
        known = (str(event.what) for event in self._situation.of_kind("source_down"))
        for name in dict.fromkeys(("nvml", *known)):
            yield SourceStatus(name=name, up=name not in down, why=down.get(name, "reads GPUs"))

    def _new_xids(self, at: float) -> list[ErrorEvent]:
        events = [
            event
            for event in self._situation.of_kind("xid")
            if event.span.begin <= at and event.values["gpu"].startswith(f"{self._node.name}/")
        ]
        new = events[self._reported :]
        self._reported = len(events)
        return [self._xid(event) for event in new]

    def _xid(self, event: Event) -> ErrorEvent:
        place = Place(self._node.name, int(event.values["gpu"].partition("/")[2]))
        at = self._situation.start + event.span.begin + self._clock_error(event.span.begin)
        uuid = board_uuid(place, self._generation(place, event.span.begin))
        return xid_event(event.what, at=at, reporter="kernel_log", gpu_uuid=uuid)

    def _generation(self, place: Place, at: float) -> int:
        swaps = self._situation.of_kind("swapped", Place(place.node, place.gpu))
        return sum(event.span.begin <= at for event in swaps)

    def _profiles(self, place: Place, at: float) -> Sequence[str]:
        layouts = [one for one in self._situation.of_kind("mig", place) if one.span.begin <= at]
        return layouts[-1].values.get("profiles", ()) if layouts else ()

    def _is_missing(self, place: Place, at: float) -> bool:
        """A swapped card is away before its successor is there."""
        return any(
            event.span.begin - parse_duration(event.values.get("away", 0)) <= at < event.span.begin
            for event in self._situation.of_kind("swapped", place)
        )

    def _devices(self, at: float, since: float) -> Iterator[Device]:
        for index in range(self._node.gpus):
            place = Place(self._node.name, index)
            if self._is_missing(place, at):
                continue
            uuid = board_uuid(place, self._generation(place, at))
            if self._situation.is_during("lost", place, at):
                yield make_device(uuid=uuid, index=index, lost=True)
                continue
            yield self._device(place, uuid, at, since)

    def _device(self, place: Place, uuid: Uuid, at: float, since: float) -> Device:
        here = [one for one in self._programs if one.span.has(at) and _is_on(one, place)]
        busy = min(1.0, sum(_known(one, "sm", since, at) for one in here))
        video = {name: min(1.0, sum(_known(one, name, since, at) for one in here)) for name in _VIDEO}
        held = sum(_value(one, "memory", at) for one in here) * GIGABYTE
        profiles = self._profiles(place, at)
        values: dict[str, Any] = {
            "memory_total_bytes": MEMORY_BYTES,
            "memory_used_bytes": min(MEMORY_BYTES, held + RESERVED_BYTES),
            "power_watts": IDLE_POWER + 0.85 * (POWER_LIMIT - IDLE_POWER) * busy + 60.0 * max(video.values()),
            "power_limit_watts": {"enforced": POWER_LIMIT, "default": POWER_LIMIT},
            "clock_hertz": {"sm": MAX_CLOCK if busy > 0 else IDLE_CLOCK},
            "clock_max_hertz": {"sm": MAX_CLOCK},
            "temperature_celsius": {"gpu": 35.0 + 40.0 * busy},
            "temperature_threshold_celsius": {"slowdown": SLOWDOWN_CELSIUS},
            "pcie_bytes_per_second": {"tx": 1e9 * busy, "rx": 1e9 * busy},
            "throttle_mask": 0,
            "encoder_utilization_ratio": video["encoder"],
            "decoder_utilization_ratio": video["decoder"],
            "instances": tuple(self._instances(place, profiles, at, since)),
            "processes_known": not self._situation.is_during("processes_unknown", place.node, at),
        }
        if not profiles:
            values["utilization_ratio"] = busy
        for name, schedule in self._situation.gpu_facts.get(place, {}).items():
            _override(values, name, schedule, since, at)
        if self._situation.rails:
            values["pci_bus_id"] = slot_address(place)
        return make_device(uuid=uuid, index=place.gpu, minor_number=place.gpu, model=self._node.model, **values)

    def _instances(self, place: Place, profiles: Sequence[str], at: float, since: float) -> Iterator[Instance]:
        for number, profile in enumerate(profiles):
            inside = Place(place.node, place.gpu, number)
            here = [one for one in self._programs if one.span.has(at) and inside in one.places]
            held = sum(_value(one, "memory", at) for one in here) * GIGABYTE
            size = float(profile.partition(".")[2].removesuffix("gb")) * GIGABYTE
            busy = self._situation.gpu_facts.get(inside, {}).get("activity")
            yield make_instance(
                uuid=self._instance_uuid(inside, at),
                gpu_instance=number + 7,
                compute_instance=0,
                profile=profile,
                memory_total_bytes=size,
                memory_used_bytes=min(size, held),
                engine_active_ratio={} if busy is None else {"graphics": busy.mean(since, at)},
            )

    def _instance_uuid(self, place: Place, at: float) -> Uuid:
        """Another one after each change of the layout."""
        layouts = self._situation.of_kind("mig", Place(place.node, place.gpu))
        number = sum(event.span.begin <= at for event in layouts)
        return Uuid(f"MIG-{place.node}-{place.gpu}-{number}-{place.instance}")

    def _processes(self, at: float, since: float) -> Maybe[tuple[Process, ...]]:
        if self._situation.is_during("processes_unknown", self._node.name, at):
            return ABSENT
        return tuple(
            self._process(one, place, at, since)
            for one in self._programs
            if one.span.has(at)
            for place in one.places
            if not self._situation.is_during("lost", Place(place.node, place.gpu), at)
        )

    def _process(self, program: Program, place: Place, at: float, since: float) -> Process:
        board = Place(place.node, place.gpu)
        instance = ABSENT if place.instance is None else self._instance_uuid(place, at)
        is_seen = program.in_proc
        values: dict[str, Any] = {
            "pid": Pid(program.pid),
            "gpu_uuid": board_uuid(board, self._generation(board, at)),
            "instance_uuid": instance,
            "kind": program.kind,
            "command": program.command if is_seen else ABSENT,
            "driver_name": program.command,
            "started_at": self._situation.start + program.started + self._boot_error if is_seen else ABSENT,
            "memory_bytes": _value(program, "memory", at) * GIGABYTE
            if program.facts["memory"] is not None
            else ABSENT,
            "sm_ratio": _mean(program, "sm", since, at) if place.instance is None else ABSENT,
            "encoder_ratio": _mean(program, "encoder", since, at),
            "decoder_ratio": _mean(program, "decoder", since, at),
            "work": self._work(program, at),
            "owner": self._owner(program) if is_seen else Owner(),
            "program": self._program_name(program) if is_seen else ABSENT,
        }
        return Process(**values)

    @staticmethod
    def _program_name(program: Program) -> str:
        """Which processes belong together, as the agent finds it in cgroups and by the launcher."""
        if program.pod:
            return f"{program.pod_uid or program.pod}/{program.container or 'main'}"
        if program.job:
            return f"{program.job}.{program.step or '0'}"
        return f"pid-{program.launcher or program.pid}"

    @staticmethod
    def _owner(program: Program) -> Owner:
        namespace, _, pod = program.pod.rpartition("/")
        return Owner(
            user=program.user or ABSENT,
            pod=pod or ABSENT,
            namespace=namespace or ABSENT,
            pod_uid=program.pod_uid or (program.pod and f"uid-{pod}") or ABSENT,
            container=program.container or ("main" if pod else ABSENT),
            job=program.job or ABSENT,
            job_step=program.step or ("0" if program.job else ABSENT),
        )

    @staticmethod
    def _work(program: Program, at: float) -> ProcessWork:
        """Means over the last minute; known when the process has been watched for some time."""
        begin = max(program.span.begin, at - 60.0)
        if at - begin < 10.0 or not program.in_proc:
            return ProcessWork()
        values: dict[str, Any] = {
            "cpu_ratio": _mean(program, "cpu", begin, at),
            "io_wait_ratio": _mean(program, "io_wait", begin, at),
            "network_wait_ratio": _mean(program, "network_wait", begin, at),
            "busiest_thread_ratio": _mean(program, "busiest_thread", begin, at),
            "children_cpu_ratio": _mean(program, "children_cpu", begin, at),
        }
        if (reads := program.facts.get("reads")) is not None:  # megabytes a second
            from_start = max(program.started, -3600.0)
            values["read_bytes"] = 1e6 * reads.mean(from_start, at) * (at - from_start)
        return ProcessWork(**values)

    def _update_claims(self, at: float) -> None:
        """The same objects while nothing changes, as readers of a kubelet or a prolog's files give them."""
        present = [one for one in self._grants if one.span.has(at)]
        kinds = {"job": [g for g in self._grants if g.job], "pod": [g for g in self._grants if g.pod]}
        for kind, grants in kinds.items():
            if not grants:
                continue
            claims = tuple(self._claims_of(kind, [one for one in present if one in grants], at))
            if claims != self._claims[kind]:
                self._claims[kind] = claims
        pods = [
            Pod(uid=f"uid-{name}", namespace=namespace, name=name, running=True)
            for namespace, _, name in (one.pod.rpartition("/") for one in present if one.pod)
        ]
        made: Pods = index_pods(pods)
        if made != self._pods:
            self._pods = made

    def _claims_of(self, kind: str, grants: Iterable[Grant], at: float) -> Iterator[AllocationClaim]:
        for grant in grants:
            namespace, _, pod = grant.pod.rpartition("/")
            for place in grant.places:
                if place.node != self._node.name:
                    continue
                board = Place(place.node, place.gpu)
                uuid = board_uuid(board, self._generation(board, at))
                if place.instance is not None:
                    uuid = self._instance_uuid(place, at)
                if kind == "job":
                    yield AllocationClaim(device_id=uuid, resource="slurm", job=grant.job)
                else:
                    yield AllocationClaim(
                        device_id=uuid,
                        resource="nvidia.com/gpu",
                        namespace=namespace,
                        pod=pod,
                        container=grant.container,
                    )

    def _slurm(self, at: float) -> Maybe[SlurmState]:
        for cluster in self._situation.clusters:
            if cluster["read_by"] == self._node.name:
                return slurm_state(self._situation, cluster, at)
        return ABSENT

    def _host(self, at: float) -> Maybe[HostReading]:
        host = self._node.host
        if not host:
            return ABSENT
        lasts = self._situation.lasts

        def value(text: str | float) -> float:
            return parse_schedule(text, lasts).mean(at, at)

        memory = {}
        if "memory_available" in host:
            memory = {
                "MemTotal_bytes": 512e9,
                "MemAvailable_bytes": 512e9 * value(host["memory_available"]),
            }
        return HostReading(
            memory=memory,
            clock={"offset_seconds": value(host["clock_offset"])} if "clock_offset" in host else {},
            filesystems=tuple(
                Filesystem(
                    device=row.get("device", "/dev/sda1"),
                    mountpoint=row["mount"],
                    fstype=row.get("type", "ext4"),
                    size_bytes=row["size"] * GIGABYTE,
                    free_bytes=value(row["available"]) * GIGABYTE,
                    available_bytes=value(row["available"]) * GIGABYTE,
                    files=1e6,
                    files_free=5e5,
                    read_only=row.get("read_only", False),
                )
                for row in host.get("disks", ())
            ),
        )


_VIDEO = ("encoder", "decoder")


def _is_on(program: Program, board: Place) -> bool:
    return any((place.node, place.gpu) == (board.node, board.gpu) for place in program.places)


def _mean(program: Program, name: str, since: float, at: float) -> Maybe[float]:
    schedule = program.facts.get(name)
    return ABSENT if schedule is None else schedule.mean(max(since, program.span.begin), at)


def _known(program: Program, name: str, since: float, at: float) -> float:
    found = _mean(program, name, since, at)
    return 0.0 if found is ABSENT else found


def _value(program: Program, name: str, at: float) -> float:
    schedule = program.facts.get(name)
    return 0.0 if schedule is None else schedule.mean(at, at)


def _override(values: dict[str, Any], name: str, schedule: Schedule, since: float, at: float) -> None:
    """`power: 0.2` is a share of the limit; `ecc_errors.uncorrected.volatile: 3` an entry of a mapping."""
    number = schedule.mean(at, at)
    attribute, *key = name.split(".")
    if name == "activity":
        return
    if name == "power":
        values["power_watts"] = POWER_LIMIT * schedule.mean(since, at)
    elif name == "orphan_memory":
        values["memory_used_bytes"] += number * GIGABYTE
    elif name == "utilization":
        values["utilization_ratio"] = schedule.mean(since, at)
    elif name == "clock":
        values["clock_hertz"] = {"sm": number * 1e6}
    elif name == "temperature":
        values["temperature_celsius"] = {**values["temperature_celsius"], "gpu": number}
    elif name == "pcie":
        values["pcie_bytes_per_second"] = {"tx": number * 1e6, "rx": number * 1e6}
    elif attribute == "throttle":
        bit = THROTTLE_BITS[key[0]] if number else 0
        values["throttle_mask"] |= bit
    elif key:
        place = key[0] if len(key) == 1 else tuple(key)
        values[attribute] = {**values.get(attribute, {}), place: number}
    else:
        values[attribute] = number

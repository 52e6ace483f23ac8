"""What the load did against what the monitor showed, metric by metric.

The load knows its own busy time and the bytes it copied; the kind says which share of them each metric
should show. Means are taken over the steady seconds: the first ones hold the start, and a driver reports up to
a second late, so the last one is left out too. A metric the monitor never reported is no disagreement: it is
listed as not reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, sqrt
from statistics import fmean, stdev
from typing import Any, Final

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.model.readings import ABSENT, Device, Instance, Maybe, Process, Snapshot, Uuid, instance_name
from gpuscope.vendors.nvidia.load.device_process import DeviceLoad, Progress
from gpuscope.vendors.nvidia.load.kinds import NVLINK_LINK, PCIE_LINK, Kind
from gpuscope.vendors.nvidia.native_metrics import METRICS
from gpuscope.vendors.nvidia.nvidia_values import make_device, reader

SETTLING_SECONDS: Final = 3.0
TOLERANCE: Final = 0.05
"""Five points: what rounding, sampling periods and their phase add up to."""

UTILIZATION: Final = "utilization_ratio"
READING_OF: Final = {
    row.name.removeprefix("gpuscope_gpu_"): row.reading.removeprefix("vendor_values.") for row in METRICS
}
"""Paths of readings by name of the native metric."""

TRAFFIC_READINGS: Final = {
    PCIE_LINK: ("profiled_pcie_bytes_per_second", "pcie_bytes_per_second"),
    NVLINK_LINK: ("profiled_nvlink_bytes_per_second",),
}
"""By link: names of native metrics; the first one is the better one."""
SAMPLED_READINGS: Final = (UTILIZATION, "pcie_bytes_per_second")
"""The driver measures them over 1/6 s and 20 ms of each second, so their mean has a sampling error."""
MIN_TRAFFIC, MAX_TRAFFIC = 0.8, 1.4
"""Times the copied bytes: a link also carries packet headers and acknowledgements; counters may count them."""
STANDARD_ERRORS: Final = 3.0
"""Added to the range of a sampled reading on both sides."""


class Agreement(StrEnum):
    AGREES = "agrees"
    DISAGREES = "disagrees"
    NOT_REPORTED = "not reported"


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric; `seen` is the mean the monitor showed."""

    metric: str
    low: float
    high: float
    seen: Maybe[float]
    is_traffic: bool = False
    """Bytes per second; otherwise a share of the time."""

    @property
    def verdict(self) -> Agreement:
        if self.seen is ABSENT:
            return Agreement.NOT_REPORTED
        tolerance = 0.0 if self.is_traffic else TOLERANCE
        agrees = self.low - tolerance <= self.seen <= self.high + tolerance
        return Agreement.AGREES if agrees else Agreement.DISAGREES


@dataclass(slots=True)
class LoadedGpu:
    """One GPU or MIG instance under load, and everything seen of it."""

    gpu: str
    uuid: str
    model: Maybe[str]
    is_shared: bool = False
    """Something else may work on it, too: a metric may then show more than the load."""
    progress: list[Progress] = field(default_factory=list)
    samples: list[tuple[float, Device | Instance]] = field(default_factory=list)
    """(seconds since the load began, what the monitor read)."""
    error: str = ""
    simulated_bytes_per_second: float = 0.0
    """Of a simulated load that copies."""

    def rate(self) -> Maybe[float]:
        """Operations or bytes a second over the whole load."""
        if not self.progress or self.progress[-1].elapsed <= 0:
            return ABSENT
        return self.progress[-1].amount / self.progress[-1].elapsed

    def busy_ratio(self) -> Maybe[float]:
        """The share of the steady time in which the GPU was busy, by its own events."""
        return self._steady_rate(lambda progress: progress.busy_seconds)

    def steady_amount_rate(self) -> Maybe[float]:
        """Operations or bytes a second over the steady time."""
        return self._steady_rate(lambda progress: progress.amount)

    def _steady_rate(self, total: Callable[[Progress], float]) -> Maybe[float]:
        steady = [progress for progress in self.progress if progress.elapsed >= SETTLING_SECONDS]
        if len(steady) < 2:
            return ABSENT
        elapsed = steady[-1].elapsed - steady[0].elapsed
        return (total(steady[-1]) - total(steady[0])) / elapsed if elapsed > 0 else ABSENT


def compare(gpu: LoadedGpu, kind: Kind) -> list[Compared]:
    """Nothing if the load was too short to settle."""
    busy = gpu.busy_ratio()
    if busy is ABSENT:
        return []
    last = gpu.progress[-1].elapsed
    steady = [device for at, device in gpu.samples if SETTLING_SECONDS + 1 <= at <= last - 1]
    ranges = {UTILIZATION: (busy, busy)} if kind.kernel is not None else {}
    ranges |= {name: (share.low * busy, share.high * busy) for name, share in kind.expected.items()}
    if gpu.is_shared:
        ranges = {name: (low, 1.0) for name, (low, _) in ranges.items()}
    shares = [_compare(name, low, high, _values(steady, name)) for name, (low, high) in ranges.items()]
    return [*shares, *_compare_traffic(gpu, kind, steady)]


def _compare_traffic(gpu: LoadedGpu, kind: Kind, steady: Sequence[Device | Instance]) -> Iterator[Compared]:
    """Every reading of the link that the monitor has; the best one as not reported if it has none."""
    rate = gpu.steady_amount_rate()
    if rate is ABSENT:
        return
    for part in kind.traffic:
        low = rate * part.share * MIN_TRAFFIC
        high = inf if gpu.is_shared else rate * part.share * MAX_TRAFFIC
        rows = [
            _compare(name, low, high, _values(steady, name, part.direction), part.direction)
            for name in TRAFFIC_READINGS[part.link]
        ]
        yield from [row for row in rows if row.seen is not ABSENT] or rows[:1]


def _compare(name: str, low: float, high: float, values: Sequence[float], direction: str = "") -> Compared:
    """`direction` of a link's traffic; without one it is a share of the time."""
    margin = STANDARD_ERRORS * _standard_error(values) if name in SAMPLED_READINGS else 0.0
    highest = inf if direction else 1.0
    return Compared(
        f"{name}.{direction}" if direction else name,
        max(0.0, low - margin),
        min(highest, high + margin),
        fmean(values) if values else ABSENT,
        is_traffic=bool(direction),
    )


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _values(devices: Sequence[Device | Instance], name: str, label: str = "") -> list[float]:
    return [value for device in devices if (value := _value(device, name, label)) is not ABSENT]


def _value(device: Device | Instance, name: str, label: str) -> Maybe[float]:
    path = READING_OF.get(name, name)
    return reader(f"{path}.{label}" if label else path)(device)


# Which GPUs are loaded: by index, UUID or MIG position, and only those that no other process uses.
#
# A GPU split into MIG instances cannot be loaded as a whole; its instances can.


def select_gpus(snapshot: Snapshot, wanted: Sequence[str]) -> list[LoadedGpu]:
    """Those named, or all."""
    there = {gpu.gpu: gpu for gpu in _loadable(snapshot)}
    by_name = there | {gpu.uuid: gpu for gpu in there.values()}
    if not wanted:
        return list(there.values())
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise UsageError(f"--gpus: no GPU {missing[0]!r}; there are {', '.join(there) or 'none'}")
    return list({by_name[name].uuid: by_name[name] for name in wanted}.values())


def _loadable(snapshot: Snapshot) -> Iterator[LoadedGpu]:
    for device in snapshot.devices:
        if device.lost:
            continue
        if not device.instances:
            yield LoadedGpu(str(device.index), device.uuid, device.model)
        for instance in device.instances:
            yield LoadedGpu(instance_name(device, instance), instance.uuid, device.model)


def find_reading(snapshot: Snapshot, uuid: str) -> Device | Instance | None:
    """What the snapshot has of this GPU or instance; None if it is gone."""
    for device in snapshot.devices:
        if device.uuid == uuid:
            return None if device.lost else device
        for instance in device.instances:
            if instance.uuid == uuid:
                return instance
    return None


def refuse_used(snapshot: Snapshot, gpus: Sequence[LoadedGpu], own_pids: frozenset[int]) -> None:
    """An error that names the first process of somebody else on one of the GPUs."""
    wanted = {gpu.uuid: gpu.gpu for gpu in gpus}
    for process in snapshot.processes if snapshot.processes is not ABSENT else ():
        place = process.gpu_uuid if process.instance_uuid is ABSENT else process.instance_uuid
        if place in wanted and process.pid not in own_pids and process.kind != "G":
            raise UsageError(
                f"GPU {wanted[place]} is in use: {describe(process)}; "
                "choose another with --gpus, or load it anyway with --force"
            )


def describe(process: Process) -> str:
    owner = process.owner
    parts = [f"process {process.pid}"]
    if process.command is not ABSENT:
        parts.append(f"({process.command})")
    if owner.pod is not ABSENT:
        namespace = "" if owner.namespace is ABSENT else f"{owner.namespace}/"
        parts.append(f"of pod {namespace}{owner.pod}")
    elif owner.user is not ABSENT:
        parts.append(f"of {owner.user}")
    if owner.job is not ABSENT:
        parts.append(f"in job {owner.job}")
    return " ".join(parts)


# A load on the simulated GPUs of a demo server: the server simulates, this follows what its live view shows.
#
# A simulated GPU may also work for its own simulated job, so a metric may show more than the load alone. PCIe
# traffic is not in the live view; it is read with PromQL, some seconds after the load has begun, because the
# server stores a sample every few seconds only.

LIVE_KEYS = {"utilization_ratio": "busy", "power_watts": "power"}
LIVE_ENGINES = ("sm", "tensor", "dram")

STORED_AFTER_SECONDS: Final = 7.0
"""Older answers may hold a sample from before the load: `up` stores one every 5 s."""
TRAFFIC_QUERY: Final = '{__name__=~"gpuscope_gpu_(profiled_)?pcie_bytes_per_second"}'

Show = Callable[[float, LoadedGpu, Device | Instance | None], None]


def loaded_gpus(answer: Any) -> list[LoadedGpu]:
    """The GPUs that `POST /api/demo/load` names."""
    try:
        return [
            LoadedGpu(
                str(gpu["gpu"]),
                str(gpu["uuid"]),
                str(gpu.get("model", "")) or ABSENT,
                is_shared=True,
                simulated_bytes_per_second=float(gpu.get("bytes_per_second", 0.0)),
            )
            for gpu in answer["gpus"]
        ]
    except (TypeError, KeyError, AttributeError, ValueError):
        raise GpuscopeError("the server's answer names no GPU; is it a `gpuscope up --demo`?") from None


def follow_demo_load(
    gpus: Sequence[LoadedGpu],
    load: DeviceLoad,
    read_live: Callable[[], Any],
    read_traffic: Callable[[], Any],
    show: Show,
    wait: Callable[[float], object],
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Each second until the load has ended."""
    began_at = monotonic()
    while (elapsed := monotonic() - began_at) < load.duration:
        wait(min(1.0, load.duration - elapsed))
        elapsed = min(load.duration, monotonic() - began_at)
        copies = any(gpu.simulated_bytes_per_second for gpu in gpus)
        traffic = read_traffic() if copies and elapsed >= STORED_AFTER_SECONDS else None
        readings = _readings(read_live(), _traffic(traffic))
        for gpu in gpus:
            amount = elapsed * gpu.simulated_bytes_per_second
            gpu.progress.append(Progress(elapsed, amount, elapsed * load.target))
            reading = readings.get(gpu.uuid)
            if reading is not None:
                gpu.samples.append((elapsed, reading))
            show(elapsed, gpu, reading)


def _traffic(answer: Any) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """By UUID, reading and direction, from the answer to TRAFFIC_QUERY."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for series in answer["data"]["result"] if answer else ():
        labels = series["metric"]
        name = labels["__name__"].removeprefix("gpuscope_gpu_")
        rates = found.setdefault(labels["uuid"], {}).setdefault(name, {})
        rates[labels["direction"]] = float(series["value"][1])
    return found


def _readings(live: Any, traffic: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Mapping[str, Device]:
    """By UUID; what the live view does not show is absent."""
    readings = {}
    for gpu in live.get("gpus", ()) if isinstance(live, dict) else ():
        values: dict[str, Any] = {name: float(gpu[key]) for name, key in LIVE_KEYS.items() if key in gpu}
        temperatures = {"gpu": float(gpu["temperature"])} if "temperature" in gpu else {}
        uuid = str(gpu["uuid"])
        links: dict[str, Any] = dict(traffic.get(uuid, {}))
        engines = {engine: float(gpu[engine]) for engine in LIVE_ENGINES if engine in gpu}
        readings[uuid] = make_device(
            uuid=Uuid(uuid),
            index=0,
            temperature_celsius=temperatures,
            engine_active_ratio=engines,
            **values,
            **links,
        )
    return readings

"""Loads on the simulated fleet: what `gpuscope load --simulate` would do to real GPUs.

A load adds its activity to what a simulated GPU does anyway: if the GPU is idle for half of the time, a load of
60 % uses 60 % of that half. Counters (busy seconds, energy) keep what was added after the load has ended, so
they never go back. Loads begin now and never in the simulated past.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from gpuscope.base.errors import UsageError
from gpuscope.model.readings import ABSENT, Device, Maybe, Owner, Pid, Process, Reading, Uuid, VendorValues

MAX_LOADS: Final = 64
MAX_SECONDS: Final = 24 * 3600.0
FIRST_PID: Final = 4_000_000
POWER_SHARE: Final = 0.85
"""Of the range up to the power limit, at full activity."""
DEFAULT_MEMORY_BYTES: Final = 2 << 30

LOAD_PROFILES: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "tensor": {"tensor": 0.8, "dram": 0.02},
        "fp32": {"fp32": 0.9, "dram": 0.02},
        "fp64": {"fp64": 0.9, "dram": 0.02},
        "fp16": {"fp16": 0.6, "dram": 0.02},
        "memory": {"dram": 0.85},
    }
)
"""Activity at full load, by kind of load; a GPU's SMs are active in all of them."""
COPY_DIRECTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"pcie": ("tx", "rx"), "pcie-tx": ("tx",), "pcie-rx": ("rx",)}
)
"""Loads that copy over PCIe, by kind; no kernel runs, so utilisation stays as it is."""
LANE_BYTES_PER_SECOND: Final = 0.25e9
"""Of a PCIe lane of the first generation; each generation doubles it."""
COPY_SHARE: Final = 0.8
"""Of the link's bandwidth that a copy reaches."""
EVERY_KIND: Final = {"sm": 0.98, "graphics": 1.0}
OCCUPANCY: Final = 0.9


@dataclass(frozen=True, slots=True)
class SimulatedLoad:
    node: str
    uuids: frozenset[Uuid]
    kind: str
    target: float
    """Share of the time in which the GPU works, above 0 and up to 1."""
    began_at: float
    ends_at: float
    memory_bytes: int
    pid: Pid


class SimulatedLoads:
    """The loads of a whole fleet. Started by the server's thread, applied by the collectors' threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads: tuple[SimulatedLoad, ...] = ()
        self._started = 0
        self._busy: dict[Uuid, float] = {}
        self._joules: dict[Uuid, float] = {}

    def start(
        self,
        node: str,
        uuids: Iterable[Uuid],
        *,
        kind: str,
        target: float,
        now: float,
        seconds: float,
        memory_bytes: int | None = None,
    ) -> SimulatedLoad:
        if kind not in LOAD_PROFILES and kind not in COPY_DIRECTIONS:
            known = ", ".join([*LOAD_PROFILES, *COPY_DIRECTIONS])
            raise UsageError(f"{kind!r} is not a kind of simulated load; choose one of {known}")
        if not 0 < target <= 1 or not 0 < seconds <= MAX_SECONDS:
            raise UsageError("a simulated load needs a target above 0 and up to 1, and lasts at most a day")
        with self._lock:
            active = tuple(load for load in self._loads if load.ends_at > now)
            if len(active) >= MAX_LOADS:
                raise UsageError(f"{MAX_LOADS} simulated loads are running; wait until one has ended")
            self._started += 1
            load = SimulatedLoad(
                node,
                frozenset(uuids),
                kind,
                target,
                now,
                now + seconds,
                DEFAULT_MEMORY_BYTES if memory_bytes is None else memory_bytes,
                Pid(FIRST_PID + self._started),
            )
            self._loads = (*active, load)
        return load

    def apply(self, node: str, reading: Reading, at: float, since: float | None) -> Reading:
        """The reading with the loads of this node, which lasted from `since` until `at`."""
        loads = [
            load
            for load in self._loads
            if load.node == node and load.ends_at > (at if since is None else since)
        ]
        if not loads and not self._busy:
            return reading
        devices = tuple(self._loaded(device, loads, at, since) for device in reading.devices)
        processes = reading.processes
        if processes is not ABSENT:
            processes = (
                *processes,
                *(process for load in loads for process in _processes(load, reading.devices, at)),
            )
        return replace(reading, devices=devices, processes=processes)

    def _loaded(self, device: Device, loads: list[SimulatedLoad], at: float, since: float | None) -> Device:
        for load in loads:
            if device.uuid in load.uuids and not device.lost:
                device = self._with_load(device, load, at, since)
        return replace(
            device,
            busy_seconds=_plus(device.busy_seconds, self._busy.get(device.uuid, 0.0)),
            energy_joules=_plus(device.energy_joules, self._joules.get(device.uuid, 0.0)),
        )

    def _with_load(self, device: Device, load: SimulatedLoad, at: float, since: float | None) -> Device:
        if load.kind in COPY_DIRECTIONS:
            return _with_copies(device, load) if load.began_at <= at < load.ends_at else device
        seconds = max(0.0, min(at, load.ends_at) - max(load.began_at, at if since is None else since))
        idle = 1 - (0.0 if device.utilization_ratio is ABSENT else device.utilization_ratio)
        added = load.target * idle
        watts = _added_watts(device, load.target)
        self._busy[device.uuid] = self._busy.get(device.uuid, 0.0) + added * seconds
        self._joules[device.uuid] = self._joules.get(device.uuid, 0.0) + watts * seconds
        if not load.began_at <= at < load.ends_at:
            return device
        activity = {**EVERY_KIND, **LOAD_PROFILES[load.kind]}
        engines = {
            engine: value + (1 - value) * load.target * activity.get(engine, 0.0)
            for engine, value in device.engine_active_ratio.items()
        }
        return replace(
            device,
            utilization_ratio=_mixed(device.utilization_ratio, load.target),
            utilization_mean_ratio=_mixed(device.utilization_mean_ratio, load.target),
            power_watts=_plus(device.power_watts, watts),
            power_instant_watts=_plus(device.power_instant_watts, watts),
            memory_used_bytes=_plus(device.memory_used_bytes, load.memory_bytes),
            memory_free_bytes=_plus(device.memory_free_bytes, -load.memory_bytes),
            engine_active_ratio=engines,
            vendor_values=_changed(
                device, "sm_occupancy_ratio", lambda ratio: _mixed(ratio, load.target * OCCUPANCY)
            ),
        )


def copied_bytes_per_second(device: Device, kind: str, target: float) -> dict[str, float]:
    """By direction; empty for loads that do not copy, and for a GPU that does not report its PCIe link."""
    generation, lanes = device.pcie_link_generation, device.pcie_link_width
    if kind not in COPY_DIRECTIONS or generation is ABSENT or lanes is ABSENT:
        return {}
    rate = LANE_BYTES_PER_SECOND * 2 ** (generation - 1) * lanes * COPY_SHARE * target
    return dict.fromkeys(COPY_DIRECTIONS[kind], rate)


def _with_copies(device: Device, load: SimulatedLoad) -> Device:
    more = copied_bytes_per_second(device, load.kind, load.target)

    def added(rates: Mapping[str, float]) -> Mapping[str, float]:
        return {direction: rate + more.get(direction, 0.0) for direction, rate in rates.items()}

    return replace(
        device,
        pcie_bytes_per_second=added(device.pcie_bytes_per_second),
        vendor_values=_changed(device, "profiled_pcie_bytes_per_second", added),
        memory_used_bytes=_plus(device.memory_used_bytes, load.memory_bytes),
        memory_free_bytes=_plus(device.memory_free_bytes, -load.memory_bytes),
    )


def _changed(device: Device, name: str, change: Callable[[Any], object]) -> VendorValues:
    """A reading that only some vendors have."""
    values = device.vendor_values
    return replace(values, **{name: change(getattr(values, name))}) if hasattr(values, name) else values


def _mixed(value: Maybe[float], share: float) -> Maybe[float]:
    return ABSENT if value is ABSENT else value + (1 - value) * share


def _plus(value: Maybe[float], more: float) -> Maybe[float]:
    return ABSENT if value is ABSENT else max(0.0, value + more)


def _added_watts(device: Device, target: float) -> float:
    limit = device.power_limit_watts.get("enforced", device.power_limit_watts.get("current", ABSENT))
    if limit is ABSENT or device.power_watts is ABSENT:
        return 0.0
    return max(0.0, limit - device.power_watts) * POWER_SHARE * target


def _processes(load: SimulatedLoad, devices: Iterable[Device], at: float) -> Iterable[Process]:
    if not load.began_at <= at < load.ends_at:
        return
    for device in devices:
        if device.uuid in load.uuids:
            yield Process(
                pid=load.pid,
                gpu_uuid=device.uuid,
                command="gpuscope",
                driver_name="gpuscope",
                started_at=load.began_at,
                memory_bytes=float(load.memory_bytes),
                sm_ratio=load.target,
                owner=Owner(user="demo"),
            )

"""Busy seconds, energy and throttled seconds, integrated at the agent's own clock.

A scrape every 15 s misses a burst of 3 s; a counter does not. The driver's own counters and samples are used
where they exist; elsewhere a reading is multiplied by the time since the last one. Nothing is added for time in
which a GPU was not read. A counter is ABSENT until its GPU has given a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuscope.model.readings import ABSENT, Counters, Device, Maybe, Uuid
from gpuscope.model.vendor import idle_reasons


@dataclass(slots=True)
class _Totals:
    last_at: float
    busy_seconds: Maybe[float] = ABSENT
    driver_busy: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT
    throttled_seconds: dict[str, float] = field(default_factory=dict)
    driver_throttled: Mapping[str, float] = field(default_factory=dict)


class Integrator:
    """Call `advance` with every cycle's devices and a monotonic time; it returns each GPU's counters."""

    def __init__(self, max_gap_seconds: float) -> None:
        self._max_gap = max_gap_seconds
        self._totals: dict[Uuid, _Totals] = {}

    def advance(self, devices: Sequence[Device], at: float) -> dict[Uuid, Counters]:
        return {device.uuid: self._advance_one(device, at) for device in devices if not device.lost}

    def _advance_one(self, device: Device, at: float) -> Counters:
        totals = self._totals.setdefault(device.uuid, _Totals(last_at=at))
        elapsed = at - totals.last_at
        if not 0 <= elapsed <= self._max_gap:
            elapsed = 0.0
        totals.last_at = at
        _add_busy(totals, device, elapsed)
        _add_energy(totals, device, elapsed)
        _add_throttled(totals, device, elapsed)
        return Counters(
            busy_seconds=totals.busy_seconds,
            energy_joules=totals.energy_joules,
            throttled_seconds=dict(totals.throttled_seconds),
        )


def _add_busy(totals: _Totals, device: Device, elapsed: float) -> None:
    """From the driver's samples where they exist: they have the exact start and end of a burst."""
    last, totals.driver_busy = totals.driver_busy, device.busy_seconds
    gained: Maybe[float]
    if device.busy_seconds is not ABSENT:
        gained = 0.0 if last is ABSENT or device.busy_seconds < last else device.busy_seconds - last
    elif device.utilization_mean_ratio is not ABSENT:
        gained = device.utilization_mean_ratio * elapsed
    elif device.utilization_ratio is not ABSENT:
        gained = device.utilization_ratio * elapsed
    else:
        return
    totals.busy_seconds = gained + (0.0 if totals.busy_seconds is ABSENT else totals.busy_seconds)


def _add_energy(totals: _Totals, device: Device, elapsed: float) -> None:
    if device.energy_joules is not ABSENT:
        totals.energy_joules = device.energy_joules
    elif device.power_watts is not ABSENT:
        before = 0.0 if totals.energy_joules is ABSENT else totals.energy_joules
        totals.energy_joules = before + device.power_watts * elapsed


def _add_throttled(totals: _Totals, device: Device, elapsed: float) -> None:
    by_reason = totals.throttled_seconds
    for reason, now in device.throttled_seconds.items():
        before = totals.driver_throttled.get(reason)
        gained = now - before if before is not None and now >= before else 0.0
        by_reason[reason] = by_reason.get(reason, 0.0) + gained
    totals.driver_throttled = device.throttled_seconds
    idle = idle_reasons()
    for reason, is_active in device.throttle_reasons.items():
        if reason not in device.throttled_seconds and reason not in idle:
            by_reason[reason] = by_reason.get(reason, 0.0) + (elapsed if is_active else 0.0)

"""Busy seconds, energy and throttled seconds, integrated at the agent's own clock.

A scrape every 15 s would miss a 3 s burst; a counter does not. The driver's own counters and samples are used
where it has them, and multiplied out from the readings where not. Time in which a GPU was not read is not
invented: after a gap the counter goes on from where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuscope.readings import ABSENT, Counters, Device, Maybe, Uuid
from gpuscope.readings.throttle import NOT_THROTTLING, THROTTLE_REASONS


@dataclass(slots=True)
class _Running:
    last_at: float
    busy_seconds: Maybe[float] = ABSENT
    driver_busy: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT
    throttled_seconds: dict[str, float] = field(default_factory=dict)
    driver_throttled: Mapping[str, float] = field(default_factory=dict)


class Integrator:
    """Feed it every cycle's devices with a monotonic time; it answers with each GPU's counters."""

    def __init__(self, max_gap_seconds: float) -> None:
        self._max_gap = max_gap_seconds
        self._running: dict[Uuid, _Running] = {}

    def advance(self, devices: Sequence[Device], at: float) -> dict[Uuid, Counters]:
        return {device.uuid: self._advance_one(device, at) for device in devices if not device.lost}

    def _advance_one(self, device: Device, at: float) -> Counters:
        running = self._running.setdefault(device.uuid, _Running(last_at=at))
        elapsed = at - running.last_at
        if not 0 <= elapsed <= self._max_gap:
            elapsed = 0.0
        running.last_at = at
        _add_busy(running, device, elapsed)
        _add_energy(running, device, elapsed)
        _add_throttled(running, device, elapsed)
        return Counters(
            busy_seconds=running.busy_seconds,
            energy_joules=running.energy_joules,
            throttled_seconds=dict(running.throttled_seconds),
        )


def _add_busy(running: _Running, device: Device, elapsed: float) -> None:
    """From the driver's own samples where it has them: they know a burst's edges, our cycle does not."""
    last, running.driver_busy = running.driver_busy, device.busy_seconds
    gained: Maybe[float]
    if device.busy_seconds is not ABSENT:
        gained = 0.0 if last is ABSENT or device.busy_seconds < last else device.busy_seconds - last
    elif device.utilization_mean_ratio is not ABSENT:
        gained = device.utilization_mean_ratio * elapsed
    elif device.utilization_ratio is not ABSENT:
        gained = device.utilization_ratio * elapsed
    else:
        return
    running.busy_seconds = gained + (0.0 if running.busy_seconds is ABSENT else running.busy_seconds)


def _add_energy(running: _Running, device: Device, elapsed: float) -> None:
    if device.energy_joules is not ABSENT:
        running.energy_joules = device.energy_joules
    elif device.power_watts is not ABSENT:
        before = 0.0 if running.energy_joules is ABSENT else running.energy_joules
        running.energy_joules = before + device.power_watts * elapsed


def _add_throttled(running: _Running, device: Device, elapsed: float) -> None:
    totals = running.throttled_seconds
    for reason, now in device.throttled_seconds.items():
        before = running.driver_throttled.get(reason)
        gained = now - before if before is not None and now >= before else 0.0
        totals[reason] = totals.get(reason, 0.0) + gained
    running.driver_throttled = device.throttled_seconds
    if device.throttle_reasons is ABSENT:
        return
    for reason, bit in THROTTLE_REASONS.items():
        if reason not in device.throttled_seconds and reason not in NOT_THROTTLING:
            gained = elapsed if device.throttle_reasons & bit else 0.0
            totals[reason] = totals.get(reason, 0.0) + gained

"""Keeps one GPU busy for a given share of the time, and counts the work done.

Work is started in slices of some milliseconds. How long a slice kept the GPU busy is measured on the
GPU by events; below full load the next slice starts when the pause makes the share right, so neither clock
changes nor launch latency shift it. At full load the next slice is queued before the last one ends. The thread
sleeps while it waits, and a stop is seen between two slices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuscope.base.clock import Clock
from gpuscope.vendors.nvidia.load.cuda import CudaDevice
from gpuscope.vendors.nvidia.load.work import Work

PERIOD_SECONDS: Final = 1 / 60
"""A tenth of the driver's own sample period, 1/6 s, so that each of its samples sees the same share."""
FULL_SLICE_SECONDS: Final = 0.1
MIN_SLICE_SECONDS: Final = 0.001
MAX_UNITS: Final = 1 << 30
REPORT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Since the load began: seconds, operations or bytes done, seconds the GPU was busy with them."""

    elapsed: float
    amount: float
    busy_seconds: float


class DutyCycle:
    def __init__(
        self, device: CudaDevice, work: Work, target: float, clock: Clock, report: Callable[[Progress], None]
    ) -> None:
        """`target` is the share of the time in which the GPU is busy, above 0 and up to 1."""
        self._device = device
        self._work = work
        self._target = target
        self._clock = clock
        self._report = report
        self._stream = device.stream()
        self._events = [(device.event(), device.event()) for _ in range(2)]
        full = target >= 1
        self._slice_seconds = FULL_SLICE_SECONDS if full else max(MIN_SLICE_SECONDS, target * PERIOD_SECONDS)
        self._units = 1
        self._queued = [0, 0]
        self._amount = 0.0
        self._busy = 0.0

    def run(self, duration: float, stop: threading.Event) -> None:
        self._calibrate(stop)
        self._amount = self._busy = 0.0
        self._began_at = self._clock.monotonic()
        self._reported_at = self._began_at
        if self._target >= 1:
            self._run_without_pauses(duration, stop)
        else:
            self._run_with_pauses(duration, stop)
        self._report_progress()

    def _calibrate(self, stop: threading.Event) -> None:
        """Finds how many units fill a slice, beginning with one."""
        while not stop.is_set():
            self._start(0)
            seconds = self._finish(0)
            if seconds >= MIN_SLICE_SECONDS or self._units >= MAX_UNITS:
                break
            self._units = min(MAX_UNITS, self._units * 4)

    def _run_with_pauses(self, duration: float, stop: threading.Event) -> None:
        end = self._began_at + duration
        next_at = self._began_at
        while next_at < end and not stop.wait(max(0.0, next_at - self._clock.monotonic())):
            self._start(0)
            busy = self._finish(0)
            next_at = max(next_at + busy / self._target, self._clock.monotonic() - PERIOD_SECONDS)
            self._report_if_due()

    def _run_without_pauses(self, duration: float, stop: threading.Event) -> None:
        end = self._began_at + duration
        self._start(0)
        current = 0
        while self._clock.monotonic() < end and not stop.is_set():
            self._start(1 - current)
            self._finish(current)
            current = 1 - current
            self._report_if_due()
        self._finish(current)

    def _start(self, slot: int) -> None:
        first, last = self._events[slot]
        self._device.record(first, self._stream)
        self._work.start(self._units, self._stream)
        self._device.record(last, self._stream)
        self._queued[slot] = self._units

    def _finish(self, slot: int) -> float:
        """Waits for a slice, adjusts the size of the next one, and returns how long the GPU was busy."""
        first, last = self._events[slot]
        self._device.wait(last)
        seconds = self._device.seconds_between(first, last)
        self._busy += seconds
        self._amount += self._queued[slot] * self._work.unit_amount
        if seconds > 0:
            # At most doubled: a first slice that ran at idle clocks says little about the next.
            factor = min(2.0, max(0.1, self._slice_seconds / seconds))
            self._units = max(1, min(MAX_UNITS, round(self._queued[slot] * factor)))
        return seconds

    def _report_if_due(self) -> None:
        if self._clock.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at += REPORT_SECONDS
            self._report_progress()

    def _report_progress(self) -> None:
        elapsed = self._clock.monotonic() - self._began_at
        self._report(Progress(elapsed, self._amount, min(self._busy, elapsed)))

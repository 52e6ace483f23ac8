"""A repeating load: phases of constant rates, with the integral and the heat at any time in closed form.

Rates are piecewise constant, so that a counter at any time is exactly the integral of the rates until then,
without stepping through time. All durations and rates are multiples of a power of two, so that totals of years
add up without rounding: a counter that decreased by one bit would look like a reset. Heat is power with a
first-order lag, in watts; the caller converts it to a temperature.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from random import Random
from typing import Final, TypeAlias

from gpuscope.demo.workload import IDLE, Beat, Workload
from gpuscope.model.demo_model import NOT_SLOWED, DemoModel, Slowdown

Rates: TypeAlias = tuple[float, ...]
"""One number for each of the rates below; in a phase the rate itself, in a total its integral."""

BUSY: Final = 0  # utilisation, 0 to 1; as a total: busy seconds
POWER: Final = 1  # watts; as a total: joules
LINK: Final = 2  # bytes per second each way; as a total: bytes
POWER_CAP: Final = 3  # 1 while the power limit lowers the clocks; as a total: seconds
HEAT: Final = 4  # the driver lowers the clocks; as a total: seconds
HOT_HARDWARE: Final = 5
ZERO: Final[Rates] = (0.0,) * 6

SECONDS_GRAIN: Final = 1 / 8
_BUSY_GRAIN: Final = 1 / 1024
_POWER_GRAIN: Final = 1 / 1024
_LINK_GRAIN: Final = 2.0**20


def on_grain(value: float, grain: float = SECONDS_GRAIN) -> float:
    """The nearest multiple of `grain`."""
    return round(value / grain) * grain


def added(first: Rates, second: Rates) -> Rates:
    a, b, c, d, e, f = first
    g, h, i, j, k, m = second
    return (a + g, b + h, c + i, d + j, e + k, f + m)


def scaled_and_added(first: Rates, factor: float, second: Rates) -> Rates:
    """`first * factor + second`."""
    a, b, c, d, e, f = first
    g, h, i, j, k, m = second
    x = factor
    return (a * x + g, b * x + h, c * x + i, d * x + j, e * x + k, f * x + m)


@dataclass(frozen=True, slots=True)
class Phase:
    seconds: float
    rates: Rates
    clock_ratio: float = 1.0  # of the highest SM clock
    slowdown: Slowdown = NOT_SLOWED


def _exact(phase: Phase) -> Phase:
    seconds = max(SECONDS_GRAIN, on_grain(phase.seconds))
    busy, power, link, *throttled = phase.rates  # the last are 0 or 1
    rates = (on_grain(busy, _BUSY_GRAIN), on_grain(power, _POWER_GRAIN), on_grain(link, _LINK_GRAIN))
    return Phase(seconds, (*rates, *throttled), phase.clock_ratio, phase.slowdown)


class Curve:
    """Phases that repeat for ever from second 0."""

    __slots__ = ("_before", "_cycle", "_heat", "_lag", "_starts", "length", "phases")

    def __init__(self, phases: Sequence[Phase], lag_seconds: float) -> None:
        self.phases = tuple(_exact(phase) for phase in phases)
        self._lag = lag_seconds
        ends = list(accumulate(phase.seconds for phase in self.phases))
        self.length = ends[-1]
        self._starts = [0.0, *ends[:-1]]
        totals = list(
            accumulate(
                self.phases,
                lambda total, phase: scaled_and_added(phase.rates, phase.seconds, total),
                initial=ZERO,
            )
        )
        self._before, self._cycle = totals[:-1], totals[-1]
        self._heat = self._settled_heat()

    def _settled_heat(self) -> list[float]:
        """Heat at the start of each phase, once the curve has run long enough to repeat itself exactly."""
        from_cold = 0.0
        for phase in self.phases:
            watts = phase.rates[POWER]
            from_cold = watts + (from_cold - watts) * exp(-phase.seconds / self._lag)
        heat = [from_cold / (1.0 - exp(-self.length / self._lag))]
        for phase in self.phases[:-1]:
            watts = phase.rates[POWER]
            heat.append(watts + (heat[-1] - watts) * exp(-phase.seconds / self._lag))
        return heat

    def totals(self, at: float) -> Rates:
        """The integral of all rates from 0 to `at`."""
        cycles, into = divmod(at, self.length)
        row = bisect_right(self._starts, into) - 1
        here = scaled_and_added(self.phases[row].rates, into - self._starts[row], self._before[row])
        return scaled_and_added(self._cycle, cycles, here) if cycles else here

    def total(self, rate: int, at: float) -> float:
        """One rate of `totals`, in a third of the time."""
        cycles, into = divmod(at, self.length)
        row = bisect_right(self._starts, into) - 1
        here = self._before[row][rate] + self.phases[row].rates[rate] * (into - self._starts[row])
        return cycles * self._cycle[rate] + here

    def phase(self, at: float) -> Phase:
        return self.phases[bisect_right(self._starts, at % self.length) - 1]

    def heat(self, at: float, heat_at_start: float) -> float:
        into = at % self.length
        row = bisect_right(self._starts, into) - 1
        watts = self.phases[row].rates[POWER]
        settled = watts + (self._heat[row] - watts) * exp(-(into - self._starts[row]) / self._lag)
        return settled + (heat_at_start - self._heat[0]) * exp(-at / self._lag)


# Power, clocks and slowdown of one model at a given utilisation.
#
# Power rises with utilisation from the idle draw up to the limit; work that would draw more makes the driver
# lower the clocks. Temperature follows power with a delay (see `curve`).

VARIANTS = 4  # different utilisation patterns of one workload
CONTEXT_DRAW = 0.06  # of the power limit: an idle program keeps the clocks up
INLET_CELSIUS = 27.0


def load_phase(
    model: DemoModel, work: Workload, seconds: float, utilization: float, chip_share: float = 1.0
) -> Phase:
    """One phase of `work`; `chip_share` is less than 1 on an instance."""
    if work is IDLE:
        idle = (0.0, model.power_idle * chip_share, 0.0, 0.0, 0.0, 0.0)
        ratio = model.idle_graphics_mhz / model.graphics_mhz
        return Phase(seconds, idle, ratio, Slowdown.IDLE)
    limit = model.power_limit * chip_share
    floor = (model.power_idle + CONTEXT_DRAW * model.power_limit) * chip_share
    wanted = floor + (limit - floor) * work.intensity * utilization
    link = work.link * utilization * model.links * model.link_bytes_per_second
    capped = wanted > 0.99 * limit
    watts = min(wanted, 0.99 * limit)
    slowdown = Slowdown.POWER_CAP if capped else NOT_SLOWED
    if utilization == 0:
        slowdown = Slowdown.IDLE
    clock = 0.985 - 0.06 * utilization * work.intensity - (0.05 if capped else 0.0)
    return Phase(seconds, (utilization, watts, link, float(capped), 0.0, 0.0), clock, slowdown)


def load_curve(
    model: DemoModel, work: Workload, beats: Iterable[Beat], scale: float = 1.0, chip_share: float = 1.0
) -> Curve:
    phases = [load_phase(model, work, seconds, level * scale, chip_share) for seconds, level in beats]
    return Curve(phases, model.cooling_seconds)


class CurveCache:
    """The curves of one model, each built when first needed and shared by all GPUs of the model."""

    def __init__(self, model: DemoModel, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._curves: dict[tuple[str, int, float, float], Curve] = {}
        self._rhythms: dict[tuple[str, int], list[Beat]] = {}

    def curve(self, work: Workload, variant: int = 0, scale: float = 1.0, chip_share: float = 1.0) -> Curve:
        key = (work.name, variant, scale, chip_share)
        found = self._curves.get(key)
        if found is None:
            beats = self._rhythm(work, variant)
            found = self._curves[key] = load_curve(self._model, work, beats, scale, chip_share)
        return found

    def _rhythm(self, work: Workload, variant: int) -> list[Beat]:
        found = self._rhythms.get((work.name, variant))
        if found is None:
            found = work.rhythm(Random(f"{self._seed}/{work.name}/{variant}"))
            self._rhythms[work.name, variant] = found
        return found

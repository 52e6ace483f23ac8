"""Power, clocks and slowdown of one model at a given utilisation.

Power rises with utilisation from the idle draw up to the limit; work that would draw more makes the driver
lower the clocks. Temperature follows power with a delay (see `curve`).
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from gpuscope.demo.curve import Curve, Phase
from gpuscope.demo.workload import IDLE, Beat, Workload
from gpuscope.model.demo_model import NOT_SLOWED, DemoModel, Slowdown

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

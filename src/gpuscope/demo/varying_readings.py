"""The readings that change with a GPU's state, rounded as drivers round them.

What the model does not have is left out and is therefore ABSENT. The vendor adds what only its driver reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, pi, sin

from gpuscope.demo.curve import BUSY, HEAT, HOT_HARDWARE, INLET_CELSIUS, LINK, POWER, POWER_CAP, Rates
from gpuscope.demo.track import Faults, Moment
from gpuscope.demo.workload import Workload
from gpuscope.model.demo_model import (
    MHZ,
    MIB,
    NOT_SLOWED,
    DemoIdentity,
    DemoModel,
    InstanceProfile,
    Readings,
    Slowdown,
)
from gpuscope.model.readings import Maybe

_PCIE_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_WARMING_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpuState:
    """A GPU at one time, before rounding. It has one `Moment`, or one per instance."""

    model: DemoModel
    identity: DemoIdentity
    at: float
    moments: tuple[Moment, ...]
    chip_shares: tuple[float, ...]
    split: bool
    unsplit: float  # share of the chip outside of all instances
    totals: Rates
    last_second_joules: float
    mean_utilization: Maybe[float]
    memory_used: float

    @property
    def idle(self) -> bool:
        return not any(moment.activity.tenants for moment in self.moments)


def varying_readings(state: SimulatedGpuState, faults: Faults) -> Readings:
    model = state.model
    reserved = model.reserved_mib * MIB
    readings = _power_readings(state) | _clock_readings(state) | _link_readings(state, faults)
    readings |= _temperature_readings(state, faults)
    readings["memory_used_bytes"] = state.memory_used
    readings["memory_free_bytes"] = model.memory_bytes - reserved - state.memory_used
    readings["bar1_used_bytes"] = (1.0 if state.idle else 4.0) * MIB
    if not state.split:
        readings |= _utilization_readings(state)
    if model.profiling:
        readings |= _profile(model, state.moments, state.chip_shares)
    if model.ecc:
        readings |= _ecc_readings(state, faults)
    return readings


def instance_readings(model: DemoModel, profile: InstanceProfile, moment: Moment, used: float) -> Readings:
    total = profile.memory_mib * MIB
    bar1 = model.bar1_mib * MIB * profile.memory_mib / model.memory_mib
    readings: Readings = {
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "memory_free_bytes": total - used,
        "memory_reserved_bytes": 0.0,
        "bar1_total_bytes": bar1 // MIB * MIB,
        "bar1_used_bytes": 0.0,
        "ecc_errors": {("uncorrected", "volatile"): 0.0},
    }
    return readings | _profile(model, (moment,), (1.0,)) if model.profiling else readings


def _utilization_readings(state: SimulatedGpuState) -> Readings:
    busy = state.moments[0].phase.rates[BUSY]
    work = state.moments[0].activity.workload
    return {
        "utilization_ratio": round(busy, 2),
        "utilization_mean_ratio": state.mean_utilization,
        "memory_utilization_ratio": round(busy * work.dram, 2),
        "encoder_utilization_ratio": round(busy * work.encoder, 2),
        "decoder_utilization_ratio": round(busy * work.decoder, 2),
        "encoder_sessions": float(len(state.moments[0].activity.tenants)) if work.encoder else 0.0,
    }


def _power_readings(state: SimulatedGpuState) -> Readings:
    quality = state.identity.quality
    watts = sum(moment.phase.rates[POWER] for moment in state.moments) + state.unsplit * state.model.power_idle
    average = round(max(0.0, state.last_second_joules) * quality, 3)
    totals = state.totals
    return {
        "power_watts": average,
        "power_instant_watts": round(watts * quality, 3),
        "power_average_watts": average,
        "energy_joules": round(totals[POWER] * quality, 3),
        "slowed_seconds": (totals[POWER_CAP], totals[HEAT], totals[HOT_HARDWARE]),
    }


def _clock_readings(state: SimulatedGpuState) -> Readings:
    model, idle = state.model, state.idle
    ratio = max(moment.phase.clock_ratio for moment in state.moments)
    sm = (
        model.idle_graphics_mhz
        if idle
        else max(model.idle_graphics_mhz, 15 * round(model.graphics_mhz * ratio / 15))
    )
    slowdown = NOT_SLOWED
    for moment in state.moments:
        slowdown |= moment.phase.slowdown & ~Slowdown.IDLE
    if all(moment.phase.rates[BUSY] == 0 for moment in state.moments):
        slowdown |= Slowdown.IDLE
    return {
        "clock_hertz": {
            "graphics": sm * MHZ,
            "sm": sm * MHZ,
            "memory": (model.idle_memory_mhz if idle else model.memory_mhz) * MHZ,
            "video": 15 * round(model.video_mhz * sm / model.graphics_mhz / 15) * MHZ,
        },
        "performance_state": float(model.idle_pstate) if idle else 0.0,
        "slowdown": slowdown,
    }


def _temperature_readings(state: SimulatedGpuState, faults: Faults) -> Readings:
    model = state.model
    heat = sum(moment.heat for moment in state.moments) + state.unsplit * model.power_idle
    room = INLET_CELSIUS + state.identity.warmth + 1.2 * sin(2 * pi * state.at / 86_400)
    gpu = room + model.celsius_per_watt * heat * state.identity.quality
    if state.at >= faults.hot_at:
        slowed = INLET_CELSIUS + model.celsius_per_watt * 0.5 * model.power_limit
        missing = 1.1 * (model.slowdown_celsius - slowed)  # without air it stays hot even when slowed down
        gpu += missing * (1.0 - exp(-(state.at - faults.hot_at) / _WARMING_SECONDS))
    # The driver slows the GPU down until it stays at the slowdown temperature.
    gpu = float(round(min(gpu, model.slowdown_celsius + 0.6)))
    readings: Readings = {"temperature_celsius": {"gpu": gpu}}
    if model.hbm:
        dram = state.moments[0].phase.rates[BUSY] * state.moments[0].activity.workload.dram
        readings["temperature_celsius"]["memory"] = float(round(gpu + 3 + 7 * dram))
    if model.reports_margin:
        readings["temperature_margin_celsius"] = float(model.gpu_max_celsius) - gpu
    if model.fans:
        speed = 0.0 if gpu < 45 else round(min(1.0, 0.3 + 0.7 * (gpu - 45) / 45), 2)
        readings["fan_speed_ratio"] = {str(fan): speed for fan in range(model.fans)}
        readings["fan_rpm"] = {str(fan): float(round(3200 * speed)) for fan in range(model.fans)}
    return readings


def _link_readings(state: SimulatedGpuState, faults: Faults) -> Readings:
    model = state.model
    generation = 1 if state.idle and model.idle_pstate else model.pcie_generation  # it saves power when idle
    width = 8 if state.at >= faults.narrow_at else 16
    rate = _PCIE_LANE_BYTES[generation] * width
    work: tuple[tuple[float, Workload], ...] = tuple(
        (moment.phase.rates[BUSY] * share, moment.activity.workload)
        for moment, share in zip(state.moments, state.chip_shares, strict=True)
    )
    pcie = {
        "tx": float(round(rate * sum(busy * w.pcie_out for busy, w in work))),
        "rx": float(round(rate * sum(busy * w.pcie_in for busy, w in work))),
    }
    readings: Readings = {
        "pcie_link_generation": float(generation),
        "pcie_link_width": float(width),
        "pcie_bytes_per_second": pcie,
        "pcie_replays": float(faults.replays(state.at)),
    }
    if model.links and not state.split:
        each = float(int(state.totals[LINK] / model.links))
        readings |= {
            "link_bytes": {"tx": each * model.links, "rx": each * model.links},
            "link_bytes_each": {
                (str(link), direction): each for link in range(model.links) for direction in ("tx", "rx")
            },
            "link_rate": state.moments[0].phase.rates[LINK],
        }
    return readings


def _profile(model: DemoModel, moments: tuple[Moment, ...], chip_shares: tuple[float, ...]) -> Readings:
    """What the profiling units count: always less than the utilisation."""
    busy = [moment.phase.rates[BUSY] * share for moment, share in zip(moments, chip_shares, strict=True)]
    works = [moment.activity.workload for moment in moments]
    loads = list(zip(busy, works, strict=True))
    engines = ["sm", "tensor", "dram", "fp32", "fp16"]
    engines += ["fp64"] * model.fp64_counter + ["integer"] * model.integer_counter
    active = {name: round(sum(b * getattr(w, name) for b, w in loads), 4) for name in engines}
    return {
        "engine_active_ratio": {"graphics": round(sum(busy), 4), **active},
        "sm_occupancy_ratio": round(sum(b * w.occupancy for b, w in loads), 4),
    }


def _ecc_readings(state: SimulatedGpuState, faults: Faults) -> Readings:
    corrected, uncorrected = float(faults.corrected(state.at)), float(faults.uncorrected(state.at))
    old = float(int(state.identity.serial[-2:]) // 80)  # a few boards have seen an error before
    return {
        "ecc_errors": {
            ("corrected", "volatile"): corrected,
            ("corrected", "aggregate"): corrected + old,
            ("uncorrected", "volatile"): uncorrected,
            ("uncorrected", "aggregate"): uncorrected,
        }
    }

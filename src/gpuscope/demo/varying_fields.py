"""The fields of a reading that change with a GPU's state, rounded as the driver rounds them.

Built for every reading; fields that never change are in `constant_fields`. A field that the model does not have
is left out and is therefore ABSENT.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, pi, sin
from typing import Any

from gpuscope.demo.curve import BUSY, HW_THERMAL, NVLINK, POWER, POWER_CAP, SW_THERMAL, Rates
from gpuscope.demo.models import MHZ, MIB, Identity, MigProfile, Model
from gpuscope.demo.physics import INLET_CELSIUS
from gpuscope.demo.track import Faults, Moment
from gpuscope.demo.workload import Workload
from gpuscope.model.readings import Maybe
from gpuscope.vendors.nvidia.nvidia_values import THROTTLE_BITS

_PCIE_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_IDLE = THROTTLE_BITS["gpu_idle"]
_WARMING_SECONDS = 60.0
_OLD_ECC_PLACES = ("device_memory", "l1_cache", "l2_cache", "register_file")

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGpuState:
    """A GPU at one time, before rounding. It has one `Moment`, or one per MIG instance."""

    model: Model
    identity: Identity
    at: float
    moments: tuple[Moment, ...]
    chip_shares: tuple[float, ...]
    split: bool  # by MIG
    unsplit: float  # share of the chip outside of all instances
    totals: Rates
    last_second_joules: float
    mean_utilization: Maybe[float]
    memory_used: float

    @property
    def idle(self) -> bool:
        return not any(moment.activity.tenants for moment in self.moments)


def varying_fields(state: SimulatedGpuState, faults: Faults) -> Fields:
    model = state.model
    reserved = model.reserved_mib * MIB
    fields = _power_fields(state) | _clock_fields(state) | _link_fields(state, faults)
    fields |= _temperature_fields(state, faults)
    fields["memory_used_bytes"] = state.memory_used
    fields["memory_free_bytes"] = model.memory_bytes - reserved - state.memory_used
    fields["bar1_used_bytes"] = (1.0 if state.idle else 4.0) * MIB
    if not state.split:
        fields |= _utilization_fields(state)
    if model.profiling:
        fields |= _profile(model, state.moments, state.chip_shares)
    if model.ecc:
        fields |= _ecc_fields(state, faults)
    return fields


def instance_fields(model: Model, profile: MigProfile, moment: Moment, used: float) -> Fields:
    total = profile.memory_mib * MIB
    bar1 = model.bar1_mib * MIB * profile.memory_mib / model.memory_mib
    fields: Fields = {
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "memory_free_bytes": total - used,
        "memory_reserved_bytes": 0.0,
        "bar1_total_bytes": bar1 // MIB * MIB,
        "bar1_used_bytes": 0.0,
        "ecc_errors": {("uncorrected", "volatile"): 0.0},
    }
    return fields | _profile(model, (moment,), (1.0,)) if model.profiling else fields


def _utilization_fields(state: SimulatedGpuState) -> Fields:
    busy = state.moments[0].phase.rates[BUSY]
    work = state.moments[0].activity.workload
    fields: Fields = {
        "utilization_ratio": round(busy, 2),
        "utilization_mean_ratio": state.mean_utilization,
        "memory_utilization_ratio": round(busy * work.dram, 2),
        "encoder_utilization_ratio": round(busy * work.encoder, 2),
        "decoder_utilization_ratio": round(busy * work.decoder, 2),
        "encoder_sessions": float(len(state.moments[0].activity.tenants)) if work.encoder else 0.0,
    }
    if state.model.architecture not in ("Turing", "Volta"):
        fields |= {"jpeg_utilization_ratio": 0.0, "ofa_utilization_ratio": 0.0}
    return fields


def _power_fields(state: SimulatedGpuState) -> Fields:
    quality = state.identity.quality
    watts = sum(moment.phase.rates[POWER] for moment in state.moments) + state.unsplit * state.model.power_idle
    average = round(max(0.0, state.last_second_joules) * quality, 3)
    totals = state.totals
    capped, hot = round(totals[POWER_CAP], 6), round(totals[SW_THERMAL] + totals[HW_THERMAL], 6)
    return {
        "power_watts": average,
        "power_instant_watts": round(watts * quality, 3),
        "power_average_watts": average,
        "energy_joules": round(totals[POWER] * quality, 3),
        "throttled_seconds": {
            "sw_power_cap": capped,
            "sync_boost": 0.0,
            "sw_thermal_slowdown": round(totals[SW_THERMAL], 6),
            "hw_thermal_slowdown": round(totals[HW_THERMAL], 6),
            "hw_power_brake_slowdown": 0.0,
        },
        "violation_seconds": {
            "power": capped,
            "thermal": hot,
            "sync_boost": 0.0,
            "board_limit": 0.0,
            "low_utilization": 0.0,
            "reliability": 0.0,
            "total_app_clocks": capped + hot,
            "total_base_clocks": hot,
        },
    }


def _clock_fields(state: SimulatedGpuState) -> Fields:
    model, idle = state.model, state.idle
    ratio = max(moment.phase.clock_ratio for moment in state.moments)
    sm = (
        model.idle_graphics_mhz
        if idle
        else max(model.idle_graphics_mhz, 15 * round(model.graphics_mhz * ratio / 15))
    )
    reasons = 0
    for moment in state.moments:
        reasons |= moment.phase.reasons & ~_IDLE
    if all(moment.phase.rates[BUSY] == 0 for moment in state.moments):
        reasons |= _IDLE
    return {
        "clock_hertz": {
            "graphics": sm * MHZ,
            "sm": sm * MHZ,
            "memory": (model.idle_memory_mhz if idle else model.memory_mhz) * MHZ,
            "video": 15 * round(model.video_mhz * sm / model.graphics_mhz / 15) * MHZ,
        },
        "performance_state": float(model.idle_pstate) if idle else 0.0,
        "throttle_mask": reasons,
    }


def _temperature_fields(state: SimulatedGpuState, faults: Faults) -> Fields:
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
    fields: Fields = {"temperature_celsius": {"gpu": gpu}}
    if model.hbm:
        dram = state.moments[0].phase.rates[BUSY] * state.moments[0].activity.workload.dram
        fields["temperature_celsius"]["memory"] = float(round(gpu + 3 + 7 * dram))
    if model.reports_margin:
        fields["temperature_margin_celsius"] = float(model.gpu_max_celsius) - gpu
    if model.fans:
        speed = 0.0 if gpu < 45 else round(min(1.0, 0.3 + 0.7 * (gpu - 45) / 45), 2)
        fields["fan_speed_ratio"] = {str(fan): speed for fan in range(model.fans)}
        fields["fan_rpm"] = {str(fan): float(round(3200 * speed)) for fan in range(model.fans)}
    return fields


def _link_fields(state: SimulatedGpuState, faults: Faults) -> Fields:
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
    fields: Fields = {
        "pcie_link_generation": float(generation),
        "pcie_link_width": float(width),
        "pcie_bytes_per_second": pcie,
        "pcie_replays": float(faults.replays(state.at)),
    }
    if model.profiling:
        fields["profiled_pcie_bytes_per_second"] = pcie
    if model.nvlinks and not state.split:
        fields |= _nvlink_fields(state)
    return fields


def _nvlink_fields(state: SimulatedGpuState) -> Fields:
    model, total = state.model, state.totals[NVLINK]
    one = float(int(total / model.nvlinks))
    rate = state.moments[0].phase.rates[NVLINK]
    fields: Fields = {
        "link_bytes": {"tx": one * model.nvlinks, "rx": one * model.nvlinks},
        "link_bytes_each": {
            (str(link), direction): one for link in range(model.nvlinks) for direction in ("tx", "rx")
        },
    }
    if model.profiling:
        fields["profiled_nvlink_bytes_per_second"] = {"tx": rate, "rx": rate}
    return fields


def _profile(model: Model, moments: tuple[Moment, ...], chip_shares: tuple[float, ...]) -> Fields:
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


def _ecc_fields(state: SimulatedGpuState, faults: Faults) -> Fields:
    model = state.model
    corrected, uncorrected = float(faults.corrected(state.at)), float(faults.uncorrected(state.at))
    old = float(int(state.identity.serial[-2:]) // 80)  # a few boards have seen an error before
    counts = {
        ("corrected", "volatile"): corrected,
        ("corrected", "aggregate"): corrected + old,
        ("uncorrected", "volatile"): uncorrected,
        ("uncorrected", "aggregate"): uncorrected,
    }
    places = ("device_memory", "sram") if model.row_remap_banks else _OLD_ECC_PLACES
    fields: Fields = {
        "ecc_errors": counts,
        "ecc_location_errors": {
            (*key, place): count if place == "device_memory" else 0.0
            for key, count in counts.items()
            for place in places
        },
    }
    return fields | _spare_fields(model, old, uncorrected)


def _spare_fields(model: Model, corrected: float, uncorrected: float) -> Fields:
    """What the memory does about errors: whole pages are retired, or, from Ampere on, rows replaced."""
    pending = float(uncorrected > 0)
    if not model.row_remap_banks:
        return {
            "retired_pages": {"single_bit": corrected, "double_bit": min(uncorrected, 60.0)},
            "retired_pages_pending": pending,
        }
    rows = min(uncorrected, 8.0)
    return {
        "remapped_rows": {"correctable": corrected, "uncorrectable": rows},
        "row_remap_pending": pending,
        "row_remap_failed": float(uncorrected > 8),
        "row_remap_banks": {
            "max": model.row_remap_banks - rows - corrected,
            "high": corrected,
            "partial": rows,
            "low": 0.0,
            "none": 0.0,
        },
    }

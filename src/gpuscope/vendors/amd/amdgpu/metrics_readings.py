"""From the raw numbers of `gpu_metrics` to readings of a `Device`, in base units.

Output: fields of `Device` by name; a number that the card does not have is not among them. Of processors with
graphics (revisions 2.x and 3.0) only what has a documented unit is taken: utilisation, temperature and power of
those come from text files, which the kernel converts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.amd.amdgpu.gpu_metrics import GpuMetrics, MetricsPart
from gpuscope.vendors.drm.card_files import Fields

JOULES_PER_UNIT: Final = 2.0**-16
BYTES_PER_KILOBYTE: Final = 1024
MEGAHERTZ: Final = 1e6

_CLOCKS: Final = {
    "graphics": ("current_gfxclk", "average_gfxclk_frequency"),
    "memory": ("current_uclk", "average_uclk_frequency"),
    "soc": ("current_socclk", "average_socclk_frequency"),
    "video": ("current_vclk0", "current_vclk", "average_vclk_frequency"),
    "data": ("current_dclk0", "current_dclk"),
    "fabric": ("current_fclk", "average_fclk_frequency"),
}
"""Our clock -> the kernel's names; revision 3.0 has means only. `video` and `data` are those of the video
engine."""

_ACTIVE: Final = 1
_INACTIVE: Final = 0


def is_processor(metrics: GpuMetrics) -> bool:
    """Whether the GPU is part of a CPU and uses its memory."""
    return metrics.revision[0] in (2, 3)


def fast_readings(metrics: GpuMetrics, *, is_instinct: bool) -> Fields:
    """Activity, power, energy, temperatures and clocks.

    `is_instinct`: the energy counter of revisions up to 1.3 has this unit on Instinct cards only. On a recorded
    RX 6900 XT it counts millijoules, on an RX 7600S it stays 0.
    """
    fields: Fields = {"clock_hertz": _clocks(metrics)}
    if is_processor(metrics):
        return fields
    _put(fields, "utilization_ratio", _percent(metrics.number("average_gfx_activity")))
    _put(fields, "memory_utilization_ratio", _percent(metrics.number("average_umc_activity")))
    _put(fields, "decoder_utilization_ratio", _video_activity(metrics))
    _put(fields, "jpeg_utilization_ratio", _jpeg_activity(metrics))
    power = _first(metrics, "curr_socket_power", "average_socket_power")
    _put(fields, "power_watts", power if power is ABSENT else float(power))
    if is_instinct or metrics.revision >= (1, 4):
        _put(fields, "energy_joules", _energy(metrics))
    fields["temperature_celsius"] = _temperatures(metrics)
    return fields


def link_readings(metrics: GpuMetrics) -> Fields:
    """Traffic and state of the XGMI links, and retransmissions of PCIe."""
    each: dict[tuple[str, str], float] = {}
    for direction, name in (("rx", "xgmi_read_data_acc"), ("tx", "xgmi_write_data_acc")):
        for link, kilobytes in enumerate(metrics.numbers(name)):
            if kilobytes is not ABSENT:
                each[str(link), direction] = float(kilobytes * BYTES_PER_KILOBYTE)
    states = enumerate(metrics.numbers("xgmi_link_status"))
    up = {str(link): float(state) for link, state in states if state in (_ACTIVE, _INACTIVE)}
    if up:  # a card that says which links it has counts nothing on the others
        each = {key: count for key, count in each.items() if key[0] in up}
    fields: Fields = {}
    if each:
        fields["link_bytes_each"] = each
        fields["link_bytes"] = {
            direction: sum(count for key, count in each.items() if key[1] == direction)
            for direction in ("rx", "tx")
        }
    if up:
        fields["link_up"] = up
    replays = metrics.number("pcie_replay_count_acc")
    _put(fields, "pcie_replays", replays if replays is ABSENT else float(replays))
    return fields


def partition_activity(part: MetricsPart) -> Maybe[float]:
    """How busy the compute dies of a partition are, 0 to 1."""
    busy = part.known("gfx_busy_inst")
    return _percent(sum(busy) / len(busy)) if busy else ABSENT


def _percent(value: Maybe[float]) -> Maybe[float]:
    """0 to 1. Firmware rounds up beyond 100 %."""
    return ABSENT if value is ABSENT else min(1.0, value / 100)


def _video_activity(metrics: GpuMetrics) -> Maybe[float]:
    """Of the busiest video engine, which encodes and decodes."""
    parts = [number for part in metrics.partitions for number in part.known("vcn_busy")]
    own = [metrics.known(name) for name in ("vcn_activity", "vcn_busy", "average_mm_activity")]
    return _busiest(parts, *own)


def _jpeg_activity(metrics: GpuMetrics) -> Maybe[float]:
    parts = [number for part in metrics.partitions for number in part.known("jpeg_busy")]
    return _busiest(metrics.known("jpeg_activity"), parts, metrics.known("jpeg_busy"))


def _busiest(*engines: Sequence[int]) -> Maybe[float]:
    known = [percent for numbers in engines for percent in numbers]
    return _percent(max(known)) if known else ABSENT


def _energy(metrics: GpuMetrics) -> Maybe[float]:
    units = metrics.number("energy_accumulator")
    # A counter of firmware that does not count stays 0: the agent integrates the power instead.
    return ABSENT if units is ABSENT or units == 0 else units * JOULES_PER_UNIT


def _temperatures(metrics: GpuMetrics) -> dict[str, float]:
    """`gpu` is the edge of the chip, or its hottest point on cards that report no edge."""
    junction = metrics.number("temperature_hotspot")
    edge = metrics.number("temperature_edge")
    sensors: list[tuple[str, Maybe[int]]] = [
        ("gpu", junction if edge is ABSENT else edge),
        ("junction", junction),
        ("memory", metrics.number("temperature_mem")),
    ]
    # Firmware without these sensors sets 0.
    stacks = ((f"hbm_{place}", value) for place, value in enumerate(metrics.numbers("temperature_hbm")))
    sensors += [(name, value) for name, value in stacks if value is not ABSENT and value > 0]
    return {name: float(value) for name, value in sensors if value is not ABSENT}


def _clocks(metrics: GpuMetrics) -> dict[str, float]:
    """The mean over the dies of a card that has several."""
    clocks = {}
    for clock, names in _CLOCKS.items():
        known = next((numbers for name in names if (numbers := metrics.known(name))), [])
        if known:
            clocks[clock] = MEGAHERTZ * sum(known) / len(known)
    return clocks


def _first(metrics: GpuMetrics, *names: str) -> Maybe[int]:
    return next((number for name in names if (number := metrics.number(name)) is not ABSENT), ABSENT)


def _put(fields: Fields, name: str, value: Maybe[float]) -> None:
    if value is not ABSENT:
        fields[name] = value


def merged(parts: Iterable[Fields]) -> Fields:
    """One set of fields; mappings are merged, and the first part that has a number gives it."""
    whole: Fields = {}
    for part in parts:
        for name, value in part.items():
            known = whole.get(name)
            if known is None:
                whole[name] = value
            elif isinstance(known, dict):
                whole[name] = {**value, **known}
    return whole

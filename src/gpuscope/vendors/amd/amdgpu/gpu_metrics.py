"""Decodes the binary file `gpu_metrics` of a card, and `xcp_metrics` of a partition.

Input: the bytes as the kernel gives them, in any revision; output: the raw numbers by the names of the kernel's
structs, ABSENT where all bits of a number are set. In revision 1.9 the file says of each number what it is: an
encoding of 8 bytes (unit, type, id, count), then the values, without padding. Units are those of the structs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.amd.amdgpu.metrics_layouts import LAYOUTS, PARTITION_LAYOUT, MetricsField, Revision

MAX_BYTES: Final = 1 << 16
"""More than the largest revision: the kernel gives a page."""

_HEADER: Final = struct.Struct("<HBB")
_ATTRIBUTE_HEADER: Final = struct.Struct("<HBBi")
_ENCODING: Final = struct.Struct("<Q")
_TYPES: Final = "BbHhIiQq"
_GIGATRANSFERS: Final = 6
"""The unit GT/s; the structs have the speed of PCIe in tenths of it."""

_ATTRIBUTE_NAMES: Final = """
    temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power average_gfx_activity
    average_umc_activity mem_max_bandwidth energy_accumulator system_clock_counter accumulation_counter
    prochot_residency_acc ppt_residency_acc socket_thm_residency_acc vr_thm_residency_acc hbm_thm_residency_acc
    gfxclk_lock_status pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed gfx_activity_acc
    mem_activity_acc pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc
    pcie_replay_rover_count_acc pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc xgmi_read_data_acc
    xgmi_write_data_acc xgmi_link_status firmware_timestamp current_gfxclk current_socclk current_vclk0
    current_dclk0 current_uclk num_partition pcie_lc_perf_other_end_recovery gfx_busy_inst jpeg_busy vcn_busy
    gfx_busy_acc gfx_below_host_limit_ppt_acc gfx_below_host_limit_thm_acc gfx_low_utilization_acc
    gfx_below_host_limit_total_acc temperature_hbm temperature_aid temperature_xcd
"""
_ATTRIBUTES: Final = tuple(_ATTRIBUTE_NAMES.split())
"""By the id of the attribute."""

ATTRIBUTE_IDS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(_ATTRIBUTES)}


class MetricsError(Exception):
    """The file is cut off, or has a revision that is not known. The text says which."""


class MetricsPart:
    """Numbers of a card or of one of its partitions."""

    __slots__ = ("_data", "_fields")

    def __init__(self, data: bytes, fields: Mapping[str, MetricsField]) -> None:
        self._data = data
        self._fields = fields

    def numbers(self, name: str) -> tuple[Maybe[int], ...]:
        """() if this revision does not have the field."""
        field = self._fields.get(name)
        if field is None:
            return ()
        values = field.reader.unpack_from(self._data, field.offset)
        return tuple(ABSENT if value == field.absent else value * field.factor for value in values)

    def number(self, name: str) -> Maybe[int]:
        """The first, of a field of several numbers."""
        numbers = self.numbers(name)
        return numbers[0] if numbers else ABSENT

    def known(self, name: str) -> list[int]:
        """The numbers that are there."""
        return [number for number in self.numbers(name) if number is not ABSENT]


class GpuMetrics(MetricsPart):
    """The numbers of a card. A card that is not split has one partition, or says nothing about them."""

    __slots__ = ("partitions", "revision")

    def __init__(
        self,
        revision: Revision,
        data: bytes,
        fields: Mapping[str, MetricsField],
        partitions: tuple[Mapping[str, MetricsField], ...] = (),
    ) -> None:
        super().__init__(data, fields)
        self.revision = revision
        count = self.number("num_partition")
        used = 0 if count is ABSENT else min(count, len(partitions))
        self.partitions = tuple(MetricsPart(data, part) for part in partitions[:used])


def decode_gpu_metrics(data: bytes) -> GpuMetrics:
    revision, size = _read_header(data, "gpu_metrics")
    if revision == (1, 9):
        return GpuMetrics(revision, data, _find_attributes(data, size, "gpu_metrics"))
    layout = LAYOUTS.get(revision)
    if layout is None:
        raise MetricsError(f"gpu_metrics {_text(revision)} is not known")
    _check_size(data, size, layout.size, f"gpu_metrics {_text(revision)}")
    return GpuMetrics(revision, data, layout.fields, layout.partitions)


def decode_partition_metrics(data: bytes) -> MetricsPart:
    """Of `xcp/xcp_metrics`, which newer kernels have for each partition."""
    revision, size = _read_header(data, "xcp_metrics")
    if revision == (1, 1):
        return MetricsPart(data, _find_attributes(data, size, "xcp_metrics"))
    if revision != (1, 0):
        raise MetricsError(f"xcp_metrics {_text(revision)} is not known")
    _check_size(data, size, PARTITION_LAYOUT.size, "xcp_metrics 1.0")
    return MetricsPart(data, PARTITION_LAYOUT.fields)


def _read_header(data: bytes, file: str) -> tuple[Revision, int]:
    if len(data) < _HEADER.size:
        raise MetricsError(f"{file} has {len(data)} bytes")
    size, major, minor = _HEADER.unpack_from(data)
    return (major, minor), size


def _check_size(data: bytes, size: int, needed: int, file: str) -> None:
    """The kernel may give a whole page of which the struct is the beginning."""
    if min(len(data), size) < needed:
        raise MetricsError(f"{file} has {min(len(data), size)} of {needed} bytes")


def _find_attributes(data: bytes, size: int, file: str) -> dict[str, MetricsField]:
    """Where each attribute is. One with an id that is not known is skipped."""
    if len(data) < max(size, _ATTRIBUTE_HEADER.size):
        raise MetricsError(f"{file} has {len(data)} of {size} bytes")
    fields: dict[str, MetricsField] = {}
    *_, count = _ATTRIBUTE_HEADER.unpack_from(data)
    offset = _ATTRIBUTE_HEADER.size
    for _ in range(count):
        if offset + _ENCODING.size > size:
            raise MetricsError(f"{file} ends within its {count} attributes")
        (encoding,) = _ENCODING.unpack_from(data, offset)
        unit, kind = encoding >> 24 & 0xFF, encoding >> 20 & 0xF
        number, instances = encoding >> 10 & 0x3FF, encoding & 0x3FF
        if kind >= len(_TYPES):
            raise MetricsError(f"{file} has an attribute of type {kind}, which is not known")
        reader = struct.Struct(f"<{instances}{_TYPES[kind]}")
        offset += _ENCODING.size
        if offset + reader.size > size:
            raise MetricsError(f"{file} ends within its {count} attributes")
        if number < len(_ATTRIBUTES) and instances:
            name = _ATTRIBUTES[number]
            is_signed = kind % 2 == 1
            absent = -1 if is_signed else (1 << 8 * reader.size // instances) - 1
            factor = 10 if (name, unit) == ("pcie_link_speed", _GIGATRANSFERS) else 1
            fields[name] = MetricsField(offset, reader, absent, factor)
        offset += reader.size
    return fields


def _text(revision: Revision) -> str:
    return f"{revision[0]}.{revision[1]}"

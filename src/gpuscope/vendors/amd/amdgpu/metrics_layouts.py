"""The layouts of the binary file `gpu_metrics`, by revision: which number is where.

The kernel's structs (kgd_pp_interface.h), with C's alignment: 1.0 to 1.3 of cards up to RDNA3 and MI200, 1.4 to
1.8 of the MI300 family, 2.x and 3.0 of processors with graphics. 1.9 has no layout: it says of each number what
it is (`gpu_metrics.py`). A field of several numbers is `name[8]`; `xcp_stats` has a part for each partition.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

Revision = tuple[int, int]

_NAME: Final = re.compile(r"(\w+)(?:\[(\d+)\])?")


class MetricsField(NamedTuple):
    offset: int
    reader: struct.Struct
    absent: int
    """The value of a number that the card does not have: all bits are set."""
    factor: int = 1
    """To the unit that the number has in the structs."""


@dataclass(frozen=True, slots=True)
class MetricsLayout:
    size: int
    fields: Mapping[str, MetricsField]
    partitions: tuple[Mapping[str, MetricsField], ...] = ()


class _Builder:
    def __init__(self, start: int = 0) -> None:
        self.offset = start
        self.alignment = 1

    def add(self, rows: tuple[str, ...]) -> dict[str, MetricsField]:
        """Each row is a type of `struct` and the names of fields of this type."""
        fields = {}
        for row in rows:
            code, *names = row.split()
            size = struct.calcsize(f"<{code}")
            self.align(size)
            for name in names:
                matched = _NAME.fullmatch(name)
                if matched is None:
                    raise ValueError(f"{name!r} is not a field")
                count = int(matched[2] or 1)
                reader = struct.Struct(f"<{count}{code}")
                fields[matched[1]] = MetricsField(self.offset, reader, (1 << 8 * size) - 1)
                self.offset += reader.size
        return fields

    def align(self, size: int) -> None:
        self.offset += -self.offset % size
        self.alignment = max(self.alignment, size)


def _layout(*rows: str, partition: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> MetricsLayout:
    """`after` are the rows behind the parts of the partitions."""
    builder = _Builder(_HEADER_BYTES)
    fields = builder.add(rows)
    parts = []
    if partition:
        builder.align(8)
        for _ in range(_PARTITIONS):
            parts.append(builder.add(partition))
            builder.align(8)
    fields |= builder.add(after)
    builder.align(builder.alignment)
    return MetricsLayout(builder.offset, fields, tuple(parts))


_HEADER_BYTES: Final = 4
_PARTITIONS: Final = 8

_TEMPERATURES = (
    "H temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc"
    " temperature_vrmem"
)
_ACTIVITY = "H average_gfx_activity average_umc_activity average_mm_activity average_socket_power"
_CLOCKS = (
    "H average_gfxclk_frequency average_socclk_frequency average_uclk_frequency average_vclk0_frequency"
    " average_dclk0_frequency average_vclk1_frequency average_dclk1_frequency current_gfxclk current_socclk"
    " current_uclk current_vclk0 current_dclk0 current_vclk1 current_dclk1"
)
_V1_1 = (
    _TEMPERATURES,
    _ACTIVITY,
    "Q energy_accumulator system_clock_counter",
    _CLOCKS,
    "I throttle_status",
    "H current_fan_speed pcie_link_width pcie_link_speed padding",
    "I gfx_activity_acc mem_activity_acc",
    "H temperature_hbm[4]",
)
_V1_2 = (*_V1_1, "Q firmware_timestamp")
_V1_3 = (*_V1_2, "H voltage_soc voltage_gfx voltage_mem padding1", "Q indep_throttle_status")

_MI300 = (
    "H temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power average_gfx_activity"
    " average_umc_activity"
)
_ENERGY = "Q energy_accumulator system_clock_counter"
_RESIDENCIES = (
    "I accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc"
    " vr_thm_residency_acc hbm_thm_residency_acc"
)
_LINKS = (
    "I gfxclk_lock_status",
    "H pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed",
    "I gfx_activity_acc mem_activity_acc",
    "Q pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc"
    " pcie_replay_rover_count_acc",
)
_NAKS = "I pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc"
_XGMI = "Q xgmi_read_data_acc[8] xgmi_write_data_acc[8]"
_XGMI_STATUS = "H xgmi_link_status[8] padding"
_MI300_CLOCKS = (
    "Q firmware_timestamp",
    "H current_gfxclk[8] current_socclk[4] current_vclk0[4] current_dclk0[4] current_uclk",
)
_PARTITION_1_6 = ("I gfx_busy_inst[8]", "H jpeg_busy[32] vcn_busy[4]", "Q gfx_busy_acc[8]")
_PARTITION_1_7 = (*_PARTITION_1_6, "Q gfx_below_host_limit_acc[8]")
_BELOW_LIMIT = (
    "Q gfx_busy_acc[8] gfx_below_host_limit_ppt_acc[8] gfx_below_host_limit_thm_acc[8]"
    " gfx_low_utilization_acc[8] gfx_below_host_limit_total_acc[8]"
)
_PARTITION_1_8 = ("I gfx_busy_inst[8]", "H jpeg_busy[40] vcn_busy[4]", _BELOW_LIMIT)
_OTHER_END = ("I pcie_lc_perf_other_end_recovery",)

_APU_TEMPERATURES = (
    "H temperature_gfx temperature_soc temperature_core[8] temperature_l3[2] average_gfx_activity"
    " average_mm_activity"
)
_APU_POWER_AND_CLOCKS = (
    "H average_socket_power average_cpu_power average_soc_power average_gfx_power average_core_power[8]"
    " average_gfxclk_frequency average_socclk_frequency average_uclk_frequency average_fclk_frequency"
    " average_vclk_frequency average_dclk_frequency current_gfxclk current_socclk current_uclk current_fclk"
    " current_vclk current_dclk current_coreclk[8] current_l3clk[2]"
)
_V2_1 = (
    _APU_TEMPERATURES,
    "Q system_clock_counter",
    _APU_POWER_AND_CLOCKS,
    "I throttle_status",
    "H fan_pwm padding[3]",
)
_V2_2 = (*_V2_1, "Q indep_throttle_status")
_V2_3 = (
    *_V2_2,
    "H average_temperature_gfx average_temperature_soc average_temperature_core[8] average_temperature_l3[2]",
)

LAYOUTS: Final[Mapping[Revision, MetricsLayout]] = {
    (1, 0): _layout(
        "Q system_clock_counter",
        _TEMPERATURES,
        _ACTIVITY,
        "I energy_accumulator",
        _CLOCKS,
        "I throttle_status",
        "H current_fan_speed",
        "B pcie_link_width pcie_link_speed",
    ),
    (1, 1): _layout(*_V1_1),
    (1, 2): _layout(*_V1_2),
    (1, 3): _layout(*_V1_3),
    (1, 4): _layout(
        _MI300, "H vcn_activity[4]", _ENERGY, "I throttle_status", *_LINKS, _XGMI, *_MI300_CLOCKS, "H padding"
    ),
    (1, 5): _layout(
        _MI300,
        "H vcn_activity[4] jpeg_activity[32]",
        _ENERGY,
        "I throttle_status",
        *_LINKS,
        _NAKS,
        _XGMI,
        *_MI300_CLOCKS,
        "H padding",
    ),
    (1, 6): _layout(
        _MI300,
        _ENERGY,
        _RESIDENCIES,
        *_LINKS,
        _NAKS,
        _XGMI,
        *_MI300_CLOCKS,
        "H num_partition",
        partition=_PARTITION_1_6,
        after=_OTHER_END,
    ),
    (1, 7): _layout(
        _MI300,
        "Q mem_max_bandwidth",
        _ENERGY,
        _RESIDENCIES,
        *_LINKS,
        _NAKS,
        _XGMI,
        _XGMI_STATUS,
        *_MI300_CLOCKS,
        "H num_partition",
        partition=_PARTITION_1_7,
        after=_OTHER_END,
    ),
    (1, 8): _layout(
        _MI300,
        "Q mem_max_bandwidth",
        _ENERGY,
        _RESIDENCIES,
        *_LINKS,
        _NAKS,
        _XGMI,
        _XGMI_STATUS,
        *_MI300_CLOCKS,
        "H num_partition",
        partition=_PARTITION_1_8,
        after=_OTHER_END,
    ),
    (2, 0): _layout(
        "Q system_clock_counter",
        _APU_TEMPERATURES,
        _APU_POWER_AND_CLOCKS,
        "I throttle_status",
        "H fan_pwm padding",
    ),
    (2, 1): _layout(*_V2_1),
    (2, 2): _layout(*_V2_2),
    (2, 3): _layout(*_V2_3),
    (2, 4): _layout(
        *_V2_3,
        "H average_cpu_voltage average_soc_voltage average_gfx_voltage average_cpu_current average_soc_current"
        " average_gfx_current",
    ),
    (3, 0): _layout(
        "H temperature_gfx temperature_soc temperature_core[16] temperature_skin average_gfx_activity"
        " average_vcn_activity average_ipu_activity[8] average_core_c0_activity[16] average_dram_reads"
        " average_dram_writes average_ipu_reads average_ipu_writes",
        "Q system_clock_counter",
        "I average_socket_power",
        "H average_ipu_power",
        "I average_apu_power average_gfx_power average_dgpu_power average_all_core_power",
        "H average_core_power[16] average_sys_power stapm_power_limit current_stapm_power_limit"
        " average_gfxclk_frequency average_socclk_frequency average_vpeclk_frequency average_ipuclk_frequency"
        " average_fclk_frequency average_vclk_frequency average_uclk_frequency average_mpipu_frequency"
        " current_coreclk[16] current_core_maxfreq current_gfx_maxfreq",
        "I throttle_residency_prochot throttle_residency_spl throttle_residency_fppt throttle_residency_sppt"
        " throttle_residency_thm_core throttle_residency_thm_gfx throttle_residency_thm_soc"
        " time_filter_alphavalue",
    ),
}

PARTITION_LAYOUT: Final = _layout(
    "H current_gfxclk[8] current_socclk[4] current_vclk0[4] current_dclk0[4] current_uclk padding",
    "I gfx_busy_inst[8]",
    "H jpeg_busy[40] vcn_busy[4]",
    _BELOW_LIMIT,
)
"""Revision 1.0 of a partition's own file, `xcp/xcp_metrics`."""

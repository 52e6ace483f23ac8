"""Prints readings like nvidia-smi, for sources other than nvidia-smi: one row per CSV column.

A column whose reading is absent is left out, which results in the same metrics as `[N/A]`. Rounding is
nvidia-smi's: whole MHz and percent, hundredths of a watt, MiB rounded up (used, free and reserved together may
exceed the total). The order is that of `--help-query-gpu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Device, Driver
from gpuscope.vendors.nvidia.nvidia_values import THROTTLE_BITS, reader, removed_smi_fields

MIB: Final = 1 << 20
MAX_NUMBER: Final = 1e18  # larger, infinite and NaN values are not measurements


@dataclass(frozen=True, slots=True)
class SmiColumn:
    header: str
    reading: str
    print: Callable[[Any], str]


def _whole(value: float) -> str:
    return str(round(value))


def _watts(value: float) -> str:
    return f"{value:.2f} W"


def _mhz(value: float) -> str:
    return f"{round(value / 1e6)} MHz"


def _percent(value: float) -> str:
    return f"{round(value * 100)} %"


def _microseconds(value: float) -> str:
    return f"{round(value * 1e6)} us"


def mib(value: float) -> str:
    return f"{math.ceil(value / MIB)} MiB"


def _enabled(value: float) -> str:
    return "Enabled" if value else "Disabled"


def _yes(value: float) -> str:
    return "Yes" if value else "No"


def _mask(value: int) -> str:
    return f"0x{int(value):016X}"


def _pci_id(value: int) -> str:
    return f"0x{int(value):08X}"


def _pci_class(value: int) -> str:
    return f"0x{int(value):X}"


def _fabric_state(value: float) -> str:
    return {0: "Not Supported", 1: "Not Started", 2: "In Progress", 3: "Completed"}.get(int(value), "N/A")


def _plain_microseconds(value: float) -> str:
    return str(round(value * 1e6))


def _performance_state(value: float) -> str:
    return f"P{round(value)}"


def _compute_mode(value: float) -> str:
    names = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
    return names[round(value)] if 0 <= round(value) < len(names) else f"Unknown({round(value)})"


def _recovery_action(value: float) -> str:
    return {0: "None", 1: "Reset", 2: "Reboot", 3: "Drain P2P", 4: "Drain and Reset"}.get(int(value), "Unknown")


def _active(bit: int) -> Callable[[int], str]:
    return lambda mask: "Active" if mask & bit else "Not Active"


_REASONS_IN_COLUMNS = tuple(reason for reason in THROTTLE_BITS if reason != "display_clock_setting")
_REASONS_WITH_COUNTERS = (
    *("sw_power_cap", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown"),
)
_ECC_LOCATIONS = {  # column -> location; the first two columns have the same location
    "device_memory": "device_memory",
    "dram": "device_memory",
    **{place: place for place in ("register_file", "l1_cache", "l2_cache", "texture_memory", "cbu", "sram")},
}
_UTILIZATIONS = {
    "gpu": "utilization_ratio",
    "memory": "memory_utilization_ratio",
    "encoder": "encoder_utilization_ratio",
    "decoder": "decoder_utilization_ratio",
    "jpeg": "jpeg_utilization_ratio",
    "ofa": "ofa_utilization_ratio",
}


def _ecc_columns() -> tuple[SmiColumn, ...]:
    columns = []
    for error in ("corrected", "uncorrected"):
        for lifetime in ("volatile", "aggregate"):
            name = f"ecc.errors.{error}.{lifetime}"
            columns += [
                SmiColumn(f"{name}.{place}", f"ecc_location_errors.{error}.{lifetime}.{location}", _whole)
                for place, location in _ECC_LOCATIONS.items()
            ]
            columns.append(SmiColumn(f"{name}.total", f"ecc_errors.{error}.{lifetime}", _whole))
    return tuple(columns)


def _sram_columns() -> tuple[SmiColumn, ...]:
    name = "ecc.errors.uncorrected"
    checks = {"parity": "parity", "secded": "sec_ded"}
    units = {"l2": "l2", "sm": "sm", "mcu": "microcontroller", "pcie": "pcie", "other": "other"}
    return (
        *(
            SmiColumn(f"{name}.{lifetime}.sram.{short}", f"ecc_sram_errors.{check}.{lifetime}", _whole)
            for lifetime in ("volatile", "aggregate")
            for short, check in checks.items()
        ),
        SmiColumn(f"{name}.aggregate.sram.thresholdExceeded", "ecc_sram_threshold_exceeded", _yes),
        *(
            SmiColumn(f"{name}.aggregate.sram.{short}", f"ecc_sram_sources.{unit}", _whole)
            for short, unit in units.items()
        ),
    )


SMI_COLUMNS: Final[tuple[SmiColumn, ...]] = (
    SmiColumn("name", "model", str),
    SmiColumn("serial", "serial", str),
    SmiColumn("pci.bus_id", "pci_bus_id", str),
    SmiColumn("pci.baseClass", "pci_ids.base_class", _pci_class),
    SmiColumn("pci.subClass", "pci_ids.sub_class", _pci_class),
    SmiColumn("pci.device_id", "pci_ids.device", _pci_id),
    SmiColumn("pci.sub_device_id", "pci_ids.sub_device", _pci_id),
    SmiColumn("pcie.link.gen.current", "pcie_link_generation", _whole),
    SmiColumn("pcie.link.gen.gpucurrent", "pcie_link_generation", _whole),
    SmiColumn("pcie.link.gen.max", "pcie_link_generation_max", _whole),
    SmiColumn("pcie.link.gen.gpumax", "pcie_link_generation_gpu_max", _whole),
    SmiColumn("pcie.link.width.current", "pcie_link_width", _whole),
    SmiColumn("pcie.link.width.max", "pcie_link_width_max", _whole),
    SmiColumn("display_mode", "display_attached", _enabled),
    SmiColumn("display_attached", "display_attached", _yes),
    SmiColumn("display_active", "display_active", _enabled),
    SmiColumn("persistence_mode", "persistence_mode", _enabled),
    SmiColumn("accounting.mode", "accounting_enabled", _enabled),
    SmiColumn("accounting.buffer_size", "accounting_buffer_size", _whole),
    SmiColumn("vbios_version", "vbios_version", str),
    SmiColumn("inforom.img", "inforom_versions.image", str),
    SmiColumn("inforom.oem", "inforom_versions.oem", str),
    SmiColumn("inforom.ecc", "inforom_versions.ecc", str),
    SmiColumn("inforom.pwr", "inforom_versions.power", str),
    SmiColumn("gpu_recovery_action", "recovery_action", _recovery_action),
    SmiColumn("fan.speed [%]", "fan_speed_ratio.0", _percent),
    SmiColumn("pstate", "performance_state", _performance_state),
    SmiColumn("clocks_event_reasons.supported", "throttle_mask_supported", _mask),
    SmiColumn("clocks_event_reasons.active", "throttle_mask", _mask),
    *(
        SmiColumn(f"clocks_event_reasons.{reason}", "throttle_mask", _active(THROTTLE_BITS[reason]))
        for reason in _REASONS_IN_COLUMNS
    ),
    *(
        SmiColumn(f"clocks_event_reasons_counters.{reason} [us]", f"throttled_seconds.{reason}", _microseconds)
        for reason in _REASONS_WITH_COUNTERS
    ),
    SmiColumn("memory.total [MiB]", "memory_total_bytes", mib),
    SmiColumn("memory.reserved [MiB]", "memory_reserved_bytes", mib),
    SmiColumn("memory.used [MiB]", "memory_used_bytes", mib),
    SmiColumn("memory.free [MiB]", "memory_free_bytes", mib),
    SmiColumn("compute_mode", "compute_mode", _compute_mode),
    SmiColumn("compute_cap", "compute_capability", str),
    *(SmiColumn(f"utilization.{what} [%]", path, _percent) for what, path in _UTILIZATIONS.items()),
    SmiColumn("encoder.stats.sessionCount", "encoder_sessions", _whole),
    SmiColumn("encoder.stats.averageFps", "encoder_frames_per_second", _whole),
    SmiColumn("encoder.stats.averageLatency", "encoder_latency_seconds", _plain_microseconds),
    SmiColumn("ecc.mode.current", "ecc_enabled", _enabled),
    SmiColumn("ecc.mode.pending", "ecc_pending", _enabled),
    *_ecc_columns(),
    *_sram_columns(),
    SmiColumn("retired_pages.single_bit_ecc.count", "retired_pages.single_bit", _whole),
    SmiColumn("retired_pages.double_bit.count", "retired_pages.double_bit", _whole),
    SmiColumn("retired_pages.pending", "retired_pages_pending", _yes),
    *(
        SmiColumn(f"remapped_rows.{cause}{suffix}", f"remapped_rows{suffix}.{cause}", _whole)
        for cause in ("correctable", "uncorrectable")
        for suffix in ("", "_inactive")
    ),
    SmiColumn("remapped_rows.pending", "row_remap_pending", _yes),
    SmiColumn("remapped_rows.failure", "row_remap_failed", _yes),
    *(
        SmiColumn(f"remapped_rows.histogram.{rest}", f"row_remap_banks.{rest}", _whole)
        for rest in ("max", "high", "partial", "low", "none")
    ),
    SmiColumn("temperature.gpu", "temperature_celsius.gpu", _whole),
    SmiColumn("temperature.gpu.tlimit", "temperature_margin_celsius", _whole),
    SmiColumn("temperature.memory", "temperature_celsius.memory", _whole),
    SmiColumn("power.management", "power_management", _enabled),
    SmiColumn("power.draw [W]", "power_watts", _watts),
    SmiColumn("power.draw.average [W]", "power_average_watts", _watts),
    SmiColumn("power.draw.instant [W]", "power_instant_watts", _watts),
    SmiColumn("power.limit [W]", "power_limit_watts.current", _watts),
    SmiColumn("enforced.power.limit [W]", "power_limit_watts.enforced", _watts),
    SmiColumn("power.default_limit [W]", "power_limit_watts.default", _watts),
    SmiColumn("power.min_limit [W]", "power_limit_watts.min", _watts),
    SmiColumn("power.max_limit [W]", "power_limit_watts.max", _watts),
    *(
        SmiColumn(f"clocks.current.{clock} [MHz]", f"clock_hertz.{clock}", _mhz)
        for clock in ("graphics", "sm", "memory", "video")
    ),
    *(
        SmiColumn(f"clocks.{which}applications.{clock} [MHz]", f"clock_{which}application_hertz.{clock}", _mhz)
        for which in ("", "default_")
        for clock in ("graphics", "memory")
    ),
    *(
        SmiColumn(f"clocks.max.{clock} [MHz]", f"clock_max_hertz.{clock}", _mhz)
        for clock in ("graphics", "sm", "memory")
    ),
    SmiColumn("mig.mode.current", "mig_enabled", _enabled),
    SmiColumn("mig.mode.pending", "mig_pending", _enabled),
    SmiColumn("gsp.mode.current", "gsp_firmware.current", _enabled),
    SmiColumn("gsp.mode.default", "gsp_firmware.default", _enabled),
    SmiColumn("c2c.mode", "c2c_enabled", _enabled),
    *(
        SmiColumn(f"protected_memory.{kind} [MiB]", f"protected_memory_bytes.{kind}", mib)
        for kind in ("total", "used", "free")
    ),
    SmiColumn("fabric.state", "fabric_state", _fabric_state),
    SmiColumn("fabric.cliqueId", "fabric_clique", _whole),
    SmiColumn("fabric.clusterUuid", "fabric_cluster", str),
    SmiColumn("platform.chassis_serial_number", "platform.chassis", str),
    SmiColumn("platform.slot_number", "platform.slot", str),
    SmiColumn("platform.tray_index", "platform.tray", str),
    SmiColumn("platform.host_id", "platform.host", str),
    SmiColumn("platform.module_id", "platform.module", str),
)

_READERS = tuple((column.header, reader(column.reading), column.print) for column in SMI_COLUMNS)


def print_cells(device: Device, driver: Driver, count: int) -> dict[str, str]:
    """The row of `--query-gpu` for a device, by header. `count` is the number of GPUs."""
    cells = {"count": str(count), "uuid": device.uuid, "index": str(device.index)}
    if driver.driver_version is not ABSENT:
        cells["driver_version"] = driver.driver_version
    if device.pci_bus_id is not ABSENT:
        cells |= _pci_cells(device.pci_bus_id)
    removed = removed_smi_fields(driver.driver_version)
    for header, read, print_reading in _READERS:
        if header.startswith(removed):
            continue
        value = read(device)
        if value is ABSENT or (isinstance(value, float) and not abs(value) < MAX_NUMBER):
            continue
        cells[header] = print_reading(value)
    return cells


def _pci_cells(bus_id: str) -> dict[str, str]:
    """`00000000:8D:00.0` is domain 0x0000, bus 0x8D, device 0x00."""
    domain, _, rest = bus_id.partition(":")
    bus, _, slot = rest.partition(":")
    return {
        "pci.domain": f"0x{domain[-4:]}",
        "pci.bus": f"0x{bus}",
        "pci.device": f"0x{slot.partition('.')[0]}",
    }

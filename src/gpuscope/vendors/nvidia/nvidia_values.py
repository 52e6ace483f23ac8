"""What only NVIDIA's GPUs have, and how a device is made of readings by name.

Input: readings by name, as the tables of NVML, nvidia-smi, DCGM and the simulated fleet have them; output: a
`Device` or `Instance` whose `vendor_values` is a `NvidiaValues`. `own` reads it, `reader` reads any reading by
its path (`clock_hertz.sm`, `ecc_errors.corrected.volatile`, `recovery_action`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gpuscope.model.readings import (
    ABSENT,
    Device,
    Driver,
    GpuOrInstance,
    Instance,
    Maybe,
    Snapshot,
    VendorValues,
)
from gpuscope.model.readings.device import IDENTITY, NO_VALUES, ByLabel, ByLabels

NVIDIA: Final = "nvidia"

THROTTLE_BITS: Final[dict[str, int]] = {
    "gpu_idle": 0x001,
    "applications_clocks_setting": 0x002,
    "sw_power_cap": 0x004,
    "hw_slowdown": 0x008,
    "sync_boost": 0x010,
    "sw_thermal_slowdown": 0x020,
    "hw_thermal_slowdown": 0x040,
    "hw_power_brake_slowdown": 0x080,
    "display_clock_setting": 0x100,
}
"""The bits of the driver's mask of throttle reasons, by nvidia-smi's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaValues(VendorValues):
    """Of a GPU; a MIG instance has the first group only."""

    sm_occupancy_ratio: Maybe[float] = ABSENT
    tensor_pipe_active_ratio: ByLabel = NO_VALUES  # by pipe: imma, hmma, dfma
    profiled_pcie_bytes_per_second: ByLabel = NO_VALUES  # by direction: tx, rx
    profiled_nvlink_bytes_per_second: ByLabel = NO_VALUES  # by direction: tx, rx
    # DCGM's unchanged values by field id, for the families that export them unchanged.
    dcgm_fields: Mapping[int, int | float | str] = NO_VALUES

    inforom_versions: Mapping[str, str] = field(default=NO_VALUES, metadata=IDENTITY)

    throttle_mask: Maybe[int] = ABSENT  # THROTTLE_BITS has the names
    throttle_mask_supported: Maybe[int] = ABSENT  # the bits of that mask that this GPU can set
    violation_seconds: ByLabel = NO_VALUES  # the driver's counters, by policy

    nvlink_aggregate_bytes: ByLabel = NO_VALUES  # by direction: the driver's counter for all links
    profiled_nvlink_link_bytes_per_second: ByLabels = NO_VALUES  # by (link, direction); only on request
    # Of NVLink 5, by (link, kind); only of links that had any since the source was opened.
    nvlink5_errors: ByLabels = NO_VALUES
    nvlink5_bit_error_ratio: ByLabels = NO_VALUES
    nvlink5_errors_all_links: ByLabel = NO_VALUES  # by kind: the sum
    nvlink5_bit_error_max_ratio: ByLabel = NO_VALUES  # by kind: of the worst link
    # By the other GPU's index: 0 reachable over NVLink, else the reason: 1 chipset, 2 GPU, 3 topology, 4
    # disabled by a registry key, 5 not supported, 6 unknown.
    p2p_nvlink_status: ByLabel = NO_VALUES
    fabric_state: Maybe[float] = ABSENT  # 0 not supported, 1 not started, 2 in progress, 3 completed
    fabric_status: Maybe[float] = ABSENT  # NVML's return code of a completed registration; 0 is success
    fabric_clique: Maybe[float] = ABSENT
    fabric_cluster: Maybe[str] = ABSENT
    c2c_enabled: Maybe[float] = ABSENT  # 1 if the chip-to-chip link to the CPU is enabled

    ecc_sram_errors: ByLabels = NO_VALUES  # uncorrected, by (check, lifetime): parity | sec_ded
    # Uncorrected, aggregate, by unit: l2, sm, microcontroller, pcie, other.
    ecc_sram_sources: ByLabel = NO_VALUES
    ecc_sram_threshold_exceeded: Maybe[float] = ABSENT  # 1: NVIDIA replaces such a GPU
    retired_pages: ByLabel = NO_VALUES  # by cause: single_bit, double_bit
    retired_pages_pending: Maybe[float] = ABSENT
    remapped_rows: ByLabel = NO_VALUES  # by cause: correctable, uncorrectable
    remapped_rows_inactive: ByLabel = NO_VALUES  # by cause; remapped, but not active before a reset
    row_remap_pending: Maybe[float] = ABSENT
    row_remap_failed: Maybe[float] = ABSENT
    row_remap_banks: ByLabel = NO_VALUES  # by availability: max, high, partial, low, none

    # The driver's recommendation: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover
    # the IMEX domain, 6 bus reset, 7 system reboot.
    recovery_action: Maybe[float] = ABSENT

    compute_mode: Maybe[float] = ABSENT  # 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process
    persistence_mode: Maybe[float] = ABSENT
    power_management: Maybe[float] = ABSENT  # 1 if a power limit can be enforced
    mig_enabled: Maybe[float] = ABSENT
    mig_pending: Maybe[float] = ABSENT
    display_active: Maybe[float] = ABSENT
    display_attached: Maybe[float] = ABSENT
    accounting_enabled: Maybe[float] = ABSENT
    accounting_buffer_size: Maybe[float] = ABSENT  # maximum number of recorded processes
    gsp_firmware: ByLabel = NO_VALUES  # 1 if the driver uses the GPU's system processor: current, default
    protected_memory_bytes: ByLabel = NO_VALUES  # confidential computing: total, used, free

    smi_cells: Mapping[str, str] = NO_VALUES  # nvidia-smi's unchanged output: CSV header -> cell


NO_NVIDIA_VALUES: Final = NvidiaValues()
OWN_NAMES: Final = frozenset(NvidiaValues.__dataclass_fields__)
INSTANCE_NAMES: Final = frozenset(GpuOrInstance.__dataclass_fields__) | {
    "sm_occupancy_ratio",
    "tensor_pipe_active_ratio",
    "profiled_pcie_bytes_per_second",
    "profiled_nvlink_bytes_per_second",
}
"""Readings that a MIG instance can have."""


def own(reading: GpuOrInstance) -> NvidiaValues:
    """Empty for another vendor's device."""
    values = reading.vendor_values
    return values if isinstance(values, NvidiaValues) else NO_NVIDIA_VALUES


def make_device(**readings: Any) -> Device:
    """By name, the device's and NVIDIA's mixed. The throttle reasons follow from their mask."""
    fields = _split(readings)
    values: NvidiaValues = fields["vendor_values"]
    if values.throttle_mask is not ABSENT:
        fields["throttle_reasons"] = throttle_reasons(values.throttle_mask)
    return Device(vendor=NVIDIA, is_split=values.mig_enabled == 1, **fields)


def gpu_instance_of(instance: Instance) -> int:
    """The id of its GPU instance, which may have several compute instances."""
    return instance.ids[0]


def with_readings(device: Device, readings: Mapping[str, Any]) -> Device:
    """The device with more readings by name; a mapping's own numbers stay."""
    mine = own(device)
    shared: dict[str, Any] = {}
    special: dict[str, Any] = {}
    for name, value in readings.items():
        before, changes = (mine, special) if name in OWN_NAMES else (device, shared)
        changes[name] = {**value, **getattr(before, name)} if isinstance(value, Mapping) else value
    return replace(device, **shared, vendor_values=replace(mine, **special))


def make_instance(*, gpu_instance: int, compute_instance: int, **readings: Any) -> Instance:
    """Compute instances of one GPU instance share its memory."""
    return Instance(ids=(gpu_instance, compute_instance), memory_group=gpu_instance, **_split(readings))


def _split(readings: dict[str, Any]) -> dict[str, Any]:
    mine = {name: readings.pop(name) for name in OWN_NAMES & readings.keys()}
    readings["vendor_values"] = NvidiaValues(**mine) if mine else NO_NVIDIA_VALUES
    return readings


@lru_cache(maxsize=256)
def throttle_reasons(mask: int) -> ByLabel:
    """1 or 0 by reason. The same object for the same mask: what is made of it is kept while it is the same."""
    return {reason: 1.0 if mask & bit else 0.0 for reason, bit in THROTTLE_BITS.items()}


def known_values(**values: Maybe[Any]) -> dict[str, Any]:
    """Without those that are absent."""
    return {name: value for name, value in values.items() if value is not ABSENT}


def cuda_version(number: int) -> str:
    """`12.4` of 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def nvidia_driver(snapshot: Snapshot) -> Driver:
    return snapshot.driver_of(NVIDIA)


def of_nvidia(snapshot: Snapshot) -> Snapshot:
    """Without the GPUs of other vendors, which the originals of NVIDIA's families do not know."""
    devices = tuple(device for device in snapshot.devices if device.vendor in (NVIDIA, ABSENT))
    errors = tuple(error for error in snapshot.errors if error.vendor == NVIDIA)
    if len(devices) == len(snapshot.devices) and len(errors) == len(snapshot.errors):
        return snapshot
    return replace(snapshot, devices=devices, errors=errors)


def reader(path: str) -> Callable[[object], Maybe[float]]:
    """A function that returns the value at `path` in a device or instance, or ABSENT."""
    attribute, *keys = path.split(".")
    if attribute in OWN_NAMES:
        return _own_reader(_reader(attribute, keys))
    return _reader(attribute, keys)


def _own_reader(read: Callable[[object], Maybe[float]]) -> Callable[[object], Maybe[float]]:
    return lambda thing: read(getattr(thing, "vendor_values", ABSENT))


def _reader(attribute: str, keys: list[str]) -> Callable[[object], Maybe[float]]:
    if not keys:
        return lambda thing: getattr(thing, attribute, ABSENT)
    get = attrgetter(attribute)
    key = keys[0] if len(keys) == 1 else tuple(keys)

    def read(thing: object) -> Maybe[float]:
        if not hasattr(thing, attribute):
            return ABSENT
        by_label: Mapping[object, float] = get(thing)
        return by_label.get(key, ABSENT)

    return read


# What differs between releases of NVIDIA's driver, from 470 on: NVML's field ids, nvidia-smi's words.
#
# Releases are compared by their first two numbers (580.95 of 580.95.05). A version that cannot be parsed
# counts as the newest.

Release = tuple[int, int]
NEWEST: Final[Release] = (1_000_000, 0)


class ThrottleTimeIds(NamedTuple):
    """Field ids of the time that clocks were held back, in nanoseconds."""

    sw_thermal_slowdown: int
    hw_thermal_slowdown: int
    hw_power_brake_slowdown: int


# NVML_FI_DEV_CLOCKS_EVENT_REASON_* of nvml.h and of the packages nvidia-ml-py. Up to 12.570.172 there are none:
# 251 to 268 are settings of power smoothing. 12.575.51 and 13.580.65 insert them at 251, so that 269 to 271 are
# such settings; from 13.580.82 to 13.615.71 the settings have their old ids again. A wrong id gives a setting.
_THROTTLE_TIMES: Final[tuple[tuple[Release, ThrottleTimeIds | None], ...]] = (
    ((580, 82), ThrottleTimeIds(269, 270, 271)),
    ((575, 0), ThrottleTimeIds(251, 252, 253)),
    ((0, 0), None),
)

# In --help-query-gpu nvidia-smi 470 lists only clocks_throttle_reasons; 535.261 and 550.163 list
# clocks_event_reasons. NVML has had the new word since 535 (nvidia-ml-py 12.535.77; not in 11.525.150).
_EVENT_REASONS_SINCE: Final[Release] = (535, 0)

# nvidia-smi answers them with "[Requested functionality has been deprecated]", which is no number.
_REMOVED_SMI_FIELDS: Final = (
    ((590, 0), ("display_mode", "power.management", "clocks.applications.", "clocks.default_applications.")),
    ((0, 0), ()),
)


def parse_release(driver_version: Maybe[str]) -> Release:
    """`535.183.06` is (535, 183)."""
    parts = driver_version.split(".")[:2] if isinstance(driver_version, str) else []
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        return NEWEST
    return int(parts[0]), int(parts[1]) if len(parts) > 1 else 0


def throttle_time_ids(driver_version: Maybe[str]) -> ThrottleTimeIds | None:
    """None: this driver does not count them."""
    release = parse_release(driver_version)
    return next(ids for since, ids in _THROTTLE_TIMES if release >= since)


def removed_smi_fields(driver_version: Maybe[str]) -> tuple[str, ...]:
    """Beginnings of the query fields that this driver's nvidia-smi does not answer any more."""
    release = parse_release(driver_version)
    return next(fields for since, fields in _REMOVED_SMI_FIELDS if release >= since)


def says_event_reasons(driver_version: Maybe[str]) -> bool:
    """Whether nvidia-smi names fields `clocks_event_reasons`; before, `clocks_throttle_reasons`."""
    return parse_release(driver_version) >= _EVENT_REASONS_SINCE

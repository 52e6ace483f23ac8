"""A GPU and its MIG instances, as one source read them at one time.

Every number is ABSENT unless the source read it. Units are Prometheus' base units (bytes, seconds, hertz,
ratios from 0 to 1). A mapping has one number per label value: `clock_hertz` by clock, `ecc_errors` by (error,
lifetime). A new metric needs an attribute here, and a row in `agent/families/native/table.py` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NewType, Protocol, TypeVar

from gpuscope.model.readings.absent import ABSENT, Maybe

Uuid = NewType("Uuid", str)
"""The driver's `GPU-…` of a whole GPU or `MIG-…` of an instance."""

GpuUuid = TypeVar("GpuUuid", bound=Maybe[Uuid], covariant=True)

ByLabel = Mapping[str, float]
ByLabels = Mapping[tuple[str, ...], float]


class _NoValues(dict[Any, Any]):
    """An immutable empty mapping; hashable, so that a frozen dataclass accepts it as a default."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("NO_VALUES is immutable")


NO_VALUES: Mapping[Any, Any] = _NoValues()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOrInstance:
    """The readings that GPUs and MIG instances have: memory and profiling."""

    memory_total_bytes: Maybe[float] = ABSENT
    memory_used_bytes: Maybe[float] = ABSENT
    memory_free_bytes: Maybe[float] = ABSENT
    memory_reserved_bytes: Maybe[float] = ABSENT
    bar1_total_bytes: Maybe[float] = ABSENT
    bar1_used_bytes: Maybe[float] = ABSENT

    ecc_errors: ByLabels = NO_VALUES  # by (error, lifetime): (corrected | uncorrected, volatile | aggregate)

    graphics_engine_active_ratio: Maybe[float] = ABSENT
    sm_active_ratio: Maybe[float] = ABSENT
    sm_occupancy_ratio: Maybe[float] = ABSENT
    tensor_active_ratio: Maybe[float] = ABSENT
    tensor_pipe_active_ratio: ByLabel = NO_VALUES  # by pipe: imma, hmma, dfma
    dram_active_ratio: Maybe[float] = ABSENT
    fp64_active_ratio: Maybe[float] = ABSENT
    fp32_active_ratio: Maybe[float] = ABSENT
    fp16_active_ratio: Maybe[float] = ABSENT
    integer_active_ratio: Maybe[float] = ABSENT
    profiled_pcie_bytes_per_second: ByLabel = NO_VALUES  # by direction: tx, rx
    profiled_nvlink_bytes_per_second: ByLabel = NO_VALUES  # by direction: tx, rx

    processes_known: bool = True  # False: the processes here are unknown, those of other GPUs are known

    # DCGM's unchanged values by field id, for the families that export them unchanged.
    dcgm_fields: Mapping[int, int | float | str] = NO_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance(GpuOrInstance):
    """A MIG instance. `gpu_instance` and `compute_instance` are the driver's ids, which have gaps."""

    uuid: Uuid
    gpu_instance: int
    compute_instance: int
    profile: Maybe[str] = ABSENT  # "1g.10gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(GpuOrInstance):
    """A whole GPU. Only `uuid` and `index` are always known. A lost GPU does not answer any more and keeps only
    its identity."""

    uuid: Uuid
    index: int
    lost: bool = False

    model: Maybe[str] = ABSENT
    brand: Maybe[str] = ABSENT
    serial: Maybe[str] = ABSENT
    architecture: Maybe[str] = ABSENT
    compute_capability: Maybe[str] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT  # "00000000:8D:00.0"
    pci_ids: ByLabel = NO_VALUES  # device, sub_device (both include the vendor), base_class, sub_class
    minor_number: Maybe[int] = ABSENT
    cpu_affinity: Mapping[str, int] = NO_VALUES  # by 64-bit word: "0" has CPUs 0 to 63
    memory_affinity: Mapping[str, int] = NO_VALUES  # NUMA nodes, by 64-bit word
    vbios_version: Maybe[str] = ABSENT
    inforom_versions: Mapping[str, str] = NO_VALUES
    board_part_number: Maybe[str] = ABSENT
    platform: Mapping[str, str] = NO_VALUES  # position in the rack: chassis, slot, tray, host, module

    utilization_ratio: Maybe[float] = ABSENT
    utilization_mean_ratio: Maybe[float] = ABSENT  # mean of the driver's samples since the last reading
    busy_seconds: Maybe[float] = ABSENT  # sum of those samples since the source was opened
    memory_utilization_ratio: Maybe[float] = ABSENT
    encoder_utilization_ratio: Maybe[float] = ABSENT
    decoder_utilization_ratio: Maybe[float] = ABSENT
    jpeg_utilization_ratio: Maybe[float] = ABSENT
    ofa_utilization_ratio: Maybe[float] = ABSENT
    encoder_sessions: Maybe[float] = ABSENT
    encoder_frames_per_second: Maybe[float] = ABSENT  # mean over all sessions, like the latency
    encoder_latency_seconds: Maybe[float] = ABSENT

    temperature_celsius: ByLabel = NO_VALUES  # by sensor: gpu, memory
    temperature_threshold_celsius: ByLabel = NO_VALUES  # by threshold: shutdown, slowdown, memory_max, gpu_max
    temperature_margin_celsius: Maybe[float] = (
        ABSENT  # degrees left; newer GPUs have this instead of thresholds
    )
    temperature_margin_threshold_celsius: ByLabel = NO_VALUES  # margins at which the GPU slows or shuts down

    power_watts: Maybe[float] = ABSENT
    power_instant_watts: Maybe[float] = ABSENT
    power_average_watts: Maybe[float] = ABSENT
    power_limit_watts: ByLabel = NO_VALUES  # by limit: current, enforced, default, min, max
    energy_joules: Maybe[float] = ABSENT  # since the driver was loaded

    clock_hertz: ByLabel = NO_VALUES  # by clock: graphics, sm, memory, video
    clock_max_hertz: ByLabel = NO_VALUES
    clock_application_hertz: ByLabel = NO_VALUES
    clock_default_application_hertz: ByLabel = NO_VALUES  # after a reset of the applications' clocks
    performance_state: Maybe[float] = ABSENT
    throttle_reasons: Maybe[int] = ABSENT  # the driver's bit mask; model/readings/throttle.py has the names
    throttle_reasons_supported: Maybe[int] = ABSENT  # the bits of that mask that this GPU can set
    throttled_seconds: ByLabel = NO_VALUES  # the driver's counters, by reason
    violation_seconds: ByLabel = NO_VALUES  # the driver's counters, by policy

    fan_speed_ratio: ByLabel = NO_VALUES  # by fan: "0", "1"
    fan_rpm: ByLabel = NO_VALUES

    pcie_link_generation: Maybe[float] = ABSENT
    pcie_link_generation_max: Maybe[float] = ABSENT
    pcie_link_generation_gpu_max: Maybe[float] = ABSENT  # of the GPU, independent of its slot
    pcie_link_width: Maybe[float] = ABSENT
    pcie_link_width_max: Maybe[float] = ABSENT
    pcie_bytes_per_second: ByLabel = NO_VALUES  # by direction: tx, rx
    pcie_replays: Maybe[float] = ABSENT

    nvlink_up: ByLabel = NO_VALUES  # by link: "0" … "17"
    nvlink_bytes: ByLabel = NO_VALUES  # by direction: the sum over all links
    nvlink_aggregate_bytes: ByLabel = NO_VALUES  # by direction: the driver's counter for all links
    nvlink_link_bytes: ByLabels = NO_VALUES  # by (link, direction)
    profiled_nvlink_link_bytes_per_second: ByLabels = NO_VALUES  # by (link, direction); only on request
    nvlink_errors: ByLabels = NO_VALUES  # by (link, error): crc_flit, crc_data, replay, recovery
    # By the other GPU's index: 0 reachable over NVLink, else the reason: 1 chipset, 2 GPU, 3 topology, 4
    # disabled by a registry key, 5 not supported, 6 unknown.
    p2p_nvlink_status: ByLabel = NO_VALUES
    fabric_state: Maybe[float] = ABSENT  # 0 not supported, 1 not started, 2 in progress, 3 completed
    fabric_status: Maybe[float] = ABSENT  # NVML's return code of a completed registration; 0 is success
    fabric_clique: Maybe[float] = ABSENT
    fabric_cluster: Maybe[str] = ABSENT

    ecc_enabled: Maybe[float] = ABSENT
    ecc_pending: Maybe[float] = ABSENT
    ecc_location_errors: ByLabels = NO_VALUES  # by (error, lifetime, location)
    ecc_sram_errors: ByLabels = NO_VALUES  # uncorrected, by (check, lifetime): parity | sec_ded
    ecc_sram_sources: ByLabel = (
        NO_VALUES  # uncorrected, aggregate, by unit: l2, sm, microcontroller, pcie, other
    )
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
    c2c_enabled: Maybe[float] = ABSENT  # 1 if the chip-to-chip link to the CPU is enabled
    gsp_firmware: ByLabel = NO_VALUES  # 1 if the driver uses the GPU's system processor: current, default
    protected_memory_bytes: ByLabel = NO_VALUES  # confidential computing: total, used, free

    instances: tuple[MigInstance, ...] = ()

    smi_cells: Mapping[str, str] = NO_VALUES  # nvidia-smi's unchanged output: CSV header -> cell


class _OnUnit(Protocol[GpuUuid]):
    @property
    def gpu_uuid(self) -> GpuUuid: ...
    @property
    def instance_uuid(self) -> Maybe[Uuid]: ...


def unit_uuid(reading: _OnUnit[GpuUuid]) -> Uuid | GpuUuid:
    """The UUID of the unit that a process or an allocation is on: the MIG instance, or else the whole GPU."""
    return reading.gpu_uuid if reading.instance_uuid is ABSENT else reading.instance_uuid

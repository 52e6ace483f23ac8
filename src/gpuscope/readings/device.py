"""A GPU and its MIG instances as one source saw them at one moment.

Every number is ABSENT unless the source gave it. Units are Prometheus' base units (bytes, seconds, hertz,
ratios from 0 to 1), whatever the driver speaks. A mapping holds one reading per label value: `clock_hertz`
by clock, `ecc_errors` by (error, lifetime). The metric catalogue names these attributes; adding one here and
one row there is all a new metric needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NewType

from gpuscope.readings.absent import ABSENT, Maybe

Uuid = NewType("Uuid", str)
"""`GPU-…` of a whole GPU or `MIG-…` of an instance, as the driver spells it."""

ByLabel = Mapping[str, float]
ByLabels = Mapping[tuple[str, ...], float]


class _Nothing(dict[Any, Any]):
    """An empty mapping that stays empty; hashable, so that a frozen dataclass takes it as a default."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("NOTHING stays empty")


NOTHING: Mapping[Any, Any] = _Nothing()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOrInstance:
    """What a whole GPU and a MIG instance both have: memory, and what the profiling units count."""

    memory_total_bytes: Maybe[float] = ABSENT
    memory_used_bytes: Maybe[float] = ABSENT
    memory_free_bytes: Maybe[float] = ABSENT
    memory_reserved_bytes: Maybe[float] = ABSENT
    bar1_total_bytes: Maybe[float] = ABSENT
    bar1_used_bytes: Maybe[float] = ABSENT

    ecc_errors: ByLabels = NOTHING  # by (error, lifetime): (corrected | uncorrected, volatile | aggregate)

    graphics_engine_active_ratio: Maybe[float] = ABSENT
    sm_active_ratio: Maybe[float] = ABSENT
    sm_occupancy_ratio: Maybe[float] = ABSENT
    tensor_active_ratio: Maybe[float] = ABSENT
    tensor_pipe_active_ratio: ByLabel = NOTHING  # by pipe: imma, hmma, dfma
    dram_active_ratio: Maybe[float] = ABSENT
    fp64_active_ratio: Maybe[float] = ABSENT
    fp32_active_ratio: Maybe[float] = ABSENT
    fp16_active_ratio: Maybe[float] = ABSENT
    integer_active_ratio: Maybe[float] = ABSENT
    profiled_pcie_bytes_per_second: ByLabel = NOTHING  # by direction: tx, rx
    profiled_nvlink_bytes_per_second: ByLabel = NOTHING  # by direction: tx, rx

    processes_known: bool = True  # False: who runs here cannot be told, while other GPUs tell

    # What DCGM said word for word, by field id, for the families that repeat it byte for byte.
    dcgm_fields: Mapping[int, int | float | str] = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance(GpuOrInstance):
    """A slice of a GPU. `gpu_instance` and `compute_instance` are the driver's own, sparse ids."""

    uuid: Uuid
    gpu_instance: int
    compute_instance: int
    profile: Maybe[str] = ABSENT  # "1g.10gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(GpuOrInstance):
    """A whole GPU. Only `uuid` and `index` are certain; a lost GPU, which does not answer any more, keeps its
    identity and loses the rest."""

    uuid: Uuid
    index: int
    lost: bool = False

    model: Maybe[str] = ABSENT
    brand: Maybe[str] = ABSENT
    serial: Maybe[str] = ABSENT
    architecture: Maybe[str] = ABSENT
    compute_capability: Maybe[str] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT  # "00000000:8D:00.0"
    pci_ids: ByLabel = NOTHING  # device and sub_device, each with its vendor; base_class, sub_class
    minor_number: Maybe[int] = ABSENT
    cpu_affinity: Mapping[str, int] = NOTHING  # 64 CPUs a word, by the word's number: "0" has CPUs 0 to 63
    memory_affinity: Mapping[str, int] = NOTHING  # NUMA nodes, likewise
    vbios_version: Maybe[str] = ABSENT
    inforom_versions: Mapping[str, str] = NOTHING
    board_part_number: Maybe[str] = ABSENT
    platform: Mapping[str, str] = NOTHING  # where in a rack: chassis, slot, tray, host, module

    utilization_ratio: Maybe[float] = ABSENT
    utilization_mean_ratio: Maybe[float] = ABSENT  # the driver's samples since the last reading, averaged
    busy_seconds: Maybe[float] = ABSENT  # those samples added up since the source was opened; starts over at 0
    memory_utilization_ratio: Maybe[float] = ABSENT
    encoder_utilization_ratio: Maybe[float] = ABSENT
    decoder_utilization_ratio: Maybe[float] = ABSENT
    jpeg_utilization_ratio: Maybe[float] = ABSENT
    ofa_utilization_ratio: Maybe[float] = ABSENT
    encoder_sessions: Maybe[float] = ABSENT
    encoder_frames_per_second: Maybe[float] = ABSENT  # the mean over all sessions; so is the latency
    encoder_latency_seconds: Maybe[float] = ABSENT

    temperature_celsius: ByLabel = NOTHING  # by sensor: gpu, memory
    temperature_threshold_celsius: ByLabel = NOTHING  # by threshold: shutdown, slowdown, memory_max, gpu_max
    temperature_margin_celsius: Maybe[float] = ABSENT  # degrees left; newer cards have no thresholds but this
    temperature_margin_threshold_celsius: ByLabel = NOTHING  # margins at which the card acts, by threshold

    power_watts: Maybe[float] = ABSENT
    power_instant_watts: Maybe[float] = ABSENT
    power_average_watts: Maybe[float] = ABSENT
    power_limit_watts: ByLabel = NOTHING  # by limit: current, enforced, default, min, max
    energy_joules: Maybe[float] = ABSENT  # since the driver was loaded

    clock_hertz: ByLabel = NOTHING  # by clock: graphics, sm, memory, video
    clock_max_hertz: ByLabel = NOTHING
    clock_application_hertz: ByLabel = NOTHING
    performance_state: Maybe[float] = ABSENT
    throttle_reasons: Maybe[int] = ABSENT  # the driver's bit mask; names in metrics/throttle.py
    throttle_reasons_supported: Maybe[int] = ABSENT  # of that mask, the bits this card can set
    throttled_seconds: ByLabel = NOTHING  # the driver's own counters, by reason
    violation_seconds: ByLabel = NOTHING  # the driver's own counters, by policy

    fan_speed_ratio: ByLabel = NOTHING  # by fan: "0", "1"
    fan_rpm: ByLabel = NOTHING

    pcie_link_generation: Maybe[float] = ABSENT
    pcie_link_generation_max: Maybe[float] = ABSENT
    pcie_link_generation_gpu_max: Maybe[float] = ABSENT  # of the card alone, whatever it is plugged into
    pcie_link_width: Maybe[float] = ABSENT
    pcie_link_width_max: Maybe[float] = ABSENT
    pcie_bytes_per_second: ByLabel = NOTHING  # by direction: tx, rx
    pcie_replays: Maybe[float] = ABSENT

    nvlink_up: ByLabel = NOTHING  # by link: "0" … "17"
    nvlink_bytes: ByLabel = NOTHING  # by direction: the sum over all links
    nvlink_aggregate_bytes: ByLabel = NOTHING  # by direction: the driver's own counter for all links
    nvlink_link_bytes: ByLabels = NOTHING  # by (link, direction)
    profiled_nvlink_link_bytes_per_second: ByLabels = NOTHING  # by (link, direction); only on request
    nvlink_errors: ByLabels = NOTHING  # by (link, error): crc_flit, crc_data, replay, recovery
    # By the other GPU's index: 0 reachable over NVLink, else why not: 1 chipset, 2 GPU, 3 topology, 4 switched
    # off by a registry key, 5 not supported, 6 unknown.
    p2p_nvlink_status: ByLabel = NOTHING
    fabric_state: Maybe[float] = ABSENT  # 0 not supported, 1 not started, 2 in progress, 3 completed
    fabric_status: Maybe[float] = ABSENT  # NVML's return code of the registration, 0 is success; once completed
    fabric_clique: Maybe[float] = ABSENT
    fabric_cluster: Maybe[str] = ABSENT

    ecc_enabled: Maybe[float] = ABSENT
    ecc_pending: Maybe[float] = ABSENT
    ecc_location_errors: ByLabels = NOTHING  # by (error, lifetime, location)
    ecc_sram_errors: ByLabels = NOTHING  # uncorrected, by (check, lifetime): parity | sec_ded
    ecc_sram_sources: ByLabel = NOTHING  # uncorrected, aggregate, by unit: l2, sm, microcontroller, pcie, other
    ecc_sram_threshold_exceeded: Maybe[float] = ABSENT  # 1: NVIDIA takes such a card back
    retired_pages: ByLabel = NOTHING  # by cause: single_bit, double_bit
    retired_pages_pending: Maybe[float] = ABSENT
    remapped_rows: ByLabel = NOTHING  # by cause: correctable, uncorrectable
    remapped_rows_inactive: ByLabel = NOTHING  # by cause; remapped, but not in use before a reset
    row_remap_pending: Maybe[float] = ABSENT
    row_remap_failed: Maybe[float] = ABSENT
    row_remap_banks: ByLabel = NOTHING  # by availability: max, high, partial, low, none

    # What the driver asks for: 0 nothing, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover
    # the IMEX domain, 6 bus reset, 7 system reboot.
    recovery_action: Maybe[float] = ABSENT

    compute_mode: Maybe[float] = ABSENT  # 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process
    persistence_mode: Maybe[float] = ABSENT
    mig_enabled: Maybe[float] = ABSENT
    mig_pending: Maybe[float] = ABSENT
    display_active: Maybe[float] = ABSENT
    display_attached: Maybe[float] = ABSENT
    accounting_enabled: Maybe[float] = ABSENT
    accounting_buffer_size: Maybe[float] = ABSENT  # processes it remembers
    c2c_enabled: Maybe[float] = ABSENT  # 1 if the chip-to-chip link to the CPU is on
    gsp_firmware: ByLabel = NOTHING  # 1 if the driver runs on the card's own processor: current, default
    protected_memory_bytes: ByLabel = NOTHING  # of confidential computing: total, used, free

    instances: tuple[MigInstance, ...] = ()

    # What nvidia-smi printed word for word.
    smi_cells: Mapping[str, str] = NOTHING  # CSV header -> cell

"""A GPU and the instances that it is split into, as one source read them at one time.

Every number is ABSENT unless the source read it. Units are Prometheus' base units (bytes, seconds, hertz,
ratios from 0 to 1). A mapping has one number per label value: `clock_hertz` by clock, `ecc_errors` by (error,
lifetime). What only one vendor's GPUs have is in `vendor_values`, a record of that vendor's folder. A new
metric needs an attribute here, and a row in `agent/families/native/table.py` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NewType, Protocol, TypeVar

from gpuscope.model.readings.absent import ABSENT, Maybe

Uuid = NewType("Uuid", str)
"""The driver's id of a whole GPU or of an instance: NVIDIA's `GPU-…` and `MIG-…`."""

GpuUuid = TypeVar("GpuUuid", bound=Maybe[Uuid], covariant=True)

ByLabel = Mapping[str, float]
ByLabels = Mapping[tuple[str, ...], float]


class _NoValues(dict[Any, Any]):
    """An immutable empty mapping; hashable, so that a frozen dataclass accepts it as a default."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("NO_VALUES is immutable")


NO_VALUES: Mapping[Any, Any] = _NoValues()

IDENTITY: Final = {"identity": True}
"""Metadata of a field that stays known when the GPU is lost: it is filled in from when the GPU answered."""


def identity_names(record: type[GpuOrInstance | VendorValues]) -> tuple[str, ...]:
    return tuple(name for name, row in record.__dataclass_fields__.items() if row.metadata == IDENTITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorValues:
    """What only one vendor's GPUs or instances have: each vendor's folder has a record of its own, made of this
    one, and only that folder reads it. Every field has a default, ABSENT or an empty mapping."""


NO_VENDOR_VALUES: Final = VendorValues()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOrInstance:
    """The readings that GPUs and their instances have: memory and the activity of engines."""

    memory_total_bytes: Maybe[float] = ABSENT
    memory_used_bytes: Maybe[float] = ABSENT
    memory_free_bytes: Maybe[float] = ABSENT
    memory_reserved_bytes: Maybe[float] = ABSENT
    bar1_total_bytes: Maybe[float] = ABSENT
    bar1_used_bytes: Maybe[float] = ABSENT

    ecc_errors: ByLabels = NO_VALUES  # by (error, lifetime): (corrected | uncorrected, volatile | aggregate)

    # Share of cycles, by engine: graphics (with compute), dram, and the vendor's names of other parts.
    engine_active_ratio: ByLabel = NO_VALUES

    processes_known: bool = True  # False: the processes here are unknown, those of other GPUs are known

    vendor_values: VendorValues = NO_VENDOR_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance(GpuOrInstance):
    """A part of a split GPU that is held by itself: NVIDIA's MIG instance, AMD's partition. `ids` are the
    driver's, which may have gaps."""

    uuid: Uuid
    ids: tuple[int, ...]
    # Instances of one GPU with the same number share one memory, and each reports all of it.
    memory_group: int = 0
    profile: Maybe[str] = ABSENT  # "1g.10gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(GpuOrInstance):
    """A whole GPU. Only `uuid` and `index` are always known. A lost GPU does not answer any more and keeps only
    its identity."""

    uuid: Uuid
    index: int
    vendor: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)  # the name of its folder
    lost: bool = False

    model: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)
    brand: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)
    serial: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)
    architecture: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)
    compute_capability: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)  # of its instructions: "9.0"
    pci_bus_id: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)  # "00000000:8D:00.0"
    # device, sub_device (both include the vendor), base_class, sub_class
    pci_ids: ByLabel = field(default=NO_VALUES, metadata=IDENTITY)
    minor_number: Maybe[int] = field(default=ABSENT, metadata=IDENTITY)
    cpu_affinity: Mapping[str, int] = NO_VALUES  # by 64-bit word: "0" has CPUs 0 to 63
    memory_affinity: Mapping[str, int] = NO_VALUES  # NUMA nodes, by 64-bit word
    vbios_version: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)
    board_part_number: Maybe[str] = field(default=ABSENT, metadata=IDENTITY)
    # Position in the rack: chassis, slot, tray, host, module.
    platform: Mapping[str, str] = field(default=NO_VALUES, metadata=IDENTITY)

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
    throttle_reasons: ByLabel = NO_VALUES  # by reason: 1 while it reduces the clocks, else 0
    throttled_seconds: ByLabel = NO_VALUES  # the driver's counters, by reason

    fan_speed_ratio: ByLabel = NO_VALUES  # by fan: "0", "1"
    fan_rpm: ByLabel = NO_VALUES

    pcie_link_generation: Maybe[float] = ABSENT
    pcie_link_generation_max: Maybe[float] = ABSENT
    pcie_link_generation_gpu_max: Maybe[float] = ABSENT  # of the GPU, independent of its slot
    pcie_link_width: Maybe[float] = ABSENT
    pcie_link_width_max: Maybe[float] = ABSENT
    pcie_bytes_per_second: ByLabel = NO_VALUES  # by direction: tx, rx
    pcie_replays: Maybe[float] = ABSENT

    # Links to other GPUs: NVIDIA's NVLink, AMD's XGMI.
    link_up: ByLabel = NO_VALUES  # by link: "0" … "17"
    link_bytes: ByLabel = NO_VALUES  # by direction: the sum over all links
    link_bytes_each: ByLabels = NO_VALUES  # by (link, direction)
    link_errors: ByLabels = NO_VALUES  # by (link, error)

    ecc_enabled: Maybe[float] = ABSENT
    ecc_pending: Maybe[float] = ABSENT
    ecc_location_errors: ByLabels = NO_VALUES  # by (error, lifetime, location)

    is_split: bool = False  # into instances, also while it has none or none can be seen
    instances: tuple[Instance, ...] = ()


class _OnUnit(Protocol[GpuUuid]):
    @property
    def gpu_uuid(self) -> GpuUuid: ...
    @property
    def instance_uuid(self) -> Maybe[Uuid]: ...


def unit_uuid(reading: _OnUnit[GpuUuid]) -> Uuid | GpuUuid:
    """The UUID of the unit that a process or an allocation is on: the instance, or else the whole GPU."""
    return reading.gpu_uuid if reading.instance_uuid is ABSENT else reading.instance_uuid


def instance_name(device: Device, instance: Instance) -> str:
    """`0_7_0`: the index of the GPU and the ids of the instance; the label `gpu` of its series."""
    return "_".join(map(str, (device.index, *instance.ids)))


def compute_activity(instance: GpuOrInstance) -> Maybe[float]:
    """How much of the time its graphics and compute engine, or else its compute units, worked."""
    active = instance.engine_active_ratio
    return active.get("graphics", active.get("sm", ABSENT))

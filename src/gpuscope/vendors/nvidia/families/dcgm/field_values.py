"""The value of a DCGM field for a GPU or a MIG instance: from DCGM if it is the source, else computed from
readings.

Integers are int, doubles float, texts str. For a MIG instance a field that DCGM has per instance never falls
back to the GPU's value; other fields (temperature, power) have the GPU's value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from gpuscope.model.readings import ABSENT, Device, Driver, Instance, Maybe, Snapshot
from gpuscope.model.readings.device import GpuOrInstance
from gpuscope.vendors.nvidia.dcgm_fields import (
    DRIVER_READINGS,
    FIELD_READINGS,
    MIB,
    NVLINK_RATE_IDS,
    P2P_BITMAP_ID,
    REQUESTED_DRIVER_READINGS,
    REQUESTED_FIELD_READINGS,
    TEXT_READINGS,
    dcgm_fields,
    is_blank,
    kind_of,
)
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmEntity
from gpuscope.vendors.nvidia.families.dcgm.table import XID_ID
from gpuscope.vendors.nvidia.nvidia_values import nvidia_driver, own, reader

# NVLink throughput as DCGM computes it: the increase of the driver's byte counters between two readings.
#
# Input: snapshots; output: rates by (UUID, link, direction); an empty link or direction means all. The unit
# is DCGM's, which divides KiB by 1000 and calls the result MB/s. Until a counter was read twice, its rate is
# absent or that of the profiling units, except that a counter of 0 has the rate 0.

RateKey = tuple[str, str, str]
Rates = Mapping[RateKey, float]

DCGM_UNIT_BYTES = 1024 * 1000.0
IDLE_SECONDS = 30.0  # three times the medium tier: a counter that is unchanged for so long means no traffic


def wants_links(field_ids: Iterable[int]) -> bool:
    """Whether one of these fields is the throughput of a single link."""
    return any(NVLINK_RATE_IDS[field_id][0] for field_id in field_ids if field_id in NVLINK_RATE_IDS)


class NvlinkRates:
    def __init__(self) -> None:
        self._last: dict[RateKey, tuple[float, float, float]] = {}  # bytes, at, rate

    def advance(self, snapshot: Snapshot, *, links: bool = False) -> dict[RateKey, float]:
        """`links`: also compute the rates of single links."""
        rates: dict[RateKey, float] = {}
        for device in snapshot.devices:
            rates |= _profiled(device)
            for (link, direction), count in _counts(device, links):
                key = (str(device.uuid), link, direction)
                rate = self._growth(key, count, snapshot.taken_at)
                if rate is not None:
                    rates[key] = rate / DCGM_UNIT_BYTES
        return rates

    def _growth(self, key: RateKey, now: float, at: float) -> float | None:
        """Keeps the last rate while the counter is unchanged: counters are read less often than snapshots."""
        before = self._last.get(key)
        if before is None or at < before[1] or now < before[0]:
            rate = math.nan if now else 0.0
            self._last[key] = (now, at, rate)
            return None if math.isnan(rate) else rate
        count, since, rate = before
        if now > count:
            rate = (now - count) / (at - since) if at > since else rate
            self._last[key] = (now, at, rate)
        elif at - since > IDLE_SECONDS:
            rate = 0.0
        return None if math.isnan(rate) else rate


def _counts(device: Device, links: bool) -> Iterator[tuple[tuple[str, str], float]]:
    # DCGM uses the driver's total, which may differ from the sum over the links.
    total = own(device).nvlink_aggregate_bytes or device.link_bytes
    for direction, count in total.items():
        yield ("", direction), count
    if total:
        yield ("", ""), sum(total.values())
    if links:
        of_link: dict[str, float] = {}
        for (link, direction), count in device.link_bytes_each.items():
            yield (link, direction), count
            of_link[link] = of_link.get(link, 0.0) + count
        yield from (((link, ""), count) for link, count in of_link.items())


def _profiled(device: Device) -> dict[RateKey, float]:
    """The rates of the profiling units in MB/s: without counters, or until they were read twice."""
    profiled = own(device).profiled_nvlink_bytes_per_second
    rates = {(str(device.uuid), "", direction): rate / 1e6 for direction, rate in profiled.items()}
    return {**rates, (str(device.uuid), "", ""): sum(rates.values())} if rates else {}


Value = int | float | str
_PER_INSTANCE = frozenset({4, 5})
_XID_SOURCES = frozenset({"nvml", "kernel-log", "demo"})


class FieldValues:
    """The field values of one snapshot. `nvlink_rates` come from `NvlinkRates`: the driver has only counters.

    `no_xid` is the XID of a GPU without XIDs: DCGM 4 has no value, DCGM 1 to 3 have 0.
    """

    def __init__(self, snapshot: Snapshot, nvlink_rates: Rates, no_xid: Maybe[int] = ABSENT) -> None:
        self._snapshot = snapshot
        self._nvlink_rates = nvlink_rates
        self._last_xid: dict[str, int] = {}
        for total in sorted(snapshot.errors, key=lambda total: total.last_at):
            self._last_xid[total.gpu_uuid] = int(total.code)
        self._no_xid = no_xid if receives_xids(snapshot) else ABSENT

    def of(self, field_id: int, entity: DcgmEntity) -> Maybe[Value]:
        device, instance = entity.device, entity.instance
        if instance is not None:
            if own(instance).dcgm_fields:
                return _reported(instance, field_id)
            if is_per_instance(field_id):
                return _converted(field_id, instance)
        value = _reported(device, field_id)
        return self._computed(field_id, device) if value is ABSENT else value

    def _computed(self, field_id: int, device: Device) -> Maybe[Value]:
        if device.lost:
            return ABSENT
        if field_id == XID_ID:
            return self._last_xid.get(device.uuid, self._no_xid)
        if field_id in DRIVER_READINGS:
            return reader(DRIVER_READINGS[field_id])(nvidia_driver(self._snapshot))
        if field_id in REQUESTED_DRIVER_READINGS:
            return _of_driver(field_id, nvidia_driver(self._snapshot))
        if field_id in NVLINK_RATE_IDS:
            rate = self._nvlink_rates.get((str(device.uuid), *NVLINK_RATE_IDS[field_id]))
            return ABSENT if rate is None else int(rate)
        return _converted(field_id, device)


def receives_xids(snapshot: Snapshot) -> bool:
    """Whether a source reports XIDs: only then "no XID seen" means "no XID occurred"."""
    return any(source.up and source.name in _XID_SOURCES for source in snapshot.sources)


def is_computed(field_id: int) -> bool:
    """Whether this field can be computed from readings, without DCGM."""
    elsewhere = field_id == XID_ID or field_id in NVLINK_RATE_IDS
    of_driver = field_id in DRIVER_READINGS or field_id in REQUESTED_DRIVER_READINGS
    return elsewhere or of_driver or field_id in _converters()


def is_per_instance(field_id: int) -> bool:
    field = dcgm_fields().get(field_id)
    return field is not None and field.level in _PER_INSTANCE and field_id != XID_ID


def _reported(part: GpuOrInstance, field_id: int) -> Maybe[Value]:
    value = own(part).dcgm_fields.get(field_id, ABSENT)
    return ABSENT if value is ABSENT or is_blank(value) else value


def _converted(field_id: int, part: GpuOrInstance) -> Maybe[Value]:
    convert = _converters().get(field_id)
    return ABSENT if convert is None else convert(part)


Convert = Callable[[GpuOrInstance], Maybe[Value]]


@cache
def _converters() -> dict[int, Convert]:
    converters: dict[int, Convert] = {
        row.id: _number(reader(row.reading), row.unit, kind_of(row.id))
        for row in (*FIELD_READINGS, *REQUESTED_FIELD_READINGS)
    }
    converters |= {field_id: reader(path) for field_id, path in TEXT_READINGS.items()}
    converters |= {field_id: _nvlink_errors(error) for field_id, error in _NVLINK_ERROR_IDS.items()}
    converters[50] = _name
    converters[52] = lambda part: getattr(part, "index", ABSENT)
    converters[54] = lambda part: getattr(part, "uuid", ABSENT)
    converters[63] = _compute_capability
    converters[P2P_BITMAP_ID] = _p2p_bitmap
    converters[93] = _bar1_free
    converters[254] = _memory_used_share
    return converters


def _name(part: GpuOrInstance) -> Maybe[Value]:
    """DCGM's name of a MIG instance is its profile."""
    name: Maybe[str] = getattr(part, "profile" if isinstance(part, Instance) else "model", ABSENT)
    return name


def _number(read: Callable[[object], Maybe[float]], unit: float, kind: str) -> Convert:
    def convert(part: GpuOrInstance) -> Maybe[Value]:
        value = read(part)
        if value is ABSENT:
            return ABSENT
        if kind == "d":
            return float(value / unit)
        if isinstance(value, int) and unit == 1.0:
            return _signed(value)
        # DCGM truncates MiB and profiled bytes. All other values were integers before they were multiplied.
        return math.floor(value / unit) if unit in (MIB, 1.0) else round(value / unit)

    return convert


def _signed(value: int) -> int:
    """DCGM stores 64 bits as a signed integer; only affinity masks are that large."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _of_driver(field_id: int, driver: Driver) -> Maybe[Value]:
    value: Maybe[Value] = reader(REQUESTED_DRIVER_READINGS[field_id])(driver)
    if not isinstance(value, str):
        return value
    major, minor = _version(value)  # "12.4" is 12040
    return 1000 * major + 10 * minor


def _p2p_bitmap(part: GpuOrInstance) -> Maybe[Value]:
    """One bit per GPU that is reachable over NVLink."""
    statuses = own(part).p2p_nvlink_status
    return sum(1 << int(peer) for peer, status in statuses.items() if status == 0) if statuses else ABSENT


def _compute_capability(part: GpuOrInstance) -> Maybe[Value]:
    capability: Maybe[str] = getattr(part, "compute_capability", ABSENT)
    if capability is ABSENT:
        return ABSENT
    major, minor = _version(capability)
    return major << 16 | minor


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return (int(major) if major.isdecimal() else 0), (int(minor) if minor.isdecimal() else 0)


_NVLINK_ERROR_IDS = {409: "crc_flit", 419: "crc_data", 429: "replay", 439: "recovery"}


def _nvlink_errors(error: str) -> Convert:
    def convert(part: GpuOrInstance) -> Maybe[Value]:
        counts = [count for labels, count in getattr(part, "link_errors", {}).items() if labels[1] == error]
        return round(sum(counts)) if counts else ABSENT

    return convert


def _bar1_free(part: GpuOrInstance) -> Maybe[Value]:
    if part.bar1_total_bytes is ABSENT or part.bar1_used_bytes is ABSENT:
        return ABSENT
    return math.floor((part.bar1_total_bytes - part.bar1_used_bytes) / MIB)


def _memory_used_share(part: GpuOrInstance) -> Maybe[Value]:
    """Used memory as a share of the memory that is not reserved."""
    used, total, reserved = part.memory_used_bytes, part.memory_total_bytes, part.memory_reserved_bytes
    if used is ABSENT or total is ABSENT:
        return ABSENT
    usable = total - (0.0 if reserved is ABSENT else reserved)
    return used / usable if usable > 0 else ABSENT

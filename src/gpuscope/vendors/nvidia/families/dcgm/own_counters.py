"""`DCGM_EXP_*`: dcgm-exporter's own counters, which are counts over a window, health and P2P status.

Windows count whole GPUs, also for MIG instances. Health and P2P status are those of whole GPUs, because DCGM's
health watches have no instances. DCGM reports that two GPUs cannot reach each other, but not why: the status is
then "unknown".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpuscope.model.exposition.sample import Sample
from gpuscope.model.readings import ABSENT, Device, ErrorTotal, Snapshot
from gpuscope.vendors.nvidia.dcgm_fields import P2P_BITMAP_ID, is_blank
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmEntity, DcgmOptions, number_of
from gpuscope.vendors.nvidia.families.dcgm.field_values import receives_xids
from gpuscope.vendors.nvidia.families.dcgm.labelled_entities import ExportedSnapshot, LabelledEntity
from gpuscope.vendors.nvidia.families.dcgm.table import CLOCK_EVENTS_ID, XID_ID
from gpuscope.vendors.nvidia.nvidia_values import own

# DCGM_EXP_GPU_HEALTH_STATUS computed from readings: 0 pass, 10 warning, 20 failure.
#
# Uses DCGM's rules, over the last minute where DCGM does: PCIE by replays, MEM by uncorrected ECC errors,
# pages and rows, NVLINK by links down and errors, THERMAL and POWER by violation times, ALL by XIDs of the
# last five minutes and lost GPUs. PMU, MCU, SM, INFOROM and DRIVER need DCGM itself and have no sample here;
# neither has a watch whose readings are absent.

PASS, WARN, FAIL = 0, 10, 20
MAX_RETIRED_PAGES = 63
MAX_REMAPPED_ROWS = 512
MAX_REPLAYS_A_MINUTE = 8
XID_SECONDS = 300.0
MINUTE = 60.0

# XIDs that DCGM reports as a failure of the whole GPU.
FATAL_XIDS = {
    48: "DCGM_FR_XID_ERROR",
    74: "DCGM_FR_XID_ERROR",
    79: "DCGM_FR_FALLEN_OFF_BUS",
    95: "DCGM_FR_UNCONTAINED_ERROR",
    119: "DCGM_FR_XID_ERROR",
    120: "DCGM_FR_XID_ERROR",
    140: "DCGM_FR_XID_ERROR",
}


class HealthIncident(NamedTuple):
    watch: str
    result: int
    code: str


def _passed(watch: str) -> HealthIncident:
    return HealthIncident(watch, PASS, "DCGM_FR_OK")


class HealthWatch:
    """Keeps the last minute of every counter whose increase is checked."""

    def __init__(self) -> None:
        self._history: dict[tuple[str, str], deque[tuple[float, float]]] = {}

    def incidents(self, device: Device, snapshot: Snapshot) -> Iterator[HealthIncident]:
        yield from self._of_pcie(device, snapshot.taken_at)
        yield from self._of_nvlink(device, snapshot.taken_at)
        yield from _of_memory(device)
        violations = own(device).violation_seconds
        for watch, policy, code in (
            ("THERMAL", "thermal", "DCGM_FR_CLOCK_THROTTLE_THERMAL"),
            ("POWER", "power", "DCGM_FR_CLOCK_THROTTLE_POWER"),
        ):
            if policy in violations:
                grew = self._growth(device, watch, violations[policy], snapshot.taken_at) > 0
                yield HealthIncident(watch, WARN, code) if grew else _passed(watch)
        yield from _of_xids(device, snapshot)

    def _growth(self, device: Device, what: str, value: float, at: float) -> float:
        history = self._history.setdefault((device.uuid, what), deque())
        while history and (history[-1][0] > at or history[-1][1] > value):
            history.pop()  # the clock was set back, or the driver was reloaded
        history.append((at, value))
        while history[0][0] < at - MINUTE:
            history.popleft()
        return value - history[0][1]

    def _of_pcie(self, device: Device, at: float) -> Iterator[HealthIncident]:
        if device.pcie_replays is not ABSENT:
            replays = self._growth(device, "PCIE", device.pcie_replays, at)
            too_many = replays > MAX_REPLAYS_A_MINUTE
            yield HealthIncident("PCIE", WARN, "DCGM_FR_PCI_REPLAY_RATE") if too_many else _passed("PCIE")

    def _of_nvlink(self, device: Device, at: float) -> Iterator[HealthIncident]:
        if not device.link_up and not device.link_errors:
            return
        grown = {
            error: self._growth(device, "NVLINK " + error, count, at)
            for error, count in _errors_by_kind(device.link_errors).items()
        }
        if any(up == 0 for up in device.link_up.values()):
            yield HealthIncident("NVLINK", FAIL, "DCGM_FR_NVLINK_DOWN")
        elif grown.get("replay", 0) > 0 or grown.get("recovery", 0) > 0:
            yield HealthIncident("NVLINK", FAIL, "DCGM_FR_NVLINK_ERROR_CRITICAL")
        elif any(count > 0 for count in grown.values()):
            yield HealthIncident("NVLINK", WARN, "DCGM_FR_NVLINK_ERROR_THRESHOLD")
        else:
            yield _passed("NVLINK")


def _errors_by_kind(errors: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for (_, error), count in errors.items():
        totals[error] = totals.get(error, 0.0) + count
    return totals


def _of_memory(device: Device) -> Iterator[HealthIncident]:
    uncorrected = device.ecc_errors.get(("uncorrected", "volatile"), ABSENT)
    mine = own(device)
    pages, rows = mine.retired_pages, mine.remapped_rows
    if uncorrected is ABSENT and not pages and not rows:
        return
    if uncorrected is not ABSENT and uncorrected > 0:
        yield HealthIncident("MEM", FAIL, "DCGM_FR_VOLATILE_DBE_DETECTED")
    elif mine.row_remap_failed is not ABSENT and mine.row_remap_failed:
        yield HealthIncident("MEM", FAIL, "DCGM_FR_ROW_REMAP_FAILURE")
    elif sum(pages.values()) >= MAX_RETIRED_PAGES:
        yield HealthIncident("MEM", FAIL, "DCGM_FR_RETIRED_PAGES_LIMIT")
    elif rows.get("uncorrectable", 0) >= MAX_REMAPPED_ROWS:
        yield HealthIncident("MEM", WARN, "DCGM_FR_UNCORRECTABLE_ROW_REMAP_LIMIT")
    elif mine.retired_pages_pending is not ABSENT and mine.retired_pages_pending:
        yield HealthIncident("MEM", WARN, "DCGM_FR_PENDING_PAGE_RETIREMENTS")
    else:
        yield _passed("MEM")


def _of_xids(device: Device, snapshot: Snapshot) -> Iterator[HealthIncident]:
    fatal = [total for total in snapshot.errors if _is_fatal(total, device, snapshot.taken_at)]
    if device.lost:
        yield HealthIncident("ALL", FAIL, "DCGM_FR_FALLEN_OFF_BUS")
    elif fatal:
        yield HealthIncident("ALL", FAIL, FATAL_XIDS[int(max(fatal, key=lambda total: total.last_at).code)])
    elif receives_xids(snapshot):
        yield _passed("ALL")


def _is_fatal(total: ErrorTotal, device: Device, now: float) -> bool:
    recent = now - total.last_at <= XID_SECONDS
    return recent and total.gpu_uuid == device.uuid and int(total.code) in FATAL_XIDS


# Counts over a time window, as dcgm-exporter computes them: of samples, or of events.
#
# Clock events: the number of DCGM's samples in the window that had the event, one sample per collect
# interval. The agent reads more often, so one reading per interval is used. XIDs: the number of events,
# because DCGM has one sample per XID.

SECONDS_TO_READ_OLD_LOGS = 10.0
MAX_EVENTS_PER_GPU = 10_000  # XID storms must not fill the memory; the oldest events are dropped


class SampleWindow:
    def __init__(self, window_ms: int, interval_ms: int) -> None:
        self._window = max(1, window_ms) / 1000
        self._interval = max(1, interval_ms) / 1000
        self._samples: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def record(self, uuid: str, at: float, values: Iterable[int]) -> None:
        samples = self._samples.setdefault(uuid, deque())
        while samples and samples[-1][0] > at:  # the clock was set back
            samples.pop()
        if not samples or at - samples[-1][0] >= self._interval * 0.99:
            samples.append((at, tuple(values)))

    def counts(self, uuid: str, at: float) -> Counter[int] | None:
        """The number of samples with each value; None without samples."""
        samples = self._samples.get(uuid)
        while samples and samples[0][0] < at - self._window:
            samples.popleft()
        if not samples:
            self._samples.pop(uuid, None)
            return None
        return Counter(value for _, values in samples for value in values)


class XidWindow:
    """XID events in the window, from totals that never decrease.

    XIDs from before the start arrive from the kernel log in the first seconds as totals. Only the last event of
    each has a known time, so only that one is counted.
    """

    def __init__(self, window_ms: int) -> None:
        self._window = max(1, window_ms) / 1000
        self._totals: dict[tuple[str, int], int] = {}
        self._events: dict[str, deque[tuple[float, int]]] = {}  # by UUID: when, XID
        self._reported: dict[str, int] = {}
        self._first_at: float | None = None

    def advance(self, totals: Sequence[ErrorTotal], at: float) -> None:
        if self._first_at is None:
            self._first_at = at
        starting = at - self._first_at < SECONDS_TO_READ_OLD_LOGS
        for total in totals:
            key = (str(total.gpu_uuid), int(total.code))
            before = self._totals.get(key, total.count - 1 if starting else 0)
            self._totals[key] = total.count
            self._record(key[0], total.last_at, key[1], total.count - before)

    def record_last(self, uuid: str, xid: int, at: float) -> None:
        """Records DCGM's last XID as an event if its code has changed. A repeated code cannot be detected."""
        if self._reported.get(uuid) != xid:
            self._reported[uuid] = xid
            self._record(uuid, at, xid, 1)

    def _record(self, uuid: str, at: float, xid: int, count: int) -> None:
        if count > 0:
            events = self._events.setdefault(uuid, deque(maxlen=MAX_EVENTS_PER_GPU))
            events.extend([(at, xid)] * min(count, MAX_EVENTS_PER_GPU))

    def counts(self, uuid: str, at: float) -> Counter[int] | None:
        """The number of events of each XID; None without events."""
        counts = Counter(xid for when, xid in self._events.get(uuid, ()) if when >= at - self._window)
        if not counts:
            self._events.pop(uuid, None)
        return counts or None


CLOCK_EVENTS = {
    0x001: "gpu_idle",
    0x002: "clocks_setting",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
}

_LINK_STATUSES = (
    *("OK", "ChipsetNotSupported", "GPUNotSupported", "TopologyNotSupported"),
    *("DisabledByRegKey", "NotSupported", "Unknown"),
)
_UNKNOWN_STATUS = 6


class OwnCounters:
    """Keeps the windows between snapshots."""

    def __init__(self, options: DcgmOptions) -> None:
        self._options = options
        self._health = HealthWatch()
        self._xids = XidWindow(options.xid_count_window_size)
        self._clock_events = SampleWindow(options.clock_events_count_window_size, options.collect_interval)

    def samples(self, name: str, exported: ExportedSnapshot) -> Iterator[Sample]:
        if name == "DCGM_EXP_XID_ERRORS_COUNT":
            self._xids.advance(exported.snapshot.errors, exported.snapshot.taken_at)
            for labelled in exported.selected:
                yield from self._xid_counts(labelled, exported)
        elif name == "DCGM_EXP_CLOCK_EVENTS_COUNT":
            for labelled in exported.selected:
                yield from self._clock_event_counts(labelled, exported)
        elif name == "DCGM_EXP_GPU_HEALTH_STATUS":
            yield from self._health_results(exported)
        elif name == "DCGM_EXP_P2P_STATUS":
            yield from _peer_statuses(exported)

    def _xid_counts(self, labelled: LabelledEntity, exported: ExportedSnapshot) -> Iterator[Sample]:
        device, at = labelled.entity.device, exported.snapshot.taken_at
        xid = own(device).dcgm_fields.get(XID_ID)
        if isinstance(xid, int) and xid and not receives_xids(exported.snapshot):
            self._xids.record_last(str(device.uuid), xid, at)
        counts = self._xids.counts(device.uuid, at)
        yield from _counted(labelled, counts, self._options.xid_count_window_size, "xid", str)

    def _clock_event_counts(self, labelled: LabelledEntity, exported: ExportedSnapshot) -> Iterator[Sample]:
        device, at = labelled.entity.device, exported.snapshot.taken_at
        reasons = exported.values.of(CLOCK_EVENTS_ID, DcgmEntity(device))
        if isinstance(reasons, int):
            self._clock_events.record(device.uuid, at, (bit for bit in CLOCK_EVENTS if reasons & bit))
        counts = self._clock_events.counts(device.uuid, at)
        window = self._options.clock_events_count_window_size
        yield from _counted(labelled, counts, window, "clock_event", CLOCK_EVENTS.__getitem__)

    def _health_results(self, exported: ExportedSnapshot) -> Iterator[Sample]:
        for device in exported.snapshot.devices:
            labelled = exported.labelled(DcgmEntity(device))
            for watch, result, code in self._health.incidents(device, exported.snapshot):
                labels = {"health_watch": watch, "health_error_code": code}
                for label_set in labelled.label_sets(labels):
                    yield Sample(label_set, result)


def _peer_statuses(exported: ExportedSnapshot) -> Iterator[Sample]:
    for device in exported.snapshot.devices:
        labelled = exported.labelled(DcgmEntity(device))
        for peer, code in _peers_of(device, exported.snapshot.devices).items():
            name = _LINK_STATUSES[code] if 0 <= code < len(_LINK_STATUSES) else "Unknown"
            for label_set in labelled.label_sets({"peer_gpu": peer, "link_status": name}):
                yield Sample(label_set, code)


def _peers_of(device: Device, devices: Sequence[Device]) -> Mapping[str, int]:
    statuses = own(device).p2p_nvlink_status
    if statuses:
        return {peer: int(status) for peer, status in statuses.items()}
    bitmap = own(device).dcgm_fields.get(P2P_BITMAP_ID)
    if not isinstance(bitmap, int) or is_blank(bitmap):
        return {}
    peers = (number_of(peer, peer.index) for peer in devices if peer.uuid != device.uuid)
    return {str(peer): 0 if bitmap >> peer & 1 else _UNKNOWN_STATUS for peer in peers}


def _counted(
    labelled: LabelledEntity,
    counts: Mapping[int, int] | None,
    window_ms: int,
    label: str,
    name_of: Callable[[int], str],
) -> Iterator[Sample]:
    """One sample for each value seen; a single 0 without a value label if there were no samples."""
    window = {"window_size_in_ms": str(window_ms)}
    if counts is None:
        for label_set in labelled.label_sets(window):
            yield Sample(label_set, 0)
        return
    for value, count in sorted(counts.items()):
        for label_set in labelled.label_sets({**window, label: name_of(value)}):
            yield Sample(label_set, count)

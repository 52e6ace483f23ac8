"""`DCGM_EXP_*`: dcgm-exporter's own counters, which are counts over a window, health and P2P status.

Windows count whole GPUs, also for MIG instances. Health and P2P status are those of whole GPUs, because DCGM's
health watches have no instances. DCGM reports that two GPUs cannot reach each other, but not why: the status is
then "unknown".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpuscope.model.exposition.sample import Sample
from gpuscope.model.readings import Device, ErrorTotal
from gpuscope.vendors.nvidia.dcgm_fields import P2P_BITMAP_ID, is_blank
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions
from gpuscope.vendors.nvidia.families.dcgm.device_selector import DcgmEntity, number_of
from gpuscope.vendors.nvidia.families.dcgm.field_values import receives_xids
from gpuscope.vendors.nvidia.families.dcgm.health_status import HealthWatch
from gpuscope.vendors.nvidia.families.dcgm.labelled_entities import ExportedSnapshot, LabelledEntity
from gpuscope.vendors.nvidia.families.dcgm.table import CLOCK_EVENTS_ID, XID_ID
from gpuscope.vendors.nvidia.nvidia_values import own

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

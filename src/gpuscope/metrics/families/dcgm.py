"""Family `dcgm`: `DCGM_FI_*` and `DCGM_EXP_*` exactly as dcgm-exporter gives them under the same flags.

Which metrics, their names, types and help come from a counters file. The order is by DCGM field id, whole
numbers are plain, doubles have six decimals, a value that is blank is no sample and a family without samples is
not there. Left out on purpose: series that would stand twice, and texts where a number belongs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscope.metrics.catalogue.dcgm import CLOCK_EVENTS_ID, XID_ID, Counter
from gpuscope.metrics.catalogue.dcgm_xid_messages import xid_message
from gpuscope.metrics.dcgm.counters_csv import load_counters
from gpuscope.metrics.dcgm.device_selector import Entity
from gpuscope.metrics.dcgm.health import HealthWatch
from gpuscope.metrics.dcgm.hpc_jobs import HpcJobs, jobs_of
from gpuscope.metrics.dcgm.labels import Attributes, LabelMaker, Pairs
from gpuscope.metrics.dcgm.options import DcgmOptions, parse_dcgm_exporter_args
from gpuscope.metrics.dcgm.values import NvlinkRates, Values
from gpuscope.metrics.dcgm.windows import SampleWindow
from gpuscope.metrics.families import FamilySpec
from gpuscope.metrics.sample import LabelSet, MetricFamily, Sample
from gpuscope.readings import ABSENT, Snapshot
from gpuscope.settings import Settings

log = logging.getLogger("gpuscope.dcgm")

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

_NO_LABELS: Mapping[str, str] = {}
_NOBODY: Sequence[Mapping[str, str]] = (_NO_LABELS,)


def number_text(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:f}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A GPU or instance with what is the same for all its series."""

    entity: Entity
    identity: Pairs
    labels: Mapping[str, str]  # of the label rows
    attributes: Sequence[Mapping[str, str]]  # one copy of every sample for each
    label_sets: tuple[LabelSet, ...]


class DcgmBuilder:
    def __init__(
        self, counters: Sequence[Counter], options: DcgmOptions, attributes: Sequence[Attributes] = ()
    ) -> None:
        self._options = options
        self._metrics = tuple(counter for counter in counters if not counter.is_label)
        self._label_rows = tuple(counter for counter in counters if counter.is_label)
        self._attributes = attributes
        self._hpc_jobs = HpcJobs(options.hpc_job_mapping_dir) if options.hpc_job_mapping_dir else None
        self._labels = LabelMaker(options)
        self._nvlink_rates = NvlinkRates()
        self._health = HealthWatch()
        interval = options.collect_interval
        self._xids = SampleWindow(options.xid_count_window_size, interval)
        self._clock_events = SampleWindow(options.clock_events_count_window_size, interval)

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        values = Values(snapshot, self._nvlink_rates.advance(snapshot))
        subjects = self._subjects(snapshot, values)
        for counter in self._metrics:
            samples = list(self._samples(counter, subjects, snapshot, values))
            if samples:
                yield MetricFamily(counter.name, counter.type, counter.help, samples, number_text)

    def _subjects(self, snapshot: Snapshot, values: Values) -> list[Subject]:
        hostname = self._options.hostname(snapshot.node)
        jobs = self._hpc_jobs.read() if self._hpc_jobs is not None else {}
        subjects = []
        for entity in self._options.devices.entities(snapshot.devices):
            identity = self._labels.identity(entity, hostname)
            labels = self._label_values(entity, values)
            attributes = _with_jobs(self._attributes_of(entity), jobs_of(entity, jobs))
            sets = tuple(self._labels.label_set(identity, labels, more) for more in attributes)
            subjects.append(Subject(entity, identity, labels, attributes, sets))
        return subjects

    def _attributes_of(self, entity: Entity) -> Sequence[Mapping[str, str]]:
        combined = list(_NOBODY)
        for attributes in self._attributes:
            combined = [{**one, **more} for one in combined for more in attributes(entity) or _NOBODY]
        return combined

    def _label_values(self, entity: Entity, values: Values) -> dict[str, str]:
        labels = {}
        for row in self._label_rows:
            value = values.of(row.id, entity)
            if value is not ABSENT:
                labels[row.name] = value if isinstance(value, str) else number_text(value)
        return labels

    def _samples(
        self, counter: Counter, subjects: Sequence[Subject], snapshot: Snapshot, values: Values
    ) -> Iterator[Sample]:
        if counter.name == "DCGM_EXP_GPU_HEALTH_STATUS":
            yield from self._health_samples(snapshot, values)
            return
        if counter.name == "DCGM_EXP_P2P_STATUS":
            return  # only DCGM's own interface knows it
        for subject in subjects:
            if counter.name == "DCGM_EXP_XID_ERRORS_COUNT":
                yield from self._xid_counts(subject, snapshot.taken_at, values)
            elif counter.name == "DCGM_EXP_CLOCK_EVENTS_COUNT":
                yield from self._clock_event_counts(subject, snapshot.taken_at, values)
            else:
                value = values.of(counter.id, subject.entity)
                if not isinstance(value, int | float):
                    continue
                sets = self._xid_label_sets(subject, value) if counter.id == XID_ID else subject.label_sets
                for label_set in sets:
                    yield Sample(label_set, value)

    def _xid_label_sets(self, subject: Subject, xid: float | int) -> list[LabelSet]:
        error = {"err_code": str(int(xid)), "err_msg": xid_message(int(xid))}
        return self._with_more(subject, {}, error)

    def _with_more(
        self, subject: Subject, labels: Mapping[str, str], attributes: Mapping[str, str] = _NO_LABELS
    ) -> list[LabelSet]:
        all_labels = {**subject.labels, **labels}
        return [
            self._labels.label_set(subject.identity, all_labels, {**more, **attributes})
            for more in subject.attributes
        ]

    def _xid_counts(self, subject: Subject, at: float, values: Values) -> Iterator[Sample]:
        device = Entity(subject.entity.device)
        xid = values.of(XID_ID, device)
        # A 0 that DCGM printed is a sample like any other to dcgm-exporter; one of ours means there was none.
        if isinstance(xid, int) and (xid or XID_ID in device.device.dcgm_fields):
            self._xids.record(device.device.uuid, at, (xid,))
        counts = self._xids.counts(device.device.uuid, at)
        window = {"window_size_in_ms": str(self._options.xid_count_window_size)}
        yield from self._window_samples(subject, counts, window, "xid", str)

    def _clock_event_counts(self, subject: Subject, at: float, values: Values) -> Iterator[Sample]:
        device = subject.entity.device
        reasons = values.of(CLOCK_EVENTS_ID, Entity(device))
        if isinstance(reasons, int):
            self._clock_events.record(device.uuid, at, (bit for bit in CLOCK_EVENTS if reasons & bit))
        counts = self._clock_events.counts(device.uuid, at)
        window = {"window_size_in_ms": str(self._options.clock_events_count_window_size)}
        yield from self._window_samples(subject, counts, window, "clock_event", CLOCK_EVENTS.__getitem__)

    def _window_samples(
        self,
        subject: Subject,
        counts: Mapping[int, int] | None,
        window: Mapping[str, str],
        label: str,
        name_of: Callable[[int], str],
    ) -> Iterator[Sample]:
        """One sample for each value seen; one 0 without it where nothing was sampled at all."""
        if counts is None:
            yield from (Sample(label_set, 0) for label_set in self._with_more(subject, window))
            return
        for value, count in sorted(counts.items()):
            for label_set in self._with_more(subject, {**window, label: name_of(value)}):
                yield Sample(label_set, count)

    def _health_samples(self, snapshot: Snapshot, values: Values) -> Iterator[Sample]:
        """Of whole GPUs, whatever is selected: DCGM's health watches know no instances."""
        hostname = self._options.hostname(snapshot.node)
        for device in snapshot.devices:
            entity = Entity(device)
            identity = self._labels.identity(entity, hostname)
            labels = self._label_values(entity, values)
            for watch, result, code in self._health.findings(device, snapshot):
                more = {"health_watch": watch, "health_error_code": code}
                yield Sample(self._labels.label_set(identity, {**labels, **more}), result)


def _with_jobs(attributes: Sequence[Mapping[str, str]], jobs: Sequence[str]) -> Sequence[Mapping[str, str]]:
    with_jobs = [{**more, "hpc_job": job} for more in attributes for job in jobs]
    return with_jobs or attributes


def build_with(settings: Settings, options: DcgmOptions, attributes: Sequence[Attributes] = ()) -> DcgmBuilder:
    """The builder under dcgm-exporter's options; `--counters` wins over its `-f`."""
    counters = load_counters(settings.counters or options.collectors)
    if any(counter.name == "DCGM_EXP_P2P_STATUS" for counter in counters):
        log.warning("DCGM_EXP_P2P_STATUS is not exported: only DCGM's own interface knows it")
    return DcgmBuilder(counters, options, attributes)


def _build(settings: Settings) -> DcgmBuilder:
    options, warnings = parse_dcgm_exporter_args((), os.environ)
    for warning in warnings:
        log.warning("%s", warning)
    return build_with(settings, options)


FAMILY = FamilySpec(
    name="dcgm",
    summary="DCGM_FI_* and DCGM_EXP_* as dcgm-exporter gives them",
    build=_build,
)

"""Family `dcgm`: `DCGM_FI_*` and `DCGM_EXP_*` exactly as dcgm-exporter gives them under the same flags.

Which metrics, their names, types and help come from a counters file. The order is by DCGM field id, whole
numbers are plain, doubles have six decimals, a value that is blank is no sample and a family without samples is
not there. Left out on purpose: series that would stand twice, and texts where a number belongs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpuscope.metrics.families import FamilySpec
from gpuscope.metrics.families.dcgm.counters_csv import CountersFile
from gpuscope.metrics.families.dcgm.field_values import Values
from gpuscope.metrics.families.dcgm.missing_fields import MissingFields
from gpuscope.metrics.families.dcgm.nvlink_rates import NvlinkRates, wants_links
from gpuscope.metrics.families.dcgm.options import DcgmOptions
from gpuscope.metrics.families.dcgm.own_counters import OwnCounters
from gpuscope.metrics.families.dcgm.pod_labels import PER_PROCESS, own_value
from gpuscope.metrics.families.dcgm.subjects import Attributes, Scene, SubjectMaker, number_text
from gpuscope.metrics.families.dcgm.table import XID_ID, Counter
from gpuscope.metrics.families.dcgm.xid_messages import xid_message
from gpuscope.metrics.sample import MetricFamily, Sample
from gpuscope.readings import ABSENT, Snapshot
from gpuscope.settings import Settings

log = logging.getLogger("gpuscope.dcgm")


class DcgmBuilder:
    """`counters` is asked each time: the file may change while we run."""

    def __init__(
        self,
        counters: Callable[[], Sequence[Counter]],
        options: DcgmOptions,
        attributes: Sequence[Attributes] = (),
    ) -> None:
        self._counters = counters
        self._subjects = SubjectMaker(options, attributes)
        self._own_counters = OwnCounters(options)
        self._nvlink_rates = NvlinkRates()
        self._missing = MissingFields()
        self._shares_gpus = options.kubernetes and options.kubernetes_virtual_gpus

    def field_ids(self) -> tuple[int, ...]:
        """DCGM's ids of what is exported now; dcgm-exporter's own counters have theirs, from 9001."""
        return tuple(counter.id for counter in self._counters())

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        counters = self._counters()
        self._missing.say(counters, snapshot)
        links = wants_links(counter.id for counter in counters)
        values = Values(snapshot, self._nvlink_rates.advance(snapshot, links=links))
        scene = self._subjects.scene(snapshot, values, [counter for counter in counters if counter.is_label])
        common = [subject.label_sets() for subject in scene.selected]
        for counter in counters:
            if counter.is_label:
                continue
            if counter.is_exporters_own:
                samples = list(self._own_counters.samples(counter.name, scene))
            elif counter.id == XID_ID:
                samples = list(_xid_samples(scene))
            elif self._shares_gpus and counter.name in PER_PROCESS:
                samples = list(_shared_samples(counter, scene))
            else:
                samples = [
                    Sample(label_set, value)
                    for subject, label_sets in zip(scene.selected, common, strict=True)
                    if isinstance(value := values.of(counter.id, subject.entity), int | float)
                    for label_set in label_sets
                ]
            if samples:
                yield MetricFamily(counter.name, counter.type, counter.help, samples, number_text)


def _xid_samples(scene: Scene) -> Iterator[Sample]:
    for subject in scene.selected:
        xid = scene.values.of(XID_ID, subject.entity)
        if isinstance(xid, int):
            error = {"err_code": str(xid), "err_msg": xid_message(xid)}
            for label_set in subject.label_sets(attributes=error):
                yield Sample(label_set, xid)


def _shared_samples(counter: Counter, scene: Scene) -> Iterator[Sample]:
    """The GPU's own number without a pod, and each pod's own share of it."""
    listed = scene.snapshot.processes
    processes = () if listed is ABSENT else listed
    for subject in scene.selected:
        value = scene.values.of(counter.id, subject.entity)
        if not isinstance(value, int | float):
            continue
        yield from (Sample(label_set, value) for label_set in subject.label_sets_without_pods())
        for pod in () if listed is ABSENT else subject.pods:
            uid = pod.allocation.pod_uid
            share = own_value(counter.name, pod, subject.entity, processes)
            more = {**pod.attributes, "pod_uid": "" if uid is ABSENT else uid}
            yield from (Sample(label_set, share) for label_set in subject.label_sets_without_pods(more))


def build_with(settings: Settings, options: DcgmOptions, attributes: Sequence[Attributes] = ()) -> DcgmBuilder:
    """The builder under dcgm-exporter's options; `--counters` wins over its `-f`."""
    if settings.dcgm_hostname_label != options.hostname_label == DcgmOptions().hostname_label:
        options = replace(options, hostname_label=settings.dcgm_hostname_label)
    counters = CountersFile(settings.counters or options.collectors)
    return DcgmBuilder(counters, options, attributes)


def _build(settings: Settings) -> DcgmBuilder:
    return build_with(settings, DcgmOptions())


FAMILY = FamilySpec(
    name="dcgm",
    summary="DCGM_FI_* and DCGM_EXP_* as dcgm-exporter gives them",
    build=_build,
)

"""Family `dcgm`: `DCGM_FI_*` and `DCGM_EXP_*` exactly as dcgm-exporter exports them with the same flags.

A counters file defines the metrics with names, types and help. Metrics are sorted by DCGM field id; integers
have no decimal point, doubles six decimals; a blank value has no sample, and a family without samples is left
out. Unlike dcgm-exporter, duplicate series and texts in place of numbers are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gpuscope.agent.families import FamilySpec
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.sample import MetricFamily, Sample
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.vendors.nvidia.dcgm_fields import ENTITY_NUMBER_ID
from gpuscope.vendors.nvidia.families.dcgm.counters_csv import CountersFile
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions
from gpuscope.vendors.nvidia.families.dcgm.field_values import (
    FieldValues,
    NvlinkRates,
    is_computed,
    wants_links,
)
from gpuscope.vendors.nvidia.families.dcgm.labelled_entities import (
    PER_PROCESS,
    Attributes,
    EntityLabeller,
    ExportedSnapshot,
    dcgm_number,
    own_value,
)
from gpuscope.vendors.nvidia.families.dcgm.own_counters import OwnCounters
from gpuscope.vendors.nvidia.families.dcgm.table import XID_ID, Counter
from gpuscope.vendors.nvidia.families.dcgm.xid_messages import xid_message
from gpuscope.vendors.nvidia.nvidia_values import of_nvidia, own

# Warns about rows of a counters file that need DCGM while DCGM is not the source.
#
# Fields that the GPU does not have cause no warning, as in dcgm-exporter.

VGPU_LICENCE_ID = 526  # in every counters file of NVIDIA, but only a virtual machine with a vGPU has it


class MissingFields:
    def __init__(self) -> None:
        self._reported: tuple[str, ...] = ()

    def warn(self, counters: Sequence[Counter], snapshot: Snapshot) -> None:
        """Warns once for each set of rows. Without GPUs it is not known whether DCGM is the source."""
        if not snapshot.devices or any(
            ENTITY_NUMBER_ID in own(device).dcgm_fields for device in snapshot.devices
        ):
            return
        missing = tuple(counter.name for counter in counters if not _has_a_value(counter))
        if missing and missing != self._reported:
            log.warning(
                "only DCGM has %s; these rows of the counters file have no samples without --source dcgm",
                ", ".join(missing),
            )
        self._reported = missing


def _has_a_value(counter: Counter) -> bool:
    return counter.is_exporters_own or counter.id == VGPU_LICENCE_ID or is_computed(counter.id)


log = logging.getLogger("gpuscope.dcgm")


class DcgmBuilder:
    """`counters` is called for every snapshot, because the file may change."""

    def __init__(
        self,
        counters: Callable[[], Sequence[Counter]],
        options: DcgmOptions,
        attributes: Sequence[Attributes] = (),
    ) -> None:
        self._counters = counters
        self._labeller = EntityLabeller(options, attributes)
        self._own_counters = OwnCounters(options)
        self._nvlink_rates = NvlinkRates()
        self._missing = MissingFields()
        self._shares_gpus = options.kubernetes and options.kubernetes_virtual_gpus

    def field_ids(self) -> tuple[int, ...]:
        """The ids of the exported fields; dcgm-exporter's own counters have ids from 9001."""
        return tuple(counter.id for counter in self._counters())

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        snapshot = of_nvidia(snapshot)
        counters = self._counters()
        self._missing.warn(counters, snapshot)
        links = wants_links(counter.id for counter in counters)
        values = FieldValues(snapshot, self._nvlink_rates.advance(snapshot, links=links))
        exported = self._labeller.label(snapshot, values, [counter for counter in counters if counter.is_label])
        common = [labelled.label_sets() for labelled in exported.selected]
        for counter in counters:
            if counter.is_label:
                continue
            if counter.is_exporters_own:
                samples = list(self._own_counters.samples(counter.name, exported))
            elif counter.id == XID_ID:
                samples = list(_xid_samples(exported))
            elif self._shares_gpus and counter.name in PER_PROCESS:
                samples = list(_shared_samples(counter, exported))
            else:
                samples = [
                    Sample(label_set, value)
                    for labelled, label_sets in zip(exported.selected, common, strict=True)
                    if isinstance(value := values.of(counter.id, labelled.entity), int | float)
                    for label_set in label_sets
                ]
            if samples:
                yield MetricFamily(counter.name, counter.type, counter.help, samples, dcgm_number)


def _xid_samples(exported: ExportedSnapshot) -> Iterator[Sample]:
    for labelled in exported.selected:
        xid = exported.values.of(XID_ID, labelled.entity)
        if isinstance(xid, int):
            error = {"err_code": str(xid), "err_msg": xid_message(xid)}
            for label_set in labelled.label_sets(attributes=error):
                yield Sample(label_set, xid)


def _shared_samples(counter: Counter, exported: ExportedSnapshot) -> Iterator[Sample]:
    """The GPU's value without a pod, and each pod's share."""
    listed = exported.snapshot.processes
    processes = () if listed is ABSENT else listed
    for labelled in exported.selected:
        value = exported.values.of(counter.id, labelled.entity)
        if not isinstance(value, int | float):
            continue
        yield from (Sample(label_set, value) for label_set in labelled.label_sets_without_pods())
        for pod in () if listed is ABSENT else labelled.pods:
            uid = pod.allocation.pod_uid
            share = own_value(counter.name, pod, labelled.entity, processes)
            more = {**pod.attributes, "pod_uid": "" if uid is ABSENT else uid}
            yield from (Sample(label_set, share) for label_set in labelled.label_sets_without_pods(more))


def build_with(settings: Settings, options: DcgmOptions, attributes: Sequence[Attributes] = ()) -> DcgmBuilder:
    """The builder for dcgm-exporter's options; `--counters` overrides `-f`."""
    if settings.dcgm_hostname_label != options.hostname_label == DcgmOptions().hostname_label:
        options = replace(options, hostname_label=settings.dcgm_hostname_label)
    counters = CountersFile(settings.counters or options.collectors)
    return DcgmBuilder(counters, options, attributes)


def _build(settings: Settings) -> DcgmBuilder:
    """For `--families dcgm`. This agent knows the pods, so its series have them: without a kubelet there are
    no allocations, and no labels."""
    options = DcgmOptions(
        kubernetes=True,
        kubernetes_enable_pod_labels=bool(settings.pod_labels),
        nvidia_resource_names=settings.resource_names,
    )
    return build_with(settings, options)


FAMILY = FamilySpec(
    name="dcgm",
    summary="DCGM_FI_* and DCGM_EXP_*, as dcgm-exporter exports them",
    build=_build,
)

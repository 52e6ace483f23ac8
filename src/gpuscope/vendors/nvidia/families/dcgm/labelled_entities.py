"""GPUs and MIG instances with the labels that all their DCGM series share.

Pods, other attributes (`Attributes`) and HPC jobs add labels, in this order. A sample is copied for each of
them; without any it is exported once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuscope.model.exposition.number_text import fixed_decimals
from gpuscope.model.exposition.sample import LabelSet
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.readings.device import NO_VALUES
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions
from gpuscope.vendors.nvidia.families.dcgm.device_selector import DcgmEntity
from gpuscope.vendors.nvidia.families.dcgm.field_values import FieldValues
from gpuscope.vendors.nvidia.families.dcgm.hpc_jobs import jobs_of
from gpuscope.vendors.nvidia.families.dcgm.pod_labels import PodMapper, PodOnDevice
from gpuscope.vendors.nvidia.families.dcgm.series_labels import LabelMaker, Pairs
from gpuscope.vendors.nvidia.families.dcgm.table import Counter

Attributes = Callable[[DcgmEntity], Sequence[Mapping[str, str]]]

dcgm_number = fixed_decimals(6)


@dataclass(frozen=True, slots=True)
class LabelledEntity:
    entity: DcgmEntity
    identity: Pairs
    labels: Mapping[str, str]  # of the label rows
    attributes: Sequence[Mapping[str, str]]
    maker: LabelMaker
    without_pods: Sequence[Mapping[str, str]] = ()
    pods: Sequence[PodOnDevice] = ()

    def label_sets(
        self, labels: Mapping[str, str] = NO_VALUES, attributes: Mapping[str, str] = NO_VALUES
    ) -> tuple[LabelSet, ...]:
        """The labels of one sample and its copies, with labels of this sample only."""
        return self._sets(self.attributes, labels, attributes)

    def label_sets_without_pods(self, attributes: Mapping[str, str] = NO_VALUES) -> tuple[LabelSet, ...]:
        return self._sets(self.without_pods, NO_VALUES, attributes)

    def _sets(
        self, copies: Sequence[Mapping[str, str]], labels: Mapping[str, str], attributes: Mapping[str, str]
    ) -> tuple[LabelSet, ...]:
        all_labels = {**self.labels, **labels}
        return tuple(self.maker.label_set(self.identity, all_labels, {**more, **attributes}) for more in copies)


class EntityLabeller:
    def __init__(self, options: DcgmOptions, attributes: Sequence[Attributes]) -> None:
        self._options = options
        self._attributes = attributes
        self._maker = LabelMaker(options)
        self._pods = PodMapper(options) if options.kubernetes else None

    def label(self, snapshot: Snapshot, values: FieldValues, label_rows: Sequence[Counter]) -> ExportedSnapshot:
        jobs = snapshot.ownership.job_lines if self._options.hpc_job_mapping_dir else {}
        hostname = self._options.hostname(snapshot.node)
        mapped = self._pods.of(snapshot) if self._pods is not None else None

        def labelled(entity: DcgmEntity) -> LabelledEntity:
            pods = mapped.find(entity) if mapped is not None else ()
            labels = _label_values(entity, values, label_rows)
            for pod in pods:
                labels.update(pod.labels)
            of_entity = jobs_of(entity, jobs)
            return LabelledEntity(
                entity,
                self._maker.identity(entity, hostname),
                labels,
                self._attributes_of(entity, of_entity, [pod.attributes for pod in pods]),
                self._maker,
                self._attributes_of(entity, of_entity, ()),
                pods,
            )

        selected = tuple(labelled(entity) for entity in self._options.devices.entities(snapshot.devices))
        return ExportedSnapshot(snapshot, values, selected, labelled)

    def _attributes_of(
        self, entity: DcgmEntity, jobs: Sequence[str], pods: Sequence[Mapping[str, str]]
    ) -> Sequence[Mapping[str, str]]:
        combined: list[Mapping[str, str]] = list(pods) or [NO_VALUES]
        for attributes in self._attributes:
            combined = [{**one, **more} for one in combined for more in attributes(entity) or (NO_VALUES,)]
        return [{**one, "hpc_job": job} for one in combined for job in jobs] or combined


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """One snapshot with its exported GPUs and instances, and a function that labels any other."""

    snapshot: Snapshot
    values: FieldValues
    selected: tuple[LabelledEntity, ...]
    labelled: Callable[[DcgmEntity], LabelledEntity]


def _label_values(entity: DcgmEntity, values: FieldValues, label_rows: Sequence[Counter]) -> dict[str, str]:
    labels = {}
    for row in label_rows:
        value = values.of(row.id, entity)
        if value is not ABSENT:
            labels[row.name] = value if isinstance(value, str) else dcgm_number(value)
    return labels

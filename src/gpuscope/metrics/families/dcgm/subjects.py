"""What a DCGM series is about: a GPU or a MIG instance with the labels all its series share.

Pods come first, then whoever else can say more of it (`Attributes`), then its jobs: every sample is copied once
for each mapping they return, and stands as it is when they return none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuscope.metrics.families.dcgm.device_selector import Entity
from gpuscope.metrics.families.dcgm.field_values import Values
from gpuscope.metrics.families.dcgm.hpc_jobs import jobs_of
from gpuscope.metrics.families.dcgm.options import DcgmOptions
from gpuscope.metrics.families.dcgm.pod_labels import PodMapper, PodOnDevice
from gpuscope.metrics.families.dcgm.series_labels import LabelMaker, Pairs
from gpuscope.metrics.families.dcgm.table import Counter
from gpuscope.metrics.sample import LabelSet
from gpuscope.readings import ABSENT, Snapshot

Attributes = Callable[[Entity], Sequence[Mapping[str, str]]]

_NOTHING: Mapping[str, str] = {}


def number_text(value: float | int) -> str:
    """Go's %d and %f."""
    return str(value) if isinstance(value, int) else f"{value:f}"


@dataclass(frozen=True, slots=True)
class Subject:
    entity: Entity
    identity: Pairs
    labels: Mapping[str, str]  # of the label rows
    attributes: Sequence[Mapping[str, str]]
    maker: LabelMaker
    without_pods: Sequence[Mapping[str, str]] = ()
    pods: Sequence[PodOnDevice] = ()

    def label_sets(
        self, labels: Mapping[str, str] = _NOTHING, attributes: Mapping[str, str] = _NOTHING
    ) -> tuple[LabelSet, ...]:
        """The labels of one sample and its copies, with what only this sample has."""
        return self._sets(self.attributes, labels, attributes)

    def label_sets_without_pods(self, attributes: Mapping[str, str] = _NOTHING) -> tuple[LabelSet, ...]:
        return self._sets(self.without_pods, _NOTHING, attributes)

    def _sets(
        self, copies: Sequence[Mapping[str, str]], labels: Mapping[str, str], attributes: Mapping[str, str]
    ) -> tuple[LabelSet, ...]:
        all_labels = {**self.labels, **labels}
        return tuple(self.maker.label_set(self.identity, all_labels, {**more, **attributes}) for more in copies)


class SubjectMaker:
    def __init__(self, options: DcgmOptions, attributes: Sequence[Attributes]) -> None:
        self._options = options
        self._attributes = attributes
        self._maker = LabelMaker(options)
        self._pods = PodMapper(options) if options.kubernetes else None

    def scene(self, snapshot: Snapshot, values: Values, label_rows: Sequence[Counter]) -> Scene:
        jobs = snapshot.ownership.job_lines if self._options.hpc_job_mapping_dir else {}
        hostname = self._options.hostname(snapshot.node)
        mapped = self._pods.of(snapshot) if self._pods is not None else None

        def subject(entity: Entity) -> Subject:
            pods = mapped.find(entity) if mapped is not None else ()
            labels = _label_values(entity, values, label_rows)
            for pod in pods:
                labels.update(pod.labels)
            of_entity = jobs_of(entity, jobs)
            return Subject(
                entity,
                self._maker.identity(entity, hostname),
                labels,
                self._attributes_of(entity, of_entity, [pod.attributes for pod in pods]),
                self._maker,
                self._attributes_of(entity, of_entity, ()),
                pods,
            )

        selected = tuple(subject(entity) for entity in self._options.devices.entities(snapshot.devices))
        return Scene(snapshot, values, selected, subject)

    def _attributes_of(
        self, entity: Entity, jobs: Sequence[str], pods: Sequence[Mapping[str, str]]
    ) -> Sequence[Mapping[str, str]]:
        combined: list[Mapping[str, str]] = list(pods) or [_NOTHING]
        for attributes in self._attributes:
            combined = [{**one, **more} for one in combined for more in attributes(entity) or (_NOTHING,)]
        return [{**one, "hpc_job": job} for one in combined for job in jobs] or combined


@dataclass(frozen=True, slots=True)
class Scene:
    """One snapshot with the subjects that are exported, and a way to make a subject of anything else."""

    snapshot: Snapshot
    values: Values
    selected: tuple[Subject, ...]
    subject: Callable[[Entity], Subject]


def _label_values(entity: Entity, values: Values, label_rows: Sequence[Counter]) -> dict[str, str]:
    labels = {}
    for row in label_rows:
        value = values.of(row.id, entity)
        if value is not ABSENT:
            labels[row.name] = value if isinstance(value, str) else number_text(value)
    return labels

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
from gpuscope.vendors.nvidia.families.dcgm.device_selector import DcgmEntity, number_of
from gpuscope.vendors.nvidia.families.dcgm.field_values import FieldValues
from gpuscope.vendors.nvidia.families.dcgm.pod_labels import PodMapper, PodOnDevice
from gpuscope.vendors.nvidia.families.dcgm.table import Counter
from gpuscope.vendors.nvidia.nvidia_values import gpu_instance_of

# dcgm-exporter's HPC job mapping: the jobs of a GPU, one `hpc_job` label each.
#
# The lines come with the snapshot (`Ownership.job_lines`) from files named `<gpu>` or `<gpu>.<GPU instance>`;
# a worker reads them (`agent/owners/job_files.py`), because the folder may hang. Without a file a GPU has no
# jobs.

MAX_JOBS = 64  # each job is a copy of every series of its GPU


def jobs_of(entity: DcgmEntity, lines: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    gpu = str(number_of(entity.device, entity.device.index))
    if entity.instance is not None:
        gpu = f"{gpu}.{gpu_instance_of(entity.instance)}"
    return lines.get(gpu, ())[:MAX_JOBS]


# The labels of a DCGM series in dcgm-exporter's order: identity, sorted label rows, sorted attributes.
#
# Label sets are kept between snapshots, so that their text is built once.

Pairs = tuple[tuple[str, str], ...]

MAX_KEPT = 20_000


class LabelMaker:
    def __init__(self, options: DcgmOptions) -> None:
        self._options = options
        self._uuid_label = "uuid" if options.use_old_namespace else "UUID"
        self._kept: dict[Pairs, LabelSet] = {}

    def identity(self, entity: DcgmEntity, hostname: str) -> Pairs:
        """The first labels of every series of a GPU or instance; an unknown label is empty, as in Go."""
        device, instance = entity.device, entity.instance
        gpu = str(number_of(device, device.index))
        model = "" if device.model is ABSENT else device.model
        if self._options.replace_blanks_in_model_name:
            model = "-".join(model.split())
        pairs = [
            ("gpu", gpu),
            (self._uuid_label, str(device.uuid)),
            ("pci_bus_id", "" if device.pci_bus_id is ABSENT else device.pci_bus_id),
            ("device", f"nvidia{gpu}"),
            ("modelName", model),
        ]
        if instance is not None and instance.profile is not ABSENT:
            pairs += [("GPU_I_PROFILE", instance.profile), ("GPU_I_ID", str(gpu_instance_of(instance)))]
        if hostname:
            pairs.append((self._options.hostname_label, hostname))
        return tuple(pairs)

    def label_set(self, identity: Pairs, labels: Mapping[str, str], attributes: Mapping[str, str]) -> LabelSet:
        pairs = (*identity, *sorted(labels.items()), *sorted(attributes.items()))
        known = self._kept.get(pairs)
        if known is None:
            if len(self._kept) > MAX_KEPT:  # new job names keep appearing
                self._kept.clear()
            known = self._kept[pairs] = LabelSet(pairs)
        return known


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

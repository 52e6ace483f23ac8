"""GPUs and MIG instances with the labels that all their DCGM series share.

Pods, other attributes (`Attributes`) and HPC jobs add labels, in this order. A sample is copied for each of
them; without any it is exported once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.model.exposition.sample import LabelSet, fixed_decimals
from gpuscope.model.readings import ABSENT, Allocation, Device, Process, Snapshot, Uuid, unit_uuid
from gpuscope.model.readings.device import NO_VALUES
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmEntity, DcgmOptions, number_of
from gpuscope.vendors.nvidia.families.dcgm.field_values import FieldValues
from gpuscope.vendors.nvidia.families.dcgm.table import Counter
from gpuscope.vendors.nvidia.nvidia_values import gpu_instance_of

# Pod labels on DCGM series, as dcgm-exporter adds them with `--kubernetes`.
#
# A GPU has one pod, the last that claims it. With `--kubernetes-virtual-gpus` every series is copied for each
# pod that shares the GPU; utilisation and used memory have one series without a pod and one per pod with the
# pod's own value. A GPU that is not allocated has no pod labels, not even empty ones. Kubernetes labels of
# the pod are `labels`; namespace, pod and container are `attributes`.

log = logging.getLogger("gpuscope.dcgm")

PER_PROCESS: Final = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")
_MIB: Final = 1 << 20
_NEW_NAMES: Final = ("pod", "namespace", "container")
_OLD_NAMES: Final = ("pod_name", "pod_namespace", "container_name")
_GKE_INSTANCE = re.compile(r"nvidia(\d+)/gi(\d+)(?:/vgpu\d+)?\Z", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True)
class PodOnDevice:
    allocation: Allocation
    attributes: Mapping[str, str]
    labels: Mapping[str, str]


class PodMapper:
    def __init__(self, options: DcgmOptions) -> None:
        self._options = options
        self._patterns = _compile(options.kubernetes_pod_label_allowlist_regex)

    def of(self, snapshot: Snapshot) -> MappedPods:
        allocations = snapshot.ownership.allocations
        instances = {
            instance.uuid: f"{number_of(device, device.index)}-{gpu_instance_of(instance)}"
            for device in snapshot.devices
            for instance in device.instances
        }
        on: dict[str, list[PodOnDevice]] = {}
        for allocation in () if allocations is ABSENT else allocations:
            if allocation.pod is not ABSENT and self._takes(allocation.resource):
                pod = self._pod(allocation)
                for key in dict.fromkeys(_keys(allocation, instances)):
                    on.setdefault(key, []).append(pod)
        if not self._options.kubernetes_virtual_gpus:
            on = {key: pods[-1:] for key, pods in on.items()}
        return MappedPods(on, self._options)

    def _takes(self, resource: str) -> bool:
        return (
            resource == "nvidia.com/gpu"
            or resource in self._options.nvidia_resource_names
            or resource.startswith("nvidia.com/mig-")
        )

    def _pod(self, allocation: Allocation) -> PodOnDevice:
        names = _OLD_NAMES if self._options.use_old_namespace else _NEW_NAMES
        texts = (allocation.pod, allocation.namespace, allocation.container)
        attributes = {name: "" if text is ABSENT else text for name, text in zip(names, texts, strict=True)}
        if self._options.kubernetes_enable_pod_uid:
            attributes["pod_uid"] = "" if allocation.pod_uid is ABSENT else allocation.pod_uid
        labels: dict[str, str] = {}
        if self._options.kubernetes_virtual_gpus:
            if allocation.replica is not ABSENT:
                attributes["vgpu"] = allocation.replica
        elif self._options.kubernetes_enable_pod_labels:
            labels = {
                safe: value
                for name, value in (() if allocation.pod_labels is ABSENT else allocation.pod_labels)
                if self._wants(name) and (safe := _NOT_IN_A_NAME.sub("_", name)) not in attributes
            }
        return PodOnDevice(allocation, attributes, labels)

    def _wants(self, label: str) -> bool:
        return not self._patterns or any(pattern.search(label) for pattern in self._patterns)


def _compile(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            log.warning("pod label pattern %r is ignored: %s", pattern, error)
    return compiled


def _keys(allocation: Allocation, instances: Mapping[Uuid, str]) -> Iterator[str]:
    """dcgm-exporter's keys for a device, one per form of device id."""
    device_id = allocation.device_id
    gke = _GKE_INSTANCE.match(device_id)
    if device_id.startswith("MIG-"):
        if allocation.instance_uuid is not ABSENT and allocation.instance_uuid in instances:
            yield instances[allocation.instance_uuid]
    elif gke:
        yield f"{gke[1]}-{gke[2]}"
    elif "/vgpu" in device_id:
        yield device_id.partition("/vgpu")[0]
    elif "::" in device_id:
        yield device_id.partition("::")[0]
    yield device_id


@dataclass(frozen=True, slots=True)
class MappedPods:
    """The pods of one snapshot by device."""

    on: Mapping[str, Sequence[PodOnDevice]]
    options: DcgmOptions

    def find(self, entity: DcgmEntity) -> Sequence[PodOnDevice]:
        device = entity.device
        number = number_of(device, device.index)
        if entity.instance is not None:
            key = f"{number}-{gpu_instance_of(entity.instance)}"
        elif self.options.kubernetes_gpu_id_type == "device-name":
            key = f"nvidia{number}"
        else:
            key = device.uuid
        return self.on.get(key, ())


def own_value(counter: str, pod: PodOnDevice, entity: DcgmEntity, processes: Sequence[Process]) -> int:
    """The GPU utilisation or memory of this pod's own processes: percent or MiB, 0 without processes."""
    units = _units(entity.device, entity)
    total = 0
    for process in processes:
        uuid = unit_uuid(process)
        if uuid not in units or not _belongs(process, pod.allocation):
            continue
        if counter == "DCGM_FI_DEV_FB_USED" and process.memory_bytes is not ABSENT:
            total += int(process.memory_bytes) // _MIB
        elif counter == "DCGM_FI_DEV_GPU_UTIL" and process.sm_ratio is not ABSENT:
            total += round(100 * process.sm_ratio)
    return total


def _units(device: Device, entity: DcgmEntity) -> set[Uuid]:
    if entity.instance is None:
        return {device.uuid}
    same = gpu_instance_of(entity.instance)
    return {instance.uuid for instance in device.instances if gpu_instance_of(instance) == same}


def _belongs(process: Process, allocation: Allocation) -> bool:
    owner = process.owner
    if owner.pod_uid is not ABSENT and allocation.pod_uid is not ABSENT:
        return owner.pod_uid == allocation.pod_uid
    return (owner.namespace, owner.pod) == (allocation.namespace, allocation.pod)


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
            combined = [
                {**labels, **more} for labels in combined for more in attributes(entity) or (NO_VALUES,)
            ]
        return [{**labels, "hpc_job": job} for labels in combined for job in jobs] or combined


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

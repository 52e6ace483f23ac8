"""Pod labels on DCGM series, as dcgm-exporter adds them with `--kubernetes`.

A GPU has one pod, the last that claims it. With `--kubernetes-virtual-gpus` every series is copied for each pod
that shares the GPU; utilisation and used memory have one series without a pod and one per pod with the pod's
own value. A GPU that is not allocated has no pod labels, not even empty ones. Kubernetes labels of the pod are
`labels`; namespace, pod and container are `attributes`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Allocation, Device, Process, Snapshot, Uuid, unit_uuid
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions
from gpuscope.vendors.nvidia.families.dcgm.device_selector import DcgmEntity, number_of
from gpuscope.vendors.nvidia.nvidia_values import gpu_instance_of

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

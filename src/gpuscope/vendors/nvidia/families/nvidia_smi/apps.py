"""`nvidia_smi_compute_app*`: one series per process with a compute context, and their number per GPU.

If the process list could not be read, only the success gauge is exported, with 0. The memory of a process that
is twice on a GPU (on two MIG instances, which no label distinguishes) is summed.
"""

from __future__ import annotations

import math

from gpuscope.model.readings import ABSENT, Device, Process, Snapshot, Uuid
from gpuscope.vendors.nvidia.families.nvidia_smi.cell_values import plain_uuid
from gpuscope.vendors.nvidia.families.nvidia_smi.go_registry import GoRegistry
from gpuscope.vendors.nvidia.families.nvidia_smi.naming import PREFIX
from gpuscope.vendors.nvidia.families.nvidia_smi.table import MIB

INFO_HELP = (
    "A metric with a constant '1' value labeled by the identity of a process with a compute context on a GPU."
)
MEMORY_HELP = "GPU memory used by the process. Absent when the driver cannot report it (e.g. Windows WDDM)."
COUNT_HELP = "Number of processes with a compute context on the GPU."
SUCCESS_HELP = "Whether the most recent per-process collection succeeded (1) or not (0)"

Labels = tuple[tuple[str, str], ...]


def add_apps(registry: GoRegistry, snapshot: Snapshot, *, mig_labels: bool) -> None:
    success = snapshot.processes is not ABSENT
    registry.add(PREFIX + "compute_apps_last_collect_success", SUCCESS_HELP, float(success))
    if snapshot.processes is ABSENT:
        return
    counts = {device.uuid: 0 for device in snapshot.devices if not device.lost and device.processes_known}
    memory: dict[Labels, float] = {}
    devices = {device.uuid: device for device in snapshot.devices}
    for process in snapshot.processes:
        if process.kind == "G":  # graphics only, not a compute app
            continue
        labels = _labels(process, devices, mig_labels)
        counts[process.gpu_uuid] = counts.get(process.gpu_uuid, 0) + 1
        registry.add(PREFIX + "compute_app_info", INFO_HELP, 1, labels)
        if process.memory_bytes is not ABSENT:
            memory[labels] = memory.get(labels, 0.0) + math.ceil(process.memory_bytes / MIB) * MIB
    for labels, used in memory.items():
        registry.add(PREFIX + "compute_app_used_memory_bytes", MEMORY_HELP, used, labels)
    for uuid, count in counts.items():
        registry.add(PREFIX + "compute_apps", COUNT_HELP, count, (("uuid", plain_uuid(uuid)),))


def _labels(process: Process, devices: dict[Uuid, Device], mig_labels: bool) -> Labels:
    name = process.command if process.driver_name is ABSENT else process.driver_name
    labels = (
        ("uuid", plain_uuid(process.gpu_uuid)),
        ("pid", str(process.pid)),
        ("process_name", "[Not Found]" if name is ABSENT else name),
    )
    if not mig_labels:
        return labels
    device = devices.get(process.gpu_uuid)
    for instance in device.instances if device is not None else ():
        if instance.uuid == process.instance_uuid:
            ids = [str(number) for number in instance.ids]
            break
    else:
        ids = ["", ""]
    return (*labels, ("gpu_instance_id", ids[0]), ("compute_instance_id", ids[1]))

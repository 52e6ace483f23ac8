"""Family `nvidia_smi`: byte-equal to the output of nvidia_gpu_exporter 1.14, including its quirks.

The values are nvidia-smi's own cells if it is the source, else readings printed like nvidia-smi prints them.
After a failed read no GPU series are exported, only the failure metrics. The exporter's metrics about itself
are left out: `go_*`, `process_*`, `promhttp_*`, `nvidia_gpu_exporter_build_info`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.families import FamilySpec
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.readings import ABSENT, Device, Instance, Process, Snapshot, SourceStatus, Uuid
from gpuscope.vendors.nvidia.families.nvidia_smi.columns import (
    Cells,
    SmiColumns,
    add_columns,
    add_info,
    cells_of_devices,
)
from gpuscope.vendors.nvidia.families.nvidia_smi.naming import PREFIX, GoRegistry, LabelSets, plain_uuid
from gpuscope.vendors.nvidia.families.nvidia_smi.table import MIB
from gpuscope.vendors.nvidia.nvidia_values import of_nvidia, own, reader

# nvidia_gpu_exporter's metrics about its own collection, and the source they describe.
#
# Failures and success are always exported, exit code and duration after the first attempt, the timestamp
# after the first success. If nvidia-smi is not the source, NVML's return code replaces the exit code.

COMMAND_SOURCE = "nvidia-smi"
DRIVER_SOURCES = ("nvml", "demo", "replay", "dcgm")


def runs_the_command(snapshot: Snapshot, backend: str) -> bool:
    """Whether the backend is `exec`; without a backend option, the source of the devices decides."""
    if backend:
        return backend == "exec"
    if snapshot.devices:
        return any(own(device).smi_cells for device in snapshot.devices)
    up = {status.name: status.up for status in snapshot.sources}
    return COMMAND_SOURCE in up and not any(up.get(name) for name in DRIVER_SOURCES)


def backing_source(snapshot: Snapshot, *, command: bool) -> SourceStatus | None:
    """The source of the devices, or the source that should read them."""
    by_name = {status.name: status for status in snapshot.sources}
    if command:
        return by_name.get(COMMAND_SOURCE)
    drivers = [by_name[name] for name in DRIVER_SOURCES if name in by_name]
    return next((status for status in drivers if status.up), drivers[0] if drivers else None)


def add_health(registry: GoRegistry, status: SourceStatus | None, *, command: bool) -> None:
    failed = 0 if status is None else status.failed_reads
    success = status is not None and status.up
    registry.add(PREFIX + "failed_scrapes_total", "Number of failed collections", failed, kind="counter")
    registry.add(
        PREFIX + "last_collect_success",
        "Whether the most recent collection succeeded (1) or not (0)",
        float(success),
    )
    if status is None:
        return
    if status.code is not ABSENT:
        if command:
            name, help_text = "command_exit_code", "Exit code of the most recent nvidia-smi run"
        else:
            name, help_text = (
                "nvml_return_code",
                "NVML return code of the most recent collection (0 = success)",
            )
        registry.add(PREFIX + name, help_text, status.code)
    if status.duration_seconds is not ABSENT:
        name = PREFIX + "last_collect_duration_seconds"
        registry.add(name, "Duration of the most recent collection", status.duration_seconds)
    if status.last_success_at is not ABSENT:
        registry.add(
            PREFIX + "last_collect_success_timestamp_seconds",
            "Unix timestamp of the most recent successful collection",
            int(status.last_success_at),
        )


# The metrics that nvidia_gpu_exporter adds to the columns when it reads the driver instead of nvidia-smi.
#
# Energy, PCIe throughput (on request), MIG instances and XIDs. Memory and activity are exported once per GPU
# instance, which may have several compute instances.

ENERGY_HELP = (
    "Total energy consumed by the GPU in joules since the driver was last loaded. "
    "Resets on a driver reload; absent on GPUs that cannot report it."
)
PCIE_HELP = "PCIe traffic {} by the GPU, sampled by the driver over a dedicated 20ms window."
MIG_INFO_HELP = (
    "A metric with a constant '1' value labeled by the identity of a MIG device: "
    "the parent GPU's uuid, the MIG device's own uuid, its GPU instance and "
    "compute instance ids, and its profile."
)
XID_COUNT_HELP = (
    "Number of XID errors observed on the GPU since the exporter started. "
    "A series appears when its first event arrives; earlier history cannot be replayed."
)
XID_TIME_HELP = (
    "Unix timestamp of the most recently observed XID error, as received by the exporter "
    "(the driver events carry no timestamp of their own)."
)
_MEMORY_HELP = (
    "Memory of the GPU instance ({}). The framebuffer belongs to the GPU "
    "instance and is shared by its compute instances (verified live: sibling "
    "compute instances report identical values)."
)
_ACTIVITY_HELP = (
    "{} Computed over the window between the two most recent collections; "
    "absent on the first collection that sees the GPU instance."
)
_ACTIVITIES: Final = {  # name -> reading, start of its help
    "graphics_activity_ratio": (
        "engine_active_ratio.graphics",
        "Fraction of time the GPU instance's graphics/compute engines were active.",
    ),
    "sm_activity_ratio": ("engine_active_ratio.sm", "Fraction of time the GPU instance's SMs were active."),
    "sm_occupancy_ratio": (
        "sm_occupancy_ratio",
        "Fraction of the GPU instance's resident warp slots that were occupied.",
    ),
    "tensor_activity_ratio": (
        "engine_active_ratio.tensor",
        "Fraction of time the GPU instance's tensor pipes were active.",
    ),
    "pcie_throughput_tx_bytes_per_second": (
        "profiled_pcie_bytes_per_second.tx",
        "PCIe traffic transmitted by the GPU instance.",
    ),
    "pcie_throughput_rx_bytes_per_second": (
        "profiled_pcie_bytes_per_second.rx",
        "PCIe traffic received by the GPU instance.",
    ),
}
_GPU_INSTANCE_NUMBERS: Final = (
    *(
        (f"{PREFIX}mig_memory_{kind}_bytes", reader(f"memory_{kind}_bytes"), _MEMORY_HELP.format(kind))
        for kind in ("total", "used", "free", "reserved")
    ),
    *(
        (f"{PREFIX}mig_{name}", reader(path), _ACTIVITY_HELP.format(help_text))
        for name, (path, help_text) in _ACTIVITIES.items()
    ),
)


def add_extras(registry: GoRegistry, snapshot: Snapshot, *, pcie_throughput: bool) -> None:
    for device in snapshot.devices:
        uuid = (("uuid", plain_uuid(device.uuid)),)
        if device.energy_joules is not ABSENT:
            name = PREFIX + "energy_joules_total"
            registry.add(name, ENERGY_HELP, device.energy_joules, uuid, "counter")
        if pcie_throughput:
            for direction, verb in (("tx", "transmitted"), ("rx", "received")):
                if direction in device.pcie_bytes_per_second:
                    name = f"{PREFIX}pcie_throughput_{direction}_bytes_per_second"
                    rate = device.pcie_bytes_per_second[direction]
                    registry.add(name, PCIE_HELP.format(verb), rate, uuid)
        for instance in device.instances:
            _add_instance(registry, device, instance)


def _add_instance(registry: GoRegistry, device: Device, instance: Instance) -> None:
    gpu_instance, compute_instance = instance.ids
    labels = (("uuid", plain_uuid(device.uuid)), ("gpu_instance_id", str(gpu_instance)))
    identity = (
        ("mig_uuid", instance.uuid.strip().lower().removeprefix("mig-")),
        ("compute_instance_id", str(compute_instance)),
        ("profile", "" if instance.profile is ABSENT else instance.profile),
    )
    registry.add(PREFIX + "mig_info", MIG_INFO_HELP, 1, (*labels, *identity))
    for name, read, help_text in _GPU_INSTANCE_NUMBERS:
        value = read(instance)
        if value is not ABSENT:
            registry.add(name, help_text, value, labels)


def add_xids(registry: GoRegistry, snapshot: Snapshot) -> None:
    """Adds XIDs also while no GPU can be read, when they matter most."""
    for total in snapshot.errors:
        labels = (("uuid", plain_uuid(total.gpu_uuid)), ("xid", total.code))
        registry.add(PREFIX + "xid_errors_total", XID_COUNT_HELP, total.count, labels, "counter")
        registry.add(PREFIX + "xid_last_timestamp_seconds", XID_TIME_HELP, total.last_at, labels)


# `nvidia_smi_compute_app*`: one series per process with a compute context, and their number per GPU.
#
# If the process list could not be read, only the success gauge is exported, with 0. The memory of a process
# that is twice on a GPU (on two MIG instances, which no label distinguishes) is summed.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The exporter's flags that change its output, with its names."""

    backend: str = ""  # --collect.backend: exec, nvml or demo; empty: the source of the devices
    compute_apps: bool = False  # --collect.compute-apps
    compute_apps_mig: bool = False  # --collect.compute-apps-mig
    pcie_throughput: bool = False  # --collect.pcie-throughput
    query_field_names: tuple[str, ...] = ()  # empty: AUTO, all fields
    query_field_names_exclude: tuple[str, ...] = ()


class NvidiaSmiBuilder:
    def __init__(self, options: Options = Options()) -> None:  # noqa: B008 - frozen
        self._options = options
        self._columns = SmiColumns(options.query_field_names, options.query_field_names_exclude)
        self._label_sets = LabelSets()
        self._last_rows: Sequence[Cells] = ()
        self._last_families: Sequence[MetricFamily] = ()

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        snapshot = of_nvidia(snapshot)
        command = runs_the_command(snapshot, self._options.backend)
        status = backing_source(snapshot, command=command)
        rows = cells_of_devices(snapshot, command=command, only=self._options.query_field_names)
        rest = GoRegistry()
        add_health(rest, status, command=command)
        if not command:
            add_xids(rest, snapshot)
        if rows:
            add_info(rest, rows, snapshot)
            if self._options.compute_apps:
                add_apps(rest, snapshot, mig_labels=self._options.compute_apps_mig)
            if not command:
                add_extras(rest, snapshot, pcie_throughput=self._options.pcie_throughput)
        families = [*self._column_families(rows), *rest.families(self._label_sets)]
        return sorted(families, key=lambda family: family.name)

    def _column_families(self, rows: Sequence[Cells]) -> Sequence[MetricFamily]:
        """Builds the families again only after a new run of nvidia-smi: there are five snapshots per run."""
        if not _same_objects(rows, self._last_rows):
            registry = GoRegistry()
            add_columns(registry, rows, self._columns)
            self._last_rows, self._last_families = rows, registry.families(self._label_sets)
        return self._last_families


def _same_objects(some: Sequence[Cells], others: Sequence[Cells]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


FAMILY = FamilySpec(
    name="nvidia_smi",
    summary="nvidia_smi_*: what nvidia_gpu_exporter exports",
    build=lambda settings: NvidiaSmiBuilder(),
)

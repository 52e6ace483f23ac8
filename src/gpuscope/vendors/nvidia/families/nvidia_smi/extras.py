"""The metrics that nvidia_gpu_exporter adds to the columns when it reads the driver instead of nvidia-smi.

Energy, PCIe throughput (on request), MIG instances and XIDs. Memory and activity are exported once per GPU
instance, which may have several compute instances.
"""

from __future__ import annotations

from typing import Final

from gpuscope.model.readings import ABSENT, Device, Instance, Snapshot
from gpuscope.vendors.nvidia.families.nvidia_smi.cell_values import plain_uuid
from gpuscope.vendors.nvidia.families.nvidia_smi.go_registry import GoRegistry
from gpuscope.vendors.nvidia.families.nvidia_smi.naming import PREFIX
from gpuscope.vendors.nvidia.nvidia_values import reader

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

"""The fields of a reading that never change for a GPU: names, sizes, limits and modes.

Built once per GPU. A field that the model does not have is left out and is therefore ABSENT.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from gpuscope.demo.models import MHZ, MIB, Identity, Model

_NVLINK_ERRORS = ("crc_flit", "crc_data", "replay", "recovery")

OPEN, NOT_SUPPORTED = 0.0, 5.0  # the driver's codes for P2P over NVLink

Fields = dict[str, Any]


def constant_fields(index: int, model: Model, identity: Identity, mig: bool) -> Fields:
    return identity_fields(index, model, identity) | _sizes(model) | _limits(model) | _modes(model, mig)


def has_nvlink_between(model: Model, one: int, other: int) -> bool:
    """With NVSwitches, between all GPUs. In the V100 mesh, within each group of four and to the GPU at the same
    place in the other group."""
    return model.nvlinks > 6 or one // 4 == other // 4 or abs(one - other) == 4


def identity_fields(index: int, model: Model, identity: Identity) -> Fields:
    """Names and ids, which stay known when the GPU is lost."""
    fields: Fields = {
        "model": model.name,
        "brand": model.brand,
        "architecture": model.architecture,
        "compute_capability": model.compute_capability,
        "pci_bus_id": identity.pci_bus_id,
        "pci_ids": {
            "device": model.pci_ids[0],
            "sub_device": model.pci_ids[1],
            "base_class": 3,  # a display controller, 3D only or VGA
            "sub_class": 0 if model.fans else 2,
        },
        "minor_number": index,
        "vbios_version": model.vbios,
        "inforom_versions": model.inforom,
    }
    if model.part_number is not None:  # a GeForce reports neither
        fields |= {"board_part_number": model.part_number, "serial": identity.serial}
    return fields


def _sizes(model: Model) -> Fields:
    return {
        "memory_total_bytes": model.memory_bytes,
        "memory_reserved_bytes": model.reserved_mib * MIB,
        "bar1_total_bytes": model.bar1_mib * MIB,
        "pcie_link_generation_max": float(model.pcie_generation),
        "pcie_link_generation_gpu_max": float(model.pcie_generation),
        "pcie_link_width_max": 16.0,
        "accounting_buffer_size": 4000.0,
    }


def _limits(model: Model) -> Fields:
    thresholds = {
        "shutdown": float(model.shutdown_celsius),
        "slowdown": float(model.slowdown_celsius),
        "gpu_max": float(model.gpu_max_celsius),
    }
    if model.memory_max_celsius is not None:
        thresholds["memory_max"] = float(model.memory_max_celsius)
    fields: Fields = {
        "temperature_threshold_celsius": thresholds,
        "power_limit_watts": {
            "current": float(model.power_limit),
            "enforced": float(model.power_limit),
            "default": float(model.power_limit),
            "min": float(model.power_limit_min),
            "max": float(model.power_limit_max),
        },
        "clock_max_hertz": {
            "graphics": model.graphics_mhz * MHZ,
            "sm": model.graphics_mhz * MHZ,
            "memory": model.memory_mhz * MHZ,
            "video": model.video_mhz * MHZ,
        },
    }
    if model.application_mhz is not None:
        graphics, memory = model.application_mhz * MHZ, model.memory_mhz * MHZ
        fields["clock_application_hertz"] = {"graphics": graphics, "memory": memory}
        fields["clock_default_application_hertz"] = {"graphics": graphics, "memory": memory}
    return fields


def _modes(model: Model, mig: bool) -> Fields:
    fields: Fields = {
        "ecc_enabled": float(model.ecc),
        "ecc_pending": float(model.ecc),
        "compute_mode": 0.0,
        "persistence_mode": float(not model.fans),
        "power_management": 1.0,
        "display_active": 0.0,
        "display_attached": 0.0,
        "accounting_enabled": 0.0,
        "throttle_mask_supported": 0x1FF,
    }
    gsp = float(model.architecture != "Volta")  # Volta has no GSP
    fields["gsp_firmware"] = {"current": gsp, "default": gsp}
    if model.nvlinks and model.architecture in ("Hopper", "Blackwell"):
        fields |= {"fabric_state": 3.0, "fabric_status": 0.0}
        fields |= {"fabric_clique": 0.0, "fabric_cluster": str(UUID(int=0))}  # one board, no rack of them
    if model.mig:
        fields |= {"mig_enabled": float(mig), "mig_pending": float(mig)}
    if model.nvlinks and not mig:
        links = [str(link) for link in range(model.nvlinks)]
        fields["link_up"] = dict.fromkeys(links, 1.0)
        fields["link_errors"] = {(link, error): 0.0 for link in links for error in _NVLINK_ERRORS}
    return fields

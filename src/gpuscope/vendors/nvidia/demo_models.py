"""NVIDIA's models in the simulated fleet, with the numbers their data sheets and drivers give.

One row per model. What a model cannot report is None or empty here and ABSENT in every reading: a T4 has no
memory temperature, a GeForce has no serial number and no profiling units, most boards have no fan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gpuscope.model.demo_model import (
    MHZ,
    MIB,
    DemoGpus,
    DemoIdentity,
    DemoModel,
    InstanceProfile,
    Readings,
    Slowdown,
)
from gpuscope.model.readings import Driver
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, THROTTLE_BITS, make_device, make_instance
from gpuscope.vendors.nvidia.vendor import DEFAULT_COMPUTE_SLICES

OPEN, NOT_SUPPORTED = 0.0, 5.0  # the driver's codes for P2P over NVLink
_NVLINK_ERRORS = ("crc_flit", "crc_data", "replay", "recovery")
_OLD_ECC_PLACES = ("device_memory", "l1_cache", "l2_cache", "register_file")
_REASONS: Final = {
    Slowdown.IDLE: ("gpu_idle",),
    Slowdown.POWER_CAP: ("sw_power_cap",),
    Slowdown.HEAT: ("sw_thermal_slowdown",),
    Slowdown.HOT_HARDWARE: ("hw_thermal_slowdown", "hw_slowdown"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaModel(DemoModel):
    brand: str
    architecture: str
    compute_capability: str
    vbios: str
    part_number: str | None
    inforom: Mapping[str, str]
    application_mhz: int | None  # Hopper and newer models have none
    pci_ids: tuple[int, int]  # of the device and of the board; the low half is the vendor
    row_remap_banks: int = 0  # 0: page retirement instead, as before Ampere


def _profiles(*rows: tuple[str, int, int]) -> tuple[InstanceProfile, ...]:
    return tuple(
        InstanceProfile(name=name, memory_mib=mib, chip_share=slices / DEFAULT_COMPUTE_SLICES)
        for name, mib, slices in rows
    )


# A full split and a half-empty one. Ids as the driver assigns them: 3g has 1-2, 2g 3-6, 1g 7-13.
_LAYOUTS: Final = (((2, 2), (3, 1), (9, 0), (10, 0)), ((7, 0), (12, 0)))

_TABLE: Final = (
    NvidiaModel(
        key="t4", name="Tesla T4", brand="Tesla", architecture="Turing", compute_capability="7.5",
        vbios="90.04.A7.00.01", part_number="900-2G183-0000-001",
        inforom={"image": "G183.0200.00.02", "oem": "1.1", "ecc": "5.0"},
        memory_mib=15360, reserved_mib=445, bar1_mib=256, hbm=False,
        power_limit=70, power_limit_min=60, power_limit_max=70, power_idle=9.6,
        graphics_mhz=1590, memory_mhz=5001, video_mhz=1470, idle_graphics_mhz=300, idle_memory_mhz=405,
        application_mhz=585, idle_pstate=8,
        shutdown_celsius=96, slowdown_celsius=93, gpu_max_celsius=85, memory_max_celsius=None,
        reports_margin=False, celsius_per_watt=0.62, cooling_seconds=70,
        pci_ids=(0x1EB810DE, 0x12A210DE),
        pcie_generation=3, contains_errors=False, fp64_counter=False, integer_counter=False,
    ),
    NvidiaModel(
        key="v100", name="Tesla V100-SXM2-32GB", brand="Tesla", architecture="Volta", compute_capability="7.0",
        vbios="88.00.48.00.02", part_number="900-2G503-0010-000",
        inforom={"image": "G503.0203.00.05", "oem": "1.1", "ecc": "5.0"},
        memory_mib=32768, reserved_mib=271, bar1_mib=32768, hbm=True,
        power_limit=300, power_limit_min=150, power_limit_max=300, power_idle=42,
        graphics_mhz=1530, memory_mhz=877, video_mhz=1372, idle_graphics_mhz=135, idle_memory_mhz=877,
        application_mhz=1290, idle_pstate=0,
        shutdown_celsius=90, slowdown_celsius=87, gpu_max_celsius=83, memory_max_celsius=85,
        reports_margin=False, celsius_per_watt=0.13, cooling_seconds=45,
        pci_ids=(0x1DB510DE, 0x124910DE),
        pcie_generation=3, links=6, link_bytes_per_second=25.781e9,
        contains_errors=False, integer_counter=False,
    ),
    NvidiaModel(
        key="rtx4090", name="NVIDIA GeForce RTX 4090", brand="GeForce", architecture="Ada Lovelace",
        compute_capability="8.9", vbios="95.02.3C.40.B8", part_number=None,
        inforom={"image": "G002.0000.00.03", "oem": "2.0"},
        memory_mib=24564, reserved_mib=493, bar1_mib=32768, hbm=False,
        power_limit=450, power_limit_min=150, power_limit_max=600, power_idle=18,
        graphics_mhz=3105, memory_mhz=10501, video_mhz=2415, idle_graphics_mhz=210, idle_memory_mhz=405,
        application_mhz=None, idle_pstate=8,
        shutdown_celsius=100, slowdown_celsius=97, gpu_max_celsius=90, memory_max_celsius=None,
        reports_margin=True, celsius_per_watt=0.105, cooling_seconds=60,
        pci_ids=(0x268410DE, 0x889D1043),
        pcie_generation=4, fans=2, ecc=False, profiling=False,
    ),
    NvidiaModel(
        key="l4", name="NVIDIA L4", brand="NVIDIA", architecture="Ada Lovelace", compute_capability="8.9",
        vbios="95.04.29.00.06", part_number="900-2G193-0000-000",
        inforom={"image": "G193.0200.00.01", "oem": "2.1", "ecc": "6.16"},
        memory_mib=23034, reserved_mib=450, bar1_mib=32768, hbm=False,
        power_limit=72, power_limit_min=40, power_limit_max=72, power_idle=12.4,
        graphics_mhz=2040, memory_mhz=6251, video_mhz=1770, idle_graphics_mhz=210, idle_memory_mhz=405,
        application_mhz=2040, idle_pstate=8,
        shutdown_celsius=98, slowdown_celsius=95, gpu_max_celsius=87, memory_max_celsius=None,
        reports_margin=True, celsius_per_watt=0.56, cooling_seconds=65,
        pci_ids=(0x27B810DE, 0x16CA10DE),
        pcie_generation=4, row_remap_banks=96,
    ),
    NvidiaModel(
        key="a100-40", name="NVIDIA A100-SXM4-40GB", brand="NVIDIA", architecture="Ampere",
        compute_capability="8.0", vbios="92.00.45.00.05", part_number="692-2G506-0200-003",
        inforom={"image": "G506.0200.00.04", "oem": "2.0", "ecc": "6.16"},
        memory_mib=40960, reserved_mib=516, bar1_mib=65536, hbm=True,
        power_limit=400, power_limit_min=100, power_limit_max=400, power_idle=52,
        graphics_mhz=1410, memory_mhz=1215, video_mhz=1290, idle_graphics_mhz=210, idle_memory_mhz=1215,
        application_mhz=1095, idle_pstate=0,
        shutdown_celsius=92, slowdown_celsius=89, gpu_max_celsius=85, memory_max_celsius=95,
        reports_margin=False, celsius_per_watt=0.095, cooling_seconds=40,
        pci_ids=(0x20B010DE, 0x144E10DE),
        pcie_generation=4, links=12, link_bytes_per_second=25e9, row_remap_banks=640,
        profiles=_profiles(("1g.5gb", 4864, 1), ("2g.10gb", 9984, 2), ("3g.20gb", 20096, 3)),
        layouts=_LAYOUTS,
    ),
    NvidiaModel(
        key="a100-80", name="NVIDIA A100-SXM4-80GB", brand="NVIDIA", architecture="Ampere",
        compute_capability="8.0", vbios="92.00.9E.00.10", part_number="692-2G506-0210-002",
        inforom={"image": "G506.0210.00.05", "oem": "2.0", "ecc": "6.16"},
        memory_mib=81920, reserved_mib=612, bar1_mib=131072, hbm=True,
        power_limit=400, power_limit_min=100, power_limit_max=400, power_idle=61,
        graphics_mhz=1410, memory_mhz=1593, video_mhz=1290, idle_graphics_mhz=210, idle_memory_mhz=1593,
        application_mhz=1275, idle_pstate=0,
        shutdown_celsius=92, slowdown_celsius=89, gpu_max_celsius=85, memory_max_celsius=95,
        reports_margin=False, celsius_per_watt=0.095, cooling_seconds=40,
        pci_ids=(0x20B210DE, 0x146310DE),
        pcie_generation=4, links=12, link_bytes_per_second=25e9, row_remap_banks=640,
        profiles=_profiles(("1g.10gb", 9728, 1), ("2g.20gb", 19968, 2), ("3g.40gb", 40192, 3)),
        layouts=_LAYOUTS,
    ),
    NvidiaModel(
        key="h100", name="NVIDIA H100 80GB HBM3", brand="NVIDIA", architecture="Hopper",
        compute_capability="9.0", vbios="96.00.A5.00.01", part_number="692-2G520-0200-000",
        inforom={"image": "G520.0200.00.05", "oem": "2.1", "ecc": "7.16"},
        memory_mib=81559, reserved_mib=479, bar1_mib=131072, hbm=True,
        power_limit=700, power_limit_min=200, power_limit_max=700, power_idle=69.8,
        graphics_mhz=1980, memory_mhz=2619, video_mhz=1545, idle_graphics_mhz=345, idle_memory_mhz=2619,
        application_mhz=None, idle_pstate=0,
        shutdown_celsius=92, slowdown_celsius=89, gpu_max_celsius=87, memory_max_celsius=95,
        reports_margin=True, celsius_per_watt=0.058, cooling_seconds=38,
        pci_ids=(0x233010DE, 0x16C110DE),
        pcie_generation=5, links=18, link_bytes_per_second=26.562e9, row_remap_banks=2560,
        profiles=_profiles(("1g.10gb", 9984, 1), ("2g.20gb", 20096, 2), ("3g.40gb", 40448, 3)),
        layouts=_LAYOUTS,
    ),
    NvidiaModel(
        key="h200", name="NVIDIA H200", brand="NVIDIA", architecture="Hopper", compute_capability="9.0",
        vbios="96.00.D0.00.03", part_number="692-2G520-0280-000",
        inforom={"image": "G520.0280.00.01", "oem": "2.1", "ecc": "7.16"},
        memory_mib=143771, reserved_mib=608, bar1_mib=262144, hbm=True,
        power_limit=700, power_limit_min=200, power_limit_max=700, power_idle=76,
        graphics_mhz=1980, memory_mhz=3201, video_mhz=1545, idle_graphics_mhz=345, idle_memory_mhz=3201,
        application_mhz=None, idle_pstate=0,
        shutdown_celsius=92, slowdown_celsius=89, gpu_max_celsius=87, memory_max_celsius=95,
        reports_margin=True, celsius_per_watt=0.057, cooling_seconds=38,
        pci_ids=(0x233510DE, 0x18BE10DE),
        pcie_generation=5, links=18, link_bytes_per_second=26.562e9, row_remap_banks=3072,
        profiles=_profiles(("1g.18gb", 16384, 1), ("2g.35gb", 33280, 2), ("3g.71gb", 71424, 3)),
        layouts=_LAYOUTS,
    ),
    NvidiaModel(
        key="b200", name="NVIDIA B200", brand="NVIDIA", architecture="Blackwell", compute_capability="10.0",
        vbios="97.00.82.00.13", part_number="692-2G525-0220-000",
        inforom={"image": "G525.0220.00.03", "oem": "2.1", "ecc": "7.16"},
        memory_mib=183359, reserved_mib=742, bar1_mib=262144, hbm=True,
        power_limit=1000, power_limit_min=200, power_limit_max=1000, power_idle=141,
        graphics_mhz=1965, memory_mhz=3996, video_mhz=1575, idle_graphics_mhz=120, idle_memory_mhz=3996,
        application_mhz=None, idle_pstate=0,
        shutdown_celsius=92, slowdown_celsius=89, gpu_max_celsius=87, memory_max_celsius=95,
        reports_margin=True, celsius_per_watt=0.043, cooling_seconds=36,
        pci_ids=(0x290110DE, 0x199910DE),
        pcie_generation=5, links=18, link_bytes_per_second=53.125e9, row_remap_banks=4096,
        profiles=_profiles(("1g.23gb", 22272, 1), ("2g.45gb", 45312, 2), ("3g.90gb", 91392, 3)),
        layouts=_LAYOUTS,
    ),
    NvidiaModel(
        key="gb200", name="NVIDIA GB200", brand="NVIDIA", architecture="Blackwell", compute_capability="10.0",
        vbios="97.00.B9.00.69", part_number="692-2G548-0220-000",
        inforom={"image": "G548.0220.00.05", "oem": "2.1", "ecc": "7.16"},
        memory_mib=189471, reserved_mib=880, bar1_mib=262144, hbm=True,
        power_limit=1200, power_limit_min=200, power_limit_max=1200, power_idle=168,
        graphics_mhz=2062, memory_mhz=3996, video_mhz=1650, idle_graphics_mhz=120, idle_memory_mhz=3996,
        application_mhz=None, idle_pstate=0,
        shutdown_celsius=92, slowdown_celsius=89, gpu_max_celsius=87, memory_max_celsius=95,
        reports_margin=True, celsius_per_watt=0.027, cooling_seconds=18, is_on_arm=True,  # liquid-cooled
        pci_ids=(0x294110DE, 0x204610DE),
        pcie_generation=5, links=18, link_bytes_per_second=53.125e9, row_remap_banks=4096,
        profiles=_profiles(("1g.24gb", 23040, 1), ("2g.47gb", 47104, 2), ("3g.95gb", 94720, 3)),
        layouts=_LAYOUTS,
    ),
)  # fmt: skip


# PCI bus numbers of eight-GPU boards by generation; further GPUs get the following numbers.
_HGX_H100: Final = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_HGX_A100: Final = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
_PLAIN: Final = (0x01, 0x21, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1)


def _pci_bus_id(model: NvidiaModel, gpu: int) -> str:
    if model.key == "gb200":  # two GPUs per Grace CPU, each in its own PCI domain
        domain = (0x08, 0x09, 0x18, 0x19)[gpu % 4] + 0x20 * (gpu // 4)
        return f"{domain:08X}:01:00.0"
    buses = _HGX_A100 if model.key.startswith("a100") else _HGX_H100 if model.links else _PLAIN
    return f"{gpu // len(buses):08X}:{buses[gpu % len(buses)]:02X}:00.0"


def constant_readings(index: int, model: NvidiaModel, identity: DemoIdentity, split: bool) -> Readings:
    return identity_readings(index, model, identity) | _sizes(model) | _limits(model) | _modes(model, split)


def _has_link_between(model: NvidiaModel, one: int, other: int) -> bool:
    """With NVSwitches, between all GPUs. In the V100 mesh, within each group of four and to the GPU at the same
    place in the other group."""
    return model.links > 6 or one // 4 == other // 4 or abs(one - other) == 4


def identity_readings(index: int, model: NvidiaModel, identity: DemoIdentity) -> Readings:
    """Names and ids, which stay known when the GPU is lost."""
    readings: Readings = {
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
        readings |= {"board_part_number": model.part_number, "serial": identity.serial}
    return readings


def _sizes(model: NvidiaModel) -> Readings:
    return {
        "memory_total_bytes": model.memory_bytes,
        "memory_reserved_bytes": model.reserved_mib * MIB,
        "bar1_total_bytes": model.bar1_mib * MIB,
        "pcie_link_generation_max": float(model.pcie_generation),
        "pcie_link_generation_gpu_max": float(model.pcie_generation),
        "pcie_link_width_max": 16.0,
        "accounting_buffer_size": 4000.0,
    }


def _limits(model: NvidiaModel) -> Readings:
    thresholds = {
        "shutdown": float(model.shutdown_celsius),
        "slowdown": float(model.slowdown_celsius),
        "gpu_max": float(model.gpu_max_celsius),
    }
    if model.memory_max_celsius is not None:
        thresholds["memory_max"] = float(model.memory_max_celsius)
    readings: Readings = {
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
        readings["clock_application_hertz"] = {"graphics": graphics, "memory": memory}
        readings["clock_default_application_hertz"] = {"graphics": graphics, "memory": memory}
    return readings


def _modes(model: NvidiaModel, split: bool) -> Readings:
    readings: Readings = {
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
    readings["gsp_firmware"] = {"current": gsp, "default": gsp}
    if model.links and model.architecture in ("Hopper", "Blackwell"):
        readings |= {"fabric_state": 3.0, "fabric_status": 0.0}
        readings |= {"fabric_clique": 0.0, "fabric_cluster": str(UUID(int=0))}  # one board, no rack of them
    if model.profiles:
        readings |= {"mig_enabled": float(split), "mig_pending": float(split)}
    if model.links and not split:
        links = [str(link) for link in range(model.links)]
        readings["link_up"] = dict.fromkeys(links, 1.0)
        readings["link_errors"] = {(link, error): 0.0 for link in links for error in _NVLINK_ERRORS}
    return readings


def peer_readings(model: NvidiaModel, index: int, peers: list[int]) -> Readings:
    statuses = {str(peer): OPEN if _has_link_between(model, index, peer) else NOT_SUPPORTED for peer in peers}
    return {"p2p_nvlink_status": statuses}


def varying_readings(model: NvidiaModel, simulated: Readings) -> Readings:
    """With the driver's mask of throttle reasons, its counters of them, and what profiling units count."""
    readings = dict(simulated)
    slowdown = Slowdown(readings.pop("slowdown"))
    names = [name for reason in slowdown for name in _REASONS[reason]]
    readings["throttle_mask"] = sum(THROTTLE_BITS[name] for name in names)
    capped, heat, hot_hardware = readings.pop("slowed_seconds")
    hot = round(heat + hot_hardware, 6)
    capped = round(capped, 6)
    readings["throttled_seconds"] = {
        "sw_power_cap": capped,
        "sync_boost": 0.0,
        "sw_thermal_slowdown": round(heat, 6),
        "hw_thermal_slowdown": round(hot_hardware, 6),
        "hw_power_brake_slowdown": 0.0,
    }
    readings["violation_seconds"] = {
        "power": capped,
        "thermal": hot,
        "sync_boost": 0.0,
        "board_limit": 0.0,
        "low_utilization": 0.0,
        "reliability": 0.0,
        "total_app_clocks": capped + hot,
        "total_base_clocks": hot,
    }
    link_rate = readings.pop("link_rate", None)
    if model.profiling:
        readings["profiled_pcie_bytes_per_second"] = readings["pcie_bytes_per_second"]
        if link_rate is not None:
            readings["profiled_nvlink_bytes_per_second"] = {"tx": link_rate, "rx": link_rate}
    if "utilization_ratio" in readings and model.architecture not in ("Turing", "Volta"):
        readings |= {"jpeg_utilization_ratio": 0.0, "ofa_utilization_ratio": 0.0}
    return readings | _ecc_readings(model, readings["ecc_errors"]) if model.ecc else readings


def _ecc_readings(model: NvidiaModel, counts: Mapping[tuple[str, str], float]) -> Readings:
    places = ("device_memory", "sram") if model.row_remap_banks else _OLD_ECC_PLACES
    located = {
        (*key, place): count if place == "device_memory" else 0.0
        for key, count in counts.items()
        for place in places
    }
    before_boot = counts["corrected", "aggregate"] - counts["corrected", "volatile"]
    spares = _spares(model, before_boot, counts["uncorrected", "volatile"])
    return {"ecc_location_errors": located} | spares


def _spares(model: NvidiaModel, corrected: float, uncorrected: float) -> Readings:
    """What the memory does about errors: whole pages are retired, or, from Ampere on, rows replaced."""
    pending = float(uncorrected > 0)
    if not model.row_remap_banks:
        return {
            "retired_pages": {"single_bit": corrected, "double_bit": min(uncorrected, 60.0)},
            "retired_pages_pending": pending,
        }
    rows = min(uncorrected, 8.0)
    return {
        "remapped_rows": {"correctable": corrected, "uncorrectable": rows},
        "row_remap_pending": pending,
        "row_remap_failed": float(uncorrected > 8),
        "row_remap_banks": {
            "max": model.row_remap_banks - rows - corrected,
            "high": corrected,
            "partial": rows,
            "low": 0.0,
            "none": 0.0,
        },
    }


DEMO: Final = DemoGpus(
    vendor=NVIDIA,
    models={model.key: model for model in _TABLE},
    aliases={"a100": "a100-80", "a100-mig": "a100-80-mig", "4090": "rtx4090"},
    split_suffix="-mig",
    driver=Driver(driver_version="580.95.05", library_versions={"nvml": "13.580.95.05", "cuda": "13.0"}),
    error_reporter="nvml",
    uuid_start="GPU-",
    instance_uuid_start="MIG-",
    pci_bus_id=_pci_bus_id,
    identity_readings=identity_readings,
    constant_readings=constant_readings,
    varying_readings=varying_readings,
    peer_readings=peer_readings,
    make_device=make_device,
    make_instance=make_instance,
)

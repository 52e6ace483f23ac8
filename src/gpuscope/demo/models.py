"""The GPU models a simulated fleet can have, with the numbers their data sheets and drivers give.

One row per model. What a model cannot report is None or empty here and ABSENT in every reading: a T4 has no
memory temperature, a GeForce has no serial number and no profiling units, most boards have no fan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.demo.jobs import as_uuid, digest
from gpuscope.model.readings import Uuid

MIB: Final = 1024.0 * 1024.0
MHZ: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    name: str
    memory_mib: int
    compute_slices: int  # of seven


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    key: str  # what a user types
    name: str
    brand: str
    architecture: str
    compute_capability: str
    vbios: str
    part_number: str | None
    inforom: Mapping[str, str]

    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    hbm: bool  # stacked memory has its own temperature sensor

    power_limit: float
    power_limit_min: float
    power_limit_max: float
    power_idle: float

    graphics_mhz: int
    memory_mhz: int
    video_mhz: int
    idle_graphics_mhz: int
    idle_memory_mhz: int
    application_mhz: int | None  # Hopper and newer models have none
    idle_pstate: int

    shutdown_celsius: float
    slowdown_celsius: float
    gpu_max_celsius: float
    memory_max_celsius: float | None
    reports_margin: bool
    celsius_per_watt: float
    cooling_seconds: float  # the time constant with which temperature follows power

    pci_ids: tuple[int, int]  # of the device and of the board; the low half is the vendor
    pcie_generation: int
    nvlinks: int = 0
    nvlink_bytes_per_second: float = 0.0  # of one link, each way
    fans: int = 0
    ecc: bool = True
    row_remap_banks: int = 0  # 0: page retirement instead, as before Ampere
    profiling: bool = True
    fp64_counter: bool = True
    integer_counter: bool = True
    mig: tuple[MigProfile, ...] = ()
    mig_layouts: tuple[tuple[tuple[int, int], ...], ...] = ()  # (GI id, row of `mig`); ids are sparse

    @property
    def memory_bytes(self) -> float:
        return self.memory_mib * MIB


def _mig(*rows: tuple[str, int, int]) -> tuple[MigProfile, ...]:
    return tuple(MigProfile(name=name, memory_mib=mib, compute_slices=slices) for name, mib, slices in rows)


# A full split and a half-empty one. Ids as the driver assigns them: 3g has 1-2, 2g 3-6, 1g 7-13.
_LAYOUTS: Final = (((2, 2), (3, 1), (9, 0), (10, 0)), ((7, 0), (12, 0)))

_TABLE: Final = (
    Model(
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
        pcie_generation=3, fp64_counter=False, integer_counter=False,
    ),
    Model(
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
        pcie_generation=3, nvlinks=6, nvlink_bytes_per_second=25.781e9, integer_counter=False,
    ),
    Model(
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
    Model(
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
    Model(
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
        pcie_generation=4, nvlinks=12, nvlink_bytes_per_second=25e9, row_remap_banks=640,
        mig=_mig(("1g.5gb", 4864, 1), ("2g.10gb", 9984, 2), ("3g.20gb", 20096, 3)), mig_layouts=_LAYOUTS,
    ),
    Model(
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
        pcie_generation=4, nvlinks=12, nvlink_bytes_per_second=25e9, row_remap_banks=640,
        mig=_mig(("1g.10gb", 9728, 1), ("2g.20gb", 19968, 2), ("3g.40gb", 40192, 3)), mig_layouts=_LAYOUTS,
    ),
    Model(
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
        pcie_generation=5, nvlinks=18, nvlink_bytes_per_second=26.562e9, row_remap_banks=2560,
        mig=_mig(("1g.10gb", 9984, 1), ("2g.20gb", 20096, 2), ("3g.40gb", 40448, 3)), mig_layouts=_LAYOUTS,
    ),
    Model(
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
        pcie_generation=5, nvlinks=18, nvlink_bytes_per_second=26.562e9, row_remap_banks=3072,
        mig=_mig(("1g.18gb", 16384, 1), ("2g.35gb", 33280, 2), ("3g.71gb", 71424, 3)), mig_layouts=_LAYOUTS,
    ),
    Model(
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
        pcie_generation=5, nvlinks=18, nvlink_bytes_per_second=53.125e9, row_remap_banks=4096,
        mig=_mig(("1g.23gb", 22272, 1), ("2g.45gb", 45312, 2), ("3g.90gb", 91392, 3)), mig_layouts=_LAYOUTS,
    ),
    Model(
        key="gb200", name="NVIDIA GB200", brand="NVIDIA", architecture="Blackwell", compute_capability="10.0",
        vbios="97.00.B9.00.69", part_number="692-2G548-0220-000",
        inforom={"image": "G548.0220.00.05", "oem": "2.1", "ecc": "7.16"},
        memory_mib=189471, reserved_mib=880, bar1_mib=262144, hbm=True,
        power_limit=1200, power_limit_min=200, power_limit_max=1200, power_idle=168,
        graphics_mhz=2062, memory_mhz=3996, video_mhz=1650, idle_graphics_mhz=120, idle_memory_mhz=3996,
        application_mhz=None, idle_pstate=0,
        shutdown_celsius=92, slowdown_celsius=89, gpu_max_celsius=87, memory_max_celsius=95,
        reports_margin=True, celsius_per_watt=0.027, cooling_seconds=18,  # liquid-cooled
        pci_ids=(0x294110DE, 0x204610DE),
        pcie_generation=5, nvlinks=18, nvlink_bytes_per_second=53.125e9, row_remap_banks=4096,
        mig=_mig(("1g.24gb", 23040, 1), ("2g.47gb", 47104, 2), ("3g.95gb", 94720, 3)), mig_layouts=_LAYOUTS,
    ),
)  # fmt: skip

MODELS: Final[dict[str, Model]] = {model.key: model for model in _TABLE}


def find_model(text: str) -> tuple[Model, bool]:
    """The model a user named (`h100`, `A100-80-mig`), and whether some of its GPUs are to be split by MIG."""
    wanted = text.strip().lower().replace(" ", "").replace("_", "-")
    wanted = {"a100": "a100-80", "a100-mig": "a100-80-mig", "4090": "rtx4090"}.get(wanted, wanted)
    model = MODELS.get(wanted.removesuffix("-mig"))
    split = wanted.endswith("-mig")
    if model is None or (split and not model.mig):
        names = ", ".join(m.key + (" (or " + m.key + "-mig)" if m.mig else "") for m in _TABLE)
        raise UsageError(f"--demo-model: {text!r} is not one of {names}")
    return model, split


# UUID, serial number and PCI address of a simulated GPU, derived from the seed, in the real formats.

DRIVER_VERSION: Final = "580.95.05"
NVML_VERSION: Final = "13.580.95.05"
CUDA_VERSION: Final = "13.0"

# PCI bus numbers of eight-GPU boards by generation; further GPUs get the following numbers.
_HGX_H100: Final = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
_HGX_A100: Final = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
_PLAIN: Final = (0x01, 0x21, 0x41, 0x61, 0x81, 0xA1, 0xC1, 0xE1)


@dataclass(frozen=True, slots=True)
class Identity:
    uuid: Uuid
    serial: str
    pci_bus_id: str
    quality: float  # power that this chip needs, as a share of the model's worst chip
    warmth: float  # degrees Celsius that its place in the airflow adds


def identify(seed: int, node: int, gpu: int, model: Model) -> Identity:
    salt = digest("gpu", seed, node, gpu)
    return Identity(
        uuid=Uuid("GPU-" + as_uuid(salt)),
        serial=f"165{int(salt[32:44], 16) % 10**10:010d}",
        pci_bus_id=_pci_bus_id(model, gpu),
        quality=0.95 + 0.05 * int(salt[44:48], 16) / 0xFFFF,
        warmth=6.0 * int(salt[48:52], 16) / 0xFFFF,
    )


def instance_uuid(seed: int, node: int, gpu: int, gpu_instance: int) -> Uuid:
    return Uuid("MIG-" + as_uuid(digest("mig", seed, node, gpu, gpu_instance)))


def _pci_bus_id(model: Model, gpu: int) -> str:
    if model.key == "gb200":  # two GPUs per Grace CPU, each in its own PCI domain
        domain = (0x08, 0x09, 0x18, 0x19)[gpu % 4] + 0x20 * (gpu // 4)
        return f"{domain:08X}:01:00.0"
    buses = _HGX_A100 if model.key.startswith("a100") else _HGX_H100 if model.nvlinks else _PLAIN
    return f"{gpu // len(buses):08X}:{buses[gpu % len(buses)]:02X}:00.0"

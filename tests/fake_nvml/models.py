"""GPU models for the fake driver: what each can do and how big it is.

A row in, the state keys of one idle GPU out. What a model does not have is simply not among its
keys, and the library answers "not supported" for it. Sizes are those of nvidia-smi on real cards.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
TURING, VOLTA, AMPERE, ADA, HOPPER, BLACKWELL = 6, 5, 7, 8, 9, 10
GEFORCE, TESLA, NVIDIA = 5, 2, 14

ECC_LOCATIONS = ("l1", "l2", "dram", "register", "texture", "texture_shared", "cbu", "sram")


@dataclass(frozen=True, slots=True)
class Model:
    """One card. Memory in MiB, power in watts, clocks in MHz, NVLink speed in MB/s per link."""

    name: str
    architecture: int
    capability: tuple[int, int]
    sms: int
    cores: int
    memory: int
    bus_bits: int
    power: tuple[int, int, int, int]  # idle, default, lowest limit, highest limit
    clocks: tuple[int, int, int]  # highest graphics and SM, memory, video
    pcie_gen: int
    device_id: int
    brand: int = NVIDIA
    nvlink: tuple[int, int, int] | None = None  # links, version, speed
    nvswitch: bool = True
    mig_max: int = 0
    ecc: bool = True
    fans: int = 0
    memory_sensor: bool = True
    c2c_links: int = 0
    serial: bool = True


MODELS: dict[str, Model] = {
    "T4": Model(
        "Tesla T4", TURING, (7, 5), 40, 2560, 15360, 256, (9, 70, 60, 70),
        (1590, 5001, 1470), 3, 0x1EB810DE, memory_sensor=False,
    ),
    "V100": Model(
        "Tesla V100-SXM2-32GB", VOLTA, (7, 0), 80, 5120, 32768, 4096, (42, 300, 150, 300),
        (1530, 877, 1372), 3, 0x1DB510DE, brand=TESLA, nvlink=(6, 2, 25781), nvswitch=False,
    ),
    "A100": Model(
        "NVIDIA A100-SXM4-80GB", AMPERE, (8, 0), 108, 6912, 81920, 5120, (62, 400, 100, 400),
        (1410, 1593, 1290), 4, 0x20B210DE, nvlink=(12, 3, 25000), mig_max=7,
    ),
    "L4": Model(
        "NVIDIA L4", ADA, (8, 9), 58, 7424, 23034, 192, (16, 72, 40, 72),
        (2040, 6251, 1770), 4, 0x27B810DE, memory_sensor=False,
    ),
    "RTX 4090": Model(
        "NVIDIA GeForce RTX 4090", ADA, (8, 9), 128, 16384, 24564, 384, (21, 450, 150, 600),
        (3105, 10501, 2415), 4, 0x268410DE, brand=GEFORCE, ecc=False, fans=2, memory_sensor=False, serial=False,
    ),
    "H100": Model(
        "NVIDIA H100 80GB HBM3", HOPPER, (9, 0), 132, 16896, 81559, 5120, (71, 700, 200, 700),
        (1980, 2619, 1545), 5, 0x233010DE, nvlink=(18, 4, 26562), mig_max=7,
    ),
    "H200": Model(
        "NVIDIA H200", HOPPER, (9, 0), 132, 16896, 143771, 6144, (76, 700, 200, 700),
        (1980, 3201, 1545), 5, 0x233510DE, nvlink=(18, 4, 26562), mig_max=7,
    ),
    "B200": Model(
        "NVIDIA B200", BLACKWELL, (10, 0), 148, 18944, 183359, 8192, (140, 1000, 200, 1000),
        (1965, 3996, 1965), 5, 0x290110DE, nvlink=(18, 5, 50000), mig_max=7,
    ),
    "GB200": Model(
        "NVIDIA GB200", BLACKWELL, (10, 0), 152, 19456, 189471, 8192, (160, 1200, 200, 1200),
        (2062, 3996, 1965), 5, 0x294110DE, nvlink=(18, 5, 50000), mig_max=7, c2c_links=10,
    ),
}  # fmt: skip


def idle_flows(model: Model) -> dict[str, float]:
    """Every flow the model has, at rest."""
    flows: dict[str, float] = dict.fromkeys(
        ("util", "util_memory", "util_encoder", "util_decoder", "pcie_tx_kbps", "pcie_rx_kbps"), 0
    )
    flows["power_mw"] = model.power[0] * 1000
    reasons = (
        "app_clocks sw_power_cap hw_slowdown sync_boost sw_thermal hw_thermal hw_power_brake display_clocks"
    )
    flows |= dict.fromkeys([f"reason_{name}" for name in reasons.split()], 0)
    flows["reason_idle"] = 1
    flows |= dict.fromkeys(("policy_board_limit", "policy_low_utilization", "policy_reliability"), 0)
    if model.architecture >= AMPERE:
        flows |= {"util_jpeg": 0, "util_ofa": 0}
    if model.nvlink:
        flows |= {"nvlink_tx_kibps": 0, "nvlink_rx_kibps": 0}
    if model.architecture >= HOPPER:
        profiling = (
            "sm_active sm_occupancy tensor tensor_fp64 tensor_fp16 tensor_int dram fp64 fp32 fp16 integer"
        )
        flows |= dict.fromkeys(profiling.split(), 0)
    return flows


def levels(model: Model, index: int) -> dict[str, float]:
    """Every plain number the model has, idle, as GPU number `index` of its machine."""
    keys: dict[str, float] = {
        **_identity(model, index),
        **_memory_and_heat(model),
        **_power_and_clocks(model),
        **_links(model),
    }
    if model.ecc:
        keys |= _errors(model)
    if model.mig_max:
        keys |= {"mig_mode": 0, "mig_pending": 0, "mig_max": model.mig_max}
    if model.architecture >= HOPPER:
        keys["gpm"] = 1
    return keys


def zero_fields(model: Model) -> list[int]:
    """Field values that only count trouble: supported, and 0 on a healthy card."""
    fields: list[int] = []
    if model.architecture >= HOPPER:
        fields += [169, *range(173, 184)]  # PCIe error counters
    if model.nvlink and model.nvlink[1] >= 5:
        fields += [*range(205, 216), *range(219, 223)]  # NVLink 5 error and recovery counters, bit error ratios
    return fields


def _identity(model: Model, index: int) -> dict[str, float]:
    bus = 0x0A + index * 0x11
    return {
        "index": index,
        "minor": index,
        "brand": model.brand,
        "architecture": model.architecture,
        "capability_major": model.capability[0],
        "capability_minor": model.capability[1],
        "cores": model.cores,
        "pci_domain": bus >> 8,
        "pci_bus": bus & 0xFF,
        "pci_device": 0,
        "pci_device_id": model.device_id,
        "pci_subsystem_id": 0x16C110DE,
        "board_id": bus << 8,
        "multi_gpu_board": 0,
        "irq": 100 + index,
        "memory_bus_bits": model.bus_bits,
        "compute_mode": 0,
        "persistence_mode": 1,
        "accounting_mode": 0,
        "accounting_buffer": 4000,
        "display_mode": 0,
        "display_active": 0,
        "virtualization_mode": 0,
        "process_utilization": 1,
        "numa_node": 0,
        "gsp_mode": int(model.architecture >= HOPPER),
        "recovery_action": 0,
    }


def _memory_and_heat(model: Model) -> dict[str, float]:
    keys: dict[str, float] = {
        "memory_total": model.memory * MIB,
        "memory_reserved": (model.memory // 128) * MIB,
        "memory_used": 0,
        "protected_total": 0,
        "protected_used": 0,
        "bar1_total": 256 * MIB if model.architecture < VOLTA else 1 << model.memory.bit_length() + 20,
        "bar1_used": MIB,
        "temperature": 34,
        "threshold_shutdown": 92,
        "threshold_slowdown": 89,
        "threshold_gpu_max": 87,
        "fans": model.fans,
    }
    if model.memory_sensor:
        keys |= {"temperature_memory": 41, "threshold_memory_max": 95}
    if model.architecture >= ADA:
        keys |= {"temperature_margin": 51, "tlimit_shutdown": -8, "tlimit_slowdown": -2, "tlimit_gpu_max": 0}
        if model.memory_sensor:
            keys["tlimit_memory_max"] = 0
    if model.fans:
        keys |= {"fan_percent": 30, "fan_target_percent": 30, "fan_rpm": 1180}
        keys |= {"fan_min_percent": 30, "fan_max_percent": 100}
        keys |= {"threshold_acoustic_min": 65, "threshold_acoustic_current": 84, "threshold_acoustic_max": 88}
    return keys


def _power_and_clocks(model: Model) -> dict[str, float]:
    _, default, lowest, highest = (watts * 1000 for watts in model.power)
    graphics, memory, video = model.clocks
    keys: dict[str, float] = {
        "energy_mj": 0,
        "power_is_averaged": int(model.architecture >= ADA),  # the A100 still answers with the instant
        "power_management": 1,
        "power_limit_mw": default,
        "power_enforced_mw": default,
        "power_default_mw": default,
        "power_min_mw": lowest,
        "power_max_mw": highest,
        "clock_graphics": 345,
        "clock_sm": 345,
        "clock_memory": memory,
        "clock_video": 765,
        "clock_graphics_max": graphics,
        "clock_sm_max": graphics,
        "clock_memory_max": memory,
        "clock_video_max": video,
        "clock_graphics_boost_max": graphics,
        "pstate": 0,
        "reasons_supported": 0x1FF,
    }
    if model.brand != GEFORCE:
        for kind in ("app", "app_default"):
            keys |= {f"clock_graphics_{kind}": graphics, f"clock_memory_{kind}": memory}
    return keys


def _links(model: Model) -> dict[str, float]:
    keys: dict[str, float] = {
        "pcie_gen": model.pcie_gen,
        "pcie_gen_max": model.pcie_gen,
        "pcie_gen_device_max": model.pcie_gen,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_replay": 0,
        "pcie_replay_rollover": 0,
        "pcie_speed_mbps": 1000 << model.pcie_gen,
        "pcie_link_max_speed": model.pcie_gen,
    }
    if model.nvlink:
        links, version, speed = model.nvlink
        keys |= {"nvlink_count": links, "nvlink_version": version, "nvlink_speed_mbps": speed}
        keys["nvlink_remote"] = 2 if model.nvswitch else 0
        keys["nvlink_byte_counters"] = int(version >= 5)
    if model.architecture >= HOPPER:
        keys |= {"fabric_state": 3, "fabric_status": 0, "fabric_clique": 0, "fabric_health": 2, "module_id": 1}
        keys["c2c_mode"] = int(model.c2c_links > 0)
        keys |= {"platform_slot": 0, "platform_tray": 0, "platform_host": 1, "platform_module": 7}
    if model.c2c_links:
        keys["c2c_links"] = model.c2c_links
    return keys


def _errors(model: Model) -> dict[str, float]:
    keys: dict[str, float] = {"ecc_mode": 1, "ecc_pending": 1, "ecc_default": 1}
    newer = model.architecture >= AMPERE
    # from Ampere on the driver tells DRAM and SRAM apart and no finer
    for location in ("dram", "sram") if newer else [name for name in ECC_LOCATIONS if name != "sram"]:
        for kind in ("corrected", "uncorrected"):
            keys |= {f"ecc_{kind}_{span}_{location}": 0 for span in ("volatile", "aggregate")}
    if not newer:
        return keys | {"retired_pending": 0}
    spans = [
        f"{span}_{kind}" for span in ("volatile", "aggregate") for kind in ("parity", "secded", "corrected")
    ]
    buckets = [f"bucket_{part}" for part in ("l2", "sm", "pcie", "mcu", "other")]
    keys |= {f"sram_{part}": 0 for part in (*spans, *buckets, "threshold_exceeded")}
    keys |= {f"remapped_{part}": 0 for part in ("correctable", "uncorrectable", "pending", "failure")}
    keys |= {f"remap_banks_{part}": 0 for part in ("high", "partial", "low", "none")}
    return keys | {"remap_banks_max": 2560 if model.bus_bits >= 4096 else 192}

"""One card of each family, with plausible numbers: what kernel 6.x shows for MI300X, MI250, RX 7900, an APU.

The numbers are chosen so that each has its own value: a test that confuses two of them fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.vendors.amd.trees import GIB, AmdCard, AmdMachine, encode_metrics, write_link

UNIQUE_ID = 0x5F8C1B2A3D4E5F60
MI300X_ID = 0x74A1
MI250_ID = 0x740C
RX7900_ID = 0x744C
APU_ID = 0x15BF

MI300X_METRICS: Mapping[str, int | Sequence[int]] = {
    "temperature_hotspot": 61,
    "temperature_mem": 55,
    "temperature_vrsoc": 60,
    "curr_socket_power": 613,
    "average_gfx_activity": 87,
    "average_umc_activity": 41,
    "energy_accumulator": 65536 * 1_000_000,
    "system_clock_counter": 10**15,
    "accumulation_counter": 1_000_000,
    "prochot_residency_acc": 0,
    "ppt_residency_acc": 20_000,
    "socket_thm_residency_acc": 0,
    "vr_thm_residency_acc": 0,
    "hbm_thm_residency_acc": 300,
    "pcie_link_width": 16,
    "pcie_link_speed": 320,
    "xgmi_link_width": 16,
    "xgmi_link_speed": 32,
    "pcie_replay_count_acc": 3,
    "xgmi_read_data_acc": [1000, 2000, 3000, 4000, 5000, 6000, 7000],
    "xgmi_write_data_acc": [100, 200, 300, 400, 500, 600, 700],
    "current_gfxclk": [2100, 2100, 2100, 2100, 1900, 1900, 1900, 1900],
    "current_socclk": [1200, 1200, 1200, 1200],
    "current_vclk0": [29, 29, 29, 29],
    "current_dclk0": [22, 22, 22, 22],
    "current_uclk": 1300,
    "num_partition": 1,
}
MI300X_PARTITION: Mapping[str, int | Sequence[int]] = {
    "gfx_busy_inst": [90, 90, 90, 90, 80, 80, 80, 80],
    "vcn_busy": [0, 12, 0, 0],
    "jpeg_busy": [0, 0, 7],
}
MI250_METRICS: Mapping[str, int | Sequence[int]] = {
    "temperature_edge": 45,
    "temperature_hotspot": 52,
    "temperature_mem": 50,
    "average_gfx_activity": 33,
    "average_umc_activity": 11,
    "average_mm_activity": 0,
    "average_socket_power": 280,
    "energy_accumulator": 65536 * 5000,
    "current_gfxclk": 1700,
    "current_uclk": 1600,
    "current_socclk": 1090,
    "throttle_status": 2,
    "indep_throttle_status": 1 << 0 | 1 << 34,
    "temperature_hbm": [50, 51, 49, 0],
    "pcie_link_width": 16,
    "pcie_link_speed": 160,
}
RX7900_METRICS: Mapping[str, int | Sequence[int]] = {
    "temperature_edge": 57,
    "temperature_hotspot": 72,
    "temperature_mem": 70,
    "temperature_vrgfx": 0,
    "average_gfx_activity": 99,
    "average_umc_activity": 30,
    "average_mm_activity": 4,
    "average_socket_power": 303,
    "energy_accumulator": 17_691_682,
    "current_gfxclk": 2365,
    "current_uclk": 1249,
    "current_socclk": 1163,
    "current_vclk0": 1312,
    "current_dclk0": 1093,
    "current_fan_speed": 1520,
    "indep_throttle_status": 1 << 36,
    "pcie_link_width": 8,
    "pcie_link_speed": 160,
}
RAS_BLOCKS = ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")


def add_mi300x(
    machine: AmdMachine, address: str = "0000:c1:00.0", *, unique_id: int = UNIQUE_ID, with_node: bool = True
) -> AmdCard:
    """In mode SPX: one partition."""
    number = len(machine.cards)
    card = machine.add_card(address, MI300X_ID, {
        "unique_id": f"{unique_id:016x}\n",
        "product_name": "AMD Instinct MI300X OAM\n",
        "product_number": "102-G30211-00\n",
        "serial_number": f"69241900{number:04d}\n",
        "vbios_version": "113-M3000100-103\n",
        "gpu_busy_percent": 88,
        "mem_busy_percent": 42,
        "mem_info_vram_total": 192 * GIB,
        "mem_info_vram_used": 81 * GIB,
        "mem_info_gtt_total": 1007 * GIB,
        "mem_info_gtt_used": 3 * GIB,
        "current_compute_partition": "SPX\n",
        "current_memory_partition": "NPS1\n",
        "available_compute_partition": "SPX, DPX, QPX, CPX\n",
        "pcie_replay_count": 3,
        "pp_dpm_sclk": "S: 19Mhz\n0: 132Mhz\n1: 2100Mhz *\n",
        "pp_dpm_mclk": "0: 900Mhz\n1: 1100Mhz\n2: 1300Mhz *\n",
        "power/runtime_status": "active\n",
        "power/control": "on\n",
        "gpu_metrics": encode_metrics((1, 6), MI300X_METRICS, [MI300X_PARTITION]),
        **hwmon_files("hwmon5", {2: ("junction", 61000), 3: ("mem", 55000)}, power="power1_input", watts=613),
        **{f"ras/{block}_err_count": "ue: 0\nce: 0\n" for block in RAS_BLOCKS},
        "ras/umc_err_count": "ue: 0\nce: 2\nde: 1\n",
        "ras/gpu_vram_bad_pages": "",
        "ras/features": "feature mask: 0x3fff\n",
    })  # fmt: skip
    if with_node:
        machine.add_node(
            address, gpu_id_of(number), drm_render_minor=128 + number, unique_id=unique_id, hive_id=77
        )
    return card


def gpu_id_of(number: int) -> int:
    return 50_000 + 11 * number


def hwmon_files(
    name: str, temperatures: Mapping[int, tuple[str, int]], *, power: str, watts: int
) -> dict[str, str | bytes | int]:
    folder = f"hwmon/{name}"
    files: dict[str, str | bytes | int] = {
        f"{folder}/name": "amdgpu\n",
        f"{folder}/{power}": watts * 1_000_000,
        f"{folder}/power1_label": "PPT\n",
        f"{folder}/power1_cap": 750_000_000,
        f"{folder}/power1_cap_default": 750_000_000,
        f"{folder}/power1_cap_max": 755_000_000,
        f"{folder}/power1_cap_min": 0,
        f"{folder}/freq1_input": 2_000_000_000,
        f"{folder}/freq1_label": "sclk\n",
        f"{folder}/freq2_input": 1_300_000_000,
        f"{folder}/freq2_label": "mclk\n",
    }
    for number, (label, millidegrees) in temperatures.items():
        files[f"{folder}/temp{number}_label"] = f"{label}\n"
        files[f"{folder}/temp{number}_input"] = millidegrees
        files[f"{folder}/temp{number}_crit"] = 100_000 + 1000 * number
        files[f"{folder}/temp{number}_emergency"] = 110_000 + 1000 * number
    return files


def add_mi250(machine: AmdMachine, address: str = "0000:29:00.0") -> AmdCard:
    """One of the two dies of an MI250, each of which is a GPU of its own."""
    number = len(machine.cards)
    card = machine.add_card(address, MI250_ID, {
        "unique_id": f"{UNIQUE_ID + 1 + number:016x}\n",
        "product_name": "AMD INSTINCT MI250 (MCM) OAM AC MBA\n",
        "vbios_version": "113-D65210-063\n",
        "gpu_busy_percent": 34,
        "mem_info_vram_total": 64 * GIB,
        "mem_info_vram_used": 10 * GIB,
        "mem_info_gtt_total": 500 * GIB,
        "mem_info_gtt_used": 12 << 20,
        "pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz *\n",
        "power/runtime_status": "active\n",
        "gpu_metrics": encode_metrics((1, 3), MI250_METRICS),
        **hwmon_files("hwmon3", {1: ("edge", 45000), 2: ("junction", 52000), 3: ("mem", 50000)},
                      power="power1_average", watts=280),
        "ras/umc_err_count": "ue: 1\nce: 40\n",
        "ras/gpu_vram_bad_pages": "0x027f5d43 : 0x00001000 : R\n0x027f5d4b : 0x00001000 : P\n",
    })  # fmt: skip
    machine.add_node(address, gpu_id_of(number), simd_count=416, num_xcc=1, gfx_target_version=90010,
                     device_id=MI250_ID, drm_render_minor=128 + number)  # fmt: skip
    return card


def add_rx7900(machine: AmdMachine, address: str = "0000:03:00.0") -> AmdCard:
    """A graphics card: behind its own switch, with a fan, without a name, in a slot with eight lanes."""
    number = len(machine.cards)
    card = machine.add_card(address, RX7900_ID, {
        "revision": "0xc8\n",
        "unique_id": f"{UNIQUE_ID + 100 + number:016x}\n",
        "product_name": "\n",
        "vbios_version": "113-3E4710U-O4X\n",
        "gpu_busy_percent": 98,
        "mem_busy_percent": 29,
        "mem_info_vram_total": 24 * GIB,
        "mem_info_vram_used": 7 * GIB,
        "mem_info_gtt_total": 32 * GIB,
        "mem_info_gtt_used": 1 * GIB,
        "pcie_replay_count": 0,
        "pp_dpm_sclk": "0: 500Mhz\n1: 2365Mhz *\n2: 2660Mhz\n",
        "pp_dpm_mclk": "0: 96Mhz\n1: 1249Mhz *\n",
        "power/runtime_status": "active\n",
        "gpu_metrics": encode_metrics((1, 3), RX7900_METRICS),
        **hwmon_files("hwmon4", {1: ("edge", 57000), 2: ("junction", 72000), 3: ("mem", 70000)},
                      power="power1_average", watts=303),
        "hwmon/hwmon4/fan1_input": 1523,
        "hwmon/hwmon4/fan1_max": 3300,
        "hwmon/hwmon4/pwm1": 102,
    }, parents=("0000:01:00.0", "0000:02:00.0"))  # fmt: skip
    switch = card.folder.parent.parent
    write_link(switch, "16.0 GT/s PCIe", 8, "16.0 GT/s PCIe", 16)
    write_link(switch.parent, "16.0 GT/s PCIe", 8, "32.0 GT/s PCIe", 8)
    machine.add_node(address, gpu_id_of(number), simd_count=192, simd_per_cu=2, num_xcc=1,
                     gfx_target_version=110000, device_id=RX7900_ID, drm_render_minor=128 + number)  # fmt: skip
    return card


def add_apu(machine: AmdMachine, address: str = "0000:04:00.0") -> AmdCard:
    """A processor with graphics: its memory is the machine's, its metrics are 3.0."""
    number = len(machine.cards)
    card = machine.add_card(address, APU_ID, {
        "gpu_busy_percent": 23,
        "vcn_busy_percent": 6,
        "mem_info_vram_total": 512 << 20,
        "mem_info_vram_used": 400 << 20,
        "mem_info_gtt_total": 14 * GIB,
        "mem_info_gtt_used": 5 * GIB,
        "power/runtime_status": "active\n",
        "gpu_metrics": encode_metrics((3, 0), {
            "temperature_gfx": 4900, "average_gfx_activity": 24, "average_socket_power": 21_000,
            "average_gfxclk_frequency": 1100, "average_uclk_frequency": 2800, "average_fclk_frequency": 1600,
            "throttle_residency_prochot": 0, "throttle_residency_spl": 10, "throttle_residency_thm_gfx": 0,
        }),
        **hwmon_files("hwmon2", {1: ("edge", 49000)}, power="power1_average", watts=21),
    })  # fmt: skip
    machine.add_node(address, gpu_id_of(number), simd_count=24, simd_per_cu=2, num_xcc=1,
                     gfx_target_version=110003, device_id=APU_ID, drm_render_minor=128 + number)  # fmt: skip
    return card


def add_old(machine: AmdMachine, address: str = "0000:09:00.0") -> AmdCard:
    """A card on a kernel without `gpu_metrics`, KFD, RAS and labels of sensors."""
    return machine.add_card(address, 0x67DF, {
        "gpu_busy_percent": 5,
        "mem_info_vram_total": 8 * GIB,
        "mem_info_vram_used": 900 << 20,
        "hwmon/hwmon1/temp1_input": 41000,
        "hwmon/hwmon1/power1_average": 33_000_000,
    })  # fmt: skip


def split_mi300x(machine: AmdMachine, address: str = "0000:c1:00.0", *, in_function: bool = False) -> AmdCard:
    """In mode CPX: eight partitions, each with a node of its own and a compute die."""
    card = add_mi300x(machine, address, with_node=False)
    card.write("current_compute_partition", "CPX\n")
    parts = [{"gfx_busy_inst": [10 * number]} for number in range(8)]
    card.metrics((1, 6), {**MI300X_METRICS, "num_partition": 8}, parts)
    for number in range(8):
        minor = 128 + card.number if number == 0 else 160 + number
        if number:
            machine.add_partition_device(number + 29, minor)
        where = f"{address[:-1]}{number}" if in_function else address
        machine.add_node(
            where, 60_000 + number, partition=0 if in_function else number, simd_count=152, num_xcc=1,
            drm_render_minor=minor, memory=24 * GIB,
        )  # fmt: skip
    return card

"""Snapshots for the DCGM families: H100s, an A100 with MIG, a T4 and a GeForce, read by NVML or by DCGM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuscope.model.readings import ABSENT, Device, Driver, ErrorTotal, Snapshot, SourceStatus, Uuid
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, make_device, make_instance

MIB = 1048576.0
DRIVER = Driver(driver_version="550.163.01", library_versions={"nvml": "12.550.163.01", "cuda": "12.4"})


def snapshot(
    *devices: Device, at: float = 1_700_000_000.0, xids: Sequence[ErrorTotal] = (), up: str = "nvml"
) -> Snapshot:
    sources = (SourceStatus(name=up, up=True, why=""),) if up else ()
    return Snapshot(
        node="node1",
        taken_at=at,
        drivers={NVIDIA: DRIVER},
        devices=devices,
        errors=tuple(xids),
        sources=sources,
    )


def h100(index: int, **readings: Any) -> Device:
    """A busy H100 as NVML reads it."""
    values: dict[str, Any] = {
        "model": "NVIDIA H100 80GB HBM3",
        "brand": "NVIDIA",
        "serial": f"156282108390{index}",
        "pci_bus_id": f"00000000:{0x1A + index:02X}:00.0",
        "minor_number": index,
        "vbios_version": "96.00.89.00.01",
        "inforom_versions": {"image": "G520.0200.00.05", "oem": "2.1", "ecc": "7.16"},
        "clock_hertz": {"sm": 1755e6, "memory": 2619e6, "graphics": 1755e6, "video": 1545e6},
        "temperature_celsius": {"gpu": 68.0, "memory": 81.0},
        "power_watts": 613.257,
        "energy_joules": 1234567.891,
        "pcie_replays": 0.0,
        "utilization_ratio": 0.58,
        "memory_utilization_ratio": 0.29,
        "encoder_utilization_ratio": 0.0,
        "decoder_utilization_ratio": 0.0,
        "memory_total_bytes": 81559 * MIB,
        "memory_used_bytes": 40960.5 * MIB,
        "memory_free_bytes": 40000 * MIB,
        "memory_reserved_bytes": 598.5 * MIB,
        "remapped_rows": {"correctable": 0.0, "uncorrectable": 2.0},
        "row_remap_failed": 0.0,
        "row_remap_pending": 0.0,
        "ecc_errors": {
            ("corrected", "volatile"): 3.0,
            ("uncorrected", "volatile"): 0.0,
            ("corrected", "aggregate"): 5.0,
            ("uncorrected", "aggregate"): 0.0,
        },
        "violation_seconds": {"power": 1.5, "thermal": 0.0, "sync_boost": 0.0},
        "throttle_mask": 0x4,
        "engine_active_ratio": {"graphics": 0.5812345678, "sm": 0.5, "tensor": 0.412, "dram": 0.0},
        "sm_occupancy_ratio": 0.25,
        "profiled_pcie_bytes_per_second": {"tx": 123456789.9, "rx": 98765432.0},
        "profiled_nvlink_bytes_per_second": {"tx": 1.5e9, "rx": 2.5e9},
        "link_errors": {("0", "crc_flit"): 1.0, ("1", "crc_flit"): 2.0, ("0", "replay"): 0.0},
        "link_up": {"0": 1.0, "1": 1.0},
    }
    uuid = Uuid(f"GPU-0000000{index}-aaaa-bbbb-cccc-dddddddddddd")
    return make_device(uuid=uuid, index=index, **(values | readings))


def a100_mig() -> Device:
    """An A100 split in two: the GPU has temperature and power, the instances memory and profiling."""
    whole = h100(
        0,
        model="NVIDIA A100-SXM4-40GB",
        utilization_ratio=ABSENT,
        memory_utilization_ratio=ABSENT,
        mig_enabled=1.0,
    )
    instances = (
        make_instance(
            uuid=Uuid("MIG-11111111-0000-5000-8000-000000000001"),
            gpu_instance=1,
            compute_instance=0,
            profile="3g.20gb",
            memory_used_bytes=13 * MIB,
            memory_free_bytes=19955 * MIB,
            memory_total_bytes=19968 * MIB,
            engine_active_ratio={"graphics": 0.125},
        ),
        make_instance(
            uuid=Uuid("MIG-22222222-0000-5000-8000-000000000002"),
            gpu_instance=13,
            compute_instance=0,
            profile="1g.5gb",
            memory_used_bytes=0.0,
            memory_free_bytes=4864 * MIB,
        ),
    )
    return replace(whole, instances=instances)


def t4() -> Device:
    return make_device(
        uuid=Uuid("GPU-44444444-aaaa-bbbb-cccc-dddddddddddd"),
        index=0,
        model="Tesla T4",
        pci_bus_id="00000000:00:1E.0",
        clock_hertz={"sm": 585e6, "memory": 5001e6},
        temperature_celsius={"gpu": 41.0},
        power_watts=27.4,
        energy_joules=88.5,
        utilization_ratio=0.0,
        memory_utilization_ratio=0.0,
        memory_used_bytes=0.0,
        memory_free_bytes=15360 * MIB,
        retired_pages={"single_bit": 0.0, "double_bit": 0.0},
        retired_pages_pending=0.0,
        dcgm_fields={0: 0, 1004: 0.412, 1001: 0.993, 1009: 4294967296, 155: 27.31, 230: 0},
    )


def geforce() -> Device:
    """A GPU without ECC, NVLink and profiling."""
    return make_device(
        uuid=Uuid("GPU-66666666-aaaa-bbbb-cccc-dddddddddddd"),
        index=0,
        model="NVIDIA GeForce RTX 4080 SUPER",
        brand="GeForce",
        pci_bus_id="00000000:01:00.0",
        clock_hertz={"sm": 2520e6, "memory": 11501e6},
        temperature_celsius={"gpu": 55.0},
        power_watts=101.2,
        utilization_ratio=1.0,
        memory_used_bytes=1024 * MIB,
        memory_free_bytes=15000 * MIB,
        fan_speed_ratio={"0": 0.3, "1": 0.31},
        pcie_replays=0.0,
    )

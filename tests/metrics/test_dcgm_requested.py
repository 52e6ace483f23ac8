"""Rows of a counters file that are not in the default: values from readings, and one warning for the others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuscope.base.settings import Settings, load_settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import Device, Driver, Snapshot
from gpuscope.serve.stand_ins import plan_listeners, settings_for
from gpuscope.vendors.nvidia.dcgm.devices import wanted_ids
from gpuscope.vendors.nvidia.families.dcgm.builder import DcgmBuilder
from gpuscope.vendors.nvidia.families.dcgm.counters_csv import parse_counters
from gpuscope.vendors.nvidia.families.dcgm.dcgm_options import DcgmOptions
from gpuscope.vendors.nvidia.families.dcgm.table import OPT_IN_COUNTERS, counter_id
from gpuscope.vendors.nvidia.fields import all_fields
from gpuscope.vendors.nvidia.nvidia_values import NVIDIA, make_device
from tests.metrics.dcgm_machines import h100, snapshot

NOW = 1_700_000_000.0
ECC_PLACES = ("l1_cache", "l2_cache", "device_memory", "register_file", "texture_memory")


def builder(*names: str) -> DcgmBuilder:
    rows = parse_counters("".join(f"{name}, gauge, {name}\n" for name in names), "test")
    return DcgmBuilder(lambda: rows, DcgmOptions())


def values(made: DcgmBuilder, shot: Snapshot) -> dict[str, str]:
    lines = encode_text(made.to_families(shot)).decode().splitlines()
    return {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines if not line.startswith("#")}


def one_value(name: str, device: Device, **changes: Any) -> str | None:
    return values(builder(name), replace(snapshot(device), **changes)).get(name)


def test_ecc_errors_by_location() -> None:
    errors = {
        (error, lifetime, place): float(
            1000 * (lifetime == "aggregate") + 10 * number + (error == "uncorrected")
        )
        for error in ("corrected", "uncorrected")
        for lifetime in ("volatile", "aggregate")
        for number, place in enumerate(ECC_PLACES)
    }
    found = {
        f"{bits}_{life}_{place}": one_value(
            f"DCGM_FI_DEV_ECC_{bits}_{life}_{place}", h100(0, ecc_location_errors=errors)
        )
        for bits in ("SBE", "DBE")
        for life in ("VOL", "AGG")
        for place in ("L1", "L2", "DEV", "REG", "TEX")
    }
    assert found == {
        f"{bits}_{life}_{place}": str(1000 * (life == "AGG") + 10 * number + (bits == "DBE"))
        for bits in ("SBE", "DBE")
        for life in ("VOL", "AGG")
        for number, place in enumerate(("L1", "L2", "DEV", "REG", "TEX"))
    }


ERRORS = {"CRC_FLIT": "crc_flit", "CRC_DATA": "crc_data", "REPLAY": "replay", "RECOVERY": "recovery"}


@pytest.mark.parametrize("link", range(18))
def test_nvlink_errors_and_bytes_of_each_link(link: int) -> None:
    """DCGM's ids are not in order; its names contain the link."""
    errors = {(str(n), error): float(100 * n + k) for n in range(18) for k, error in enumerate(ERRORS.values())}
    profiled = {(str(n), way): 1000.0 * n + k + 0.9 for n in range(18) for k, way in enumerate(("tx", "rx"))}
    device = h100(0, link_errors=errors, profiled_nvlink_link_bytes_per_second=profiled)
    for number, name in enumerate(ERRORS):
        assert one_value(f"DCGM_FI_DEV_NVLINK_{name}_ERROR_COUNT_L{link}", device) == str(100 * link + number)
    assert one_value(f"DCGM_FI_PROF_NVLINK_L{link}_TX_BYTES", device) == str(1000 * link)
    assert one_value(f"DCGM_FI_PROF_NVLINK_L{link}_RX_BYTES", device) == str(1000 * link + 1)


@pytest.mark.parametrize("link", [0, 5, 6, 11, 12, 14, 15, 17])
def test_nvlink_throughput_of_each_link_is_the_growth_of_its_counters(link: int) -> None:
    names = [f"DCGM_FI_DEV_NVLINK_{way}BANDWIDTH_L{link}" for way in ("", "TX_", "RX_")]
    made = builder(*names)

    def shot(second: int) -> Snapshot:
        links = {
            (str(n), way): second * (n + 1) * share * 1024e3
            for n in range(18)
            for way, share in (("tx", 30), ("rx", 70))
        }
        return snapshot(h100(0, link_bytes_each=links), at=NOW + second)

    values(made, shot(10))
    found = values(made, shot(20))
    assert [found[name] for name in names] == [str((link + 1) * rate) for rate in (100, 30, 70)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DCGM_FI_CUDA_DRIVER_VERSION", "12040"),
        ("DCGM_FI_DEV_PCI_COMBINED_ID", str(0x233010DE)),
        ("DCGM_FI_DEV_PCI_SUBSYS_ID", str(0x16C110DE)),
        ("DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY", str(9 << 16 | 1)),
        ("DCGM_FI_DEV_CPU_AFFINITY_0", "9007199254740993"),  # more than a double holds
        ("DCGM_FI_DEV_CPU_AFFINITY_1", "-1"),
        ("DCGM_FI_DEV_MEM_AFFINITY_3", "8"),
        ("DCGM_FI_DEV_CC_MODE", "1"),
        ("DCGM_FI_DEV_P2P_NVLINK_STATUS", "6"),
        ("DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", "0.300000"),
        ("DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "0.200000"),
        ("DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", "0.100000"),
    ],
)
def test_further_fields_of_the_driver(name: str, expected: str) -> None:
    device = h100(
        0,
        compute_capability="9.1",
        pci_ids={"device": 0x233010DE, "sub_device": 0x16C110DE},
        cpu_affinity={"0": 9007199254740993, "1": (1 << 64) - 1},
        memory_affinity={"3": 8},
        p2p_nvlink_status={"1": 0.0, "2": 0.0, "3": 5.0},
        tensor_pipe_active_ratio={"imma": 0.3, "hmma": 0.2, "dfma": 0.1},
    )
    driver = Driver(library_versions={"cuda": "12.4"}, modes={"confidential_compute": 1})
    assert one_value(name, device, drivers={NVIDIA: driver}) == expected
    bare = make_device(uuid=device.uuid, index=0, power_watts=1.0)
    assert one_value(name, bare, drivers={}) is None, "absent is never 0"


def test_the_rows_only_dcgm_can_fill_are_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = builder(
        "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX", "DCGM_FI_PROF_NVDEC0_ACTIVE"
    )
    empty = replace(snapshot(), devices=())
    for shot in (empty, snapshot(h100(0)), snapshot(h100(0)), snapshot(h100(1))):
        values(made, shot)
    assert [record.getMessage() for record in caplog.records] == [
        "only DCGM has DCGM_FI_PROF_NVDEC0_ACTIVE; these rows of the counters file have no samples without "
        "--source dcgm"
    ]


def test_no_warning_with_dcgm_or_for_nvidias_own_rows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values(builder("DCGM_FI_PROF_NVDEC0_ACTIVE"), snapshot(h100(0, dcgm_fields={0: 0, 150: 33})))
    (plan,) = plan_listeners(Settings(), [("dcgm-exporter", ())])
    list(plan.builders[0].to_families(snapshot(h100(0))))
    values(builder(*(row.name for row in OPT_IN_COUNTERS if not row.is_label)), snapshot(h100(0)))
    assert caplog.records == []


def test_p2p_status_from_dcgms_bitmap() -> None:
    made = builder("DCGM_EXP_P2P_STATUS")
    gpus = [h100(n, dcgm_fields={0: n, 64: bitmap}) for n, bitmap in enumerate((0b010, 0b001, 0b000))]
    output = encode_text(made.to_families(snapshot(*gpus, up="dcgm"))).decode()
    assert re.findall(r'gpu="(\d)".*link_status="(\w+)",peer_gpu="(\d)"} (\d)', output) == [
        ("0", "OK", "1", "0"),
        ("0", "Unknown", "2", "6"),
        ("1", "OK", "0", "0"),
        ("1", "Unknown", "2", "6"),
        ("2", "Unknown", "0", "6"),
        ("2", "Unknown", "1", "6"),
    ]


def test_the_bitmap_is_requested_if_the_p2p_status_is_exported(tmp_path: Path) -> None:
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_EXP_P2P_STATUS, counter, P2P\n")
    assert 64 not in wanted_ids(Settings())
    assert 64 in wanted_ids(Settings(counters=str(counters)))
    (plan,) = plan_listeners(Settings(), [("dcgm-exporter", ("-f", str(counters)))])
    assert 64 in wanted_ids(settings_for([plan], Settings()))


def told(*argv: str, ours: Settings | None = None) -> Settings:
    settings = ours or Settings()
    (plan,) = plan_listeners(settings, [("dcgm-exporter", argv)])
    return settings_for([plan], settings)


def test_the_collect_interval_and_the_rows_reach_the_sources(tmp_path: Path) -> None:
    default = told()
    assert default.dcgm_interval == 30.0
    assert {100, 393, 449} <= set(default.dcgm_fields)
    assert told("-c", "1000").dcgm_interval == 1.0
    assert told("-c", "1000").interval == 1.0
    assert told("-c", "200").interval == 0.2, "faster than our own interval"
    assert told("-c", "1").interval == 0.1
    assert (told("-c", "0").dcgm_interval, told("-c", "0").interval) == (None, 1.0)
    counters = tmp_path / "counters.csv"
    counters.write_text("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, x\n")
    assert told("-f", str(counters)).dcgm_fields == (311,)
    ours = load_settings({"interval": "5s", "dcgm_interval": "15s"}, {})
    assert told("-c", "200", ours=ours).interval == 5.0, "our own flags win"
    assert told("-c", "200", ours=ours).dcgm_interval == 15.0


def test_fields_lists_only_names_a_counters_file_takes() -> None:
    for field in all_fields():
        if "dcgm" in field.names:
            kind = "label" if field.unit == "text" else "gauge"
            (row,) = parse_counters(f"{field.names['dcgm']}, {kind}, x\n", "test")
            assert row.id == field.dcgm_id == counter_id(field.names["dcgm"])

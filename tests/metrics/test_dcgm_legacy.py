"""Family `dcgm_legacy`: the 2018 exporter's lines, and fields added by id without shifting anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuscope.agent.families import load_family
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.text import encode_text
from gpuscope.model.readings import Device
from gpuscope.vendors.nvidia.families.dcgm_legacy.builder import LEGACY_METRICS, counts_up
from tests.goldens import check_golden
from tests.metrics.dcgm_machines import a100_mig, geforce, h100, snapshot, t4

SEEDS_IDS = {100, 101, 140, 150, 155, 202, 203, 204, 206, 207, 230, 240, 241, 242, 243, 244, 245, 246, 251, 252}
SEEDS_IDS |= {310, 311, 312, 313, 390, 391, 392, 409, 419, 429, 439}


def exposition(*devices: Device, fields: tuple[str, ...] = ()) -> str:
    builder = load_family("dcgm_legacy").build(Settings(fields=fields))
    return encode_text(builder.to_families(snapshot(*devices))).decode()


@pytest.mark.parametrize(
    ("name", "devices", "fields"),
    [
        ("h100x2", (h100(0), h100(1)), ("+191", "+51", "+1", "+85")),
        ("a100-mig", (a100_mig(),), ()),
        ("t4", (t4(),), ()),
        ("geforce", (geforce(),), ("+191", "+50", "+1")),
    ],
)
def test_goldens(name: str, devices: tuple[Device, ...], fields: tuple[str, ...]) -> None:
    check_golden(Path("dcgm_legacy") / f"{name}.metrics", exposition(*devices, fields=fields).encode())


def test_the_list_is_the_union_of_all_versions() -> None:
    ids = {metric.id for metric in LEGACY_METRICS}
    assert ids >= SEEDS_IDS | {156, 200, 201, 449, 1001, 1002, 1003, 1004, 1005}
    assert len(LEGACY_METRICS) == 40


def test_lines_are_the_scripts() -> None:
    lines = exposition(h100(0)).splitlines()
    uuid = "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd"
    assert lines[:3] == [
        "# HELP dcgm_sm_clock SM clock frequency (in MHz).",
        "# TYPE dcgm_sm_clock gauge",
        f'dcgm_sm_clock{{gpu="0",uuid="{uuid}"}} 1755',
    ]
    assert f'dcgm_power_usage{{gpu="0",uuid="{uuid}"}} 613.257' in lines
    assert f'dcgm_fi_prof_dram_active{{gpu="0",uuid="{uuid}"}} 0.000' in lines
    assert f'dcgm_power_violation{{gpu="0",uuid="{uuid}"}} 1500000000' in lines


def test_a_geforce_has_no_samples_for_unsupported_fields() -> None:
    output = exposition(geforce())
    assert "ecc" not in output
    assert "dcgm_gpu_temp{" in output


def test_added_fields_shift_nothing() -> None:
    plain, more = exposition(geforce()), exposition(geforce(), fields=("+50", "+191", "+1"))
    assert more.startswith(plain)
    added = more.removeprefix(plain).splitlines()
    labels = 'gpu="0",uuid="GPU-66666666-aaaa-bbbb-cccc-dddddddddddd"'
    assert added == [
        "# HELP dcgm_fan_speed Fan speed (in %).",
        "# TYPE dcgm_fan_speed gauge",
        f"dcgm_fan_speed{{{labels}}} 30",
        "# HELP dcgm_info Always 1; what the GPU says of itself in words.",
        "# TYPE dcgm_info gauge",
        f'dcgm_info{{{labels},name="NVIDIA GeForce RTX 4080 SUPER",driver_version="550.163.01"}} 1',
    ]


def test_a_field_that_is_there_already_is_not_added_again() -> None:
    assert exposition(h100(0), fields=("+150", "+252")) == exposition(h100(0))


def test_a_field_only_dcgm_knows() -> None:
    device = h100(0, dcgm_fields={400: 7})
    assert 'dcgm_nvlink_flit_crc_error_count_l0{gpu="0"' in exposition(device, fields=("+400",))
    assert "# TYPE dcgm_nvlink_flit_crc_error_count_l0 counter" in exposition(device, fields=("+400",))


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("+9999", "DCGM has no field 9999"),
        ("fan", "'fan' is not a DCGM field id such as"),
        ("+60", r"field 60 .system_topology_pci. is binary"),
        ("+", "is not a DCGM field id"),
        ("+99999999999999999999", "DCGM has no field"),
    ],
)
def test_a_wrong_field_is_one_sentence(field: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load_family("dcgm_legacy").build(Settings(fields=(field,)))


@pytest.mark.parametrize(
    ("field_id", "counter"), [(191, False), (250, False), (285, False), (314, True), (393, True), (440, False)]
)
def test_added_counters(field_id: int, counter: bool) -> None:
    assert counts_up(field_id) == counter


def test_another_parser_reads_it() -> None:
    families = list(text_string_to_metric_families(exposition(h100(0), h100(1), fields=("+51",))))
    assert all(set(sample.labels) >= {"gpu", "uuid"} for family in families for sample in family.samples)

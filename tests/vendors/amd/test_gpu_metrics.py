"""`gpu_metrics` in every revision: where the numbers are, which are absent, and files that are not whole."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.readings import ABSENT
from gpuscope.vendors.amd.amdgpu.gpu_metrics import (
    ATTRIBUTE_IDS,
    MetricsError,
    decode_gpu_metrics,
    decode_partition_metrics,
)
from gpuscope.vendors.amd.amdgpu.metrics_layouts import LAYOUTS, PARTITION_LAYOUT, Revision
from tests.vendors.amd.trees import encode_attribute, encode_attributes, encode_metrics

SIZES = {
    (1, 0): 80, (1, 1): 96, (1, 2): 104, (1, 3): 120, (1, 4): 288, (1, 5): 360, (1, 6): 1664, (1, 7): 2208,
    (1, 8): 3872, (2, 0): 120, (2, 1): 120, (2, 2): 128, (2, 3): 152, (2, 4): 168, (3, 0): 264,
}  # fmt: skip
"""As a C compiler gives them for the kernel's structs, like the offsets below."""

OFFSETS = {
    (1, 0): {"system_clock_counter": 8, "energy_accumulator": 36, "throttle_status": 68, "pcie_link_speed": 75},
    (1, 1): {"energy_accumulator": 24, "current_gfxclk": 54, "temperature_hbm": 88},
    (1, 2): {"firmware_timestamp": 96},
    (1, 3): {"average_socket_power": 22, "throttle_status": 68, "indep_throttle_status": 112},
    (1, 4): {"energy_accumulator": 24, "xgmi_read_data_acc": 104, "current_uclk": 280},
    (1, 5): {"jpeg_activity": 24, "energy_accumulator": 88, "pcie_nak_sent_count_acc": 168},
    (1, 6): {"accumulation_counter": 32, "ppt_residency_acc": 40, "num_partition": 306,
             "pcie_lc_perf_other_end_recovery": 1656},
    (1, 7): {"mem_max_bandwidth": 16, "xgmi_link_status": 264, "num_partition": 338},
    (1, 8): {"energy_accumulator": 24, "num_partition": 338, "pcie_lc_perf_other_end_recovery": 3864},
    (2, 0): {"system_clock_counter": 8, "throttle_status": 112},
    (2, 1): {"system_clock_counter": 32, "fan_pwm": 112},
    (2, 2): {"indep_throttle_status": 120},
    (2, 3): {"average_temperature_gfx": 128},
    (2, 4): {"average_gfx_current": 162},
    (3, 0): {"temperature_skin": 40, "average_socket_power": 112, "throttle_residency_prochot": 228},
}  # fmt: skip


def test_every_revision_has_the_size_of_its_struct() -> None:
    assert {revision: layout.size for revision, layout in LAYOUTS.items()} == SIZES
    assert PARTITION_LAYOUT.size == 488


@pytest.mark.parametrize("revision", LAYOUTS)
def test_numbers_are_where_the_struct_has_them(revision: Revision) -> None:
    fields = LAYOUTS[revision].fields
    assert {name: fields[name].offset for name in OFFSETS[revision]} == OFFSETS[revision]


def test_parts_of_partitions_follow_each_other() -> None:
    starts = {
        revision: [part["gfx_busy_inst"].offset for part in LAYOUTS[revision].partitions]
        for revision in ((1, 6), (1, 7), (1, 8))
    }
    assert starts[1, 6] == [312 + 168 * number for number in range(8)]
    assert starts[1, 7] == [344 + 232 * number for number in range(8)]
    assert starts[1, 8] == [344 + 440 * number for number in range(8)]


@pytest.mark.parametrize("revision", LAYOUTS)
def test_a_number_is_read_and_one_that_is_not_there_is_absent(revision: Revision) -> None:
    name = next(iter(OFFSETS[revision]))
    metrics = decode_gpu_metrics(encode_metrics(revision, {name: 7}))
    assert metrics.revision == revision
    assert metrics.number(name) == 7
    assert metrics.number("average_gfx_activity") is ABSENT
    assert metrics.numbers("no_such_field") == ()
    zero = decode_gpu_metrics(encode_metrics(revision, {name: 0}))
    assert zero.number(name) == 0


def test_a_page_of_which_the_struct_is_the_beginning_is_read() -> None:
    data = encode_metrics((1, 3), {"temperature_edge": 56}) + bytes(4096 - 120)
    assert decode_gpu_metrics(data).number("temperature_edge") == 56


def test_fields_of_several_numbers() -> None:
    metrics = decode_gpu_metrics(encode_metrics((1, 6), {"current_gfxclk": [2100, 132]}))
    assert metrics.numbers("current_gfxclk") == (2100, 132, *[ABSENT] * 6)
    assert metrics.known("current_gfxclk") == [2100, 132]


def test_only_the_partitions_in_use_count() -> None:
    parts = [{"gfx_busy_inst": [10]}, {"gfx_busy_inst": [20]}]
    metrics = decode_gpu_metrics(encode_metrics((1, 8), {"num_partition": 2}, parts))
    assert [part.known("gfx_busy_inst") for part in metrics.partitions] == [[10], [20]]
    assert decode_gpu_metrics(encode_metrics((1, 8), {})).partitions == ()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "gpu_metrics has 0 bytes"),
        (b"\x78\x00", "gpu_metrics has 2 bytes"),
        (encode_metrics((1, 3), {})[:60], "gpu_metrics 1.3 has 60 of 120 bytes"),
        (struct.pack("<HBB", 40, 1, 3) + bytes(200), "gpu_metrics 1.3 has 40 of 120 bytes"),
        (struct.pack("<HBB", 120, 4, 0) + bytes(116), "gpu_metrics 4.0 is not known"),
        (struct.pack("<HBB", 120, 1, 10) + bytes(116), "gpu_metrics 1.10 is not known"),
        (encode_attributes({"curr_socket_power": 5})[:-1], "gpu_metrics has 23 of 24 bytes"),
        (struct.pack("<HBBi", 8, 1, 9, 3), "gpu_metrics ends within its 3 attributes"),
        (struct.pack("<HBBiQ", 16, 1, 9, 1, 9 << 20 | 1), "attribute of type 9"),
        (struct.pack("<HBBiQ", 16, 1, 9, 1, 2 << 20 | 1), "gpu_metrics ends within its 1 attributes"),
    ],
)
def test_a_file_that_is_not_whole_or_not_known_is_one_sentence(data: bytes, why: str) -> None:
    with pytest.raises(MetricsError, match=why.replace(".", r"\.")):
        decode_gpu_metrics(data)


def test_attributes_say_what_they_are() -> None:
    data = encode_attributes(
        {"curr_socket_power": 712, "current_uclk": [2000, 2000], "temperature_hotspot": 0xFFFF,
         "gfx_busy_inst": [5, 0xFF, 7], "energy_accumulator": 9, "accumulation_counter": (1 << 64) - 1},
        types={"curr_socket_power": "I", "current_uclk": "H", "temperature_hotspot": "H", "gfx_busy_inst": "B"},
    )  # fmt: skip
    metrics = decode_gpu_metrics(data)
    assert metrics.number("curr_socket_power") == 712
    assert metrics.numbers("current_uclk") == (2000, 2000)
    assert metrics.number("temperature_hotspot") is ABSENT
    assert metrics.numbers("gfx_busy_inst") == (5, ABSENT, 7)
    assert metrics.number("energy_accumulator") == 9
    assert metrics.number("accumulation_counter") is ABSENT


def test_an_attribute_that_is_not_known_is_skipped_and_signed_ones_are_read() -> None:
    body = encode_attribute(900, [1, 2, 3], "h") + encode_attribute(
        ATTRIBUTE_IDS["temperature_mem"], [-5, -1], "h"
    )
    metrics = decode_gpu_metrics(struct.pack("<HBBi", 8 + len(body), 1, 9, 2) + body)
    assert metrics.numbers("temperature_mem") == (-5, ABSENT)


def test_the_speed_of_pcie_has_one_unit() -> None:
    tenths = encode_attributes({"pcie_link_speed": 320}, units={"pcie_link_speed": 7})
    whole = encode_attributes({"pcie_link_speed": 32}, units={"pcie_link_speed": 6})
    assert [decode_gpu_metrics(data).number("pcie_link_speed") for data in (tenths, whole)] == [320, 320]


def test_metrics_of_a_partition_in_both_forms() -> None:
    body = encode_attribute(ATTRIBUTE_IDS["gfx_busy_inst"], [64], "I")
    attributes = struct.pack("<HBBi", 8 + len(body), 1, 1, 1) + body
    assert decode_partition_metrics(attributes).known("gfx_busy_inst") == [64]
    plain = bytearray(b"\xff" * 488)
    struct.pack_into("<HBB", plain, 0, 488, 1, 0)
    struct.pack_into("<I", plain, PARTITION_LAYOUT.fields["gfx_busy_inst"].offset, 31)
    assert decode_partition_metrics(bytes(plain)).known("gfx_busy_inst") == [31]
    with pytest.raises(MetricsError, match="xcp_metrics 2"):
        decode_partition_metrics(struct.pack("<HBB", 8, 2, 0))


REVISIONS = st.sampled_from([*LAYOUTS, (1, 9), (7, 7)])


@given(REVISIONS, st.integers(0, 4000), st.binary(max_size=4000))
def test_no_bytes_do_more_than_raise_an_error(revision: Revision, size: int, body: bytes) -> None:
    data = struct.pack("<HBB", size, *revision) + body
    try:
        metrics = decode_gpu_metrics(data)
    except MetricsError:
        return
    for name in ATTRIBUTE_IDS:
        metrics.numbers(name)
    for part in metrics.partitions:
        part.known("gfx_busy_inst")

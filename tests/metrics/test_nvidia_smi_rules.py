"""The naming rule, the value rule and Go's number text, each against examples and against hostile input."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.exposition.sample import go_float
from gpuscope.vendors.nvidia.families.nvidia_smi.naming import (
    RESERVED,
    cell_value,
    plain_uuid,
    to_metric_name,
    usable_names,
)

HEADERS = [
    ("power.draw [W]", "nvidia_smi_power_draw_watts", 1.0),
    ("clocks.current.sm [MHz]", "nvidia_smi_clocks_current_sm_clock_hz", 1e6),
    ("memory.total [MiB]", "nvidia_smi_memory_total_bytes", 1048576.0),
    ("utilization.gpu [%]", "nvidia_smi_utilization_gpu_ratio", 0.01),
    (
        "clocks_event_reasons_counters.sync_boost [us]",
        "nvidia_smi_clocks_event_reasons_counters_sync_boost_seconds",
        1e-6,
    ),
    (
        "power_smoothing.window_multiplier [ms]",
        "nvidia_smi_power_smoothing_window_multiplier_seconds",
        1e-3,
    ),
    ("bbx.age [seconds]", "nvidia_smi_bbx_age_seconds", 1.0),
    ("ramp [W/s]", "nvidia_smi_ramp_watts_per_second", 1.0),
    ("encoder.stats.averageFps", "nvidia_smi_encoder_stats_average_fps", 1.0),
    (
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
        "nvidia_smi_ecc_errors_uncorrected_aggregate_sram_threshold_exceeded",
        1.0,
    ),
    ("fabric.clusterUuid", "nvidia_smi_fabric_cluster_uuid", 1.0),
    ("pci.baseClass", "nvidia_smi_pci_base_class", 1.0),
    ("new.thing [KB/s]", "nvidia_smi_new_thing_kb_s", 1.0),
]


@pytest.mark.parametrize(("header", "name", "multiplier"), HEADERS)
def test_names(header: str, name: str, multiplier: float) -> None:
    assert to_metric_name(header) == (name, multiplier)


@given(st.text(max_size=40))
def test_any_header_becomes_a_valid_name(header: str) -> None:
    name, multiplier = to_metric_name(header)
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name)
    assert multiplier > 0


@given(st.lists(st.sampled_from(["a.b", "a_b", "gpu.info", "aB [W]", "a.c [MiB]", "", "…"]), unique=True))
def test_a_duplicate_or_reserved_name_is_not_used(headers: list[str]) -> None:
    names = usable_names(headers)
    assert not {"a.b", "a_b"} <= names.keys()
    assert ("a.b" in names) == ("a.b" in headers and "a_b" not in headers)
    assert not {name.name for name in names.values()} & RESERVED
    assert "" not in names


VALUES = [
    ("memory.used [MiB]", "11125 MiB", 1048576.0, 11665408000.0),
    ("utilization.gpu [%]", "7 %", 0.01, 7 * 0.01),
    ("pstate", "P8", 1.0, 8.0),
    ("name", "NVIDIA L40S", 1.0, 40.0),
    ("name", "NVIDIA H100 80GB HBM3", 1.0, None),
    ("driver_version", "591.86", 1.0, 591.86),
    ("driver_version", "590.48.01", 1.0, None),
    ("pci.device_id", "0x233010DE", 1.0, 590352606.0),
    ("x", "0xZZ", 1.0, None),
    ("x", "0x1FFFFFFFFFFFFFFFF", 1.0, None),
    ("temperature.gpu.tlimit", "-3", 1.0, -3.0),
    ("compute_mode", "Exclusive_Process", 1.0, 3.0),
    ("persistence_mode", "Enabled", 1.0, 1.0),
    ("retired_pages.pending", "No", 1.0, 0.0),
    ("clocks_event_reasons.gpu_idle", "Not Active", 1.0, 0.0),
    ("gpu_recovery_action", "None", 1.0, 0.0),
    ("gpu_recovery_action", "Node Reboot", 1.0, 2.0),
    ("gpu_recovery_action", "Step 1", 1.0, None),
    ("fabric.state", "Completed", 1.0, 3.0),
    ("fabric.state", "[Unknown Error]", 1.0, None),
    *((header, token, 1.0, None) for header in ("x", "fabric.state") for token in ("", "N/A", "[N/A]", "ERR!")),
    ("x", "[Not Supported]", 1.0, None),
    ("x", "[Insufficient Permissions]", 1.0, None),
    ("x", "[GPU is lost]", 1.0, None),
]


@pytest.mark.parametrize(("header", "cell", "multiplier", "value"), VALUES)
def test_values(header: str, cell: str, multiplier: float, value: float | None) -> None:
    assert cell_value(header, cell, multiplier) == value


@given(st.text(max_size=60), st.sampled_from([1.0, 1e6, 1048576.0, 0.01]))
def test_any_cell_is_a_finite_number_or_none(cell: str, multiplier: float) -> None:
    for header in ("x", "fabric.state"):
        value = cell_value(header, cell, multiplier)
        assert value is None or math.isfinite(value)


@given(st.integers(0, 2**64 - 1))
def test_hex_is_an_unsigned_number_of_64_bits(number: int) -> None:
    assert cell_value("x", f" 0x{number:016X} ", 1e6) == float(number)


@given(st.from_regex(r"[0-9]{1,330}", fullmatch=True))
def test_a_number_too_large_to_be_one_is_none(digits: str) -> None:
    value = cell_value("x", f"{digits} MiB", 1048576.0)
    assert value is None or value == float(digits) * 1048576.0


def test_uuids_lose_their_prefix_and_their_capitals() -> None:
    assert plain_uuid(" GPU-AB12-cd ") == "ab12-cd"


GO_TEXTS = [
    (0.0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (-1.0, "-1"),
    (4000.0, "4000"),
    (99454.0, "99454"),
    (123456.0, "123456"),
    (999999.5, "999999.5"),
    (1e6, "1e+06"),
    (1234567.0, "1.234567e+06"),
    (1.98e9, "1.98e+09"),
    (706740224.0, "7.06740224e+08"),
    (0.0001, "0.0001"),
    (0.00001, "1e-05"),
    (0.000125, "0.000125"),
    (-0.25, "-0.25"),
    (84.24, "84.24"),
    (0.8300000000000001, "0.8300000000000001"),
    (1e21, "1e+21"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (5e-324, "5e-324"),
    (math.nan, "NaN"),
    (math.inf, "+Inf"),
    (-math.inf, "-Inf"),
]


@pytest.mark.parametrize(("number", "text"), GO_TEXTS, ids=lambda value: str(value))
def test_go_text(number: float, text: str) -> None:
    assert go_float(number) == text


_BITS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])


@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False), _BITS, st.integers(-(2**53), 2**53)))
def test_go_text_reads_back_and_follows_the_exponent_rule(number: float) -> None:
    if not math.isfinite(number):
        return
    text = go_float(number)
    assert float(text) == float(number)
    if number == 0:
        return
    shortest, exponent = Decimal(repr(float(number))), Decimal(repr(float(number))).adjusted()
    assert Decimal(text) == shortest
    assert ("e" in text) == (exponent < -4 or exponent >= 6)
    if "e" in text:
        mantissa, _, power = text.lstrip("-").partition("e")
        assert re.fullmatch(r"[1-9](\.[0-9]*[1-9])?", mantissa)
        assert re.fullmatch(r"[+-][0-9]{2,3}", power)
    else:
        assert re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?", text)

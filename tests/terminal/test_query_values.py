"""Units of query results and names of GPUs."""

from __future__ import annotations

import pytest

from gpuscope.cli import main
from gpuscope.cli.query import (
    gpu_names,
    unit_of_expression,
    unit_of_name,
    value_text,
    with_gpu_name,
)
from tests.cli.test_hostile_text import CLEAR, server_that_answers, vector


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gpuscope_gpu_memory_used_bytes", "65366130688", "60.9 GiB"),
        ("gpuscope_gpu_memory_used_bytes", "-1073741824", "-1.0 GiB"),
        ("gpuscope_gpu_pcie_bytes_per_second", "2e9", "1.9 GiB/s"),
        ("gpuscope_gpu_utilization_ratio", "0.8731", "87.31 %"),
        ("gpuscope_gpu_power_watts", "431.25", "431.2 W"),
        ("gpuscope_gpu_temperature_celsius", "57", "57 °C"),
        ("gpuscope_gpu_energy_joules_total", "7200000", "2 kWh"),
        ("gpuscope_gpu_clock_hertz", "1755000000", "1755 MHz"),
        ("gpuscope_process_start_time_seconds", "1700000000", "2023-11-14T22:13:20Z"),
        ("gpuscope_owner_held_seconds_total", "7260", "2h 1m"),
        ("up", "1", "1"),
        ("gpuscope_gpu_memory_used_bytes", "NaN", "NaN"),
        ("gpuscope_gpu_memory_used_bytes", "+Inf", "+Inf"),
        ("gpuscope_gpu_memory_used_bytes", "no number", "no number"),
    ],
)
def test_a_value_in_its_unit(name: str, value: str, text: str) -> None:
    assert value_text(value, unit_of_name(name)) == text


@pytest.mark.parametrize(
    ("expression", "unit"),
    [
        ("sum by (user) (gpuscope_process_memory_bytes)", "bytes"),
        ('max(gpuscope_gpu_power_watts{gpu="a*b"})', "watts"),
        ("avg_over_time(gpuscope_gpu_utilization_ratio[5m])", "ratio"),
        ("sum(rate(gpuscope_gpu_energy_joules_total[1m]))", "watts"),
        ("sum(rate(node_network_receive_bytes_total[1m]))", "bytes_per_second"),
        ("rate(gpuscope_gpu_busy_seconds_total[1m])", "ratio"),
        ("count(gpuscope_gpu_power_watts)", ""),
        ("gpuscope_gpu_power_watts / gpuscope_gpu_memory_used_bytes", ""),
        ("gpuscope_gpu_power_watts * 2", ""),
        ("a_bytes or b_watts", ""),
        ("changes(a_bytes[1h])", ""),
        ("rate(gpuscope_gpu_power_watts[1m])", ""),
        ("", ""),
    ],
)
def test_a_unit_is_given_only_where_it_is_sure(expression: str, unit: str) -> None:
    assert unit_of_expression(expression) == unit


def test_gpu_names() -> None:
    info = [
        {"uuid": "GPU-1", "gpu": "3", "node": "a"},
        {"uuid": "MIG-1", "gpu": "3_7_0", "parent_uuid": "GPU-1"},
        {"uuid": "GPU-2", "gpu": "0"},
        {},
    ]
    names = gpu_names(info)
    assert names == {"GPU-1": "a/3", "MIG-1": "a/3_7_0"}
    metric = {"uuid": "MIG-1", "gpu": "3_7_0", "instance": "a:9400", "user": "alice"}
    assert with_gpu_name(metric, names) == {"gpu": "a/3_7_0", "user": "alice"}
    assert with_gpu_name({"uuid": "GPU-2"}, names) == {"uuid": "GPU-2"}


def test_readable_and_raw(capsys: pytest.CaptureFixture[str]) -> None:
    answer = vector(
        (
            {"__name__": "x_bytes", "uuid": "GPU-1", "gpu": "0", "node": f"a{CLEAR}", "instance": "i"},
            "65366130688",
        ),
        ({"__name__": "x_bytes", "uuid": "GPU-2", "gpu": "1", "node": "a", "instance": "i"}, "0"),
    )
    with server_that_answers(answer) as url:  # the info series is answered with the same document
        assert main(["query", "x_bytes", "--server", url]) == 0
        readable = capsys.readouterr().out
        assert main(["query", "x_bytes", "--server", url, "--raw"]) == 0
        raw = capsys.readouterr().out
    assert "60.9 GiB" in readable
    assert "a/1" in readable
    assert "GPU-1" not in readable
    assert "\x1b" not in readable
    assert "65366130688" in raw
    assert "GPU-1" in raw


def test_without_info_series_uuids_stay(capsys: pytest.CaptureFixture[str]) -> None:
    answer = vector(
        ({"__name__": "x_watts", "uuid": "GPU-1"}, "1"), ({"__name__": "x_watts", "uuid": "GPU-2"}, "2")
    )
    with server_that_answers(answer) as url:
        assert main(["query", "x_watts", "--server", url]) == 0
    assert "GPU-2" in capsys.readouterr().out


def test_an_expression_the_server_cannot_parse_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"status": "error", "errorType": "bad_data", "error": "parse error: unclosed left parenthesis"}
    with server_that_answers(refused, status=400) as url:
        assert main(["query", "sum(", "--server", url]) == 2
    assert "unclosed left parenthesis" in capsys.readouterr().err

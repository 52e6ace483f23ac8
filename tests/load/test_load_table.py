"""What the command prints, from fixed readings: the lines of a second, the comparison, the JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gpuscope.model.readings import ABSENT, Device, Uuid
from gpuscope.vendors.nvidia.load.comparison import LoadedGpu
from gpuscope.vendors.nvidia.load.device_process import Progress
from gpuscope.vendors.nvidia.load.kinds import KINDS
from gpuscope.vendors.nvidia.load.load_table import agrees, comparison_lines, header, second_line, to_json
from gpuscope.vendors.nvidia.nvidia_values import make_device

TENSOR = KINDS["tensor"]
SECONDS = range(1, 11)


def device(**more: object) -> Device:
    values: dict[str, object] = {
        "utilization_ratio": 0.61,
        "engine_active_ratio": {"sm": 0.6, "graphics": 0.6, "tensor": 0.47, "dram": 0.01},
        "power_watts": 431.6,
        "clock_hertz": {"sm": 1.98e9},
        "temperature_celsius": {"gpu": 61.0},
        "throttle_mask": 0x004 | 0x001,
    }
    return make_device(uuid=Uuid("GPU-0"), index=0, **(values | more))


def gpu(reading: Device, error: str = "") -> LoadedGpu:
    loaded = LoadedGpu("0", "GPU-0", "NVIDIA H100", error=error)
    loaded.progress = [Progress(float(s), 3.0e14 * s, 0.6 * s) for s in SECONDS]
    loaded.samples = [(float(s), reading) for s in SECONDS]
    return loaded


def test_the_lines() -> None:
    loaded = gpu(device())
    assert [header(), second_line(10.0, loaded, TENSOR, device()), second_line(11.0, loaded, TENSOR, None)] == [
        "    s    GPU       achieved   util     SM  tensor   DRAM      W    MHz   °C",
        "   10      0    300 TFLOP/s    61%    60%     47%     1%    432   1980   61  sw_power_cap",
        "   11      0    300 TFLOP/s      –      –       –      –      –      –    –",
    ]


def test_the_comparison() -> None:
    assert list(comparison_lines([gpu(device())], TENSOR)) == [
        "GPU 0: 300 TFLOP/s, busy 60% of the time",
        "  utilization_ratio              expected       60%  seen   61%  agrees",
        "  sm_active_ratio                expected   54%–60%  seen   60%  agrees",
        "  graphics_engine_active_ratio   expected   54%–60%  seen   60%  agrees",
        "  dram_active_ratio              expected     0%–6%  seen    1%  agrees",
        "  tensor_active_ratio            expected    9%–60%  seen   47%  agrees",
        "  fp64_active_ratio              expected     0%–6%  seen     –  not reported",
    ]


def test_a_disagreement_and_a_failure() -> None:
    idle = gpu(device(engine_active_ratio={"tensor": 0.0, "fp64": 0.4}))
    assert [line.split()[-1] for line in comparison_lines([idle], TENSOR)][-2:] == ["disagrees", "disagrees"]
    assert not agrees([idle], TENSOR)
    failed = gpu(device(), error="CUDA_ERROR_LAUNCH_FAILED")
    assert list(comparison_lines([failed], TENSOR))[1] == "  failed: CUDA_ERROR_LAUNCH_FAILED"
    assert not agrees([failed], TENSOR)


def test_the_document() -> None:
    document = json.loads(json.dumps(to_json([gpu(device())], TENSOR)))
    (loaded,) = document.pop("gpus")
    assert document == {"kind": "tensor", "unit": "FLOP/s", "agrees": True}
    metrics = loaded.pop("metrics")
    assert loaded == {"gpu": "0", "uuid": "GPU-0", "model": "NVIDIA H100", "rate": 3.0e14, "busy_ratio": 0.6}
    assert [row["metric"] for row in metrics] == ["utilization_ratio", *TENSOR.expected]
    assert metrics[-1] == {"metric": "fp64_active_ratio", "expected": [0.0, 0.06], "verdict": "not reported"}


def test_a_card_that_reports_only_utilisation_is_compared_by_that() -> None:
    old = make_device(uuid=Uuid("GPU-0"), index=0, utilization_ratio=0.6)
    loaded = gpu(old)
    loaded.model = ABSENT
    assert agrees([loaded], TENSOR)
    assert "model" not in to_json([loaded], TENSOR)["gpus"][0]


def copying(**readings: dict[str, float]) -> LoadedGpu:
    """10 GB/s in each direction."""
    loaded = gpu(device(engine_active_ratio={"tensor": 0.0}, **readings))
    loaded.progress = [Progress(float(s), 20e9 * s, float(s)) for s in SECONDS]
    return loaded


def test_copied_bytes_are_compared_with_every_counter_of_the_link() -> None:
    seen = copying(
        profiled_pcie_bytes_per_second={"tx": 11e9, "rx": 10e9}, pcie_bytes_per_second={"tx": 10e9, "rx": 3e9}
    )
    assert list(comparison_lines([seen], KINDS["pcie"])) == [
        "GPU 0: 20 GB/s, busy 100% of the time",
        "  tensor_active_ratio            expected    0%–10%  seen    0%  agrees",
        "  profiled_pcie_bytes_per_second.tx expected 8 GB/s–14 GB/s  seen 11 GB/s  agrees",
        "  pcie_bytes_per_second.tx       expected 8 GB/s–14 GB/s  seen 10 GB/s  agrees",
        "  profiled_pcie_bytes_per_second.rx expected 8 GB/s–14 GB/s  seen 10 GB/s  agrees",
        "  pcie_bytes_per_second.rx       expected 8 GB/s–14 GB/s  seen 3 GB/s  disagrees",
    ]
    assert not agrees([seen], KINDS["pcie"])
    rows = to_json([seen], KINDS["pcie"])["gpus"][0]["metrics"]
    assert rows[-1] == {
        "metric": "pcie_bytes_per_second.rx", "expected": [8e9, 14e9], "verdict": "disagrees", "seen": 3e9
    }  # fmt: skip


def test_a_link_without_counters_is_not_compared_and_says_so() -> None:
    lines = list(comparison_lines([copying()], KINDS["nvlink"]))
    assert lines[-1].split()[0] == "profiled_nvlink_bytes_per_second.tx"
    assert lines[-1].endswith("seen –  not reported")
    assert agrees([copying()], KINDS["nvlink"])
    assert not agrees([copying(profiled_nvlink_bytes_per_second={"tx": 1e9})], KINDS["nvlink"])


def copied(sampled: Sequence[float], profiled: float = 10e9) -> LoadedGpu:
    """12 s of copies from the GPU at 10 GB/s; the driver's 20 ms samples of the steady seconds."""
    loaded = LoadedGpu("0", "GPU-0", "NVIDIA H100")
    loaded.progress = [Progress(float(s), 10e9 * s, float(s)) for s in range(1, 13)]
    loaded.samples = [
        (
            float(second),
            device(pcie_bytes_per_second={"tx": value}, profiled_pcie_bytes_per_second={"tx": profiled}),
        )
        for second, value in enumerate(sampled, 4)
    ]
    return loaded


@pytest.mark.parametrize(
    ("sampled", "expected", "verdict"),
    [
        ([10e9] * 8, "8 GB/s–14 GB/s", "agrees"),
        ([7e9] * 8, "8 GB/s–14 GB/s", "disagrees"),
        ([15e9] * 8, "8 GB/s–14 GB/s", "disagrees"),
        ([0.0, 0.0, *[10e9] * 6], "3.09 GB/s–18.9 GB/s", "agrees"),  # two fell into a gap between two copies
        ([0.0] * 8, "8 GB/s–14 GB/s", "disagrees"),
        ([*[0.0] * 7, 1e9], "7.62 GB/s–14.4 GB/s", "disagrees"),
        ([7e9], "8 GB/s–14 GB/s", "disagrees"),
    ],
)
def test_samples_of_20_ms_have_a_sampling_error(sampled: list[float], expected: str, verdict: str) -> None:
    lines = list(comparison_lines([copied(sampled)], KINDS["pcie-tx"]))
    (line,) = [line for line in lines if line.startswith("  pcie_bytes_per_second.tx")]
    assert f"expected {expected}  seen" in line
    assert line.endswith(f"  {verdict}")


def test_what_the_profiling_units_count_has_no_sampling_error() -> None:
    rows = to_json([copied([10e9] * 8, profiled=7e9)], KINDS["pcie-tx"])["gpus"][0]["metrics"]
    verdicts = {row["metric"]: row["verdict"] for row in rows}
    assert verdicts["profiled_pcie_bytes_per_second.tx"] == "disagrees"


def test_utilisation_is_sampled_too() -> None:
    loaded = gpu(device())
    steady = enumerate((0.6, 0.6, 0.3, 0.6, 0.6, 0.6), 4)  # the driver saw one moment in which the load waited
    loaded.samples = [(float(second), device(utilization_ratio=value)) for second, value in steady]
    line = list(comparison_lines([loaded], TENSOR))[1]
    assert line == "  utilization_ratio              expected   45%–75%  seen   55%  agrees"
    loaded.samples = [(float(second), device(utilization_ratio=0.5)) for second in SECONDS]
    line = list(comparison_lines([loaded], TENSOR))[1]
    assert line == "  utilization_ratio              expected       60%  seen   50%  disagrees"

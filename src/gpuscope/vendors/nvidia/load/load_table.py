"""The load as text: a line for each GPU and second, then expected against seen; or the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Device, Instance, Maybe
from gpuscope.model.vendor import idle_reasons
from gpuscope.vendors.nvidia.load.comparison import Agreement, Compared, LoadedGpu, compare
from gpuscope.vendors.nvidia.load.kinds import BYTES, Kind
from gpuscope.vendors.nvidia.nvidia_values import reader

PREFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
COLUMNS: Final = (
    ("s", 5), ("GPU", 6), ("achieved", 14), ("util", 6), ("SM", 6), ("tensor", 7), ("DRAM", 6),
    ("W", 6), ("MHz", 6), ("°C", 4),
)  # fmt: skip


def rate_text(rate: Maybe[float], unit: str) -> str:
    if rate is ABSENT:
        return "–"
    scaled, power = rate, 0
    while scaled >= 1000 and power < len(PREFIXES) - 1:
        scaled, power = scaled / 1000, power + 1
    return f"{scaled:.3g} {PREFIXES[power]}{unit}"


def _percent(value: Maybe[float]) -> str:
    return "–" if value is ABSENT else f"{100 * value:.0f}%"


def _whole(value: Maybe[float], scale: float = 1.0) -> str:
    return "–" if value is ABSENT else f"{value / scale:.0f}"


def header() -> str:
    return " ".join(f"{name:>{width}}" for name, width in COLUMNS)


def second_line(elapsed: float, gpu: LoadedGpu, kind: Kind, reading: Device | Instance | None) -> str:
    """One GPU at one second; what a MIG instance or an older card does not report is a dash."""

    def of(path: str) -> Maybe[float]:
        return reader(path)(reading)

    cells = (
        f"{elapsed:.0f}", gpu.gpu, rate_text(_last_rate(gpu), kind.unit), _percent(of("utilization_ratio")),
        _percent(of("engine_active_ratio.sm")), _percent(of("engine_active_ratio.tensor")),
        _percent(of("engine_active_ratio.dram")), _whole(of("power_watts")), _whole(of("clock_hertz.sm"), 1e6),
        _whole(of("temperature_celsius.gpu")),
    )  # fmt: skip
    line = " ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    reasons = ",".join(throttle_names(reading)) if isinstance(reading, Device) else ""
    return f"{line}  {reasons}".rstrip()


def _last_rate(gpu: LoadedGpu) -> Maybe[float]:
    """Over the last second, or since the start."""
    if not gpu.progress or not gpu.progress[-1].amount:  # a simulated load does no work
        return ABSENT
    last = gpu.progress[-1]
    before = gpu.progress[-2] if len(gpu.progress) > 1 else None
    seconds = last.elapsed - (before.elapsed if before else 0.0)
    return (last.amount - (before.amount if before else 0.0)) / seconds if seconds > 0 else ABSENT


def throttle_names(device: Device) -> list[str]:
    active = (reason for reason, is_active in device.throttle_reasons.items() if is_active)
    return [reason for reason in active if reason not in idle_reasons()]


def comparison_lines(gpus: Sequence[LoadedGpu], kind: Kind) -> Iterator[str]:
    for gpu in gpus:
        busy = gpu.busy_ratio()
        rate = gpu.rate()
        achieved = "simulated" if rate is not ABSENT and not rate else rate_text(rate, kind.unit)
        yield f"GPU {gpu.gpu}: {achieved}, busy {_percent(busy)} of the time"
        if gpu.error:
            yield f"  failed: {gpu.error}"
            continue
        rows = compare(gpu, kind)
        if not rows:
            yield "  too short to compare; use --duration 10 or more"
        for row in rows:
            yield _comparison_line(row)


def _comparison_line(row: Compared) -> str:
    if row.is_traffic:
        low, high = rate_text(row.low, BYTES), rate_text(row.high, BYTES)
        expected = f"at least {low}" if isinf(row.high) else f"{low}–{high}"
        return f"  {row.metric:<30} expected {expected}  seen {rate_text(row.seen, BYTES)}  {row.verdict}"
    expected = f"{_percent(row.low)}–{_percent(row.high)}" if row.low != row.high else _percent(row.low)
    return f"  {row.metric:<30} expected {expected:>9}  seen {_percent(row.seen):>5}  {row.verdict}"


def agrees(gpus: Sequence[LoadedGpu], kind: Kind) -> bool:
    """No GPU failed, and no metric that the monitor reports disagrees."""
    return all(
        not gpu.error and all(row.verdict is not Agreement.DISAGREES for row in compare(gpu, kind))
        for gpu in gpus
    )


def to_json(gpus: Sequence[LoadedGpu], kind: Kind) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "unit": "bytes/s" if kind.unit == BYTES else kind.unit,
        "agrees": agrees(gpus, kind),
        "gpus": [_gpu_json(gpu, kind) for gpu in gpus],
    }


def _gpu_json(gpu: LoadedGpu, kind: Kind) -> dict[str, Any]:
    """What is absent is left out."""
    facts = {
        "gpu": gpu.gpu,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "rate": gpu.rate(),
        "busy_ratio": gpu.busy_ratio(),
        "error": gpu.error or ABSENT,
    }
    metrics = [
        {"metric": row.metric, "expected": _expected_json(row), "verdict": str(row.verdict)}
        | ({} if row.seen is ABSENT else {"seen": row.seen})
        for row in ([] if gpu.error else compare(gpu, kind))
    ]
    return {name: value for name, value in facts.items() if value is not ABSENT} | {"metrics": metrics}


def _expected_json(row: Compared) -> list[float]:
    """Lowest and highest; JSON has no infinity, so a row without a highest value has one number."""
    return [row.low] if isinf(row.high) else [row.low, row.high]

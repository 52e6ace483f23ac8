"""Query results as people read them: units by metric name, and GPU names instead of UUIDs.

The unit comes from Prometheus' naming rule: the last word of a name is its base unit. A result without a name
(`sum by (user) (…)`) has the unit of the expression only if every part of the expression keeps it; otherwise
the number is shown as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from gpuscope.base.rfc3339 import to_rfc3339
from gpuscope.cli.terminal.safe_text import bytes_text, duration_text

UNITS: Final = (
    "bytes_per_second",
    "bytes",
    "ratio",
    "watts",
    "celsius",
    "joules",
    "hertz",
    "timestamp",
    "seconds",
)
_KEEPING: Final = frozenset((
    "sum", "avg", "min", "max", "topk", "bottomk", "quantile", "sort", "sort_desc", "abs", "last_over_time",
    "avg_over_time", "min_over_time", "max_over_time", "quantile_over_time", "or", "and", "unless", "offset",
    "label_replace", "label_join", "clamp", "clamp_min", "clamp_max", "limitk", "ceil", "floor", "round",
))  # fmt: skip
"""Functions and operators whose result has the unit of their argument."""
_RATES: Final = {"bytes": "bytes_per_second", "joules": "watts", "seconds": "ratio"}
_STRING: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`")
_SKIPPED: Final = re.compile(
    r"\{[^}]*\}|\[[^]]*\]|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"
)
_WORD: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_RATE: Final = re.compile(r"\b(?:rate|irate)\s*\(")


def unit_of_name(name: str) -> str:
    """The unit that a metric's name ends with; empty if with none."""
    base = name.removesuffix("_total")
    if base.endswith(("_timestamp_seconds", "_start_time_seconds", "_boot_time_seconds", "_since_seconds")):
        return "timestamp"
    return next((unit for unit in UNITS if base.endswith(f"_{unit}")), "")


def unit_of_expression(expression: str) -> str:
    """The unit of a result without a name; empty if it cannot be told without evaluating the expression."""
    plain = _SKIPPED.sub(" ", _STRING.sub(" ", expression))
    if re.search(r"[*/%^+<>=!-]", plain):
        return ""
    is_rate = _RATE.search(plain) is not None
    words = _WORD.findall(_RATE.sub("(", plain))
    units = {unit_of_name(word) for word in words if word.lower() not in _KEEPING}
    if len(units) != 1:
        return ""
    unit = units.pop()
    return _RATES.get(unit, "") if is_rate else unit


def value_text(text: str, unit: str) -> str:
    """A value of Prometheus' JSON in its unit; as it is if it has none or is not a number."""
    try:
        value = float(text)
    except ValueError:
        return text
    if not unit or not math.isfinite(value):
        return text
    return _number_text(value, unit)


def _number_text(value: float, unit: str) -> str:
    sign, size = ("-" if value < 0 else ""), abs(value)
    if unit in ("bytes", "bytes_per_second"):
        return sign + bytes_text(size) + ("/s" if unit != "bytes" else "")
    if unit == "ratio":
        return f"{value * 100:.4g} %"
    if unit == "timestamp":
        return to_rfc3339(value, "seconds") if 0 <= value < 1e11 else f"{value:g}"
    if unit == "seconds":
        return sign + duration_text(size) if size >= 60 else f"{value:.4g} s"
    if unit == "joules":
        return f"{value / 3.6e6:.4g} kWh" if size >= 3.6e4 else f"{value:.4g} J"
    if unit == "hertz":
        return f"{value / 1e6:.4g} MHz" if size >= 1e6 else f"{value:.4g} Hz"
    return f"{value:.4g} " + {"watts": "W", "celsius": "°C"}[unit]


def gpu_names(info: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """`node/GPU` by UUID, from the labels of `gpuscope_gpu_info` and `gpuscope_mig_info`."""
    rows = [labels for labels in info if labels.get("uuid")]
    nodes = {labels["uuid"]: labels.get("node", "") for labels in rows if labels.get("node")}
    names = {}
    for labels in rows:
        node = labels.get("node") or nodes.get(labels.get("parent_uuid", ""), "")
        if node and labels.get("gpu"):
            names[labels["uuid"]] = f"{node}/{labels['gpu']}"
    return names


def with_gpu_name(metric: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The labels with `gpu="node/3"` instead of UUID, index and instance; unchanged if the GPU is unknown."""
    name = names.get(metric.get("uuid", ""))
    if name is None:
        return dict(metric)
    return {key: value for key, value in metric.items() if key not in ("uuid", "gpu", "instance")} | {
        "gpu": name
    }

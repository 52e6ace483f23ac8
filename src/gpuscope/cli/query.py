"""Evaluate a PromQL expression on a gpuscope server or any Prometheus.

Without a range it prints one line per series; with --start (and --end, --step) it draws a small plot in a
terminal, or prints the values if the output is not a terminal. Values have readable units, and GPUs are shown
as node/index; --raw, --json and --csv print exact numbers and labels.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gpuscope.base.errors import GpuscopeError, UsageError
from gpuscope.base.setting_values import parse_argument, parse_duration
from gpuscope.base.settings import Settings
from gpuscope.base.time_text import parse_rfc3339, to_rfc3339
from gpuscope.cli.output import DIM, csv_cell, paint, printable, render_table, wants_colour
from gpuscope.cli.plot import render_plot, short_number
from gpuscope.cli.server_client import (
    MAX_EXPLANATION,
    add_server_arguments,
    expected_form,
    explained_errors,
    token_of,
    warn_if_simulated,
)
from gpuscope.cli.terminal.spans import bytes_text, duration_text
from gpuscope.history.engines.http_connection import connect, post_form
from gpuscope.history.engines.query_engine import EngineBadQuery

# Query results as people read them: units by metric name, and GPU names instead of UUIDs.
#
# The unit comes from Prometheus' naming rule: the last word of a name is its base unit. A result without a
# name (`sum by (user) (…)`) has the unit of the expression only if every part of the expression keeps it;
# otherwise the number is shown as it is.

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


SETTINGS = ()
USAGE = "gpuscope query EXPR [options]"

EPILOG = """examples:
  gpuscope query 'sum by (user) (gpuscope_process_memory_bytes)'
  gpuscope query 'gpuscope_gpu_utilization_ratio{gpu="0"}' --start -1h
  gpuscope query 'up' --server http://prometheus:9090 --json
Times are seconds since the epoch, RFC 3339, or relative to now: -1h, -15m.
"""

INFO_QUERY = '{__name__=~"gpuscope_gpu_info|gpuscope_mig_info"}'
MAX_PLOTTED = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expression", metavar="EXPR", help="a PromQL expression")
    add_server_arguments(parser)
    parser.add_argument("--time", metavar="T", help="when to evaluate it (now)")
    parser.add_argument("--start", metavar="T", help="first time of a range")
    parser.add_argument("--end", metavar="T", help="last time of the range (now)")
    parser.add_argument("--step", metavar="D", help="time between two values (about 120 of them)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the server's answer as it is")
    form.add_argument("--raw", action="store_true", help="exact numbers, and UUIDs instead of GPU names")
    form.add_argument("--csv", action="store_true", help="one row per sample: time, value, labels")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Joins `--start -1h` to `--start=-1h`: argparse would read -1h as a flag."""
    joined: list[str] = []
    for word in argv:
        if joined and joined[-1] in ("--time", "--start", "--end"):
            joined[-1] += "=" + word
        else:
            joined.append(word)
    return parser.parse_args(joined)


def run(args: argparse.Namespace, settings: Settings) -> int:
    now = time.time()
    parameters = {"query": args.expression}
    if args.start is None:
        if args.end or args.step:
            raise UsageError("--end and --step belong to a range: give --start too")
        endpoint, parameters["time"] = "query", str(_time(args.time, now, "--time"))
    else:
        start, end = _time(args.start, now, "--start"), _time(args.end, now, "--end")
        endpoint, parameters["start"], parameters["end"] = "query_range", str(start), str(end)
        parameters["step"] = str(_step(args.step, start, end))
    answer = _post(args.server, endpoint, parameters, token_of(args))
    warn_if_simulated(args)
    with expected_form(args.server, "Prometheus"):
        for note in (*(answer.get("warnings") or ()), *(answer.get("infos") or ())):
            print(f"gpuscope: {printable(str(note))}", file=sys.stderr)
        if args.json:
            print(json.dumps(answer, indent=2))
        elif args.csv:
            _write_csv(answer["data"])
        elif args.raw:
            _print(answer["data"], wants_colour(), None)
        else:
            _name_gpus(answer["data"], args)
            _print(answer["data"], wants_colour(), unit_of_expression(args.expression))
    return 0


def _name_gpus(data: dict[str, Any], args: argparse.Namespace) -> None:
    """Replaces UUIDs by node and index; one more query, and only if there are UUIDs."""
    series = data["result"] if data["resultType"] in ("vector", "matrix") else ()
    if not any("uuid" in element["metric"] for element in series):
        return
    try:
        info = _post(args.server, "query", {"query": INFO_QUERY}, token_of(args))["data"]["result"]
        names = gpu_names([element["metric"] for element in info])
    except (
        GpuscopeError,
        KeyError,
        TypeError,
        AttributeError,
    ):  # a query of the info series may not be allowed
        return
    renamed = [with_gpu_name(element["metric"], names) for element in series]
    # Series that only differed in a label that is replaced must stay apart.
    if len({tuple(sorted(metric.items())) for metric in renamed}) == len(series):
        for one, metric in zip(series, renamed, strict=True):
            one["metric"] = metric


def _time(text: str | None, now: float, flag: str) -> float:
    if text is None:
        return now
    try:
        if text.startswith("-"):
            return now - parse_duration(text[1:])
        try:
            return float(text)
        except ValueError:
            return parse_rfc3339(text)
    except ValueError:
        raise UsageError(
            f"{flag}: {text!r} is not a time such as -1h, 1700000000 or 2026-01-31T12:00:00Z"
        ) from None


def _step(text: str | None, start: float, end: float) -> float:
    if text is None:
        return max(1.0, round((end - start) / 120))
    return parse_argument(parse_duration, text, "--step", "30s")


def _post(server: str, endpoint: str, parameters: dict[str, str], token: str) -> dict[str, Any]:
    """The answer's JSON; an error of the server is one sentence."""
    with explained_errors():
        try:
            return post_form(connect(server, origin="--server", token=token), endpoint, parameters)
        except EngineBadQuery as error:
            raise UsageError(printable(str(error), MAX_EXPLANATION)) from None


def _series_name(metric: dict[str, str]) -> str:
    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(metric.items()) if name != "__name__")
    return metric.get("__name__", "") + (f"{{{labels}}}" if labels else "") or "{}"


Show = Callable[[Mapping[str, str], str], str]
"""The text of a value, by the labels of its series."""


def _print(data: dict[str, Any], colour: bool, unit: str | None) -> None:
    """`unit` of series without a name; None prints numbers as they are."""

    def show(metric: Mapping[str, str], value: str) -> str:
        if unit is None:
            return printable(str(value))
        name = metric.get("__name__", "")
        return printable(value_text(str(value), unit_of_name(name) if name else unit))

    kind, result = data["resultType"], data["result"]
    if kind == "string":
        print(printable(str(result[1])))
    elif kind == "scalar":
        print(show({}, result[1]))
    elif not result:
        print("no series")
    elif kind == "vector":
        _print_vector(result, show)
    else:
        _print_matrix(result, colour, show)


def _print_vector(result: Sequence[dict[str, Any]], show: Show) -> None:
    metrics = [series["metric"] for series in result]
    # Labels that all series share are printed once, above the table.
    names = sorted({name for metric in metrics for name in metric})
    shared = {name: metrics[0].get(name) for name in names if len({m.get(name) for m in metrics}) == 1}
    columns = [name for name in names if name not in shared]
    if len(result) == 1 or not columns:
        for series in result:
            print(f"{printable(_series_name(series['metric']))} {show(series['metric'], series['value'][1])}")
        return
    if common := {name: value for name, value in shared.items() if value is not None}:
        print(printable(_series_name(common)))
    rows = [
        (
            *(printable(series["metric"].get(name, ""), 60) for name in columns),
            show(series["metric"], series["value"][1]),
        )
        for series in result
    ]
    print("\n".join(render_table((*(printable(name, 60) for name in columns), "VALUE"), rows, ("VALUE",))))


def _print_matrix(result: Sequence[dict[str, Any]], colour: bool, show: Show) -> None:
    if not sys.stdout.isatty():
        for series in result:
            print(printable(_series_name(series["metric"])))
            for at, value in series.get("values", ()):
                print(f"  {_time_text(float(at))}  {show(series['metric'], value)}")
        return
    for series in result[:MAX_PLOTTED]:
        points = [(float(at), float(value)) for at, value in series["values"]]
        last = f"last {show(series['metric'], series['values'][-1][1])}" if points else ""
        print(f"{printable(_series_name(series['metric']))}  {paint(last, DIM, colour)}")
        finite = [point for point in points if math.isfinite(point[1])]
        print("\n".join(render_plot(finite, mark=partial(_mark, series["metric"], show))))
    if len(result) > MAX_PLOTTED:
        print(paint(f"and {len(result) - MAX_PLOTTED} more series; --json or --csv has them all", DIM, colour))


def _mark(metric: Mapping[str, str], show: Show, value: float) -> str:
    """A mark of the axis: with a unit if there is one, else a short number."""
    shown = show(metric, repr(value))
    return short_number(value) if shown == repr(value) else shown


def _time_text(at: float) -> str:
    return to_rfc3339(at, "milliseconds")


def _write_csv(data: dict[str, Any]) -> None:
    writer = csv.writer(sys.stdout)
    result = data["result"]
    if data["resultType"] in ("scalar", "string"):
        writer.writerows([("time", "value"), map(csv_cell, result)])
        return
    names = sorted({name for series in result for name in series["metric"]})
    writer.writerow(("time", "value", *map(csv_cell, names)))
    for series in result:
        labels = [csv_cell(series["metric"].get(name, "")) for name in names]
        for at, value in series.get("values") or [series["value"]]:
            writer.writerow((csv_cell(at), csv_cell(value), *labels))

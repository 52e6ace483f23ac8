"""Evaluate a PromQL expression on a gpuscope server or any Prometheus.

Without a range it prints one line per series; with --start (and --end, --step) it draws a small plot in a
terminal, or prints the values if the output is not a terminal.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from gpuscope.cli.plot import render_plot, short_number
from gpuscope.cli.server_client import add_server_arguments, explained_errors, token_of
from gpuscope.cli.terminal import DIM, csv_cell, paint, printable, render_table, wants_colour
from gpuscope.engines.blocking import connect, post_form
from gpuscope.errors import UsageError
from gpuscope.rfc3339 import parse_rfc3339, to_rfc3339
from gpuscope.setting_values import parse_duration
from gpuscope.settings import Settings

SETTINGS = ()
USAGE = "gpuscope query EXPR [options]"

EPILOG = """examples:
  gpuscope query 'sum by (user) (gpuscope_process_memory_bytes)'
  gpuscope query 'gpuscope_gpu_utilization_ratio{gpu="0"}' --start -1h
  gpuscope query 'up' --server http://prometheus:9090 --json
Times are seconds since the epoch, RFC 3339, or relative to now: -1h, -15m.
"""

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
    for note in (*answer.get("warnings", ()), *answer.get("infos", ())):
        print(f"gpuscope: {printable(note)}", file=sys.stderr)
    if args.json:
        print(json.dumps(answer, indent=2))
    elif args.csv:
        _write_csv(answer["data"])
    else:
        _print(answer["data"], wants_colour())
    return 0


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
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--step: {text!r} is {error}") from None


def _post(server: str, endpoint: str, parameters: dict[str, str], token: str) -> dict[str, Any]:
    """The answer's JSON; an error of the server is one sentence."""
    with explained_errors():
        return post_form(connect(server, origin="--server", token=token), endpoint, parameters)


def _series_name(metric: dict[str, str]) -> str:
    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(metric.items()) if name != "__name__")
    return metric.get("__name__", "") + (f"{{{labels}}}" if labels else "") or "{}"


def _print(data: dict[str, Any], colour: bool) -> None:
    kind, result = data["resultType"], data["result"]
    if kind in ("scalar", "string"):
        print(_value(result))
    elif not result:
        print("no series")
    elif kind == "vector":
        _print_vector(result)
    else:
        _print_matrix(result, colour)


def _print_vector(result: Sequence[dict[str, Any]]) -> None:
    metrics = [series["metric"] for series in result]
    # Labels that all series share are printed once, above the table.
    names = sorted({name for metric in metrics for name in metric})
    shared = {name: metrics[0].get(name) for name in names if len({m.get(name) for m in metrics}) == 1}
    columns = [name for name in names if name not in shared]
    if len(result) == 1 or not columns:
        for series in result:
            print(f"{printable(_series_name(series['metric']))} {_value(series['value'])}")
        return
    if common := {name: value for name, value in shared.items() if value is not None}:
        print(printable(_series_name(common)))
    rows = [
        (*(printable(series["metric"].get(name, ""), 60) for name in columns), _value(series["value"]))
        for series in result
    ]
    print("\n".join(render_table((*(printable(name, 60) for name in columns), "VALUE"), rows, ("VALUE",))))


def _value(sample: Sequence[Any]) -> str:
    """The value of a pair of time and value; a server may send anything."""
    return printable(str(sample[1]))


def _print_matrix(result: Sequence[dict[str, Any]], colour: bool) -> None:
    if not sys.stdout.isatty():
        for series in result:
            print(printable(_series_name(series["metric"])))
            for at, value in series.get("values", ()):
                print(f"  {_time_text(float(at))}  {printable(str(value))}")
        return
    for series in result[:MAX_PLOTTED]:
        points = [(float(at), float(value)) for at, value in series["values"]]
        last = paint(f"last {short_number(points[-1][1])}" if points else "", DIM, colour)
        print(f"{printable(_series_name(series['metric']))}  {last}")
        print("\n".join(render_plot([p for p in points if math.isfinite(p[1])])))
    if len(result) > MAX_PLOTTED:
        print(paint(f"and {len(result) - MAX_PLOTTED} more series; --json or --csv has them all", DIM, colour))


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

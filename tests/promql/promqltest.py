"""Runs tests in the text format of Prometheus' own test suite.

`load STEP` fills the store from time 0; `eval instant at T EXPR` and `eval range from T to T step D EXPR` run a
query, and the indented lines below are its expected result; `clear` empties the store. Further expectations are
`expect ordered`, `expect fail [msg:TEXT | regex:TEXT]`, `expect warn`, `expect info`, `expect no_warn`,
`expect no_info`, `expect string "TEXT"` and `expect range vector from T to T step D`. Native histograms are not
supported.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import promql_parser

from gpuscope.history.promql import Engine, Matrix, PromQLError, RangeVector, Result, Scalar, Text, Vector
from gpuscope.history.promql.labels import render
from gpuscope.model.series import Labels
from tests.promql.memory import STALE, MemoryStorage, to_labels

EPSILON = 1e-6
UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|0x[0-9a-fA-F]+|Inf|NaN|inf|nan)"
_REPEATED = re.compile(rf"^({_NUMBER})(?:([-+])({_NUMBER.replace('[-+]?', '', 1)}))?x(\d+)$")
_INSTANT = re.compile(r"^eval(_fail|_ordered|_warn|_info)? instant at (\S+)\s+(.+)$", re.DOTALL)
_RANGE = re.compile(r"^eval(_fail|_warn|_info)? range from (\S+) to (\S+) step (\S+)\s+(.+)$", re.DOTALL)
_AXIS = re.compile(r"^vector from (\S+) to (\S+) step (\S+)$")

Sequence = list[float | None]
Rows = list[tuple[Labels, Sequence]]


class UnreadableTestError(Exception):
    """The file uses syntax that this runner does not support."""


@dataclass
class Evaluation:
    line: int
    expr: str
    start_ms: int
    end_ms: int
    step_ms: int | None
    ordered: bool = False
    fails: bool = False
    failure: str | None = None
    failure_pattern: str | None = None
    annotations: set[str] = field(default_factory=set)
    annotation_texts: list[tuple[str, bool, str]] = field(default_factory=list)
    text: str | None = None
    scalar: Sequence | None = None
    series: list[tuple[Labels, Sequence]] = field(default_factory=list)
    range_axis: range | None = None
    """The times of `expect range vector`."""


@dataclass
class Load:
    step_ms: int
    series: list[tuple[Labels, Sequence]]


Command = Load | Evaluation | Literal["clear"]


def parse_file(path: Path) -> list[Command]:
    """Parse the commands of a test file, in order."""
    return parse_lines(list(enumerate(path.read_text().splitlines(), start=1)))


def parse_lines(lines: list[tuple[int, str]]) -> list[Command]:
    """Parse the commands in numbered lines."""
    commands: list[Command] = []
    for number, line in lines:
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if line[0] not in " \t":
            commands.append(_command(stripped, number))
        elif isinstance(commands[-1], Load):
            labels, values = _series_line(stripped)
            commands[-1].series.append((labels, values))
        elif isinstance(commands[-1], Evaluation):
            _expectation(commands[-1], stripped)
    return commands


def _command(line: str, number: int) -> Command:
    if line == "clear":
        return "clear"
    if line.startswith("load "):
        return Load(duration_ms(line.split()[1]), [])
    if found := _INSTANT.match(line):
        kind, at, expr = found.groups()
        time = duration_ms(at)
        made = Evaluation(number, expr, time, time, None)
    elif found := _RANGE.match(line):
        kind, start, end, step, expr = found.groups()
        made = Evaluation(number, expr, duration_ms(start), duration_ms(end), duration_ms(step))
    else:
        raise UnreadableTestError(f"line {number}: {line}")
    made.ordered = kind == "_ordered"
    made.fails = kind == "_fail"
    if kind in ("_warn", "_info"):
        made.annotations.add(kind[1:])
    return made


def duration_ms(text: str) -> int:
    if text.startswith("-"):
        return -duration_ms(text[1:])
    if re.fullmatch(r"[\d.]+", text):
        return round(float(text) * 1000)
    parts = re.findall(r"(\d+)(ms|[smhdwy])", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise UnreadableTestError(f"duration {text}")
    return sum(int(number) * UNITS_MS[unit] for number, unit in parts)


def _expectation(evaluation: Evaluation, line: str) -> None:
    if line.startswith("expected_fail_message "):
        evaluation.failure = line.split(" ", 1)[1]
    elif line.startswith("expected_fail_regexp "):
        evaluation.failure_pattern = line.split(" ", 1)[1]
    elif line.startswith("expect "):
        _expect(evaluation, line.removeprefix("expect ").strip())
    elif re.match(rf"^(?:{_NUMBER}|_|stale)(?:$|[\sx+-])", line) and not line.startswith(("_:", "inf{")):
        evaluation.scalar = _values(line)
    elif line.startswith('"'):
        evaluation.text = line[1:-1]
    else:
        evaluation.series.append(_series_line(line))


def _expect(evaluation: Evaluation, what: str) -> None:
    kind, _, rest = what.partition(" ")
    if kind == "ordered":
        evaluation.ordered = True
    elif kind == "fail":
        evaluation.fails = True
        if rest.startswith("msg:"):
            evaluation.failure = rest.removeprefix("msg:").strip()
        elif rest.startswith("regex:"):
            evaluation.failure_pattern = rest.removeprefix("regex:").strip()
    elif kind == "range" and (found := _AXIS.match(rest)):
        first, last, step = map(duration_ms, found.groups())
        evaluation.range_axis = range(first, last + 1, step)
    elif kind == "string":
        evaluation.text = rest.strip()[1:-1]
    elif kind in ("warn", "info", "no_warn", "no_info"):
        evaluation.annotations.add(kind)
        if rest:
            how, _, wanted = rest.partition(":")
            evaluation.annotation_texts.append((kind, how == "regex", wanted.strip()))
    else:
        raise UnreadableTestError(f"expect {what}")


def _series_line(line: str) -> tuple[Labels, Sequence]:
    if "{{" in line:
        raise UnreadableTestError("native histograms")
    selector, values = _split_series(line)
    return _labels(selector), _values(values)


def _split_series(line: str) -> tuple[str, str]:
    quoted = depth = False
    for position, character in enumerate(line):
        if character == '"' and line[position - 1] != "\\":
            quoted = not quoted
        elif character in "{}" and not quoted:
            depth = character == "{"
        elif character in " \t" and not quoted and not depth and not line[position:].lstrip().startswith("{"):
            return line[:position], line[position:].strip()
    return line, ""


def _labels(selector: str) -> Labels:
    if selector == "{}":
        return ()
    try:
        node: Any = promql_parser.parse(selector)
    except ValueError:
        # A selector needs a non-empty matcher, a series does not: parse labels with empty values here.
        node = promql_parser.parse(selector.rstrip("}").rstrip(", ") + ', __any__="x"}')
    pairs = {m.name: m.value for m in node.matchers.matchers if m.name != "__any__"}
    if node.name is not None:
        pairs["__name__"] = node.name
    return to_labels(pairs)


def _values(text: str) -> Sequence:
    values: Sequence = []
    for item in text.split():
        if item == "_":
            values.append(None)
        elif item.startswith("_x"):
            values += [None] * int(item[2:])
        elif item == "stale":
            values.append(STALE)
        elif item.startswith("stalex"):
            values += [STALE] * (int(item[6:]) + 1)
        elif repeated := _REPEATED.match(item):
            first, sign, increment, times = repeated.groups()
            by = float(increment) * (-1 if sign == "-" else 1) if increment else 0.0
            value = float(first)
            for _ in range(int(times) + 1):
                values.append(value)
                value += by
        else:
            values.append(float.fromhex(item) if "x" in item else float(item))
    return values


def run(commands: list[Command]) -> None:
    """Execute a command; raise an AssertionError that names the failing line."""
    storage = MemoryStorage()
    for command in commands:
        if command == "clear":
            storage = MemoryStorage()
        elif isinstance(command, Load):
            load_series(storage, command)
        else:
            check(Engine(storage), command)


def load_series(storage: MemoryStorage, command: Load) -> None:
    for labels, values in command.series:
        samples = [(i * command.step_ms, v) for i, v in enumerate(values) if v is not None]
        storage.add(dict(labels), samples)


def check(engine: Engine, evaluation: Evaluation) -> None:
    where = f"line {evaluation.line}: {evaluation.expr}"
    result: Result | PromQLError
    try:
        result = _evaluate(engine, evaluation)
    except PromQLError as error:
        result = error
    if isinstance(result, PromQLError):
        assert evaluation.fails, f"{where}\nunexpected error: {result}"
        assert evaluation.failure is None or evaluation.failure in str(result), (
            f"{where}\nother error: {result}"
        )
        pattern = evaluation.failure_pattern
        assert pattern is None or re.search(pattern, str(result)), f"{where}\nother error: {result}"
        return
    assert not evaluation.fails, f"{where}\nshould fail, gave {result}"
    _check_annotations(evaluation, result, where)
    problem = _difference(evaluation, result)
    assert problem is None, f"{where}\n{problem}"


def _evaluate(engine: Engine, evaluation: Evaluation) -> Result:
    if evaluation.step_ms is None:
        return engine.instant(evaluation.expr, evaluation.start_ms)
    return engine.range(evaluation.expr, evaluation.start_ms, evaluation.end_ms, evaluation.step_ms)


def _check_annotations(evaluation: Evaluation, result: Result, where: str) -> None:
    for kind in evaluation.annotations:
        given = result.warnings if kind.endswith("warn") else result.infos
        wanted = not kind.startswith("no_")
        assert bool(given) == wanted, f"{where}\nexpected {kind}, got {given}"
    for kind, is_regex, text in evaluation.annotation_texts:
        given = result.warnings if kind == "warn" else result.infos
        same_text = re.search if is_regex else _begins
        assert any(same_text(text, one) for one in given), f"{where}\nexpected {text!r}, got {given}"


def _begins(wanted: str, given: str) -> bool:
    """Remove the details in parentheses that Prometheus adds to some infos: they differ here."""
    return given.startswith(wanted) or wanted.startswith(given)


def _difference(evaluation: Evaluation, result: Result) -> str | None:
    match result:
        case Text():
            return None if result.value == evaluation.text else f"string {result.value!r}"
        case Scalar():
            wanted = evaluation.scalar or [None]
            return None if same(result.value, wanted[0]) else f"scalar {result.value}, not {wanted}"
        case Vector():
            got: Rows = [(labels, [float(v)]) for labels, v in zip(result.labels, result.values, strict=True)]
            return _compare(evaluation, got)
        case RangeVector():
            return _compare(evaluation, _on_axis(evaluation, result))
        case Matrix():
            got = [
                (labels, [float(v) if p else None for v, p in zip(values, present, strict=True)])
                for labels, values, present in zip(result.labels, result.values, result.present, strict=True)
            ]
            return _compare(evaluation, got)


def _on_axis(evaluation: Evaluation, result: RangeVector) -> Rows:
    """Each series' values at the times of `expect range vector`; samples at other times are an error."""
    assert evaluation.range_axis is not None, f"{evaluation.expr} has no `expect range vector`"
    rows: Rows = []
    for labels, times, values in zip(result.labels, result.timestamps, result.values, strict=True):
        samples = dict(zip(times.tolist(), values.tolist(), strict=True))
        assert samples.keys() <= set(evaluation.range_axis), (
            f"{render(labels)} has samples at {sorted(samples)}"
        )
        rows.append((labels, [samples.get(time) for time in evaluation.range_axis]))
    return rows


def _compare(evaluation: Evaluation, got: Rows) -> str | None:
    wanted = evaluation.series
    if evaluation.scalar is not None:
        wanted = [((), evaluation.scalar)]
    if evaluation.ordered and [one for one, _ in got] != [one for one, _ in wanted]:
        return f"order is {[render(one) for one, _ in got]}"
    answers = dict(got)
    if len(answers) != len(got):
        return "the same series twice"
    if set(answers) != {one for one, _ in wanted}:
        return f"series are {sorted(map(render, answers))}, not {sorted(render(one) for one, _ in wanted)}"
    for labels, values in wanted:
        answer = answers[labels]
        padded = values + [None] * (len(answer) - len(values))
        if len(padded) != len(answer) or not all(map(same, answer, padded)):
            return f"{render(labels)}: {answer}, not {padded}"
    return None


def same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if math.isinf(a) or math.isinf(b) or a == b:
        return a == b
    return abs(a - b) <= EPSILON * max(abs(a), abs(b))

"""Helpers of the differential test: fill a real Prometheus, query it, and compare its results with ours."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import cramjam
import numpy as np

from gpuscope.base.varint import encode_varint
from gpuscope.history.promql import Engine, Matrix, PromQLError, RangeVector, Result, Scalar, Text, Vector
from gpuscope.history.promql.functions import SORT_IN_RANGE
from gpuscope.history.promql.labels import render
from gpuscope.model.series import Labels, Series
from tests.promql.memory import to_labels

TOLERANCE = 1e-12
SLICE_MS = 600_000

Points = dict[Labels, dict[int, float]]


@dataclass(frozen=True, slots=True)
class Answer:
    points: Points
    warned: bool
    informed: bool


class RefusedError(Exception):
    """Prometheus returned an error; its errorType is `kind`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def fill(
    url: str,
    series: Sequence[Series],
    *,
    path: str = "/api/v1/write",
    more_headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Send everything by remote write, oldest first: Prometheus refuses samples far older than its newest."""
    for message in _messages(series):
        body = bytes(cramjam.snappy.compress_raw(message))
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        headers["X-Prometheus-Remote-Write-Version"] = "0.1.0"
        request = urllib.request.Request(f"{url}{path}", body, {**headers, **more_headers})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status in (200, 204)


def _messages(series: Sequence[Series]) -> Iterator[bytes]:
    """A write request for each slice of time that has samples."""
    first = min(int(one.timestamps[0]) for one in series)
    slices = defaultdict[int, list[bytes]](list)
    for one in series:
        labels = b"".join(_field(1, _field(1, k.encode()) + _field(2, v.encode())) for k, v in one.labels)
        numbers = (one.timestamps - first) // SLICE_MS
        begins = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        samples = _samples(one)
        for low, high in zip(begins, [*begins[1:], len(samples)], strict=True):
            slices[int(numbers[low])].append(_field(1, labels + b"".join(samples[low:high])))
    for number in sorted(slices):
        yield b"".join(slices[number])


def _samples(series: Series) -> list[bytes]:
    """Each with its field's head. A value is copied as it is: a stale marker is one of many NaNs."""
    values = series.values.astype("<f8").tobytes()
    times = map(_time, series.timestamps.tolist())
    return [
        _field(2, b"\x09" + values[at : at + 8] + b"\x10" + time)
        for at, time in zip(range(0, len(values), 8), times, strict=True)
    ]


@cache  # most series of a history have the same times
def _time(timestamp: int) -> bytes:
    return encode_varint(timestamp)


def _field(number: int, payload: bytes) -> bytes:
    return _head(number, len(payload)) + payload


@cache
def _head(number: int, length: int) -> bytes:
    return bytes([number << 3 | 2]) + encode_varint(length)


@dataclass(frozen=True, slots=True)
class Question:
    """A range query or, without a step, an instant query at `start_ms`."""

    expr: str
    start_ms: int
    end_ms: int = 0
    step_ms: int = 0

    def ask_prometheus(self, url: str) -> Answer:
        parameters = {"query": self.expr, "time": f"{self.start_ms / 1000:.3f}"}
        path = "query"
        if self.step_ms:
            path = "query_range"
            parameters |= {"start": f"{self.start_ms / 1000:.3f}", "end": f"{self.end_ms / 1000:.3f}"}
            parameters["step"] = f"{self.step_ms / 1000:.3f}"
        data = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{url}/api/v1/{path}", data, timeout=60) as answer:
                told = json.load(answer)
            return Answer(_points(told["data"]), warned(told.get("warnings", ())), "infos" in told)
        except urllib.error.HTTPError as error:
            with error:
                told = json.load(error)
            raise RefusedError(told["errorType"], told["error"]) from None

    def ask(self, engine: Engine) -> Answer:
        result: Result
        if self.step_ms:
            result = engine.range(self.expr, self.start_ms, self.end_ms, self.step_ms)
        else:
            result = engine.instant(self.expr, self.start_ms)
        return Answer(points(result), warned(result.warnings), bool(result.infos))


def warned(warnings: Sequence[str]) -> bool:
    """Drop the warning about `sort` in a range query, which only newer Prometheus releases have."""
    return any(SORT_IN_RANGE not in one for one in warnings)


def _points(data: dict[str, Any]) -> Points:
    result = data["result"]
    if data["resultType"] in ("scalar", "string"):
        return {(): {_ms(result[0]): _number(result[1])}}
    found: Points = {}
    for one in result:
        pairs = one["values"] if "values" in one else [one["value"]]
        found[to_labels(one["metric"])] = {_ms(t): _number(v) for t, v in pairs}
    return found


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(len(text))


def points(result: Result) -> Points:
    match result:
        case Scalar():
            return {(): {result.time_ms: result.value}}
        case Text():
            return {(): {result.time_ms: _number(result.value)}}
        case Vector():
            values = zip(result.labels, result.values.tolist(), strict=True)
            return {labels: {result.time_ms: value} for labels, value in values}
        case RangeVector():
            rows = zip(result.labels, result.timestamps, result.values, strict=True)
            return {one: dict(zip(t.tolist(), v.tolist(), strict=True)) for one, t, v in rows}
        case Matrix():
            table = zip(result.labels, result.values, result.present, strict=True)
            return {
                one: dict(zip(result.times_ms[p].tolist(), v[p].tolist(), strict=True)) for one, v, p in table
            }


def difference(question: Question, engine: Engine, url: str) -> str | None:
    """Return a description of the difference between two results; None if they are equal."""
    ours: Answer | PromQLError
    try:
        ours = question.ask(engine)
    except PromQLError as error:
        ours = error
    try:
        theirs = question.ask_prometheus(url)
    except RefusedError as refusal:
        if isinstance(ours, PromQLError):
            return None if ours.error_type == refusal.kind else f"error {ours.error_type}, not {refusal}"
        return f"{len(ours.points)} series, Prometheus refuses: {refusal}"
    if isinstance(ours, PromQLError):
        return f"refused: {ours}; Prometheus has {len(theirs.points)} series"
    if (ours.warned, ours.informed) != (theirs.warned, theirs.informed):
        return f"warned, informed: {ours.warned, ours.informed}, not {theirs.warned, theirs.informed}"
    return _compare(ours.points, theirs.points)


def _compare(ours: Points, theirs: Points) -> str | None:
    if ours.keys() != theirs.keys():
        extra = [render(one) for one in ours.keys() - theirs.keys()]
        missing = [render(one) for one in theirs.keys() - ours.keys()]
        return f"only ours: {extra[:3]}, only Prometheus': {missing[:3]}"
    for labels, row in theirs.items():
        mine = ours[labels]
        if mine.keys() != row.keys():
            odd = sorted(mine.keys() ^ row.keys())
            first = f"{odd[0]} ({'only ours' if odd[0] in mine else 'not ours'})"
            return f"{render(labels)}: presence differs at {len(odd)} times, first {first}"
        for t, value in row.items():
            if not same(mine[t], value):
                return f"{render(labels)} at {t}: {mine[t]!r}, Prometheus has {value!r}"
    return None


def same(a: float, b: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    if a == b or math.isinf(a) or math.isinf(b):
        return a == b
    return abs(a - b) <= TOLERANCE * max(abs(a), abs(b))

"""Query results as Prometheus' JSON, written from arrays.

A range answer is mostly numbers as strings in pairs with their times; making a Python object for each would
take longer than the query. Times are formatted once per answer, values by orjson's number printer where its
text is the one Prometheus would print, one by one where it is not (NaN, infinities, very large and small).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal

import numpy as np
import orjson

from gpuscope.promql.frame import Bools, Floats, Ints
from gpuscope.promql.result import Matrix, Result, Samples, Scalar, Text, Vector
from gpuscope.store.series import Labels


def number_text(value: float) -> str:
    """As Prometheus prints a sample: shortest digits, no exponent between 1e-6 and 1e21."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size != 0 and (size < 1e-6 or size >= 1e21):
        mantissa, _, exponent = repr(value).partition("e")
        if not exponent:  # repr() has no exponent below 1e16, but never reaches 1e-6 without one
            mantissa, _, exponent = f"{Decimal(repr(value)):e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{exponent[0]}{exponent[1:].rjust(2, '0')}"
    text = repr(value)
    if "e" in text:
        text = f"{Decimal(text):f}"
    return text.removesuffix(".0")


def time_text(milliseconds: int) -> bytes:
    seconds, rest = divmod(milliseconds, 1000)
    return b"%d.%03d" % (seconds, rest) if rest else b"%d" % seconds


def values_text(values: Floats) -> list[bytes]:
    """Each value's text without quotes."""
    if not np.isfinite(values).all():
        return [number_text(value).encode() for value in values.tolist()]
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    if b"e" in text:
        return [number_text(value).encode() for value in values.tolist()]
    return (text[1:-1] + b",").replace(b".0,", b",").split(b",")[:-1] if len(values) else []


def _metric(labels: Labels) -> bytes:
    return orjson.dumps(dict(labels))


def _pairs(times: Iterable[bytes], values: Floats) -> bytes:
    return b",".join(
        [b"[%b,%b]" % pair for pair in zip(times, [b'"%b"' % v for v in values_text(values)], strict=True)]
    )


def _series(labels: Labels, times: Iterable[bytes], values: Floats) -> bytes:
    return b'{"metric":%b,"values":[%b]}' % (_metric(labels), _pairs(times, values))


def _matrix(matrix: Matrix) -> bytes:
    times = np.array([time_text(at) for at in matrix.times_ms.tolist()], dtype=object)
    rows = []
    for labels, values, present in zip(matrix.labels, matrix.values, matrix.present, strict=True):
        rows.append(_row(labels, times, values, present))
    return b",".join(rows)


def _row(
    labels: Labels, times: np.ndarray[tuple[int], np.dtype[np.object_]], values: Floats, present: Bools
) -> bytes:
    if present.all():
        return _series(labels, times, values)
    return _series(labels, times[present], values[present])


def _samples(labels: Sequence[Labels], timestamps: Sequence[Ints], values: Sequence[Floats]) -> bytes:
    rows = (
        _series(one, [time_text(at) for at in times.tolist()], numbers)
        for one, times, numbers in zip(labels, timestamps, values, strict=True)
    )
    return b",".join(rows)


def _vector(vector: Vector) -> bytes:
    at = time_text(vector.time_ms)
    rows = zip(vector.labels, values_text(vector.values), strict=True)
    return b",".join(
        [b'{"metric":%b,"value":[%b,"%b"]}' % (_metric(labels), at, value) for labels, value in rows]
    )


def encode_result(result: Result) -> bytes:
    """The answer's `data`."""
    if isinstance(result, Matrix):
        return b'{"resultType":"matrix","result":[%b]}' % _matrix(result)
    if isinstance(result, Samples):
        rows = _samples(result.labels, result.timestamps, result.values)
        return b'{"resultType":"matrix","result":[%b]}' % rows
    if isinstance(result, Vector):
        return b'{"resultType":"vector","result":[%b]}' % _vector(result)
    if isinstance(result, Scalar):
        kind, text = b"scalar", number_text(result.value)
    else:
        assert isinstance(result, Text)  # noqa: S101 - the last of the five
        kind, text = b"string", result.value
    pair = b"[%b,%b]" % (time_text(result.time_ms), orjson.dumps(text))
    return b'{"resultType":"%b","result":%b}' % (kind, pair)


def success(data: bytes, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> bytes:
    notes = b""
    if warnings:
        notes += b',"warnings":' + orjson.dumps(list(warnings))
    if infos:
        notes += b',"infos":' + orjson.dumps(list(infos))
    return b'{"status":"success","data":%b%b}' % (data, notes)


def failure(error_type: str, message: str) -> bytes:
    return orjson.dumps({"status": "error", "errorType": error_type, "error": message})

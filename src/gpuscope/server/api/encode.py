"""Query results as Prometheus' JSON, written from arrays.

A range answer is mostly numbers as strings in pairs with their times; making a Python object for each would
take longer than the query. Times are formatted once per answer, values by orjson's number printer where its
text is the one Prometheus would print, one by one where it is not (NaN, infinities, very large and small).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import compress

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
    seconds, rest = divmod(abs(milliseconds), 1000)
    sign = b"-" if milliseconds < 0 else b""
    return b"%b%d.%03d" % (sign, seconds, rest) if rest else b"%b%d" % (sign, seconds)


def values_text(values: Floats) -> list[bytes]:
    """Each value's text without quotes."""
    if not len(values):
        return []
    text = orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)
    texts = (text[1:-1] + b",").replace(b".0,", b",").split(b",")
    texts.pop()
    if b"e" in text or b"n" in text:  # exponents, and null for what JSON has no number for
        odd = [number for number, one in enumerate(texts) if b"e" in one or b"n" in one]
        for number, value in zip(odd, values[odd].tolist(), strict=True):
            texts[number] = number_text(value).encode()
    return texts


def _metric(labels: Labels) -> bytes:
    return orjson.dumps(dict(labels))


def _series(labels: Labels, openings: Sequence[bytes], values: Floats) -> bytes:
    """One series of a range; the openings are what stands before each value (see `_openings`)."""
    # Alternating lists, joined once: no bytes object is made for a point.
    parts = [b""] * (2 * len(values))
    parts[0::2] = openings
    parts[1::2] = values_text(values)
    # The first opening closes a point that is not there.
    points = b"".join(parts)[len(_CLOSING) + 1 :] + _CLOSING if parts else b""
    return b'{"metric":%b,"values":[%b]}' % (_metric(labels), points)


_CLOSING = b'"]'


def _openings(times_ms: Ints) -> list[bytes]:
    """Before each value: the end of the point before, and this point's time."""
    if not len(times_ms):
        return []
    whole = times_ms % 1000 == 0
    if not whole.all():
        if int(times_ms[0]) < _YEAR_2001 or int(times_ms[-1]) >= _YEAR_2286:  # ascending
            return [b'"],[%b,"' % time_text(at) for at in times_ms.tolist()]
        return _openings_with_milliseconds(times_ms, whole)
    seconds = orjson.dumps(times_ms // 1000, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    return (b'"],[' + seconds.replace(b",", b',"\n"],[') + b',"').split(b"\n")


_YEAR_2001, _YEAR_2286 = 10**12, 10**13
"""Between them a time in milliseconds has 13 digits."""
_OPENING = np.frombuffer(b'"],[0123456789.012,"', np.uint8)


def _openings_with_milliseconds(times_ms: Ints, whole: Bools) -> list[bytes]:
    """The same for scraped times: every digit has its place, so they are put there for all at once."""
    text = orjson.dumps(np.ascontiguousarray(times_ms), option=orjson.OPT_SERIALIZE_NUMPY)
    digits = np.frombuffer(text[1:], np.uint8).reshape(-1, 14)  # 13 and a comma, or the closing bracket
    cells = np.empty((len(times_ms), _OPENING.size), np.uint8)
    cells[:] = _OPENING
    cells[:, 4:14], cells[:, 15:18] = digits[:, :10], digits[:, 10:13]
    openings: list[bytes] = cells.view(f"S{_OPENING.size}").ravel().tolist()
    for at in np.flatnonzero(whole).tolist():
        openings[at] = openings[at].replace(b".000", b"")
    return openings


def _matrix(matrix: Matrix) -> bytes:
    openings = _openings(matrix.times_ms)
    whole: Bools = np.logical_and.reduce(matrix.present, axis=1)
    return b",".join(
        [
            _series(labels, openings, values)
            if full
            else _series(labels, list(compress(openings, present.tolist())), values[present])
            for labels, values, present, full in zip(
                matrix.labels, matrix.values, matrix.present, whole.tolist(), strict=True
            )
        ]
    )


def _samples(labels: Sequence[Labels], timestamps: Sequence[Ints], values: Sequence[Floats]) -> bytes:
    rows = (
        _series(one, _openings(times), numbers)
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

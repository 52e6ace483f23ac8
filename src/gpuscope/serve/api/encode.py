"""Query results as Prometheus' JSON, written from arrays.

A range answer is mostly numbers as strings in pairs with their times; making a Python object for each would
take longer than the query. Times are formatted once per answer, values by orjson's number printer where its
text is the one Prometheus would print, one by one where it is not (NaN, infinities, very large and small).
Answers are made in pieces, so that a large one can be sent while it is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice

import numpy as np
import orjson
from numpy.typing import NDArray

from gpuscope.history.promql.frame import Bools, Floats, Ints
from gpuscope.history.promql.result import Matrix, RangeVector, Result, Scalar, Text, Vector
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Labels

PIECE_BYTES = 256 * 1024
POINTS_PER_PIECE = 10_000
POINTS_PER_CALL = 5_000
MAX_SHORT_SERIES_POINTS = 200
"""Series of more points are printed one by one."""
VALUES_PER_CALL = 1_000
SERIES_PER_ITEM = 500
"""Of a vector, written together."""
MAX_KEPT_SERIES = 100_000
"""Of one answer, whose label sets may be encoded at once and kept with the selection: about 20 MB."""
MAX_TEMPLATES = 100
"""Time axes whose text is kept while the series of one answer are written."""


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
    texts = (text[1:-1] + b",").split(b".0,")
    if len(texts) <= len(values):  # not all are whole numbers
        texts = b",".join(texts).split(b",")
    texts.pop()
    if b"e" in text or b"n" in text:  # exponents, and null for what JSON has no number for
        odd = [number for number, text in enumerate(texts) if b"e" in text or b"n" in text]
        for number, value in zip(odd, values[odd].tolist(), strict=True):
            texts[number] = number_text(value).encode()
    return texts


def _metric(labels: Labels) -> bytes:
    return dump_json(dict(labels))


def _metrics(every: Sequence[Labels]) -> Sequence[bytes]:
    """The JSON of label sets; of those from a store it is kept with the selection."""
    if isinstance(every, LabelColumns):
        return every.encoded(encode_pairs)
    return [_metric(labels) for labels in every]


def _metrics_in_parts(every: Sequence[Labels]) -> Iterator[Sequence[bytes]]:
    """As `_metrics`; of very many in parts, so that they are never in memory as a whole."""
    if len(every) <= MAX_KEPT_SERIES:
        yield _metrics(every)
        return
    for begin in range(0, len(every), SERIES_PER_ITEM):
        yield _metrics(every[begin : begin + SERIES_PER_ITEM])


def encode_pairs(pairs: Sequence[tuple[str, str]]) -> list[bytes]:
    """Each pair's name and value with a colon between them."""
    names = {name: dump_json(name) for name in {name for name, _ in pairs}}
    text = dump_json([value for _, value in pairs])
    if b"\\" in text:
        return [b"%b:%b" % (names[name], dump_json(value)) for name, value in pairs]
    # Without escapes a quote begins or ends a value: many values are written by one call.
    values = text[2:-2].split(b'","')
    return [b'%b:"%b"' % (names[pair[0]], value) for pair, value in zip(pairs, values, strict=False)]


def dump_json(value: object) -> bytes:
    """As orjson writes it, also what is nested deeper than it goes or holds text that is no UTF-8."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        # As Go's encoder: what is no UTF-8 is the replacement character.
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


_YEAR_2001, _YEAR_2286 = 10**12, 10**13
"""Between them a time in milliseconds has 13 digits."""
_WHOLE, _PARTED = b'[0123456789,"%b"],', b'[0123456789.012,"%b"],'


def _places(width: int, **fields: tuple[str, int]) -> np.dtype[np.void]:
    """Where digits stand in texts of one width: each field's type and the place where it begins."""
    formats, offsets = zip(*fields.values(), strict=True)
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": width})


# In a JSON array a time follows a comma or the opening bracket.
_IN_ARRAY = _places(14, seconds=("S10", 1), milliseconds=("S3", 11))
_IN_WHOLE = _places(len(_WHOLE), seconds=("S10", 1))
_IN_PARTED = _places(len(_PARTED), seconds=("S10", 1), milliseconds=("S3", 12), fraction=("S4", 11))


def _points(times_ms: Ints) -> NDArray[np.bytes_]:
    """A point for each of these ascending times, with `%b` for its value and a comma after it; all are of one
    width, those that need less have zero bytes in them."""
    count = len(times_ms)
    if not count or int(times_ms[0]) < _YEAR_2001 or int(times_ms[-1]) >= _YEAR_2286:
        return np.array([b'[%b,"%%b"],' % time_text(at) for at in times_ms.tolist()], "S")
    # Every digit has its place, so they are put there for all times at once.
    text = orjson.dumps(np.ascontiguousarray(times_ms), option=orjson.OPT_SERIALIZE_NUMPY)
    digits = np.frombuffer(text, _IN_ARRAY, count)
    milliseconds = times_ms % 1000
    parted = np.count_nonzero(milliseconds)
    if not parted:
        points = np.frombuffer(bytearray(_WHOLE) * count, _IN_WHOLE)
        points["seconds"] = digits["seconds"]
        return points.view(f"S{len(_WHOLE)}")
    points = np.frombuffer(bytearray(_PARTED) * count, _IN_PARTED)
    points["seconds"], points["milliseconds"] = digits["seconds"], digits["milliseconds"]
    if parted < count:
        points["fraction"][milliseconds == 0] = b""
    return points.view(f"S{len(_PARTED)}")


def _template(points: NDArray[np.bytes_]) -> bytes:
    """A series of these points without its labels and values."""
    return b'{"metric":%%b,"values":[%b]}' % points.tobytes().replace(b"\0", b"")[:-1]


def _series(metric: bytes, template: bytes, values: Floats) -> bytes:
    """All values are put in at once: no bytes object is made for a point."""
    return template % (metric, *values_text(values))


def _matrix(matrix: Matrix) -> Iterator[bytes]:
    points = _points(matrix.times_ms)
    template = _template(points)
    whole: Bools = np.logical_and.reduce(matrix.present, axis=1)
    metrics = chain.from_iterable(_metrics_in_parts(matrix.labels))
    portion = POINTS_PER_CALL // max(1, len(points)) if len(points) <= MAX_SHORT_SERIES_POINTS else 1
    for begin in range(0, len(whole), portion):
        rows = slice(begin, begin + portion)
        if portion > 1 and whole[rows].all():
            # Of short series the values of many are printed by one call.
            texts = zip(*[iter(values_text(matrix.values[rows].ravel()))] * len(points), strict=True)
            yield b",".join([template % (metric, *row) for row, metric in zip(texts, metrics, strict=False)])
            continue
        some = zip(matrix.values[rows], matrix.present[rows], whole[rows].tolist(), metrics, strict=False)
        for values, present, full, metric in some:
            if full:
                yield _series(metric, template, values)
            else:
                yield _series(metric, _template(points[present]), values[present])


def _samples(samples: RangeVector) -> Iterator[bytes]:
    templates: dict[int, bytes] = {}
    for labels, times, values in zip(samples.labels, samples.timestamps, samples.values, strict=True):
        if len(times) > POINTS_PER_PIECE:
            yield from encode_long_series(labels, times, values)
            continue
        # Series of one scrape share the array of their times.
        template = templates.get(id(times))
        if template is None:
            if len(templates) >= MAX_TEMPLATES:
                templates.clear()
            template = templates[id(times)] = _template(_points(times))
        yield _series(_metric(labels), template, values)


def encode_long_series(labels: Labels, times: Ints, values: Floats) -> Iterator[bytes]:
    """In parts which, with commas between them, are one series."""
    last = (len(times) - 1) // POINTS_PER_PIECE
    for number in range(last + 1):
        part = slice(number * POINTS_PER_PIECE, (number + 1) * POINTS_PER_PIECE)
        points = _points(times[part]).tobytes().replace(b"\0", b"")[:-1]
        begin = b'{"metric":%b,"values":[' % _metric(labels) if number == 0 else b""
        yield b"%b%b%b" % (begin, points % tuple(values_text(values[part])), b"]}" if number == last else b"")


def _vector(vector: Vector) -> Iterator[bytes]:
    template = b'{"metric":%%b,"value":[%b,"%%b"]}' % time_text(vector.time_ms)
    first = 0
    for metrics in _metrics_in_parts(vector.labels):
        for begin in range(0, len(metrics), SERIES_PER_ITEM):
            some = metrics[begin : begin + SERIES_PER_ITEM]
            values = values_text(vector.values[first : first + len(some)])
            first += len(some)
            yield b",".join([template % row for row in zip(some, values, strict=True)])


def joined(items: Iterable[bytes]) -> Iterator[bytes]:
    """With commas between them, in pieces of about `PIECE_BYTES`."""
    parts: list[bytes] = []
    size = 0
    for item in items:
        parts.append(item)
        size += len(item)
        if size >= PIECE_BYTES:
            yield b",".join(parts)
            parts, size = [b""], 0  # the next piece begins with a comma
    if parts and parts != [b""]:
        yield b",".join(parts)


def result_pieces(result: Result, statistics: bytes = b"") -> Iterator[bytes]:
    """The answer's `data`, a piece at a time: a large one is never in memory as a whole."""
    yield b'{"resultType":"%b","result":[' % result.result_type.encode()
    yield from joined(_items(result))
    yield b'],"stats":%b}' % statistics if statistics else b"]}"


def _items(result: Result) -> Iterator[bytes]:
    match result:
        case Matrix():
            return _matrix(result)
        case RangeVector():
            return _samples(result)
        case Vector():
            return _vector(result)
        case Scalar():
            return iter((time_text(result.time_ms), b'"%b"' % number_text(result.value).encode()))
        case Text():
            return iter((time_text(result.time_ms), dump_json(result.value)))


def encode_result(result: Result, statistics: bytes = b"") -> bytes:
    """The answer's `data` as a whole: for a small one that is quicker."""
    end = b'],"stats":%b}' % statistics if statistics else b"]}"
    return b'{"resultType":"%b","result":[%b%b' % (result.result_type.encode(), b",".join(_items(result)), end)


def list_pieces(values: Iterable[object]) -> Iterator[bytes]:
    """A JSON array."""
    every = iter(values)
    yield b"["
    yield from joined(iter(lambda: dump_json(list(islice(every, VALUES_PER_CALL)))[1:-1], b""))
    yield b"]"


def labels_pieces(every: LabelColumns) -> Iterator[bytes]:
    """A JSON array of label sets."""
    yield b"["
    yield from joined(chain.from_iterable(_metrics_in_parts(every)))
    yield b"]"


def success_pieces(
    data: Iterable[bytes], warnings: Sequence[str] = (), infos: Sequence[str] = ()
) -> Iterator[bytes]:
    yield b'{"status":"success","data":'
    yield from data
    yield _notes(warnings, infos) + b"}"


def success(data: bytes, warnings: Sequence[str] = (), infos: Sequence[str] = ()) -> bytes:
    return b'{"status":"success","data":%b%b}' % (data, _notes(warnings, infos))


def _notes(warnings: Sequence[str], infos: Sequence[str]) -> bytes:
    notes = b""
    if warnings:
        notes += b',"warnings":' + dump_json(list(warnings))
    if infos:
        notes += b',"infos":' + dump_json(list(infos))
    return notes


def failure(error_type: str, message: str) -> bytes:
    return orjson.dumps({"status": "error", "errorType": error_type, "error": message})

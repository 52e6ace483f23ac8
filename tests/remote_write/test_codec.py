"""The wire codec against Google's protobuf, and against bytes that are no protobuf."""

from __future__ import annotations

import contextlib
import math
import struct
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.varint import WireError
from gpuscope.history.remote_write.codec import Labels, WriteDecoder, encode_labels, encode_samples
from gpuscope.model.series import STALE_NAN_BITS

STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]


def _messages() -> dict[str, Any]:
    """prometheus.WriteRequest as its .proto has it, without exemplars' and histograms' insides."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="remote.proto", package="p", syntax="proto3")
    tables = {
        "Label": [("name", 1, field.TYPE_STRING, ""), ("value", 2, field.TYPE_STRING, "")],
        "Sample": [("value", 1, field.TYPE_DOUBLE, ""), ("timestamp", 2, field.TYPE_INT64, "")],
        "TimeSeries": [
            ("labels", 1, field.TYPE_MESSAGE, "Label"),
            ("samples", 2, field.TYPE_MESSAGE, "Sample"),
            ("exemplars", 3, field.TYPE_MESSAGE, "Sample"),
            ("histograms", 4, field.TYPE_MESSAGE, "Sample"),
        ],
        "WriteRequest": [
            ("timeseries", 1, field.TYPE_MESSAGE, "TimeSeries"),
            ("metadata", 3, field.TYPE_MESSAGE, "Label"),
        ],
    }
    for name, rows in tables.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, of in rows:
            row = message.field.add(name=field_name, number=number, type=kind, label=field.LABEL_OPTIONAL)
            if of:
                row.label, row.type_name = field.LABEL_REPEATED, f".p.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"p.{name}")) for name in tables}


PROTO = _messages()
Row = tuple[Labels, int, float]


class Reader:
    """Decodes to rows; as a store does, it takes no series without a name."""

    def __init__(self) -> None:
        self.known: list[Labels] = []
        self.decoder = WriteDecoder(self._resolve)
        self.last: Any = None

    def _resolve(self, labels: Labels) -> int | None:
        if not dict(labels).get("__name__"):
            return None
        self.known.append(labels)
        return len(self.known) - 1

    def rows(self, body: bytes) -> list[Row]:
        self.last = found = self.decoder.decode(body)
        return [
            (self.known[series], at, value)
            for series, at, value in zip(found.series, found.times, found.values, strict=True)
        ]


def bits(rows: list[Row]) -> list[tuple[Labels, int, bytes]]:
    return [(labels, at, struct.pack("<d", value)) for labels, at, value in rows]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
LABELS = st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=4).map(
    lambda table: tuple(sorted({**table, "__name__": "m"}.items()))
)
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(1_600_000_000_000, 1_900_000_000_000) | st.just(0)
VALUES = st.floats() | st.sampled_from([0.0, -0.0, STALE, math.inf])
ROWS = st.lists(st.tuples(LABELS, TIMES, VALUES), max_size=8)


@given(ROWS, ROWS)
def test_round_trip_twice_through_the_cache(first: list[Row], second: list[Row]) -> None:
    reader = Reader()
    for rows in (first, second, first):
        body = encode_samples((encode_labels(labels), at, value) for labels, at, value in rows)
        assert bits(reader.rows(body)) == bits(rows)


@given(ROWS)
def test_what_we_encode_google_reads(rows: list[Row]) -> None:
    body = encode_samples((encode_labels(labels), at, value) for labels, at, value in rows)
    theirs = [
        (tuple((one.name, one.value) for one in series.labels), sample.timestamp, sample.value)
        for series in PROTO["WriteRequest"].FromString(body).timeseries
        for sample in series.samples
    ]
    assert bits(theirs) == bits(rows)


@given(st.lists(st.tuples(LABELS, st.lists(st.tuples(TIMES, VALUES), max_size=3), st.booleans()), max_size=5))
def test_what_google_encodes_we_read(series: list[tuple[Labels, list[tuple[int, float]], bool]]) -> None:
    request = PROTO["WriteRequest"]()
    expected: list[Row] = []
    for labels, samples, extra in series:
        one = request.timeseries.add()
        for name, text in labels:
            one.labels.add(name=name, value=text)
        for at, value in samples:
            one.samples.add(timestamp=at, value=value)
            expected.append((labels, at, value))
        if extra:
            one.exemplars.add(value=1.5)
            one.histograms.add(value=1)
            request.metadata.add(name="m", value="help")
    body = request.SerializeToString()
    reader = Reader()
    for _ in range(2):
        assert bits(reader.rows(body)) == bits(expected)
        assert reader.last.histograms == sum(extra for _, _, extra in series)


def test_labels_are_resolved_once_and_forgotten_on_demand() -> None:
    reader = Reader()
    body = encode_samples([(encode_labels([("__name__", "a"), ("x", "1")]), 1_700_000_000_000, 1.5)])
    for _ in range(3):
        reader.rows(body)
    assert len(reader.known) == 1
    reader.decoder.forget()
    reader.rows(body)
    assert len(reader.known) == 2


def test_series_that_cannot_be_taken_are_counted() -> None:
    reader = Reader()
    body = encode_samples(
        [(encode_labels([("x", "1")]), 1_700_000_000_000, 1.0), (b"", 1_700_000_000_000, 1.0)]
    )
    for _ in range(2):
        assert reader.rows(body) == []
        assert reader.last.invalid == 2


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x08\x01",
        b"\x00\x00",
        b"\x0a\x04\x0a\x02\x0a\x05",
        b"\x0a\x03\x12\x01\x09",
        b"\x0a\x02\x03\x00",
        b"hello, world",
    ],
)
def test_bytes_that_are_no_request(body: bytes) -> None:
    with pytest.raises(WireError):
        Reader().rows(body)


@given(st.binary(max_size=80), ROWS, st.integers(0, 400), st.integers(0, 255))
def test_any_bytes_are_a_request_or_refused(noise: bytes, rows: list[Row], at: int, byte: int) -> None:
    reader = Reader()
    good = encode_samples((encode_labels(labels), when, value) for labels, when, value in rows)
    reader.rows(good)
    broken = bytearray(good)
    if broken:
        broken[at % len(broken)] = byte
    for body in (noise, good[: at % (len(good) + 1)], bytes(broken), good + noise):
        with contextlib.suppress(WireError):
            reader.rows(body)


def test_the_short_cut_gives_way_to_unusual_encodings() -> None:
    """Valid protobuf that ends like the usual sample: a time of one byte, then fields nobody knows."""
    labels = encode_labels([("__name__", "m")])
    usual = encode_samples([(labels, 1_700_000_000_000, 1.0)])
    odd = b"\x12\x07\x10\x05\x20\x00\x28\x00\x00"
    for tail, expected in ((b"\x12\x07\x10\x05\x30\x00\x38\xbc\x31", [5]), (odd, None)):
        message = labels + tail
        body = b"\x0a" + bytes((len(message),)) + message
        known: dict[Labels, int] = {}
        decoder = WriteDecoder(lambda labels: known.setdefault(labels, len(known)))  # noqa: B023
        decoder.decode(usual)
        if expected is None:
            with pytest.raises(WireError):
                decoder.decode(body)
        else:
            assert decoder.decode(body).times == expected

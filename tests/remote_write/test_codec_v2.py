from __future__ import annotations

import sys
import tracemalloc
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.base.varint import WireError, encode_varint
from gpuscope.history.remote_write.codec import (
    NO_ROOM,
    Decoded,
    Labels,
    MessageLimits,
    WriteDecoder,
    encode_labels,
    encode_samples,
)
from gpuscope.history.remote_write.codec_v2 import WriteDecoderV2
from tests.remote_write.write_v2 import RequestV2, SeriesV2, encode_v2, message, sample

A = (("__name__", "a"), ("gpu", "0"))
B = (("__name__", "b"), ("gpu", "0"))


class Known:
    def __init__(self) -> None:
        self.labels: list[Labels] = []

    def __call__(self, labels: Labels) -> int | None:
        if ("__name__", "bad") in labels:
            return None
        if ("__name__", "new") in labels:
            return NO_ROOM
        self.labels.append(labels)
        return len(self.labels) - 1


def decode(body: bytes, **limits: int) -> tuple[Decoded, list[Labels]]:
    known = Known()
    return WriteDecoderV2(known, MessageLimits(**limits)).decode(body), known.labels


def test_samples_and_what_is_only_counted() -> None:
    body = encode_v2(
        SeriesV2(A, [(1000, 1.5), (2000, 0.0)], help="Help.", exemplars=2, created=900),
        SeriesV2(B, histograms=3),
        SeriesV2(B, [(-5, float("inf"))], packed=False),
        SeriesV2([("__name__", "bad")], [(1, 1.0), (2, 2.0)]),
        SeriesV2([("__name__", "bad")]),
        SeriesV2([("__name__", "new")], [(1, 1.0)], histograms=1),
        SeriesV2([], [(1, 1.0)]),
    )
    found, labels = decode(body)
    assert labels == [A, B]
    assert found.series == [0, 0, 1]
    assert found.times == [1000, 2000, -5]
    assert found.values == [1.5, 0.0, float("inf")]
    assert (found.histograms, found.exemplars, found.invalid, found.refused[NO_ROOM]) == (3, 2, 3, 2)
    assert found.no_samples == 1


def test_symbols_may_come_last_and_fields_of_later_versions_are_skipped() -> None:
    request = RequestV2().add(SeriesV2(A, [(1, 2.0)]))
    # 2.0-rc.4: the sample's start timestamp.
    start_time = message(2, sample(7, 3.0) + b"\x18" + encode_varint(5))
    request.series[0] += start_time + message(99, b"new") + b"\xf8\x06\x01"
    whole = request.encode()
    symbols = b"".join(message(4, text.encode()) for text in request.symbols)
    turned = whole[len(symbols) :] + symbols + message(17, b"new too")
    for body in (whole, turned):
        found, labels = decode(body)
        assert (labels, found.times, found.values) == ([A], [1, 7], [2.0, 3.0])


def test_a_series_is_asked_for_once_and_refused_ones_each_time() -> None:
    asked: list[Labels] = []

    def resolve(labels: Labels) -> int | None:
        asked.append(labels)
        return NO_ROOM if ("__name__", "b") in labels else 4

    decoder = WriteDecoderV2(resolve)
    for other in ("x", "y"):  # other symbols before: other references
        decoder.decode(encode_v2(*(SeriesV2(one, [(1, 1.0)]) for one in ([("__name__", other)], A, B))))
    assert asked.count(A) == 1
    assert asked.count(B) == 2
    decoder.forget()
    decoder.decode(encode_v2(SeriesV2(A, [(1, 1.0)])))
    assert asked.count(A) == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (message(5, message(1, encode_varint(0) + encode_varint(1))), "reference 1 is beyond the 0 symbols"),
        (message(4, b"") + message(5, message(1, encode_varint(0) * 3)), "odd number"),
        (message(4, b"") + message(5, message(1, encode_varint(2**40) * 2)), "beyond the 1 symbols"),
        (b"\x08\x01", "not a remote-write 2.0"),
        (message(0, b"x"), "not a remote-write 2.0"),
        (b"\x22\x05ab", "cut short"),
        (b"\x2a\x03\x0a\x05\x01", "cut short"),
        (b"\x2a\x02\x08\xff", "end inside a number"),
        (b"\x2a\x01\x0b", "unknown kind"),
    ],
)
def test_malformed(body: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        decode(body)


def test_a_symbol_that_looks_like_two_is_not_taken_for_known_labels() -> None:
    decoder = WriteDecoderV2(Known())
    decoder.decode(encode_v2(SeriesV2([("__name__", "a"), ("b", "c")], [(1, 1.0)])))
    forged = message(4, b"__name__\xffa\xffb") + message(4, b"c")
    found = decoder.decode(forged + message(5, message(1, b"\x00\x01") + message(2, sample(1, 1.0))))
    assert (found.series, found.invalid) == ([], 1)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (message(4, b"") * 11, "write_max_symbols"),
        (message(5, b"") * 11, "write_max_samples"),
        (encode_v2(SeriesV2(A, [(n, 1.0) for n in range(11)])), "write_max_samples"),
        (encode_v2(SeriesV2(A, exemplars=11)), "write_max_samples"),
        (message(4, b"") + message(5, message(1, b"\x00" * 202)), "write_max_samples"),
        (message(4, b"") + message(5, b"\x08\x00" * 202), "write_max_samples"),
        (message(4, b"x" * 100) + message(5, message(1, b"\x00" * 12)), "write_max_decoded_bytes"),
    ],
)
def test_limits(body: bytes, limit: str) -> None:
    before = LIMITS_REACHED.counts()[limit]
    with pytest.raises(WireError, match=limit):
        decode(body, max_samples=10, max_symbols=10, max_text_bytes=1000)
    assert LIMITS_REACHED.counts()[limit] == before + 1


@pytest.mark.parametrize(
    "body",
    [
        message(1, b"") * 11,
        encode_samples([(encode_labels(A), n, 1.0) for n in range(11)]),
        message(1, encode_labels([("a", "b")]) * 101),
        message(1, encode_labels(A) + message(3, b"") * 11),
    ],
)
def test_limits_of_version_1(body: bytes) -> None:
    with pytest.raises(WireError, match="write_max_samples"):
        WriteDecoder(Known(), MessageLimits(10, 10)).decode(body)


LABEL_LIMITS = {"max_labels_per_series": 3, "max_name_bytes": 8, "max_value_bytes": 20}


@pytest.mark.parametrize(
    ("labels", "limit"),
    [
        ([*A, ("x", "1"), ("y", "2")], "write_max_labels"),
        ([*A, ("n" * 9, "1")], "write_max_label_name_bytes"),
        ([*A, ("é" * 5, "1")], "write_max_label_name_bytes"),
        ([*A, ("x", "v" * 21)], "write_max_label_value_bytes"),
        ([*A, ("x", "v" * 1000)], "write_max_label_value_bytes"),
    ],
)
def test_a_series_beyond_the_limits_of_labels_is_refused_alone(
    labels: list[tuple[str, str]], limit: str
) -> None:
    before = LIMITS_REACHED.counts()[limit]
    v1 = encode_samples([(encode_labels(one), 1, 1.0) for one in (A, labels, B)])
    series = [SeriesV2(A, [(1, 1.0)]), SeriesV2(labels, [(1, 1.0)]), SeriesV2(B, [(1, 1.0)])]
    unpacked = [SeriesV2(one.labels, one.samples, packed=False) for one in series]
    limits = MessageLimits(**LABEL_LIMITS)
    for decoder, body in (
        (WriteDecoder(Known(), limits), v1),
        (WriteDecoderV2(Known(), limits), encode_v2(*series)),
        (WriteDecoderV2(Known(), limits), encode_v2(*unpacked)),
    ):
        found = decoder.decode(body)
        assert (found.series, found.oversized, found.invalid) == ([0, 1], 1, 0)
    assert LIMITS_REACHED.counts()[limit] == before + 3


@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (WriteDecoder, message(1, encode_labels([("a", "b")]) * 200_000)),
        (WriteDecoder, message(1, message(1, b"\x0a\x00" * 500_000))),
        (WriteDecoder, message(1, message(1, message(2, b"v" * 2_000_000)))),
        (WriteDecoderV2, message(4, b"a") + message(5, message(1, b"\x00" * 200_000))),
        (WriteDecoderV2, message(4, b"a") + message(5, b"\x08\x00" * 200_000)),
    ],
)
def test_oversized_labels_are_refused_before_they_are_built(
    decoder: type[WriteDecoder | WriteDecoderV2], body: bytes
) -> None:
    made = decoder(Known())
    tracemalloc.start()
    try:
        found = made.decode(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.oversized, found.size()) == (1, 1), "a refusal also where the series has no sample"
    assert peak < 4 * len(body) + 200_000, "no more than copies of the message and a few labels"


@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (WriteDecoder, message(1, message(2, b"") * 200_000)),
        (WriteDecoder, message(1, b"\x78\x00" * 200_000)),
        (WriteDecoder, message(3, b"") * 200_000),
        (WriteDecoderV2, message(5, message(2, b"") * 200_000)),
        (WriteDecoderV2, message(5, b"\x78\x00" * 200_000)),
        (WriteDecoderV2, message(9, b"") * 200_000),
    ],
)
def test_tiny_fields_are_refused_before_all_are_read(
    decoder: type[WriteDecoder | WriteDecoderV2], body: bytes
) -> None:
    made = decoder(Known(), MessageLimits(max_samples=1000))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="write_max_samples"):
            made.decode(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(body) + 400_000


def test_the_smallest_symbols_are_read_without_a_call_for_each() -> None:
    """Calls made reading 200,000 of them take 0.2 s, in which the event loop waits for the interpreter."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        """Only our own: a garbage collection calls finalizers and callbacks of others at any time."""
        nonlocal calls
        calls += event == "call" and frame.f_globals["__name__"].startswith("gpuscope.")

    body = message(4, b"") * 1_000_000
    decoder = WriteDecoderV2(Known(), MessageLimits(max_symbols=10_000))
    sys.setprofile(count)
    try:
        with pytest.raises(WireError, match="write_max_symbols"):
            decoder.decode(body)
    finally:
        sys.setprofile(None)
    assert calls < 100


texts = st.text(max_size=5)
some_series = st.builds(
    SeriesV2,
    st.dictionaries(texts, texts, min_size=1, max_size=4).map(lambda labels: tuple(sorted(labels.items()))),
    st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)), max_size=4),
    packed=st.booleans(),
)


@given(st.lists(some_series, max_size=6))
def test_the_same_as_version_1(series: list[SeriesV2]) -> None:
    rows = [(encode_labels(one.labels), at, value) for one in series for at, value in one.samples]
    first, second = Known(), Known()
    expected = WriteDecoder(first).decode(encode_samples(rows))
    found = WriteDecoderV2(second).decode(encode_v2(*series))
    assert (found.times, found.values) == (expected.times, expected.values)
    assert [second.labels[n] for n in found.series] == [first.labels[n] for n in expected.series]

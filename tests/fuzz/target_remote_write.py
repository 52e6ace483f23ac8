"""The remote-write decoders: any bytes give valid samples or a `WireError`.

The first byte selects the version. A decoder gets the same bytes twice, because the second time it uses its
cache of known series: both results must be equal.
"""

from __future__ import annotations

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
from tests.remote_write.write_v2 import RequestV2, SeriesV2, message, sample

LIMITS = MessageLimits(max_samples=200, max_symbols=50, max_labels_per_series=5, max_name_bytes=10)
A = (("__name__", "up"), ("instance", "a"), ("job", "j"))
_V2 = RequestV2()
_V2.add(SeriesV2(A, [(1_700_000_000_000, 1.0), (1_700_000_015_000, 0.0)], help="Help.", exemplars=1))
_V2.add(SeriesV2([("__name__", "h")], histograms=2, created=5)).add(SeriesV2(A, [(-1, -0.0)], packed=False))

SEEDS = (
    b"\x01" + encode_samples([(encode_labels(A), 1_700_000_000_000, 1.0), (encode_labels(A), 5, 0.0)]),
    b"\x01"
    + message(1, encode_labels(A) + message(2, b"\x10" + encode_varint(1_700_000_000_000)))
    + message(3, b"x"),
    b"\x01" + message(1, encode_labels(A) + message(2, sample(1, 2.0)) + message(4, b"\x08\x01")),
    b"\x02" + _V2.encode(),
    b"\x02" + message(5, message(1, b"\x00\x01")) + message(4, b"a") + message(4, b"b"),
)
TOKENS = (
    b"\x0a", b"\x12\x10\x09", b"\x12\x07\x10", b"\x10", b"\x09", b"\x22", b"\x2a", b"\x08", b"\x1a",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff", b"__name__", b"\xc3\xa9", b"\x00", b"\xe8\x07",
)  # fmt: skip


def run(data: bytes) -> None:
    known: dict[Labels, int] = {}

    def resolve(labels: Labels) -> int | None:
        assert list(labels) == sorted(labels)
        for name, value in labels:
            (name + value).encode()
        if not dict(labels).get("__name__"):
            return None
        return NO_ROOM if dict(labels)["__name__"] == "h" else known.setdefault(labels, len(known))

    kind = WriteDecoder if data[:1] != b"\x02" else WriteDecoderV2
    decoder = kind(resolve, LIMITS)
    try:
        first = decoder.decode(data[1:])
    except WireError:
        return
    _check(first, len(known))
    assert _seen(decoder.decode(data[1:])) == _seen(first)


def _check(found: Decoded, known: int) -> None:
    assert len(found.series) == len(found.times) == len(found.values)
    assert found.size() <= LIMITS.max_samples
    assert all(0 <= one < known for one in found.series)
    assert all(-(2**63) <= at < 2**63 for at in found.times)
    assert all(isinstance(value, float) for value in found.values)


def _seen(found: Decoded) -> str:
    """Return everything except the number of parsed labels; as text, because NaN is not equal to itself."""
    return repr(
        (
            found.series,
            found.times,
            found.values,
            found.invalid,
            found.oversized,
            found.histograms,
            found.refused[NO_ROOM],
        )
    )

"""Prometheus' remote write 1.0: encodes and decodes the protobuf message inside the snappy block.

Without generated code: the labels of a series are the same bytes in every request, so the encoder joins cached
bytes and the decoder looks them up in a cache. The lookup is safe because the cache has only bytes that were
parsed as labels before, and exactly one well-formed sample must follow them.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.varint import WireError, encode_varint, read_varint

Labels = tuple[tuple[str, str], ...]
Resolve = Callable[[Labels], int | None]
"""Maps sorted labels to the caller's number of the series; None if the labels are invalid, a negative number of
`REFUSALS` if the series must not be stored."""

NO_ROOM = -3
"""A limit refuses a new series."""
OTHER_NODE = -4
"""The sender's token is bound to another node."""
SCRAPED_HERE = -5
"""This server reads the target itself."""
REFUSALS = frozenset({NO_ROOM, OTHER_NODE, SCRAPED_HERE})
MAX_CACHED = 1_000_000
MAX_LABELS_PER_SAMPLE = 10
"""A request may have this many labels per sample, over all its series."""
_DOUBLE = struct.Struct("<d")
_UNKNOWN = -1
_INVALID = -2


def _field(number: int, payload: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + encode_varint(len(payload)) + payload


def encode_labels(labels: Iterable[tuple[str, str]]) -> bytes:
    """The labels of a series, sorted by name, as the first part of its message."""
    return b"".join(_field(1, _field(1, k.encode()) + _field(2, v.encode())) for k, v in sorted(labels))


def encode_samples(samples: Iterable[tuple[bytes, int, float]]) -> bytes:
    """A whole request: (encoded labels, milliseconds, value) one by one, a series message for each."""
    pack = _DOUBLE.pack
    times: dict[int, bytes] = {}
    parts: list[bytes] = []
    for labels, at, value in samples:
        tail = times.get(at)
        if tail is None:
            tail = times[at] = b"\x10" + encode_varint(at)
        sample = b"\x09" + pack(value) + tail
        length = len(labels) + len(sample) + 2
        parts += (b"\x0a", encode_varint(length), labels, b"\x12", bytes((len(sample),)), sample)
    return b"".join(parts)


class OversizedLabels(Exception):
    """A series has more or longer labels than the limits allow: the series is refused, the others are not."""


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """What one request may contain: a few bytes of it can encode a series, a label or a sample."""

    max_samples: int = Limits().write_max_samples
    max_symbols: int = Limits().write_max_symbols
    max_text_bytes: int = 4 * Limits().write_max_decoded_bytes
    """Of all labels of a 2.0 request: any number of labels can refer to one symbol."""
    max_labels_per_series: int = Limits().write_max_labels
    max_name_bytes: int = Limits().write_max_label_name_bytes
    max_value_bytes: int = Limits().write_max_label_value_bytes

    def check_text(self, size: int) -> None:
        if size > self.max_text_bytes:
            LIMITS_REACHED.count("write_max_decoded_bytes")
            raise WireError(f"more than {self.max_text_bytes} bytes of labels (write_max_decoded_bytes)")

    def check_samples(self, count: int) -> None:
        if count > self.max_samples:
            LIMITS_REACHED.count("write_max_samples")
            raise WireError(f"more than {self.max_samples} series, samples and exemplars (write_max_samples)")

    def check_labels(self, count: int) -> None:
        if count > MAX_LABELS_PER_SAMPLE * self.max_samples:
            LIMITS_REACHED.count("write_max_samples")
            raise WireError(f"more than {MAX_LABELS_PER_SAMPLE * self.max_samples} labels (write_max_samples)")

    def check_labels_of_series(self, count: int) -> None:
        if count > self.max_labels_per_series:
            LIMITS_REACHED.count("write_max_labels")
            raise OversizedLabels

    def check_label(self, name_bytes: int, value_bytes: int) -> None:
        if name_bytes > self.max_name_bytes:
            LIMITS_REACHED.count("write_max_label_name_bytes")
            raise OversizedLabels
        if value_bytes > self.max_value_bytes:
            LIMITS_REACHED.count("write_max_label_value_bytes")
            raise OversizedLabels

    def max_fields_per_series(self) -> int:
        """Fields of any kind: a series of 16 million empty fields is refused before it is in memory."""
        return self.max_samples + 2 * self.max_labels_per_series

    def check_symbols(self, count: int) -> None:
        if count > self.max_symbols:
            LIMITS_REACHED.count("write_max_symbols")
            raise WireError(f"more than {self.max_symbols} symbols (write_max_symbols)")


@dataclass(slots=True)
class Decoded:
    """The samples of a request as columns, and counts of what is not stored."""

    series: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    invalid: int = 0  # samples with invalid labels
    oversized: int = 0  # series with more or longer labels than the limits allow
    histograms: int = 0  # native histograms
    exemplars: int = 0
    refused: Counter[int] = field(default_factory=Counter)  # samples of series in `REFUSALS`
    no_samples: int = 0  # series of a 2.0 request without a sample or histogram
    labels: int = 0  # labels that had to be parsed
    text_bytes: int = 0  # of those

    def size(self) -> int:
        refused = self.invalid + self.oversized + self.refused.total() + self.no_samples
        return len(self.series) + refused + self.histograms + self.exemplars


class SeriesDecoder:
    """Both versions: series are remembered by a key made of the bytes of their labels, at most MAX_CACHED."""

    def __init__(self, resolve: Resolve, limits: MessageLimits | None = None) -> None:
        self._resolve = resolve
        self._limits = limits or MessageLimits()
        self._known: dict[bytes, int] = {}

    def forget(self) -> None:
        self._known.clear()

    def _remember(self, key: bytes, series: int) -> None:
        if len(self._known) >= MAX_CACHED:
            self._known.clear()
        self._known[key] = series


class WriteDecoder(SeriesDecoder):
    """Remote write 1.0. Not for several threads at once."""

    def decode(self, body: bytes) -> Decoded:
        decoded = Decoded()
        known, times = self._known, _Times()
        series, stamps, doubles = decoded.series, decoded.times, decoded.values
        position, end = 0, len(body)
        messages = 0
        while position < end:
            messages += 1
            tag = body[position]
            length, start = read_length(body, position + 1, end)
            position = start + length
            if tag != 0x0A:
                if tag & 7 != 2 or not 8 <= tag <= 0x7F:
                    raise WireError("not a remote-write request")
                self._limits.check_samples(messages)
                continue  # metadata
            # One sample at the end of the message, its value (18 bytes) or the value 0 left out (9 bytes).
            if length <= 18:
                pass  # too short for labels and a sample; the slices below would begin before the message
            elif body[position - 18 : position - 15] == b"\x12\x10\x09" and body[position - 7] == 0x10:
                number = known.get(body[start : position - 18], _UNKNOWN)
                at = times[body[position - 6 : position]]
                if number >= 0 and at is not None:
                    series.append(number)
                    stamps.append(at)
                    doubles.append(_DOUBLE.unpack_from(body, position - 15)[0])
                    continue
            elif body[position - 9 : position - 6] == b"\x12\x07\x10":
                number = known.get(body[start : position - 9], _UNKNOWN)
                at = times[body[position - 6 : position]]
                if number >= 0 and at is not None:
                    series.append(number)
                    stamps.append(at)
                    doubles.append(0.0)
                    continue
            try:
                self._series(body[start:position], decoded)
            except OversizedLabels:
                decoded.oversized += 1
            self._limits.check_samples(max(messages, decoded.size()))
        self._limits.check_samples(messages)
        return decoded

    def _series(self, message: bytes, decoded: Decoded) -> None:
        labels: list[bytes] = []
        samples: list[tuple[int, float]] = []
        histograms = 0
        max_fields = self._limits.max_fields_per_series()
        for count, (number, payload) in enumerate(_fields(message)):
            if count > max_fields:
                self._limits.check_samples(count)
            if number == 1:
                labels.append(payload)
                self._limits.check_labels_of_series(len(labels))
            elif number == 2:
                samples.append(read_sample(payload))
            elif number == 3:
                decoded.exemplars += 1
            elif number == 4:
                histograms += 1
        decoded.labels += len(labels)
        self._limits.check_labels(decoded.labels)
        key = b"".join(_field(1, payload) for payload in labels)
        series = self._known.get(key, _UNKNOWN)
        if series == _UNKNOWN:
            series = self._new(key, labels)
        if series == _INVALID:
            decoded.invalid += len(samples)
            return
        if series in REFUSALS:
            decoded.refused[series] += len(samples)
            return
        decoded.histograms += histograms
        for at, value in samples:
            decoded.series.append(series)
            decoded.times.append(at)
            decoded.values.append(value)

    def _new(self, key: bytes, labels: list[bytes]) -> int:
        limits = self._limits
        try:
            decoded = tuple(sorted(_label(label, limits) for label in labels))
        except UnicodeDecodeError:
            return _INVALID
        resolved = self._resolve(decoded) if decoded else None
        number = _INVALID if resolved is None else resolved
        if number >= 0:
            self._remember(key, number)
        return number


class _Times(dict[bytes, int | None]):
    """Caches six bytes of a varint → milliseconds, because a request has few different times. None if the bytes
    are not one varint: such a message is read field by field."""

    def __missing__(self, packed: bytes) -> int | None:
        whole = packed[-1] < 0x80 and all(byte >= 0x80 for byte in packed[:-1])
        self[packed] = value = read_varint(packed, 0, len(packed))[0] if whole else None
        return value


def read_length(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The length of a length-delimited field, and the offset of its content."""
    if position < end and data[position] < 0x80:
        length, position = data[position], position + 1
    else:
        length, position = read_varint(data, position, end)
    if position + length > end:
        raise WireError("the message is cut short")
    return length, position


def _fields(message: bytes) -> Iterable[tuple[int, bytes]]:
    """The length-delimited fields of a message; a field of another wire type yields number 0 and no content."""
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field without a number")
        if kind == 2:
            length, position = read_length(message, position, end)
            yield number, message[position : position + length]
            position += length
        else:
            position = skip_number(message, position, end, kind)
            yield 0, b""


def skip_number(message: bytes, position: int, end: int, kind: int) -> int:
    if kind == 0:
        return read_varint(message, position, end)[1]
    if kind not in (1, 5):
        raise WireError("a field of an unknown kind")
    position += 8 if kind == 1 else 4
    if position > end:
        raise WireError("the message is cut short")
    return position


LABEL_FRAME_BYTES = 32
"""An upper bound for the tags and lengths inside a label."""


def _label(payload: bytes, limits: MessageLimits) -> tuple[str, str]:
    name = value = b""
    limits.check_label(0, len(payload) - limits.max_name_bytes - LABEL_FRAME_BYTES)
    for number, text in _fields(payload):
        if number == 1:
            name = text
        elif number == 2:
            value = text
    limits.check_label(len(name), len(value))
    return name.decode("utf-8"), value.decode("utf-8")


def read_sample(payload: bytes) -> tuple[int, float]:
    value, at = 0.0, 0
    position, end = 0, len(payload)
    while position < end:
        tag, position = read_varint(payload, position, end)
        if tag == 0x09:
            if position + 8 > end:
                raise WireError("the message is cut short")
            value = _DOUBLE.unpack_from(payload, position)[0]
            position += 8
        elif tag == 0x10:
            at, position = read_varint(payload, position, end)
        elif tag & 7 == 2:
            length, position = read_length(payload, position, end)
            position += length
        else:
            position = skip_number(payload, position, end, tag & 7)
    return at - (1 << 64) if at >= 1 << 63 else at, value

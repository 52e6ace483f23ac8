"""Encodes `io.prometheus.write.v2.Request` for tests, as Prometheus does, or wrongly on purpose."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import cramjam

from gpuscope.base.varint import encode_varint


def message(number: int, payload: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(payload)) + payload


def sample(at: int, value: float) -> bytes:
    return b"\x09" + struct.pack("<d", value) + b"\x10" + encode_varint(at)


@dataclass
class SeriesV2:
    labels: Iterable[tuple[str, str]]
    samples: Sequence[tuple[int, float]] = ()
    histograms: int = 0
    exemplars: int = 0
    help: str = ""
    packed: bool = True
    created: int = 0


@dataclass
class RequestV2:
    symbols: list[str] = field(default_factory=lambda: [""])
    series: list[bytes] = field(default_factory=list)

    def ref(self, text: str) -> int:
        if text not in self.symbols:
            self.symbols.append(text)
        return self.symbols.index(text)

    def add(self, one: SeriesV2) -> RequestV2:
        refs = [self.ref(text) for pair in one.labels for text in pair]
        if one.packed:
            body = message(1, b"".join(map(encode_varint, refs)))
        else:
            body = b"".join(b"\x08" + encode_varint(ref) for ref in refs)
        body += b"".join(message(2, sample(at, value)) for at, value in one.samples)
        body += message(3, b"\x08\x05\x78\x01") * one.histograms
        body += message(4, b"\x11" + struct.pack("<d", 1.0) + b"\x18\x01") * one.exemplars
        body += message(5, b"\x08\x01\x18" + encode_varint(self.ref(one.help)))
        if one.created:
            body += b"\x30" + encode_varint(one.created)
        self.series.append(body)
        return self

    def encode(self) -> bytes:
        symbols = b"".join(message(4, text.encode()) for text in self.symbols)
        return symbols + b"".join(message(5, one) for one in self.series)


def encode_v2(*series: SeriesV2) -> bytes:
    request = RequestV2()
    for one in series:
        request.add(one)
    return request.encode()


def packed(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))

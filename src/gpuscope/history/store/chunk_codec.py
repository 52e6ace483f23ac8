"""Encodes one series' samples of one block to bytes and back, bit for bit; and bundles of such chunks.

A chunk holds values and a reference to the block's shared timestamps: a whole column, a range, a bitmap, or
timestamps of its own. Values are encoded as a constant, as integers scaled by a power of ten, or as floats.
NaNs (stale markers keep their payload), infinities and -0.0 are stored as exceptions. The last four bytes are a
CRC, because SQLite does not detect a flipped bit inside a blob.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pcodec import ChunkConfig, standalone

from gpuscope.base.varint import VarintError, encode_varint, read_varint
from gpuscope.history.store.schema import BLOCK_BITS
from gpuscope.history.store.tick import Bools, Float64s, Int64s

_CONST_INT, _CONST_BITS, _INTEGERS, _FLOATS, _BITS, _RAW = range(6)
_WHOLE, _RANGE, _BITMAP, _OWN = (kind << 4 for kind in range(4))
_EXCEPTIONS = 0x40
_EXPONENTS = (0, 1, 2, 3, 4, 6)
_EXACT = float(2**53)
_PROBE = 16
_CONFIG = ChunkConfig(compression_level=8)
_QUICK = ChunkConfig(compression_level=4)
"""Takes half the time for a few per cent more bytes; used for chunks that are merged within hours."""
_NEGATIVE_ZERO = np.int64(-(2**63))


class ChunkDamagedError(ValueError):
    """The bytes are not a valid chunk: wrong checksum or truncated."""


@dataclass(frozen=True, slots=True)
class TimeSelection:
    """The timestamps of a chunk's values: `bitmap` or `own` if set, else `length` entries from `first` of a
    column (length 0: the whole column). Hashable, so that chunks with equal selections share one timestamps
    array."""

    column: int = 0
    first: int = 0
    length: int = 0
    bitmap: bytes | None = None
    own: bytes | None = None

    def pick(self, columns: Sequence[Int64s]) -> Int64s:
        """Return the selected timestamps."""
        if self.own is not None:
            return unpack_integers(self.own)
        times = columns[self.column]
        if self.bitmap is not None:
            bits = np.unpackbits(np.frombuffer(zlib.decompress(self.bitmap), np.uint8), count=len(times))
            return times[bits.view(np.bool_)]
        return times[self.first : self.first + self.length] if self.length else times


def select_by_mask(mask: Bools, column: int = 0) -> TimeSelection:
    """Return the shortest `TimeSelection` for the set positions of a column; at least one must be set."""
    positions = np.flatnonzero(mask)
    first, last = int(positions[0]), int(positions[-1])
    count = len(positions)
    if count == len(mask):
        return TimeSelection(column)
    if last - first + 1 == count:
        return TimeSelection(column, first, count)
    return TimeSelection(column, bitmap=zlib.compress(np.packbits(mask).tobytes(), 6))


def pack_integers(numbers: Int64s, config: ChunkConfig = _CONFIG) -> bytes:
    """Compress timestamps or ids; pcodec applies delta encoding."""
    return bytes(standalone.simple_compress(np.ascontiguousarray(numbers, np.int64), config))


def unpack_integers(data: bytes) -> Int64s:
    numbers = standalone.simple_decompress(data)
    if numbers is None:
        return np.empty(0, np.int64)
    if numbers.dtype != np.int64:
        raise ChunkDamagedError("expected integers")
    return numbers  # type: ignore[no-any-return]


def encode_values(values: Float64s, *, quick: bool = False) -> bytes:
    """Encode values without timestamps: kind byte, exceptions, payload. `values` must not be empty."""
    config = _QUICK if quick else _CONFIG
    values = np.ascontiguousarray(values, np.float64)
    bits = values.view(np.int64)
    special = ~np.isfinite(values) | (bits == _NEGATIVE_ZERO)
    count = int(np.count_nonzero(special))
    if not count:
        kind, payload = _encode_plain(values, bits, config)
        return bytes([kind]) + payload
    if (bits == bits[0]).all():
        return bytes([_CONST_BITS]) + struct.pack("<q", int(bits[0]))
    if count > len(values) // 4:
        return bytes([_BITS]) + bytes(standalone.simple_compress(bits.view(np.uint64), _CONFIG))
    positions = np.flatnonzero(special)
    filled = _carry_forward(values, special)
    kind, payload = _encode_plain(filled, filled.view(np.int64), config)
    gaps = np.diff(positions, prepend=0)
    table = b"".join(encode_varint(int(gap)) for gap in gaps) + bits[positions].astype("<i8").tobytes()
    return bytes([kind | _EXCEPTIONS]) + encode_varint(count) + table + payload


def join_chunk(values: bytes, where: TimeSelection) -> bytes:
    """Return the bytes of a chunk: time selection, encoded values and a CRC."""
    if where.own is not None:
        place, head = _OWN, encode_varint(len(where.own)) + where.own
    elif where.bitmap is not None:
        place, head = _BITMAP, encode_varint(where.column) + encode_varint(len(where.bitmap)) + where.bitmap
    elif where.length:
        place, head = (
            _RANGE,
            encode_varint(where.column) + encode_varint(where.first) + encode_varint(where.length),
        )
    else:
        place, head = _WHOLE, encode_varint(where.column)
    body = bytes([values[0] | place]) + head + values[1:]
    return body + zlib.crc32(body).to_bytes(4, "little")


def split_chunk(data: bytes) -> tuple[TimeSelection, _EncodedValues]:
    """Return a chunk's time selection and its values, still encoded."""
    if len(data) < 6 or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ChunkDamagedError("wrong checksum of a chunk")
    kind, at, end = data[0], 1, len(data) - 4
    place = kind & 0x30
    if place == _OWN:
        size, at = _read_varint(data, at)
        where, at = TimeSelection(own=data[at : at + size]), at + size
    else:
        column, at = _read_varint(data, at)
        if place == _BITMAP:
            size, at = _read_varint(data, at)
            where, at = TimeSelection(column, bitmap=data[at : at + size]), at + size
        elif place == _RANGE:
            first, at = _read_varint(data, at)
            length, at = _read_varint(data, at)
            where = TimeSelection(column, first, length)
        else:
            where = TimeSelection(column)
    return where, _EncodedValues(kind & 0x4F, data[at:end])


@dataclass(frozen=True, slots=True)
class _EncodedValues:
    kind: int
    data: bytes

    def decode(self, count: int) -> Float64s:
        """Decode `count` values; the encoding of a constant does not contain the count."""
        if not self.kind & _EXCEPTIONS:
            return _decode_plain(self.kind, self.data, count)
        number, at = _read_varint(self.data, 0)
        positions = np.empty(number, np.int64)
        for i in range(number):
            positions[i], at = _read_varint(self.data, at)
        bits = np.frombuffer(self.data, "<i8", number, at)
        values = _decode_plain(self.kind & 0x0F, self.data[at + 8 * number :], count)
        values.view(np.int64)[np.cumsum(positions)] = bits
        return values


def decode_values(data: bytes, count: int) -> Float64s:
    """Inverse of `encode_values`."""
    return _EncodedValues(data[0] & 0x4F, data[1:]).decode(count)


def pack_columns(columns: Sequence[Int64s]) -> bytes:
    """Pack a block's shared timestamps: for each column its length and bytes, then a CRC."""
    packed = [pack_integers(column) for column in columns]
    body = encode_varint(len(packed)) + b"".join(encode_varint(len(part)) + part for part in packed)
    return body + zlib.crc32(body).to_bytes(4, "little")


def unpack_columns(data: bytes) -> list[Int64s]:
    if len(data) < 5 or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ChunkDamagedError("wrong checksum of a block's timestamps")
    count, at = _read_varint(data, 0)
    columns = []
    for _ in range(count):
        size, at = _read_varint(data, at)
        columns.append(unpack_integers(data[at : at + size]))
        at += size
    return columns


def _encode_plain(values: Float64s, bits: Int64s, config: ChunkConfig) -> tuple[int, bytes]:
    """Encode finite values without -0.0 in the smallest kind."""
    if (bits == bits[0]).all():
        number = float(values[0])
        if number.is_integer() and abs(number) < _EXACT:
            return _CONST_INT, encode_varint(_zigzag(int(number)))
        return _CONST_BITS, struct.pack("<q", int(bits[0]))
    for exponent in _EXPONENTS:
        integers = _scaled(values, bits, exponent)
        if integers is not None:
            packed = pack_integers(integers, config)
            break
    else:
        packed = bytes(standalone.simple_compress(values, config))
        exponent = -1
    if len(packed) + 1 >= 8 * len(values):
        return _RAW, bits.astype("<i8").tobytes()
    return (_INTEGERS, bytes([exponent]) + packed) if exponent >= 0 else (_FLOATS, packed)


def _decode_plain(kind: int, data: bytes, count: int) -> Float64s:
    if kind == _CONST_INT:
        return np.full(count, float(_unzigzag(_read_varint(data, 0)[0])))
    if kind == _CONST_BITS:
        return np.full(count, struct.unpack("<q", data)[0], np.int64).view(np.float64)
    if kind == _RAW:
        values = np.frombuffer(data, "<f8").copy()
    elif kind == _INTEGERS:
        integers = unpack_integers(data[1:])
        values = integers / 10.0 ** data[0] if data[0] else integers.astype(np.float64)
    elif kind in (_FLOATS, _BITS):
        decoded = standalone.simple_decompress(data)
        if decoded is None or decoded.dtype.itemsize != 8:
            raise ChunkDamagedError("expected 8-byte values")
        values = decoded.view(np.float64)
    else:
        raise ChunkDamagedError(f"unknown chunk kind {kind}")
    if len(values) != count:
        raise ChunkDamagedError(f"chunk has {len(values)} values, expected {count}")
    return values


def _scaled(values: Float64s, bits: Int64s, exponent: int) -> Int64s | None:
    """Return integers that give exactly these bits when divided by 10**exponent; None if there are none.

    Division is correctly rounded, so a decimal parsed from text ("12.345") is always restored exactly.
    """
    scale = 10.0**exponent
    if not _returns(values[:_PROBE], bits[:_PROBE], scale) or not _returns(values, bits, scale):
        return None
    return np.rint(values * scale).astype(np.int64)


def _returns(values: Float64s, bits: Int64s, scale: float) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.rint(values * scale) + 0.0
        return bool((np.abs(rounded) < _EXACT).all() and ((rounded / scale).view(np.int64) == bits).all())


def _carry_forward(values: Float64s, special: Bools) -> Float64s:
    """Replace special values by their left neighbour, so that they take no space in the payload."""
    at = np.where(special, -1, np.arange(len(values)))
    np.maximum.accumulate(at, out=at)
    at[at < 0] = int(np.argmin(special))
    return values[at]


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return -((number + 1) >> 1) if number & 1 else number >> 1


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(data, at, len(data))
    except VarintError as error:
        raise ChunkDamagedError(str(error)) from None


# Stores the chunks of several series in one row.
#
# One row per chunk would leave a fifth of the file empty, because SQLite packs rows of about page size badly.
# A bundle is some tens of kilobytes, so its overflow pages are full. It starts with a directory (series ids,
# sizes) protected by a CRC; each chunk has its own CRC.

BundleRow = tuple[int, bytes]
_MAX_BYTES = 64 << 10
_MAX_CHUNKS = 256


def to_bundles(block: int, chunks: Iterable[tuple[int, bytes]]) -> list[BundleRow]:
    """Pack chunks, ascending by series, into rows; a row's id is the block id and its first series id."""
    rows: list[BundleRow] = []
    some: list[tuple[int, bytes]] = []
    size = 0
    for sid, data in chunks:
        if some and (size + len(data) > _MAX_BYTES or len(some) == _MAX_CHUNKS):
            rows.append((block << BLOCK_BITS | some[0][0], _pack(some)))
            some, size = [], 0
        some.append((sid, data))
        size += len(data)
    if some:
        rows.append((block << BLOCK_BITS | some[0][0], _pack(some)))
    return rows


def _pack(chunks: list[tuple[int, bytes]]) -> bytes:
    directory = np.array([[sid, len(data)] for sid, data in chunks], "<u4").T.tobytes()
    head = len(chunks).to_bytes(2, "little") + directory
    return head + zlib.crc32(head).to_bytes(4, "little") + b"".join(data for _, data in chunks)


def from_bundle(data: bytes, wanted: Int64s) -> Iterator[tuple[int, bytes]]:
    """Return the chunks of the wanted series that are in the bundle."""
    count = int.from_bytes(data[:2], "little")
    at = 2 + 8 * count
    if len(data) < at + 4 or zlib.crc32(data[:at]) != int.from_bytes(data[at : at + 4], "little"):
        raise ChunkDamagedError("wrong checksum of a bundle's directory")
    directory = np.frombuffer(data, "<u4", 2 * count, 2).astype(np.int64).reshape(2, count)
    place = np.minimum(np.searchsorted(directory[0], wanted), count - 1)
    hit = directory[0][place] == wanted
    ends = np.cumsum(directory[1])[place] + at + 4
    starts = ends - directory[1][place]
    for sid, start, end in zip(wanted[hit].tolist(), starts[hit].tolist(), ends[hit].tolist(), strict=True):
        yield sid, data[start:end]

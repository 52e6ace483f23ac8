"""Varints, as in protocol buffers and in our chunks: seven bits per byte, low bits first."""

from __future__ import annotations

_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_MAX_SHIFT = 63


class WireError(ValueError):
    """The bytes are not in the expected format."""


class VarintError(WireError):
    """The bytes end inside a varint, or a varint has more than 64 bits."""


def encode_varint(value: int) -> bytes:
    """Encodes a 64-bit integer; a negative integer takes ten bytes, as protobuf's int64."""
    value &= _MASK_64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The integer at offset `at` and the offset after it; reads no byte at or after `end`."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK_64, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise VarintError("a number is longer than 64 bits")
    raise VarintError("the bytes end inside a number")

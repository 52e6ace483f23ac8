"""Numbers of variable length, as protocol buffers and our chunks write them: seven bits a byte, the low ones
first.
"""

from __future__ import annotations

_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF
_MAX_SHIFT = 63


class WireError(ValueError):
    """The bytes are not in the format they should be in; says what is wrong."""


class VarintError(WireError):
    """The bytes end inside a number, or a number is longer than 64 bits."""


def encode_varint(value: int) -> bytes:
    """A 64-bit number; negative ones take ten bytes, as protobuf's int64 does."""
    value &= _MASK_64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and where the next thing begins; nothing from `end` on is looked at."""
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

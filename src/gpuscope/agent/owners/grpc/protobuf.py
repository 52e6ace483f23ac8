"""Protocol Buffers' wire format: the fields of a message, one by one.

The caller skips fields it does not know. A truncated message, or a wire type that is not used any more, raises
`ProtobufError`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.base.errors import SourceError
from gpuscope.base.varint import VarintError, read_varint

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes


class ProtobufError(SourceError):
    """Not a Protocol Buffers message, or a truncated one."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: an int for a varint, bytes for every other type."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind, number = key & 7, key >> 3
        if number == 0:
            raise ProtobufError("a field has number 0")
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ProtobufError(f"unknown wire type {kind}")
        if length > end - at:
            raise ProtobufError("a message is truncated")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(message, at, len(message))
    except VarintError as error:
        raise ProtobufError(str(error)) from None


def text(value: Value) -> str:
    """A string field; empty if the field is a number."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def message(value: Value) -> bytes:
    """An embedded message; empty if the field is a number."""
    return value if isinstance(value, bytes) else b""

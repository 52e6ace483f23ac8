"""Protocol buffers on the wire: the fields of a message, one by one, and nothing else.

Unknown fields are the reader's to skip. A message that breaks off, or a wire type that no longer exists, is
`WireError`.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.errors import SourceError
from gpuscope.varint import VarintError, read_varint

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes


class WireError(SourceError):
    """Not a protocol buffers message, or not all of it."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: an int of a varint, bytes of all the others."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind, number = key & 7, key >> 3
        if number == 0:
            raise WireError("a field without a number")
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"wire type {kind}")
        if length > end - at:
            raise WireError("a message breaks off")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(message, at, len(message))
    except VarintError as error:
        raise WireError(str(error)) from None


def text(value: Value) -> str:
    """A string field; a number where a string belongs is nothing."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def message(value: Value) -> bytes:
    """A message within a message; a number where one belongs is an empty one."""
    return value if isinstance(value, bytes) else b""

"""HTTP/2's compressed headers (HPACK): the part that is needed to know whether a call succeeded.

Of the static table only `:status` is used; other names decode to empty text. Text with characters that no gRPC
header has (more than 15 bits in the Huffman code) decodes to `?`.
"""

from __future__ import annotations

from typing import Final

from gpuscope.base.errors import SourceError

_STATIC_ENTRIES: Final = 61
_FIRST_STATUS: Final = 8
_STATUSES: Final = ("200", "204", "206", "304", "400", "404", "500")
_MAX_TABLE_BYTES: Final = 4096
_MAX_TEXT: Final = 8192

# The Huffman code is canonical: it follows from the characters of each length in order.
_BY_LENGTH: Final = {
    5: "012aceiost",
    6: " %-./3456789=A_bdfghlmnpru",
    7: ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: "&*,;XZ",
    10: '!"()?',
    11: "'+|",
    12: "#>",
    13: "\0$@[]~",
    14: "^}",
    15: "<`{",
}


class HeaderError(SourceError):
    """Not a valid header block."""


def _codes() -> dict[tuple[int, int], str]:
    codes, code, before = {}, 0, 0
    for length, characters in _BY_LENGTH.items():
        code <<= length - before
        before = length
        for character in characters:
            codes[length, code] = character
            code += 1
    return codes


_CODES: Final = _codes()
_MAX_CODE_LENGTH: Final = max(_BY_LENGTH)


def decode_huffman(data: bytes) -> str:
    bits, length, characters = 0, 0, []
    for byte in data:
        for shift in range(7, -1, -1):
            bits = bits << 1 | (byte >> shift & 1)
            length += 1
            character = _CODES.get((length, bits))
            if character is not None:
                characters.append(character)
                bits = length = 0
            elif length > _MAX_CODE_LENGTH:
                return "?"
    if length > 7 or bits != (1 << length) - 1:
        raise HeaderError("the text of a header is truncated")
    return "".join(characters)


class HeaderDecoder:
    """For one connection: later blocks refer to entries of earlier ones."""

    def __init__(self) -> None:
        self._dynamic: list[tuple[str, str]] = []

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        headers, at = [], 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                headers.append(self._entry(index))
            elif first & 0xE0 == 0x20:  # a new size of the table: ignored, ours is bounded
                _, at = _integer(block, at, 5)
            else:
                indexed = bool(first & 0x40)
                index, at = _integer(block, at, 6 if indexed else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                headers.append((name, value))
                if indexed:
                    self._add_entry(name, value)
        return headers

    def _entry(self, index: int) -> tuple[str, str]:
        if index == 0:
            raise HeaderError("a header has index 0")
        if index > _STATIC_ENTRIES:
            if index - _STATIC_ENTRIES > len(self._dynamic):
                raise HeaderError("a header refers to an unknown entry")
            return self._dynamic[index - _STATIC_ENTRIES - 1]
        if _FIRST_STATUS <= index < _FIRST_STATUS + len(_STATUSES):
            return ":status", _STATUSES[index - _FIRST_STATUS]
        return "", ""

    def _add_entry(self, name: str, value: str) -> None:
        self._dynamic.insert(0, (name, value))
        # The server does not refer to entries it has dropped; this table only must not grow without bound.
        del self._dynamic[_MAX_TABLE_BYTES // 32 :]


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    largest = (1 << prefix) - 1
    value = block[at] & largest
    at += 1
    if value < largest:
        return value, at
    shift = 0
    while True:
        if at >= len(block) or shift > 28:
            raise HeaderError("an integer of a header is truncated")
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _text(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise HeaderError("a header is truncated")
    huffman = bool(block[at] & 0x80)
    length, at = _integer(block, at, 7)
    if length > len(block) - at or length > _MAX_TEXT:
        raise HeaderError("a header is truncated")
    data = block[at : at + length]
    return decode_huffman(data) if huffman else data.decode("latin-1"), at + length

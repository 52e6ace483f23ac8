"""HTTP/2's compressed headers, as much of them as tells whether a call worked.

Of the static table only `:status` has a meaning here; other names read as empty. Texts with characters that no
gRPC header holds (beyond 15 bits in the Huffman code) read as `?`.
"""

from __future__ import annotations

from typing import Final

from gpuscope.errors import SourceError

_STATIC_ENTRIES: Final = 61
_FIRST_STATUS: Final = 8
_STATUSES: Final = ("200", "204", "206", "304", "400", "404", "500")
_MOST_TABLE_BYTES: Final = 4096
_MOST_TEXT: Final = 8192

# The code is canonical: the characters of each length, in order, are all there is to know.
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
    """Not a header block."""


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
_LONGEST: Final = max(_BY_LENGTH)


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
            elif length > _LONGEST:
                return "?"
    if length > 7 or bits != (1 << length) - 1:
        raise HeaderError("a header's text breaks off")
    return "".join(characters)


class HeaderDecoder:
    """For one connection: later blocks may point at what earlier ones said."""

    def __init__(self) -> None:
        self._dynamic: list[tuple[str, str]] = []

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        headers, at = [], 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                headers.append(self._entry(index))
            elif first & 0xE0 == 0x20:  # a new size of the table; we offer no more than we keep anyway
                _, at = _integer(block, at, 5)
            else:
                remembered = bool(first & 0x40)
                index, at = _integer(block, at, 6 if remembered else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                headers.append((name, value))
                if remembered:
                    self._remember(name, value)
        return headers

    def _entry(self, index: int) -> tuple[str, str]:
        if index == 0:
            raise HeaderError("a header has no number")
        if index > _STATIC_ENTRIES:
            if index - _STATIC_ENTRIES > len(self._dynamic):
                raise HeaderError("a header points at nothing")
            return self._dynamic[index - _STATIC_ENTRIES - 1]
        if _FIRST_STATUS <= index < _FIRST_STATUS + len(_STATUSES):
            return ":status", _STATUSES[index - _FIRST_STATUS]
        return "", ""

    def _remember(self, name: str, value: str) -> None:
        self._dynamic.insert(0, (name, value))
        # What the other side has dropped it will not ask for; ours must only not grow without end.
        del self._dynamic[_MOST_TABLE_BYTES // 32 :]


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    most = (1 << prefix) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        if at >= len(block) or shift > 28:
            raise HeaderError("a header's number breaks off")
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _text(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise HeaderError("a header breaks off")
    huffman = bool(block[at] & 0x80)
    length, at = _integer(block, at, 7)
    if length > len(block) - at or length > _MOST_TEXT:
        raise HeaderError("a header breaks off")
    data = block[at : at + length]
    return decode_huffman(data) if huffman else data.decode("latin-1"), at + length

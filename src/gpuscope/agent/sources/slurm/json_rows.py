"""Reads slurmrestd's JSON row by row, so that a large answer takes little memory and does not hold the GIL.

Input: the body of an answer, one object with a list of rows such as `jobs`. Output: the rows, each handed on as
soon as it is decoded, and the other members of the object. ValueError: not JSON, nested too deep, or a row or
member beyond MAX_VALUE_CHARACTERS; an answer that is all one value is therefore never decoded.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Any, Final

MAX_VALUE_CHARACTERS: Final = 1 << 20  # a job has 12 KB; some have a long list of nodes or array tasks
MAX_ROWS: Final = 200_000
_PIECE_BYTES: Final = 1 << 18
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_SHORT_VALUE: Final = 16
"""A number at the end of the text may go on in the next piece."""


class _Text:
    """The answer as text, of which only the part that is being decoded is in memory."""

    def __init__(self, body: bytes) -> None:
        self._body, self._next = body, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            match = _SPACES.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._read_more():
                return self._text[self._at : self._at + 1]

    def expect(self, characters: str) -> str:
        found = self.peek()
        if not found or found not in characters:
            raise ValueError(f"one of {characters} expected")
        self._at += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
                if end + _SHORT_VALUE < len(self._text) or not self._read_more():
                    self._at = end
                    return value
            except ValueError:
                if not self._read_more():
                    raise

    def _read_more(self) -> bool:
        """Appends as much as is there already, at least a piece; False at the end of the answer."""
        if self._next >= len(self._body):
            return False
        rest = self._text[self._at :]
        if len(rest) > MAX_VALUE_CHARACTERS:
            raise ValueError(f"a value of more than {MAX_VALUE_CHARACTERS} characters")
        end = self._next + max(_PIECE_BYTES, len(rest))
        piece = self._body[self._next : end]
        self._next = end
        self._text, self._at = rest + self._decoder.decode(piece, end >= len(self._body)), 0
        return True


def read_rows(body: bytes, key: str, take: Callable[[Any], None]) -> dict[str, Any]:
    """Calls `take` with each element of the list `key`; an object `key` has the list (shares).

    Returns the other members. The list itself is True in the result, so that a missing one can be told.
    """
    text = _Text(body)
    if text.peek() != "{":
        raise ValueError("it is not an object")
    try:
        members = _read_object(text, key, take)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if text.peek():
        raise ValueError("more text after the object")
    return members


def _read_object(text: _Text, key: str, take: Callable[[Any], None]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    text.expect("{")
    if text.peek() == "}":
        text.expect("}")
        return members
    while True:
        name = text.value()
        text.expect(":")
        following = text.peek()
        if name == key and following == "[":
            _read_list(text, take)
            members[key] = True
        elif name == key and following == "{":
            members.update(_read_object(text, key, take))
        else:
            members[str(name)] = text.value()
        if text.expect(",}") == "}":
            return members


def _read_list(text: _Text, take: Callable[[Any], None]) -> None:
    text.expect("[")
    if text.peek() == "]":
        text.expect("]")
        return
    for _ in range(MAX_ROWS):
        take(text.value())
        if text.expect(",]") == "]":
            return
    raise ValueError(f"more than {MAX_ROWS} rows")

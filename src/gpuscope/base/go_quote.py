"""String literals as Go's `%q` writes them, for queries and messages. It loads no numpy."""

from __future__ import annotations

_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def quote(value: str) -> str:
    """Format a string literal as Prometheus does in queries and messages (Go's `%q`)."""
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, as Python represents it
        code -= 0xDC00
        return f"\\x{code:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

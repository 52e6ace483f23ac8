"""Label sets as the evaluator changes them: dropped, kept, set; always sorted by name, never an empty value."""

from __future__ import annotations

from collections.abc import Collection

from gpuscope.series import Labels

METRIC_NAME = "__name__"
# What says which metric a value is; a value that was computed is of another metric.
IDENTITY = frozenset({METRIC_NAME, "__type__", "__unit__"})

MAX_SHOWN_CHARACTERS = 1_000
"""Of a label in a message: a label's text may be as long as the query's budget."""
MAX_SHOWN_LABELS = 100


def get(labels: Labels, name: str) -> str:
    """The value, or the empty string: PromQL does not tell an absent label from an empty one."""
    for key, value in labels:
        if key == name:
            return value
    return ""


def drop_name(labels: Labels) -> Labels:
    """Without the metric's name (and its type and unit, where a store keeps those as labels)."""
    return tuple(pair for pair in labels if pair[0] not in IDENTITY)


def drop(labels: Labels, names: Collection[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] not in names)


def keep(labels: Labels, names: Collection[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)


def assign(labels: Labels, name: str, value: str) -> Labels:
    """With `name` set to `value`; an empty value takes the label away."""
    others = [pair for pair in labels if pair[0] != name]
    if value:
        others.append((name, value))
        others.sort()
    return tuple(others)


def is_utf8(text: str) -> bool:
    """Python keeps bytes that are no UTF-8 as lone surrogates."""
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


def as_utf8(text: str) -> str:
    """With the replacement character for each byte that is not, as Go's regular expressions read it."""
    return text if is_utf8(text) else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def render(labels: Labels) -> str:
    """As people write a series, for messages; what is very long is cut."""
    inner = ", ".join(f"{cut(k)}={quote(cut(v))}" for k, v in labels[:MAX_SHOWN_LABELS] if k != METRIC_NAME)
    return f"{cut(get(labels, METRIC_NAME))}{{{inner}}}"


def cut(text: str) -> str:
    """For messages."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"


_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def quote(value: str) -> str:
    """A string literal, as Prometheus writes one in queries and messages (Go's `%q`)."""
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8, as Python keeps it
        code -= 0xDC00
        return f"\\x{code:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

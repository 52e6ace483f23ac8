"""Times of the @ modifier before 1970, which the parser library cannot represent.

`shift_times` writes `@ -1.5` as a number of seconds beyond any real time, `unshift_ms` reads it back.
Times that no sample can have, in either direction, become the furthest time of their side.
"""

from __future__ import annotations

import re

from gpuscope.history.promql.durations import DURATION_LITERAL, literal_seconds
from gpuscope.history.promql.lexical import OPAQUE
from gpuscope.history.promql.query_errors import BadQueryError

_SHIFT = 1 << 52
"""Seconds. Above it a second stands for a millisecond before 1970: both are exact in a float."""
_FURTHEST_MS = _SHIFT - 1
_OUT_OF_BOUNDS = 2.0**63
_TIME = re.compile(
    rf"{OPAQUE}|@\s*(?P<sign>[-+]?)\s*(?P<time>0[xX][0-9a-fA-F]+|(?:{DURATION_LITERAL.pattern})(?!\w)"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)",
    re.DOTALL,
)


def shift_times(text: str) -> str:
    """`text` has no underscores in numbers and no comments."""
    if "@" not in text:
        return text

    def shifted(found: re.Match[str]) -> str:
        if found["time"] is None:
            return found.group()
        seconds = _seconds(found["time"])
        if seconds >= _OUT_OF_BOUNDS:
            raise BadQueryError(
                f"parse error: timestamp out of bounds for @ modifier: {found['sign']}{seconds:g}"
            )
        return f"@ {_SHIFT + _to_ms(seconds)}" if found["sign"] == "-" else found.group()

    return _TIME.sub(shifted, text)


def unshift_ms(seconds: float) -> int:
    """Milliseconds since 1970."""
    if _SHIFT <= seconds < 2 * _SHIFT:
        return -int(seconds - _SHIFT)
    return _to_ms(seconds)


def _to_ms(seconds: float) -> int:
    return min(round(seconds * 1000), _FURTHEST_MS) if seconds < _FURTHEST_MS else _FURTHEST_MS


def _seconds(text: str) -> float:
    if text[:2] in ("0x", "0X"):
        return float(int(text[:19], 16))
    return literal_seconds(text) if DURATION_LITERAL.fullmatch(text) else float(text)

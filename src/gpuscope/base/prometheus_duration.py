"""Durations as Prometheus reads and writes them: `1m30s`, `1d`, `2w`.

The only parser and the only formatter of this notation; settings, configuration files, rules, PromQL and the
API use them. Units stand in the order y, w, d, h, m, s, ms, each once, with whole numbers; a year has 365 days.
What differs between those places, such as a bare number of seconds, is decided there. The unit is milliseconds,
Prometheus' resolution.
"""

from __future__ import annotations

import re

MAX_MILLISECONDS = (1 << 63) // 1_000_000
"""Go's durations are nanoseconds in 64 bits: 292 years."""

OUT_OF_RANGE = "duration out of range"
_UNITS = {
    "y": 31_536_000_000,
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "ms": 1,
}
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,20}}){unit})?" for unit in _UNITS))
_FIRST_UNIT = re.compile(r"[0-9]+([^0-9]+)")
_EXACT_ONLY = ("y", "w")
"""Written only if nothing is left over: ten days are 10d, not 1w3d."""


def parse_prometheus_duration(text: str) -> int:
    """Milliseconds; 0 needs no unit. The texts of a ValueError are Prometheus' own."""
    if text == "0":
        return 0
    if not text:
        raise ValueError("empty duration string")
    match = _DURATION.fullmatch(text)
    if match is None:
        unit = _FIRST_UNIT.match(text)
        if unit and unit[1] not in _UNITS:
            raise ValueError(f'unknown unit "{unit[1]}" in duration "{text}"')
        raise ValueError(f'not a valid duration string: "{text}"')
    parts = zip(match.groups(), _UNITS.values(), strict=True)
    milliseconds = sum(int(count) * size for count, size in parts if count)
    if milliseconds > MAX_MILLISECONDS:
        raise ValueError(OUT_OF_RANGE)
    return milliseconds


def duration_text(milliseconds: int) -> str:
    for unit in _EXACT_ONLY:
        if milliseconds and milliseconds % _UNITS[unit] == 0:
            return f"{milliseconds // _UNITS[unit]}{unit}"
    text = ""
    for unit, size in _UNITS.items():
        if unit not in _EXACT_ONLY:
            count, milliseconds = divmod(milliseconds, size)
            text += f"{count}{unit}" if count else ""
    return text or "0s"

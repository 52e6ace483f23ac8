"""The notation of samples in rule unit tests: `0+10x5 _ stale 3x2` in, one value per interval out.

`a+bxn` and `a-bxn` are n+1 values, each b more or less than the one before; `axn` is n+1 times a; `_` is no
sample, `_xn` n times none; `stale` is a stale marker. Native histograms (`{{…}}`) are refused: this program has
none.
"""

from __future__ import annotations

import re

from gpuscope.judge.rules.store_writer import STALE

MAX_VALUES = 5_000_000
"""Of one series: three years of minutes are 1.6 million."""
_NUMBER = r"(?:[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+\.|[iI]nf|[nN]a[nN])"
_ITEM = re.compile(
    rf"(?P<blank>_)(?:x(?P<blanks>[0-9]+))?\Z"
    rf"|(?P<stale>stale)\Z"
    rf"|(?P<start>[+-]?{_NUMBER})(?:(?P<step>[+-]{_NUMBER}))?(?:x(?P<times>[0-9]+))?\Z"
)


class SeriesValuesError(ValueError):
    pass


def parse_values(text: str) -> list[float | None]:
    """A value for each interval; None where there is no sample."""
    if "{{" in text:
        raise SeriesValuesError("native histograms are not supported here")
    values: list[float | None] = []
    for item in text.split():
        match = _ITEM.match(item)
        if match is None or (match["step"] and match["times"] is None):
            raise SeriesValuesError(f"{item!r} is not a value such as 1, 0+10x5, _ or stale")
        count = int((match["blanks"] or match["times"] or "0")[:12])
        if len(values) + count > MAX_VALUES:
            raise SeriesValuesError(f"more than {MAX_VALUES} values")
        if match["blank"]:
            values += [None] * (count if match["blanks"] is not None else 1)
        elif match["stale"]:
            values.append(STALE)
        else:
            _add_numbers(values, float(match["start"]), float(match["step"] or 0), count)
    return values


def _add_numbers(values: list[float | None], start: float, step: float, count: int) -> None:
    # Added up one by one, as Prometheus does it: a product would differ in the last digit.
    value = start
    for _ in range(count + 1):
        values.append(value)
        value += step

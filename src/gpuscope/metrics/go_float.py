"""A number as Go writes it (`strconv.FormatFloat(v, 'g', -1, 64)`), for families that replace a Go exporter.

Shortest digits that read back the same, an exponent from 1e+06 up and below 1e-04, of two digits at least:
`4000`, `1.98e+09`, `1e-05`. Python's own text for a float has the same digits but other rules for the exponent.
"""

from __future__ import annotations

from functools import lru_cache

SMALLEST_PLAIN_EXPONENT = -4
FIRST_LARGE_EXPONENT = 6


# Most numbers are 0, 1 or what they were a second ago; the others never come again. 128 entries hit for 78 %,
# 4096 for 80 %, but took thousands of cycles to fill: a leak to whoever watched.
@lru_cache(maxsize=512)
def go_float(value: float | int) -> str:
    number = float(value)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    if number == 0:
        return "0"  # also for -0: the exposition format's own writer does not tell them apart
    sign = "-" if number < 0 else ""
    digits, exponent = _shortest_digits(abs(number))
    if exponent < SMALLEST_PLAIN_EXPONENT or exponent >= FIRST_LARGE_EXPONENT:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else sign + whole


def _shortest_digits(number: float) -> tuple[str, int]:
    """The significant digits and the power of ten of the first: 0.0125 is ("125", -2)."""
    mantissa, _, power = repr(number).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    significant = digits.lstrip("0")
    exponent = len(whole) - 1 - (len(digits) - len(significant)) + int(power or 0)
    return significant.rstrip("0") or "0", exponent

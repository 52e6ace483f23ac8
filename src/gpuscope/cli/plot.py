"""Plots one series with braille dots, eight per character: connects neighbouring points, leaves gaps open."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

Point = tuple[float, float]
"""Seconds since the epoch, and a finite value."""

# The bit of each dot of a braille character, by column and row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
HEIGHT = 6
MARGIN = 13
DAY = 86_400


def render_plot(
    points: Sequence[Point], width: int | None = None, mark: Callable[[float], str] | None = None
) -> list[str]:
    """Renders points, sorted by time, as lines of text; `mark` gives the text of a value at the axis."""
    if not points:
        return ["  no values"]
    columns = max(10, (width or shutil.get_terminal_size().columns) - MARGIN - 1)
    grid = [[0] * columns for _ in range(HEIGHT)]
    for x, y in _dots(points, 2 * columns - 1, 4 * HEIGHT - 1):
        grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    marks = _marks([value for _, value in points], mark or short_number)
    lines = [
        f"{marks.get(row, ''):>{MARGIN - 2}} ┤" + "".join(chr(0x2800 + bits) for bits in cells).rstrip("\u2800")
        for row, cells in enumerate(grid)
    ]
    return [*lines, " " * MARGIN + _time_axis(points[0][0], points[-1][0], columns)]


def _dots(points: Sequence[Point], right: int, bottom: int) -> Iterator[tuple[int, int]]:
    low, high = min(v for _, v in points), max(v for _, v in points)
    first, last = points[0][0], points[-1][0]

    def to_dot(point: Point) -> tuple[int, int]:
        across = 0.0 if last == first else (point[0] - first) / (last - first)
        # Divide before subtracting: the difference of two finite floats can overflow. Half of the smallest
        # float is 0.
        height = high / 2 - low / 2
        up = (point[1] / 2 - low / 2) / height if height else 0.5
        return round(across * right), round((1 - up) * bottom)

    yield to_dot(points[0])
    if len(points) < 2:
        return
    usual_step = median(later[0] - earlier[0] for earlier, later in pairwise(points))
    for earlier, later in pairwise(points):
        if later[0] - earlier[0] > 1.5 * usual_step:
            yield to_dot(later)
        else:
            yield from _line(to_dot(earlier), to_dot(later))


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        yield (
            start[0] + round((end[0] - start[0]) * step / steps),
            start[1] + round((end[1] - start[1]) * step / steps),
        )


def _marks(values: Sequence[float], mark: Callable[[float], str]) -> dict[int, str]:
    """Axis labels by row."""
    low, high = min(values), max(values)
    if low == high:
        return {HEIGHT // 2: mark(low)}
    return {0: mark(high), HEIGHT - 1: mark(low)}


def _time_axis(first: float, last: float, columns: int) -> str:
    days = last - first >= DAY or datetime.fromtimestamp(first).date() != datetime.fromtimestamp(last).date()
    form = "%m-%d %H:%M" if days else "%H:%M:%S" if last - first < 600 else "%H:%M"
    start, middle, end = (datetime.fromtimestamp(at).strftime(form) for at in (first, (first + last) / 2, last))
    if columns < 3 * len(start) + 4 or first == last:
        return start if first == last else f"{start}{end:>{max(1, columns - len(start))}}"
    left = (columns - len(middle)) // 2 - len(start)
    return f"{start}{'':{left}}{middle}{end:>{columns - len(start) - left - len(middle)}}"


def short_number(value: float) -> str:
    """The number with four significant digits and an SI suffix."""
    if abs(value) >= 1e18 or 0 < abs(value) < 1e-3:
        return f"{value:.4g}"
    letters = iter(" kMGTP")
    letter = next(letters)
    while abs(value) >= 9999.5:
        value, letter = value / 1000, next(letters)
    return f"{value:.4g}{letter}".strip()

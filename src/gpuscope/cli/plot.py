"""A small plot of one series in braille dots: eight dots a character, gaps left as gaps."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime

# The dot of a braille character at (column, row), as its bit.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
HEIGHT = 6


def render_plot(points: Sequence[tuple[float, float]], width: int | None = None) -> list[str]:
    """Lines of text for (seconds, value) points in time order."""
    if not points:
        return ["  no values"]
    columns = max(10, (width or shutil.get_terminal_size().columns) - 14)
    low, high = min(v for _, v in points), max(v for _, v in points)
    first, last = points[0][0], points[-1][0]
    grid = [[0] * columns for _ in range(HEIGHT)]
    for at, value in points:
        across = 0.0 if last == first else (at - first) / (last - first)
        up = 0.5 if high == low else (value - low) / (high - low)
        x, y = round(across * (2 * columns - 1)), round((1 - up) * (4 * HEIGHT - 1))
        grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    marks = {0: high, HEIGHT - 1: low} if high != low else {HEIGHT // 2: high}
    lines = [
        f"{f'{marks[row]:.4g}' if row in marks else '':>11} ┤" + "".join(chr(0x2800 + bits) for bits in cells)
        for row, cells in enumerate(grid)
    ]
    start, end = (datetime.fromtimestamp(at).strftime("%m-%d %H:%M") for at in (first, last))
    return [*lines, f"{'':>13}{start}{end:>{max(1, columns - len(start))}}"]

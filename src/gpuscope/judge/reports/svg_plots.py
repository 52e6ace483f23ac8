"""Plots as inline SVG, without scripts: stacked bars over time, and one stacked bar.

Colours are classes of the page's style sheet, so that a page can be light, dark or printed. Every bar has a
title, which browsers show as a tooltip and screen readers read.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from math import ceil, floor, log10
from typing import Final

from gpuscope.base.time_text import to_local, zone_text

WIDTH: Final = 900
HEIGHT: Final = 260
LEFT: Final = 56
BOTTOM: Final = 28
TOP: Final = 10
MAX_TIME_LABELS: Final = 8
DAY: Final = 86_400


@dataclass(frozen=True, slots=True)
class PlotBar:
    """Between two times, in seconds since the epoch; values by class name, from the bottom up."""

    start: float
    end: float
    parts: Mapping[str, float]


def stacked_bars(bars: Sequence[PlotBar], label: str, unit: str, zone: tzinfo | None = UTC) -> str:
    """Heights are values, so bars of a shorter time are lower."""
    if not bars:
        return ""
    start, end = bars[0].start, bars[-1].end
    most = max(sum(bar.parts.values()) for bar in bars) or 1.0
    ticks = _ticks(most)
    top = ticks[-1]

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT) * (at - start) / (end - start)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)

    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="{_label_class(number)}" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">'
        f"{_tick_text(tick)}</text>"
        for number, tick in enumerate(ticks)
    ]
    times = [
        f'<text class="{_label_class(number)}" x="{x(at):.1f}" y="{HEIGHT - 6}">{text}</text>'
        for number, (at, text) in enumerate(_time_labels(bars, zone))
    ]
    drawn = [part for bar in bars for part in _bar(bar, x(bar.start), x(bar.end), y, unit, zone)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(lines)}{''.join(drawn)}{''.join(times)}</svg>"
    )


def _bar(
    bar: PlotBar, left: float, right: float, y: Callable[[float], float], unit: str, zone: tzinfo | None
) -> Iterator[str]:
    width, base = max(0.5, right - left - 1), 0.0
    listed = ", ".join(f"{name} {value:,.1f} {unit}" for name, value in bar.parts.items() if value > 0)
    at = _time_text(bar.start, "%Y-%m-%d %H:%M", zone)
    title = f"<title>{at} {zone_text(zone)}: {html.escape(listed)}</title>"
    yield f"<g>{title}"
    for name, value in bar.parts.items():
        if value > 0:
            height = y(base) - y(base + value)
            yield (
                f'<rect class="{name}" x="{left:.1f}" y="{y(base + value):.1f}" '
                f'width="{width:.1f}" height="{height:.2f}"/>'
            )
            base += value
    yield "</g>"


def one_bar(parts: Mapping[str, float], whole: float, label: str = "", height: int = 18) -> str:
    """Widths are shares of `whole`."""
    drawn, at = [], 0.0
    for name, value in parts.items():
        if value > 0 and whole > 0:
            width = 1000 * value / whole
            title = f"<title>{html.escape(name)} {value:,.1f}</title>"
            drawn.append(
                f'<rect class="{name}" x="{at:.1f}" y="0" width="{width:.2f}" height="10">{title}</rect>'
            )
            at += width
    named = f'role="img" aria-label="{html.escape(label)}"' if label else 'aria-hidden="true"'
    return (
        f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" height="{height}" {named}>'
        f"{''.join(drawn)}</svg>"
    )


def _ticks(most: float) -> list[float]:
    """Three to six round numbers from 0 to above the highest bar."""
    rough = most / 4
    power = 10.0 ** floor(log10(rough))
    step = next(one * power for one in (1, 2, 2.5, 5, 10) if one * power >= rough)
    return [round(number * step, 10) for number in range(ceil(most / step) + 1)]


def _tick_text(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _label_class(number: int) -> str:
    """A narrow page has larger labels and leaves out two of three."""
    return "axis between" if number % 3 else "axis"


def _time_labels(bars: Sequence[PlotBar], zone: tzinfo | None) -> Iterator[tuple[float, str]]:
    seconds = bars[-1].end - bars[0].start
    pattern = "%H:%M" if seconds <= DAY else "%d %b %H:%M" if seconds <= 3 * DAY else "%Y-%m-%d"
    every = ceil(len(bars) / MAX_TIME_LABELS)
    # Of a last label the end would be cut off.
    for number in range(0, max(1, len(bars) - every // 2), every):
        yield bars[number].start, _time_text(bars[number].start, pattern, zone)


def _time_text(seconds: float, pattern: str, zone: tzinfo | None) -> str:
    return to_local(seconds, zone).strftime(pattern)

"""The frame of our HTML pages for reports and receipts: one file, no scripts, nothing loaded from elsewhere.

Readable from 390 pixels on, in light and dark, and on paper; wide tables scroll inside the page. Plots are
inline SVG; their colours are classes of the style sheet, and every bar has a title, which browsers show as a
tooltip and screen readers read.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from math import ceil, floor, log10
from typing import Final

from gpuscope.base.time_text import to_local, zone_text

_LIGHT: Final = "--text:#1b1f24;--soft:#57606a;--line:#d8dee4;--back:#fff;--free:#c8d1da"
_DARK: Final = "--text:#e6edf3;--soft:#9198a1;--line:#30363d;--back:#0d1117;--free:#3d444d"
STYLE: Final = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}
body{{font:15px/1.5 system-ui,sans-serif;margin:0;color:var(--text);background:var(--back)}}
main{{max-width:64em;margin:2em auto;padding:0 1em}}
h1{{font-size:1.5em;margin:0;overflow-wrap:anywhere}}h2{{font-size:1.1em;margin:1.6em 0 .4em}}p{{margin:.3em 0}}
.soft{{color:var(--soft)}}
.scroll{{overflow-x:auto}}.scroll:focus-visible{{outline:2px solid #2f6feb;outline-offset:2px}}
table{{border-collapse:collapse;font-variant-numeric:tabular-nums}}.scroll table{{width:100%}}
th,td{{padding:.25em .6em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
thead th{{font-weight:600}}tbody th,tfoot th{{font-weight:400}}
th:first-child{{text-align:left;padding-left:0;white-space:normal;overflow-wrap:anywhere;min-width:7em}}
td.plot{{width:22%;min-width:8em}}tfoot th,tfoot td{{font-weight:600;border-top:2px solid var(--line)}}
table.facts{{margin-top:.8em}}table.facts th{{color:var(--soft);vertical-align:top}}
table.facts td{{text-align:left;white-space:normal;overflow-wrap:anywhere}}
svg{{display:block;width:100%}}svg.bar{{border-radius:2px}}.grid{{stroke:var(--line)}}
.axis{{fill:var(--soft);font-size:11px}}
.legend span{{display:inline-block;margin-right:1.2em;white-space:nowrap}}
.legend i{{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}}
.busy{{fill:#1a7f37;background:#1a7f37}}.idle{{fill:#7d8fa5;background:#7d8fa5}}
.idle-held{{fill:#d4a72c;background:#d4a72c}}
.unknown{{fill:#8250df;background:#8250df}}.owners{{fill:#2f6feb;background:#2f6feb}}
.unattributed{{fill:#8b949e;background:#8b949e}}.free{{fill:var(--free);background:var(--free)}}
.lost{{fill:#cf222e;background:#cf222e}}.stranded{{fill:#bf5b00;background:#bf5b00}}
ul{{padding-left:1.2em}}li{{margin:.2em 0}}code{{overflow-wrap:anywhere}}
@media(max-width:600px){{main{{margin:1em auto}}.scroll td.plot{{display:none}}.axis{{font-size:23px}}
.axis.between{{display:none}}}}
@media print{{:root{{color-scheme:light;{_LIGHT}}}main{{margin:0;max-width:none;padding:0}}
.scroll{{overflow:visible}}*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
h2{{break-after:avoid}}tr,svg,li{{break-inside:avoid}}}}
"""
CONTENT_SECURITY_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, parts: Iterable[str]) -> str:
    """`parts` are HTML, already escaped."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def scrolling(label: str, table: str) -> str:
    """A table that may be wider than the page. It takes the focus, so that it scrolls by keys too."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(label)}">{table}</div>'


def legend(names: Iterable[str]) -> str:
    items = "".join(f'<span><i class="{name}"></i>{name}</span>' for name in names)
    return f'<p class="legend soft">{items}</p>' if items else ""


def sentences(title: str, texts: Iterable[str]) -> str:
    """A list, or nothing."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return f"<h2>{html.escape(title)}</h2><ul>{items}</ul>" if items else ""


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

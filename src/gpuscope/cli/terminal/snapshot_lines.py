"""The lines of `gpuscope snapshot`: a title, one line per GPU, then the processes; for any width."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.cli.terminal.fleet_lines import gpu_columns, legend_lines, note_lines, process_columns, title_line
from gpuscope.cli.terminal.fleet_view import FleetView
from gpuscope.cli.terminal.spans import Line, Look, Span, Style, fit_line, to_ansi, to_ascii
from gpuscope.cli.terminal.table_columns import draw_head, draw_row, lay_out


def render_snapshot(view: FleetView, look: Look) -> list[str]:
    lines = _lines(view, look)
    if not look.unicode:
        lines = (to_ascii(line) for line in lines)
    return [to_ansi(fit_line(line, look.width), look.colour) for line in lines]


def _lines(view: FleetView, look: Look) -> Iterator[Line]:
    several = len(view.nodes) > 1
    yield title_line(view)
    yield from note_lines(view)
    if view.gpus:
        layout = lay_out(gpu_columns(several_nodes=several, unicode=look.unicode), view.gpus, look.width)
        yield draw_head(layout)
        yield from (draw_row(layout, row) for row in view.gpus)
        yield from legend_lines(view)
    else:
        yield [Span("no GPUs", Style.DIM)]
    if view.processes:
        yield []
        columns = lay_out(process_columns(several_nodes=several, now=view.now), view.processes, look.width)
        yield draw_head(columns)
        yield from (draw_row(columns, row) for row in view.processes)

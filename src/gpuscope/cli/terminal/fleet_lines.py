"""Columns of GPUs and processes, and the title and notes above them: the same for `snapshot` and `top`.

Colour marks what needs action (lost, sick, throttled, held); a busy GPU has none. States and their letters are
those of `health`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gpuscope.cli.terminal.fleet_view import FleetView, GpuRow, ProcessRow
from gpuscope.cli.terminal.spans import (
    Column,
    Line,
    Look,
    Span,
    Style,
    bar,
    draw_head,
    draw_row,
    duration_text,
    fit,
    fit_line,
    lay_out,
    short_bytes,
    short_duration,
    sparkline,
    to_ansi,
    to_ascii,
)
from gpuscope.judge.checks.states import STATES, WORST_FIRST, CountedGpu, State, count_gpus

_STATE_STYLES: Final[Mapping[str, Style]] = {
    "lost": Style.RED,
    "gone": Style.RED,
    "sick": Style.RED,
    "stale": Style.MAGENTA,
    "throttled": Style.YELLOW,
    "held": Style.YELLOW,
    "idle": Style.DIM,
}
STATE_ORDER: Final = {state.value: i for i, state in enumerate(WORST_FIRST)}
History = Mapping[tuple[str, str], Iterable[float | None]]
"""Utilisation of the last samples, by node and UUID."""


def state_style(state: str) -> Style:
    return _STATE_STYLES.get(state, Style.PLAIN)


def state_letter(state: str) -> str:
    try:
        return STATES[State(state)].letter
    except ValueError:  # a state of a newer server
        return state[:1].upper() or " "


def short_model(model: str) -> str:
    for prefix in ("NVIDIA GeForce ", "NVIDIA ", "Tesla "):
        model = model.removeprefix(prefix)
    return model


def gpu_columns(
    *, several_nodes: bool, unicode: bool, history: History | None = None
) -> tuple[Column[GpuRow], ...]:
    node: tuple[Column[GpuRow], ...] = (
        (Column(title="NODE", rank=2, text=lambda row: row.node, least=6, most=24),) if several_nodes else ()
    )
    past: tuple[Column[GpuRow], ...] = ()
    if history is not None:

        def draw_history(row: GpuRow, width: int) -> Span:
            return Span(sparkline(history.get((row.node, row.uuid), ()), width, unicode), Style.CYAN)

        past = (Column(title="HISTORY", rank=7, draw=draw_history, least=8, most=40, grows=True),)
    return (
        Column(title="", rank=0, text=lambda row: state_letter(row.state), style=_row_style),
        *node,
        Column(title="GPU", rank=0, text=lambda row: row.gpu, style=_row_style, most=10),
        Column(title="MODEL", rank=6, text=_model_text, style=_row_style, least=14, most=20),
        _bar_column("UTIL", lambda row: row.working_ratio, unicode, rank=5, least=8),
        Column(title="%", rank=1, text=lambda row: percent(row.working_ratio), right=True, style=_row_style),
        _bar_column("MEMORY", lambda row: row.memory_ratio, unicode, rank=9, least=12),
        Column(title="MEM", rank=3, text=_memory_text, right=True, style=_row_style),
        Column(title="POWER", rank=5, text=_power_text, right=True, style=_row_style),
        Column(title="TEMP", rank=4, text=_temperature_text, right=True, style=_row_style),
        Column(title="SM", rank=10, text=lambda row: percent(row.sm_ratio), right=True),
        Column(title="TENSOR", rank=11, text=lambda row: percent(row.tensor_ratio), right=True),
        Column(title="DRAM", rank=12, text=lambda row: percent(row.dram_ratio), right=True),
        *past,
        Column(title="WHO", rank=3, text=who_text, style=_row_style, least=14, most=60),
    )


def _bar_column(
    title: str, ratio: Callable[[GpuRow], float | None], unicode: bool, *, rank: int, least: int
) -> Column[GpuRow]:
    def draw(row: GpuRow, width: int) -> Span:
        style = state_style(row.state)
        return Span(bar(ratio(row), width, unicode), Style.GREEN if style is Style.PLAIN else style)

    return Column(title=title, rank=rank, draw=draw, least=least, most=24, grows=True)


def _row_style(row: GpuRow) -> Style:
    return state_style(row.state)


def _model_text(row: GpuRow) -> str:
    return f" MIG {row.profile}" if row.parent else short_model(row.model)


def percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio * 100:.0f}%"


def _memory_text(row: GpuRow) -> str:
    if row.memory_used_bytes is None:
        return ""
    used = short_bytes(row.memory_used_bytes)
    return used if row.memory_total_bytes is None else f"{used}/{short_bytes(row.memory_total_bytes)}"


def _power_text(row: GpuRow) -> str:
    if row.power_watts is None:
        return ""
    limit = "" if row.power_limit_watts is None else f"/{row.power_limit_watts:.0f}"
    return f"{row.power_watts:.0f}{limit}W"


def _temperature_text(row: GpuRow) -> str:
    return "" if row.temperature_celsius is None else f"{row.temperature_celsius:.0f}°C"


def who_text(row: GpuRow) -> str:
    """Why it needs action, then who has it."""
    holders = ", ".join(dict.fromkeys((*(row.holders or row.users), *row.allocated_to)))
    if not holders and row.processes:
        holders = f"{row.processes} processes" if row.processes > 1 else "1 process"
    reason = row.reason or (row.state if STATE_ORDER.get(row.state, 99) < STATE_ORDER["held"] else "")
    if row.state == "gone":  # the note above the table has the error, once for the node
        reason = row.state
    return ": ".join(filter(None, (reason, holders)))


def process_columns(*, several_nodes: bool, now: float) -> tuple[Column[ProcessRow], ...]:
    node: tuple[Column[ProcessRow], ...] = (
        (Column(title="NODE", rank=3, text=lambda row: row.node, least=6, most=24),) if several_nodes else ()
    )
    return (
        *node,
        Column(title="GPU", rank=1, text=lambda row: row.gpu, most=10),
        Column(title="PID", rank=0, text=lambda row: str(row.pid), right=True),
        Column(title="USER", rank=1, text=lambda row: row.user, least=6, most=16),
        Column(title="JOB/POD", rank=4, text=lambda row: row.place, least=9, most=32),
        Column(title="ACCOUNT", rank=8, text=lambda row: row.account, least=7, most=16),
        Column(title="PARTITION", rank=9, text=lambda row: row.partition, least=9, most=16),
        Column(title="LEFT", rank=7, text=lambda row: time_left(row.job_ends_at, now), right=True),
        Column(title="GMEM", rank=1, text=lambda row: _bytes(row.memory_bytes), right=True),
        Column(title="SM", rank=2, text=lambda row: percent(row.sm_ratio), right=True),
        Column(title="CPU", rank=5, text=lambda row: percent(row.cpu_ratio), right=True),
        Column(title="MEM", rank=7, text=lambda row: _bytes(row.host_memory_bytes), right=True),
        Column(title="TIME", rank=6, text=lambda row: _age(row.started_at, now), right=True),
        Column(title="IDLE", rank=5, text=lambda row: _idle(row, now), style=_idle_style, right=True),
        Column(title="COMMAND", rank=1, text=command_text, least=10, most=1000),
    )


def command_text(row: ProcessRow) -> str:
    return row.command_line or row.command


def _bytes(count: float | None) -> str:
    return "" if count is None else short_bytes(count)


def _age(since: float | None, now: float) -> str:
    return "" if since is None else short_duration(now - since)


def time_left(ends_at: float | None, now: float) -> str:
    """Of a job's time limit."""
    return "" if ends_at is None else short_duration(max(0.0, ends_at - now))


def _idle(row: ProcessRow, now: float) -> str:
    if row.state != "idle":
        return ""
    return "idle" if row.idle_since is None else short_duration(now - row.idle_since)


def _idle_style(row: ProcessRow) -> Style:
    return Style.YELLOW if row.state == "idle" else Style.PLAIN


def title_line(view: FleetView) -> Line:
    counts = count_gpus(
        CountedGpu(row.node, row.uuid, row.parent, row.state, row.is_in_use) for row in view.gpus
    )
    ordered = sorted(counts.states, key=lambda state: STATE_ORDER.get(state, 99))
    counted = ", ".join(f"{counts.states[state]} {state}" for state in ordered)
    instances = f", {counts.instances} MIG"  # short: the states must be seen in 80 columns
    name = view.nodes[0].name if len(view.nodes) == 1 else f"{len(view.nodes)} nodes"
    line = [
        Span(fit(name, min(len(name), 40)), Style.BOLD),
        Span(f"  {counts.gpus} GPU{'' if counts.gpus == 1 else 's'}{instances if counts.instances else ''}"),
        Span(f"{': ' if counted else ''}{counted}"),
    ]
    if view.simulated:
        line.append(Span("  SIMULATED", Style.YELLOW))
    if view.origin:
        line.append(Span(f"  {view.origin}", Style.DIM))
    return line


def note_lines(view: FleetView) -> list[Line]:
    """Nodes that are gone or stale, GPUs that are missing, and notes of the reader."""
    lines: list[Line] = []
    for node in view.nodes:
        if node.gone_since is not None:
            why = f": {node.gone_why}" if node.gone_why else ""
            since = duration_text(view.now - node.gone_since)
            lines.append([Span(f"{node.name} has been gone for {since}{why}", Style.RED)])
        elif node.stale:
            lines.append([Span(f"{node.name} sends no fresh numbers", Style.MAGENTA)])
        listed = sum(row.node == node.name and not row.parent for row in view.gpus)
        if node.gpus_expected is not None and listed < node.gpus_expected:
            seen = f"{listed} of {node.gpus_expected:.0f} GPUs visible"
            lines.append([Span(f"{node.name}: {seen}; run `gpuscope doctor` for the reason", Style.YELLOW)])
    return lines + [[Span(note, Style.YELLOW)] for note in view.notes]


def legend_lines(view: FleetView) -> list[Line]:
    """The meaning of each state that is shown and needs action."""
    shown = {row.state for row in view.gpus}
    return [
        [Span(f"{row.letter} {state.value}: {row.meaning}", state_style(state.value))]
        for state, row in STATES.items()
        if state.value in shown and row.wants_action
    ]


# The lines of `gpuscope snapshot`: a title, one line per GPU, then the processes; for any width.


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

"""`gpuscope top`: the textual application. Readings come as messages from a thread; keys change the model.

The terminal's own 16 colours and background are used, so that it looks right in every theme and over ssh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuscope.cli.terminal.fleet_lines import gpu_columns, note_lines, process_columns
from gpuscope.cli.terminal.fleet_view import FleetView, GpuRow, ProcessRow
from gpuscope.cli.terminal.spans import Span, Style, draw_head, draw_row, lay_out, printable
from gpuscope.cli.terminal.top_dialogs import LineBar, LineList, PageScreen, SignalScreen
from gpuscope.cli.terminal.top_lines import (
    finding_lines,
    footer_line,
    gpu_detail_lines,
    help_lines,
    process_detail_lines,
    queue_lines,
    status_line,
    title_with_clock,
)
from gpuscope.cli.terminal.top_model import Ancestor, TopModel, gpu_key, process_key

SendSignal = Callable[[ProcessRow, int], str]
"""Sends a signal to a process of this machine; returns why not, or an empty string."""
FIXED_LINES: Final = 3
"""Title, status and keys."""


class TopApp(App[int]):
    CSS = "Screen { background: ansi_default; color: ansi_default; layout: vertical; }"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,f10,ctrl+c", "quit", show=False, priority=False),
        Binding("question_mark,h,f1", "help", show=False),
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("tab,shift+tab", "other_list", show=False, priority=True),
        Binding("enter", "details", show=False),
        Binding("g", "only_gpu", show=False),
        Binding("slash,f3", "search", show=False),
        Binding("n", "find(1)", show=False),
        Binding("N", "find(-1)", show=False),
        Binding("backslash,f4", "filter", show=False),
        Binding("u", "own_user", show=False),
        Binding("t,f5", "tree", show=False),
        Binding("s,full_stop,greater_than_sign,f6", "sort(1)", show=False),
        Binding("S,comma,less_than_sign", "sort(-1)", show=False),
        Binding("M", "sort_by('memory')", show=False),
        Binding("P", "sort_by('cpu')", show=False),
        Binding("T", "sort_by('time')", show=False),
        Binding("U", "sort_by('user')", show=False),
        Binding("I", "reverse", show=False),
        Binding("f", "findings", show=False),
        Binding("j", "queue", show=False),
        Binding("k,f9", "signal", show=False),
        Binding("space,z", "pause", show=False),
        Binding("ctrl+l", "redraw", show=False),
    ]

    class NewReading(Message):
        """From the polling thread."""

        def __init__(self, view: FleetView, ancestors: Mapping[int, Ancestor]) -> None:
            super().__init__()
            self.view = view
            self.ancestors = ancestors

    class FailedReading(Message):
        def __init__(self, why: str) -> None:
            super().__init__()
            self.why = why

    def __init__(
        self,
        *,
        unicode: bool = True,
        send_signal: SendSignal | None = None,
        no_signal_because: str = "",
        on_start: Callable[[], object] = lambda: None,
        on_pause: Callable[[bool], object] = lambda paused: None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.model = TopModel(unicode=unicode)
        self._send_signal = send_signal
        self._no_signal_because = no_signal_because
        self._on_start = on_start
        self._on_pause = on_pause
        self._message = ""
        self._gpus: list[GpuRow] = []
        self._processes: list[ProcessRow] = []
        self._title = LineBar(unicode=unicode, id="title")
        self._gpu_list = LineList(unicode=unicode, id="gpus")
        self._status = LineBar(unicode=unicode, id="status")
        self._process_list = LineList(unicode=unicode, id="processes")
        self._keys = LineBar(unicode=unicode, id="keys")

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._gpu_list
        yield self._status
        yield self._process_list
        yield self._keys

    def on_mount(self) -> None:
        self._process_list.focus()
        self._gpu_list.styles.height = 2
        self._on_start()
        self.call_after_refresh(self.show)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def on_top_app_new_reading(self, message: NewReading) -> None:
        self.model.take(message.view, message.ancestors)
        self.show()

    def on_top_app_failed_reading(self, message: FailedReading) -> None:
        self.model.problem = printable(message.why, 300)
        self.show()

    def show(self) -> None:
        """Draws everything from the model; only lines that changed are written."""
        self._show_gpus()
        self._show_processes()
        self._title.show(lambda width: title_with_clock(self.model))
        on_gpus = sum(1 for row in self._processes if row.uuid)  # a tree has other rows, too
        self._status.show(lambda width: status_line(self.model, on_gpus, self._message))
        footer, self._keys.regions = footer_line(self.size.width)
        self._keys.show(lambda width: footer)
        if isinstance(self.screen, PageScreen):
            self.screen.update_lines()

    def _show_gpus(self) -> None:
        chosen = self._selected(self._gpus, self._gpu_list.cursor)
        key = None if chosen is None else gpu_key(chosen)
        self._gpus = list(self.model.gpu_rows())
        columns = gpu_columns(
            several_nodes=self.model.several_nodes, unicode=self.model.unicode, history=self.model.history
        )
        layout = lay_out(columns, self._gpus, self.size.width)
        notes = [] if self._gpus else note_lines(self.model.view)
        height = self._gpu_list_height(max(len(self._gpus), len(notes)))
        if self._gpu_list.styles.height is None or self._gpu_list.styles.height.value != height:
            self._gpu_list.styles.height = height
        cursor = next((i for i, row in enumerate(self._gpus) if gpu_key(row) == key), None)
        if self._gpus:
            self._gpu_list.show(
                draw_head(layout),
                len(self._gpus),
                lambda index: draw_row(layout, self._gpus[index]),
                cursor,
            )
        else:
            head = [Span("no GPUs" if self.model.view.now else "reading…", Style.DIM)]
            self._gpu_list.show(head, len(notes), notes.__getitem__)

    def _gpu_list_height(self, lines: int) -> int:
        """All GPUs if the processes leave room, at least half of the screen otherwise. Processes are counted in
        fours, so that the lists do not move whenever a process starts or ends."""
        available = max(4, self.size.height - FIXED_LINES)
        fours = -(-len(self.model.view.processes) // 4)
        for_processes = min(4 * fours + 1, available // 2)
        return min(lines + 1, max(3, available - for_processes))

    def _show_processes(self) -> None:
        chosen = self._selected(self._processes, self._process_list.cursor)
        key = None if chosen is None else process_key(chosen)
        self._processes = list(self.model.process_rows())
        columns = process_columns(several_nodes=self.model.several_nodes, now=self.model.view.now)
        layout = lay_out(columns, self._processes, self.size.width)
        cursor = next((i for i, row in enumerate(self._processes) if process_key(row) == key), None)
        self._process_list.show(
            draw_head(layout),
            len(self._processes),
            lambda index: draw_row(layout, self._processes[index]),
            cursor,
        )

    @staticmethod
    def _selected(rows: list[Any], cursor: int) -> Any:
        return rows[cursor] if 0 <= cursor < len(rows) else None

    @property
    def _focused_list(self) -> LineList:
        return self._gpu_list if self._gpu_list.has_focus else self._process_list

    def _show_message(self, message: str) -> None:
        """Shown until the next key."""
        self._message = message
        self.show()

    def on_key(self) -> None:
        if self._message:
            self._show_message("")

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self.action_details()

    def action_move(self, lines: int) -> None:
        self._focused_list.move(lines)

    def action_page(self, pages: int) -> None:
        self._focused_list.page(pages)

    def action_other_list(self) -> None:
        if len(self.screen_stack) == 1:
            (self._process_list if self._gpu_list.has_focus else self._gpu_list).focus()

    def action_help(self) -> None:
        self.push_screen(PageScreen("Keys", lambda width: help_lines(), self.model.unicode))

    def action_findings(self) -> None:
        self._page("Findings", lambda width: finding_lines(self.model.view, width))

    def action_queue(self) -> None:
        self._page("Slurm queue", lambda width: queue_lines(self.model.view, width))

    def _page(self, title: str, lines: Callable[[int], list[Any]]) -> None:
        self.push_screen(PageScreen(title, lines, self.model.unicode))

    def action_details(self) -> None:
        if self._gpu_list.has_focus:
            gpu: GpuRow | None = self._selected(self._gpus, self._gpu_list.cursor)
            if gpu is not None:
                self._page("GPU", lambda width: gpu_detail_lines(self._newest_gpu(gpu), self.model, width))
            return
        process: ProcessRow | None = self._selected(self._processes, self._process_list.cursor)
        if process is not None:
            self._page(
                "Process",
                lambda width: process_detail_lines(self._newest_process(process), self.model.view, width),
            )

    def _newest_gpu(self, row: GpuRow) -> GpuRow:
        return next((each for each in self.model.view.gpus if gpu_key(each) == gpu_key(row)), row)

    def _newest_process(self, row: ProcessRow) -> ProcessRow:
        rows = self.model.view.processes
        return next((each for each in rows if process_key(each) == process_key(row)), row)

    def action_only_gpu(self) -> None:
        gpu: GpuRow | None = self._selected(self._gpus, self._gpu_list.cursor)
        self.model.only_gpu = None if self.model.only_gpu is not None or gpu is None else gpu_key(gpu)
        self.show()

    def action_search(self) -> None:
        def found(text: str | None) -> None:
            if text is not None:
                self.model.search = printable(text)
                self.action_find(1)

        self._prompt("search", self.model.search, found)

    def action_find(self, step: int) -> None:
        rows = self._processes if step > 0 else list(reversed(self._processes))
        at = self._process_list.cursor if step > 0 else len(rows) - 1 - self._process_list.cursor
        hit = self.model.find(rows, at)
        if hit is None:
            self._show_message(
                f"no process has {self.model.search!r}" if self.model.search else "type / to search"
            )
            return
        self._process_list.focus()
        index = hit if step > 0 else len(rows) - 1 - hit
        self._process_list.move(index - self._process_list.cursor)

    def action_filter(self) -> None:
        def chosen(text: str | None) -> None:
            if text is not None:
                self.model.filter = printable(text)
                self.show()

        self._prompt("filter; empty shows all", self.model.filter, chosen)

    def _prompt(self, label: str, value: str, then: Callable[[str | None], None]) -> None:
        from gpuscope.cli.terminal.top_dialogs import PromptScreen

        self.push_screen(PromptScreen(label, value), then)

    def action_own_user(self) -> None:
        process: ProcessRow | None = self._selected(self._processes, self._process_list.cursor)
        self.model.filter = "" if self.model.filter or process is None else process.user
        self.show()

    def action_tree(self) -> None:
        if not self.model.ancestors and not self.model.tree:
            self._show_message("no tree: parents of processes are known only on their own machine")
            return
        self.model.tree = not self.model.tree
        self.show()

    def action_sort(self, step: int) -> None:
        self.model.next_sort(step)
        self.show()

    def action_sort_by(self, name: str) -> None:
        self.model.sort = name
        self.show()

    def action_reverse(self) -> None:
        self.model.reverse = not self.model.reverse
        self.show()

    def action_pause(self) -> None:
        self.model.paused = not self.model.paused
        self._on_pause(self.model.paused)
        self.show()

    def action_redraw(self) -> None:
        self.refresh(layout=True)

    def action_signal(self) -> None:
        process: ProcessRow | None = self._selected(self._processes, self._process_list.cursor)
        why_not = self._no_signal_because
        if process is None:
            why_not = "no process is selected"
        elif not why_not and (self._send_signal is None or process.start_ticks is None):
            why_not = f"process {process.pid} is not on this machine, or has ended"
        elif not why_not and not process.is_own:
            why_not = f"process {process.pid} belongs to {process.user or 'another user'}"
        if why_not or process is None:
            self._show_message(why_not)
            return

        def answered(number: int | None, row: ProcessRow = process) -> None:
            if number is None or self._send_signal is None:
                self._show_message("no signal sent")
            else:
                self._show_message(
                    self._send_signal(row, number) or f"signal {number} sent to process {row.pid}"
                )

        self.push_screen(SignalScreen(self._newest_process(process), self.model.unicode), answered)

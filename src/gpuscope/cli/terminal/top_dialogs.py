"""Screens above the tables of `gpuscope top`: a page of lines, and a question before a signal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input

from gpuscope.cli.terminal.fleet_lines import command_text
from gpuscope.cli.terminal.fleet_view import ProcessRow
from gpuscope.cli.terminal.line_widgets import LineList
from gpuscope.cli.terminal.safe_text import printable
from gpuscope.cli.terminal.spans import Line, Span, Style

# The line to type in of `gpuscope top`. Imported on its first use: textual's Input takes 50 ms to load.


class PromptScreen(ModalScreen[str | None]):
    """One line to type in at the bottom; Escape gives None."""

    DEFAULT_CSS = """
    PromptScreen { align: left bottom; background: transparent; }
    PromptScreen > Input { height: 1; width: 100%; border: none; padding: 0; background: ansi_default;
        color: ansi_default; }
    PromptScreen > Input:focus { border: none; background: ansi_default; }
    """
    BINDINGS = [Binding("escape", "dismiss", show=False)]

    def __init__(self, label: str, value: str) -> None:
        super().__init__()
        self._input = Input(value, placeholder=label, max_length=200, select_on_focus=False)

    def compose(self) -> ComposeResult:
        yield self._input

    def on_mount(self) -> None:
        self._input.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)


Lines = Callable[[int], list[Line]]
"""Lines for a width."""


class PageScreen(ModalScreen[None]):
    """Help, details, findings: scrolls; Escape, q or Enter closes it."""

    DEFAULT_CSS = "PageScreen { background: ansi_default; }"
    BINDINGS = [
        Binding("escape,q,enter,f1,question_mark,h,left", "dismiss", show=False),
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
    ]

    def __init__(self, title: str, lines: Lines, unicode: bool) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._list = LineList(unicode=unicode, id="page")

    def compose(self) -> ComposeResult:
        yield self._list

    def on_mount(self) -> None:
        self._list.focus()
        self.call_after_refresh(self.update_lines)

    def on_resize(self) -> None:
        self.call_after_refresh(self.update_lines)

    def update_lines(self) -> None:
        lines = self._lines(self.size.width)
        head = [Span(f"{self._title}  ", Style.BOLD), Span("Esc closes", Style.DIM)]
        self._list.show(head, len(lines), lines.__getitem__)

    def action_move(self, lines: int) -> None:
        self._list.move(lines)

    def action_page(self, pages: int) -> None:
        self._list.page(pages)


TERM, INT, KILL = 15, 2, 9
SIGNAL_KEYS: Final = {"y": TERM, "t": TERM, "i": INT, "9": KILL}


class SignalScreen(ModalScreen[int | None]):
    """Asks which signal to send; any other key sends none."""

    DEFAULT_CSS = """
    SignalScreen { align: center middle; background: ansi_default; }
    SignalScreen > Vertical { width: 100%; max-width: 76; height: 5; }
    """

    def __init__(self, row: ProcessRow, unicode: bool) -> None:
        super().__init__()
        self._row = row
        self._list = LineList(unicode=unicode, id="question")

    def compose(self) -> ComposeResult:
        with Vertical():
            yield self._list

    def on_mount(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        row = self._row
        lines: list[Line] = [
            [Span(f"process {row.pid} of {row.user}: {printable(command_text(row), 200)}")],
            [],
            [
                Span("y", Style.BOLD), Span(" TERM, may clean up   "), Span("i", Style.BOLD), Span(" INT   "),
                Span("9", Style.BOLD), Span(" KILL   "), Span("any other key", Style.BOLD), Span(" none"),
            ],
        ]  # fmt: skip
        self._list.show([Span("Send a signal?", Style.YELLOW)], len(lines), lines.__getitem__)

    def on_key(self, event: Key) -> None:
        event.stop()
        self.dismiss(SIGNAL_KEYS.get(event.key))

"""Screens above the tables of `gpuscope top`: a page of lines, and a question before a signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Click, Key, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Region
from textual.message import Message
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from gpuscope.cli.terminal.fleet_lines import command_text
from gpuscope.cli.terminal.fleet_view import ProcessRow
from gpuscope.cli.terminal.spans import Line, Span, Style, ascii_text, fit_line, printable

# Textual widgets that draw styled lines: a list with a cursor, and a single line.
#
# They draw only lines that changed since the last draw: over ssh a refresh of a quiet fleet is a few hundred
# bytes, and nothing flickers.

_RICH: Final = {
    Style.PLAIN: RichStyle(),
    Style.BOLD: RichStyle(bold=True),
    Style.DIM: RichStyle(dim=True),
    Style.RED: RichStyle(color="red"),
    Style.GREEN: RichStyle(color="green"),
    Style.YELLOW: RichStyle(color="yellow"),
    Style.MAGENTA: RichStyle(color="magenta"),
    Style.CYAN: RichStyle(color="cyan"),
    Style.REVERSE: RichStyle(reverse=True),
}
_CURSOR: Final = RichStyle(reverse=True)
WHEEL_LINES: Final = 3


class LineWidget(Widget):
    """Draws `content(y)` for each of its lines."""

    DEFAULT_CSS = "LineWidget { height: 1; width: 1fr; background: ansi_default; color: ansi_default; }"

    def __init__(self, *, unicode: bool, id: str) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self._unicode = unicode
        self._drawn: list[tuple[Line, bool]] = []

    def content(self, y: int, width: int) -> tuple[Line, bool]:
        """A line, and whether it is the cursor's."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Asks textual to draw the lines that changed."""
        width, height = self.size
        before, self._drawn = self._drawn, [self.content(y, width) for y in range(height)]
        if len(before) != height:
            self.refresh()
            return
        changed = [
            Region(0, y, width, 1)
            for y, (old, new) in enumerate(zip(before, self._drawn, strict=True))
            if old != new
        ]
        if changed:
            self.refresh(*changed)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._drawn):
            return Strip.blank(width)
        line, is_cursor = self._drawn[y]
        segments = []
        for text, style in fit_line(line, width):
            shown = text if self._unicode else ascii_text(text)
            segments.append(Segment(shown, _CURSOR if is_cursor else _RICH[style]))
        return Strip(segments).adjust_cell_length(width, _CURSOR if is_cursor else _RICH[Style.PLAIN])

    def on_resize(self, event: Resize) -> None:
        self._drawn = []
        self.redraw()


class LineBar(LineWidget):
    """One line; a click on one of its `regions` (from, to, action) runs the action."""

    def __init__(self, *, unicode: bool, id: str) -> None:  # noqa: A002
        super().__init__(unicode=unicode, id=id)
        self._draw: Callable[[int], Line] = lambda width: []
        self.regions: Sequence[tuple[int, int, str]] = ()

    def show(self, draw: Callable[[int], Line]) -> None:
        self._draw = draw
        self.redraw()

    def content(self, y: int, width: int) -> tuple[Line, bool]:
        return self._draw(width), False

    async def on_click(self, event: Click) -> None:
        for first, last, action in self.regions:
            if first <= event.x < last:
                await self.app.run_action(action)


class LineList(LineWidget, can_focus=True):
    """A head and a list of lines with a cursor; scrolls, and draws only what is visible."""

    DEFAULT_CSS = "LineList { height: 1fr; width: 1fr; background: ansi_default; color: ansi_default; }"

    class Chosen(Message):
        """A line was chosen with Enter or a double click."""

        def __init__(self, source: LineList, index: int) -> None:
            super().__init__()
            self.source = source
            self.index = index

    def __init__(self, *, unicode: bool, id: str) -> None:  # noqa: A002
        super().__init__(unicode=unicode, id=id)
        self._head: Line = []
        self._count = 0
        self._draw: Callable[[int], Line] = lambda index: []
        self._first = 0
        self.cursor = 0

    def show(self, head: Line, count: int, draw: Callable[[int], Line], cursor: int | None = None) -> None:
        self._head, self._count, self._draw = head, count, draw
        if cursor is not None:
            self.cursor = cursor
        self._keep_in_sight()
        self.redraw()

    def content(self, y: int, width: int) -> tuple[Line, bool]:
        if y == 0:
            return self._head_with_place(width), False
        index = self._first + y - 1
        if index >= self._count:
            return [], False
        is_cursor = index == self.cursor and self.has_focus
        return self._draw(index), is_cursor

    def _head_with_place(self, width: int) -> Line:
        visible = max(0, self.size.height - 1)
        if self._count <= visible:
            return self._head
        place = f" {self._first + 1}-{min(self._count, self._first + visible)} of {self._count}"
        head = fit_line([*self._head, Span(" " * width)], max(0, width - len(place)))
        return [*head, Span(place, Style.CYAN)]

    def move(self, lines: int) -> None:
        self.cursor += lines
        self._keep_in_sight()
        self.redraw()

    def page(self, pages: int) -> None:
        self.move(pages * max(1, self.size.height - 2))

    def _keep_in_sight(self) -> None:
        visible = max(1, self.size.height - 1)
        self.cursor = max(0, min(self.cursor, self._count - 1))
        self._first = max(self.cursor - visible + 1, min(self._first, self.cursor))
        self._first = max(0, min(self._first, self._count - visible))

    def on_focus(self) -> None:
        self.redraw()

    def on_blur(self) -> None:
        self.redraw()

    def on_resize(self, event: Resize) -> None:
        self._keep_in_sight()
        super().on_resize(event)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self.move(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self.move(-WHEEL_LINES)

    def on_click(self, event: Click) -> None:
        index = self._first + event.y - 1
        if event.y >= 1 and index < self._count:
            self.cursor = index
            self.redraw()
            if event.chain > 1:
                self.post_message(self.Chosen(self, index))


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

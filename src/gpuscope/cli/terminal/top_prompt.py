"""The line to type in of `gpuscope top`. Imported on its first use: textual's Input takes 50 ms to load."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen
from textual.widgets import Input


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

"""The nvidia-smi command line of the user; `command_runner` runs it.

Over ssh the remote shell splits the arguments again, so no argument may contain a character that is special to
a shell.
"""

from __future__ import annotations

from gpuscope.base.command_runner import Command


class SmiCommand(Command):
    def __init__(self, text: str, timeout_seconds: float) -> None:
        super().__init__(
            text,
            timeout_seconds,
            program="nvidia-smi",
            if_missing="install the NVIDIA driver's utilities, or set its path with --nvidia-smi-command",
        )

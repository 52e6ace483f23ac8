"""The nvidia-smi command line of the user, ready to run; the running itself is `command_runner`'s.

Over ssh a shell on the far side splits the arguments once more, so none of ours may ever hold a character that
means something to a shell.
"""

from __future__ import annotations

from gpuscope.command_runner import Answer as Answer
from gpuscope.command_runner import Command


class SmiCommand(Command):
    def __init__(self, text: str, timeout_seconds: float) -> None:
        super().__init__(
            text,
            timeout_seconds,
            program="nvidia-smi",
            if_missing="install the NVIDIA driver's utilities or set nvidia_smi_command to where it is",
        )

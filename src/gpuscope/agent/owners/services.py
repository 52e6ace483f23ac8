"""Programs that belong to the machine and hold a GPU for others: display servers, MPS, daemons of the driver.

A service never holds a GPU idle, and needs no allocation. It is recognised by its type (G: graphics only) or by
the name of its program. MPS clients (type M) are ordinary holders; what their server reports is their work.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe, Process

GRAPHICS: Final = "G"
DISPLAY_SERVERS: Final = (
    "X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "mutter", "sway", "weston",
)  # fmt: skip
"""Newer ones compute too, and are of type C+G."""
MPS_SERVERS: Final = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control")
DAEMONS: Final = (
    "dcgm", "dcgm-exporter", "gpuscope", "nv-fabricmanager", "nv-hostengine", "nvidia-persistenced",
)  # fmt: skip

_KERNEL_NAME_CHARACTERS: Final = 15  # where only /proc/PID/comm is known


def _pattern(*programs: str) -> str:
    """Of a name, a path, or a whole command line (`--full-commands`); anchored, for RE2 and Python.

    `[!-~]`, not `[^ ]`: Prometheus lists the characters of a class to see whether it is a small set, and parses
    a rule each time it evaluates it. A class of a million characters costs 2 ms of CPU in each selector.
    """
    names = dict.fromkeys(name for full in programs for name in (full, full[:_KERNEL_NAME_CHARACTERS]))
    return f"(?:[!-~]*/)?(?:{'|'.join(names)})(?: .*)?"


_SERVICE: Final = _pattern(*DISPLAY_SERVERS, *MPS_SERVERS, *DAEMONS)
_IS_SERVICE: Final = re.compile(_SERVICE)
_IS_MPS_SERVER: Final = re.compile(_pattern(*MPS_SERVERS))

SERVICE_MATCHERS: Final = f'type!="{GRAPHICS}",command!~"{_SERVICE}"'
"""PromQL: of the series of processes those that are no service."""


@lru_cache(maxsize=128)  # the programs of now: every run may have another name
def is_service_program(kind: str, command: str) -> bool:
    return kind == GRAPHICS or _IS_SERVICE.fullmatch(command) is not None


def is_service(process: Process) -> bool:
    return is_service_program(process.kind, _text(process.command))


def is_mps_server(process: Process) -> bool:
    # Most commands are not of the driver: a comparison of text is faster than the pattern.
    command = _text(process.command)
    return "nvidia-cuda-mps" in command and _IS_MPS_SERVER.fullmatch(command) is not None


def _text(command: Maybe[str]) -> str:
    return "" if command is ABSENT else command

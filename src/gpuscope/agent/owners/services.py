"""Programs that belong to the machine and hold a GPU for others: display servers, daemons of the driver.

A service never holds a GPU idle, and needs no allocation. It is recognised by its type (G: graphics only) or by
the name of its program; a vendor's folder has those of its driver. A server that reports the work of its
clients (NVIDIA's MPS) is a service, and its clients (type M) are ordinary holders.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe, Process
from gpuscope.model.vendor import vendors

GRAPHICS: Final = "G"
DISPLAY_SERVERS: Final = (
    "X", "Xorg", "Xwayland", "gnome-shell", "kwin_wayland", "kwin_x11", "mutter", "sway", "weston",
)  # fmt: skip
"""Newer ones compute too, and are of type C+G."""
WORK_SERVERS: Final = tuple(name for vendor in vendors().values() for name in vendor.work_servers)
DAEMONS: Final = tuple(
    sorted({"gpuscope", *(name for vendor in vendors().values() for name in vendor.services)})
)

_KERNEL_NAME_CHARACTERS: Final = 15  # where only /proc/PID/comm is known


def _pattern(*programs: str) -> str:
    """Of a name, a path, or a whole command line (`--full-commands`); anchored, for RE2 and Python.

    `[!-~]`, not `[^ ]`: Prometheus lists the characters of a class to see whether it is a small set, and parses
    a rule each time it evaluates it. A class of a million characters costs 2 ms of CPU in each selector.
    """
    names = dict.fromkeys(name for full in programs for name in (full, full[:_KERNEL_NAME_CHARACTERS]))
    return f"(?:[!-~]*/)?(?:{'|'.join(names)})(?: .*)?"


_SERVICE: Final = _pattern(*DISPLAY_SERVERS, *WORK_SERVERS, *DAEMONS)
_IS_SERVICE: Final = re.compile(_SERVICE)
_IS_WORK_SERVER: Final = re.compile(_pattern(*WORK_SERVERS))

SERVICE_MATCHERS: Final = f'type!="{GRAPHICS}",command!~"{_SERVICE}"'
"""PromQL: of the series of processes those that are no service."""


@lru_cache(maxsize=128)  # the programs of now: every run may have another name
def is_service_program(kind: str, command: str) -> bool:
    return kind == GRAPHICS or _IS_SERVICE.fullmatch(command) is not None


def is_service(process: Process) -> bool:
    return is_service_program(process.kind, _text(process.command))


@lru_cache(maxsize=128)
def _is_work_server(command: str) -> bool:
    return bool(WORK_SERVERS) and _IS_WORK_SERVER.fullmatch(command) is not None


def is_work_server(process: Process) -> bool:
    """Whether it reports the work of its clients."""
    return _is_work_server(_text(process.command))


def _text(command: Maybe[str]) -> str:
    return "" if command is ABSENT else command

"""Ports for programs that cannot be told to choose one themselves.

Asking the kernel for a free port and closing it again is a race: until the program binds it, the kernel may
give it to any other socket. These ports lie below the range the kernel gives out by itself, and a counter
shared by all test processes gives each of them out once in a long while.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

FIRST, LAST = 20_000, 32_000  # Linux gives out 32768 and above
COUNTER = Path(tempfile.gettempdir()) / f"gpuscope-test-ports-{os.getuid()}"


def free_port() -> int:
    with COUNTER.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        port = int(file.read() or FIRST)
        while not _can_be_bound(port):  # somebody else's server
            port = port + 1 if port < LAST else FIRST
        file.truncate(0)
        file.write(str(port + 1 if port < LAST else FIRST))
    return port


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

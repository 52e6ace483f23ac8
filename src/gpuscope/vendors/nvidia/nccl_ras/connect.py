"""Connects to a RAS service, also in the network namespace of a container.

`localhost` of a container is not that of the agent. A thread enters the container's network namespace, opens
the connection, which stays in that namespace, and ends. This needs CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from pathlib import Path
from typing import Final

from gpuscope.base.errors import SourceError

CONNECT_SECONDS: Final = 3.0
CLONE_NEWNET: Final = 0x40000000


def own_network() -> int:
    return Path("/proc/thread-self/ns/net").stat().st_ino


def connect(address: str, port: int, namespace: str | None) -> socket.socket:
    """`namespace` is the file of another network namespace, `/proc/PID/ns/net`, or None for the agent's own."""
    if namespace is None:
        return _connect(address, port)
    connections: list[socket.socket] = []
    errors: list[Exception] = []

    def enter_and_connect() -> None:
        try:
            _enter(namespace)
            connections.append(_connect(address, port))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=enter_and_connect, name="nccl-ras-namespace", daemon=True)
    thread.start()
    thread.join()  # `_connect` has a time limit
    if errors:
        raise errors[0]
    return connections[0]


def _connect(address: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((address, port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise SourceError(f"cannot connect: {error.strerror or error}") from None


def _enter(namespace: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    try:
        with Path(namespace).open("rb") as file:
            failed = library.setns(file.fileno(), CLONE_NEWNET)
            number = ctypes.get_errno()
    except OSError as error:
        failed, number = -1, error.errno or 0
    if failed:
        raise SourceError(
            f"its network namespace cannot be entered ({os.strerror(number)}): the agent needs CAP_SYS_ADMIN"
        )

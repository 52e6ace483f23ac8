"""One question to NCCL's RAS service: the handshake, the wish for JSON, and the status document.

The protocol is lines of text; the document ends when the service closes the connection. NCCL before 2.28.7
refuses `SET FORMAT` and answers with the text for people. Whatever else listens on the port does not answer
`SERVER PROTOCOL`. A reply is bounded in bytes and in time, however slowly it comes.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuscope.base.errors import SourceError, SourceTimeout, UnusableAnswer

# Connects to a RAS service, also in the network namespace of a container.
#
# `localhost` of a container is not that of the agent. A thread enters the container's network namespace,
# opens the connection, which stays in that namespace, and ends. This needs CAP_SYS_ADMIN.

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


MAX_REPLY_BYTES: Final = 4 << 20  # about 6,000 ranks in JSON
MAX_LINE_BYTES: Final = 512
HANDSHAKE_SECONDS: Final = 3.0
STATUS_SECONDS: Final = 20.0  # NCCL waits up to 10 s for ranks that do not answer
_PIECE: Final = 1 << 16


class NotNccl(UnusableAnswer):
    """Another program listens on the port."""


class ReplyTooLarge(UnusableAnswer):
    pass


def ask_status(connection: socket.socket, *, json: bool, clock: Callable[[], float] = time.monotonic) -> bytes:
    """The status document: JSON, which begins with `{`, where it is wanted and NCCL has it, else text."""
    conversation = _Conversation(connection, clock)
    try:
        conversation.begin(HANDSHAKE_SECONDS)
        answer = conversation.command(b"CLIENT PROTOCOL 2")
        if not answer.upper().startswith(b"SERVER PROTOCOL "):
            raise NotNccl(f"it is not NCCL that listens there: it answered {readable(answer)}")
        if json and conversation.command(b"SET FORMAT json").upper() == b"OK":
            question = b"STATUS"
        else:
            question = b"VERBOSE STATUS"  # text names more of the ranks that differ then
        conversation.begin(STATUS_SECONDS)
        return conversation.document(question)
    except TimeoutError:
        raise SourceTimeout("no answer in time") from None
    except OSError as error:
        raise SourceError(error.strerror or str(error)) from None


class _Conversation:
    def __init__(self, connection: socket.socket, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._deadline = 0.0
        self._received = b""

    def begin(self, seconds: float) -> None:
        self._deadline = self._clock() + seconds

    def command(self, line: bytes) -> bytes:
        """The line that answers it."""
        self._connection.sendall(line + b"\n")
        while b"\n" not in self._received:
            if len(self._received) > MAX_LINE_BYTES:
                raise NotNccl(f"it is not NCCL that listens there: it answered {readable(self._received)}")
            piece = self._receive()
            if not piece:
                raise NotNccl("it closed the connection")
            self._received += piece
        answer, _, self._received = self._received.partition(b"\n")
        return answer.rstrip(b"\r")

    def document(self, line: bytes) -> bytes:
        self._connection.sendall(line + b"\n")
        pieces, size = [self._received], len(self._received)
        while piece := self._receive():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_REPLY_BYTES:
                raise ReplyTooLarge(f"its reply is larger than {MAX_REPLY_BYTES >> 20} MiB")
        return b"".join(pieces)

    def _receive(self) -> bytes:
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv(_PIECE)


def readable(answer: bytes) -> str:
    """The beginning of what another program said, for the log."""
    return ascii(answer[:60].decode("utf-8", "replace"))

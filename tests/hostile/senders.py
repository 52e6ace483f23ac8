"""Senders of raw bytes: sockets with a chosen loopback address, closed at the end.

The observers of `victim` use 127.0.0.1; an attacker uses ATTACKER or one of `addresses`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

from tests.hostile.victim import PATIENCE_SECONDS, Victim

ATTACKER = "127.0.0.2"


def addresses(count: int) -> list[str]:
    """Return loopback addresses that differ from the observers'."""
    return [f"127.1.{number // 250}.{number % 250 + 1}" for number in range(count)]


def connect(victim: Victim, source: str = ATTACKER) -> socket.socket:
    """Open a plain TCP connection, also to a TLS port."""
    return socket.create_connection(("127.0.0.1", victim.port), PATIENCE_SECONDS, source_address=(source, 0))


@contextlib.contextmanager
def connections(
    victim: Victim, count: int, opening: bytes = b"", sources: Sequence[str] = (ATTACKER,)
) -> Iterator[list[socket.socket]]:
    """Open connections that have sent `opening`; refused ones are left out."""
    with contextlib.ExitStack() as stack:
        opened = []
        for number in range(count):
            with contextlib.suppress(OSError):
                one = connect(victim, sources[number % len(sources)])
                stack.callback(one.close)
                one.sendall(opening)
                opened.append(one)
        yield opened


def is_open(one: socket.socket) -> bool:
    """Whether the victim has neither answered nor closed the connection."""
    one.setblocking(False)
    try:
        one.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def exchange(
    victim: Victim, *parts: bytes, source: str = ATTACKER, most_bytes: int = 1 << 20, ends: bool = False
) -> bytes:
    """Return the response until the victim closes or `most_bytes` are read; `ends` closes our side first."""
    with connect(victim, source) as one:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                one.sendall(part)
            if ends:
                one.shutdown(socket.SHUT_WR)
        return receive(one, most_bytes)


def receive(one: socket.socket, most_bytes: int = 1 << 20) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionError):
        while len(answer) < most_bytes and (piece := one.recv(65536)):
            answer += piece
    return answer


def request(
    target: str, *headers: str, method: str = "GET", body: bytes | None = None, host: str = "127.0.0.1"
) -> bytes:
    """Return a complete request with `connection: close` as bytes."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", "connection: close", *headers]
    if body is not None:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")

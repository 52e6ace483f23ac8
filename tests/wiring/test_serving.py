"""How many connections a server holds, in a process of its own with a smaller number."""

from __future__ import annotations

import http.client
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines import running
from tests.ports import free_port


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "gpuscope",
        "server",
        "--data",
        tmp_path / "data",
        "--listen",
        address,
    ]
    command += ["--max-connections", "6"]
    with running(command, f"http://{address}/-/ready"):
        yield port


def status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/-/healthy")
        return connection.getresponse().status
    finally:
        connection.close()


def test_silent_connections_make_room_for_whoever_asks(port: int) -> None:
    with ExitStack() as held:
        for _ in range(6):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert [status(port) for _ in range(10)] == [200] * 10

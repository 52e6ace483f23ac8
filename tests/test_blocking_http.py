"""The small blocking HTTP client: kept connections, Unix sockets, and bounds on what a server sends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.base.blocking_http import BlockingHttp, HttpAddress

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi"


@contextmanager
def answering(
    *answers: bytes, unix: Path | None = None, after: Callable[[socket.socket], None] | None = None
) -> Iterator[tuple[HttpAddress, list[bytes]]]:
    """A server that gives each connection the next answer, then closes it; what it received."""
    family = socket.AF_UNIX if unix else socket.AF_INET
    received: list[bytes] = []
    with socket.socket(family) as listener:
        listener.bind(str(unix) if unix else ("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    received.append(connection.recv(65536))
                    connection.sendall(answer)
                    if after is not None:
                        after(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        port = 0 if unix else listener.getsockname()[1]
        yield HttpAddress("127.0.0.1", port, unix_socket=str(unix or "")), received
        thread.join()


def client(address: HttpAddress, *, timeout_seconds: float = 30.0, max_body_bytes: int = 100) -> BlockingHttp:
    return BlockingHttp(address, timeout_seconds=timeout_seconds, max_body_bytes=max_body_bytes)


def test_get_and_post() -> None:
    with answering(OK, OK) as (address, received), client(address) as http:
        response = http.request("GET", "/a?b=c", [("accept", "x/y")])
        assert (response.status, response.body, response.header("x-a")) == (200, b"hi", "b")
        # The server closed the kept connection: the next request opens another.
        assert http.request("POST", "/w", body=b"body").status == 200
    assert received[0].startswith(b"GET /a?b=c HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    assert b"accept: x/y" in received[0].lower()
    assert received[1].endswith(b"\r\n\r\nbody")
    assert b"content-length: 4" in received[1].lower()


def test_a_unix_socket(tmp_path: Path) -> None:
    with answering(OK, unix=tmp_path / "s") as (address, _), client(address) as http:
        assert http.request("GET", "/").body == b"hi"
    with client(HttpAddress(unix_socket=str(tmp_path / "nothing"))) as http, pytest.raises(OSError):
        http.request("GET", "/")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, "larger than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, "larger than 100 bytes"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP response"),
        (b"", "closed before the response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "not an HTTP response"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, "not an HTTP response"),
    ],
)
def test_what_is_no_answer_is_an_oserror(answer: bytes, message: str) -> None:
    with answering(answer) as (address, _), client(address) as http, pytest.raises(OSError, match=message):
        http.request("GET", "/")


def test_the_time_limit_is_for_the_whole_answer() -> None:
    closed = threading.Event()

    def drip(connection: socket.socket) -> None:
        try:
            for _ in range(200):  # each byte alone comes in time
                if closed.wait(0.02):
                    return
                connection.sendall(b"x")
        except OSError:
            pass

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with answering(head, after=drip) as (address, _):
        with client(address, timeout_seconds=0.2, max_body_bytes=2000) as http, pytest.raises(TimeoutError):
            http.request("GET", "/")
        closed.set()

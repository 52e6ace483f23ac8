"""Our gRPC client against grpcio's server, and against everything a socket could say instead."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.owners.grpc_call import (
    CallError,
    CallResponse,
    HeaderDecoder,
    HeaderError,
    ProtobufError,
    call,
    decode_huffman,
    encode_frame,
    fields,
    text,
)
from gpuscope.agent.owners.pod_resources import LIST
from gpuscope.base.errors import SourceError
from tests.owners.fake_kubelet import FakeKubelet, field, running_kubelet


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    with running_kubelet(tmp_path / "kubelet.sock") as fake:
        yield fake


def ask(kubelet: FakeKubelet, **more: object) -> bytes:
    return call(str(kubelet.path), LIST, **{"timeout": 20.0, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 5, 16_384, 65_536, 6_600_000])
def test_answers_of_any_size(kubelet: FakeKubelet, size: int) -> None:
    answer = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    kubelet.answer = lambda context: answer
    assert ask(kubelet) == answer
    assert kubelet.asked == [LIST]


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED", "rejected by rate limit"),
        (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", "no"),
        (grpc.StatusCode.UNKNOWN, "UNKNOWN", 'pod "ü/ß" \\ 100 %'),
        (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE", "later" * 20),
    ],
)
def test_what_the_server_says_went_wrong(
    kubelet: FakeKubelet, code: grpc.StatusCode, name: str, message: str
) -> None:
    def refuse(context: grpc.ServicerContext) -> bytes:
        context.abort(code, message)
        return b""

    kubelet.answer = refuse
    with pytest.raises(CallError) as raised:
        ask(kubelet)
    assert raised.value.status == name
    assert message in str(raised.value)


def test_a_method_the_server_does_not_have(kubelet: FakeKubelet) -> None:
    with pytest.raises(CallError) as raised:
        call(str(kubelet.path), "/v1.PodResourcesLister/Missing", timeout=20.0)
    assert raised.value.status == "UNIMPLEMENTED"


def test_an_answer_over_the_limit_is_not_kept(kubelet: FakeKubelet) -> None:
    kubelet.answer = lambda context: b"x" * 3_000_000
    with pytest.raises(CallError, match="larger than 1 MiB"):
        ask(kubelet, max_bytes=1 << 20)


def test_a_server_that_hangs(kubelet: FakeKubelet) -> None:
    kubelet.answer = kubelet.hang
    with pytest.raises(CallError, match="did not answer"):
        ask(kubelet, timeout=0.2)
    kubelet.release.set()


def test_no_socket_and_no_listener(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="No such file"):
        call(str(tmp_path / "none.sock"), LIST, timeout=1.0)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with pytest.raises(CallError, match="refused"):
        call(str(tmp_path / "dead.sock"), LIST, timeout=1.0)


def test_a_socket_that_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    for answer in (b"first", b"second"):
        path.unlink(missing_ok=True)
        with running_kubelet(path) as fake:
            fake.answer = lambda context: answer  # noqa: B023
            assert ask(fake) == answer


@contextmanager
def saying(path: Path, what: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads nothing and says what it likes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                what(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield str(path)
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


GARBAGE = {
    "HTTP/1": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "nothing": b"",
    "half a frame": b"\x00\x00\x10\x00",
    "a frame without end": b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "hung up": encode_frame(7, 0, 0, b"\0" * 8),
    "broken off": encode_frame(3, 0, 1, b"\0\0\0\x08"),
    "a push": encode_frame(5, 4, 1, b"\0\0\0\x02"),
    "bad padding": encode_frame(0, 0x9, 1, b"\xff"),
    "bad headers": encode_frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
    "no status": encode_frame(1, 4, 1, b"\x88") + encode_frame(0, 1, 1, b"\0\0\0\0\0"),
    "only headers, HTTP 404": encode_frame(1, 5, 1, b"\x8d"),
    "a short message": encode_frame(1, 4, 1, b"\x88")
    + encode_frame(0, 0, 1, b"\0\0\0\0\x09x")
    + encode_frame(1, 5, 1, b"\0\x0bgrpc-status\x010"),
    "compressed": encode_frame(1, 4, 1, b"\x88")
    + encode_frame(0, 0, 1, b"\1\0\0\0\0")
    + encode_frame(1, 5, 1, b"\0\x0bgrpc-status\x010"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_an_error_that_says_so(tmp_path: Path, kind: str) -> None:
    with saying(tmp_path / "s", lambda connection: connection.sendall(GARBAGE[kind])) as path:
        with pytest.raises(SourceError) as raised:
            call(path, LIST, timeout=5.0)
        assert str(raised.value)


def test_the_protocol_is_followed_where_it_asks_for_an_answer(tmp_path: Path) -> None:
    heard = bytearray()

    def serve(connection: socket.socket) -> None:
        connection.sendall(
            encode_frame(4, 0, 0, b"")
            + encode_frame(6, 0, 0, b"12345678")
            + encode_frame(0x55, 0, 0, b"unknown")
        )
        connection.sendall(encode_frame(1, 0, 1, b"\x88") + encode_frame(9, 4, 1, b""))
        connection.sendall(encode_frame(0, 8, 1, b"\x02" + b"\0\0\0\0\x02" + b"pp"))
        connection.sendall(
            encode_frame(0, 0, 1, b"ok") + encode_frame(1, 0x25, 1, b"\0" * 5 + b"\0\x0bgrpc-status\x010")
        )
        connection.settimeout(5)
        with suppress(OSError):
            while piece := connection.recv(4096):
                heard.extend(piece)

    with saying(tmp_path / "s", serve) as path:
        assert call(path, LIST, timeout=5.0) == b"ok"
    assert encode_frame(4, 1, 0, b"") in bytes(heard)
    assert encode_frame(6, 1, 0, b"12345678") in bytes(heard)


class Scripted:
    def __init__(self, frames: list[tuple[int, int, int, bytes]]) -> None:
        self._frames = frames

    def read(self) -> Iterator[tuple[int, int, int, bytes]]:
        yield from self._frames
        raise CallError("the end")


frames = st.tuples(
    st.sampled_from([0, 1, 3, 5, 7, 8, 9, 77]),
    st.integers(0, 255),
    st.sampled_from([0, 1, 3]),
    st.binary(max_size=40),
)


@given(st.lists(frames, max_size=12))
def test_any_frames_are_an_answer_or_an_error(said: list[tuple[int, int, int, bytes]]) -> None:
    with suppress(SourceError):
        CallResponse(1 << 16).read(Scripted(said))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
        ("a8eb10649cbf", "no-cache"),
        ("25a849e95ba97d7f", "custom-key"),
        ("25a849e95bb8e8b4bf", "custom-value"),
        ("6402", "302"),
        ("aec3771a4b", "private"),
        ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
    ],
)
def test_the_huffman_code_of_the_standards_examples(code: str, plain: str) -> None:
    assert decode_huffman(bytes.fromhex(code)) == plain


def test_headers_that_are_remembered() -> None:
    decoder = HeaderDecoder()
    assert decoder.decode(b"\x88\x40\x0bgrpc-status\x010") == [(":status", "200"), ("grpc-status", "0")]
    assert decoder.decode(b"\x20\xbe") == [("grpc-status", "0")]
    with pytest.raises(HeaderError):
        decoder.decode(b"\xbf")


@given(st.binary(max_size=120))
def test_any_header_block(block: bytes) -> None:
    with suppress(HeaderError):
        HeaderDecoder().decode(block)


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    with suppress(ProtobufError):
        assert all(number > 0 for number, _ in fields(data))


numbers = st.integers(1, 2**29 - 1)
values = st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=50), st.text(max_size=20))


@given(st.lists(st.tuples(numbers, values), max_size=10))
def test_what_was_written_is_read(written: list[tuple[int, int | bytes | str]]) -> None:
    data = b"".join(field(number, value) for number, value in written)
    read = [(number, value) for number, value in fields(data)]
    assert [number for number, _ in read] == [number for number, _ in written]
    for (_, got), (_, put) in zip(read, written, strict=True):
        assert (text(got) if isinstance(put, str) else got) == put

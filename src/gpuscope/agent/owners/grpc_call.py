"""A unary gRPC call over a unix socket: one connection, one request, one response.

Each call opens a new connection, because a restarted kubelet creates another socket at the same path. The
response may be large (over 4 MiB on a busy node): flow control windows are opened fully, so that it never
stalls.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from gpuscope.base.errors import SourceError
from gpuscope.base.varint import VarintError, read_varint

# Protocol Buffers' wire format: the fields of a message, one by one.
#
# The caller skips fields it does not know. A truncated message, or a wire type that is not used any more,
# raises `ProtobufError`.

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | bytes


class ProtobufError(SourceError):
    """Not a Protocol Buffers message, or a truncated one."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: an int for a varint, bytes for every other type."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind, number = key & 7, key >> 3
        if number == 0:
            raise ProtobufError("a field has number 0")
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ProtobufError(f"unknown wire type {kind}")
        if length > end - at:
            raise ProtobufError("a message is truncated")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    try:
        return read_varint(message, at, len(message))
    except VarintError as error:
        raise ProtobufError(str(error)) from None


def text(value: Value) -> str:
    """A string field; empty if the field is a number."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def message(value: Value) -> bytes:
    """An embedded message; empty if the field is a number."""
    return value if isinstance(value, bytes) else b""


# HTTP/2's compressed headers (HPACK): the part that is needed to know whether a call succeeded.
#
# Of the static table only `:status` is used; other names decode to empty text. Text with characters that no
# gRPC header has (more than 15 bits in the Huffman code) decodes to `?`.

_STATIC_ENTRIES: Final = 61
_FIRST_STATUS: Final = 8
_STATUSES: Final = ("200", "204", "206", "304", "400", "404", "500")
_MAX_TABLE_BYTES: Final = 4096
_MAX_TEXT: Final = 8192

# The Huffman code is canonical: it follows from the characters of each length in order.
_BY_LENGTH: Final = {
    5: "012aceiost",
    6: " %-./3456789=A_bdfghlmnpru",
    7: ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: "&*,;XZ",
    10: '!"()?',
    11: "'+|",
    12: "#>",
    13: "\0$@[]~",
    14: "^}",
    15: "<`{",
}


class HeaderError(SourceError):
    """Not a valid header block."""


def _codes() -> dict[tuple[int, int], str]:
    codes, code, before = {}, 0, 0
    for length, characters in _BY_LENGTH.items():
        code <<= length - before
        before = length
        for character in characters:
            codes[length, code] = character
            code += 1
    return codes


_CODES: Final = _codes()
_MAX_CODE_LENGTH: Final = max(_BY_LENGTH)


def decode_huffman(data: bytes) -> str:
    bits, length, characters = 0, 0, []
    for byte in data:
        for shift in range(7, -1, -1):
            bits = bits << 1 | (byte >> shift & 1)
            length += 1
            character = _CODES.get((length, bits))
            if character is not None:
                characters.append(character)
                bits = length = 0
            elif length > _MAX_CODE_LENGTH:
                return "?"
    if length > 7 or bits != (1 << length) - 1:
        raise HeaderError("the text of a header is truncated")
    return "".join(characters)


class HeaderDecoder:
    """For one connection: later blocks refer to entries of earlier ones."""

    def __init__(self) -> None:
        self._dynamic: list[tuple[str, str]] = []

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        headers, at = [], 0
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                headers.append(self._entry(index))
            elif first & 0xE0 == 0x20:  # a new size of the table: ignored, ours is bounded
                _, at = _integer(block, at, 5)
            else:
                indexed = bool(first & 0x40)
                index, at = _integer(block, at, 6 if indexed else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                headers.append((name, value))
                if indexed:
                    self._add_entry(name, value)
        return headers

    def _entry(self, index: int) -> tuple[str, str]:
        if index == 0:
            raise HeaderError("a header has index 0")
        if index > _STATIC_ENTRIES:
            if index - _STATIC_ENTRIES > len(self._dynamic):
                raise HeaderError("a header refers to an unknown entry")
            return self._dynamic[index - _STATIC_ENTRIES - 1]
        if _FIRST_STATUS <= index < _FIRST_STATUS + len(_STATUSES):
            return ":status", _STATUSES[index - _FIRST_STATUS]
        return "", ""

    def _add_entry(self, name: str, value: str) -> None:
        self._dynamic.insert(0, (name, value))
        # The server does not refer to entries it has dropped; this table only must not grow without bound.
        del self._dynamic[_MAX_TABLE_BYTES // 32 :]


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    largest = (1 << prefix) - 1
    value = block[at] & largest
    at += 1
    if value < largest:
        return value, at
    shift = 0
    while True:
        if at >= len(block) or shift > 28:
            raise HeaderError("an integer of a header is truncated")
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _text(block: bytes, at: int) -> tuple[str, int]:
    if at >= len(block):
        raise HeaderError("a header is truncated")
    huffman = bool(block[at] & 0x80)
    length, at = _integer(block, at, 7)
    if length > len(block) - at or length > _MAX_TEXT:
        raise HeaderError("a header is truncated")
    data = block[at : at + length]
    return decode_huffman(data) if huffman else data.decode("latin-1"), at + length


PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_RESPONSE_BYTES: Final = 64 << 20
_MAX_FRAME_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 1 << 16
_WINDOW: Final = (1 << 31) - 1
_FIRST_WINDOW: Final = 65535

DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0x0, 0x1, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0x9,
)  # fmt: skip
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

_NAMES: Final = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
    "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
STATUS_NAMES: Final = {str(number): name for number, name in enumerate(_NAMES)}


class CallError(SourceError):
    """The call gave no response; `status` is gRPC's name of the reason, empty if the server gave none."""

    def __init__(self, why: str, status: str = "") -> None:
        super().__init__(f"{status}: {why}" if status and why else why or status)
        self.status = status


def call(
    path: str, method: str, request: bytes = b"", *, timeout: float, max_bytes: int = MAX_RESPONSE_BYTES
) -> bytes:
    """The response's message. `method` is like `/v1.PodResourcesLister/List`. Raises CallError."""
    deadline = time.monotonic() + timeout
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(_request_bytes(method, request))
            return CallResponse(max_bytes).read(FrameReader(connection, deadline))
    except TimeoutError:
        raise CallError(f"{path} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise CallError(f"{path}: {error.strerror or error}") from None


def encode_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def _request_bytes(method: str, request: bytes) -> bytes:
    settings = struct.pack(
        "!HIHIHI", 0x2, 0, 0x4, _WINDOW, 0x5, _MAX_FRAME_BYTES
    )  # no push, windows, frame size
    headers = b"\x83\x86" + _literal(b":path", method.encode()) + _literal(b":authority", b"localhost")
    headers += _literal(b"content-type", b"application/grpc") + _literal(b"te", b"trailers")
    body = struct.pack("!BI", 0, len(request)) + request
    return b"".join(
        (
            PREFACE,
            encode_frame(SETTINGS, 0, 0, settings),
            encode_frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", _WINDOW - _FIRST_WINDOW)),
            encode_frame(HEADERS, END_HEADERS, 1, headers),
            encode_frame(DATA, END_STREAM, 1, body),
        )
    )


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that the server does not add to its table; both parts are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class FrameReader:
    """Frames from a socket until a deadline; acknowledges settings and pings."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def read(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload."""
        while True:
            head = self._receive(9)
            length = int.from_bytes(head[:3], "big")
            kind, flags, stream = struct.unpack("!BBI", head[3:])
            if length > _MAX_FRAME_BYTES:
                raise CallError("the server does not speak gRPC")
            payload = self._receive(length)
            if kind == SETTINGS and not flags & ACK:
                self._connection.sendall(encode_frame(SETTINGS, ACK, 0, b""))
            elif kind == PING and not flags & ACK:
                self._connection.sendall(encode_frame(PING, ACK, 0, payload[:8]))
            else:
                yield kind, flags, stream & 0x7FFFFFFF, payload

    def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            piece = self._connection.recv(min(count - len(data), 1 << 18))
            if not piece:
                raise CallError("the connection closed before the response was complete")
            data += piece
        return bytes(data)


@dataclass(slots=True)
class CallResponse:
    max_bytes: int
    body: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    _decoder: HeaderDecoder = field(default_factory=HeaderDecoder)
    _block: bytearray = field(default_factory=bytearray)
    _ends_after_block: bool = False

    def read(self, frames: FrameReader) -> bytes:
        for kind, flags, stream, payload in frames.read():
            if kind == GOAWAY and (len(payload) < 8 or int.from_bytes(payload[:4], "big") & 0x7FFFFFFF < 1):
                raise CallError("the server closed the connection before it responded", "UNAVAILABLE")
            if kind == PUSH_PROMISE:
                raise CallError("the server does not speak gRPC")
            if stream == 1 and self._take(kind, flags, payload):
                return self._message()
        raise AssertionError("frames never end without an exception")

    def _take(self, kind: int, flags: int, payload: bytes) -> bool:
        """Whether the response is complete."""
        if kind == RST_STREAM:
            raise CallError("the server cancelled the call", "CANCELLED")
        if kind == DATA:
            self.body += _unpadded(payload, flags)
            if len(self.body) > self.max_bytes:
                raise CallError(f"the response is larger than {self.max_bytes >> 20} MiB", "RESOURCE_EXHAUSTED")
            return bool(flags & END_STREAM)
        if kind == HEADERS:
            block = _unpadded(payload, flags)
            self._block = bytearray(block[5:] if flags & PRIORITY else block)
            self._ends_after_block = bool(flags & END_STREAM)
        elif kind == CONTINUATION:
            self._block += payload
        else:
            return False
        if len(self._block) > _MAX_HEADER_BYTES:
            raise CallError("the response's headers are too large")
        if not flags & END_HEADERS:
            return False
        self.headers.update(self._decoder.decode(bytes(self._block)))
        return self._ends_after_block

    def _message(self) -> bytes:
        status = self.headers.get("grpc-status")
        if status != "0":
            raise self._failure(status)
        if len(self.body) < 5 or self.body[0] != 0:
            raise CallError("the response is not an uncompressed gRPC message")
        length = int.from_bytes(self.body[1:5], "big")
        if length != len(self.body) - 5:
            raise CallError("the response is truncated")
        return bytes(self.body[5:])

    def _failure(self, status: str | None) -> CallError:
        http = self.headers.get(":status", "200")
        if status is None and http != "200":
            return CallError(f"HTTP status {http[:20]}")
        name = STATUS_NAMES.get(status or "", "UNKNOWN")
        why = unquote(self.headers.get("grpc-message", ""), errors="replace")[:300]
        return CallError(why or "no reason given", name)


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise CallError("the server does not speak gRPC")
    return payload[1 : len(payload) - payload[0]]

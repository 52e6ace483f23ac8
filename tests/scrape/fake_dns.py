"""A DNS server on loopback, UDP and TCP, whose answers are bytes that a test makes."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.ports import free_port

SRV, A, AAAA, MX, NS, CNAME, TXT = 33, 1, 28, 15, 2, 5, 16
NAME_ERROR, SERVER_FAILURE = 3, 2


def encode_name(name: str) -> bytes:
    labels = [label.encode() for label in name.rstrip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def srv(target: str, port: int) -> tuple[int, bytes]:
    return SRV, struct.pack(">3H", 0, 0, port) + encode_name(target)


def mx(target: str) -> tuple[int, bytes]:
    return MX, struct.pack(">H", 10) + encode_name(target)


def ns(target: str) -> tuple[int, bytes]:
    return NS, encode_name(target)


def cname(target: str) -> tuple[int, bytes]:
    return CNAME, encode_name(target)


def a(address: str) -> tuple[int, bytes]:
    return A, socket.inet_pton(socket.AF_INET, address)


def aaaa(address: str) -> tuple[int, bytes]:
    return AAAA, socket.inet_pton(socket.AF_INET6, address)


Zone = dict[tuple[str, int], list[tuple[int, bytes]] | int]
"""Records of (name, type); a number is an error code. A name without an entry does not exist."""


def make_answer(question: bytes, zone: Zone, max_bytes: int = 1 << 16) -> bytes:
    end = question.index(b"\0", 12) + 5
    name = _question_name(question)
    (kind,) = struct.unpack(">H", question[end - 4 : end - 2])
    found = zone.get((name, kind), [] if any(known == name for known, _ in zone) else NAME_ERROR)
    code, records = (found, []) if isinstance(found, int) else (0, found)
    body = b"".join(
        # 0xC00C points to the name of the question.
        struct.pack(">HHHIH", 0xC00C, record, 1, 60, len(data)) + data
        for record, data in records
    )
    flags, count = 0x8180 | code, len(records)
    if 12 + len(question[12:end]) + len(body) > max_bytes:
        flags, body, count = flags | 0x0200, b"", 0
    return question[:2] + struct.pack(">5H", flags, 1, count, 0, 0) + question[12:end] + body


def _question_name(question: bytes) -> str:
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    return ".".join(labels) + "."


@dataclass
class FakeDns:
    zone: Zone = field(default_factory=dict)
    address: str = ""
    port: int = 0
    udp_answers: Callable[[bytes], list[bytes]] | None = None
    """Instead of the zone: the packets that answer a question over UDP."""
    questions: list[tuple[str, str]] = field(default_factory=list)
    """Protocol and name."""

    def over_udp(self, question: bytes) -> list[bytes]:
        self.questions.append(("udp", _question_name(question)))
        if self.udp_answers is not None:
            return self.udp_answers(question)
        return [make_answer(question, self.zone, 1232)]

    def over_tcp(self, question: bytes) -> bytes:
        self.questions.append(("tcp", _question_name(question)))
        return make_answer(question, self.zone)


@contextlib.contextmanager
def serving_dns(address: str = "127.0.0.1", port: int | None = None) -> Iterator[FakeDns]:
    dns = FakeDns(address=address, port=free_port() if port is None else port)

    class Udp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            question, reply = self.request
            for answer in dns.over_udp(question):
                reply.sendto(answer, self.client_address)

    class Tcp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = self.rfile.read(2)
            if len(head) == 2:
                answer = dns.over_tcp(self.rfile.read(struct.unpack(">H", head)[0]))
                self.wfile.write(struct.pack(">H", len(answer)) + answer)

    class TcpServer(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    at = (dns.address, dns.port)
    with socketserver.ThreadingUDPServer(at, Udp) as udp, TcpServer(at, Tcp) as tcp:
        threads = [
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in (udp, tcp)
        ]
        for thread in threads:
            thread.start()
        try:
            yield dns
        finally:
            for server in (udp, tcp):
                server.shutdown()
            for thread in threads:
                thread.join()

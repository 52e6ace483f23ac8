"""Attacks on what the page reads: many reports, findings and receipts at once, and ids of live streams."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor

from tests.hostile.catalogue import Attack
from tests.hostile.senders import ATTACKER, addresses, connect, exchange, request
from tests.hostile.victim import Victim, Watch

CLIENTS = 50
UP = ("up", "--source", "demo")
REPORTS = (
    "/api/report?by=user&since=30d",
    "/api/report?by=label:x&since=365d",
    "/api/findings",
    "/api/findings?since=31d",
    "/api/job?id=1&since=365d",
)


def _status(answer: bytes) -> int:
    match = re.match(rb"HTTP/1.1 (\d+) ", answer)
    return int(match[1]) if match else 0


def _many_reports(victim: Victim, watch: Watch) -> None:
    def read(number: int) -> tuple[str, int]:
        path = REPORTS[number % len(REPORTS)]
        source = addresses(CLIENTS)[number % CLIENTS]
        return path, _status(exchange(victim, request(path), source=source, most_bytes=16 << 20))

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = [clients.submit(read, number) for number in range(4 * CLIENTS)]
        watch.meanwhile()
        found = {answer.result() for answer in answers}
    assert {status for _, status in found} <= {200, 404, 422, 503}, found
    for path in REPORTS[:4]:
        assert (path, 200) in found, f"{path}: nobody was answered"
    assert victim.limit_reached("report_max_concurrency") > 0
    assert "Traceback" not in victim.log()


def _first_event(stream: socket.socket) -> bytes:
    received = b""
    while not re.search(rb"\nid: \S+\ndata: ", received):
        piece = stream.recv(65536)
        if not piece:
            break
        received += piece
    return received


def _stream_ids(victim: Victim, watch: Watch) -> None:
    path = "/api/live/stream"
    with connect(victim) as stream:
        stream.sendall(request(path))
        match = re.search(rb"\nid: (\w+)-(\d+)\n", _first_event(stream))
        assert match, "no first event"
        epoch, number = match[1].decode(), int(match[2])
    wrong = (
        f"{epoch}--1", f"{epoch}-{number + 1_000_000}", f"{epoch}-{'9' * 5_000}", f"{epoch}-1e3", epoch, "-",
        f"{epoch}-\u0663".encode().decode("latin-1"),
        "0" * 60_000, f"deadbeef-{number}", f"{epoch}-{number}\x7f",
    )  # fmt: skip
    for event_id in wrong:
        with connect(victim, ATTACKER) as stream:
            stream.sendall(
                f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nlast-event-id: {event_id}\r\n\r\n".encode("latin-1")
            )
            answer = _first_event(stream)
        assert _status(answer) in (200, 400), (event_id[:80], answer[:200])
        assert _status(answer) == 400 or b"\nevent: picture\n" in answer, (event_id[:80], answer[:300])
    watch.meanwhile()


ATTACKS = (
    Attack(
        "many reports",
        "50 clients that request 200 reports, findings of a month and receipts of a year",
        "two run at a time, the others get 503; each is answered to somebody",
        _many_reports,
        UP,
        question="/api/v1/query?query=count(gpuscope_gpu_info)",
        slow=True,
    ),
    Attack(
        "ids of live streams",
        "Last-Event-ID that is negative, huge, of the future, of another stream, or no id",
        "the whole picture, or 400",
        _stream_ids,
        UP,
        question="/api/v1/query?query=count(gpuscope_gpu_info)",
        slow=True,
    ),
)

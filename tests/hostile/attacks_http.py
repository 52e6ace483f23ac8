"""Attacks on the HTTP server: connections, TLS, heads, bodies, unread responses, passwords."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import struct
import threading
from pathlib import Path

from tests.hostile.catalogue import Attack
from tests.hostile.senders import ATTACKER, addresses, connect, connections, exchange, is_open, receive, request
from tests.hostile.victim import Victim, Watch
from tests.waiting import wait_for

FILES = Path(__file__).parent / "files"
HALF_A_HEAD = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"
WRITE = (
    b"POST /api/v1/write HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    b"content-type: application/x-protobuf\r\n"
)
EMPTY_WRITE = b"\x00"  # a snappy block without content: a write request of no series
MANY = addresses(100)


def _status(answer: bytes) -> int:
    match = re.match(rb"HTTP/1.1 (\d+) ", answer)
    return int(match[1]) if match else 0


def _write_works(victim: Victim) -> None:
    headers = {"content-type": "application/x-protobuf", "content-encoding": "snappy"}
    status, body = victim.request("POST", "/api/v1/write", EMPTY_WRITE, headers)
    assert status == 204, f"another client's remote write: {status} {body!r}"


def _slow_heads(victim: Victim, watch: Watch) -> None:
    with connections(victim, 600, HALF_A_HEAD):
        watch.meanwhile()
    assert victim.limit_reached("max_connections_per_address") > 0


def _slow_heads_on_an_agent(victim: Victim, watch: Watch) -> None:
    with connections(victim, 600, HALF_A_HEAD):
        watch.meanwhile()


def _slow_heads_of_many(victim: Victim, watch: Watch) -> None:
    with connections(victim, 600, HALF_A_HEAD, MANY):
        watch.meanwhile()
    assert victim.limit_reached("max_connections") > 0


def _silent_tls(victim: Victim, watch: Watch) -> None:
    with connections(victim, 1300, b"", MANY):
        watch.meanwhile()
    assert victim.open_files() < 900


def _plain_text_to_tls(victim: Victim, watch: Watch) -> None:
    for number in range(300):
        exchange(victim, b"GET / HTTP/1.1\r\n\r\n", source=MANY[number % len(MANY)])
    watch.meanwhile()


def _few_files(victim: Victim, watch: Watch) -> None:
    with connections(victim, 200, HALF_A_HEAD, MANY) as opened:
        # While they arrive, an observer that sends its request late is the oldest of 32 and gives way.
        wait_for(lambda: sum(map(is_open, opened)) <= 32, "the server to have accepted all of them")
        watch.meanwhile()
    assert "Traceback" not in victim.log()


def _resets(victim: Victim, watch: Watch) -> None:
    for number in range(1000):
        with connect(victim, MANY[number % len(MANY)]) as one:
            one.sendall(request("/metrics"))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    watch.meanwhile()
    assert "Traceback" not in victim.log()


def _malformed_chunks(victim: Victim, watch: Watch) -> None:
    bad = WRITE + b"transfer-encoding: chunked\r\n\r\nZZZ\r\n"
    assert [_status(exchange(victim, bad)) for _ in range(8)] == [400] * 8
    with connections(victim, 8, bad):
        watch.meanwhile()
        _write_works(victim)


def _slow_bodies(victim: Victim, watch: Watch) -> None:
    with connections(victim, 100, WRITE + b"content-length: 1000\r\n\r\n\x00"):
        watch.meanwhile()
        _write_works(victim)


def _large_bodies(victim: Victim, watch: Watch) -> None:
    size = 15 << 20
    with connections(victim, 40, WRITE + b"content-length: %d\r\n\r\n" % (size + 1), MANY) as opened:
        answers = []
        for one in opened:
            one.settimeout(1.0)  # the rest of a refused body is not read
            with contextlib.suppress(OSError):
                one.sendall(b"\x00" * size)
            one.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                answers.append(receive(one))
        watch.meanwhile()
        _write_works(victim)
    refused = [answer for answer in answers if _status(answer) == 503]
    assert refused, "none was refused"
    assert all(b"\r\nretry-after: " in answer for answer in refused)


def _pipelined(victim: Victim, watch: Watch) -> None:
    many = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 6000
    with connections(victim, 120, b"") as opened:
        for one in opened:
            one.settimeout(0.2)  # the victim stops reading: unread bytes stay in the sender's buffer
            with contextlib.suppress(OSError):
                one.sendall(many)
        watch.meanwhile()


def _large_head(victim: Victim, watch: Watch) -> None:
    head = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: %b\r\n\r\n" % (b"y" * 100_000)
    answers = [_status(exchange(victim, head)) for _ in range(50)]
    watch.meanwhile()
    assert answers == [431] * 50


def _endless_trailer(victim: Victim, watch: Watch) -> None:
    body = b"transfer-encoding: chunked\r\n\r\n0\r\nx: "
    answer = exchange(victim, WRITE + body, *[b"y" * 65536] * 200)
    watch.meanwhile()
    assert _status(answer) in (431, 0), "0: the connection was closed while sending"


def _basic(user: str, password: str) -> str:
    return "authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _passwords(victim: Victim, watch: Watch) -> None:
    ann = {"authorization": _basic("ann", "correct horse").partition(": ")[2]}
    assert victim.get("/metrics", ann)[0] == 200
    statuses: list[int] = []

    def guess(source: str) -> None:
        with contextlib.suppress(OSError):
            for number in range(4):
                asked = request("/metrics", _basic(f"user{source}{number}", "guess"))
                statuses.append(_status(exchange(victim, asked, source=source)))

    threads = [threading.Thread(target=guess, args=(source,)) for source in [*MANY, *[ATTACKER] * 20]]
    for thread in threads:
        thread.start()
    watch.meanwhile()
    assert victim.get("/metrics", ann)[0] == 200, "a user who logged in before does not wait"
    for thread in threads:
        thread.join()
    assert 200 not in statuses
    assert statuses.count(401) < len(statuses), "not every password is checked"


def _framed_query(victim: Victim, watch: Watch) -> None:
    cross = ("sec-fetch-site: cross-site", "sec-fetch-mode: navigate", "sec-fetch-dest: iframe")
    answers = [_status(exchange(victim, request("/api/v1/query?query=up", *cross))) for _ in range(20)]
    watch.meanwhile()
    assert answers == [403] * 20


TLS = ("server", "--web-config-file", str(FILES / "web-tls.yml"))
PASSWORDS = ("server", "--web-config-file", str(FILES / "web-passwords.yml"))

ATTACKS = (
    Attack(
        "slow heads from one address",
        "600 connections from one address, each with half a request head",
        "the address may keep 128 of them; other addresses are not affected",
        _slow_heads,
    ),
    Attack(
        "slow heads from many addresses",
        "600 connections from 100 addresses, each with half a request head",
        "the oldest are closed when other clients connect",
        _slow_heads_of_many,
        slow=True,
    ),
    Attack(
        "slow heads on an agent",
        "600 connections from one address, each with half a request head",
        "`/metrics` is served to other clients",
        _slow_heads_on_an_agent,
        ("agent", "--source", "demo"),
        question="/metrics",
        slow=True,
    ),
    Attack(
        "silent TLS connections",
        "1,300 TCP connections to a TLS listener that never start a handshake",
        "they count as connections; file descriptors remain available",
        _silent_tls,
        TLS,
    ),
    Attack(
        "plain text to a TLS listener",
        "300 requests without TLS to a TLS listener",
        "log lines are limited",
        _plain_text_to_tls,
        TLS,
        slow=True,
    ),
    Attack(
        "few open files",
        "200 connections to a process that may open 64 files",
        "connections are limited below that; no traceback, no busy loop",
        _few_files,
        files=64,
    ),
    Attack(
        "reset connections",
        "1,000 requests whose connections are reset before the response",
        "no traceback",
        _resets,
        slow=True,
    ),
    Attack(
        "malformed chunked body",
        "remote-write bodies whose first chunk size is not a number",
        "400 immediately; other clients can write",
        _malformed_chunks,
    ),
    Attack(
        "slow bodies",
        "100 remote-write bodies that stop after the first byte",
        "other clients can write",
        _slow_bodies,
        slow=True,
    ),
    Attack(
        "large bodies",
        "40 remote-write bodies of 15 MiB at once from 100 addresses, none completed",
        "64 MiB of them are kept in memory, the others get 503 with Retry-After; small writes continue",
        _large_bodies,
        slow=True,
    ),
    Attack(
        "pipelined requests",
        "120 connections with 6,000 pipelined requests each that never read a response",
        "further requests are read only after the earlier ones are answered",
        _pipelined,
        slow=True,
    ),
    Attack("large head in one read", "heads of 100 KB sent at once", "431", _large_head, slow=True),
    Attack("endless trailer", "13 MB of one trailer after a chunked body", "431", _endless_trailer, slow=True),
    Attack(
        "wrong passwords",
        "480 wrong basic-auth passwords of a web config file, from 101 addresses at once",
        "most are refused without a check; a user who logged in before does not wait",
        _passwords,
        PASSWORDS,
        question="/-/ready",
        slow=True,
    ),
    Attack(
        "query in a frame of another site",
        "queries with the Sec-Fetch headers of a cross-site iframe",
        "403",
        _framed_query,
        slow=True,
    ),
)

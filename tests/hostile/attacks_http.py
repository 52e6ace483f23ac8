"""Attacks on the HTTP server: connections, heads, bodies, answers not read, passwords."""

from __future__ import annotations

from tests.hostile.catalogue import Attack
from tests.hostile.senders import connections, exchange
from tests.hostile.victim import Victim, Watch


def _slow_heads(victim: Victim, watch: Watch) -> None:
    with connections(victim, 600, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"):
        watch.meanwhile()


def _malformed_chunks(victim: Victim, watch: Watch) -> None:
    head = b"POST /api/v1/write HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/x-protobuf\r\n"
    answer = exchange(victim, head + b"transfer-encoding: chunked\r\n\r\nZZZ\r\n")
    watch.meanwhile()
    assert answer.startswith(b"HTTP/1.1 400 ")


ATTACKS = (
    Attack(
        "slow heads from one address",
        "600 connections from one address, each with half a request head",
        "clients from other addresses are served",
        _slow_heads,
    ),
    Attack(
        "malformed chunked body",
        "a chunked remote-write body whose first chunk size is not a number",
        "400 at once",
        _malformed_chunks,
    ),
)

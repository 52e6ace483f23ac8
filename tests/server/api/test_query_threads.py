"""Threads for queries are shared: one address cannot take all of them."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.serve.api.query_threads import QueryThreads


def test_an_address_that_sends_many_queries_leaves_threads_to_others() -> None:
    threads, ends = QueryThreads(10), threading.Event()
    before = LIMITS_REACHED.counts()["query_max_concurrency"]
    greedy = [threads.submit("10.0.0.1", ends.wait) for _ in range(20)]
    assert threads.submit("10.0.0.2", lambda: "served").result(10) == "served"
    assert sum(future.running() for future in greedy) <= 2
    assert LIMITS_REACHED.counts()["query_max_concurrency"] > before
    ends.set()
    assert all(future.result(10) for future in greedy)
    assert threads.submit("10.0.0.1", lambda: "again").result(10) == "again"
    threads.pool.shutdown()


def test_a_failure_is_the_futures_and_gives_the_thread_back() -> None:
    threads = QueryThreads(1)

    def fail() -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            threads.submit("10.0.0.1", fail).result(10)
    assert threads.submit("10.0.0.2", lambda: 1).result(10) == 1
    threads.pool.shutdown()


def test_what_is_cancelled_while_it_waits_never_runs() -> None:
    threads, ends = QueryThreads(2), threading.Event()
    ran: list[int] = []
    first = threads.submit("10.0.0.1", ends.wait)
    waiting = threads.submit("10.0.0.1", ran.append, 1)
    last = threads.submit("10.0.0.1", lambda: "last")
    assert waiting.cancel()
    ends.set()
    assert first.result(10)
    assert last.result(10) == "last"
    with pytest.raises(CancelledError):
        waiting.result(10)
    assert ran == []
    threads.pool.shutdown()

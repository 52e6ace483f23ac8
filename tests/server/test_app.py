"""The handler that `build_app` assembles."""

from __future__ import annotations

import asyncio
import itertools

from gpuscope.serve.app import build_app
from gpuscope.serve.http.messages import Request


def test_requests_that_wait_at_the_same_time_share_one_rendering_of_metrics() -> None:
    numbers = itertools.count(1)
    app = build_app([], own_metrics=lambda: b"%d" % next(numbers))

    async def ask() -> list[bytes]:
        queued = [Request("GET", "/metrics") for _ in range(3)]
        bodies = [(await app(request)).body for request in queued]
        # A request that arrives later sees what happened before it arrived.
        return [*bodies, (await app(Request("GET", "/metrics"))).body]

    assert asyncio.run(ask()) == [b"1", b"1", b"1", b"2"]

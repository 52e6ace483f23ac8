"""Look-ups beside the live picture: bounded waiting, one at a time."""

from __future__ import annotations

import asyncio

from gpuscope.serve.live.gone_nodes import HistoryLookup


def test_a_picture_does_not_wait_for_a_slow_history() -> None:
    started: list[int] = []

    async def run() -> list[int]:
        is_answered = asyncio.Event()

        async def look_up() -> None:
            started.append(len(started))
            await is_answered.wait()

        lookup = HistoryLookup(look_up, "failed", wait_seconds=0.01)
        await lookup.run()
        await lookup.run()
        while_waiting = list(started)
        is_answered.set()
        await lookup.run()  # the first one ends
        await lookup.run()
        return while_waiting

    assert asyncio.run(run()) == [0], "one at a time"
    assert started == [0, 1]

"""Runs a coroutine at once, as far as it goes without waiting; only what waits becomes a task.

Python 3.12 has eager tasks for this. Until a coroutine first waits it runs in no task, so before that it must
not ask for one: `asyncio.timeout()` does, and so do some HTTP clients.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


def run_eagerly(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """None if it is done."""
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return loop.create_task(_as_coroutine(work, waits_for))


async def _as_coroutine(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _rest(work, waits_for)


@types.coroutine
def _rest(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    failure: BaseException | None
    while True:
        value = failure = None
        try:
            value = yield waits_for
        except BaseException as error:
            failure = error
        # An error knows this frame, by its traceback, and the future that was waited for has it: to keep either
        # here is a cycle, and all that the failed work held would stay in memory until the next collection.
        waits_for = None
        try:
            waits_for = work.send(value) if failure is None else work.throw(failure)
        except StopIteration:
            return
        finally:
            failure = None

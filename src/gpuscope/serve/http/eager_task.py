"""Runs a coroutine as a task that starts immediately, instead of at the event loop's next iteration.

Python 3.12 has eager tasks for this. On 3.11 the task is created first and made the current task while the
first part of the coroutine runs: `asyncio.timeout()` and HTTP clients need a current task on every version.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Coroutine, Generator
from typing import Any


def run_eagerly(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> asyncio.Task[None] | None:
    """Returns None if the coroutine finished without waiting."""
    if sys.version_info >= (3, 12):
        task = asyncio.Task(coroutine, loop=loop, eager_start=True)
        if not task.done():
            return task
        task.result()
        return None
    return _run_first_part(coroutine, loop)


def _run_first_part(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> asyncio.Task[None] | None:
    first_awaited: list[Any] = []
    task = loop.create_task(_run_rest(coroutine, first_awaited))
    caller = asyncio.current_task(loop)
    # Private by name, but documented for those who run tasks themselves (asyncio, Extending).
    if caller is not None:
        asyncio.tasks._leave_task(loop, caller)
    asyncio.tasks._enter_task(loop, task)
    try:
        first_awaited.append(coroutine.send(None))
    except StopIteration:
        return None
    finally:
        asyncio.tasks._leave_task(loop, task)
        if caller is not None:
            asyncio.tasks._enter_task(loop, caller)
    return task


async def _run_rest(coroutine: Coroutine[Any, Any, None], first_awaited: list[Any]) -> None:
    if first_awaited:
        await _resume(coroutine, first_awaited.pop())


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    failure: BaseException | None
    while True:
        value = failure = None
        try:
            value = yield awaited
        except BaseException as error:
            failure = error
        # The error's traceback refers to this frame, and the awaited future refers to the error. Keeping either
        # in a local makes a cycle that holds the coroutine's objects until the next garbage collection.
        awaited = None
        try:
            awaited = coroutine.send(value) if failure is None else coroutine.throw(failure)
        except StopIteration:
            return
        finally:
            failure = None

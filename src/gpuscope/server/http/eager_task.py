"""Runs a coroutine immediately until it first waits; only then does it become a task.

Python 3.12 has eager tasks for this. Until the coroutine first waits there is no current task, so it must not
use functions that need one, such as `asyncio.timeout()` and some HTTP clients.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any


def run_eagerly(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> asyncio.Task[None] | None:
    """Returns None if the coroutine finished without waiting."""
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return loop.create_task(_as_coroutine(coroutine, awaited))


async def _as_coroutine(coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _rest(coroutine, awaited)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
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

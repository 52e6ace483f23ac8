"""Waits for a condition: the only place in the tests that sleeps.

A test that waits names the condition. It continues as soon as the condition is true, and fails after a time
that only a defect reaches, on the slowest machine too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

PATIENCE_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 0.001
MAX_PAUSE_SECONDS = 0.02

T = TypeVar("T")
Look = Callable[[], T | Literal[False] | None]


def wait_for(look: Look[T], what: str = "the condition", tell: Callable[[], object] = str) -> T:
    """Return the first true result of `look`; the message of a timeout ends with what `tell` returns."""
    for pause in _pauses():
        if found := look():
            return found
        time.sleep(pause)
    raise AssertionError(f"{what}: did not come true in {PATIENCE_SECONDS:g} s\n{tell()}")


async def wait_in_loop_for(look: Look[T], what: str = "the condition") -> T:
    """As `wait_for`, without blocking the event loop."""
    for pause in _pauses():
        if found := look():
            return found
        await asyncio.sleep(pause)
    raise AssertionError(f"{what}: did not come true in {PATIENCE_SECONDS:g} s")


def _pauses() -> Iterator[float]:
    """Short ones first: most conditions are true within milliseconds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while time.monotonic() < deadline:
        yield pause
        pause = min(2 * pause, MAX_PAUSE_SECONDS)

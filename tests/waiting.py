"""Waits for a condition: the one place in the tests that lets time pass.

A test that waits says for what; it goes on at once when that is there, and fails when it never comes. The limit
is so long that only something broken reaches it, on the slowest machine too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

PATIENCE_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 0.001
MAX_PAUSE_SECONDS = 0.02

T = TypeVar("T")


def wait_for(look: Callable[[], T], what: str = "the condition", tell: Callable[[], object] = str) -> T:
    """What `look` gives as soon as it gives something true; `tell` adds to the failure what is known then."""
    for pause in _pauses():
        if found := look():
            return found
        time.sleep(pause)
    raise AssertionError(f"{what}: did not come true in {PATIENCE_SECONDS:g} s\n{tell()}")


async def wait_in_loop_for(look: Callable[[], T], what: str = "the condition") -> T:
    """As `wait_for`, while the event loop goes on."""
    for pause in _pauses():
        if found := look():
            return found
        await asyncio.sleep(pause)
    raise AssertionError(f"{what}: did not come true in {PATIENCE_SECONDS:g} s")


def _pauses() -> Iterator[float]:
    """Short ones first: most of what is waited for is there in a moment."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while time.monotonic() < deadline:
        yield pause
        pause = min(2 * pause, MAX_PAUSE_SECONDS)

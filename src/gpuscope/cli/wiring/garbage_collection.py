"""Keeps the pauses of Python's garbage collector short in a process with very many objects.

A full collection stops all threads while it visits every object. With `freeze_survivors` each one visits only
objects that were made since the last one: the survivors are frozen, which means that no later collection visits
them. Reference counting still frees them; only reference cycles among them stay. When the frozen objects have
grown by half, `collect_all_if_grown` visits all of them. `paused_while_starting` saves the collections of
the start, which find no garbage among imported modules and loaded series.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

CHECK_INTERVAL_SECONDS = 60.0
MIN_GROWTH = 3_000_000
"""Objects, about 300 MB. A fleet of 1,000 nodes has half a million, none of them garbage; visiting a million
takes 0.6 s, in which everything stops."""


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


@contextmanager
def paused_while_starting() -> Iterator[None]:
    """No collections until `freeze_survivors`, or until the block ends."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def freeze_survivors() -> None:
    """Freeze what survives a full collection, from now on."""
    if _freeze not in gc.callbacks:
        gc.callbacks.append(_freeze)
    gc.collect()
    gc.enable()


def stop_freezing() -> None:
    if _freeze in gc.callbacks:
        gc.callbacks.remove(_freeze)
    gc.unfreeze()


def collect_all_if_grown(frozen_before: int) -> int:
    """Collect frozen objects too if they have grown by half since `frozen_before`; return the number to pass to
    the next call."""
    if gc.get_freeze_count() <= frozen_before + max(frozen_before // 2, MIN_GROWTH):
        return frozen_before
    gc.unfreeze()
    gc.collect()
    return gc.get_freeze_count()


async def collect_regularly() -> None:
    freeze_survivors()
    frozen = gc.get_freeze_count()
    while True:
        await asyncio.sleep(CHECK_INTERVAL_SECONDS)
        frozen = collect_all_if_grown(frozen)

"""Memory of a long-running process: glibc's malloc gives freed memory back, and garbage collection is rare."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

LARGE_BLOCK_BYTES = 4 << 20
KEPT_BYTES = 64 << 20

TRIM_INTERVAL_SECONDS = 60.0


def keep_one_heap() -> None:
    """Makes all threads share one heap. Call it before threads start.

    By default glibc gives each thread its own heap and reuses no memory across them. A server with 200 targets
    kept 174 MiB of freed pieces in 16 heaps and 40 MiB in one; they are smaller than a page, so `trim_heap`
    cannot return them. An agent with a thread per source saves about 1 MiB. The interpreter runs one thread at
    a time, so one shared heap delays no thread.
    """
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """Makes glibc return a block of 4 MiB or more to the system when it is freed.

    By default it raises this threshold up to 32 MiB, and the heap of each thread keeps smaller blocks: twenty
    finished remote writes of 31 MiB leave 450 MB allocated, and 80 MB with this.
    """
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        # A fixed threshold leaves the other one at 128 KiB: every query's arrays would go back to the system
        # and be faulted in again by the next query, which doubles the CPU time of `avg_over_time`.
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def trim_heap() -> None:
    """Returns freed memory between used blocks to the system, which glibc does only on request.

    After twenty heavy concurrent queries a server keeps half a gigabyte, and a third of that with this.
    """
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


async def trim_heap_regularly() -> None:
    while True:
        await asyncio.sleep(TRIM_INTERVAL_SECONDS)
        await asyncio.to_thread(trim_heap)


def _function(name: str) -> Any:
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)


# Keeps the pauses of Python's garbage collector short in a process with very many objects.
#
# A full collection stops all threads while it visits every object. With `freeze_survivors` each one visits
# only objects that were made since the last one: the survivors are frozen, which means that no later
# collection visits them. Reference counting still frees them; only reference cycles among them stay. When the
# frozen objects have grown by half, `collect_all_if_grown` visits all of them. `paused_while_starting` saves
# the collections of the start, which find no garbage among imported modules and loaded series.

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

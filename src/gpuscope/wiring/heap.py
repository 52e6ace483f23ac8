"""What glibc keeps of memory that was freed; other C libraries have none of this, and no need for it."""

from __future__ import annotations

import asyncio
from typing import Any

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

LARGE_BLOCK_BYTES = 4 << 20
KEPT_BYTES = 64 << 20

GIVE_BACK_SECONDS = 60.0


def keep_one_heap() -> None:
    """To be called before there are threads: glibc gives each a heap of its own, and none uses what another has
    freed, which costs an agent with a thread for every source some 1 MiB. The interpreter lets one thread run
    at a time, so that one heap makes nobody wait."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)


def return_large_blocks() -> None:
    """Have glibc give a large block back to the system when it is freed. By itself it raises the size from
    which it does so to 32 MiB, and the heap of each thread keeps the smaller ones: twenty remote writes of
    31 MiB, done with, are 450 MB, and 80 MB with this."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        # A fixed threshold leaves the other one at 128 KiB: every query's arrays would go back to the system
        # and be faulted in again by the next query, which doubles the CPU time of `avg_over_time`.
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back() -> None:
    """Freed memory between what is still in use: glibc returns it only when it is told to. A server keeps half
    a gigabyte after twenty heavy queries at once, and a third of that with this."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


async def give_back_regularly() -> None:
    while True:
        await asyncio.sleep(GIVE_BACK_SECONDS)
        await asyncio.to_thread(give_back)


def _function(name: str) -> Any:
    import ctypes

    return getattr(ctypes.CDLL(None), name, None)

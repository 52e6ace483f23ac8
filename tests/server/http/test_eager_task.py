"""A failed eager coroutine leaves no reference cycle."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from gpuscope.server.http.eager_task import run_eagerly


class Held:
    """Represents objects in the frames of the failed coroutine."""


def test_objects_of_a_failed_coroutine_are_freed_without_garbage_collection() -> None:
    held: list[weakref.ref[Held]] = []
    said: list[str] = []

    def fail() -> None:
        one = Held()
        held.append(weakref.ref(one))
        raise ValueError("refused")

    async def exchange() -> None:
        for _ in range(2):
            try:
                await asyncio.to_thread(fail)
            except ValueError as error:
                said.append(str(error))

    async def main() -> None:
        task = run_eagerly(exchange(), asyncio.get_running_loop())
        assert task is not None
        await task

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        assert said == ["refused", "refused"]
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()


def test_an_uncaught_error_ends_the_task() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("at the end")

    async def main() -> None:
        task = run_eagerly(fails(), asyncio.get_running_loop())
        assert task is not None
        with pytest.raises(ValueError, match="at the end"):
            await task

    asyncio.run(main())

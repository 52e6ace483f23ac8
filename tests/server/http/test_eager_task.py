"""A failed eager coroutine leaves no reference cycle."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from gpuscope.serve.http.eager_task import run_eagerly


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


def test_the_part_before_the_first_wait_has_a_task() -> None:
    """`asyncio.timeout()` needs one, and so does `asyncio.wait_for()` from Python 3.12 on."""
    seen: list[str] = []

    async def exchange() -> None:
        started_in = asyncio.current_task()
        never = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(0.001):
                await never
        except TimeoutError:
            seen.append("timed out")
        await asyncio.wait_for(asyncio.sleep(0), 60)
        assert asyncio.current_task() is started_in is not None

    async def main() -> None:
        started_from = asyncio.current_task()
        # A connection starts handlers from a callback, where no task is current.
        started: asyncio.Future[asyncio.Task[None] | None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: started.set_result(start()))
        task = await started
        assert task is not None
        await task
        assert asyncio.current_task() is started_from

    def start() -> asyncio.Task[None] | None:
        return run_eagerly(exchange(), asyncio.get_running_loop())

    asyncio.run(main())
    assert seen == ["timed out"]


def test_a_coroutine_that_waits_for_nothing_is_finished_at_once() -> None:
    done: list[bool] = []

    async def exchange() -> None:
        done.append(asyncio.current_task() is not None)

    def start() -> None:
        loop = asyncio.get_running_loop()
        assert run_eagerly(exchange(), loop) is None
        assert done == [True]

    async def main() -> None:
        asyncio.get_running_loop().call_soon(start)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert done == [True]

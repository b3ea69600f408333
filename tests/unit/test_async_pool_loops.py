"""`AsyncPool` and event loops: the one it belongs to, others, and what happens when Ctrl-C comes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from millpond.local.coroutines._pool import AsyncPool
from millpond.local.coroutines._task import AsyncTask
from waiting import HANG


async def echo(value: Any) -> Any:
    return value


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


def test_ctrl_c_in_a_task_stops_the_loop_and_settles_the_task() -> None:
    tasks: list[AsyncTask[None]] = []

    async def main() -> None:
        pool = AsyncPool(1)
        tasks.append(await pool.submit(fail, KeyboardInterrupt()))
        await asyncio.sleep(3600)

    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
        assert isinstance(tasks[0].exception(), KeyboardInterrupt)
        for each in asyncio.all_tasks(loop):
            each.cancel()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()


def test_a_pool_used_from_another_loop_or_thread_says_what_to_do() -> None:
    pool = AsyncPool(1)
    gate = threading.Event()

    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            await pool.submit(echo, 1)

    async def main() -> None:
        await pool.submit(gate.wait, HANG)
        thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        thread.start()
        await asyncio.to_thread(thread.join)
        errors: list[BaseException] = []

        def outside() -> None:
            try:
                pool.pause()
            except RuntimeError as error:
                errors.append(error)

        await asyncio.to_thread(outside)
        assert "run_coroutine_threadsafe" in str(errors[0])
        gate.set()
        await pool.drain()

    asyncio.run(main())


def test_a_pool_at_rest_may_move_to_a_new_loop_when_its_own_is_closed() -> None:
    pool = AsyncPool(1)
    pool.resize(2)
    assert asyncio.run(pool.run(double, 1)) == 2
    assert asyncio.run(pool.run(double, 2)) == 4
    with pytest.raises(RuntimeError, match="no event loop runs"):
        pool.map(double, [1])

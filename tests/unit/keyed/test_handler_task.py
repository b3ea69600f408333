"""Tasks of handlers know who cancelled them."""

from __future__ import annotations

import asyncio
import contextlib

from millpond.keyed.worker.handler_task import start
from waiting import HANG


async def run(handler) -> bool:
    """Run a handler in a task of its own; return whether that counts as cancelled by itself."""
    task = start(asyncio.get_running_loop(), handler())
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return task.has_cancelled_itself


def test_a_handler_that_cancels_its_task_has_cancelled_itself():
    async def handler() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(HANG)

    assert asyncio.run(run(handler))


def test_a_time_limit_inside_a_handler_does_not_count():
    """Else a job that is interrupted later, since its event loop ends, would have failed instead of being run again."""

    async def handler() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(HANG)

    assert not asyncio.run(run(handler))


def test_a_group_of_tasks_that_fails_inside_a_handler_does_not_count():
    async def fail() -> None:
        raise LookupError

    async def handler() -> None:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(HANG)

    assert not asyncio.run(run(handler))

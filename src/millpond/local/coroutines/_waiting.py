"""Waiting for futures so that none is left behind, and waking one that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any


class Wakeup:
    """Suspends one waiter until `wake()`; a wake-up that nobody waits for is lost."""

    __slots__ = ("waiter",)

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None

    def is_due(self) -> bool:
        """Return whether somebody waits who was not woken yet."""
        return self.waiter is not None and not self.waiter.done()

    async def wait(self) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            await self.waiter
        finally:
            self.waiter = None

    def wake(self, _: object = None) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


async def ends_within(timeout: float | None, awaitable: Awaitable[object]) -> bool:
    """Await something; return False when `timeout` seconds were not enough, which cancels it."""
    try:
        async with asyncio.timeout(timeout) as scope:
            await awaitable
    except TimeoutError:
        if scope.expired():
            return False
        raise
    return True


async def until_all_done(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all `futures` are done; their errors are not raised.

    When the caller is cancelled meanwhile, they are cancelled, waited for all the same, and then `CancelledError` is
    raised: so nothing runs on behind its back.
    """
    me = asyncio.current_task()
    pending = {each for each in futures if not each.done() and each is not me}
    cancellation: asyncio.CancelledError | None = None
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancellation = error
            pending = {each for each in pending if not each.done()}
            for each in pending:
                each.cancel()
    if cancellation is not None:
        try:
            raise cancellation
        finally:
            cancellation = None  # leave no cycle through the traceback

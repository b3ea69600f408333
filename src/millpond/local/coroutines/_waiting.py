"""Waiting for tasks so that none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any


async def until_done(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done; its error is not raised, and it is not cancelled when the wait is."""
    waiter: asyncio.Future[None] = future.get_loop().create_future()
    wake = partial(_wake, waiter)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        future.remove_done_callback(wake)


def _wake(waiter: asyncio.Future[None], _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def until_ended(futures: Iterable[asyncio.Future[Any]]) -> None:
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

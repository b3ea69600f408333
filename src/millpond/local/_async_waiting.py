"""Waiting for tasks so that none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def until_ended(futures: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all `futures` are done; their errors are not raised.

    When the caller is cancelled meanwhile, they are cancelled, waited for all the same, and then `CancelledError` is
    raised: so nothing runs on behind its back.
    """
    pending = {each for each in futures if not each.done()}
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

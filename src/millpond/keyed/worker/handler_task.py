"""The tasks in which coroutines of users run. They know who cancelled them.

A handler may be cancelled by its worker, which has its reasons (`RunningTake.lost`); by the end of the event loop, and
then it is run again elsewhere; or by itself, and by tasks that it has started. That is a failure like any other: else
the job would be run again at once, for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

_here: contextvars.ContextVar[asyncio.Task[Any] | None] = contextvars.ContextVar("millpond_handler", default=None)
"""The task of the handler, which those that it starts have with its context."""


class HandlerTask(asyncio.Task[None]):
    """A task for handlers."""

    has_cancelled_itself = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it, and note whether that comes from within."""
        if _here.get() is self:
            self.has_cancelled_itself = True
        return super().cancel(msg)

    def uncancel(self) -> int:
        """Take a cancellation back, as a time limit or a group of tasks inside a handler does: it was no failure."""
        left = super().uncancel()
        if not left:
            self.has_cancelled_itself = False
        return left


def start(loop: asyncio.AbstractEventLoop, run: Coroutine[Any, Any, None]) -> HandlerTask:
    """Run handlers in a task of their own."""
    return HandlerTask(_run(run), loop=loop)


async def _run(run: Coroutine[Any, Any, None]) -> None:
    _here.set(asyncio.current_task())
    await run

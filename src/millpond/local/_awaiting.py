"""A task that is awaited from the start, as by `pool.run(f, x)`: its hook is made with it and posts its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures._base import PENDING
from contextlib import contextmanager
from typing import Any

from millpond.local._loop_bridge import Awaited, Mailbox, open_mailbox
from millpond.local._task import _DEAF, Hook, Task, here


class AwaitHook(Hook):
    """Posts the end of a task to the loop that awaits it."""

    __slots__ = ("_awaited", "_mailbox")

    def __init__(self, awaited: Awaited[Any], mailbox: Mailbox) -> None:
        self.locks = self.callbacks = self.condition = None  # `Hook.__init__`, without a second call
        self.waiters = _DEAF
        self.published = PENDING
        self._awaited = awaited
        self._mailbox = mailbox

    def wake(self, task: Task[Any]) -> None:
        """Tell everybody who looks, and the loop."""
        if self.locks or self.callbacks or self.condition is not None:
            super().wake(task)
        self._mailbox.post(self._awaited)


@contextmanager
def without_blocking() -> Iterator[None]:
    """Let a full pool take note of a task instead of blocking this thread, which runs an event loop."""
    here.is_awaiting = True
    try:
        yield
    finally:
        here.is_awaiting = False


def await_from_the_start(task: Task[Any]) -> Awaited[Any]:
    """Return the asyncio future of a task that is in no line yet."""
    loop = asyncio.get_running_loop()
    awaited: Awaited[Any] = Awaited(loop=loop)
    awaited.task = task
    task._hook = AwaitHook(awaited, open_mailbox(loop))
    return awaited

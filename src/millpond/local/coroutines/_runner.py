"""The event loop of a pool, and the asyncio tasks that run in it for the pool; its subpools share it.

Each entry (a task, or a worker of a map) is run by an asyncio task of its own, in its own context. Where Python can
(3.12), its first step is taken right here (`eager_start`), so a coroutine that does not suspend never goes through the
loop (measured: half the cost). Before 3.12, and where the loop has a task factory, the coroutine is *primed*: its
first lines, which are ours, run by hand, so that a cancellation that comes before its first step is met by our code,
which counts the end; asyncio would throw it at a coroutine that never began, and the place would be lost.
"""

from __future__ import annotations

import asyncio
import sys
from contextvars import Context
from typing import Any

from millpond.local.coroutines._task import ABORTED, RUNNING, Entry

EAGER = sys.version_info >= (3, 12)


class LoopRunner:
    """Makes asyncio tasks in one loop, and knows which of them run."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.running: dict[asyncio.Task[None], Any] = {}
        self.starting: Entry | None = None  # what takes its first step right now

    def start(self, entry: Entry, name: str) -> None:
        """Run `entry` in an asyncio task; it may be done when this returns."""
        context = entry._context or Context()  # an empty one is not kept while the entry waits
        loop: Any = self.loop
        before, self.starting = self.starting, entry
        try:
            if EAGER and loop.get_task_factory() is None:
                task = asyncio.Task(  # type: ignore[call-arg]  # mypy is told to look with the eyes of 3.11
                    entry._perform(False), loop=loop, name=name, context=context, eager_start=True
                )
            else:
                task = _start_primed(entry, loop, name, context)
        except BaseException as error:  # the loop's task factory raised
            entry._stage = RUNNING
            entry._abort(error)
            return
        finally:
            self.starting = before
        if entry._stage == RUNNING:
            self.running[task] = entry
            was_cancelled, entry._asyncio_task = entry._asyncio_task, task
            if was_cancelled:
                task.cancel()

    def is_inside(self) -> bool:
        """Return whether the code that asks is a task of this pool."""
        return self.starting is not None or (bool(self.running) and asyncio.current_task() in self.running)

    def current(self) -> Any:
        """Return the entry that the code that asks belongs to; None when it is no task of this pool."""
        if self.starting is not None:
            return self.starting
        return self.running.get(asyncio.current_task()) if self.running else None  # type: ignore[arg-type]

    def is_current(self, entry: Entry) -> bool:
        task = entry._asyncio_task
        return entry is self.starting or (task is not None and task is asyncio.current_task())


def _start_primed(entry: Entry, loop: Any, name: str, context: Context) -> asyncio.Task[None]:
    body = entry._perform(True)
    body.send(None)
    try:
        if loop.get_task_factory() is None:
            return asyncio.Task(body, loop=loop, name=name, context=context)
        return loop.create_task(body, name=name, context=context)  # type: ignore[no-any-return]
    except BaseException:
        entry._stage = ABORTED
        body.close()
        raise

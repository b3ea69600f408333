"""The limiter under an `AsyncPool`: who runs now, and who waits.

Rules:

- A limiter has `max_workers` places. A task takes one when it starts and gives it back when it has ended; nothing else
  exists for it: there are no idle workers, so a pool at rest has no asyncio task and needs no closing to be forgotten.
- Everything starts in `start_waiting`, a callback of the loop of which at most one is on its way. So nothing of a task
  runs inside `submit`, a burst of submits and ends costs one callback, and a task cancelled right after its submit
  never starts. One such callback lasts about a millisecond at most, then the loop serves others. The one exception is
  `run`, whose caller does nothing but wait: with a place free and nobody queued, its call starts at once (3.12: 3.2 µs,
  not 9.7).
- A limiter may be below another one (a subpool): a task that gets a place here is queued there for a second one. The
  counts of a limiter include all limiters below it; `chain` is the way up to the root, itself included.

Rejected: worker coroutines for submitted calls. They share one asyncio task between calls, so whatever is keyed by
`current_task()` (scoped database sessions, re-entrant locks, cancel scopes) leaks from one call to the next. Only
`map` has them (`_eager_map.py`), where 0.15 µs against 4 µs per item is worth saying so.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, Protocol

from millpond._events import Observer, emit
from millpond.errors import PoolClosed
from millpond.local._queues import Queue
from millpond.local._statistics import Statistics
from millpond.local.coroutines._backlog import AsyncBacklog, Keys
from millpond.local.coroutines._runner import LoopRunner
from millpond.local.coroutines._task import DONE, QUEUED, RUNNING, AsyncTask, Entry

MAX_SECONDS = 0.001
"""How long one call of `start_waiting` may last."""


class Admission(Protocol):
    """Decides which tasks come into a bounded pool (`AsyncAdmission`)."""

    waiting: OrderedDict[Any, Any]

    async def admit(self, task: AsyncTask[Any], /) -> None: ...
    def try_admit(self, task: AsyncTask[Any], /) -> bool: ...
    def let_in(self) -> None: ...
    def forget(self, task: AsyncTask[Any], /) -> None: ...
    def close(self) -> None: ...


class MapInPool(Protocol):
    """A map whose items are all known (`EagerMap`)."""

    is_interrupted: bool
    workers: set[Any]

    def left(self) -> int: ...
    def completed(self) -> int: ...
    def yield_place(self) -> None: ...
    def cancel_rest(self) -> int: ...
    def stop(self) -> None: ...


class Limiter:
    """A number of places, and the queue for them."""

    def __init__(
        self,
        name: str,
        max_workers: int,
        make_queue: Callable[[], Queue],
        on_event: Observer | None,
        parent: Limiter | None = None,
    ) -> None:
        self.name = name
        self.max_workers = max_workers
        self.on_event = on_event
        self.parent = parent
        self.chain: tuple[Limiter, ...] = (self,) if parent is None else (self, *parent.chain)
        self.children: weakref.WeakSet[Limiter] = weakref.WeakSet()
        self.runner: LoopRunner = LoopRunner() if parent is None else parent.runner
        self.is_inside = self.runner.is_inside
        self.context: Context = copy_context()
        self.backlog = AsyncBacklog(make_queue)
        self.keys = Keys()
        self.admission: Admission | None = None
        self.maps: set[MapInPool] = set()
        self.watched: dict[
            AsyncTask[Any], Callable[[BaseException], None]
        ] = {}  # tasks of groups, which hear of errors
        # What reads the async sources of maps, and how to stop each.
        self.readers: dict[asyncio.Task[None], Callable[[BaseException], None]] = {}
        self.is_paused = self.is_closed = False
        self.is_refusing: bool = parent is not None and parent.is_refusing  # it is closed, or one above is
        self.held = 0  # places taken: by what runs and, below a parent, by what is queued up there
        self.unfinished = 0  # tasks queued or running
        self.running = self.completed = self.failed = self.cancelled = self.rejected = self.largest = 0
        self._idle: asyncio.Event | None = None  # made by the first who waits for it
        self._is_scheduled = False
        if parent is not None:
            parent.children.add(self)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to `loop` from now on, here and below."""
        self.runner.loop = loop
        self._is_scheduled = False
        for child in self.children:
            child.bind(loop)

    def add(self, task: AsyncTask[Any]) -> None:
        """Queue a new task, behind those of its key if it has one."""
        if self._enter(task) and (task.key is None or self.keys.add(task)):
            self.enqueue(task)

    def add_or_start(self, task: AsyncTask[Any]) -> None:
        """Start a new task right here if it is its turn, since its submitter does nothing but wait for it."""
        if (
            self.held < self.max_workers
            and not self.backlog.queue
            and not self.is_paused
            and self.parent is None
            and self.runner.starting is None  # else a deep recursion of calls would be one of Python frames
            and task.key is None
        ):
            if self._enter(task):
                self.held += 1
                self.start(task, None)
        else:
            self.add(task)

    def add_beside(self, task: AsyncTask[Any]) -> None:
        """Start a new task beside the limit: its submitter waits for it."""
        if self._enter(task) and (task.key is None or self.keys.add(task)):
            self.start(task, self)

    def _enter(self, task: AsyncTask[Any]) -> bool:
        """Count a new task; return False when its token was cancelled already."""
        if task._cancel_link is not None and task.done():
            self.count_cancelled()
            return False
        task._stage = QUEUED
        task._queued_at = self
        for node in self.chain:
            node.unfinished += 1
        return True

    def enqueue(self, entry: Entry) -> None:
        self.backlog.queue.put(entry)
        if self.maps and not self.backlog.is_fifo:
            for each in self.maps:
                each.yield_place()
        if not self._is_scheduled and self.held < self.max_workers:
            self.schedule()

    def schedule(self) -> None:
        loop = self.runner.loop
        if not self._is_scheduled and loop is not None:
            self._is_scheduled = True
            loop.call_soon(self.start_waiting, context=self.context)

    # -- starting -------------------------------------------------------------------------------------------------

    def start_waiting(self) -> None:
        """Start what is first in the queue, while there are places."""
        self._is_scheduled = False
        until = time.monotonic() + MAX_SECONDS
        started = 0
        while self.held < self.max_workers and not self.is_paused:
            try:
                entry = self.backlog.queue.take()
            except IndexError:
                return
            if entry._stage != QUEUED:
                self.backlog.skip(entry)
                continue
            if entry._limiter is not self and self._send_back(entry):
                continue
            self.held += 1
            if self.parent is None:
                self.start(entry, None)
            else:
                entry._queued_at = self.parent
                self.parent.enqueue(entry)
            started += 1
            if not started & 15 and time.monotonic() > until:
                self.schedule()
                return

    def _send_back(self, entry: Entry) -> bool:
        """Return an entry to a limiter below that was made smaller or paused since it gave it a place."""
        below = entry._limiter.chain[: -len(self.chain)]
        for at, node in enumerate(below):
            if node.is_paused or node.held > node.max_workers:
                entry._queued_at = node
                node.backlog.queue.put_back(entry)
                for each in below[at:]:
                    each.held -= 1
                return True
        return False

    def start(self, entry: Entry, queued_at: Limiter | None) -> None:
        """Start `entry`, which holds a place of each limiter below `queued_at` (None for all of them)."""
        entry._stage = RUNNING
        entry._queued_at = queued_at
        for node in entry._limiter.chain:
            node.running += 1
            if node.running > node.largest:
                node.largest = node.running
        self.runner.start(entry, self.name)

    def help(self, task: AsyncTask[Any]) -> AsyncTask[Any]:
        """Start a queued task, or the first of its key, beside the limit if a task of this pool waits for it here.

        Returns the one to wait for: that one, or `task` itself when nothing has to come before it.
        """
        if task._stage >= RUNNING or task.done() or not self.is_inside():
            return task
        first: AsyncTask[Any] = self.keys.first(task)
        if first is not task and self.runner.is_current(first):
            task.cancel()
            raise RuntimeError(
                f"a task with key {task.key!r} awaits another task of that key, which can start only after it, so that "
                "one was cancelled; await it elsewhere, or give it another key"
            )
        queued_at = first._queued_at
        if first._stage == QUEUED and queued_at is not None and queued_at.is_above_caller():
            queued_at.backlog.removed += 1
            self.start(first, queued_at)
        return first

    def is_above_caller(self) -> bool:
        """Return whether the caller is one of the tasks that this may run at once, and not paused."""
        entry = self.runner.current()
        return entry is not None and self in entry._limiter.chain and not self.is_paused

    @contextmanager
    def lend(self, task: AsyncTask[Any] | None = None) -> Iterator[None]:
        """Give up the places of the task that waits here, while it waits for one that has not started."""
        entry = self.runner.current() if task is None or task._stage < RUNNING else None
        chain = (
            ()
            if entry is None
            else itertools.takewhile(lambda node: node is not entry._queued_at, entry._limiter.chain)
        )
        held = [node for node in chain if node in self.chain]
        for node in held:
            node.held -= 1
            node.schedule()
        try:
            yield
        finally:
            for node in held:
                node.held += 1

    # -- ending ---------------------------------------------------------------------------------------------------

    def cancel_queued(self, task: AsyncTask[Any]) -> None:
        """Remove a task that was cancelled before it started."""
        if task._stage == QUEUED:
            self.leave(task, cancelled=1)
            task._call, task._args = None, ()
        elif self.admission is not None:  # it is new; its submitter may wait for room
            self.admission.forget(task)

    def leave(self, entry: Entry, *, tasks: int = 1, completed: int = 0, failed: int = 0, cancelled: int = 0) -> None:
        """Give back what `entry` held, which has ended or left the queue, and count it (a map's worker is no task)."""
        was_running = entry._stage == RUNNING
        queued_at = entry._queued_at
        entry._stage = DONE
        if entry._asyncio_task is not None:
            self.runner.running.pop(entry._asyncio_task, None)
            entry._asyncio_task = None
        elif not was_running and self.keys.first(entry) is entry:
            queued_at.backlog.count_removed()
        if entry._cancel_link is not None:
            entry._cancel_link.detach()
        if entry.key is not None:
            successor = self.keys.remove(entry)
            if successor is not None:
                self.enqueue(successor)
        holds = True
        for node in self.chain:
            holds = holds and node is not queued_at
            if holds:
                node.held -= 1
                if not node._is_scheduled and node.backlog.queue:
                    node.schedule()
            if was_running:
                node.running -= 1
            node.unfinished -= tasks
            node.completed += completed
            node.failed += failed
            node.cancelled += cancelled
            if node.admission is not None or node._idle is not None:
                node.notify()
        if cancelled:
            emit(self.on_event, "task_cancelled", self.name)

    def count_cancelled(self) -> None:
        for node in self.chain:
            node.cancelled += 1
        emit(self.on_event, "task_cancelled", self.name)

    def refusal(self) -> PoolClosed:
        name = next((node for node in self.chain if node.is_closed), self.chain[-1]).name
        return PoolClosed(f"pool {name!r} is shut down and takes no more tasks; submit before that, or await restart()")

    def is_idle(self) -> bool:
        return not self.unfinished and not self.maps

    async def wait_idle(self) -> None:
        while not self.is_idle():
            if self._idle is None:
                self._idle = asyncio.Event()
            await self._idle.wait()

    def notify(self) -> None:
        """Admit whoever waits for room, and wake those who wait for an idle pool, as far as it is so."""
        if self.admission is not None and self.admission.waiting:
            self.admission.let_in()
        if self._idle is not None and self.is_idle():
            self._idle.set()
            self._idle = None

    def statistics(self) -> Statistics:
        maps = list(self.maps)  # somebody may ask from another thread
        running_tasks = self.running - sum(len(each.workers) for each in maps)
        queued = self.unfinished - running_tasks + sum(each.left() for each in maps)
        completed = self.completed + sum(each.completed() for each in maps)
        return Statistics(
            name=self.name,
            kind="asyncio",
            max_workers=self.max_workers,
            workers=self.running,
            idle=0,
            queued=queued,
            running=self.running,
            submitted=queued + self.running + completed + self.cancelled,
            completed=completed,
            failed=self.failed,
            cancelled=self.cancelled,
            rejected=self.rejected,
            waiting_submitters=0 if self.admission is None else len(self.admission.waiting),
            largest=self.largest,
            state="closed" if self.is_closed else "paused" if self.is_paused else "open",
            queueing_delay=self.backlog.delay(self.runner.loop),
        )

    # -- managing -------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self.is_paused = True
        for each in self.maps:
            each.is_interrupted = True

    def resume(self) -> None:
        self.is_paused = False
        self.schedule()
        self.notify()

    def resize(self, max_workers: int) -> None:
        """Change the number of places; surplus ones go as their tasks end."""
        self.max_workers = max_workers
        for each in self.maps:
            each.is_interrupted = True
        self.schedule()
        self.notify()

    def purge(self) -> int:
        """Cancel what has not started, here and below; return how many."""
        purged: int = sum(child.purge() for child in list(self.children))
        tasks = [task for node in self.chain for task in node.backlog.tasks() if self in task._limiter.chain]
        tasks += self.keys.waiting()
        purged += sum(task.cancel() for task in reversed(tasks))  # so that no successor of a key is queued first
        return purged + sum(each.cancel_rest() for each in list(self.maps))

    def cancel_all(self) -> None:
        """Cancel what has not started and what runs, here and below."""
        self.purge()
        for each in list(self.maps):
            each.stop()
        for entry in list(self.runner.running.values()):
            if isinstance(entry, AsyncTask) and self in entry._limiter.chain:
                entry.cancel()

    def close(self) -> None:
        """Take no more tasks, here and below; start again what is paused, so that it can end."""
        if not self.is_closed:
            self.is_closed = True
            emit(self.on_event, "pool_closed", self.name)
        self._refuse()

    def _refuse(self) -> None:
        self.is_refusing = True
        if self.is_paused:
            self.resume()
        if self.admission is not None:
            self.admission.close()
        for stop_reading in list(self.readers.values()):
            stop_reading(self.refusal())
        for child in self.children:
            child._refuse()

    def reopen(self) -> None:
        self.is_closed = False
        self.is_refusing = self.parent is not None and self.parent.is_refusing
        for child in self.children:
            if not child.is_closed:
                child.reopen()

"""A subpool's crew: its workers are not threads but turns in the threads of the parent.

Such a worker stands in the parent's line as a task. When its turn comes it runs tasks of the subpool's own line for
a few milliseconds, then goes to the end of the parent's line again, so the parent's other work is not starved; with
nothing left to run it is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from millpond.local._task import CANCELLED, RAISED, Hook, Task, here
from millpond.local.threads._runner import Crew
from millpond.local.threads._worker import Worker, run

TURN = 0.005
"""Seconds after which a worker goes to the end of the parent's line."""


class SubCrew(Crew):
    """The crew of a subpool."""

    def __init__(self, parent: Crew, name: str, size: int) -> None:
        super().__init__(
            name=name,
            size=size,
            floor=0,
            make_line=parent.make_line,
            idle_timeout=0.0,
            carries_context=parent.carries_context,
            initializer=None,
            initargs=(),
            finalizer=None,
            recycle_after=None,
            observer=parent.observer,
        )
        self.parent = parent
        self.gate = self.admit_plain if parent.observer is not None else None

    @property
    def root(self) -> Crew:
        """The crew whose threads run these tasks."""
        return self.parent.root

    def refusal(self) -> Exception:
        """Return the error for a submit; the parent's when that is closed."""
        return self.parent.refusal() if self.parent.is_closed else super().refusal()

    def enlist(self) -> Worker:
        """Add a worker without a thread to the books (under the lock)."""
        worker = Worker(self)
        self.count += 1
        self.workers.add(worker)
        self.largest = max(self.largest, self.count)
        worker.take = self.taker(worker)
        return worker

    def start(self, worker: Worker) -> None:
        """Stand in the parent's line."""
        turn: Task[None] = _Turn()
        turn._fn = self._turn
        turn._args = (worker,)
        turn._owner = self.parent.owner
        turn._hook = _TurnHook(self, worker)
        try:
            if self.parent.is_closed:
                raise self.parent.refusal()
            self.parent.place(turn)
        except BaseException:
            self.strike(worker)
            self.purge()
            raise

    def _turn(self, worker: Worker) -> None:
        """Run tasks for a while, inside a task of the parent."""
        until = time.monotonic() + TURN
        here.worker.turn = worker
        try:
            self._work(worker, until)
        finally:
            here.worker.turn = None

    def _work(self, worker: Worker, until: float) -> None:
        while True:
            try:
                task = worker.take()
            except IndexError:
                if self._is_over(worker):
                    return
                continue
            if not self._run(worker, task):
                continue
            if time.monotonic() >= until and len(self.line):
                if self.parent.is_closed:
                    continue  # nobody new gets in there: go on
                self.start(worker)
                return

    def _run(self, worker: Worker, task: Task[Any]) -> bool:
        fn, task._fn = task._fn, None
        if fn is None:
            self.skip()
            return False
        run(task, fn)
        if task._status == CANCELLED:
            self.note_cancelled(task)
            return False
        worker.done += 1
        worker.failed += task._status == RAISED
        return True

    def _is_over(self, worker: Worker) -> bool:
        """Leave the books if there is nothing to take, or too many take."""
        with self.lock:
            if self.count > self.size + self.extra:
                self.count -= 1
            elif not self.is_spare(worker):
                return False
            self.strike_out(worker)
        self.tell_idlers()
        return True

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Lend this subpool a turn, and the parent a thread for it."""
        with self.parent.one_more(), super().one_more():
            yield

    def join(self, deadline: float | None = None) -> bool:
        """Wait until everything has ended; there are no threads to wait for."""
        return self.drain(None if deadline is None else max(0.0, deadline - time.monotonic()))


class _Turn(Task[None]):
    """A worker of a subpool in the parent's line."""

    __slots__ = ()

    is_place = True


class _TurnHook(Hook):
    """Notices when the parent drops a turn instead of running it."""

    __slots__ = ("_crew", "_worker")

    def __init__(self, crew: SubCrew, worker: Worker) -> None:
        super().__init__()
        self._crew = crew
        self._worker = worker

    def wake(self, task: Task[Any]) -> None:
        """Strike the worker out and cancel what would have waited for ever."""
        super().wake(task)
        if task.cancelled() or task._status == RAISED:
            self._crew.strike(self._worker)
            self._crew.purge()

"""The workers of a subpool: not threads but turns in the threads of its parent.

Such a worker has a place in the parent's queue. When its turn comes it runs tasks of the subpool's own queue for a few
milliseconds, then goes to the end of the parent's queue again, so the parent's other work is not starved; with nothing
left to run it is gone.
"""

from __future__ import annotations

import time
from contextvars import Context
from functools import partial
from typing import Any

from millpond._atomic import claim
from millpond.local._calls import run
from millpond.local._task import Task
from millpond.local._watchers import CANCELLED, RAISED, Watchers, here
from millpond.local.threads._runner import ThreadRunner
from millpond.local.threads._worker import Worker
from millpond.local.threads._workers import WorkerRules, Workers

TURN = 0.005
"""Seconds after which a worker goes to the end of the parent's queue."""


def make_runner(parent: ThreadRunner, name: str, max_workers: int) -> ThreadRunner:
    rules = WorkerRules(idle_timeout=0.0, carries_context=parent.carries_context)
    return ThreadRunner(
        name=name,
        make_queue=parent.backlog.make_queue,
        make_workers=lambda runner: Workers(
            runner, rules, partial(Turns, parent), min_workers=0, max_workers=max_workers
        ),
        on_event=parent.on_event,
        parent=parent,
    )


class Turns:
    """Starts a turn in the threads of the parent for each worker of a subpool."""

    def __init__(self, parent: ThreadRunner, workers: Workers) -> None:
        self._parent = parent
        self._workers = workers

    def start(self, worker: Worker) -> None:
        parent = self._parent
        turn = Turn()
        turn._fn = self._run_turn
        turn._context = context = Context() if parent.carries_context else None
        turn._args = (worker, context)
        turn._owner = parent.owner
        turn._watchers = _TurnWatchers(self, worker)
        worker.is_queued = True
        try:
            if parent.is_closed:
                raise parent.refusal()
            parent.place(turn)
        except BaseException:
            self.lose_turn(worker)
            raise

    def lose_turn(self, worker: Worker) -> None:
        """Remove a worker whose turn will never come, and cancel what nobody is left to run."""
        self._workers.remove(worker)
        if not self._workers.count:
            self._workers.runner.backlog.cancel_all()

    def _run_turn(self, worker: Worker, context: Context | None) -> None:
        """Run tasks for a while, inside a task of the parent."""
        until = time.monotonic() + TURN
        worker.is_queued = False
        inside = _innermost(here.worker)
        inside.turn = worker
        try:
            self._work(worker, until, context)
        finally:
            inside.turn = None
            inside.places += 1

    def _work(self, worker: Worker, until: float, context: Context | None) -> None:
        workers, backlog = self._workers, self._workers.runner.backlog
        while True:
            try:
                task = worker.take()
            except IndexError:
                if workers.is_dismissed(worker) or workers.may_leave(worker):
                    workers.runner.drainers.wake()
                    return
                continue
            fn = claim(task)
            if fn is None:
                backlog.skip(task)
                continue
            if context and task._context is None:  # an earlier task left something set: it is not to be seen
                task._context = Context()
            run(task, fn)
            if task._status == CANCELLED:
                backlog.note_cancelled(task, fn)
                continue
            worker.done += 1
            worker.failed += task._status == RAISED
            if (context or time.monotonic() >= until) and workers.has_work_for(worker):
                if any(each.is_closed for each in workers.runner.ancestors()):
                    continue  # nobody new gets in there: go on
                self.start(worker)
                return

    def join(self, deadline: float | None) -> bool:
        """Wait until everything has ended; there are no threads to wait for."""
        drainers = self._workers.runner.drainers
        return drainers.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


def _innermost(worker: Worker) -> Worker:
    """Return the worker that the current thread is being, in the subpool of a subpool too."""
    while worker.turn is not None:
        worker = worker.turn
    return worker


class Turn(Task[None]):
    """The place of a subpool's worker in the parent's queue: it is no task of the user's."""

    __slots__ = ()

    is_place = True


class _TurnWatchers(Watchers):
    """Notices when the parent drops a turn instead of running it."""

    __slots__ = ("_turns", "_worker")

    def __init__(self, turns: Turns, worker: Worker) -> None:
        super().__init__()
        self._turns = turns
        self._worker = worker

    def wake(self, task: Task[Any]) -> None:
        super().wake(task)
        if task._status in (CANCELLED, RAISED):
            self._turns.lose_turn(self._worker)

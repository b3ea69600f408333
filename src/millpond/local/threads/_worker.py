"""A worker: one thread that takes tasks and runs them. `work` is the hot loop; `_runner.py` tells the rules it follows.

The loop runs inside an empty `contextvars.Context`. A task whose submitter had no context variables set runs
right in it (saving 0.4 µs); if it leaves one set behind, the worker moves to a fresh context.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from millpond._atomic import FREE_THREADED, claim, pass_lock_of
from millpond._events import Observer
from millpond.local._backlog import Backlog
from millpond.local._calls import GivenUp, hide_frame, run_apart, store_error
from millpond.local._cancel import CancelToken
from millpond.local._drainers import Drainers
from millpond.local._task import OptionTask, Task
from millpond.local._watchers import CANCELLED, RAISED, RETURNED
from millpond.local._worker_queues import WorkerQueue

DEEPEST = 40
"""How many tasks a worker runs inside one another before it asks for another thread instead."""


class Runner(Protocol):
    """The runner of a pool, as far as its workers need it."""

    name: str
    lock: threading.RLock
    on_event: Observer | None
    admission: Any
    backlog: Backlog
    drainers: Drainers
    token: CancelToken
    put: Callable[[Task[Any]], None]
    is_closed: bool
    is_paused: bool
    broken: str | None
    last_fn: Any
    root: Any
    parent: Any
    carries_context: bool

    def hand_over(self, queue: WorkerQueue, /) -> None: ...
    def ancestors(self) -> Iterable[Any]: ...
    def is_idle(self) -> bool: ...
    def refusal(self) -> Exception: ...
    def mark_broken(self, reason: str) -> None: ...
    def fail_queued(self) -> None: ...


class Workers(Protocol):
    """All workers of a pool, as far as one of them needs that."""

    idle: list[_thread.LockType]
    idle_timeout: float

    def is_dismissed(self, worker: Worker) -> bool: ...
    def may_leave(self, worker: Worker) -> bool: ...
    def replace(self, worker: Worker) -> None: ...


def take_nothing() -> Task[Any]:
    """Stand in for `take` while there is nothing to take, whatever the queue holds."""
    raise IndexError("paused")


@dataclass(slots=True, eq=False, repr=False)
class Worker:
    """One thread of a pool, or one turn of a subpool in a thread of its parent."""

    runner: Runner
    workers: Workers
    take: Callable[[], Task[Any]] = take_nothing
    queue: Any = None
    thread: threading.Thread | None = None
    turn: Worker | None = None  # the worker of a subpool whose turn this thread is running
    lock: _thread.LockType = field(default_factory=_thread.allocate_lock)
    done: int = 0  # tasks run, those of `places` included
    failed: int = 0
    items: int = 0  # calls made inside a slice of a map
    places: int = 0  # places of maps and subpools run, which are no tasks of the user's
    depth: int = 0  # tasks that run inside one another
    is_lost: bool = False
    is_queued: bool = False  # it is a turn that has not come
    leaves: bool = False  # it was chosen to leave while it is idle

    def __post_init__(self) -> None:
        self.lock.acquire()  # held while awake: `wait_for_task` waits for somebody to release it

    @property
    def token(self) -> CancelToken:
        return self.runner.token if self.turn is None else self.turn.token

    @property
    def ended(self) -> int:
        """How many tasks of the user's it has run to their end."""
        return self.done - self.places + self.items

    def wait_for_task(self) -> Task[Any] | None:
        """Wait for a task; None when this worker is to leave."""
        runner, workers = self.runner, self.workers
        while True:
            if workers.is_dismissed(self):
                return None
            workers.idle.append(self.lock)
            try:
                task = self.take()
            except IndexError:
                pass
            else:
                self._stop_being_idle()
                return task
            if runner.is_closed:
                self._stop_being_idle()
                continue
            if runner.drainers:
                runner.drainers.wake()
            runner.last_fn = None
            if not self.lock.acquire(True, workers.idle_timeout):
                self._stop_being_idle()
                if workers.may_leave(self):
                    return None
            try:
                return self.take()
            except IndexError:
                continue

    def _stop_being_idle(self) -> None:
        try:
            self.workers.idle.remove(self.lock)
        except ValueError:
            self.lock.acquire()  # somebody chose this worker already: its wake-up is on its way

    def help(self, task: Task[Any], timeout: float | None) -> None:
        """Wait for `task` inside a task: run it here if this pool has it queued, so that it cannot deadlock."""
        owner = task._owner
        if getattr(owner, "root", None) is not self.runner.root:
            task._block(timeout)
        elif timeout is None and self.help_now(task):
            pass
        elif task._fn is None:
            task._block(timeout)
        else:  # too deep, or not to be run here, or not for so long: lend it a thread
            runner: Any = owner.runner if self.has_place_in(owner.runner) else self.runner.root
            with runner.workers.extra_worker():
                task._block(timeout)

    def may_hold_up(self, task: Any) -> bool:
        """Return whether a task is queued that may wait for this very thread."""
        return getattr(task, "_fn", None) is not None and getattr(task._owner, "root", None) is self.runner.root

    def has_place_in(self, runner: Runner) -> bool:
        """Return whether what runs in this thread is one of the tasks that this runner may run at once."""
        worker: Worker | None = self
        while worker is not None and worker.runner is not runner:
            worker = worker.turn
        return worker is not None

    def help_now(self, task: Task[Any]) -> bool:
        """Run `task` here if this pool has it queued; False when it has not, or it is not to be run here."""
        owner = task._owner
        if getattr(owner, "root", None) is not self.runner.root or self.depth >= DEEPEST or _has_time_limit(task):
            return False
        if owner.runner.is_paused or not self.has_place_in(owner.runner):
            return False
        if type(task) is OptionTask and task.key is not None:
            return self._run_up_to(task)
        fn = owner.claim(task)
        if fn is None:
            return False
        self.perform(task, fn)
        return True

    def _run_up_to(self, task: OptionTask[Any]) -> bool:
        """Run what waits for this worker up to a task with a key; False when another worker is to run it."""
        queue = task.queue
        if queue is None or queue.worker is None or not self._is(queue.worker):
            return False
        backlog = task._owner.runner.backlog
        while task._fn is not None and (found := backlog.take_next(queue.keyed.take)) is not None:
            self.perform(*found)
        return True

    def _is(self, other: Worker) -> bool:
        """Return whether this thread is that worker just now, in a turn of its subpool too."""
        worker: Worker | None = self
        while worker is not None and worker is not other:
            worker = worker.turn
        return worker is not None

    def extra_worker(self) -> Any:
        """Lend the pool one more worker for the length of a `with` block, in which this one waits."""
        return self.runner.root.workers.extra_worker()

    def perform(self, task: Task[Any], fn: Callable[..., Any]) -> None:
        self.depth += 1
        try:
            runner = task._owner.runner
            run_apart(task, fn, carries_context=runner.carries_context)
            if task._status == CANCELLED:
                runner.backlog.note_cancelled(task, fn)
            elif runner is self.runner:
                self.done += 1
                self.failed += task._status == RAISED
            else:  # of a subpool
                runner.workers.counts.add_past(1, task._status == RAISED)
        finally:
            self.depth -= 1

    def fail(self, task: Task[Any], error: BaseException) -> bool:
        """Store what the task raised, without our own frames; False when this worker was given up."""
        if type(error) is not GivenUp:
            store_error(task, error)
            self.failed += 1
            return True
        self.done -= 1  # the loop is about to count it, but others have settled it
        if task._status == CANCELLED:
            self.runner.backlog.note_cancelled(task, None)
        return not error.worker_is_lost

    def lose(self) -> None:
        """Give this worker up: its task does not end. Another takes its place."""
        self.is_lost = True
        if self.turn is not None:
            self.turn.lose()
        self.workers.replace(self)


def work(worker: Worker, context: Context | tuple[()]) -> bool:
    """Take and run tasks; return True to be called again in a fresh context, False to end."""
    has_gil = not FREE_THREADED
    while True:
        try:
            task = worker.take()
        except IndexError:
            next_task = worker.wait_for_task()
            if next_task is None:
                return False
            task = next_task
            del next_task
        if has_gil:
            fn, task._fn = task._fn, None  # whoever gets the function has the task: see `_backlog.py`
        else:
            fn = claim(task)
        if fn is None:
            worker.runner.backlog.skip(task)
            continue
        try:
            carried = task._context
            task._value = fn(*task._args) if carried is None else carried.run(fn, *task._args)
            task._args = task._context = None
            task._status = RETURNED
        except BaseException as error:
            if not worker.fail(task, error):
                return False
        worker.done += 1
        if not has_gil:
            pass_lock_of(task)  # between the status and the watchers: see `_task.py`
        if task._watchers is not None:
            task._watchers.wake(task)
        task = fn = carried = None  # type: ignore[assignment]  # keep nothing alive while idle
        if context:
            return True


hide_frame(work)


def _has_time_limit(task: Task[Any]) -> bool:
    return type(task) is OptionTask and task.timeout is not None

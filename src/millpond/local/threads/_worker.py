"""A worker: one thread that takes tasks and runs them. `work` is the hot loop; the rules it follows are in `_crew.py`.

The loop runs inside an empty `contextvars.Context`. A task whose submitter had no context variables set runs
right in it (saving 0.4 µs); if it leaves one set behind, the worker moves to a fresh context.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING, Any

from millpond.local._cancel import GivenUp, LimitedCall
from millpond.local._task import CANCELLED, RAISED, RETURNED, Task

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from contextvars import Context

    from millpond.local.threads._runner import Crew

DEEPEST = 40
"""How many tasks a worker runs inside one another before it asks for another thread instead."""


class Worker:
    """One thread of a crew."""

    __slots__ = (
        "__weakref__",
        "crew",
        "depth",
        "done",
        "failed",
        "goes_home",
        "is_lost",
        "items",
        "lock",
        "seat",
        "take",
        "thread",
        "turn",
    )

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.lock = _thread.allocate_lock()
        self.lock.acquire()  # held while awake: `rest` waits for somebody to release it
        self.done = 0
        self.failed = 0
        self.items = 0  # calls made inside a slice of a map, which is one task to this loop
        self.depth = 0
        self.is_lost = False
        self.goes_home = False
        self.turn: Worker | None = None  # the worker of a subpool that this one is being
        self.seat: Any = None
        self.take: Callable[[], Task[Any]] = nothing
        self.thread: threading.Thread | None = None

    # -- resting ------------------------------------------------------------------------------------------

    def rest(self) -> Task[Any] | None:
        """Wait for a task; None when this worker is to leave."""
        crew = self.crew
        while True:
            if crew.dismisses(self):
                return None
            crew.parked.append(self)
            try:
                task = self.take()
            except IndexError:
                pass
            else:
                self._unpark()
                return task
            if crew.is_closed:
                self._unpark()
                continue
            if crew.idlers:
                crew.tell_idlers()
            if not self.lock.acquire(True, crew.patience):
                self._unpark()
                if crew.lets_go(self):
                    return None
            try:
                return self.take()
            except IndexError:
                continue

    def _unpark(self) -> None:
        try:
            self.crew.parked.remove(self)
        except ValueError:
            self.lock.acquire()  # somebody chose this worker already: its wake-up is on its way

    # -- waiting for another task ---------------------------------------------------------------------------

    def help(self, task: Task[Any], timeout: float | None) -> None:
        """Wait for `task` inside a task: run it here if it is in this crew's line, so that it cannot deadlock."""
        crew = self.crew
        if getattr(task._owner, "root", None) is not crew:
            task._block(timeout)
            return
        if timeout is None and self.help_now(task):
            return
        if task._fn is None:
            task._block(timeout)
            return
        with task._owner.one_more():  # too deep, or not to be run here, or not for so long: lend it a thread
            task._block(timeout)

    def help_now(self, task: Task[Any]) -> bool:
        """Run `task` here if it is in this crew's line; False when it is not, or is not to be run here."""
        owner = task._owner
        if getattr(owner, "root", None) is not self.crew or self.depth >= DEEPEST or _has_limit(task):
            return False
        fn = owner.claim(task)
        if fn is None:
            return False
        self.perform(task, fn)
        return True

    def perform(self, task: Task[Any], fn: Callable[..., Any]) -> None:
        """Run a claimed task inside the one that is running."""
        self.depth += 1
        try:
            run(task, fn)
            if task._status == CANCELLED:
                self.crew.note_cancelled(task)
            else:
                self.done += 1
                self.failed += task._status == RAISED
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
            self.crew.note_cancelled(task)
        return not error.worker_is_lost

    def lose(self) -> None:
        """Give this worker up: its task does not end. Another takes its place."""
        self.is_lost = True
        if self.turn is not None:
            self.turn.lose()
        self.crew.replace(self)


def work(worker: Worker, home: Context | tuple[()]) -> bool:
    """Take and run tasks; return True to be called again in a fresh context, False to end."""
    while True:
        try:
            task = worker.take()
        except IndexError:
            next_task = worker.rest()
            if next_task is None:
                return False
            task = next_task
            del next_task
        fn, task._fn = task._fn, None  # the baton: see `_backlog.py`
        if fn is None:
            worker.crew.skip()
            continue
        try:
            context = task._context
            task._value = fn(*task._args) if context is None else context.run(fn, *task._args)
            task._args = task._context = None
            task._status = RETURNED
        except BaseException as error:
            if not worker.fail(task, error):
                return False
        worker.done += 1
        if task._hook is not None:
            task._hook.wake(task)
        task = fn = context = None  # type: ignore[assignment]  # keep nothing alive while resting
        if home:
            return True


def run(task: Task[Any], fn: Callable[..., Any]) -> None:
    """Run the call of a claimed task here and now, in whatever thread this is."""
    try:
        context = task._context
        value = fn(*task._args) if context is None else context.run(fn, *task._args)
    except GivenUp as gone:
        if gone.worker_is_lost:
            raise
    except BaseException as error:
        store_error(task, error)
        if task._hook is not None:
            task._hook.wake(task)
    else:
        task._settle(RETURNED, value)


def store_error(task: Task[Any], error: BaseException) -> None:
    """Store what a task raised, without our own frames (they would show, and keep things alive)."""
    clean_trace(error)
    task._args = task._context = None
    task._value = error
    task._status = RAISED


def clean_trace(error: BaseException) -> None:
    """Leave our own frames out of the traceback of a user's error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code in _OUR_CODE:
        trace = trace.tb_next
    error.__traceback__ = trace


_OUR_CODE = {work.__code__, run.__code__, LimitedCall.__call__.__code__}


def hide_frame(function: Any) -> None:
    """Leave frames of `function` out of the tracebacks of tasks."""
    _OUR_CODE.add(function.__code__)


def nothing() -> Task[Any]:
    """Stand in for `take` while there is nothing to take, whatever the line holds."""
    raise IndexError("paused")


def _has_limit(task: Task[Any]) -> bool:
    return isinstance(task._fn, LimitedCall) and task._fn.timeout is not None

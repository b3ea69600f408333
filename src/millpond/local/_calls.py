"""How the call of a task is made, and what may stand in the place of the user's function.

A plain task has the user's function itself. Options put wrappers around it, each a small object with the next call in
`fn`; `hide_frame` keeps them out of tracebacks. A wrapper that holds something for its task (a place in a bounded pool,
a place with its key) gives it back in `release`, when the call ends or, when the task is cancelled, by `release_all`.

A plain task of a bounded or observed pool gets no wrapper, since one more object for each would double the work of the
garbage collector: its function goes before its arguments, and in its place stands a `partial` of `run_admitted` or
`run_observed` that all tasks of the pool share. Whoever swaps it for None has the task, and either makes the call or
passes it to `release_all`, so the place is given back once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from time import perf_counter
from types import FunctionType
from typing import Any

from millpond._atomic import FREE_THREADED, take_away
from millpond._events import Event, Observer, report
from millpond.local._task import Task
from millpond.local._watchers import RAISED, RETURNED, here


class GivenUp(BaseException):
    """Thrown at a worker by a task that was settled without it; `worker_is_lost` says that it was replaced too."""

    def __init__(self, *, worker_is_lost: bool) -> None:
        super().__init__()
        self.worker_is_lost = worker_is_lost


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
        if task._watchers is not None:
            task._watchers.wake(task)
    else:
        task._settle(RETURNED, value)


def run_apart(task: Task[Any], fn: Callable[..., Any], *, carries_context: bool) -> None:
    """Run the call of a task inside something else: it sees nothing of its caller's token and, mostly, context."""
    if carries_context and task._context is None:
        task._context = Context()
    before = getattr(here, "token", None)
    here.token = None
    try:
        run(task, fn)
    finally:
        here.token = before


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
    error.with_traceback(trace)  # not by an assignment: a class may forbid those


_OUR_CODE = {run.__code__}


def hide_frame(function: Any) -> None:
    """Leave frames of `function` out of the tracebacks of tasks."""
    _OUR_CODE.add(function.__code__)


def run_admitted(leave: Callable[[], object], fn: Callable[..., Any], /, *args: Any) -> Any:
    try:
        return fn(*args)
    finally:
        leave()


def run_observed(on_event: Observer, pool: str, fn: Callable[..., Any], queued_at: float, /, *args: Any) -> Any:
    """Make a call and emit events: before, after, how long it took and how long it had waited."""
    name = fn.__qualname__ if type(fn) is FunctionType else name_of(fn)
    started = perf_counter()
    report(on_event, "task_started", pool, {"function": name, "waited": started - queued_at})
    try:
        value = fn(*args)
    except BaseException as error:
        seconds = perf_counter() - started
        report(on_event, "task_failed", pool, {"function": name, "seconds": seconds, "error": error})
        raise
    report(on_event, "task_finished", pool, {"function": name, "seconds": perf_counter() - started})
    return value


class Wrapper:
    """A call in the place of another one."""

    __slots__ = ("fn",)

    fn: Callable[..., Any]


class TimedCall(Wrapper):
    """A call that may end before its function does (see `threads/_time_limit.py`)."""

    __slots__ = ()


class HoldingCall(Wrapper):
    """A call that holds something for its task: a place in a bounded pool, or a place with its key."""

    __slots__ = ("_give_back", "_task")

    def __init__(self, fn: Callable[..., Any], give_back: Callable[[Any], object], task: Task[Any]) -> None:
        self.fn = fn
        self._give_back: Callable[[Any], object] | None = give_back
        self._task = task

    def __call__(self, *args: Any) -> Any:
        try:
            return self.fn(*args)
        finally:
            self.release()

    def release(self) -> None:
        """Give back what is held, once."""
        if FREE_THREADED:
            give_back = take_away(self, "_give_back")
        else:
            give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self._task)


class ObservedCall(Wrapper):
    """A call that emits events."""

    __slots__ = ("_on_event", "_pool", "_queued_at", "_started_at")

    def __init__(self, fn: Callable[..., Any], on_event: Observer, pool: str) -> None:
        self.fn = fn
        self._on_event: Observer | None = on_event
        self._pool = pool
        self._queued_at = self._started_at = perf_counter()

    def __call__(self, *args: Any) -> Any:
        self._started_at = perf_counter()
        return run_observed(self._report, self._pool, self.fn, self._queued_at, *args)

    def _report(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def give_up(self, error: BaseException) -> None:
        """Emit that the call failed, though it goes on, and nothing more of it."""
        on_event, self._on_event = self._on_event, None
        if on_event is not None:
            data = {"function": name_of(self.fn), "seconds": perf_counter() - self._started_at, "error": error}
            report(on_event, "task_failed", self._pool, data)


for _function in (run_admitted, run_observed, HoldingCall.__call__, ObservedCall.__call__):
    hide_frame(_function)


def hold(task: Task[Any], give_back: Callable[[Any], object]) -> None:
    """Call `give_back(task)` when the call of a task has ended, or its time is up, or it was cancelled."""
    call = task._fn
    if isinstance(call, TimedCall):  # inside it, so that it is given back when the time is up
        call.fn = HoldingCall(call.fn, give_back, task)
    else:
        task._fn = HoldingCall(call, give_back, task)


def release_all(call: Any) -> None:
    """Give back what a call holds that is not to be made, or was given up."""
    while isinstance(call, Wrapper):
        if isinstance(call, HoldingCall):
            call.release()
        call = call.fn
    if type(call) is partial and call.func is run_admitted:
        call.args[0]()


def give_up_observed(call: Any, error: BaseException) -> None:
    """Emit that a call failed which goes on, if it is observed."""
    while isinstance(call, Wrapper):
        if isinstance(call, ObservedCall):
            call.give_up(error)
        call = call.fn


def name_of(fn: Any) -> str:
    while isinstance(fn, Wrapper):
        fn = fn.fn
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__qualname__", None) or repr(fn)

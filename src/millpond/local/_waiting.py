"""Waiting for many futures: `wait` and `as_completed`, with the standard meaning and a tenth of the cost.

The standard ones lock every future twice. On our tasks, waiting for all of them is a walk along the list: whoever
is not done is waited for, and by then most of the others are. The first of many, and the order of completion, need
one callback for each task that is not done yet. Futures of other executors are taken too.

Inside a worker both help: tasks of the same pool that have not started are run right here. With a time-out they do not
(who knows how long that takes): a thread is lent to the pool instead.
"""

from __future__ import annotations

import _thread
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError, Future
from concurrent.futures._base import PENDING, RUNNING
from typing import Any, Generic, NamedTuple, TypeVar

from millpond._atomic import FREE_THREADED, pass_lock_of
from millpond.local._task import Task
from millpond.local._watchers import OPEN, here

T = TypeVar("T")


class DoneAndNotDone(NamedTuple):
    """What `wait` returns, like the standard library's."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


def wait(
    futures: Iterable[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone:
    """Wait for futures, with the meaning of `concurrent.futures.wait`; a worker that waits here helps."""
    every = set(futures)
    deadline = None if timeout is None else time.monotonic() + timeout
    if return_when == ALL_COMPLETED:
        _wait_all(every, deadline)
    elif return_when in (FIRST_COMPLETED, FIRST_EXCEPTION):
        _wait_first(every, deadline, errors_only=return_when == FIRST_EXCEPTION)
    else:
        raise ValueError(f"return_when must be FIRST_COMPLETED, FIRST_EXCEPTION or ALL_COMPLETED, not {return_when!r}")
    done = {future for future in every if future.done()}
    return DoneAndNotDone(done, every - done)


def as_completed(futures: Iterable[Future[T]], timeout: float | None = None) -> Iterator[Future[T]]:
    """Yield futures as they complete, with the meaning of `concurrent.futures.as_completed`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    arrivals = Arrivals(set(futures))
    total = len(arrivals.pending)
    del futures
    try:
        while arrivals.pending:
            yield arrivals.next(deadline)
    except TimeoutError:
        raise TimeoutError(f"{len(arrivals.pending)} (of {total}) futures unfinished") from None
    finally:
        arrivals.close()


class Sleeper:
    """Lets one thread sleep until others have something for it. They store that first, and then call `wake`.

    Without the GIL both sides go through the lock of this object between their store and their look.
    """

    __slots__ = ("_is_asleep", "_lock")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._is_asleep = False

    def wake(self) -> None:
        if FREE_THREADED:
            pass_lock_of(self)
        if self._is_asleep:
            self._is_asleep = False
            with contextlib.suppress(RuntimeError):  # two saw the same sleeper: one wake-up is enough
                self._lock.release()

    def sleep(self, has_come: Callable[[], bool], deadline: float | None) -> None:
        """Sleep until `wake`, unless it has come already; TimeoutError at the deadline. May return for nothing."""
        self._is_asleep = True
        if FREE_THREADED:
            pass_lock_of(self)
        if has_come():
            self._is_asleep = False
            return
        left = -1 if deadline is None else deadline - time.monotonic()
        if deadline is not None and left <= 0:
            raise TimeoutError
        self._lock.acquire(True, left)


class Arrivals(Generic[T]):
    """Futures, in the order in which they complete."""

    def __init__(self, futures: set[Future[T]]) -> None:
        self.pending = futures
        self._came: deque[Future[T]] = deque()
        self._sleeper = Sleeper()
        arrive = self._arrive
        for future in futures:
            if type(future) is Task and future._status != OPEN:
                self._came.append(future)
            elif isinstance(future, Task):
                future._add_listener(arrive)
            else:
                future.add_done_callback(arrive)

    def _arrive(self, future: Future[T]) -> None:
        self._came.append(future)
        self._sleeper.wake()

    def _has_come(self) -> bool:
        return bool(self._came)

    def next(self, deadline: float | None) -> Future[T]:
        """Wait for the next arrival; TimeoutError at the deadline."""
        while not self._came:
            worker = getattr(here, "worker", None)
            if worker is None:
                self._sleeper.sleep(self._has_come, deadline)
            elif deadline is not None:
                with worker.extra_worker():  # to help would take as long as it takes: lend a thread instead
                    self._sleeper.sleep(self._has_come, deadline)
            elif not self._help_one(worker):
                with worker.extra_worker() if any(map(worker.may_hold_up, self.pending)) else contextlib.nullcontext():
                    self._sleeper.sleep(self._has_come, None)
        future = self._came.popleft()
        self.pending.discard(future)
        return future

    def _help_one(self, worker: Any) -> bool:
        """Inside a worker: run one of these that its own pool has queued; False when there is none."""
        return any(
            isinstance(future, Task) and future._status == OPEN and worker.help_now(future) for future in self.pending
        )

    def close(self) -> None:
        """Leave nothing on the futures that are not done."""
        for future in self.pending:
            if not isinstance(future, Task):
                self._leave_standard(future)
            elif future._watchers is not None:
                future._watchers.drop_listener(self._arrive)

    def _leave_standard(self, future: Future[T]) -> None:
        with future._condition, contextlib.suppress(ValueError):
            if future._state in (PENDING, RUNNING):  # else they are being called: one out skips the next
                future._done_callbacks.remove(self._arrive)  # type: ignore[attr-defined]


def _wait_all(futures: set[Future[Any]], deadline: float | None) -> None:
    for future in futures:
        if type(future) is Task and future._status != OPEN:
            continue
        try:
            future.exception(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            if not future.done():
                return
        except CancelledError:
            pass


def _wait_first(futures: set[Future[Any]], deadline: float | None, *, errors_only: bool) -> None:
    arrivals: Arrivals[Any] = Arrivals(set(futures))
    try:
        while arrivals.pending:
            future = arrivals.next(deadline)
            if not errors_only or (not future.cancelled() and future.exception() is not None):
                return
    except TimeoutError:
        return
    finally:
        arrivals.close()

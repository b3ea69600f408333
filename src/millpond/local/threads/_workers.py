"""Who works in a pool: workers are hired, told what to take, and leave. The tasks' side of it is in `_crew.py`.

Everything here is a slow edge: nothing of it is called while tasks flow and workers are busy. `count` and `parked` are
read by `submit` without a lock; they are written under it, except that workers park themselves.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from millpond._events import emit, logger
from millpond.local._task import here
from millpond.local.threads._worker import Worker, nothing, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond._events import Observer
    from millpond.local._queues import Line
    from millpond.local._seats import Seats
    from millpond.local._task import Task
    from millpond.local._when_full import Bound
    from millpond.local.threads._runner import Crew
    from millpond.local.threads._scaling import Scaling


class Roster(ABC):
    """The workers of a crew."""

    line: Line

    def __init__(
        self,
        *,
        name: str,
        size: int,
        floor: int,
        idle_timeout: float | None,
        carries_context: bool,
        initializer: Callable[..., object] | None,
        initargs: tuple[Any, ...],
        finalizer: Callable[[], object] | None,
        recycle_after: int | None,
        observer: Observer | None,
    ) -> None:
        self.name = name
        self.size = size
        self.floor = floor
        self.extra = 0
        self.count = self.largest = 0
        self.parked: list[Worker] = []
        self.workers: set[Worker] = set()
        self.threads: set[threading.Thread] = set()  # also of workers that are just leaving
        self.abandoned: set[threading.Thread] = set()  # given up, since their task is past its time limit
        self.lock = threading.RLock()
        self.patience = -1.0 if idle_timeout is None else idle_timeout
        self.carries_context = carries_context
        self.initializer = initializer
        self.initargs = initargs
        self.finalizer = finalizer
        self.recycle_after = recycle_after
        self.observer = observer
        self.is_closed = False
        self.is_paused = False
        self.broken: str | None = None
        self.bound: Bound | None = None
        self.seats: Seats | None = None
        self.scaling: Scaling | None = None
        self.past_done = self.past_items = self.past_failed = 0  # the counts of workers that left
        self._names = itertools.count()

    # -- what the roster asks of the tasks' side ----------------------------------------------------------------------

    @abstractmethod
    def waiting(self) -> int:
        """Count the tasks in line."""

    @abstractmethod
    def tell_idlers(self) -> None:
        """Wake those who wait for idleness, if it has come."""

    @abstractmethod
    def take_back(self, tasks: tuple[Task[Any], ...]) -> None:
        """Take tasks out of the line of a closed crew again, and raise, if nobody will run them."""

    @abstractmethod
    def withdraw(self, task: Task[Any]) -> bool:
        """Atomically take a task out of line to cancel it; False when it has started or ended."""

    @abstractmethod
    def break_down(self, reason: str) -> None:
        """Refuse everything from now on: an initializer failed."""

    # -- hiring -------------------------------------------------------------------------------------------------------

    def wake(self, number: int, *tasks: Task[Any]) -> None:
        """Wake resting workers or start new ones for `number` tasks just put in line."""
        for _ in range(number):
            try:
                self.parked.pop().lock.release()
            except IndexError:
                if self.count >= self.size + self.extra:
                    return
                if not self.grow(*tasks):
                    return

    def grow(self, *tasks: Task[Any]) -> bool:
        """Start a worker if the sizing rule wants one; False when there is no need to ask again now.

        When the pool was closed under the hands of a submitter, its tasks are taken back and PoolClosed raised.
        """
        with self.lock:
            if self.is_closed or self.broken:
                self.take_back(tasks)
                return False
            if self.is_paused or self.count >= self.size + self.extra:
                return False
            if self.scaling is not None and not self.scaling.wants_more():
                return False
            try:
                self.hire()
            except RuntimeError:  # nobody is there to run them
                for task in tasks:
                    self.withdraw(task)
                raise
        return True

    def hire(self) -> None:
        """Add a worker and start it (under the lock, so that nobody waits for a thread that has not started)."""
        self.start(self.enlist())

    def enlist(self) -> Worker:
        """Add a worker to the books (under the lock)."""
        worker = Worker(cast("Crew", self))
        worker.thread = threading.Thread(
            target=_serve, args=(worker,), name=f"{self.name}_{next(self._names)}", daemon=True
        )
        self.count += 1
        self.workers.add(worker)
        if len(self.threads) > 2 * self.count + 16:
            self.threads = {thread for thread in self.threads if thread.ident is None or thread.is_alive()}
        self.threads.add(worker.thread)
        self.largest = max(self.largest, self.count)
        if self.seats is not None:
            self.seats.seat(worker)
        worker.take = self.taker(worker)
        return worker

    def start(self, worker: Worker) -> None:
        """Start the thread of an enlisted worker; when the system refuses, the crew goes on with who is there."""
        assert worker.thread is not None
        try:
            worker.thread.start()
        except RuntimeError as error:
            self.strike(worker)
            with self.lock:
                self.threads.discard(worker.thread)
            if not self.count:
                raise
            at_exit = "interpreter shutdown" in str(error)  # Python 3.12 lets none start then: nothing to warn of
            level = logging.DEBUG if at_exit else logging.WARNING
            logger.log(level, "pool %r could not start another thread: %s", self.name, error)

    def warm_up(self) -> None:
        """Start the workers that are always there."""
        with self.lock:
            for _ in range(self.floor - self.count):
                self.hire()

    # -- what a worker takes ------------------------------------------------------------------------------------------

    def taker(self, worker: Worker) -> Callable[[], Task[Any]]:
        """Return the function by which `worker` takes its next task, as things stand."""
        if self.is_paused:
            return nothing
        take = self.line.take if worker.seat is None else worker.seat.take
        if self.bound is not None:
            take = self.bound.letting_in(take)
        if self.recycle_after is not None:
            take = self._recycling(worker, take)
        if self.count > self.size + self.extra:
            take = self._shrinking(take)
        return take

    def retake(self) -> None:
        """Give every worker its `take` anew, since something about it has changed (under the lock)."""
        for worker in self.workers:
            worker.take = self.taker(worker)

    def _recycling(self, worker: Worker, take: Callable[[], Task[Any]]) -> Callable[[], Task[Any]]:
        def take_unless_worn() -> Task[Any]:
            if self.is_worn(worker):
                raise IndexError("recycled")
            return take()

        return take_unless_worn

    def _shrinking(self, take: Callable[[], Task[Any]]) -> Callable[[], Task[Any]]:
        def take_unless_surplus() -> Task[Any]:
            if self.count > self.size + self.extra:
                raise IndexError("surplus")
            return take()

        return take_unless_surplus

    def is_worn(self, worker: Worker) -> bool:
        """Tell whether `worker` has done its share and is to be replaced."""
        return self.recycle_after is not None and worker.done + worker.items >= self.recycle_after

    # -- leaving ------------------------------------------------------------------------------------------------------

    def dismisses(self, worker: Worker) -> bool:
        """Decide whether a worker with nothing to take leaves now: surplus, worn, or the pool is closed."""
        if worker.goes_home:
            worker.goes_home = False
            return self.lets_go(worker)
        if not (self.is_closed or self.count > self.size + self.extra or self.is_worn(worker)):
            return False
        with self.lock:
            surplus, worn = self.count > self.size + self.extra, self.is_worn(worker)
            if not (surplus or worn) and (not self.is_closed or not self.is_spare(worker)):
                return False
            if surplus or worn:
                self.count -= 1
            self.strike_out(worker)
            if surplus:
                self.retake()
        if self.waiting():
            self.wake(1)
        elif worn and self.count < self.floor:
            self.grow()
        return True

    def lets_go(self, worker: Worker) -> bool:
        """Decide whether a worker that has rested for `idle_timeout` leaves."""
        with self.lock:
            if self.count <= self.floor or not self.is_spare(worker):
                return False
            self.strike_out(worker)
            return True

    def send_home(self, number: int) -> None:
        """Let the workers that have rested longest leave."""
        for _ in range(number):
            try:
                worker = self.parked.pop(0)
            except IndexError:
                return
            worker.goes_home = True
            worker.lock.release()

    def is_spare(self, worker: Worker) -> bool:
        """Lower the count if that leaves no work behind: first lower it, then look (see the rules above)."""
        self.count -= 1
        has_work = bool(len(self.line)) if worker.seat is None else worker.seat.has_work()
        if has_work and not self.is_paused:
            self.count += 1
            return False
        return True

    def strike(self, worker: Worker) -> None:
        """Take a worker off the books, whatever it does; nothing happens when it is off already."""
        with self.lock:
            if worker in self.workers:
                self.count -= 1
                self.strike_out(worker)

    def strike_out(self, worker: Worker) -> None:
        self.workers.discard(worker)
        self.past_done += worker.done
        self.past_items += worker.items
        self.past_failed += worker.failed
        if self.seats is not None:
            self.seats.leave(worker)

    def replace(self, worker: Worker) -> None:
        """Go on without a worker whose task does not end."""
        with self.lock:
            worker.done += 1  # its task counts as ended, and as failed
            worker.failed += 1
            self.strike(worker)
            if worker.thread is not None:
                self.threads.discard(worker.thread)
                self.abandoned = {thread for thread in self.abandoned if thread.is_alive()} | {worker.thread}
        emit(self.observer, "worker_lost", self.name)
        with self.lock:
            if self.waiting():
                self.hire()
        if self.bound is not None:
            self.bound.let_in()
        self.tell_idlers()

    def wake_all(self) -> None:
        """Wake every resting worker."""
        while self.parked:
            try:
                self.parked.pop().lock.release()
            except IndexError:
                return

    def idle(self) -> int:
        """Count the workers that rest."""
        return min(len(self.parked), self.count)

    def catch_up(self) -> None:
        """Start workers for what waits already (after a resume, or with more room)."""
        for _ in range(self.waiting()):
            if self.parked or not self.grow():
                return

    def resize(self, size: int) -> None:
        """Change the number of workers; surplus ones leave as their tasks end."""
        with self.lock:
            keeps_all = self.floor == self.size
            self.size = size
            self.floor = size if keeps_all else min(self.floor, size)
            if self.seats is not None:
                self.seats.resize()
            self.retake()
        self.wake_all()
        if not self.is_closed:
            self.warm_up()
        self.catch_up()
        if self.bound is not None:
            self.bound.let_in()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Lend the crew one more worker for the length of a `with` block: one of it waits for what another must run."""
        with self.lock:
            self.extra += 1
        try:
            with self.lock:
                self.hire()
            yield
        finally:
            with self.lock:
                self.extra -= 1
                self.retake()
            self.wake_all()

    def join(self, deadline: float | None = None) -> bool:
        """Wait for every thread to end; False at the deadline."""
        while True:
            with self.lock:
                threads = {thread for thread in self.threads if thread is not threading.current_thread()}
            if not threads:
                return True
            for thread in threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    return False
            with self.lock:
                self.threads -= threads


def _serve(worker: Worker) -> None:
    """Be a worker thread."""
    crew = worker.crew
    here.worker = worker
    if crew.initializer is not None:
        try:
            if crew.carries_context:  # what it sets must not reach tasks, which see their submitter's context
                Context().run(crew.initializer, *crew.initargs)
            else:
                crew.initializer(*crew.initargs)
        except BaseException as error:
            logger.critical("the initializer of pool %r raised", crew.name, exc_info=True)
            crew.break_down(f"the initializer of pool {crew.name!r} raised {error!r}, so no task can run")
            crew.strike(worker)
            crew.fail_waiting()  # also what came in while this worker was still on the books
            return
    emit(crew.observer, "worker_started", crew.name)
    try:
        if crew.carries_context:
            again = True
            while again:
                home = Context()
                again = home.run(work, worker, home)
        else:
            work(worker, ())
    finally:
        crew.strike(worker)
        crew.tell_idlers()
        if crew.finalizer is not None and not sys.is_finalizing():
            try:
                crew.finalizer()
            except Exception:
                logger.exception("the finalizer of pool %r raised", crew.name)
        emit(crew.observer, "worker_stopped", crew.name)
        here.worker = None

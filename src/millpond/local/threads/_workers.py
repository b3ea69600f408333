"""The workers of a thread pool: when one is started, when it is idle, and when it leaves.

`count` and `idle` are read by `submit` without a lock; everything else happens under the runner's lock. The order of
steps that makes this safe is told in `_runner.py`.
"""

from __future__ import annotations

import threading
from _thread import LockType
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from operator import call
from typing import Any, Protocol

from millpond._atomic import length_now
from millpond._events import emit
from millpond._interrupts import shielded
from millpond.local._calls import release_all
from millpond.local._task import Task
from millpond.local.threads._counts import Counts
from millpond.local.threads._worker import Runner, Worker, take_nothing


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """What the workers of a pool are like."""

    idle_timeout: float | None = None
    carries_context: bool = True
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()
    finalizer: Callable[[], object] | None = None
    max_tasks_per_worker: int | None = None


class Scales(Protocol):
    """The sizing rule of a pool at work."""

    def wants_more(self) -> bool: ...
    def reset(self) -> None: ...


class Backend(Protocol):
    """What the workers of a pool are: threads, or turns in the threads of a parent."""

    def start(self, worker: Worker) -> None:
        """Start a worker that is counted already; one that cannot start is removed (under the lock)."""

    def join(self, deadline: float | None) -> bool:
        """Wait until every worker has ended; False at the deadline."""


class Workers:
    """The workers of a pool: threads, or turns in the threads of a parent."""

    def __init__(
        self,
        runner: Runner,
        rules: WorkerRules,
        make_backend: Callable[[Workers], Backend],
        *,
        min_workers: int,
        max_workers: int,
    ) -> None:
        self.runner = runner
        self.rules = rules
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.idle_timeout = -1.0 if rules.idle_timeout is None else rules.idle_timeout
        self.scaling: Scales | None = None
        self.largest = 0
        self.counts = Counts(self)
        self.backend = make_backend(self)
        self.reset()

    def reset(self) -> None:
        """Start without workers, as in a forked child, which has none of the parent's threads."""
        self.count = 0
        self.extra = 0  # how many more than `max_workers` there may be, since so many wait for others
        self.idle: list[LockType] = []  # the locks of those that are idle
        self.wakes = _wakes(self.idle)
        self.all: set[Worker] = set()
        self.threads: set[threading.Thread] = set()  # also of workers that are just leaving
        self.abandoned: set[threading.Thread] = set()  # given up, since their task is past its time limit
        if self.scaling is not None:
            self.scaling.reset()

    # -- starting -----------------------------------------------------------------------------------------------------

    def wake(self, number: int, *tasks: Task[Any]) -> None:
        """Wake idle workers or start new ones for `number` tasks just queued."""
        for _ in range(number):
            try:
                next(self.wakes)
            except IndexError:
                if self.count >= self.max_workers + self.extra or not self.grow(*tasks):
                    return

    def grow(self, *tasks: Task[Any]) -> bool:
        """Start a worker if the sizing rule wants one; False when there is no need to ask again now.

        When the pool was closed under the hands of a submitter, its tasks are taken back and PoolClosed raised.
        """
        runner = self.runner
        with runner.lock:
            if runner.is_closed or runner.broken:
                if not self.count and self._take_back(tasks):  # workers that are here empty the queue first
                    raise runner.refusal()
                return False
            if runner.is_paused or self.count >= self.max_workers + self.extra:
                return False
            if self.scaling is not None and not self.scaling.wants_more():
                return False
            self.start_for(*tasks)
        return True

    def start_for(self, *tasks: Task[Any]) -> None:
        """Start a worker for tasks just queued; if none can be started and there is none, take them back and raise."""
        try:
            self.start_one()
        except RuntimeError:
            self._take_back(tasks)
            raise

    def _take_back(self, tasks: tuple[Task[Any], ...]) -> bool:
        """Take tasks out of the queue again, since nobody is there to run them; False when none was left there."""
        taken_back = [self.runner.backlog.claim(task) for task in tasks]
        for fn in taken_back:
            release_all(fn)
        return any(fn is not None for fn in taken_back)

    def start_one(self) -> None:
        """Start a worker (under the lock, so that nobody waits for a thread that has not started)."""
        shielded(self._start_one)

    def _start_one(self) -> None:
        worker = Worker(self.runner, self)
        self.count += 1
        self.largest = max(self.largest, self.count)
        self.all.add(worker)
        self.give_queue(worker)
        self.backend.start(worker)

    def give_queue(self, worker: Worker) -> None:
        """Give a worker its queue, if workers have such, and its `take`."""
        queues = self.runner.backlog.worker_queues
        if queues is not None:
            worker.queue = queues.free() or queues.make_extra()
            queues.assign(worker.queue, worker)
        worker.take = self.taker(worker)

    def start_minimum(self) -> None:
        with self.runner.lock:
            for _ in range(self.min_workers - self.count):
                self.start_one()

    def catch_up(self) -> None:
        """Start workers for what waits already (after a resume, or with more room)."""
        self.start_for_keys()
        for _ in range(len(self.runner.backlog)):
            if self.idle or not self.grow():
                return

    def start_for_keys(self) -> None:
        """Start workers for tasks with a key whose worker is gone: no other one can run them."""
        queues = self.runner.backlog.worker_queues
        with self.runner.lock:
            while queues is not None and not self.runner.is_paused and queues.has_orphans():
                before = self.count
                self.start_one()
                if self.count == before:
                    return  # no thread is to be had

    @contextmanager
    def extra_worker(self, is_wanted: Callable[[], object] = lambda: True) -> Iterator[None]:
        """Allow one worker more for the length of a `with` block: one of them waits for what another must run.

        It is started now if it is wanted now, else for the first task that is queued meanwhile.
        """
        runner = self.runner
        with runner.parent.workers.extra_worker(is_wanted) if runner.parent is not None else nullcontext():
            with runner.lock:
                self.extra += 1
            try:
                if is_wanted():  # only now: what is queued from here on finds room for a worker
                    with runner.lock:
                        self.start_one()
                yield
            finally:
                with runner.lock:
                    self.extra -= 1
                    self.renew_takes()
                self.wake_all()

    # -- what a worker takes ------------------------------------------------------------------------------------------

    def taker(self, worker: Worker) -> Callable[[], Task[Any]]:
        """Return the function by which `worker` takes its next task, as things stand."""
        if self.runner.is_paused:
            return take_nothing
        take = self._plain_take(worker)
        if self.rules.max_tasks_per_worker is not None:
            take = _until_used_up(worker, self.rules.max_tasks_per_worker, take)
        if self.count > self.max_workers + self.extra:
            take = _unless(lambda: self._is_surplus(worker), take)
        return take

    def _plain_take(self, worker: Worker) -> Callable[[], Task[Any]]:
        take: Callable[[], Task[Any]] = self.runner.backlog.queue.take if worker.queue is None else worker.queue.take
        return take

    def renew_takes(self) -> None:
        """Give every worker its `take` anew, since something about it has changed (under the lock)."""
        for worker in self.all:
            worker.take = self.taker(worker)

    def sweep(self) -> None:
        """Sweep the backlog while no worker takes (under the lock)."""
        for worker in self.all:
            worker.take = take_nothing
        self.runner.backlog.sweep()
        self.renew_takes()
        self.wake_all()

    def _is_surplus(self, worker: Worker) -> bool:
        """Return whether there are too many workers and this one may go: it has no tasks that only it can run."""
        is_needed = worker.queue is not None and bool(worker.queue.keyed)
        return self.count > self.max_workers + self.extra and not is_needed

    def _is_used_up(self, worker: Worker) -> bool:
        limit = self.rules.max_tasks_per_worker
        return limit is not None and worker.ended >= limit

    # -- leaving ------------------------------------------------------------------------------------------------------

    def is_dismissed(self, worker: Worker) -> bool:
        """Decide whether a worker with nothing to take leaves now: surplus, used up, or the pool is closed."""
        if worker.leaves:
            worker.leaves = False
            return self.may_leave(worker)
        runner = self.runner
        if not (runner.is_closed or self._is_surplus(worker) or self._is_used_up(worker)):
            return False
        with runner.lock:
            surplus, used_up = self._is_surplus(worker), self._is_used_up(worker)
            if not (surplus or used_up) and (not runner.is_closed or not self._uncount(worker)):
                return False
            if used_up and not self._is_replaced(worker):
                return False
            if surplus or used_up:
                self.count -= 1
            self._forget(worker)
            if surplus:
                self.renew_takes()
            if runner.is_closed:  # nobody comes for what is left, as in an open pool
                self.start_for_left()
        if len(runner.backlog):
            self.wake(1)
        elif used_up and self.count < self.min_workers:
            self.grow()
        return True

    def _is_replaced(self, worker: Worker) -> bool:
        """Start a worker in the place of one that is used up, if there are tasks; False: none can be, so it goes on."""
        runner = self.runner
        if runner.broken or runner.is_paused or not len(runner.backlog) or self.count > self.max_workers:
            return True
        before, largest, queue = self.count, self.largest, worker.queue
        if queue is not None:
            queue.worker = None  # the next one gets it
        self.start_one()
        self.largest = largest  # for a moment there is one more
        if self.count > before:
            return True
        if queue is not None:
            queue.worker = worker
        worker.take = self._plain_take(worker)  # no thread is to be had
        return False

    def start_for_left(self) -> None:
        """Start workers for what nobody in a closed pool would take (under the lock)."""
        runner = self.runner
        if not runner.broken and not runner.is_paused:
            self.start_for_keys()
            if len(runner.backlog) and not self.count:
                self.start_one()

    def may_leave(self, worker: Worker) -> bool:
        """Decide whether a worker that has been idle for `idle_timeout` leaves."""
        with self.runner.lock:
            if self.count <= self.min_workers or not self._uncount(worker):
                return False
            self._forget(worker)
            return True

    def dismiss(self, number: int) -> None:
        """Dismiss the workers that have been idle longest."""
        for _ in range(number):
            try:
                lock = self.idle.pop(0)
            except IndexError:
                return
            worker_with(lock, self).leaves = True
            lock.release()

    def _uncount(self, worker: Worker) -> bool:
        """Lower the count if that leaves no work behind: first lower it, then look (see `_runner.py`)."""
        self.count -= 1
        if self.has_work_for(worker) and not self.runner.is_paused:
            self.count += 1
            return False
        return True

    def has_work_for(self, worker: Worker) -> bool:
        return bool(length_now(self.runner.backlog.queue)) if worker.queue is None else bool(worker.queue.has_work())

    def remove(self, worker: Worker, *, is_replaced: bool = True) -> None:
        """Remove a worker, whatever it does; nothing happens when it is removed already."""
        with self.runner.lock:
            if worker in self.all:
                self.count -= 1
                self._forget(worker, is_replaced=is_replaced)

    def _forget(self, worker: Worker, *, is_replaced: bool = True) -> None:
        """Keep only the counts of a worker that is gone, and start another one for tasks that only it could run."""
        self.all.discard(worker)
        self.counts.add_past(worker.ended, worker.failed)
        queue, queues = worker.queue, self.runner.backlog.worker_queues
        if queues is None or queue is None or queue.worker is not worker:
            return
        queues.leave(queue)
        if queue.is_leaving:
            self.runner.hand_over(queue)
        if queue.keyed and is_replaced and not self.runner.is_paused and not self.runner.broken:
            self.start_one()

    def replace(self, worker: Worker) -> None:
        """Go on without a worker whose task does not end."""
        runner = self.runner
        with runner.lock:
            if worker.turn is None:  # its task counts as ended, and as failed; a turn's task does so in its subpool
                worker.done += 1
                worker.failed += 1
            self.remove(worker)
            if worker.thread is not None:
                self.threads.discard(worker.thread)
                self.abandoned = {thread for thread in self.abandoned if thread.is_alive()} | {worker.thread}
        emit(runner.on_event, "worker_lost", runner.name)
        with runner.lock:
            if len(runner.backlog):
                self.start_one()
        runner.drainers.wake()

    def wake_all(self) -> None:
        while True:
            try:
                next(self.wakes)  # also in vain: through the lock of the list, as `wait_for_task` goes
            except IndexError:
                return


def _wakes(idle: list[LockType]) -> Iterator[None]:
    """Return what wakes, each time it is asked for the next, the worker that went idle last; IndexError: there is none.

    It is one call of C, between whose parts no signal handler runs: one that raised there would take away a worker that
    nobody could wake any more.
    """
    return map(LockType.release, map(idle.pop, repeat(-1)))


def worker_with(lock: LockType, workers: Workers) -> Worker:
    (worker,) = [each for each in list(workers.all) if each.lock is lock]
    return worker


def wake_if_idle(lock: LockType, idle: list[LockType]) -> bool:
    """Wake the worker with this lock; False when it is awake, or somebody else has just woken it."""
    steps: tuple[Callable[[], object], ...] = (partial(idle.remove, lock), lock.release)
    try:
        return not any(map(call, steps))  # both steps or none: see `_wakes`
    except ValueError:
        return False


def _until_used_up(worker: Worker, limit: int, take: Callable[[], Task[Any]]) -> Callable[[], Task[Any]]:
    """Return `take` for a worker that leaves after `limit` tasks."""

    def take_if_fresh() -> Task[Any]:
        if worker.done - worker.places + worker.items >= limit:
            raise IndexError("used up")
        return take()

    return take_if_fresh


def _unless(is_to_leave: Callable[[], bool], take: Callable[[], Task[Any]]) -> Callable[[], Task[Any]]:
    """Return `take` for a worker that takes nothing more once it is to leave."""

    def take_unless() -> Task[Any]:
        if is_to_leave():
            raise IndexError("leaving")
        return take()

    return take_unless

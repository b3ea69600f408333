"""The workers of a thread pool: when one is started, when it is idle, and when it leaves.

`count` and `idle` are read by `submit` without a lock; everything else happens under the runner's lock. The order of
steps that makes this safe is told in `_runner.py`.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from millpond._events import Observer, emit, logger
from millpond.local._watchers import RAISED, here
from millpond.local.threads._worker import Worker, take_nothing, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.local._backlog import Backlog
    from millpond.local._drainers import Drainers
    from millpond.local._task import Task
    from millpond.local._when_full import Admission
    from millpond.local._worker_queues import WorkerQueue


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


class Runner(Protocol):
    """The runner of a pool, as far as its workers need it."""

    name: str
    lock: threading.RLock
    on_event: Observer | None
    backlog: Backlog
    admission: Admission
    drainers: Drainers
    is_closed: bool
    is_paused: bool
    broken: str | None

    def take_back(self, tasks: tuple[Task[Any], ...]) -> None:
        """Take tasks out of the queue of a closed pool again, and raise, if nobody will run them."""

    def hand_over(self, queue: WorkerQueue) -> None:
        """Give the shared tasks of a worker's queue that goes to the others."""

    def mark_broken(self, reason: str) -> None:
        """Refuse everything from now on: an initializer failed."""

    def fail_queued(self) -> None:
        """Fail what waits in a broken pool."""


class Workers:
    """The threads of a pool."""

    def __init__(self, runner: Runner, rules: WorkerRules, *, min_workers: int, max_workers: int) -> None:
        self.runner = runner
        self.rules = rules
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.idle_timeout = -1.0 if rules.idle_timeout is None else rules.idle_timeout
        self.scaling: Scales | None = None
        self.largest = 0
        self.past_done = self.past_items = self.past_failed = 0  # the counts of workers that left
        self._names = itertools.count()
        self.reset()

    def reset(self) -> None:
        """Start without workers, as in a forked child, which has none of the parent's threads."""
        self.count = 0
        self.extra = 0  # how many more than `max_workers` there may be, since so many wait for others
        self.idle: list[Worker] = []
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
                self.idle.pop().lock.release()
            except IndexError:
                if self.count >= self.max_workers + self.extra:
                    return
                if not self.grow(*tasks):
                    return

    def grow(self, *tasks: Task[Any]) -> bool:
        """Start a worker if the sizing rule wants one; False when there is no need to ask again now.

        When the pool was closed under the hands of a submitter, its tasks are taken back and PoolClosed raised.
        """
        runner = self.runner
        with runner.lock:
            if runner.is_closed or runner.broken:
                runner.take_back(tasks)
                return False
            if runner.is_paused or self.count >= self.max_workers + self.extra:
                return False
            if self.scaling is not None and not self.scaling.wants_more():
                return False
            try:
                self.start_one()
            except RuntimeError:  # nobody is there to run them
                for task in tasks:
                    runner.backlog.claim(task)
                raise
        return True

    def start_one(self) -> None:
        """Start a worker (under the lock, so that nobody waits for a thread that has not started)."""
        self.start(self.enlist(self.make()))

    def make(self) -> Worker:
        """Make a worker with a thread."""
        worker = Worker(self.runner, self)
        worker.thread = threading.Thread(
            target=_serve, args=(worker, self), name=f"{self.runner.name}_{next(self._names)}", daemon=True
        )
        if len(self.threads) > 2 * self.count + 16:
            self.threads = {thread for thread in self.threads if thread.ident is None or thread.is_alive()}
        self.threads.add(worker.thread)
        return worker

    def enlist(self, worker: Worker) -> Worker:
        """Add a worker that is about to start."""
        self.count += 1
        self.all.add(worker)
        self.largest = max(self.largest, self.count)
        self.give_queue(worker)
        return worker

    def give_queue(self, worker: Worker) -> None:
        """Give a worker its queue, if workers have such, and its `take`."""
        queues = self.runner.backlog.worker_queues
        if queues is not None:
            worker.queue = queues.free() or queues.make_extra()
            queues.assign(worker.queue, worker)
        worker.take = self.taker(worker)

    def start(self, worker: Worker) -> None:
        """Start the thread of a worker; when the system refuses, the pool goes on with those that are there."""
        assert worker.thread is not None
        try:
            worker.thread.start()
        except RuntimeError as error:
            with self.runner.lock:
                self.threads.discard(worker.thread)
                self.count -= 1
                self.forget(worker, is_replaced=False)
            if not self.count:
                raise
            at_exit = "interpreter shutdown" in str(error)  # Python 3.12 lets none start then: nothing to warn of
            level = logging.DEBUG if at_exit else logging.WARNING
            logger.log(level, "pool %r could not start another thread: %s", self.runner.name, error)

    def start_minimum(self) -> None:
        """Start the workers that are always there."""
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
                self.start_one()

    @contextmanager
    def extra_worker(self) -> Iterator[None]:
        """Add one worker for the length of a `with` block: one of them waits for what another must run."""
        with self.runner.lock:
            self.extra += 1
        try:
            with self.runner.lock:
                self.start_one()
            yield
        finally:
            with self.runner.lock:
                self.extra -= 1
                self.renew_takes()
            self.wake_all()

    # -- what a worker takes ------------------------------------------------------------------------------------------

    def taker(self, worker: Worker) -> Callable[[], Task[Any]]:
        """Return the function by which `worker` takes its next task, as things stand."""
        if self.runner.is_paused:
            return take_nothing
        take = self.runner.backlog.queue.take if worker.queue is None else worker.queue.take
        if self.rules.max_tasks_per_worker is not None:
            take = _unless(lambda: self._is_used_up(worker), take)
        if self.count > self.max_workers + self.extra:
            take = _unless(lambda: self._is_surplus(worker), take)
        return take

    def renew_takes(self) -> None:
        """Give every worker its `take` anew, since something about it has changed (under the lock)."""
        for worker in self.all:
            worker.take = self.taker(worker)

    def stop_taking(self) -> None:
        """Let no worker take a task until `renew_takes` (under the lock)."""
        for worker in self.all:
            worker.take = take_nothing

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
            if surplus or used_up:
                self.count -= 1
            self.forget(worker)
            if surplus:
                self.renew_takes()
        if len(runner.backlog):
            self.wake(1)
        elif used_up and self.count < self.min_workers:
            self.grow()
        return True

    def may_leave(self, worker: Worker) -> bool:
        """Decide whether a worker that has been idle for `idle_timeout` leaves."""
        with self.runner.lock:
            if self.count <= self.min_workers or not self._uncount(worker):
                return False
            self.forget(worker)
            return True

    def dismiss(self, number: int) -> None:
        """Let the workers leave that have been idle longest."""
        for _ in range(number):
            try:
                worker = self.idle.pop(0)
            except IndexError:
                return
            worker.leaves = True
            worker.lock.release()

    def _uncount(self, worker: Worker) -> bool:
        """Lower the count if that leaves no work behind: first lower it, then look (see `_runner.py`)."""
        self.count -= 1
        has_work = bool(len(self.runner.backlog.queue)) if worker.queue is None else worker.queue.has_work()
        if has_work and not self.runner.is_paused:
            self.count += 1
            return False
        return True

    def remove(self, worker: Worker) -> None:
        """Remove a worker, whatever it does; nothing happens when it is removed already."""
        with self.runner.lock:
            if worker in self.all:
                self.count -= 1
                self.forget(worker)

    def forget(self, worker: Worker, *, is_replaced: bool = True) -> None:
        """Keep only the counts of a worker that is gone, and start another one for tasks that only it could run."""
        self.all.discard(worker)
        self.past_done += worker.done - worker.places
        self.past_items += worker.items
        self.past_failed += worker.failed
        queue, queues = worker.queue, self.runner.backlog.worker_queues
        if queues is None or queue is None or queue.worker is not worker:
            return
        queues.leave(queue)
        if queues.dedicated and queue.is_leaving:
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
        """Wake every idle worker."""
        while self.idle:
            try:
                self.idle.pop().lock.release()
            except IndexError:
                return

    def join(self, deadline: float | None = None) -> bool:
        """Wait for every thread to end; False at the deadline."""
        while True:
            with self.runner.lock:
                threads = {thread for thread in self.threads if thread is not threading.current_thread()}
            if not threads:
                return True
            for thread in threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    return False
            with self.runner.lock:
                self.threads -= threads

    # -- counting -----------------------------------------------------------------------------------------------------

    def idle_count(self) -> int:
        """Count the idle workers."""
        return min(len(self.idle), self.count)

    def ended(self) -> int:
        """Count the tasks that have ended."""
        with self.runner.lock:
            return self.past_done + self.past_items + sum(worker.ended for worker in self.all)

    def failed(self) -> int:
        """Count the tasks that raised."""
        with self.runner.lock:
            return self.past_failed + sum(worker.failed for worker in self.all)

    def count_run_elsewhere(self, task: Task[Any]) -> None:
        """Count a task that ended in a thread that is no worker of this pool."""
        with self.runner.lock:
            self.past_done += 1
            self.past_failed += task._status == RAISED


def _unless(is_to_leave: Callable[[], bool], take: Callable[[], Task[Any]]) -> Callable[[], Task[Any]]:
    """Return `take` for a worker that takes nothing more once it is to leave."""

    def take_unless() -> Task[Any]:
        if is_to_leave():
            raise IndexError("leaving")
        return take()

    return take_unless


def _serve(worker: Worker, workers: Workers) -> None:
    """Be a worker thread."""
    runner, rules = workers.runner, workers.rules
    here.worker = worker
    if rules.initializer is not None:
        try:
            if rules.carries_context:  # what it sets must not reach tasks, which see their submitter's context
                Context().run(rules.initializer, *rules.initargs)
            else:
                rules.initializer(*rules.initargs)
        except BaseException as error:
            logger.critical("the initializer of pool %r raised", runner.name, exc_info=True)
            runner.mark_broken(f"the initializer of pool {runner.name!r} raised {error!r}, so no task can run")
            workers.remove(worker)
            runner.fail_queued()  # also what came in while this worker was still there
            return
    emit(runner.on_event, "worker_started", runner.name)
    try:
        if rules.carries_context:
            again = True
            while again:
                context = Context()
                again = context.run(work, worker, context)
        else:
            work(worker, ())
    finally:
        workers.remove(worker)
        runner.drainers.wake()
        if rules.finalizer is not None and not sys.is_finalizing():
            try:
                rules.finalizer()
            except Exception:
                logger.exception("the finalizer of pool %r raised", runner.name)
        emit(runner.on_event, "worker_stopped", runner.name)
        here.worker = None

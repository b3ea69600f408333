"""What a `ProcessPool` and its I/O thread share: the tasks that wait, the counts, and the calls between them.

`submit` queues a task and wakes the I/O thread only when that waits for tasks; it takes no lock. What makes that safe,
with the GIL and (`_atomic.py`) without it:

- *No lost wake-up.* The I/O thread announces that it waits for tasks (`io.is_waiting`) and then looks at the queue;
  `submit` queues the task and then looks at the announcement. Both go through the lock of the queue, or for a task
  with a key through that of the pool.
- *No task runs twice*, or is run when it was cancelled: see `_backlog.py`.
- *No task is left behind.* The I/O thread ends under the lock, when the pool is closed and the queue is empty; a
  submitter that finds it gone takes its task back and says that the pool is closed.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from millpond._atomic import claim
from millpond._events import Observer, emit, logger
from millpond.errors import PoolClosed
from millpond.local import _exit_and_fork
from millpond.local._backlog import Backlog
from millpond.local._calls import ObservedCall, run
from millpond.local._drainers import Drainers
from millpond.local._queues import Queue
from millpond.local._statistics import Statistics
from millpond.local._task import OptionTask, Task
from millpond.local._task_owner import TaskOwner
from millpond.local._watchers import RAISED, here
from millpond.local._when_full import Admission, WhenFull
from millpond.local._worker_queues import WorkerQueue, WorkerQueues
from millpond.local.processes._callback_thread import CallbackThread
from millpond.local.processes._io_handle import IoHandle, IoThread
from millpond.local.processes._pickling import Encoder
from millpond.local.processes._run_times import RunTimes
from millpond.local.processes._task_records import TaskRecords
from millpond.local.processes._workers import WorkerRules, Workers, usable_context


class ProcessRunner:
    """The state that a pool and its I/O thread share. The thread keeps it alive, never the pool itself."""

    def __init__(
        self,
        *,
        name: str,
        min_workers: int,
        max_workers: int,
        rules: WorkerRules,
        make_queue: Callable[[], Queue],
        make_io_thread: Callable[[ProcessRunner], IoThread],
        max_queued: int | None = None,
        when_full: WhenFull = "block",
        on_event: Observer | None = None,
    ) -> None:
        self.name = name
        self.lock = threading.RLock()
        self.owner = TaskOwner(self)
        self.is_closed = self.is_paused = False
        self.is_interrupted = False  # the pool was left by Ctrl-C: the interpreter's exit does not wait for it
        self.broken: str | None = None
        self.encoder = Encoder()
        self.run_times = RunTimes()
        self.io = IoHandle(self, lambda: make_io_thread(self))
        self.backlog = Backlog(self, make_queue)
        self.put = self.backlog.put
        self.sweep_soon = partial(self.io.call_soon, self.backlog.sweep_if_due)  # the I/O thread alone takes tasks
        self.admission = Admission(self, max_queued, when_full)
        self.records = TaskRecords(self.lock, self.backlog, self.io.end_task, self.admission.leave_many)
        self.forget = self.records.forget
        self.hold_place = self.records.hold_place
        self.watch_token = self.records.watch_token
        self.workers: Workers = Workers(self, rules, min_workers=min_workers, max_workers=max_workers)
        self.use_worker_queues()
        self.drainers = Drainers(self.is_idle)
        self.has_left = self.drainers.wake
        self.callbacks = CallbackThread(name, on_event, self.drainers.wake)
        self.on_event: Observer | None = None if on_event is None else self.callbacks.observe
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        self.cancelled_items = 0
        self.admit: Callable[[Task[Any]], Task[Any]] | None = None
        self.last_fn: Any = None  # the last function that was checked; forgotten when nobody works
        self.set_admit()
        _exit_and_fork.register(self)

    def use_worker_queues(self) -> None:
        self.worker_queues = WorkerQueues(self.workers.max_workers, lambda: self.backlog.queue)
        self.backlog.worker_queues = self.worker_queues

    @property
    def max_workers(self) -> int:
        return self.workers.max_workers

    def set_admit(self) -> None:
        """Send submits through the rules if there are any; else they go straight to the queue (under the lock)."""
        if self.is_closed:
            self.admit = self.refuse
        elif self.on_event is not None:
            self.admit = self.admit_observed
        elif self.admission.max_queued is not None:
            self.admit = self.admit_bounded
        else:
            self.admit = None

    def admit_observed(self, task: Task[Any]) -> Task[Any]:
        task._context = perf_counter()  # for `task_started`: a task in another process has no context
        if self.admission.max_queued is not None:
            return self.admit_bounded(task)
        return self.admission.admit(task)

    def admit_bounded(self, task: Task[Any]) -> Task[Any]:
        """Admit a task as `submit` made it, in a bounded pool: `Admission.admit` and `place`, written out."""
        try:
            if not self.admission.enter(task):
                return self.admission.admit(task)
            self.records.admitted.add(task)
            self.put(task)
            if self.io.is_waiting:
                self.wake(task)
        except BaseException:
            self.admission.step_out(task)
            raise
        return task

    def refuse(self, task: Task[Any]) -> Task[Any]:
        raise self.refusal()

    def refusal(self) -> Exception:
        if self.broken:
            return BrokenProcessPool(self.broken)
        return PoolClosed(f"pool {self.name!r} is shut down and takes no more tasks; make a new one or restart() it")

    def place(self, task: Task[Any]) -> None:
        if type(task) is OptionTask and task.key is not None:
            with self.lock:
                self.worker_queues.put(task)
        else:
            self.put(task)
        if self.io.is_waiting:
            self.wake(task)

    def wake(self, *tasks: Task[Any]) -> None:
        """Wake or start the I/O thread for tasks just queued; if nobody will run them, take them back and raise."""
        try:
            error = None if self.io.wake() else self.refusal()
        except Exception as failure:  # the system refuses a thread, or its sockets
            error = failure
        if error is not None:
            taken_back = [task for task in tasks if self.backlog.claim(task) is not None]
            for task in taken_back:
                self.forget(task)
            if taken_back or not isinstance(error, PoolClosed | BrokenProcessPool):
                raise error

    def workers_that_count(self) -> int:
        """Return how many tasks may run besides those that wait: those that run now, in a paused pool."""
        return self.workers.busy() if self.is_paused else self.workers.max_workers

    def is_inside(self) -> bool:
        return False  # no thread is a worker of this pool

    def run_here(self, task: Task[Any]) -> None:
        """Run a task in the calling thread; Ctrl-C in it is also the caller's."""
        fn = claim(task)
        task._context = None
        run(task, fn if self.on_event is None else ObservedCall(fn, self.on_event, self.name))
        has_failed = task._status == RAISED
        self.records.count_ended(1, int(has_failed))
        if has_failed and isinstance(task._value, KeyboardInterrupt) and getattr(here, "worker", None) is None:
            raise task._value

    def is_idle(self) -> bool:
        """Return whether nothing waits, nobody works and every callback has been called."""
        return not self.io.is_working and not len(self.backlog) and self.callbacks.is_idle

    def waiting_calls(self) -> int:
        """Count the calls that any worker may run: the shared queue, and the items of the maps that stand there."""
        return self.backlog.shared() + self._waiting_items() if len(self.backlog.queue) else 0

    def _waiting_items(self) -> int:
        with self.lock:
            return int(sum([each.waiting() for each in list(self.maps)]))

    def statistics(self) -> Statistics:
        workers, records = self.workers, self.records
        with self.lock:
            loads = [worker.load for worker in workers.all]
            running = sum([load > 0 for load in loads])
            queued = len(self.backlog) + sum(loads) - running + self._waiting_items()
            cancelled = self.backlog.cancelled + self.cancelled_items + self.admission.dropped
            state = "broken" if self.broken else "closed" if self.is_closed else "paused" if self.is_paused else "open"
            return Statistics(
                name=self.name,
                kind="processes",
                max_workers=workers.max_workers,
                workers=workers.count,
                idle=workers.count - running,
                queued=queued,
                running=running,
                submitted=queued + running + records.completed + cancelled,
                completed=records.completed,
                failed=records.failed,
                cancelled=cancelled,
                rejected=self.admission.rejected,
                waiting_submitters=self.admission.waiting,
                largest=workers.largest,
                state=state,
                queueing_delay=self.backlog.probe(),
            )

    def pause(self) -> None:
        """Start no more tasks; what is on its way to a worker and not started comes back."""
        with self.lock:
            self.is_paused = True
            for worker in self.workers.all:
                if not worker.has_keys:
                    worker.skip_rest()
            if self.io.running is not None:
                self.io.call_soon(self.io.running.recall_all)

    def resume(self) -> None:
        with self.lock:
            if not self.is_paused:
                return
            self.is_paused = False
            if self.io.running is not None or len(self.backlog):
                self.wake()
        self.admission.let_in()

    def purge(self) -> int:
        with self.lock:
            maps = list(self.maps)
        return int(sum([each.cancel() for each in maps])) + self.backlog.cancel_all()

    def resize(self, max_workers: int) -> None:
        workers = self.workers
        with self.lock:
            workers.max_workers = max_workers
            workers.min_workers = min(workers.min_workers, max_workers)
            self.worker_queues.resize(max_workers, _worth)
            if self.io.running is not None:
                self.wake()
        self.admission.let_in()

    def close(self, *, cancel_queued: bool = False) -> None:
        with self.lock:
            was_closed, self.is_closed = self.is_closed, True
            self.set_admit()
        if not was_closed:
            emit(self.on_event, "pool_closed", self.name)
        if cancel_queued:
            self.purge()
        self.resume()
        with self.lock:
            if self.io.running is not None:
                self.wake()
            else:
                self.callbacks.end()
        self.admission.let_in()

    def reopen(self) -> None:
        with self.lock:
            if not self.is_closed:
                return
            self.is_closed = self.is_interrupted = self.is_paused = False
            self.broken = None
            self.callbacks.stay()
            self.set_admit()
        if self.workers.min_workers:
            self.wake()

    def mark_broken(self, reason: str) -> None:
        """Refuse everything from now on and fail what waits: the pool cannot get a worker."""
        with self.lock:
            self.broken = reason
            self.is_closed = True
            self.set_admit()
        for task, _ in self.backlog.take_all():
            if not task.is_place:
                self.forget(task)
                self.records.count_ended(1, 1)
            task._settle(RAISED, BrokenProcessPool(reason))
        self.admission.let_in()

    def kill(self) -> None:
        with self.lock:
            self.is_interrupted = True
            self.workers.kill_all()
            if self.io.running is not None:
                self.io.wake()

    def join(self, deadline: float | None = None) -> bool:
        return self.io.join(deadline) and self.callbacks.join(deadline)

    def can_finish(self) -> bool:
        """See that somebody works off what is queued; False when nobody can, or Ctrl-C ends the program."""
        if was_interrupted():
            self.kill()
            return False
        try:
            self.resume()
            if self.io.running is None and len(self.backlog):
                self.wake()
        except Exception as error:
            logger.error("pool %r leaves %d tasks undone at exit: %s", self.name, len(self.backlog), error)
            return False
        return True

    def finish_queued(self) -> None:
        self.drainers.wait(None)

    def after_fork(self) -> None:
        """Go on in a forked child: its workers and the tasks submitted before are the parent's."""
        here.defer = None  # this thread may have been the parent's I/O thread
        self.lock = threading.RLock()
        self.owner.is_forked = True
        self.owner = TaskOwner(self)
        self.workers.close_all()
        self.workers.rules = replace(self.workers.rules, context=usable_context(self.workers.rules.context))
        self.io.after_fork()
        self.backlog.reset()
        self.put = self.backlog.put
        self.use_worker_queues()
        self.records.reset(self.lock)
        self.drainers.reset()
        self.callbacks.reset()
        self.admission.reset()
        failure = PoolClosed("this map was started before the fork and is the parent's; start it again here")
        for each in list(self.maps):
            each.end_after_fork(failure)


def was_interrupted() -> bool:
    """Return whether a script is ending because of Ctrl-C; in a console the last error may be long past."""
    return getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")


def _worth(queue: WorkerQueue) -> tuple[int, int]:
    """Return by how much a worker's queue is worth keeping when the pool shrinks: idle workers leave first."""
    worker = queue.worker
    return len(queue.keyed), 0 if worker is None else 1 + len(worker.in_flight)

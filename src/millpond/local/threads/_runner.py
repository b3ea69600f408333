"""What a `ThreadPool` and its threads share. With `threads/_worker.py`, this is the hot path.

`submit` queues a task and wakes an idle worker; a worker takes the next task and runs it. Neither takes a lock. What
makes that safe, with the GIL and (`_atomic.py`) without it:

- *No lost wake-up.* `submit` queues the task and then looks for an idle worker; a worker announces that it is idle
  (`workers.idle`) and then looks at the queue once more. When it finds a task it withdraws the announcement, and if
  somebody already took that, swallows the wake-up that is on its way. Both go through the lock of the queue.
- *No lost worker.* A worker that leaves first lowers `workers.count` and then looks at the queue; `submit` looks at
  `count` after queueing. So either it sees that a worker is missing, or the worker sees the task and stays. Both go
  through the lock of the queue.
- *No missed end of the pool.* `close`, `resume` and `resize` change what a worker looks at, and then wake all that are
  idle; a worker announces that it is idle, and then looks. Both go through the lock of `workers.idle`.
- *No missed idleness.* `drain` writes itself down and then asks `is_idle`; whoever may have made the pool idle looks
  for drainers afterwards. Both go through the lock of their list.
- *No task runs twice.* See `_backlog.py`.

Odd states cost the loop nothing either: `worker.take` is a slot, and pause, shrinking, recycling, keys and dedicated
queues each put another function there. `admit` is a slot too: None while tasks may go straight to the queue.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures.thread import BrokenThreadPool
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

from millpond._atomic import claim
from millpond._events import Observer, emit
from millpond.errors import PoolClosed
from millpond.local import _exit_and_fork
from millpond.local._backlog import Backlog
from millpond.local._calls import hold, release_all, run_apart, run_observed
from millpond.local._cancel import CancelToken
from millpond.local._drainers import Drainers
from millpond.local._queues import Queue
from millpond.local._statistics import Statistics
from millpond.local._task import OptionTask, Task
from millpond.local._task_owner import TaskOwner
from millpond.local._verbs import ErrorLogger
from millpond.local._watchers import RAISED, here
from millpond.local._when_full import Admission, WhenFull
from millpond.local.threads._placement import Placement
from millpond.local.threads._worker import Worker
from millpond.local.threads._workers import Workers

NO_THREAD_AT_EXIT = sys.version_info[:2] == (3, 12)
LOOK = 0.05
"""Seconds after which the exit looks whether something is left for it to run."""


class ThreadRunner:
    """The state that a pool and its threads share. The threads keep it alive, never the pool itself.

    It has at most 29 attributes of its own: CPython finds more than that by their hash only, which `submit` would feel.
    """

    hold_place = staticmethod(hold)

    def __init__(
        self,
        *,
        name: str,
        make_queue: Callable[[], Queue],
        make_workers: Callable[[ThreadRunner], Workers],
        max_queued: int | None = None,
        when_full: WhenFull = "block",
        is_dedicated: bool = False,
        on_event: Observer | None = None,
        parent: ThreadRunner | None = None,
    ) -> None:
        self.name = name
        self.on_event = on_event
        self.parent = parent  # of a subpool
        self.root: ThreadRunner = self if parent is None else parent.root  # whose threads run the tasks
        self.lock = threading.RLock()
        self.owner = TaskOwner(self, self.root)
        self.is_closed = self.is_paused = False
        self.is_interrupted = False  # the pool was left by Ctrl-C: the interpreter's exit does not wait for it
        self.broken: str | None = None
        self.token = CancelToken()
        self.backlog = Backlog(self, make_queue)
        self.put = self.backlog.put
        self.admission = Admission(self, max_queued, when_full)
        self.drainers = Drainers(self.is_idle)
        self.has_left = self.drainers.wake
        self.workers = make_workers(self)
        self.sweep_soon = self.workers.sweep
        self.placement = Placement(self, self.workers, is_dedicated=is_dedicated)
        self.place = self.placement.place
        self.hand_over = self.placement.hand_over
        self.carries_context: bool = self.workers.rules.carries_context
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        self.subpools: weakref.WeakSet[ThreadRunner] = weakref.WeakSet()
        if parent is not None:
            parent.subpools.add(self)
        self.cancelled_items = 0
        self.callers: set[Task[Any]] = set()  # the tasks that their submitters run themselves
        self.admit: Callable[[Task[Any]], Task[Any]] | None = None
        self.error_logger = ErrorLogger(name, on_event)
        self.last_fn: Any = None  # the last function that was checked; forgotten when a worker is idle
        self.set_admit()
        _exit_and_fork.register(self)

    @property
    def max_workers(self) -> int:
        return self.workers.max_workers

    # -- coming in ----------------------------------------------------------------------------------------------------

    def set_admit(self) -> None:
        """Send submits through the rules if there are any; else they go straight to the queue (under the lock)."""
        admit: Callable[[Task[Any]], Task[Any]] | None = None
        if self.placement.is_dedicated:
            admit = self.admission.admit
        elif self.admission.max_queued is not None:
            admit = self.admit_bounded
        if self.on_event is not None:
            observed = partial(run_observed, self.on_event, self.name)
            admit = partial(self.admit_observed, observed, admit or self.placement.queue_plain)
        self.admit = self.refuse if self.is_closed else admit

    def admit_observed(
        self, observed: Callable[..., Any], admit: Callable[[Task[Any]], Task[Any]], task: Task[Any]
    ) -> Task[Any]:
        task._args = (task._fn, perf_counter(), *task._args)
        task._fn = observed
        return admit(task)

    def admit_bounded(self, task: Task[Any]) -> Task[Any]:
        """Admit a task as `submit` made it, in a bounded pool: `Admission.admit` for a plain task, written out."""
        admission = self.admission
        try:
            if not admission.enter(task):
                return admission.admit(task)
            task._args = (task._fn, *task._args)
            task._fn = admission.run
            return self.placement.queue_plain(task)
        except BaseException:
            admission.step_out(task)
            raise

    def refuse(self, task: Task[Any]) -> Task[Any]:
        raise self.refusal()

    def refusal(self) -> Exception:
        """Return the error for a submit that this pool, or its parent, cannot take any more."""
        if self.parent is not None and self.parent.is_closed:
            return self.parent.refusal()
        if self.broken:
            return BrokenThreadPool(self.broken)
        return PoolClosed(f"pool {self.name!r} is shut down and takes no more tasks; make a new one or restart() it")

    # -- for the admission and the backlog ----------------------------------------------------------------------------

    def workers_that_count(self) -> int:
        """Return how many tasks may run besides those that wait: those that run now, in a paused pool."""
        workers = self.workers
        return workers.count - len(workers.idle) if self.is_paused else workers.max_workers

    def is_inside(self) -> bool:
        worker = getattr(here, "worker", None)
        return worker is not None and worker.runner is self.root

    def run_here(self, task: Task[Any]) -> None:
        """Run a task in the calling thread; Ctrl-C in it is also the caller's."""
        fn = claim(task)
        worker = getattr(here, "worker", None)
        if worker is not None and worker.runner is self:
            worker.perform(task, fn)
            return
        try:
            self.callers.add(task)
            run_apart(task, fn, carries_context=self.carries_context)
        finally:
            self.callers.discard(task)
            self.workers.counts.add_past(1, task._status == RAISED)
            self.has_left()
        if worker is None and task._status == RAISED and isinstance(task._value, KeyboardInterrupt):
            raise task._value

    def watch_token(self, task: OptionTask[Any]) -> None:
        task.token._watch(task)

    def forget(self, task: Task[Any]) -> bool:
        """Release the key of a task that will not run, if its wrappers have not done so: they have its place."""
        self.placement.release_key(task)
        return False

    def purge(self) -> int:
        with self.lock:
            maps = list(self.maps)
        dropped: int = sum(each.cancel() for each in maps)
        return dropped + self.backlog.cancel_all()

    # -- looking ------------------------------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        return not len(self.backlog) and len(self.workers.idle) >= self.workers.count and not self.callers

    def statistics(self) -> Statistics:
        workers = self.workers
        with self.lock:
            turns = sum(
                each.workers.counts.queued_turns() for each in list(self.subpools)
            )  # they are no tasks of this pool
            queued = len(self.backlog) - turns + sum(each.waiting() for each in list(self.maps))
            idle, completed = workers.counts.idle(), workers.counts.ended()
            running = max(0, workers.count - idle) + len(self.callers)
            cancelled = self.backlog.cancelled + self.cancelled_items + self.admission.dropped
            state = "broken" if self.broken else "closed" if self.is_closed else "paused" if self.is_paused else "open"
            return Statistics(
                name=self.name,
                kind="threads" if self.parent is None else "subpool",
                max_workers=workers.max_workers,
                workers=workers.count,
                idle=idle,
                queued=queued,
                running=running,
                submitted=queued + running + completed + cancelled,
                completed=completed,
                failed=workers.counts.failed(),
                cancelled=cancelled,
                rejected=self.admission.rejected,
                waiting_submitters=self.admission.waiting,
                largest=workers.largest,
                state=state,
                abandoned=sum(thread.is_alive() for thread in workers.abandoned),
                queueing_delay=self.backlog.probe(),
            )

    # -- changing -----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        with self.lock:
            self.is_paused = True
            self.workers.renew_takes()

    def resume(self) -> None:
        with self.lock:
            if not self.is_paused:
                return
            self.is_paused = False
            self.workers.renew_takes()
        self.workers.wake_all()
        self.workers.catch_up()
        self.admission.let_in()

    def resize(self, max_workers: int) -> None:
        workers = self.workers
        with self.lock:
            keeps_all = workers.min_workers == workers.max_workers
            workers.max_workers = max_workers
            workers.min_workers = max_workers if keeps_all else min(workers.min_workers, max_workers)
            self.placement.resize(max_workers)
            workers.renew_takes()
            maps = list(self.maps)
        workers.wake_all()
        if self.is_closed or any(each.is_closed for each in self.ancestors()):
            return
        workers.start_minimum()
        for each in maps:  # those whose items block look for more workers at no other time
            each.queue_places()
        workers.catch_up()
        self.admission.let_in()

    def mark_broken(self, reason: str) -> None:
        """Refuse everything from now on and fail what waits: an initializer failed."""
        with self.lock:
            self.broken = reason
            self.is_closed = True
            self.set_admit()
        self.fail_queued()
        self.workers.wake_all()
        self.admission.let_in()

    def fail_queued(self) -> None:
        for task, fn in self.backlog.take_all():
            release_all(fn)
            if not task.is_place:
                self.workers.counts.add_past(1, 1)
            task._settle(RAISED, BrokenThreadPool(self.broken))

    def close(self, *, cancel_queued: bool = False) -> None:
        """Take no more tasks; workers leave when the queue is empty."""
        with self.lock:
            was_closed, self.is_closed = self.is_closed, True
            self.set_admit()
        if not was_closed:
            emit(self.on_event, "pool_closed", self.name)
        if cancel_queued:
            for each in [self, *self.descendants()]:
                each.purge()
        self.resume()
        self.workers.wake_all()
        with self.lock:
            self.workers.start_for_left()  # it was paused, or its last worker left just now
        self.admission.let_in()

    def reopen(self) -> None:
        with self.lock:
            if not self.is_closed:
                return
            self.is_closed = self.is_interrupted = self.is_paused = False
            self.broken = None
            self.token = CancelToken()
            self.set_admit()
            self.workers.renew_takes()
        self.workers.start_minimum()

    def join(self, deadline: float | None = None) -> bool:
        if self.parent is None or not self.is_inside():
            return self.workers.backend.join(deadline)
        with self.root.workers.extra_worker():  # the caller's thread may be the one that its tasks wait for
            return self.workers.backend.join(deadline)

    def descendants(self) -> list[ThreadRunner]:
        with self.lock:
            subpools = list(self.subpools)
        return subpools + [below for each in subpools for below in each.descendants()]

    def ancestors(self) -> Iterator[ThreadRunner]:
        """Return those whose threads run these tasks, from the parent up."""
        runner = self.parent
        while runner is not None:
            yield runner
            runner = runner.parent

    # -- exit and fork ------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Go on in a forked child, whose threads are gone: what was submitted before is the parent's to run."""
        self.lock = threading.RLock()
        self.owner.is_forked = True
        self.owner = TaskOwner(self, self.root)
        self.token = CancelToken()
        self.backlog.reset()
        self.put = self.backlog.put
        self.workers.reset()
        self.drainers.reset()
        self.placement.after_fork()
        self.admission.reset()
        for each in list(self.maps):
            each.end_after_fork(
                PoolClosed("this map was started before the fork and is the parent's; start it again here")
            )

    def can_finish(self) -> bool:
        """See that somebody works off what is queued: workers, or at the worst the thread that ends the interpreter."""
        with suppress(RuntimeError):  # Python 3.12 lets no thread start from here on
            self.resume()
            self.workers.catch_up()
        return True

    def finish_queued(self) -> None:
        """Wait until everything queued has ended; run here what no worker comes for.

        Where no thread can be started any more (Python 3.12), workers may all wait for tasks that are queued.
        """
        if not self.workers.count:
            self._run_queued_here()
        while not self.drainers.wait(LOOK if NO_THREAD_AT_EXIT else None):
            self._run_queued_here()

    def _run_queued_here(self) -> None:
        before, worker = getattr(here, "worker", None), Worker(self, self.workers)
        here.worker = worker
        queues = self.backlog.worker_queues
        left = [] if queues is None else [each.keyed for each in queues.all() if each.worker is None]
        try:
            for queue in [*left, self.backlog.queue]:
                while (found := self.backlog.take_next(queue.take)) is not None:
                    worker.perform(*found)
        finally:
            here.worker = before
            self.workers.counts.add_past(worker.ended, worker.failed)

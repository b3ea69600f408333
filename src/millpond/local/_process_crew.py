"""What a `ProcessPool` and its I/O thread share: the line of tasks, the counts, and the orders between them.

`submit` appends to the line and rings only when the I/O thread (the `Foreman`) waits for tasks; it takes no lock. What
makes that safe under the GIL:

- *No lost wake-up.* The foreman announces that it wants to know of tasks (`is_asleep`) and then looks at the line;
  `submit` puts the task in line and then looks at the announcement.
- *No task runs twice*, or is run when it was cancelled: see `_process_backlog`.
- *No stranded task.* The foreman ends under the lock, when the pool is closed and the line is empty; a submitter that
  finds it gone takes its task back and says that the pool is closed.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from collections import deque
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millpond._events import tell
from millpond.errors import PoolClosed
from millpond.local._process_backlog import Backlog
from millpond.local._process_batch import Paces
from millpond.local._process_foreman import Foreman
from millpond.local._process_map import Driver
from millpond.local._process_pickle import Encoder
from millpond.local._process_rules import Rules, is_importing_main, usable_context
from millpond.local._stats import Statistics
from millpond.local._task import CANCELLED, OPEN, RAISED, RETURNED, Task, here
from millpond.local._token import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond._events import Observer
    from millpond.local._process_worker import ProcessWorker
    from millpond.local._queues import Line

process_crews: weakref.WeakSet[ProcessCrew] = weakref.WeakSet()
"""Every process pool's crew, for the interpreter's exit and for fork."""


class ProcessCrew(Backlog):
    """The state that a pool and its I/O thread share. The thread keeps it alive, never the pool itself."""

    is_stranded = False  # a forked child ends inherited tasks itself

    def __init__(
        self,
        *,
        name: str,
        size: int,
        floor: int,
        make_line: Callable[[], Line],
        rules: Rules,
        observer: Observer | None,
    ) -> None:
        super().__init__(name=name, size=size, make_line=make_line, observer=observer)
        self.floor = floor
        self.rules = rules
        self.encoder = Encoder()
        self.paces = Paces()
        self.gate: Callable[[Task[Any]], Task[Any]] | None = None
        self.token = CancelToken()
        self.is_closed = self.is_paused = self.is_interrupted = False
        self.broken: str | None = None
        self.past_done = self.past_items = self.past_failed = 0  # the counts of workers that left
        self.rejected = self.largest = 0
        self._begin()
        process_crews.add(self)

    def _begin(self) -> None:
        self.workers: set[ProcessWorker] = set()
        self.leaving: set[ProcessWorker] = set()
        self.idlers: list[_thread.LockType] = []
        self.orders: deque[Callable[[], object]] = deque()
        self.foreman: Foreman | None = None
        self.is_asleep = True  # whether the foreman (or nobody) waits for tasks
        self.is_at_rest = True  # whether no worker has anything to do

    @property
    def root(self) -> ProcessCrew:
        """The crew that runs these tasks: itself."""
        return self

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self.workers)

    @property
    def parked(self) -> list[ProcessWorker]:
        """The workers that have nothing to do."""
        return [worker for worker in list(self.workers) if not worker.flight]

    # -- coming in ---------------------------------------------------------------------------------------------------

    def admit(self, task: Task[Any]) -> Task[Any]:
        """Put a task in line by all the rules of this pool, and return it (cancelled, when it was dropped)."""
        if self.is_closed:
            raise self.refusal()
        if task._status == CANCELLED:  # its token was cancelled before it came here
            return task
        verdict = "accept" if self.bound is None else self.bound.enter(task)
        if verdict == "accept":
            self.place(task)
        elif verdict == "drop":
            self.reject()
            task._settle(CANCELLED, None)
        elif verdict == "caller_runs":
            self._perform_here(task)
        return task

    def try_admit(self, task: Task[Any]) -> bool:
        """Put a task in line if there is room; False when the pool is full."""
        if self.is_closed:
            raise self.refusal()
        if task._status == CANCELLED:
            return True
        if self.bound is not None and not self.bound.try_enter():
            self.reject()
            return False
        self.place(task)
        return True

    def reject(self) -> None:
        """Count a task that was turned away."""
        with self.lock:
            self.rejected += 1
        tell(self.observer, "task_rejected", self.name)

    def _perform_here(self, task: Task[Any]) -> None:
        """Run a task in the caller's thread, since the pool is full; the I/O thread (in a callback) has no time to."""
        if getattr(getattr(here, "worker", None), "crew", None) is self:
            self.place(task)
            return
        fn, task._fn = task._fn, None
        try:
            value = fn(*task._args)
        except BaseException as error:
            task._settle(RAISED, error)
        else:
            task._settle(RETURNED, value)
        self.forget(task, was_placed=False)
        with self.lock:
            self.past_done += 1
            self.past_failed += task._status == RAISED

    def place(self, task: Task[Any]) -> None:
        """Put a task in line and see that somebody will take it."""
        key = getattr(task, "key", None)
        if key is None:
            self.put(task)
        else:
            with self.lock:
                self.seats.place(task, key)
        if self.is_asleep:
            self.rouse(task)

    def rouse(self, *tasks: Task[Any]) -> None:
        """Wake the foreman, or start one, since there is something to do; a closed pool takes `tasks` back."""
        with self.lock:
            if self.foreman is None:
                if not self.is_closed:
                    self._hire(tasks)
                elif sum(self.claim(task) for task in tasks):
                    raise self.refusal()
                return
            self.is_asleep = False  # not before there is a foreman: whoever looked then would count on one
            foreman = self.foreman
        foreman.poke()

    def _hire(self, tasks: tuple[Task[Any], ...]) -> None:
        """Start the foreman; when that is not possible, take `tasks` back and say why (under the lock)."""
        foreman = Foreman(self)
        try:
            if is_importing_main():
                raise RuntimeError(
                    f"pool {self.name!r} got work while a worker process imports the main script; put the code that "
                    "uses it under if __name__ == '__main__':"
                )
            foreman.thread.start()
        except RuntimeError:
            foreman.close()
            for task in tasks:
                self.claim(task)
            raise
        self.foreman = foreman

    def order(self, call: Callable[[], object]) -> None:
        """Have the foreman call this soon, if there is one."""
        self.orders.append(call)
        with self.lock:
            if self.foreman is not None:
                self.foreman.poke()

    def refusal(self) -> Exception:
        """Return the error for a submit that this crew cannot take any more."""
        if self.broken:
            return BrokenProcessPool(self.broken)
        return PoolClosed(f"pool {self.name!r} is shut down and takes no more tasks; make a new one or restart() it")

    def refuse(self, task: Task[Any]) -> Task[Any]:
        """Be the gate of a closed pool."""
        raise self.refusal()

    # -- looking -----------------------------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Tell whether nothing is in line and nobody works."""
        return not self.waiting() and self.is_at_rest

    def statistics(self, kind: str) -> Statistics:
        """Return a snapshot of the counts."""
        with self.lock:
            workers = list(self.workers)
            loads = [worker.load for worker in workers]
            running = sum(load > 0 for load in loads)
            queued = self.waiting() + sum(loads) - running + sum([run.waiting() for run in list(self.maps)])
            completed = self.past_done + self.past_items + sum(worker.ended for worker in workers)
            cancelled = self.cancelled + self.cancelled_items
            state = "broken" if self.broken else "closed" if self.is_closed else "paused" if self.is_paused else "open"
            return Statistics(
                name=self.name,
                kind=kind,
                max_workers=self.size,
                workers=len(workers),
                idle=len(workers) - running,
                queued=queued,
                running=running,
                submitted=queued + running + completed + cancelled,
                completed=completed,
                failed=self.past_failed + sum(worker.failed for worker in workers),
                cancelled=cancelled,
                rejected=self.rejected,
                waiting_submitters=0 if self.bound is None else self.bound.waiting,
                largest=self.largest,
                state=state,
            )

    # -- waiting for the end -----------------------------------------------------------------------------------------

    def drain(self, timeout: float | None) -> bool:
        """Wait until nothing is in line and nobody works; False at time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            lock = _thread.allocate_lock()
            lock.acquire()
            self.idlers.append(lock)
            if self.is_idle():
                return True
            lock.acquire(True, -1 if deadline is None else max(0.0, deadline - time.monotonic()))
            if self.is_idle():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def tell_idlers(self) -> None:
        """Wake those who wait for idleness, if it has come."""
        if self.idlers and self.is_idle():
            while self.idlers:
                try:
                    self.idlers.pop().release()
                except IndexError:
                    return

    def join(self, deadline: float | None = None) -> bool:
        """Wait for the I/O thread to end, which ends after the last worker; False at the deadline."""
        with self.lock:
            foreman = self.foreman
        if foreman is None or foreman.thread is threading.current_thread():
            return True
        foreman.thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not foreman.thread.is_alive()

    # -- changing ----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let nobody start a task; what is on its way to a worker and not started comes back."""
        with self.lock:
            self.is_paused = True
            for worker in self.workers:
                if not worker.has_keys:
                    worker.ask_back()
            if self.foreman is not None:
                self.order(self.foreman.recall_all)

    def resume(self) -> None:
        """Let everybody start tasks again."""
        with self.lock:
            if self.is_paused:
                self.is_paused = False
                self.rouse()

    def resize(self, size: int) -> None:
        """Change the number of workers; surplus ones leave as their tasks end."""
        with self.lock:
            self.size = size
            self.floor = min(self.floor, size)
            self.seats.resize(size)
            if self.foreman is not None:
                self.rouse()
        if self.bound is not None:
            self.bound.let_in()

    def close(self) -> None:
        """Take no more tasks; workers leave when the line is empty."""
        with self.lock:
            if not self.is_closed:
                self.is_closed = True
                self.gate = self.refuse
                tell(self.observer, "pool_closed", self.name)
            self.is_paused = False
            if self.foreman is not None:
                self.rouse()
        if self.bound is not None:
            self.bound.let_in()

    def reopen(self) -> None:
        """Take tasks again."""
        with self.lock:
            if not self.is_closed:
                return
            self.is_closed = self.is_interrupted = False
            self.broken = None
            self.token = CancelToken()
            self.gate = None if self.bound is None else self.admit
        if self.floor:
            self.rouse()

    def break_down(self, reason: str) -> None:
        """Refuse everything from now on and fail what waits: the pool cannot get a worker."""
        with self.lock:
            self.broken = reason
            self.is_closed = True
            self.gate = self.refuse
        for task in self.take_all():
            self.forget(task)
            with self.lock:
                self.past_done += type(task) is not Driver
                self.past_failed += type(task) is not Driver
            task._settle(RAISED, BrokenProcessPool(reason))
        if self.bound is not None:
            self.bound.let_in()

    def kill(self) -> None:
        """End every worker now; what they were running fails."""
        with self.lock:
            self.is_interrupted = True
            foreman = self.foreman
            for worker in [*self.workers, *self.leaving]:
                worker.kill()
        if foreman is not None:
            foreman.poke()

    def forget_threads(self) -> None:
        """Start over in a forked child: the workers and the tasks are the parent's."""
        inherited = [task for line in [self.line, *self.seats.lines()] for task in line]
        for worker in [*self.workers, *self.leaving]:
            inherited += [task for batch in worker.flight for task in getattr(batch, "tasks", ()) if task is not None]
            worker.close()
        if self.foreman is not None:
            self.foreman.close()
        self.rules = replace(self.rules, context=usable_context(self.rules.context))
        self._empty()
        self._begin()
        if self.bound is not None:
            self.bound.forget()
        for task in inherited:
            if task._status == OPEN:
                task._value = PoolClosed(
                    f"this task of pool {self.name!r} is the parent process's; submit it again here"
                )
                task._status = RAISED

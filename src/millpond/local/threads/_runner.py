"""The threads of a `ThreadPool` and everything they share. This is the hot path.

`submit` puts a task in line and wakes a resting worker; a worker takes the next task and runs it. Neither takes
a lock. What makes that safe under the GIL, where every single C call is atomic and stores are ordered:

- *No lost wake-up.* `submit` puts the task in line and then looks for a resting worker; a worker announces that
  it rests (`parked`) and then looks at the line once more. When it finds a task it withdraws the announcement,
  and if somebody already took that, swallows the wake-up that is on its way.
- *No lost worker.* A worker that leaves first lowers `count` and then looks at the line; `submit` looks at
  `count` after putting. So either it sees that a worker is missing, or the worker sees the task and stays.
- *No task runs twice.* See `_backlog.py`.

Odd states cost the loop nothing either: `worker.take` is a slot, and pause, shrinking, recycling, bounds, keys
and dedicated lines each put another function there.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
import weakref
from concurrent.futures.thread import BrokenThreadPool
from typing import TYPE_CHECKING, Any

from millpond._events import emit
from millpond.errors import PoolClosed
from millpond.local._backlog import Backlog
from millpond.local._calls import ObservedCall
from millpond.local._cancel import CancelToken
from millpond.local._seats import Seats
from millpond.local._statistics import Statistics
from millpond.local._task import CANCELLED, RAISED, Task, here
from millpond.local.threads._worker import Worker, nothing, run
from millpond.local.threads._workers import Roster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond._events import Observer
    from millpond.local._queues import Line

crews: weakref.WeakSet[Crew] = weakref.WeakSet()
"""Every crew of this process, for the interpreter's exit and for fork."""


class Ownership:
    """What a task knows of its crew. A fork strands it: the child's crew goes on under a new one."""

    __slots__ = ("crew", "is_stranded")

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.is_stranded = False

    @property
    def root(self) -> Crew:
        """The crew whose threads run the task."""
        return self.crew.root

    def claim(self, task: Task[Any]) -> Callable[..., Any] | None:
        """Atomically take a task out of turn and return its call; None when it has started or ended."""
        return None if self.is_stranded else self.crew.claim(task)

    def withdraw(self, task: Task[Any]) -> bool:
        """Atomically take a task out of line to cancel it; False when it has started or ended."""
        return not self.is_stranded and self.crew.withdraw(task)

    def one_more(self) -> contextlib.AbstractContextManager[None]:
        """Lend the crew one more worker for the length of a `with` block."""
        return self.crew.one_more()


class Crew(Backlog, Roster):
    """The state that a pool and its threads share. The threads keep it alive, never the pool itself."""

    def __init__(self, *, make_line: Callable[[], Line], observer: Observer | None, **roster: Any) -> None:
        Backlog.__init__(self)
        Roster.__init__(self, observer=observer, **roster)
        self.line = make_line()
        self.make_line = make_line
        self.put = self.line.put
        self.owner = Ownership(self)
        self.gate: Callable[[Task[Any]], Task[Any]] | None = None
        self.idlers: list[_thread.LockType] = []
        self.token = CancelToken()
        self.is_interrupted = False
        self.dropped = self.rejected = 0
        crews.add(self)

    @property
    def root(self) -> Crew:
        """The crew whose threads run these tasks: this one (a subpool says its parent's)."""
        return self

    # -- coming in ----------------------------------------------------------------------------------------------------

    def set_gate(self) -> None:
        """Send submits through the rules if there are any; else they go straight to the line (under the lock)."""
        if not self.is_closed:
            has_rules = (
                self.bound is not None
                or (self.seats is not None and self.seats.dedicated)
                or self.observer is not None
            )
            self.gate = self.admit_plain if has_rules else None

    def admit_plain(self, task: Task[Any]) -> Task[Any]:
        """Admit a task as `submit` made it: the gate of a pool with rules."""
        if self.observer is not None:
            task._fn = ObservedCall(task._fn, self.observer, self.name)
        return self.admit(task)

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
            self.dropped += 1
            task._settle(CANCELLED, None)
        elif verdict == "caller_runs":
            self._perform_here(task)
        return task

    def cancel_new(self, task: Task[Any]) -> None:
        """Cancel a task that is in no line yet."""
        with self.lock:
            self.cancelled += 1
        emit(self.observer, "task_cancelled", self.name)
        task._settle(CANCELLED, None)

    def try_admit(self, task: Task[Any]) -> bool:
        """Put a task in line if there is room; False when the pool is full."""
        if self.is_closed:
            raise self.refusal()
        if self.bound is not None and not self.bound.try_enter():
            self.reject()
            return False
        self.place(task)
        return True

    def reject(self) -> None:
        """Count a task that was turned away."""
        with self.lock:
            self.rejected += 1
        emit(self.observer, "task_rejected", self.name)

    def _perform_here(self, task: Task[Any]) -> None:
        """Run a task in the caller's thread, since the pool is full."""
        worker = getattr(here, "worker", None)
        if worker is not None and worker.crew is self:
            worker.perform(task, started(task))
            return
        run(task, started(task))
        with self.lock:
            self.past_done += 1
            self.past_failed += task._status == RAISED

    def place(self, task: Task[Any]) -> None:
        """Put a task in line and see that somebody will take it."""
        if self.seats is not None:
            self.seats.place(task)
            return
        self.put(task)
        if self.parked:
            self.wake(1, task)
        elif self.count < self.size + self.extra:
            self.grow(task)

    def place_many(self, tasks: Iterable[Task[Any]]) -> None:
        """Put tasks in line and wake as many as there are."""
        tasks = list(tasks)
        if self.seats is not None:
            for task in tasks:
                self.seats.place(task)
            return
        self.line.extend(tasks)
        if tasks:
            self.wake(len(tasks), *tasks)

    def take_back(self, tasks: tuple[Task[Any], ...]) -> None:
        """Take tasks out of the line of a closed crew again, and raise, if nobody will run them."""
        if self.count:
            return  # those who are still here empty the line before they leave
        taken_back = [self.claim(task) is not None for task in tasks]
        if any(taken_back):
            raise self.refusal()

    def refusal(self) -> Exception:
        """Return the error for a submit that this crew cannot take any more."""
        if self.broken:
            return BrokenThreadPool(self.broken)
        return PoolClosed(f"pool {self.name!r} is shut down and takes no more tasks; make a new one or restart() it")

    # -- out of turn --------------------------------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """Return every line, the shared one and those of seats."""
        return [self.line] if self.seats is None else self.seats.lines()

    def forget(self, task: Task[Any]) -> None:
        """Let go of what belongs to a task with a key."""
        if self.seats is not None:
            self.seats.settle(task)

    def sweep_soon(self) -> None:
        """Sweep: with every `take` shut, only this thread takes (under the lock)."""
        for worker in self.workers:
            worker.take = nothing
        self.sweep()
        self.retake()
        self.wake_all()

    def purge(self) -> int:
        """Cancel everything in line; return how many."""
        dropped: int = sum(each.cancel() for each in list(self.maps))
        taken = self.take_all()
        for task in taken:
            self.note_cancelled(task)
            task._settle(CANCELLED, None)
        return dropped + len(taken)

    # -- looking ------------------------------------------------------------------------------------------------------

    def ended(self) -> int:
        """Count the tasks that workers have ended."""
        with self.lock:
            past = self.past_done + self.past_items
            return past + sum(worker.done + worker.items for worker in self.workers)

    def failed(self) -> int:
        """Count the tasks that raised."""
        with self.lock:
            return self.past_failed + sum(worker.failed for worker in self.workers)

    def is_idle(self) -> bool:
        """Tell whether nothing is in line and nobody works."""
        return not self.waiting() and len(self.parked) >= self.count

    def statistics(self, kind: str) -> Statistics:
        """Return a snapshot of the counts."""
        with self.lock:
            queued = self.waiting() + sum(each.waiting() for each in list(self.maps))
            workers, idle, completed = self.count, self.idle(), self.ended()
            running = max(0, workers - idle)
            cancelled = self.cancelled + self.cancelled_items + self.dropped
            state = "broken" if self.broken else "closed" if self.is_closed else "paused" if self.is_paused else "open"
            return Statistics(
                name=self.name,
                kind=kind,
                max_workers=self.size,
                workers=workers,
                idle=idle,
                queued=queued,
                running=running,
                submitted=queued + running + completed + cancelled,
                completed=completed,
                failed=self.failed(),
                cancelled=cancelled,
                rejected=self.rejected,
                waiting_submitters=0 if self.bound is None else self.bound.waiting,
                largest=self.largest,
                state=state,
                abandoned=sum(thread.is_alive() for thread in self.abandoned),
            )

    # -- waiting for the end ------------------------------------------------------------------------------------------

    def drain(self, timeout: float | None) -> bool:
        """Wait until nothing is in line and nobody works; False at time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        lock = _thread.allocate_lock()
        lock.acquire()
        try:
            while True:
                self.idlers.append(lock)
                if self.is_idle():
                    return True
                left = -1 if deadline is None else max(0.0, deadline - time.monotonic())
                if not lock.acquire(True, left):
                    return self.is_idle()
        finally:
            with contextlib.suppress(ValueError):
                self.idlers.remove(lock)

    def tell_idlers(self) -> None:
        """Wake those who wait for idleness, if it has come."""
        if self.is_idle():
            while self.idlers:
                try:
                    self.idlers.pop().release()
                except IndexError:
                    return

    # -- changing -----------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Let nobody start a task."""
        with self.lock:
            self.is_paused = True
            self.retake()

    def resume(self) -> None:
        """Let everybody start tasks again."""
        with self.lock:
            if not self.is_paused:
                return
            self.is_paused = False
            self.retake()
        self.wake_all()
        self.catch_up()

    def break_down(self, reason: str) -> None:
        """Refuse everything from now on and fail what waits: an initializer failed."""
        with self.lock:
            self.broken = reason
            self.is_closed = True
            self.gate = self.refuse
        self.fail_waiting()
        self.wake_all()
        if self.bound is not None:
            self.bound.let_in()

    def fail_waiting(self) -> None:
        """Fail what waits in a broken pool."""
        for task in self.take_all():
            task._settle(RAISED, BrokenThreadPool(self.broken))

    def refuse(self, task: Task[Any]) -> Task[Any]:
        """Be the gate of a closed pool."""
        raise self.refusal()

    def close(self) -> None:
        """Take no more tasks; workers leave when the line is empty."""
        with self.lock:
            if not self.is_closed:
                self.is_closed = True
                self.gate = self.refuse
                emit(self.observer, "pool_closed", self.name)
        self.resume()
        self.wake_all()
        with self.lock:
            if self.waiting() and not self.count:  # it was paused, or its last worker left just now
                self.hire()
        if self.bound is not None:
            self.bound.let_in()

    def reopen(self) -> None:
        """Take tasks again."""
        with self.lock:
            if not self.is_closed:
                return
            self.is_closed = self.is_interrupted = self.is_paused = False
            self.retake()
            self.broken = None
            self.token = CancelToken()
            self.set_gate()

    def start_over(self) -> None:
        """Go on in a forked child, whose threads are gone: what was submitted before is the parent's to run."""
        self.lock = threading.RLock()
        self.owner.is_stranded = True
        self.owner = Ownership(self)
        self.line = self.make_line()
        self.put = self.line.put
        self.parked = []
        self.shells = 0
        self.workers = set()
        self.threads = set()
        self.count = self.extra = 0
        self.idlers = []
        if self.seats is not None:
            self.seats = Seats(self, dedicated=self.seats.dedicated)
        if self.bound is not None:
            self.bound.forget()
        for each in list(self.maps):
            each.strand(PoolClosed("this map was started before the fork and is the parent's; start it again here"))

    def work_off(self) -> None:
        """Run what is in line in the calling thread: the interpreter ends and lets no thread start."""
        before, worker = getattr(here, "worker", None), Worker(self)
        here.worker = worker
        try:
            for line in self.lines():
                for task, fn in iter(lambda line=line: self._next(line.take), None):
                    worker.perform(task, fn)
        finally:
            here.worker = before
            self.past_done += worker.done
            self.past_items += worker.items
            self.past_failed += worker.failed


def started(task: Task[Any]) -> Callable[..., Any]:
    """Mark a task that is in no line as started and return its call."""
    fn: Callable[..., Any] = task._fn
    task._fn = None
    return fn

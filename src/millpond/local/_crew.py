"""The threads of a `ThreadPool` and everything they share. This is the hot path.

`submit` puts a task in line and wakes a resting worker; a worker takes the next task and runs it. Neither takes
a lock. What makes that safe under the GIL, where every single C call is atomic and stores are ordered:

- *No lost wake-up.* `submit` puts the task in line and then looks for a resting worker; a worker announces that
  it rests (`parked`) and then looks at the line once more. When it finds a task it withdraws the announcement,
  and if somebody already took that, swallows the wake-up that is on its way.
- *No lost worker.* A worker that leaves first lowers `count` and then looks at the line; `submit` looks at
  `count` after putting. So either it sees that a worker is missing, or the worker sees the task and stays.
- *No task runs twice.* A task that is taken out of turn (cancelled, or run by the one who waits for it) is not
  searched for in the line, which would cost O(n): it becomes a ghost. `claim` writes the ghost and then reads
  `task._fn`; a worker clears `task._fn` and then reads `ghosts`. When both see each other, the lock decides.
  A worker that meets a ghost lays it; when ghosts outnumber the living, the line is swept.

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

from millpond._events import tell
from millpond.errors import PoolClosed
from millpond.local._calls import ObservedCall
from millpond.local._roster import Roster
from millpond.local._seats import Seats
from millpond.local._stats import Statistics
from millpond.local._task import CANCELLED, RAISED, Task, here
from millpond.local._token import CancelToken
from millpond.local._worker import Worker, nothing, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond._events import Observer
    from millpond.local._queues import Line

SWEEP_AT = 4096
"""Ghosts below this number are never swept."""

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


class Crew(Roster):
    """The state that a pool and its threads share. The threads keep it alive, never the pool itself."""

    def __init__(self, *, make_line: Callable[[], Line], observer: Observer | None, **roster: Any) -> None:
        super().__init__(observer=observer, **roster)
        self.line = make_line()
        self.make_line = make_line
        self.put = self.line.put
        self.owner = Ownership(self)
        self.ghosts: set[Task[Any]] = set()
        self.gate: Callable[[Task[Any]], Task[Any]] | None = None
        self.idlers: list[_thread.LockType] = []
        self.token = CancelToken()
        self.is_interrupted = False
        self.cancelled = self.cancelled_items = self.dropped = self.rejected = 0
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        crews.add(self)

    @property
    def root(self) -> Crew:
        """The crew whose threads run these tasks: this one (a subpool says its parent's)."""
        return self

    # -- coming in ----------------------------------------------------------------------------------------------------

    def set_gate(self) -> None:
        """Send submits through the rules if there are any; else they go straight to the line (under the lock)."""
        if not self.is_closed:
            has_rules = self.bound is not None or self.seats is not None or self.observer is not None
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
        tell(self.observer, "task_rejected", self.name)

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

    def claim(self, task: Task[Any]) -> Callable[..., Any] | None:
        """Atomically take a task out of turn and return its call; None when it has started or ended."""
        with self.lock:
            if task._fn is None:
                return None
            self.ghosts.add(task)
            fn: Callable[..., Any] | None = task._fn
            if fn is None:  # a worker was quicker by a hair
                self.ghosts.discard(task)
                return None
            task._fn = None
            if len(self.ghosts) > SWEEP_AT and len(self.ghosts) > len(self.line) // 2:
                self._sweep()
            return fn

    def withdraw(self, task: Task[Any]) -> bool:
        """Atomically take a task out of line to cancel it; False when it has started or ended."""
        with self.lock:
            if self.claim(task) is None:
                return False
            task._status = CANCELLED  # before the lock is free, so that whoever else cancels sees it
        self.note_cancelled(task)
        return True

    def note_cancelled(self, task: Task[Any]) -> None:
        """Count a task that leaves the line unrun, and let somebody in for it."""
        with self.lock:
            self.cancelled += 1
            if self.seats is not None:
                self.seats.settle(task)
        tell(self.observer, "task_cancelled", self.name)
        if self.bound is not None:
            self.bound.let_in()
        if self.idlers:
            self.tell_idlers()

    def lay(self, task: Task[Any]) -> bool:
        """Tell whether a task taken from the line is a ghost, and forget it then."""
        with self.lock:
            if task in self.ghosts:
                self.ghosts.discard(task)
                return True
            return False

    def _sweep(self) -> None:
        """Take the ghosts out of the line: with every `take` shut, only this thread takes (under the lock)."""
        for worker in self.workers:
            worker.take = nothing
        alive: list[Task[Any]] = []
        for _ in range(len(self.line)):
            try:
                task = self.line.take()
            except IndexError:
                break
            if task in self.ghosts:
                self.ghosts.discard(task)
            else:
                alive.append(task)
        for task in reversed(alive):
            self.line.put_back(task)
        self.retake()
        self.wake_all()

    def take_all(self) -> list[Task[Any]]:
        """Take every waiting task out of line, ghosts laid; they are the caller's to settle."""
        taken: list[Task[Any]] = []
        lines = [self.line] if self.seats is None else self.seats.lines()
        for line in lines:
            while True:
                try:
                    task = line.take()
                except IndexError:
                    break
                if not (self.ghosts and self.lay(task)):
                    taken.append(task)
        return taken

    def give_up_oldest(self) -> Task[Any] | None:
        """Take the longest waiting task out of line to cancel it; None when none waits (under the lock)."""
        for line in [self.line] if self.seats is None else self.seats.lines():
            while True:
                try:
                    task = line.oldest()
                except IndexError:
                    break
                if not (self.ghosts and self.lay(task)):
                    self.note_cancelled(task)
                    return task
        return None

    def purge(self) -> int:
        """Cancel everything in line; return how many."""
        dropped: int = sum(each.cancel() for each in list(self.maps))
        taken = self.take_all()
        for task in taken:
            self.note_cancelled(task)
            task._settle(CANCELLED, None)
        return dropped + len(taken)

    # -- looking ------------------------------------------------------------------------------------------------------

    def waiting(self) -> int:
        """Count the tasks in line."""
        in_line = len(self.line) if self.seats is None else sum(map(len, self.seats.lines()))
        return max(0, in_line - len(self.ghosts))

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
                tell(self.observer, "pool_closed", self.name)
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
        self.ghosts = set()
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
            for task in iter(self._next_waiting, None):
                fn = started(task)
                if not (self.ghosts and self.lay(task)):
                    worker.perform(task, fn)
        finally:
            here.worker = before
            self.past_done += worker.done
            self.past_items += worker.items
            self.past_failed += worker.failed

    def _next_waiting(self) -> Task[Any] | None:
        for line in [self.line] if self.seats is None else self.seats.lines():
            with contextlib.suppress(IndexError):
                return line.take()
        return None


def started(task: Task[Any]) -> Callable[..., Any]:
    """Mark a task that is in no line as started and return its call."""
    fn: Callable[..., Any] = task._fn
    task._fn = None
    return fn

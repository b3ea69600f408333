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
import itertools
import sys
import threading
import time
import weakref
from concurrent.futures.thread import BrokenThreadPool
from contextvars import Context
from typing import TYPE_CHECKING, Any

from millpond._events import logger, tell
from millpond.errors import PoolClosed
from millpond.local._calls import ObservedCall
from millpond.local._seats import Seats
from millpond.local._stats import Statistics
from millpond.local._task import CANCELLED, OPEN, RAISED, Task, here
from millpond.local._token import CancelToken
from millpond.local._worker import Worker, nothing, perform, work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millpond._events import Observer
    from millpond.local._queues import Line
    from millpond.local._rejection import Bound
    from millpond.local._scaling import Scaling

SWEEP_AT = 4096
"""Ghosts below this number are never swept."""

crews: weakref.WeakSet[Crew] = weakref.WeakSet()
"""Every crew of this process, for the interpreter's exit and for fork."""


class Crew:
    """The state that a pool and its threads share. The threads keep it alive, never the pool itself."""

    def __init__(
        self,
        *,
        name: str,
        size: int,
        floor: int,
        make_line: Callable[[], Line],
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
        self.count = 0
        self.line = make_line()
        self.make_line = make_line
        self.put = self.line.put
        self.parked: list[Worker] = []
        self.ghosts: set[Task[Any]] = set()
        self.workers: set[Worker] = set()
        self.threads: set[threading.Thread] = set()  # also of workers that are just leaving
        self.lock = threading.RLock()
        self.patience = -1.0 if idle_timeout is None else idle_timeout
        self.carries_context = carries_context
        self.initializer = initializer
        self.initargs = initargs
        self.finalizer = finalizer
        self.recycle_after = recycle_after
        self.observer = observer
        self.token = CancelToken()
        self.is_closed = False
        self.is_paused = False
        self.is_interrupted = False
        self.broken: str | None = None
        self.gate: Callable[[Task[Any]], Task[Any]] | None = None
        self.bound: Bound | None = None
        self.seats: Seats | None = None
        self.scaling: Scaling | None = None
        self.idlers: list[_thread.LockType] = []
        self.past_done = self.past_items = self.past_failed = 0  # the counts of workers that left
        self.cancelled = 0
        self.cancelled_items = 0
        self.rejected = 0
        self.largest = 0
        self.maps: weakref.WeakSet[Any] = weakref.WeakSet()
        self._names = itertools.count()
        crews.add(self)

    @property
    def root(self) -> Crew:
        """The crew whose threads run these tasks: this one (a subpool says its parent's)."""
        return self

    # -- coming in ----------------------------------------------------------------------------------------

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
            task._settle(CANCELLED, None)
        else:
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
            worker.perform(task)
            return
        perform(task)
        with self.lock:
            self.past_done += 1
            self.past_failed += task._status == RAISED

    def place(self, task: Task[Any]) -> None:
        """Put a task in line and see that somebody will take it."""
        if self.seats is not None:
            self.seats.place(task)
            return
        self.put(task)
        self.wake(1, task)

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
                self._take_back(tasks)
                return False
            if self.count >= self.size + self.extra:
                return False
            if self.scaling is not None and not self.scaling.wants_more():
                return False
            worker = self.enlist()
        self.start(worker)
        return True

    def _take_back(self, tasks: tuple[Task[Any], ...]) -> None:
        if self.count:
            return  # those who are still here empty the line before they leave
        taken_back = [self.claim(task) for task in tasks]
        if any(taken_back):
            raise self.refusal()

    def refusal(self) -> Exception:
        """Return the error for a submit that this crew cannot take any more."""
        if self.broken:
            return BrokenThreadPool(self.broken)
        return PoolClosed(f"pool {self.name!r} is shut down and takes no more tasks; make a new one or restart() it")

    def enlist(self) -> Worker:
        """Add a worker to the books (under the lock)."""
        worker = Worker(self)
        worker.thread = threading.Thread(
            target=_serve, args=(worker,), name=f"{self.name}_{next(self._names)}", daemon=True
        )
        self.count += 1
        self.workers.add(worker)
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
            logger.warning("pool %r could not start another thread: %s", self.name, error)

    def warm_up(self) -> None:
        """Start the workers that are always there."""
        with self.lock:
            newcomers = [self.enlist() for _ in range(self.floor - self.count)]
        for worker in newcomers:
            self.start(worker)

    # -- what a worker takes --------------------------------------------------------------------------------

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

    # -- leaving ----------------------------------------------------------------------------------------------

    def dismisses(self, worker: Worker) -> bool:
        """Decide whether a worker with nothing to take leaves now: surplus, worn, or the pool is closed."""
        if worker.goes_home:
            worker.goes_home = False
            return self.lets_go(worker)
        if not (self.is_closed or self.count > self.size + self.extra or self.is_worn(worker)):
            return False
        with self.lock:
            surplus, worn = self.count > self.size + self.extra, self.is_worn(worker)
            if not (surplus or worn) and (not self.is_closed or not self._is_spare(worker)):
                return False
            if surplus or worn:
                self.count -= 1
            self._strike_out(worker)
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
            if self.count <= self.floor or not self._is_spare(worker):
                return False
            self._strike_out(worker)
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

    def _is_spare(self, worker: Worker) -> bool:
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
                self._strike_out(worker)

    def _strike_out(self, worker: Worker) -> None:
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
            self.threads.discard(worker.thread)
        tell(self.observer, "worker_lost", self.name)
        with self.lock:
            needs_one = bool(self.waiting()) and not self.is_closed
            if needs_one:
                substitute = self.enlist()
        if needs_one:
            self.start(substitute)
        if self.bound is not None:
            self.bound.let_in()
        self.tell_idlers()

    # -- out of turn ---------------------------------------------------------------------------------------------

    def claim(self, task: Task[Any]) -> bool:
        """Atomically take a task out of turn; False when it has started or ended."""
        with self.lock:
            if task._fn is None:
                return False
            self.ghosts.add(task)
            if task._fn is None:  # a worker was quicker by a hair
                self.ghosts.discard(task)
                return False
            if len(self.ghosts) > SWEEP_AT and len(self.ghosts) > len(self.line) // 2:
                self._sweep()
            return True

    def withdraw(self, task: Task[Any]) -> bool:
        """Atomically take a task out of line to cancel it; False when it has started or ended."""
        if not self.claim(task):
            return False
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
        taken = self.take_all()
        for task in taken:
            self.note_cancelled(task)
            task._settle(CANCELLED, None)
        return len(taken)

    # -- looking --------------------------------------------------------------------------------------------------

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

    def idle(self) -> int:
        """Count the workers that rest."""
        return min(len(self.parked), self.count)

    def is_idle(self) -> bool:
        """Tell whether nothing is in line and nobody works."""
        return not self.waiting() and len(self.parked) >= self.count

    def statistics(self, kind: str) -> Statistics:
        """Return a snapshot of the counts."""
        with self.lock:
            queued = self.waiting() + sum(run.waiting() for run in list(self.maps))
            workers, idle, completed = self.count, self.idle(), self.ended()
            running = max(0, workers - idle)
            state = "broken" if self.broken else "closed" if self.is_closed else "paused" if self.is_paused else "open"
            return Statistics(
                name=self.name,
                kind=kind,
                max_workers=self.size,
                workers=workers,
                idle=idle,
                queued=queued,
                running=running,
                submitted=queued + running + completed + self.cancelled + self.cancelled_items,
                completed=completed,
                failed=self.failed(),
                cancelled=self.cancelled + self.cancelled_items,
                rejected=self.rejected,
                waiting_submitters=0 if self.bound is None else self.bound.waiting,
                largest=self.largest,
                state=state,
            )

    # -- waiting for the end ----------------------------------------------------------------------------------------

    def drain(self, timeout: float | None) -> bool:
        """Wait until nothing is in line and nobody works; False at time-out."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            lock = _thread.allocate_lock()
            lock.acquire()
            self.idlers.append(lock)
            if self.is_idle():
                return True
            left = -1 if deadline is None else max(0.0, deadline - time.monotonic())
            lock.acquire(True, left)
            if self.is_idle():
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def tell_idlers(self) -> None:
        """Wake those who wait for idleness, if it has come."""
        if self.is_idle():
            while self.idlers:
                try:
                    self.idlers.pop().release()
                except IndexError:
                    return

    def wake_all(self) -> None:
        """Wake every resting worker."""
        while self.parked:
            try:
                self.parked.pop().lock.release()
            except IndexError:
                return

    # -- changing ------------------------------------------------------------------------------------------------------

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

    def catch_up(self) -> None:
        """Start workers for what waits already (after a resume, or with more room)."""
        for _ in range(self.waiting()):
            if self.parked or not self.grow():
                return

    def resize(self, size: int) -> None:
        """Change the number of workers; surplus ones leave as their tasks end."""
        with self.lock:
            self.size = size
            self.floor = min(self.floor, size)
            if self.seats is not None:
                self.seats.resize()
            self.retake()
        self.wake_all()
        self.catch_up()
        if self.bound is not None:
            self.bound.let_in()

    def one_more(self) -> _OneMore:
        """Lend the crew one more thread for the length of a `with` block."""
        return _OneMore(self)

    def break_down(self, reason: str) -> None:
        """Refuse everything from now on and fail what waits: an initializer failed."""
        with self.lock:
            self.broken = reason
            self.is_closed = True
            self.gate = self.refuse
        for task in self.take_all():
            task._settle(RAISED, BrokenThreadPool(reason))
        self.wake_all()
        if self.bound is not None:
            self.bound.let_in()

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
            orphaned = self.waiting() and not self.count
            if orphaned:  # it was paused, or its last worker left just now
                last = self.enlist()
        if orphaned:
            self.start(last)
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
            self.set_gate()

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

    def forget_threads(self) -> None:
        """Start over in a forked child: its threads are gone, and the tasks in line are the parent's to run."""
        self.lock = threading.RLock()
        inherited = [task for task in self.line if task._status == OPEN]
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
        for task in inherited:
            task._value = PoolClosed(f"this task of pool {self.name!r} is the parent process's; submit it again here")
            task._status = RAISED


class _OneMore:
    """One more thread for a crew while a worker of it waits for something that a thread must run."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def __enter__(self) -> None:
        crew = self._crew
        with crew.lock:
            crew.extra += 1
            worker = crew.enlist()
        crew.start(worker)

    def __exit__(self, *_: object) -> None:
        crew = self._crew
        with crew.lock:
            crew.extra -= 1
            crew.retake()
        crew.wake_all()


def _serve(worker: Worker) -> None:
    """Be a worker thread."""
    crew = worker.crew
    here.worker = worker
    if crew.initializer is not None:
        try:
            Context().run(crew.initializer, *crew.initargs) if crew.carries_context else crew.initializer(
                *crew.initargs
            )
        except BaseException as error:
            logger.critical("the initializer of pool %r raised", crew.name, exc_info=True)
            crew.break_down(f"the initializer of pool {crew.name!r} raised {error!r}, so no task can run")
            crew.strike(worker)
            return
    tell(crew.observer, "worker_started", crew.name)
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
        tell(crew.observer, "worker_stopped", crew.name)
        here.worker = None

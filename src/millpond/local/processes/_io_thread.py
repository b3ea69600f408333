"""The foreman: the one thread of a process pool that talks to its workers.

It sleeps until a worker answers or ends, a clock runs out, or somebody rings (`poke`): a submitter when the foreman
waits for tasks, anybody with an order. Then it hires and dismisses, dispatches, and sleeps again. All that belongs to
workers is touched by this thread only, so nothing of it is locked; the sockets do not block, so nothing can hold it up.

It runs the done-callbacks of tasks. One that raises is logged; one that waits for a task of this pool is refused, since
it would wait for itself.
"""

from __future__ import annotations

import contextlib
import pickle
import selectors
import socket
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from millpond._events import emit, logger
from millpond.errors import TaskTimeout
from millpond.local._task import CANCELLED, OPEN, here
from millpond.local.processes._batch import TaskBatch
from millpond.local.processes._dispatch import Dispatcher
from millpond.local.processes._frames import BROKEN, READY
from millpond.local.processes._pickling import RemoteTraceback
from millpond.local.processes._recovery import conclude_recall, settle_estate
from millpond.local.processes._worker import ProcessWorker, how_it_ended
from millpond.local.processes._workers import Staff

if TYPE_CHECKING:
    from millpond.local._task import Task
    from millpond.local.processes._runner import ProcessCrew

FENCE = 0.002
"""How long a recall waits until the worker is sure to have seen it, in seconds (see `_process_journal`)."""


class Foreman:
    """The I/O thread of a process pool."""

    def __init__(self, crew: ProcessCrew) -> None:
        self._crew = crew
        self._dispatcher = Dispatcher(crew)
        self._selector = selectors.DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ, None)
        self._staff = Staff(crew, self._selector)
        self.thread = threading.Thread(target=self._run, name=f"{crew.name}-io", daemon=True)

    def poke(self) -> None:
        """Wake the foreman; any thread may."""
        with contextlib.suppress(OSError):  # it has been poked often enough already, or is gone
            self._bell.send(b"!")

    def close(self) -> None:
        """Give back what it used."""
        self._selector.close()
        self._bell.close()
        self._ear.close()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        crew = self._crew
        here.worker = InTheForeman(crew)
        try:
            while self._turn():
                pass
        except BaseException as error:
            logger.critical("the I/O thread of pool %r failed", crew.name, exc_info=True)
            self._give_up(f"the I/O thread of pool {crew.name!r} failed: {error!r}")
        finally:
            self.close()
            here.worker = None

    def _turn(self) -> bool:
        """Do what is to be done and sleep until there is more; False at the end."""
        crew = self._crew
        crew.is_at_rest = False
        while crew.orders:
            crew.orders.popleft()()
        crew.is_asleep = True  # announced before the line is looked at: see `_process_crew`
        now = time.monotonic()
        self._staff.dismiss_some(now)
        self._staff.hire_some(now)
        wants_tasks = self._dispatcher.dispatch()
        if crew.is_closed:
            self._staff.dismiss_some(now)  # what was left in line may have been nothing but the remains of a map
        timeout = self._look_at_clocks(time.monotonic())
        if self._ends():
            return False
        crew.is_asleep = not crew.is_paused and (wants_tasks or crew.count < crew.size)
        crew.is_at_rest = not any(worker.flight for worker in crew.workers)
        if crew.idlers:
            crew.tell_idlers()
        if crew.orders:
            timeout = 0.0
        for key, events in self._selector.select(timeout):
            self._handle(key, events)
        return True

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.data is None:
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(4096)
            return
        worker: ProcessWorker = key.data
        if worker.is_buried:
            return  # an event of the same moment
        if key.fileobj is not worker.sock:
            self._bury(worker)
            return
        if events & selectors.EVENT_WRITE and worker.flush():
            self._watch(worker)
        if events & selectors.EVENT_READ and not self._read(worker):
            self._selector.unregister(worker.sock)  # it is ending: its sentinel tells when
            if worker.sentinel is None:
                self._bury(worker)

    def _ends(self) -> bool:
        """End when the pool is closed and nothing is left, in a way that strands no task."""
        crew = self._crew
        if not crew.is_closed or crew.workers or crew.leaving:
            return False
        with crew.lock:
            if crew.waiting() and not crew.broken:
                return False
            crew.foreman = None
            crew.is_asleep = crew.is_at_rest = True
        if crew.broken:
            crew.break_down(crew.broken)
        crew.tell_idlers()
        return True

    def _give_up(self, reason: str) -> None:
        """Leave nobody waiting after an error in this very thread."""
        crew = self._crew
        with crew.lock:
            crew.foreman = None
            crew.is_asleep = crew.is_at_rest = True
        for worker in [*crew.workers, *crew.leaving]:
            worker.kill()
            for batch in worker.flight:
                for position in range(batch.count):
                    if batch.has(position):
                        batch.fail(position, BrokenProcessPool(reason))
            worker.flight.clear()
            worker.collect()
            worker.close()
        crew.workers.clear()
        crew.leaving.clear()
        crew.break_down(reason)
        crew.tell_idlers()

    # -- listening ---------------------------------------------------------------------------------------------------

    def _watch(self, worker: ProcessWorker) -> None:
        """Wait for answers of `worker`, and for room in its socket when something waits to be sent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
        with contextlib.suppress(KeyError):
            self._selector.modify(worker.sock, events, worker)

    def _read(self, worker: ProcessWorker) -> bool:
        """Take in what a worker says; False when it will say no more."""
        try:
            frames = worker.inbox.receive(worker.sock)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if frames is None:
            return False
        for frame in frames:
            self._hear(worker, pickle.loads(frame))
        return True

    def _hear(self, worker: ProcessWorker, message: tuple[Any, ...]) -> None:
        crew = self._crew
        word, *rest = message
        if word == READY:
            worker.is_ready = True
            worker.idle_since = time.monotonic()
            self._staff.note_start()
            emit(crew.observer, "worker_started", crew.name, pid=worker.process.pid)
        elif word == BROKEN:
            blob, text = rest
            error = pickle.loads(blob)
            worker.is_doomed = True  # it ends by itself
            logger.critical("the initializer of pool %r raised\n%s", crew.name, text)
            crew.break_down(
                f"the initializer of pool {crew.name!r} raised {error!r}, so no task can run:{RemoteTraceback(text)}"
            )
        else:
            self._settle(worker, *rest)

    def _settle(
        self, worker: ProcessWorker, base: int, values: list[Any], specials: dict[int, Any], seconds: float, memory: int
    ) -> None:
        """Take in the outcomes of calls."""
        crew = self._crew
        batch = worker.flight[0]
        ended, failed, back = batch.settle(base - batch.first, values, specials)
        batch.restore(back)
        worker.count(batch, ended, failed)
        worker.memory = memory
        crew.paces.learn(batch, ended, seconds)
        now = time.monotonic()
        if batch.settled >= batch.count:
            worker.flight.popleft()
            worker.deadline = None
            if not worker.flight:
                worker.fence = None  # a recall has nothing left to bring back
            worker.idle_since = now
        self._dispatcher.set_alarm(worker, now)
        if crew.bound is not None and crew.bound.waiting:
            crew.bound.let_in()

    # -- clocks ------------------------------------------------------------------------------------------------------

    def _look_at_clocks(self, now: float) -> float | None:
        """Do what is due; return the seconds until the next, or None."""
        nearest = self._staff.start_at if self._staff.start_at > now else None
        for worker in list(self._crew.workers):
            due = self._look_at(worker, now)
            if due is not None and (nearest is None or due < nearest):
                nearest = due
            if worker.outbox:
                self._watch(worker)
        return None if nearest is None else max(0.0, nearest - now)

    def _look_at(self, worker: ProcessWorker, now: float) -> float | None:
        """Do what is due for one worker; return when something is next."""
        if worker.deadline is not None:
            if now < worker.deadline:
                return worker.deadline
            self._time_out(worker)
        elif worker.fence is not None:
            if now < worker.fence[0]:
                return worker.fence[0]
            conclude_recall(worker)
            return now  # what came back is to be dispatched
        elif worker.recall_at is not None:
            if now < worker.recall_at:
                return worker.recall_at
            if self._dispatcher.is_stuck(worker, now):
                with self._crew.lock:
                    worker.start_recall(FENCE)
                return now + FENCE
            return worker.recall_at
        elif not worker.flight and worker.is_ready:
            return self._staff.leaves_at(worker, now)
        return None

    def _time_out(self, worker: ProcessWorker) -> None:
        """End a worker whose task has run for too long."""
        worker.deadline = None
        self._read(worker)  # its answer may have come this moment
        if not worker.flight:
            return
        batch = worker.flight[0]
        assert isinstance(batch, TaskBatch)
        timeout = getattr(batch.tasks[0], "timeout", None)
        worker.kill()
        error = TaskTimeout(
            f"{batch.name(0)} ran longer than its timeout of {timeout} s and its process was ended; raise the timeout"
        )
        worker.count(batch, 1, 1)
        batch.fail(0, error)

    # -- orders ------------------------------------------------------------------------------------------------------

    def recall_all(self) -> None:
        """Have back what no worker has started."""
        for worker in self._crew.workers:
            if worker.fence is None and worker.load > 1 and not worker.has_keys:
                with self._crew.lock:
                    worker.start_recall(FENCE)

    def end_task(self, task: Task[Any]) -> None:
        """End a running task whose token was cancelled, and its process with it."""
        if task._status != OPEN or task.cancel():
            return
        for worker in self._crew.workers:
            for batch in worker.flight:
                if isinstance(batch, TaskBatch) and task in batch.tasks:
                    worker.kill()
                    worker.deadline = None
                    batch.drop(batch.tasks.index(task))
                    self._crew.note_cancelled(task)
                    task._settle(CANCELLED, None)
                    return

    # -- deaths ------------------------------------------------------------------------------------------------------

    def _bury(self, worker: ProcessWorker) -> None:
        """Go on without a worker whose process has ended."""
        crew = self._crew
        worker.is_buried = True
        if worker.sentinel is not None:
            self._selector.unregister(worker.sentinel)
        while self._read_rest(worker):
            pass
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.sock)
        code = worker.collect()
        was_known = worker in crew.workers
        settle_estate(crew, worker, how_it_ended(code))
        with crew.lock:
            crew.workers.discard(worker)
            crew.leaving.discard(worker)
            if worker.seat.worker is worker:
                crew.seats.leave(worker.seat)
            crew.past_done += worker.done
            crew.past_items += worker.items
            crew.past_failed += worker.failed
            worker.done = worker.items = worker.failed = 0
        worker.close()
        expected = not was_known or worker.is_doomed
        emit(crew.observer, "worker_stopped" if expected else "worker_lost", crew.name, exit_code=code)
        if was_known and not worker.is_ready and not worker.is_doomed:
            self._staff.count_false_start(code)
        if crew.bound is not None:
            crew.bound.let_in()

    def _read_rest(self, worker: ProcessWorker) -> bool:
        """Read what an ended worker has sent; False when that is all."""
        try:
            frames = worker.inbox.receive(worker.sock)
        except OSError:
            return False
        for frame in frames or ():
            self._hear(worker, pickle.loads(frame))
        return frames is not None


class InTheForeman:
    """Marks the I/O thread, where done-callbacks run: nothing there may wait for this pool."""

    def __init__(self, crew: ProcessCrew) -> None:
        self.crew = crew
        self.depth = 0

    def help(self, task: Task[Any], timeout: float | None) -> None:
        """Wait for a task of another pool; refuse to wait for one of this pool, which waits for this thread."""
        if task._owner is self.crew:
            raise RuntimeError(
                f"a done-callback of pool {self.crew.name!r} waits for another task of it, which would never end; "
                "add a callback to that task instead"
            )
        task._block(timeout)

    def help_now(self, task: Task[Any]) -> bool:
        """Never run a task here."""
        return False

"""The foreman: the one thread of a process pool that talks to its workers.

It sleeps until a worker answers or ends, a clock runs out, or somebody rings (`poke`): a submitter when the foreman
waits for tasks, anybody with an order. Then it hires and dismisses, dispatches, and sleeps again. All that belongs to
workers is touched by this thread only, so nothing of it is locked; the sockets do not block, so nothing can hold it up.

It runs the done-callbacks of tasks. One that raises is logged; one that waits for a task of this pool is refused, since
it would wait for itself.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import selectors
import socket
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from millpond._events import logger, tell
from millpond.errors import TaskTimeout
from millpond.local._process_batch import TaskBatch
from millpond.local._process_dispatch import Dispatcher
from millpond.local._process_frames import BROKEN, READY
from millpond.local._process_pickle import RemoteTraceback
from millpond.local._process_recovery import conclude_recall, settle_estate
from millpond.local._process_worker import ProcessWorker, how_it_ended
from millpond.local._task import CANCELLED, OPEN, here

if TYPE_CHECKING:
    from millpond.local._process_crew import ProcessCrew
    from millpond.local._task import Task

FENCE = 0.002
"""How long a recall waits until the worker is sure to have seen it, in seconds (see `_process_journal`)."""
FALSE_STARTS = 3
"""When so many workers in a row have ended before they were ready, the pool is broken."""
KILLED_STARTS = 10
"""The same, where some of them were killed by a signal: that may have come from outside."""
START_AGAIN = 1.0
"""Seconds to wait after the system refused a process, when there are other workers."""


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
        self._names = itertools.count()
        self._false_starts = self._exits = 0
        self._start_at = 0.0
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
        self._dismiss_some(now)
        self._hire_some(now)
        wants_tasks = self._dispatcher.dispatch()
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
        if key.fileobj is not worker.sock:
            self._bury(worker)
            return
        if events & selectors.EVENT_WRITE and worker.flush():
            self._watch(worker)
        if events & selectors.EVENT_READ and not self._read(worker):
            self._selector.unregister(worker.sock)  # it is ending: its sentinel tells when

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

    # -- hiring and dismissing ---------------------------------------------------------------------------------------

    def _hire_some(self, now: float) -> None:
        """Start workers for what waits, up to the size of the pool."""
        crew = self._crew
        if crew.broken or now < self._start_at:
            return
        wanted = crew.floor - crew.count if not crew.is_closed else 0
        if not crew.is_paused:
            at_hand = sum([not worker.flight for worker in crew.workers])
            wanted = max(wanted, crew.backlog() - at_hand)
        for _ in range(min(wanted, crew.size - crew.count)):
            if not self._hire(now):
                return
        while not crew.is_paused and crew.seats.has_orphans():
            if not self._hire(now):
                return

    def _hire(self, now: float) -> bool:
        """Start a worker; False when that is not possible now."""
        crew = self._crew
        with crew.lock:
            seat = crew.seats.free()
        if seat is None:
            return False
        rules = crew.rules
        name = f"{crew.name}_{next(self._names)}"
        try:
            worker = ProcessWorker(rules.context, name, rules.setup, seat, tells_memory=rules.max_memory is not None)
        except Exception as error:
            self._start_at = now + START_AGAIN
            logger.warning("pool %r could not start a worker process: %s", crew.name, error)
            if not crew.count:
                crew.break_down(f"pool {crew.name!r} could not start a worker process: {error}")
            return False
        with crew.lock:
            seat.worker = worker
            crew.workers.add(worker)
            crew.largest = max(crew.largest, crew.count)
        self._selector.register(worker.sock, selectors.EVENT_READ, worker)
        self._selector.register(worker.sentinel, selectors.EVENT_READ, worker)
        return True

    def _dismiss_some(self, now: float) -> None:
        """Let those workers leave that are worn, surplus, idle for too long, or no more needed."""
        crew = self._crew
        is_over = crew.is_closed and (bool(crew.broken) or not crew.waiting())
        for worker in list(crew.workers):
            if worker.flight or worker.is_doomed:
                continue
            if is_over or (worker.is_ready and self._may_leave(worker, now)):
                with crew.lock:
                    crew.workers.discard(worker)
                    crew.leaving.add(worker)
                    crew.seats.leave(worker.seat)
                worker.dismiss()

    def _may_leave(self, worker: ProcessWorker, now: float) -> bool:
        crew = self._crew
        if (worker.seat.is_going and not worker.seat.pinned) or crew.rules.allowance(worker) <= 0:
            return True
        patience = crew.rules.idle_timeout
        is_spare = crew.count > crew.floor and not worker.seat.pinned and (crew.is_paused or not crew.backlog())
        return patience is not None and is_spare and now - worker.idle_since >= patience

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
            self._false_starts = self._exits = 0
            tell(crew.observer, "worker_started", crew.name, pid=worker.process.pid)
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
        ended, failed = batch.settle(base - batch.first, values, specials)
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
        nearest = self._start_at if self._start_at > now else None
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
            if self._dispatcher.is_stuck(worker):
                worker.start_recall(now + FENCE)
                return now + FENCE
            self._dispatcher.set_alarm(worker, now)
            return worker.recall_at
        elif not worker.flight and worker.is_ready:
            return self._leaves_at(worker, now)
        return None

    def _leaves_at(self, worker: ProcessWorker, now: float) -> float | None:
        """Return when an idle worker is to leave."""
        rules = self._crew.rules
        times = []
        if rules.idle_timeout is not None and self._crew.count > self._crew.floor:
            times.append(worker.idle_since + rules.idle_timeout)
        if rules.max_age is not None:
            times.append(worker.born + rules.max_age)
        return max(now, min(times)) if times else None

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
        until = time.monotonic() + FENCE
        for worker in self._crew.workers:
            if worker.fence is None and worker.load > 1:
                worker.start_recall(until)

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
        tell(crew.observer, "worker_stopped" if expected else "worker_lost", crew.name, exit_code=code)
        if was_known and not worker.is_ready and not worker.is_doomed:
            self._count_false_start(code)
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

    def _count_false_start(self, code: int | None) -> None:
        self._false_starts += 1
        self._exits += code is None or code >= 0
        if self._exits >= FALSE_STARTS or self._false_starts >= KILLED_STARTS:
            crew = self._crew
            crew.break_down(
                f"{self._false_starts} worker processes of pool {crew.name!r} in a row ended before they were ready "
                f"(the last: {how_it_ended(code)}); what they wrote to stderr tells why. A script that starts a pool must do so under "
                "if __name__ == '__main__':, since each worker imports it"
            )


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

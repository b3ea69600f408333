"""The I/O thread: the one thread of a process pool that talks to its workers.

It sleeps until a worker answers or ends, a deadline comes, or somebody wakes it: a submitter when it waits for tasks,
anybody who leaves a call for it. Then it starts and stops workers, dispatches, and sleeps again. The sockets do not
block. What it may wait for is the start of a process, and for a moment the end of one. Others touch a worker only to
ask it to skip calls or to kill it, under the runner's lock.

It settles tasks, and runs no code of users but what pickling does (see `_pickling`): their callbacks go to the
callback thread.
"""

from __future__ import annotations

import contextlib
import pickle
import selectors
import socket
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from millpond._atomic import FREE_THREADED
from millpond._events import emit, logger
from millpond.errors import TaskTimeout
from millpond.local._task import Task
from millpond.local._watchers import CANCELLED, OPEN, here
from millpond.local.processes._child import text_of
from millpond.local.processes._dispatch import Dispatcher
from millpond.local.processes._frames import BROKEN, READY
from millpond.local.processes._pickling import load_error
from millpond.local.processes._recovery import conclude_recall, recover_calls, take_back
from millpond.local.processes._runner import ProcessRunner
from millpond.local.processes._worker import ProcessWorker, how_it_ended

RECALL_TAKES = 0.002  # seconds until a worker is sure to have seen a recall (see `_journal`)
LONGEST_SLEEP = 3600.0  # seconds after which it looks at the deadlines: no selector can wait for centuries


class IoThread:
    def __init__(self, runner: ProcessRunner) -> None:
        self._runner = runner
        self._workers = runner.workers
        self._workers.forgive_starts()
        self._dispatcher = Dispatcher(runner)
        self._selector = selectors.DefaultSelector()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._wake_receiver.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, None)
        self.thread = threading.Thread(target=self._run, name=f"{runner.name}-io", daemon=True)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # enough wake-ups are on their way already, or it is gone
            self._wake_sender.send(b"!")

    def close(self) -> None:
        self._selector.close()
        self._wake_sender.close()
        self._wake_receiver.close()

    def _run(self) -> None:
        runner = self._runner
        here.defer = runner.callbacks.defer
        try:
            while self._turn():
                pass
        except BaseException as error:
            logger.critical("the I/O thread of pool %r failed", runner.name, exc_info=True)
            self._give_up(f"the I/O thread of pool {runner.name!r} failed: {error!r}")
        finally:
            self.close()
            runner.callbacks.end()

    def _turn(self) -> bool:
        """Do what is to be done and sleep until there is more; False at the end."""
        runner, io, workers = self._runner, self._runner.io, self._workers
        io.is_working = True
        while io.calls:
            io.calls.popleft()()
        io.is_waiting = True  # announced before the queue is looked at: see `_runner`
        if FREE_THREADED:
            with runner.lock:
                pass
        now = time.monotonic()
        workers.stop_unneeded(now)
        for worker in workers.start_needed(now):
            self._register(worker)
        has_room = self._dispatcher.dispatch()
        if runner.is_closed:
            workers.stop_unneeded(now)  # what was left in the queue may have been nothing but the place of a map
        timeout = self._check_deadlines(time.monotonic())
        if self._ends():
            return False
        io.is_waiting = not runner.is_paused and (has_room or workers.count < workers.max_workers)
        io.is_working = bool(workers.busy())
        if not io.is_working:
            runner.last_fn = None
        runner.drainers.wake()
        if io.calls:
            timeout = 0.0
        for key, events in self._selector.select(timeout):
            self._handle(key, events)
        return True

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.data is None:
            with contextlib.suppress(BlockingIOError):
                self._wake_receiver.recv(4096)
            return
        worker: ProcessWorker = key.data
        if worker.is_reaped:
            return  # an event of the same moment
        if key.fileobj is not worker.sock:
            self._reap(worker)
            return
        if events & selectors.EVENT_WRITE and worker.flush():
            self._watch(worker)
        if events & selectors.EVENT_READ and not self._read(worker):
            self._selector.unregister(worker.sock)  # it is ending: its sentinel tells when
            if worker.sentinel is None:
                self._reap(worker)

    def _ends(self) -> bool:
        """End when the pool is closed and nothing is left, in a way that leaves no task behind."""
        runner, workers = self._runner, self._workers
        if not runner.is_closed or workers.all or workers.leaving:
            return False
        with runner.lock:
            if len(runner.backlog) and not runner.broken:
                return False
            runner.io.note_ended()
        if runner.broken:
            runner.mark_broken(runner.broken)
        runner.drainers.wake()
        return True

    def _give_up(self, reason: str) -> None:
        """Leave nobody waiting after an error in this very thread."""
        runner, workers = self._runner, self._workers
        with runner.lock:
            runner.io.note_ended()
        for worker in [*workers.all, *workers.leaving]:
            worker.kill()
            for batch in worker.in_flight:
                for position in filter(batch.is_open, range(batch.count)):
                    batch.fail(position, BrokenProcessPool(reason))
            worker.in_flight.clear()
            worker.collect()
        with runner.lock:
            workers.close_all()
        runner.mark_broken(reason)
        runner.drainers.wake()

    def _register(self, worker: ProcessWorker) -> None:
        self._selector.register(worker.sock, selectors.EVENT_READ, worker)
        if worker.sentinel is not None:
            self._selector.register(worker.sentinel, selectors.EVENT_READ, worker)

    def _watch(self, worker: ProcessWorker) -> None:
        """Listen to a worker, and wait for room in its socket when something waits to be sent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
        with contextlib.suppress(KeyError):
            self._selector.modify(worker.sock, events, worker)

    def _read(self, worker: ProcessWorker) -> bool:
        """Take in what a worker has sent; False when it will send no more, or has ended and all is read."""
        try:
            frames = worker.inbox.receive(worker.sock)
        except BlockingIOError:
            return not worker.is_reaped
        except OSError:
            return False
        for frame in frames or ():
            self._receive(worker, pickle.loads(frame))
        return frames is not None

    def _receive(self, worker: ProcessWorker, message: tuple[Any, ...]) -> None:
        runner, (word, *rest) = self._runner, message
        if word == READY:
            worker.ready_at = worker.idle_since = time.monotonic()
            self._workers.forgive_starts()
            emit(runner.on_event, "worker_started", runner.name, pid=worker.process.pid)
        elif word == BROKEN:
            error = load_error(*rest)
            worker.is_killed = True  # it ends by itself
            what = f"the initializer of pool {runner.name!r} raised"
            logger.critical("%s\n%s", what, rest[1])
            runner.mark_broken(f"{what} {text_of(error, repr)}, so no task can run:{error.__cause__}")
        else:
            self._settle(worker, *rest)

    def _settle(
        self, worker: ProcessWorker, base: int, values: list[Any], specials: dict[int, Any], seconds: float, memory: int
    ) -> None:
        batch = worker.in_flight[0]
        ended, back = batch.settle(base - batch.first, values, specials)
        if specials:
            take_back(worker, base + len(values) - 1, specials)
            batch.restore(back)
        worker.ended += ended
        worker.memory = memory
        self._runner.run_times.learn(batch.fns, ended, seconds)
        now = time.monotonic()
        if batch.settled >= batch.count:
            worker.in_flight.pop(0)
            worker.deadline = None
            if not worker.in_flight:
                worker.recall_until = None  # a recall has nothing left to bring back
            worker.idle_since = now
        self._dispatcher.set_alarm(worker, now)

    def _check_deadlines(self, now: float) -> float | None:
        """Do what is due; return the seconds until the next deadline, or None."""
        nearest = self._workers.start_at if self._workers.start_at > now else None
        for worker in list(self._workers.all):
            due = self._check_deadline(worker, now)
            if due is not None and (nearest is None or due < nearest):
                nearest = due
            if worker.outbox:
                self._watch(worker)
        return None if nearest is None else min(max(0.0, nearest - now), LONGEST_SLEEP)

    def _check_deadline(self, worker: ProcessWorker, now: float) -> float | None:
        """Do what is due for one worker; return when something is next."""
        if worker.deadline is not None:
            if now < worker.deadline:
                return worker.deadline
            self._time_out(worker)
        elif worker.recall_until is not None:
            if now < worker.recall_until:
                return worker.recall_until
            conclude_recall(worker)
            return now  # what came back is to be dispatched
        elif worker.recall_at is not None:
            if now < worker.recall_at:
                return worker.recall_at
            if self._dispatcher.is_stuck(worker, now):
                with self._runner.lock:
                    worker.start_recall(RECALL_TAKES)
                return now + RECALL_TAKES
            return worker.recall_at
        elif not worker.in_flight and worker.is_ready:
            return self._workers.leaves_at(worker, now)
        return None

    def _time_out(self, worker: ProcessWorker) -> None:
        worker.deadline = None
        self._read(worker)  # its answer may have come this moment
        if worker.in_flight:
            worker.kill()
            batch = worker.in_flight[0]
            limit = f"its timeout of {getattr(batch.identity(0), 'timeout', None)} s"
            text = f"{batch.name(0)} ran longer than {limit} and its process was ended; raise the timeout"
            batch.fail(0, TaskTimeout(text))

    def recall_all(self) -> None:
        """Take back what no worker has started: the pool was paused."""
        for worker in self._workers.all:
            if worker.recall_until is None and worker.load > 1 and not worker.has_keys:
                with self._runner.lock:
                    worker.start_recall(RECALL_TAKES)

    def end_task(self, task: Task[Any]) -> None:
        """End a running task whose token was cancelled, and its process with it."""
        if task._status != OPEN or task.cancel():
            return
        for worker in self._workers.all:
            for batch in worker.in_flight:
                if batch.identity(0) is task and batch.is_open(0):  # it travels alone
                    worker.kill()
                    worker.deadline = None
                    batch.drop(0)
                    self._runner.backlog.note_cancelled(task, None)
                    task._settle(CANCELLED, None)
                    return

    def _reap(self, worker: ProcessWorker) -> None:
        """Go on without a worker whose process has ended."""
        runner = self._runner
        worker.is_reaped = True
        if worker.sentinel is not None:
            self._selector.unregister(worker.sentinel)
        while self._read(worker):
            pass
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.sock)
        code = worker.collect()
        was_wanted = worker in self._workers.all
        recover_calls(runner, worker, how_it_ended(code))
        self._workers.remove(worker)
        worker.close()
        is_expected = not was_wanted or worker.is_killed
        emit(runner.on_event, "worker_stopped" if is_expected else "worker_lost", runner.name, exit_code=code)
        if was_wanted and not worker.is_ready and not worker.is_killed:
            self._workers.count_false_start(code)

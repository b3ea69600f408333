"""The processes of a pool: how many there are, when one is started, and when it leaves.

The I/O thread alone starts and stops workers; others read `all` and `leaving` under the runner's lock.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from typing import Protocol

from millpond._events import logger
from millpond.local._backlog import Backlog
from millpond.local._worker_queues import WorkerQueues
from millpond.local.processes._worker import ProcessWorker, how_it_ended

FALSE_STARTS = 3  # when so many workers in a row end before they are ready, the pool is broken
KILLED_STARTS = 10  # the same, where some were killed by a signal: that may have come from outside
START_AGAIN = 1.0  # seconds to wait after the system refused a process, when there are other workers

_imported_in = os.getpid()
_main = sys.modules.get("__main__")
_main_file = getattr(_main, "__file__", None)


def usable_context(context: BaseContext) -> BaseContext:
    """Return `context`, or in a forked child, which cannot use its parent's fork server, the one that spawns."""
    is_forked = os.getpid() != _imported_in
    if is_forked and context.get_start_method() == "forkserver":
        return multiprocessing.get_context("spawn")
    return context


def restore_main_file() -> bool:
    """Restore the main script's `__file__`, gone while the interpreter ends, for a worker that is started then.

    Returns whether it was gone.
    """
    main = sys.modules.get("__main__")
    is_gone = _main_file is not None and main is not None and main is _main and not hasattr(main, "__file__")
    if is_gone:
        main.__file__ = _main_file  # type: ignore[union-attr]
    return is_gone


def is_importing_main() -> bool:
    """Return whether this is a worker process that still imports the main script, and so cannot have workers yet."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


@dataclass(frozen=True, slots=True)
class WorkerRules:
    """What the workers of a pool are like, and when one is replaced."""

    context: BaseContext
    setup: bytes  # the pickle of what a worker calls at its start and at its end
    idle_timeout: float | None = None
    max_tasks_per_worker: int | None = None
    max_worker_age: float | None = None
    max_worker_memory: int | None = None
    retries: int = 0
    looks_ahead: bool = True  # whether a worker gets its next batch before it has answered: only where order is fifo

    def tasks_left(self, worker: ProcessWorker) -> int:
        """Return how many more calls a worker may get before it is replaced; each gets one at least."""
        left = 1 << 30
        if self.max_tasks_per_worker is not None:
            left = self.max_tasks_per_worker - worker.ended - worker.load
        age, memory = self.max_worker_age, self.max_worker_memory
        is_old = age is not None and worker.ready_at is not None and time.monotonic() - worker.ready_at >= age
        if is_old or (memory is not None and worker.memory > memory):
            return 0 if worker.next_number > 1 else min(left, 1)
        return left


class Runner(Protocol):
    """The runner of a pool, as far as its workers and the handle of its I/O thread need it."""

    name: str
    lock: threading.RLock
    backlog: Backlog
    worker_queues: WorkerQueues
    is_closed: bool
    is_paused: bool
    broken: str | None

    def waiting_calls(self) -> int: ...
    def mark_broken(self, reason: str) -> None: ...


class Workers:
    def __init__(self, runner: Runner, rules: WorkerRules, *, min_workers: int, max_workers: int) -> None:
        self._runner = runner
        self.rules = rules
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.largest = 0
        self._names = itertools.count()
        self.reset()

    def reset(self) -> None:
        """Start without workers, as in a forked child, whose workers are the parent's."""
        self.all: set[ProcessWorker] = set()
        self.leaving: set[ProcessWorker] = set()  # stopped, and not ended yet
        self.forgive_starts()

    def forgive_starts(self) -> None:
        """Count failed starts from zero: a worker is ready, or the pool starts over."""
        self.start_at = 0.0  # no worker is started before this
        self._false_starts = self._false_exits = 0

    @property
    def count(self) -> int:
        return len(self.all)

    def busy(self) -> int:
        return sum([bool(worker.in_flight) for worker in self.all])

    def start_needed(self, now: float) -> list[ProcessWorker]:
        """Start workers for what waits, up to `max_workers`; return them."""
        runner = self._runner
        started: list[ProcessWorker] = []
        if runner.broken or now < self.start_at:
            return started
        needed = self.min_workers - self.count if not runner.is_closed else 0
        if not runner.is_paused:
            needed = max(needed, runner.waiting_calls() - (self.count - self.busy()))
        needed = min(needed, self.max_workers - self.count)
        while len(started) < needed or (not runner.is_paused and runner.worker_queues.has_orphans()):
            worker = self._start(now)
            if worker is None:
                break
            started.append(worker)
        return started

    def _start(self, now: float) -> ProcessWorker | None:
        runner, rules = self._runner, self.rules
        with runner.lock:
            queue = runner.worker_queues.free()
        if queue is None:
            return None
        name, reports_memory = f"{runner.name}_{next(self._names)}", rules.max_worker_memory is not None
        make = partial(ProcessWorker, rules.context, name, rules.setup, queue, reports_memory=reports_memory)
        restore_main_file()
        try:
            worker = make()
            if restore_main_file():  # it went just now, and the process may have been started without it
                worker.kill()
                worker.collect()
                worker.close()
                worker = make()
        except Exception as error:
            self.start_at = now + START_AGAIN
            logger.warning("pool %r could not start a worker process: %s", runner.name, error)
            if not self.count:
                runner.mark_broken(f"pool {runner.name!r} could not start a worker process: {error}")
            return None
        with runner.lock:
            runner.worker_queues.assign(queue, worker)
            self.all.add(worker)
            self.largest = max(self.largest, self.count)
        return worker

    def count_false_start(self, code: int | None) -> None:
        """Count a worker that has ended before it was ready; too many of them in a row break the pool."""
        self._false_starts += 1
        self._false_exits += code is None or code >= 0
        if self._false_exits >= FALSE_STARTS or self._false_starts >= KILLED_STARTS:
            self._runner.mark_broken(
                f"{self._false_starts} worker processes of pool {self._runner.name!r} in a row ended before they were "
                f"ready (the last: {how_it_ended(code)}); what they wrote to stderr tells why. A script that starts a "
                "pool must do so under if __name__ == '__main__':, since each worker imports it"
            )

    def stop_unneeded(self, now: float) -> None:
        """Stop the workers that are used up, surplus, idle for too long, or no more needed."""
        runner = self._runner
        is_over = runner.is_closed and (bool(runner.broken) or not len(runner.backlog))
        for worker in list(self.all):
            if worker.in_flight or worker.is_killed:
                continue
            if is_over or (worker.is_ready and self._may_leave(worker, now)):
                with runner.lock:
                    self.all.discard(worker)
                    self.leaving.add(worker)
                    runner.worker_queues.leave(worker.queue)
                worker.stop()

    def _may_leave(self, worker: ProcessWorker, now: float) -> bool:
        runner, queue, timeout = self._runner, worker.queue, self.rules.idle_timeout
        if (queue.is_leaving and not queue.keyed) or self.rules.tasks_left(worker) <= 0:
            return True
        if timeout is None or now - worker.idle_since < timeout:
            return False
        return self.count > self.min_workers and not queue.keyed and (runner.is_paused or not runner.waiting_calls())

    def leaves_at(self, worker: ProcessWorker, now: float) -> float | None:
        """Return when an idle worker is to leave; None for never."""
        rules, times = self.rules, []
        if rules.idle_timeout is not None and self.count > self.min_workers and not worker.queue.keyed:
            times.append(worker.idle_since + rules.idle_timeout)
        if rules.max_worker_age is not None and worker.ready_at is not None and worker.next_number > 1:
            times.append(worker.ready_at + rules.max_worker_age)
        return max(now, min(times)) if times else None

    def remove(self, worker: ProcessWorker) -> None:
        with self._runner.lock:
            self.all.discard(worker)
            self.leaving.discard(worker)
            if worker.queue.worker is worker:
                self._runner.worker_queues.leave(worker.queue)

    def kill_all(self) -> None:
        for worker in [*self.all, *self.leaving]:
            worker.kill()

    def close_all(self) -> None:
        for worker in [*self.all, *self.leaving]:
            worker.close()
        self.reset()

"""Which calls go to which worker, and how many at once.

A batch lasts about `TARGET` seconds by what is known of its functions, and takes at most half of a worker's share of
what waits, so that all end together. A function not met before travels alone: its first answer tells its run time.
A worker that is about to end a quick batch gets the next one in advance, so that it never waits for the pool; slow
calls are not sent in advance, since another worker may be free sooner.

A task with a time limit or a token goes alone to an idle worker, and nothing is sent after it.
"""

from __future__ import annotations

import time
from typing import Any

from millpond._atomic import FREE_THREADED, claim, length_now
from millpond.local._map import MapPlace
from millpond.local._queues import Queue
from millpond.local._task import OptionTask, Task
from millpond.local.processes._batch import Batch, MapBatch, TaskBatch
from millpond.local.processes._journal import STARTED
from millpond.local.processes._map import ProcessMap
from millpond.local.processes._run_times import RunTime
from millpond.local.processes._runner import ProcessRunner
from millpond.local.processes._worker import ProcessWorker

TARGET = 0.004  # how long a batch should last, in seconds
MOST = 4096  # the most calls of a batch, however quick
BYTES = 1 << 18  # about how large a batch may be, unless a single call is larger
RECALL_AFTER = 0.02  # a batch that lasts this many seconds longer than expected is recalled
STOPPED_AFTER = 1.0  # a single call that is not started for so many seconds is looked at


def _travels_alone(task: Task[Any]) -> bool:
    return type(task) is OptionTask and (task.timeout is not None or task.token is not None)


class Dispatcher:
    """Forms batches and sends them. Only the I/O thread calls it."""

    def __init__(self, runner: ProcessRunner) -> None:
        self._runner = runner
        self._rules = runner.workers.rules
        self._keyed_next = False

    def has_room(self, worker: ProcessWorker) -> bool:
        if not worker.is_ready or worker.is_leaving or worker.is_killed or worker.recall_until is not None:
            return False  # (a recall is for all it has: what it got meanwhile would be run there, and elsewhere again)
        if worker.queue.is_leaving and not worker.queue.keyed:
            return False
        if not worker.in_flight:
            return self._rules.tasks_left(worker) > 0
        if not self._rules.looks_ahead or len(worker.in_flight) > 1:
            return False
        batch = worker.in_flight[0]
        if batch.is_alone or batch.is_keyed or not 0 < batch.expected <= 2 * TARGET:
            return False
        return self._rules.tasks_left(worker) > 0 and time.monotonic() < worker.late_at

    def dispatch(self) -> bool:
        """Send what can be sent; return whether some worker still has room."""
        runner = self._runner
        if runner.is_paused:
            return False
        if not length_now(runner.backlog.queue) and not runner.worker_queues.has_keys:
            return True
        workers = list(runner.workers.all)
        has_room = False
        for wants_idle in (True, False):
            for worker in workers:
                if wants_idle == (not worker.in_flight) and self.has_room(worker):
                    batch = self._next_batch(worker)
                    while batch is not None and not self.send(worker, batch):
                        batch = self._next_batch(worker)  # nothing of it could be pickled
                    has_room = has_room or batch is None or self.has_room(worker)
        return has_room

    def _next_batch(self, worker: ProcessWorker) -> Batch | None:
        """Form a batch for `worker` from its own queue and the shared one in turn; None when nothing is for it."""
        keyed, shared = worker.queue.keyed, self._runner.backlog.queue
        if not keyed:
            return self.form(worker, shared) if len(shared) else None
        if worker.queue.is_leaving:
            return self.form(worker, keyed)
        if worker.in_flight:
            return self.form(worker, shared)  # what has a key is not sent in advance: it could not be recalled
        self._keyed_next = not self._keyed_next
        first, second = (keyed, shared) if self._keyed_next else (shared, keyed)
        batch = self.form(worker, first)
        return self.form(worker, second) if batch is None else batch

    def form(self, worker: ProcessWorker, queue: Queue) -> Batch | None:
        """Take the next calls from `queue` for `worker`; None when there are none for it now."""
        runner = self._runner
        is_shared = queue is runner.backlog.queue
        share = self._share(len(queue)) if is_shared else len(queue)
        limit = min(MOST, share, self._rules.tasks_left(worker))
        while True:
            try:
                task = queue.take()
            except IndexError:
                return None
            fn, is_alone = task._fn, _travels_alone(task)
            run = task.run if isinstance(task, MapPlace) else None
            run_time = None if is_alone or fn is None else runner.run_times.of(fn if run is None else run.fn)
            if worker.in_flight and fn is not None and (run_time is None or run_time.seconds > TARGET):
                queue.put_back(task)  # not claimed: it can be cancelled all the time
                return None
            fn = claim(task)  # started: from here on `cancel` answers False
            if fn is None:
                runner.backlog.skip(task)
            elif run is not None:
                map_batch = self._cut(worker, run, run_time)
                if run.stays_queued():
                    task._fn = fn
                    queue.put_back(task)
                if map_batch is not None:
                    return map_batch
            else:
                break
        batch = TaskBatch(runner, [task], [fn], [task._args], 0.0)
        if run_time is not None:
            self._fill(batch, queue, limit, run_time)
        batch.is_alone, batch.is_keyed = is_alone, not is_shared
        return batch

    def _fill(self, batch: TaskBatch, queue: Queue, limit: int, run_time: RunTime) -> None:
        """Add the next tasks of the queue to a batch of one while they fit. Hot."""
        runner, take, is_mixed, has_gil = self._runner, queue.take, False, not FREE_THREADED
        tasks, fns, arguments, last = batch.tasks, batch.fns, batch.arguments, batch.fns[0]
        seconds = expected = run_time.seconds
        limit = run_time.limit(limit, BYTES)
        while len(tasks) < limit and expected + seconds <= TARGET:
            try:
                task = take()
            except IndexError:
                break
            if type(task) is not Task and (task.is_place or _travels_alone(task)):
                queue.put_back(task)
                break
            fn = task._fn
            if fn is not last and fn is not None:
                known = runner.run_times.of(fn)
                if known is None:
                    queue.put_back(task)
                    break
                seconds, last, is_mixed = known.seconds, fn, True
                limit = known.limit(limit, BYTES)
            if has_gil:
                fn, task._fn = task._fn, None
            else:
                fn = claim(task)
            if fn is None:
                runner.backlog.skip(task)
                continue
            expected += seconds
            tasks.append(task)
            fns.append(fn)
            arguments.append(task._args)
        if not is_mixed:
            del fns[1:]
        batch.count, batch.expected = len(tasks), expected

    def _share(self, waiting: int) -> int:
        """Return how many of the calls that wait one batch may take."""
        return max(1, waiting // (2 * max(1, self._runner.workers.count)))

    def _cut(self, worker: ProcessWorker, run: ProcessMap[Any], run_time: RunTime | None) -> Batch | None:
        """Cut a slice from the map whose turn it is; None when nothing is left of it."""
        size, seconds = 1, 0.0
        if run_time is not None:
            seconds = run_time.seconds
            share = self._share(run.waiting() + 1)
            size = run_time.limit(int(min(MOST, TARGET / max(seconds, 1e-9), share)), BYTES)
        size = max(1, size if run.chunksize is None else run.chunksize)
        number, items = run.cut(min(size, self._rules.tasks_left(worker)))
        return MapBatch(self._runner, run, number, items, seconds * len(items)) if items else None

    def send(self, worker: ProcessWorker, batch: Batch) -> bool:
        """Send a batch; False when none of its calls can be pickled."""
        runner = self._runner
        body, errors = runner.encoder.encode(batch.fns, batch.arguments, is_bare=batch.is_bare)
        for position, error in errors.items():
            batch.fail(position, error)
        if not batch.open:
            return False
        runner.run_times.learn_size(batch.fns[0], len(body) // batch.count)
        if runner.on_event is not None and isinstance(batch, TaskBatch):
            batch.report_started()
        worker.give(batch, body)
        now = time.monotonic()
        timeout = getattr(batch.identity(0), "timeout", None)
        worker.deadline = None if timeout is None else now + timeout
        self.set_alarm(worker, now)
        return True

    def set_alarm(self, worker: ProcessWorker, now: float) -> None:
        """Decide when to look whether `worker` is stuck. What has a key cannot go elsewhere, so it is not looked at."""
        if worker.recall_until is not None:
            return
        worker.late_at = now + RECALL_AFTER + 3 * sum([batch.expected for batch in worker.in_flight])
        load = 0 if worker.has_keys else worker.load
        worker.recall_at = None if not load else now + STOPPED_AFTER if load == 1 else worker.late_at

    def is_stuck(self, worker: ProcessWorker, now: float) -> bool:
        """Return whether calls of `worker`, which is overdue, would do better elsewhere; if not, look again later.

        Those that wait behind another surely would; a single one only when it has not even been started (the process
        is stopped, or the machine is overloaded) and another worker is idle.
        """
        if worker.load > 1:
            return True
        has_started = worker.journal.words[STARTED] >= worker.next_number - 1
        worker.recall_at = None if has_started else now + STOPPED_AFTER
        workers = list(self._runner.workers.all)
        return not has_started and any(not other.in_flight and self.has_room(other) for other in workers)

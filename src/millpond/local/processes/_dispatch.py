"""Which calls go to which worker, and how many at once.

A batch lasts about `TARGET` seconds by what is known of its functions, and takes at most half of a worker's share of
what waits, so that all end together. A function not met before travels alone: its first answer tells its run time.
A worker that is about to end a quick batch gets the next one in advance, so that it never waits for the pool; slow
calls are not sent in advance, since another worker may be free sooner.

A task with a time limit or a token goes alone to an idle worker, and nothing is sent after it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from millpond._events import emit
from millpond.local._task import Task
from millpond.local.processes._batch import SliceBatch, TaskBatch
from millpond.local.processes._journal import STARTED
from millpond.local.processes._map import Driver
from millpond.local.processes._task import ProcessTask

if TYPE_CHECKING:
    from millpond.local._queues import Line
    from millpond.local.processes._batch import Batch, Pace
    from millpond.local.processes._runner import ProcessCrew
    from millpond.local.processes._worker import ProcessWorker

TARGET = 0.004
"""How long a batch should last, in seconds."""
MOST = 4096
"""The most calls of a batch, however quick."""
BYTES = 1 << 18
"""About how large a batch may be, unless a single call is larger."""
RECALL_AFTER = 0.02
"""A batch that lasts this much longer than expected is recalled, in seconds."""
STOPPED_AFTER = 1.0
"""A single call that is not started for this long is looked at, in seconds."""


class _Draft:
    """A batch in the making."""

    __slots__ = ("arguments", "expected", "fns", "is_mixed", "tasks")

    def __init__(self, task: Task[Any], fn: Any) -> None:
        self.tasks = [task]
        self.fns = [fn]
        self.arguments: list[tuple[Any, ...]] = [task._args]
        self.expected = 0.0
        self.is_mixed = False


def _travels_alone(task: Task[Any]) -> bool:
    return isinstance(task, ProcessTask) and task.is_alone


class Dispatcher:
    """Forms batches and sends them. Only the foreman's thread calls it."""

    def __init__(self, crew: ProcessCrew) -> None:
        self._crew = crew
        self._alternate = False

    def has_room(self, worker: ProcessWorker) -> bool:
        """Tell whether `worker` may get a batch now."""
        if not worker.is_ready or worker.is_leaving or worker.is_doomed or worker.fence is not None:
            return False  # (a recall is for all it has: what it got meanwhile would be run there, and elsewhere again)
        if worker.seat.is_going and not worker.seat.pinned:
            return False
        rules = self._crew.rules
        if not worker.flight:
            return rules.allowance(worker) > 0
        if not rules.looks_ahead or len(worker.flight) > 1:
            return False
        batch = worker.flight[0]
        if batch.is_alone or batch.is_keyed or not 0 < batch.expected <= 2 * TARGET or rules.allowance(worker) <= 0:
            return False
        return time.monotonic() < worker.late_at

    def dispatch(self) -> bool:
        """Send what can be sent; return whether some worker still has room."""
        crew = self._crew
        if crew.is_paused:
            return False
        if not len(crew.line) and not crew.seats.has_keys:
            return True
        workers = list(crew.workers)
        is_wanting = False
        for wants_idle in (True, False):
            for worker in workers:
                if wants_idle == (not worker.flight) and self.has_room(worker):
                    batch = self._next_batch(worker)
                    while batch is not None and not self.send(worker, batch):
                        batch = self._next_batch(worker)  # nothing of it could be pickled
                    is_wanting = is_wanting or batch is None or self.has_room(worker)
        return is_wanting

    def _next_batch(self, worker: ProcessWorker) -> Batch | None:
        """Form a batch for `worker` from its own line and the shared one in turn; None when there is nothing for it."""
        crew = self._crew
        pinned = worker.seat.pinned
        if not pinned:
            return self.form(worker, crew.line) if len(crew.line) else None
        if worker.seat.is_going:
            return self.form(worker, pinned)
        if worker.flight:
            return self.form(worker, crew.line)  # what has a key is not sent in advance: it could not be asked back
        self._alternate = not self._alternate
        first, second = (pinned, crew.line) if self._alternate else (crew.line, pinned)
        batch = self.form(worker, first)
        return self.form(worker, second) if batch is None else batch

    def form(self, worker: ProcessWorker, line: Line) -> Batch | None:
        """Take the next calls from `line` for `worker`; None when there are none for it now."""
        crew = self._crew
        limit = min(MOST, self._share(len(line), is_shared=line is crew.line), crew.rules.allowance(worker))
        taken = self._take(line)
        if taken is None:
            return None
        task, fn = taken
        if type(task) is Driver:
            return self._cut(worker, task, line)
        is_alone = _travels_alone(task)
        pace = None if is_alone else crew.paces.of(fn)
        if worker.flight and (pace is None or pace.seconds > TARGET):
            task._fn = fn
            line.put_back(task)
            return None
        draft = _Draft(task, fn)
        if pace is not None:
            self._fill(draft, line, limit, pace)
        batch = TaskBatch(crew, draft.tasks, draft.fns if draft.is_mixed else [fn], draft.arguments, draft.expected)
        batch.is_alone = is_alone
        batch.is_keyed = line is not crew.line
        return batch

    def _take(self, line: Line) -> tuple[Task[Any], Any] | None:
        """Take the next task that was not cancelled; None when there is none."""
        crew = self._crew
        while True:
            try:
                task = line.take()
            except IndexError:
                return None
            if type(task) is Driver:
                return task, None
            fn, task._fn = task._fn, None  # started: from here on `cancel` answers False
            if fn is not None:
                return task, fn
            crew.skip()

    def _fill(self, draft: _Draft, line: Line, limit: int, pace: Pace) -> None:
        """Add the tasks that come next in line while they fit. Hot: `_take`, written out."""
        crew = self._crew
        take, last = line.take, draft.fns[0]
        tasks, fns, arguments = draft.tasks, draft.fns, draft.arguments
        seconds = expected = pace.seconds
        limit = pace.limit(limit, BYTES)
        while len(tasks) < limit and expected + seconds <= TARGET:
            try:
                task = take()
            except IndexError:
                break
            if type(task) is not Task and (type(task) is Driver or _travels_alone(task)):
                line.put_back(task)
                break
            fn, task._fn = task._fn, None
            if fn is None:
                crew.skip()
                continue
            if fn is not last:
                known = crew.paces.of(fn)
                if known is None:
                    task._fn = fn
                    line.put_back(task)
                    break
                seconds, last, draft.is_mixed = known.seconds, fn, True
                limit = known.limit(limit, BYTES)
            expected += seconds
            tasks.append(task)
            fns.append(fn)
            arguments.append(task._args)
        draft.expected = expected

    def _share(self, waiting: int, *, is_shared: bool) -> int:
        """Return how many of the calls that wait one batch may take."""
        if not is_shared:
            return waiting
        return max(1, waiting // (2 * max(1, self._crew.count)))

    def _cut(self, worker: ProcessWorker, driver: Driver, line: Line) -> Batch | None:
        """Cut a slice from the map at the head of the line."""
        run = driver.run
        pace = self._crew.paces.of(run.fn)
        is_ahead = bool(worker.flight)
        if is_ahead and (pace is None or pace.seconds > TARGET):
            line.put_back(driver)
            return None
        size, seconds = 1, 0.0
        if pace is not None:
            seconds = pace.seconds
            share = self._share(run.waiting() + 1, is_shared=True)
            size = pace.limit(int(min(MOST, TARGET / max(seconds, 1e-9), share)), BYTES)
        size = max(1, size if run.chunk is None else run.chunk)
        number, items = run.cut(min(size, self._crew.rules.allowance(worker)))
        if run.stays_in_line():
            line.put_back(driver)
        if not items:
            return self.form(worker, line)
        return SliceBatch(run, number, items, seconds * len(items))

    def send(self, worker: ProcessWorker, batch: Batch) -> bool:
        """Send a batch; False when none of its calls can be pickled."""
        crew = self._crew
        body, errors = crew.encoder.encode(batch.fns, batch.arguments, is_bare=batch.is_bare)
        for position, error in errors.items():
            batch.fail(position, error)
        worker.count(batch, len(errors), len(errors))
        if not batch.open:
            return False
        crew.paces.learn_size(batch, len(body))
        if crew.observer is not None:
            for position in range(batch.count):
                if batch.has(position):
                    emit(crew.observer, "task_started", crew.name, function=batch.name(position))
        worker.give(batch, body)
        now = time.monotonic()
        if batch.is_alone and isinstance(batch, TaskBatch):
            timeout = getattr(batch.tasks[0], "timeout", None)
            worker.deadline = None if timeout is None else now + timeout
        self.set_alarm(worker, now)
        return True

    def set_alarm(self, worker: ProcessWorker, now: float) -> None:
        """Say when to look whether `worker` is stuck. What has a key cannot go elsewhere, so it is not looked at."""
        if worker.fence is not None:
            return
        load = worker.load
        worker.late_at = now + RECALL_AFTER + 3 * sum([batch.expected for batch in worker.flight])
        if not load or worker.has_keys:
            worker.recall_at = None
        else:
            worker.recall_at = now + STOPPED_AFTER if load == 1 else worker.late_at

    def is_stuck(self, worker: ProcessWorker, now: float) -> bool:
        """Tell whether calls of `worker`, which is overdue, would do better elsewhere; if not, say when to look again.

        Those that wait behind another surely would; a single one only when it has not even been started (the process
        is stopped, or the machine is overloaded) and another worker is idle.
        """
        if worker.load > 1:
            return True
        has_started = worker.journal.words[STARTED] >= worker.next_number - 1
        worker.recall_at = None if has_started else now + STOPPED_AFTER
        return not has_started and any(other.is_idle for other in self._crew.workers)

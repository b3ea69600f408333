"""A batch: calls that travel to a worker together, and what the pool does when their outcomes come, or do not.

Two kinds: tasks from a queue (each a future) and a slice of a `map` (no futures). To the worker they look the same, so
crash recovery, recall and pickling errors are exact for each item of a map, too.

Entries are settled in order; `settled` is how far that has come. An entry beyond it may leave out of turn (it timed
out, was cancelled by its token, or was recalled): it is `gone`, and passed over when its turn comes.
"""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeAlias

from millpond._events import Observer, emit
from millpond.local._task import Task
from millpond.local._watchers import RAISED, RETURNED
from millpond.local.processes._callback_thread import CallbackThread
from millpond.local.processes._child import name_of
from millpond.local.processes._journal import FAILED, SKIPPED, UNLOADABLE
from millpond.local.processes._pickling import Encoder, load_error, unreadable
from millpond.local.processes._task_records import TaskRecords

Specials: TypeAlias = dict[int, tuple[Any, ...]]
"""Outcomes other than plain values, by position: see `_journal`."""


class Host(Protocol):
    """The runner of a process pool, as far as its batches need it."""

    name: str
    on_event: Observer | None
    callbacks: CallbackThread
    encoder: Encoder
    records: TaskRecords


class MapRun(Protocol):
    """A `map` call, as far as its batches need it."""

    fn: Callable[..., Any]
    is_bare: bool
    results: Any

    def give_back(self, number: int, items: list[Any]) -> None: ...


class Batch(ABC):
    is_bare = False
    """Whether each of `arguments` is the one argument of a call, not the tuple of all."""

    def __init__(self, host: Host, fns: list[Any], arguments: list[Any], expected: float) -> None:
        self._host = host
        self.fns = fns
        self.arguments = arguments
        self.count = len(arguments)
        self.expected = expected
        self.first = 0  # the number of its first call, once it is sent
        self.settled = 0
        self._gone: set[int] = set()
        self.is_alone = False
        self.is_keyed = False

    @property
    def open(self) -> int:
        return self.count - self.settled - len(self._gone)

    def is_open(self, position: int) -> bool:
        return position >= self.settled and position not in self._gone

    def fn(self, position: int) -> Any:
        return self.fns[position if len(self.fns) > 1 else 0]

    def name(self, position: int) -> str:
        return name_of(self.fn(position))

    @abstractmethod
    def identity(self, position: int) -> Hashable:
        """Return what an entry is known by: its task, or its number in its map."""

    @abstractmethod
    def publish(self, position: int, values: list[Any]) -> None:
        """Hand over what the entries from `position` on have returned."""

    @abstractmethod
    def publish_error(self, position: int, error: BaseException) -> None: ...

    @abstractmethod
    def detach(self, position: int) -> Any:
        """Take an entry out, to be put back in its queue by `restore`."""

    @abstractmethod
    def restore(self, entries: list[Any]) -> None:
        """Put detached entries, which are in order, back in their queue: before all that would have come after them."""

    def drop(self, position: int) -> None:
        """Forget an entry that others have settled, or will run."""
        self._gone.add(position)

    def requeue(self, low: int, high: int) -> None:
        """Put the entries of a range that are still to be settled back in their queue, in their place."""
        self.restore([self.detach(position) for position in range(max(0, low), high) if self.is_open(position)])

    def fail(self, position: int, error: BaseException) -> None:
        """Settle an entry with what it raised, in its turn or out of turn."""
        if position == self.settled:
            self.settled += 1
        else:
            self.drop(position)
        self._host.records.count_ended(1, 1)
        self.publish_error(position, error)

    def _succeed(self, position: int, values: list[Any]) -> None:
        """Settle entries from `position` on (the next one) with what they returned.

        All is counted before anybody is woken, so that whoever has a result finds it counted.
        """
        end = position + len(values)
        gone = self._gone.intersection(range(position, end)) if self._gone else set()
        self._gone -= gone
        self.settled = end
        self._host.records.count_ended(len(values) - len(gone), 0)
        if not gone:
            self.publish(position, values)
            return
        for at, value in enumerate(values, position):
            if at not in gone:
                self.publish(at, [value])

    def settle(self, low: int, values: list[Any], specials: Specials) -> tuple[int, list[Any]]:
        """Settle entries from `low` on with their outcomes; what is settled already is left alone.

        Returns how many have ended, and the entries that were not run: detached, in order.
        """
        skip = self.settled - low
        if skip > 0:  # they were found in the journal before
            values = values[skip:]
            specials = {at - skip: special for at, special in specials.items() if at >= skip}
            low = self.settled
        was_open = self.open
        at = 0
        back: list[Any] = []
        if specials:
            specials = self._unpickle(low, values, specials)
        if self._host.records.tries:
            self._forget_tries(low, len(values), specials)
        for special_at, special in sorted(specials.items()):
            if special_at > at:
                self._succeed(low + at, values[at:special_at])
            position = low + special_at
            if self.is_open(position):
                if special[0] == FAILED:
                    self.fail(position, special[1])
                else:
                    if special[0] == UNLOADABLE:
                        self._host.encoder.next_encoding(self.fn(position))
                    back.append(self.detach(position))
            if self.settled <= position:  # it was settled out of turn
                self._gone.discard(position)
                self.settled = position + 1
            at = special_at + 1
        if at < len(values):
            self._succeed(low + at, values[at:] if at else values)
        return was_open - self.open - len(back), back

    def _unpickle(self, low: int, values: list[Any], specials: Specials) -> Specials:
        """Put pickled values in their place; return the other outcomes, with exceptions as themselves."""
        left: Specials = {}
        for at, special in specials.items():
            kind = special[0]
            if kind in (SKIPPED, UNLOADABLE):
                left[at] = special
            elif not self.is_open(low + at):
                left[at] = (SKIPPED,)
            elif kind == FAILED:
                left[at] = FAILED, load_error(*special[1:])
            else:
                try:
                    values[at] = pickle.loads(special[1])
                except BaseException as error:
                    left[at] = FAILED, unreadable(self.name(low + at), error)
        return left

    def _forget_tries(self, low: int, number: int, specials: Specials) -> None:
        """Forget how often calls that have ended now were tried."""
        for at in range(number):
            if at not in specials or specials[at][0] == FAILED:
                self._host.records.tries.pop(self.identity(low + at), None)


_DETACHED: Task[Any] = Task()  # in the place of a task that runs elsewhere: its result must not live as long as this


class TaskBatch(Batch):
    def __init__(
        self, host: Host, tasks: list[Task[Any]], fns: list[Any], arguments: list[Any], expected: float
    ) -> None:
        super().__init__(host, fns, arguments, expected)
        self.tasks = list(tasks)

    def identity(self, position: int) -> Hashable:
        return self.tasks[position]

    def publish(self, position: int, values: list[Any]) -> None:
        """Settle tasks. Hot: `Task._settle`, written out. Places are given back first: who has a result finds room."""
        host = self._host
        end = position + len(values)
        tasks = self.tasks[position:end]
        if host.records.admitted:
            host.records.leave_places(tasks)
        if host.on_event is not None:
            names = self._names(range(position, end))
            host.callbacks.observe_many("task_finished", [{"function": name} for name in names])
        for task, value in zip(tasks, values, strict=False):
            if type(task) is not Task:
                host.records.forget(task)
            task._args = None
            task._value = value
            task._status = RETURNED
            if task._watchers is not None:
                task._watchers.wake(task)

    def report_started(self) -> None:
        """Report that its tasks go to a worker, in a pool with `on_event`: each once, also if it is brought back.

        `_context` is the time when a task was queued (see `ProcessRunner.admit_observed`), until that is reported.
        """
        now, tasks = time.perf_counter(), self.tasks
        started = [at for at in range(self.count) if self.is_open(at) and tasks[at]._context is not None]
        data = []
        for at, name in zip(started, self._names(started), strict=True):
            data.append({"function": name, "waited": now - tasks[at]._context})
            tasks[at]._context = None
        self._host.callbacks.observe_many("task_started", data)

    def _names(self, positions: Sequence[int]) -> list[str]:
        if len(self.fns) == 1:
            return [self.name(0)] * len(positions)
        return [self.name(at) for at in positions]

    def publish_error(self, position: int, error: BaseException) -> None:
        task = self.tasks[position]
        self._host.records.forget(task)
        emit(self._host.on_event, "task_failed", self._host.name, function=self.name(position), error=error)
        task._settle(RAISED, error)

    def detach(self, position: int) -> Any:
        """Take a task out; it can be cancelled from now on."""
        self.drop(position)
        task, self.tasks[position] = self.tasks[position], _DETACHED
        task._fn = self.fn(position)
        return task

    def restore(self, entries: list[Any]) -> None:
        for task in reversed(entries):
            self._host.records.queue_of(task).put_back(task)


class MapBatch(Batch):
    """Items of a `map`, from number `start` on."""

    def __init__(self, host: Host, run: MapRun, start: int, items: list[Any], expected: float) -> None:
        super().__init__(host, [run.fn], items, expected)
        self.is_bare = run.is_bare
        self.run = run
        self.start = start

    def identity(self, position: int) -> Hashable:
        return self.run, self.start + position

    def publish(self, position: int, values: list[Any]) -> None:
        """Hand over what items have returned: the list is the consumer's from then on."""
        self.run.results.publish(self.start + position, values, None)

    def publish_error(self, position: int, error: BaseException) -> None:
        self.run.results.publish(self.start + position, [], error)

    def detach(self, position: int) -> Any:
        """Take an item out: its number in the map, and itself."""
        self.drop(position)
        return self.start + position, self.arguments[position]

    def restore(self, entries: list[Any]) -> None:
        """Give detached items back to their map, neighbours together."""
        runs: list[tuple[int, list[Any]]] = []
        for number, item in entries:
            if not runs or runs[-1][0] + len(runs[-1][1]) != number:
                runs.append((number, []))
            runs[-1][1].append(item)
        for number, items in reversed(runs):
            self.run.give_back(number, items)

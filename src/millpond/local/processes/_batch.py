"""A batch: calls that travel to a worker together, and what the pool does when their outcomes come, or do not.

Two kinds: tasks from the line (each a future) and a slice of a `map` (no futures). To the worker they look the same, so
crash recovery, recall and pickling errors are exact for each item of a map, too.

Entries are settled in order; `settled` is how far that has come. An entry beyond it may be gone out of turn (it timed
out, was cancelled by its token, or was recalled): then `gaps` is true and its place is empty.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from millpond._events import emit, logger
from millpond.local._task import RAISED, RETURNED, Task
from millpond.local.processes._child import name_of
from millpond.local.processes._frames import FAILED, SKIPPED, UNLOADABLE
from millpond.local.processes._pickling import load_error, unreadable

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from millpond.local.processes._map import ProcessMap
    from millpond.local.processes._runner import ProcessCrew


class Batch:
    """Calls that travel together."""

    counts_items = False
    is_bare = False
    """Whether each of `arguments` is the one argument of a call, not the tuple of all."""

    def __init__(self, crew: ProcessCrew, fns: Sequence[Any], arguments: list[Any], expected: float) -> None:
        self.crew = crew
        self.fns = fns
        self.arguments = arguments
        self.count = len(arguments)
        self.expected = expected
        self.first = 0  # the number of its first call, once it is sent
        self.settled = 0
        self.gone = 0
        self.is_alone = False
        self.is_keyed = False

    @property
    def open(self) -> int:
        """How many of its calls are still to be settled."""
        return self.count - self.settled - self.gone

    def name(self, position: int) -> str:
        """Return the name of the function of an entry."""
        return name_of(self.fn(position))

    def fn(self, position: int) -> Any:
        """Return the function of an entry."""
        return self.fns[position if len(self.fns) > 1 else 0]

    def who(self, position: int) -> Hashable:
        """Return what an entry is known by: its task, or its number in its map."""
        raise NotImplementedError

    def has(self, position: int) -> bool:
        """Tell whether an entry is still to be settled."""
        raise NotImplementedError

    def succeed(self, position: int, values: list[Any]) -> None:
        """Settle entries from `position` on (the next one) with what they returned."""
        raise NotImplementedError

    def fail(self, position: int, error: BaseException) -> None:
        """Settle an entry with what it raised."""
        raise NotImplementedError

    def drop(self, position: int) -> None:
        """Forget an entry that others have settled, or will run."""
        raise NotImplementedError

    def detach(self, position: int) -> Any:
        """Take an entry out, to be put back in line by `restore`."""
        raise NotImplementedError

    def restore(self, entries: list[Any]) -> None:
        """Put detached entries, which are in order, back in line: before all that would have come after them."""
        raise NotImplementedError

    def requeue(self, low: int, high: int) -> None:
        """Put the entries of a range that are still to be settled back in line, in their place."""
        self.restore([self.detach(position) for position in range(max(0, low), high) if self.has(position)])

    def settle(self, low: int, values: list[Any], specials: dict[int, tuple[Any, ...]]) -> tuple[int, int, list[Any]]:
        """Settle entries from `low` on with their outcomes; what is settled already is left alone.

        Returns how many have ended, how many of those failed, and the entries that were not run: detached, in order.
        """
        skip = self.settled - low
        if skip > 0:  # they were found in the journal before
            values = values[skip:]
            specials = {at - skip: special for at, special in specials.items() if at >= skip}
            low = self.settled
        was_open = self.open
        failed = at = 0
        back: list[Any] = []
        if specials:
            specials = self._unpickle(low, values, specials)
        for special_at, special in sorted(specials.items()):
            if special_at > at:
                self.succeed(low + at, values[at:special_at])
            position = low + special_at
            if self.has(position):
                if special[0] == FAILED:
                    failed += 1
                    self.fail(position, special[1])
                else:
                    if special[0] == UNLOADABLE:
                        self.crew.encoder.try_harder(self.fn(position))
                    back.append(self.detach(position))
            if self.settled <= position:
                self._pass(position)
            at = special_at + 1
        if at < len(values):
            self.succeed(low + at, values[at:] if at else values)
        return was_open - self.open - len(back), failed, back

    def _unpickle(
        self, low: int, values: list[Any], specials: dict[int, tuple[Any, ...]]
    ) -> dict[int, tuple[Any, ...]]:
        """Put pickled values in their place; return the other outcomes, with exceptions as themselves."""
        left: dict[int, tuple[Any, ...]] = {}
        for at, special in specials.items():
            kind = special[0]
            if kind in (SKIPPED, UNLOADABLE):
                left[at] = special
            elif not self.has(low + at):
                left[at] = (SKIPPED,)
            elif kind == FAILED:
                left[at] = FAILED, load_error(*special[1:])
            else:
                try:
                    values[at] = pickle.loads(special[1])
                except Exception as error:
                    left[at] = FAILED, unreadable(self.name(low + at), error)
        return left

    def _pass(self, position: int) -> None:
        """Move on past an entry that was settled out of turn."""
        self.gone -= 1
        self.settled = position + 1


class TaskBatch(Batch):
    """Tasks from the line."""

    def __init__(
        self,
        crew: ProcessCrew,
        tasks: list[Task[Any]],
        fns: Sequence[Any],
        arguments: list[tuple[Any, ...]],
        expected: float,
    ) -> None:
        super().__init__(crew, fns, arguments, expected)
        self.tasks: list[Task[Any] | None] = list(tasks)

    def who(self, position: int) -> Hashable:
        """Return the task."""
        return self.tasks[position]

    def has(self, position: int) -> bool:
        """Tell whether a task is still to be settled."""
        return position >= self.settled and self.tasks[position] is not None

    def succeed(self, position: int, values: list[Any]) -> None:
        """Settle tasks from `position` on with what they returned. Hot: `Task._settle`, written out."""
        end = position + len(values)
        observer = self.crew.observer
        for task, value in zip(self.tasks[position:end], values, strict=False):
            if task is None:
                self.gone -= 1
                continue
            task._args = None
            task._value = value
            task._status = RETURNED
            if task._hook is not None:
                _wake(task)
            if type(task) is not Task:
                self.crew.forget(task)
        self.settled = end
        if observer is not None:
            for at in range(position, end):
                if self.tasks[at] is not None:
                    emit(observer, "task_finished", self.crew.name, function=self.name(at))

    def fail(self, position: int, error: BaseException) -> None:
        """Settle a task with what it raised."""
        task = self.tasks[position]
        assert task is not None
        if position == self.settled:
            self.settled += 1
        else:
            self.drop(position)
        self.crew.forget(task)
        emit(self.crew.observer, "task_failed", self.crew.name, function=self.name(position), error=error)
        task._args = None
        task._value = error
        task._status = RAISED
        if task._hook is not None:
            _wake(task)

    def drop(self, position: int) -> None:
        """Forget a task that others have settled, or will run."""
        self.tasks[position] = None
        self.gone += 1

    def detach(self, position: int) -> Any:
        """Take a task out; it can be cancelled from now on."""
        task = self.tasks[position]
        assert task is not None
        self.drop(position)
        task._fn = self.fn(position)
        return task

    def restore(self, entries: list[Any]) -> None:
        """Put detached tasks back in line."""
        for task in reversed(entries):
            self.crew.line_of(task).put_back(task)


def _wake(task: Task[Any]) -> None:
    """Tell those who look; a callback that exits must not end the I/O thread."""
    hook = task._hook
    try:
        if hook is not None:
            hook.wake(task)
    except BaseException:
        logger.exception("a done-callback raised")


class SliceBatch(Batch):
    """Items of a `map`, from number `start` on."""

    counts_items = True

    def __init__(self, run: ProcessMap[Any], start: int, items: list[Any], expected: float) -> None:
        super().__init__(run.crew, [run.fn], items, expected)
        self.is_bare = run.is_bare
        self.run = run
        self.start = start
        self._is_gone: set[int] = set()

    def who(self, position: int) -> Hashable:
        """Return the map and the number of an item in it."""
        return self.run, self.start + position

    def has(self, position: int) -> bool:
        """Tell whether an item is still to be settled."""
        return position >= self.settled and position not in self._is_gone

    def succeed(self, position: int, values: list[Any]) -> None:
        """Hand over what items from `position` on returned: the list is the consumer's from then on."""
        self.settled = position + len(values)
        if not self._is_gone:
            self.run.results.publish(self.start + position, values, None)
        else:
            for at, value in enumerate(values, position):
                if at in self._is_gone:
                    self.gone -= 1
                else:
                    self.run.results.publish(self.start + at, [value], None)

    def fail(self, position: int, error: BaseException) -> None:
        """Hand over what an item raised."""
        if position == self.settled:
            self.settled += 1
        else:
            self.drop(position)
        self.run.results.publish(self.start + position, [], error)

    def drop(self, position: int) -> None:
        """Forget an item that will be run again."""
        self._is_gone.add(position)
        self.gone += 1

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


class Paces:
    """How long a call of each function takes, and how large it is: learnt from the answers."""

    def __init__(self) -> None:
        self._known: dict[str, Pace] = {}

    def of(self, fn: Any) -> Pace | None:
        """Return the pace of `fn`; None when it is not known yet."""
        return self._known.get(_kind(fn))

    def learn(self, batch: Batch, number: int, seconds: float) -> None:
        """Learn from `number` calls of a batch that took `seconds` together."""
        if not number:
            return
        each = seconds / number
        for fn in batch.fns if len(batch.fns) < 4 else {id(fn): fn for fn in batch.fns}.values():
            kind = _kind(fn)
            pace = self._known.get(kind)
            if pace is None:
                if len(self._known) >= 1024:
                    self._known.clear()
                self._known[kind] = pace = Pace(each)
            pace.learn(each)

    def learn_size(self, batch: Batch, length: int) -> None:
        """Learn how large the calls of a batch are."""
        pace = self._known.get(_kind(batch.fns[0]))
        if pace is not None:
            pace.size = length // batch.count


class Pace:
    """How long one call takes, in seconds, and how many bytes it is on its way."""

    __slots__ = ("seconds", "size")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.size = 0

    def limit(self, number: int, most: int) -> int:
        """Return how many calls of at most `number` make a batch of `most` bytes."""
        return min(number, max(1, most // self.size)) if self.size else number

    def learn(self, seconds: float) -> None:
        """Take a new measurement to heart: at once when it is slower, by half when it is quicker."""
        self.seconds = seconds if seconds > self.seconds else (self.seconds + seconds) / 2


def _kind(fn: Any) -> str:
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__

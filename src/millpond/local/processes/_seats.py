"""Keys in a process pool: tasks of one key run in one process, in order.

A seat is the place of a worker and outlives the process in it. Each has a line of its own for tasks with a key. A key
hashes to a seat; while it has tasks the seat is remembered, so that a resize sends none of them elsewhere.
Everything here is done under the crew's lock, except that the pool's I/O thread alone takes from the lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.local._queues import Fifo

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from millpond.local._task import Task
    from millpond.local.processes._worker import ProcessWorker


class Seat:
    """The place of one worker."""

    __slots__ = ("is_going", "pinned", "worker")

    def __init__(self) -> None:
        self.is_going = False  # whether the pool has shrunk below it: it stays for its pinned tasks only
        self.pinned = Fifo()
        self.worker: ProcessWorker | None = None


class Seats:
    """The seats of a pool, and which key belongs to which."""

    def __init__(self, size: int) -> None:
        self._all = [Seat() for _ in range(size)]
        self._going: list[Seat] = []  # beyond the size, with tasks that are to be done there
        self._keys: dict[Hashable, tuple[Seat, int]] = {}

    def place(self, task: Task[Any], key: Hashable) -> None:
        """Put a task in the line of its key's seat."""
        seat, held = self._keys.get(key) or (self._all[hash(key) % len(self._all)], 0)
        self._keys[key] = (seat, held + 1)
        seat.pinned.put(task)

    def line_of(self, key: Hashable) -> Fifo:
        """Return the line where the tasks of a key wait."""
        return self._keys[key][0].pinned

    def settle(self, key: Hashable) -> None:
        """Note that a task of this key has ended or was cancelled."""
        seat, held = self._keys.pop(key)
        if held > 1:
            self._keys[key] = (seat, held - 1)
        else:
            self._let_go(seat)

    def every(self) -> list[Seat]:
        """Return all seats."""
        return self._all + self._going

    def lines(self) -> Iterable[Fifo]:
        """Return the lines that tasks with a key wait in."""
        return [seat.pinned for seat in self.every() if seat.pinned]

    def free(self) -> Seat | None:
        """Return a seat for a new worker, one with work first; None when all are taken."""
        free = [seat for seat in self.every() if seat.worker is None]
        wanted = [seat for seat in free if seat.pinned]
        normal = [seat for seat in free if not seat.is_going]
        return wanted[0] if wanted else normal[0] if normal else None

    @property
    def has_keys(self) -> bool:
        """Whether there are tasks with a key, in line or under way."""
        return bool(self._keys)

    def has_orphans(self) -> bool:
        """Tell whether a seat without a worker has tasks."""
        return bool(self._keys) and any(seat.worker is None and seat.pinned for seat in self.every())

    def take(self, seat: Seat, worker: ProcessWorker) -> None:
        """Give a seat to a new worker; the pool may have shrunk while that was started."""
        seat.worker = worker
        if seat.is_going and seat not in self._going:
            self._going.append(seat)

    def leave(self, seat: Seat) -> None:
        """Free a seat."""
        seat.worker = None
        self._let_go(seat)

    def _let_go(self, seat: Seat) -> None:
        if seat in self._going and seat.worker is None and not seat.pinned:
            self._going.remove(seat)

    def resize(self, size: int) -> None:
        """Follow the pool's size; idle workers go first."""
        while len(self._all) < size:
            seat = self._going.pop() if self._going else Seat()
            seat.is_going = False
            self._all.append(seat)
        if len(self._all) > size:
            self._all.sort(key=_worth, reverse=True)
            gone, self._all = self._all[size:], self._all[:size]
            for seat in gone:
                seat.is_going = True
            self._going += [seat for seat in gone if seat.pinned or seat.worker is not None]


def _worth(seat: Seat) -> tuple[int, int]:
    worker = seat.worker
    return len(seat.pinned), 0 if worker is None else 1 + len(worker.flight)

"""Lines of one's own: `queues="dedicated"`, and key affinity.

A seat is the place of a worker: it outlives the thread that sits in it. Each seat has a *pinned* line (tasks with
a key, only for this seat) and a *loose* one: the pool's shared line, or with dedicated queues one of its own, from
which idle neighbours steal. Everything here runs under the crew's lock, except `take`, which is lock-free.

Affinity: a key hashes to a seat and all its tasks go to that seat's pinned line, so they run in the worker that
sits there, in order, one at a time. While a key has tasks its seat is remembered, so that a resize cannot send
its next task elsewhere while one still runs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.local._queues import Fifo

if TYPE_CHECKING:
    from collections.abc import Hashable

    from millpond.local._queues import Line
    from millpond.local._task import Task
    from millpond.local.threads._runner import Crew
    from millpond.local.threads._worker import Worker


class Seat:
    """The place of one worker."""

    __slots__ = ("_pinned_next", "_seats", "loose", "pinned", "worker")

    def __init__(self, seats: Seats, loose: Line) -> None:
        self._seats = seats
        self._pinned_next = True
        self.pinned = Fifo()
        self.loose = loose
        self.worker: Worker | None = None

    def take(self) -> Task[Any]:
        """Take from the two lines in turn, then from a neighbour; IndexError when there is nothing."""
        self._pinned_next = not self._pinned_next
        first, second = (self.pinned, self.loose) if self._pinned_next else (self.loose, self.pinned)
        try:
            return first.take()
        except IndexError:
            pass
        try:
            return second.take()
        except IndexError:
            return self._seats.steal()

    def has_work(self) -> bool:
        """Tell whether a task waits here."""
        return bool(len(self.pinned)) or bool(len(self.loose))


class Seats:
    """The seats of a crew, and which key belongs to which."""

    def __init__(self, crew: Crew, *, dedicated: bool) -> None:
        self.crew = crew
        self.dedicated = dedicated
        self._all: list[Seat] = [self._make() for _ in range(crew.size)]
        self._leaving: list[Seat] = []  # seats beyond the size that still have pinned tasks
        self._keys: dict[Hashable, tuple[Seat, int]] = {}
        self._turn = 0
        for worker in crew.workers:
            self.seat(worker)

    def _make(self) -> Seat:
        return Seat(self, self.crew.make_line() if self.dedicated else self.crew.line)

    def lines(self) -> list[Line]:
        """Return every line there is, each once."""
        seats = self._all + self._leaving
        pinned: list[Line] = [seat.pinned for seat in seats]
        return pinned + ([seat.loose for seat in seats] if self.dedicated else [self.crew.line])

    def seat(self, worker: Worker) -> None:
        """Give a new worker a seat: one with work first; without a free one it helps at the loose lines."""
        free = [seat for seat in self._all + self._leaving if seat.worker is None]
        seat = next((seat for seat in free if seat.pinned), free[0] if free else self._make())
        seat.worker = worker
        worker.seat = seat
        worker.take = self.crew.taker(worker)

    def leave(self, worker: Worker) -> None:
        """Free the seat of a worker that left; pinned tasks that wait there get a new one."""
        seat = worker.seat
        if seat is None or seat.worker is not worker:
            return
        seat.worker = None
        if seat.pinned and not self.crew.is_paused and not self.crew.broken:
            self.crew.hire()
        elif seat in self._leaving:
            self._leaving.remove(seat)
        if self.dedicated and seat not in self._all:
            self._hand_over(seat)

    def _hand_over(self, seat: Seat) -> None:
        """Give the loose tasks of a seat that is gone to the others."""
        while seat.loose:
            try:
                self.crew.place(seat.loose.take())
            except IndexError:
                return

    def resize(self) -> None:
        """Follow the crew's size; a seat that goes keeps its worker until its pinned tasks are done."""
        size = self.crew.size
        while len(self._all) < size:
            self._all.append(self._make())
        gone, self._all = self._all[size:], self._all[:size]
        for seat in gone:
            if seat.pinned or seat.worker is not None:
                self._leaving.append(seat)
            if self.dedicated:
                self._hand_over(seat)

    def place(self, task: Task[Any]) -> None:
        """Put a task in the line of its seat and see that somebody takes it."""
        crew = self.crew
        with crew.lock:
            key = getattr(task, "key", None)
            if key is not None:
                self._place_pinned(task, key)
            elif self.dedicated:
                self._place_loose(task)
            else:
                crew.put(task)
                crew.wake(1, task)

    def _place_pinned(self, task: Task[Any], key: Hashable) -> None:
        crew = self.crew
        seat, held = self._keys.get(key) or (self._all[hash(key) % len(self._all)], 0)
        self._keys[key] = (seat, held + 1)
        task.seat = seat  # type: ignore[attr-defined]
        seat.pinned.put(task)
        if seat.worker is None:
            if not crew.is_paused:
                crew.hire()  # `seat` prefers the seats with pinned tasks
            return
        try:
            crew.parked.remove(seat.worker)
        except ValueError:
            return  # it is awake, and looks here before it rests
        seat.worker.lock.release()

    def _place_loose(self, task: Task[Any]) -> None:
        crew = self.crew
        try:
            worker = crew.parked.pop()
        except IndexError:
            pass
        else:
            worker.seat.loose.put(task)
            worker.lock.release()
            return
        self._turn = (self._turn + 1) % len(self._all)
        seats = self._all[self._turn :] + self._all[: self._turn]
        seat = min((seat for seat in seats if seat.worker is not None), key=_backlog, default=seats[0])
        seat.loose.put(task)
        crew.grow(task)

    def settle(self, task: Task[Any]) -> None:
        """Forget a task with a key that has ended or was cancelled."""
        if getattr(task, "seat", None) is None:
            return
        with self.crew.lock:
            task.seat = None  # type: ignore[attr-defined]
            key = task.key  # type: ignore[attr-defined]
            seat, held = self._keys.pop(key)
            if held > 1:
                self._keys[key] = (seat, held - 1)

    def steal(self) -> Task[Any]:
        """Take from the longest loose line of a neighbour; IndexError when all are empty."""
        if self.dedicated:
            for seat in sorted(self._all + self._leaving, key=_backlog, reverse=True):
                try:
                    return seat.loose.take()
                except IndexError:
                    continue
        raise IndexError("nothing to steal")


def _backlog(seat: Seat) -> int:
    return len(seat.loose)

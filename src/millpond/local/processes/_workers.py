"""How many workers a process pool has: hiring for what waits, dismissing the worn, the surplus and the idle."""

from __future__ import annotations

import itertools
import selectors
from typing import TYPE_CHECKING

from millpond._events import logger
from millpond.local.processes._worker import ProcessWorker, how_it_ended

if TYPE_CHECKING:
    from millpond.local.processes._runner import ProcessCrew

FALSE_STARTS = 3
"""When so many workers in a row have ended before they were ready, the pool is broken."""
KILLED_STARTS = 10
"""The same, where some of them were killed by a signal: that may have come from outside."""
START_AGAIN = 1.0
"""Seconds to wait after the system refused a process, when there are other workers."""


class Staff:
    """Starts workers and lets them go. Only the foreman's thread calls it."""

    def __init__(self, crew: ProcessCrew, selector: selectors.BaseSelector) -> None:
        self._crew = crew
        self._selector = selector
        self._names = itertools.count()
        self.false_starts = self._exits = 0
        self.start_at = 0.0  # not before this may a worker be started

    def note_start(self) -> None:
        """Note that a worker is ready."""
        self.false_starts = self._exits = 0

    def hire_some(self, now: float) -> None:
        """Start workers for what waits, up to the size of the pool."""
        crew = self._crew
        if crew.broken or now < self.start_at:
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
            self.start_at = now + START_AGAIN
            logger.warning("pool %r could not start a worker process: %s", crew.name, error)
            if not crew.count:
                crew.break_down(f"pool {crew.name!r} could not start a worker process: {error}")
            return False
        with crew.lock:
            crew.seats.take(seat, worker)
            crew.workers.add(worker)
            crew.largest = max(crew.largest, crew.count)
        self._selector.register(worker.sock, selectors.EVENT_READ, worker)
        if worker.sentinel is not None:
            self._selector.register(worker.sentinel, selectors.EVENT_READ, worker)
        return True

    def dismiss_some(self, now: float) -> None:
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
        if patience is None or now - worker.idle_since < patience:
            return False
        return crew.count > crew.floor and not worker.seat.pinned and (crew.is_paused or not crew.backlog())

    def leaves_at(self, worker: ProcessWorker, now: float) -> float | None:
        """Return when an idle worker is to leave."""
        rules = self._crew.rules
        times = []
        if rules.idle_timeout is not None and self._crew.count > self._crew.floor and not worker.seat.pinned:
            times.append(worker.idle_since + rules.idle_timeout)
        if rules.max_age is not None:
            times.append(worker.born + rules.max_age)
        return max(now, min(times)) if times else None

    def count_false_start(self, code: int | None) -> None:
        """Note that a worker has ended before it was ready; too many of them in a row break the pool."""
        self.false_starts += 1
        self._exits += code is None or code >= 0
        if self._exits >= FALSE_STARTS or self.false_starts >= KILLED_STARTS:
            crew = self._crew
            crew.break_down(
                f"{self.false_starts} worker processes of pool {crew.name!r} in a row ended before they were ready "
                f"(the last: {how_it_ended(code)}); what they wrote to stderr tells why. A script that starts a pool "
                "must do so under if __name__ == '__main__':, since each worker imports it"
            )

"""The workers of this process in a file: whichever of them renews its lease does so for all.

Others vouch for a process that computes without a sign of life (`_witness`), until one of its workers speaks: those
that say nothing then have given up. But a process that comes to itself after a long hold runs its threads one after the
other, and may be held up again in between. So the first that speaks does so for all, but not for one that has given up
its membership, nor for one that has said nothing itself for longer than others would vouch for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from millpond._clock import elapsed
from millpond._sqlite import Transaction


class OwnWorkers:
    """When each worker of this process last renewed its lease itself, and when another did so for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[tuple[str, str], float] = {}
        self._renewed: dict[tuple[str, str], float] = {}

    def keep(self, pool: str, worker: str, stall: float) -> None:
        """Note a sign of life: for so many seconds others renew its lease with theirs."""
        with self._lock:
            self._until[pool, worker] = elapsed() + stall

    def forget(self, pool: str, worker: str) -> None:
        """Note that a worker has given up, or has left."""
        with self._lock:
            self._until.pop((pool, worker), None)
            self._renewed.pop((pool, worker), None)

    def renew(self, transaction: Transaction, pool: tuple[int, str], worker: str, lease_end: int) -> list[str]:
        """Renew the leases of the others beside that of one; return of whom."""
        number, name = pool
        with self._lock:
            others = [one for (its, one), until in self._until.items() if its == name and until > elapsed()]
        return [one for one in others if one != worker and _renew(transaction, number, one, lease_end)]

    def note(self, pool: str, workers: Iterable[str], sent: float) -> None:
        """Note whose leases were renewed by a call that was begun then."""
        with self._lock:
            for worker in workers:
                if (pool, worker) in self._until:
                    self._renewed[pool, worker] = sent

    def renewed_at(self, pool: str, worker: str) -> float:
        """Return when the call was begun by which another worker last renewed this one's lease; 0.0 for never."""
        return self._renewed.get((pool, worker), 0.0)


def _renew(transaction: Transaction, pool: int, worker: str, lease_end: int) -> bool:
    return bool(
        transaction.execute(
            "UPDATE keyed_member SET lease_end = max(lease_end, ?), silent_since = 0 WHERE pool = ? AND id = ?",
            (lease_end, pool, worker),
        ).rowcount
    )


class InnerHeart:
    """Has the other workers of this process keep up a membership."""

    def __init__(self, own: Callable[[], OwnWorkers], pool: str, stall: float) -> None:
        self._own = own
        """Returns those of the file that is open now: it may have been replaced."""
        self._pool = pool
        self._stall = stall
        self._lock = threading.RLock()
        self._worker = ""

    def join(self, worker: str) -> None:
        with self._lock:
            self.give_up(self._worker)
            self._worker = worker
            self.beat()

    def beat(self) -> None:
        with self._lock:
            if self._worker:
                self._own().keep(self._pool, self._worker, self._stall)

    def renewed_at(self) -> float:
        return self._own().renewed_at(self._pool, self._worker)

    def give_up(self, worker: str) -> None:
        with self._lock:
            self._own().forget(self._pool, worker)
            if worker == self._worker:
                self._worker = ""

    def close(self) -> None:
        self.give_up(self._worker)

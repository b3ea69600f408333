"""Who listens in this process, and in which sessions others do.

A hint for somebody in this process is a call of his function. One for somebody elsewhere is a number in the file that
grows (`keyed_ear.rung`), written in the transaction that has news for him, and a ring of his session's bell: so the
woken process knows whom it was for, and a lost ring costs no more than the time until it looks by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from millpond._events import logger
from millpond._sqlite import Transaction


class Ear:
    """Somebody who listens in this process."""

    def __init__(self, pool: str, name: str, heard: Callable[[], None], closed: Callable[[Ear], None]) -> None:
        self.pool = pool
        self.name = name
        self.heard = heard
        self._closed = closed

    def close(self) -> None:
        """Be told no more."""
        self._closed(self)


class Ears:
    """All who listen in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ears: dict[tuple[str, str], list[Ear]] = {}
        self._rung: dict[tuple[str, str], int] = {}

    def add(self, ear: Ear) -> None:
        """Let somebody listen."""
        with self._lock:
            self._ears.setdefault((ear.pool, ear.name), []).append(ear)

    def discard(self, ear: Ear) -> bool:
        """Let somebody listen no more; tell whether nobody of that name does now."""
        key = (ear.pool, ear.name)
        with self._lock:
            ears = self._ears.get(key, [])
            if ear not in ears:
                return False
            ears.remove(ear)
            if not ears:
                del self._ears[key]
                self._rung.pop(key, None)
            return not ears

    def call(self, pool: str, names: Iterable[str]) -> None:
        """Tell those of these names."""
        with self._lock:
            ears = [ear for name in names for ear in self._ears.get((pool, name), ())]
        _tell(ears)

    def call_all(self) -> None:
        """Tell everybody."""
        with self._lock:
            ears = [ear for found in self._ears.values() for ear in found]
        _tell(ears)

    def call_rung(self, transaction: Transaction, session: int) -> None:
        """Tell those for whom other processes had news since the last time."""
        rows = transaction.execute("SELECT pool, name, rung FROM keyed_ear WHERE session = ?", (session,)).fetchall()
        ears: list[Ear] = []
        with self._lock:
            for pool, name, rung in rows:
                if self._rung.get((pool, name), 0) != rung and (pool, name) in self._ears:
                    self._rung[pool, name] = rung
                    ears += self._ears[pool, name]
        _tell(ears)


def _tell(ears: list[Ear]) -> None:
    for ear in ears:
        try:
            ear.heard()
        except Exception:
            logger.exception("a hint was not taken well")


def ring(transaction: Transaction, session: int, pool: str, names: Iterable[str]) -> set[int]:
    """Note that there is news for those names, and return the other sessions in which they listen."""
    found: set[int] = set()
    for name in names:
        rows = transaction.execute(
            "SELECT session FROM keyed_ear WHERE pool = ? AND name = ? AND session <> ?", (pool, name, session)
        ).fetchall()
        if rows:
            transaction.execute(
                "UPDATE keyed_ear SET rung = rung + 1 WHERE pool = ? AND name = ? AND session <> ?",
                (pool, name, session),
            )
            found.update(row[0] for row in rows)
    return found

"""Who listens in this process, and in which sessions others do.

A hint for a listener in this process is a call of its function. One for a listener elsewhere is a number in the file
that grows (`keyed_listener.rung`), written in the transaction that has news for it, and a ring of its session's bell:
so the woken process knows whom it was for, and a lost ring costs no more than the time until it looks by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from millpond._events import logger
from millpond._sqlite import Transaction


class Subscription:
    """Somebody who listens in this process."""

    def __init__(self, pool: str, name: str, heard: Callable[[], None], closed: Callable[[Subscription], None]) -> None:
        self.pool = pool
        self.name = name
        self.heard = heard
        self._closed = closed

    def close(self) -> None:
        """Unsubscribe."""
        self._closed(self)


class Listeners:
    """All who listen in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[tuple[str, str], list[Subscription]] = {}
        self._rung: dict[tuple[str, str], int] = {}

    def add(self, subscription: Subscription) -> None:
        """Add a subscription."""
        with self._lock:
            self._subscriptions.setdefault((subscription.pool, subscription.name), []).append(subscription)

    def discard(self, subscription: Subscription) -> bool:
        """Remove a subscription; return whether none of that name is left."""
        key = (subscription.pool, subscription.name)
        with self._lock:
            subscriptions = self._subscriptions.get(key, [])
            if subscription not in subscriptions:
                return False
            subscriptions.remove(subscription)
            if not subscriptions:
                del self._subscriptions[key]
                self._rung.pop(key, None)
            return not subscriptions

    def names(self) -> list[tuple[str, str]]:
        """Return the pools and names for which somebody listens here."""
        with self._lock:
            return list(self._subscriptions)

    def call(self, pool: str, names: Iterable[str]) -> None:
        """Call the subscriptions of these names."""
        with self._lock:
            subscriptions = [
                subscription for name in names for subscription in self._subscriptions.get((pool, name), ())
            ]
        _tell(subscriptions)

    def call_all(self) -> None:
        """Call all subscriptions."""
        with self._lock:
            subscriptions = [subscription for found in self._subscriptions.values() for subscription in found]
        _tell(subscriptions)

    def call_rung(self, transaction: Transaction, session: int) -> None:
        """Call the subscriptions for which other processes had news since the last time."""
        rows = transaction.execute(
            "SELECT pool, name, rung FROM keyed_listener WHERE session = ?", (session,)
        ).fetchall()
        subscriptions: list[Subscription] = []
        with self._lock:
            for pool, name, rung in rows:
                if self._rung.get((pool, name), 0) != rung and (pool, name) in self._subscriptions:
                    self._rung[pool, name] = rung
                    subscriptions += self._subscriptions[pool, name]
        _tell(subscriptions)


def _tell(subscriptions: list[Subscription]) -> None:
    for subscription in subscriptions:
        try:
            subscription.heard()
        except Exception:
            logger.exception("a hint was not taken well")


def ring(transaction: Transaction, session: int, pool: str, names: Iterable[str]) -> set[int]:
    """Note that there is news for those names, and return the other sessions in which they listen."""
    found: set[int] = set()
    for name in names:
        rows = transaction.execute(
            "SELECT session FROM keyed_listener WHERE pool = ? AND name = ? AND session <> ?", (pool, name, session)
        ).fetchall()
        if rows:
            transaction.execute(
                "UPDATE keyed_listener SET rung = rung + 1 WHERE pool = ? AND name = ? AND session <> ?",
                (pool, name, session),
            )
            found.update(row[0] for row in rows)
    return found

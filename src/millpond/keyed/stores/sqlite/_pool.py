"""The one row of a pool: what it was made with, its flags, its last numbers and its counters.

It is read at the beginning of each transaction and written at the end, if something in it has changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from millpond._sqlite import Transaction
from millpond.keyed.rules.records import Settings
from millpond.keyed.rules.tables import Numbers
from millpond.keyed.stores.sqlite._schema import OF_A_POOL


class Origin(NamedTuple):
    """What seldom changes of a pool, or never."""

    settings: Settings
    incarnation: str


_COLUMNS: Final = tuple(Numbers.__dataclass_fields__)
_READ: Final = f"SELECT id, settings, {', '.join(_COLUMNS)} FROM keyed_pool WHERE name = ?"
_WRITE: Final = f"UPDATE keyed_pool SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE id = ?"


class Pool(NamedTuple):
    """A pool, as a transaction found it."""

    id: int
    origin: Origin
    numbers: Numbers
    before: tuple[int, ...]

    def save(self, transaction: Transaction) -> None:
        """Write what has changed."""
        now = columns_of(self.numbers)
        if now != self.before:
            transaction.execute(_WRITE, (*now, self.id))

    def configure(self, transaction: Transaction, settings: Settings) -> None:
        """Use other settings from the next transaction on."""
        if settings != self.origin.settings:
            transaction.execute("UPDATE keyed_pool SET settings = ? WHERE id = ?", (_freeze(settings), self.id))


def columns_of(numbers: Numbers) -> tuple[int, ...]:
    """Return the columns (`dataclasses.astuple` copies deeply, which is slow)."""
    return tuple([getattr(numbers, name) for name in _COLUMNS])


class Pools:
    """The pools of a file, by name; what seldom changes of them is remembered."""

    def __init__(self) -> None:
        self._origins: dict[int, tuple[str, Origin]] = {}

    def find(self, transaction: Transaction, name: str) -> Pool | None:
        """Read a pool."""
        row = transaction.execute(_READ, (name,)).fetchone()
        if row is None:
            return None
        number, settings, before = row[0], row[1], row[2:]
        known = self._origins.get(number)
        if known is None or known[0] != settings:
            (incarnation,) = transaction.execute(
                "SELECT incarnation FROM keyed_pool WHERE id = ?", (number,)
            ).fetchone()
            known = self._origins[number] = settings, Origin(_thaw(settings), incarnation)
        return Pool(number, known[1], Numbers(*before), before)

    def make(self, transaction: Transaction, name: str, origin: Origin) -> None:
        """Write a new pool."""
        transaction.execute(
            "INSERT INTO keyed_pool (name, incarnation, settings) VALUES (?, ?, ?)",
            (name, origin.incarnation, _freeze(origin.settings)),
        )

    def drop(self, transaction: Transaction, name: str) -> None:
        """Delete a pool and all its rows."""
        pool = self.find(transaction, name)
        if pool is not None:
            for table in OF_A_POOL:
                transaction.execute(f"DELETE FROM keyed_{table} WHERE pool = ?", (pool.id,))
            transaction.execute("DELETE FROM keyed_pool WHERE id = ?", (pool.id,))


def _freeze(settings: Settings) -> str:
    return msgspec.json.encode(settings._asdict()).decode()


def _thaw(text: str) -> Settings:
    fields = msgspec.json.decode(text)
    return Settings(**{name: value for name, value in fields.items() if name in Settings._fields})

"""Resource pools as rows of a SQLite file.

A pool has one row with an image of its state at version `base`, and a log with one row per committed batch of entries:
the key is the pool's id and the version after the batch in one number, so that a batch is written into one page. A
replica that lacks entries reads the rows after its own version; if those do not join on to it (they were compacted
away, or the pool was deleted and made anew), it begins again from the image. The row of its own version shows that
they do: so the last rows always stay.
"""

from __future__ import annotations

from typing import Final

from millpond._sqlite import Transaction
from millpond.errors import EngineError
from millpond.resources._replica import HISTORY, Replica
from millpond.resources._state import State
from millpond.resources._wire import Entry, freeze, pack, thaw, unpack

TABLES: Final = """
CREATE TABLE IF NOT EXISTS resource_pool (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, base INTEGER NOT NULL, image BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS resource_log (row INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""
_VERSIONS: Final = 1 << 40
"""Versions of a pool: its rows have the numbers from `id * _VERSIONS` on."""
COMPACT: Final = 2000
"""Entries after which a pool's log is compacted, or four times as many as it has requests if that is more."""


def find(transaction: Transaction, name: str) -> int | None:
    """Return the id of a pool."""
    row = transaction.execute("SELECT id FROM resource_pool WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def create(transaction: Transaction, name: str) -> int:
    """Make an empty pool."""
    image = freeze(State())
    made = transaction.execute("INSERT INTO resource_pool (name, base, image) VALUES (?, 0, ?)", (name, image))
    return int(made.lastrowid or 0)


def names(transaction: Transaction) -> list[str]:
    """Return the names of all pools."""
    return [row[0] for row in transaction.execute("SELECT name FROM resource_pool ORDER BY name")]


def delete(transaction: Transaction, pool: int) -> None:
    """Delete a pool."""
    first = pool * _VERSIONS
    transaction.execute("DELETE FROM resource_log WHERE row >= ? AND row < ?", (first, first + _VERSIONS))
    transaction.execute("DELETE FROM resource_pool WHERE id = ?", (pool,))


def load(transaction: Transaction, pool: int) -> tuple[Replica, int]:
    """Read a whole pool; return it with the version of its image."""
    base, image = transaction.execute("SELECT base, image FROM resource_pool WHERE id = ?", (pool,)).fetchone()
    replica = Replica(thaw(image), base)
    before = transaction.execute(
        "SELECT body FROM resource_log WHERE row > ? AND row <= ? ORDER BY row",
        (pool * _VERSIONS, pool * _VERSIONS + base),
    )
    for (body,) in before:
        replica.history.extend(unpack(body))
    if follow(transaction, pool, replica) is None:
        raise EngineError(
            f"the log of resource pool {pool} has a gap after version {replica.version}: restore a backup"
        )
    return replica, base


def follow(transaction: Transaction, pool: int, replica: Replica) -> list[Entry] | None:
    """Let a replica follow what was written since; return that, or None if it does not join on."""
    first = pool * _VERSIONS
    here = first + replica.version
    rows = transaction.execute(
        "SELECT row, CASE WHEN row > ? THEN body END FROM resource_log WHERE row >= ? AND row < ? ORDER BY row",
        (here, here, first + _VERSIONS),
    ).fetchall()
    if replica.version:
        if not rows or rows[0][0] != here:
            return None
        del rows[0]
    news: list[Entry] = []
    for row, body in rows:
        entries = unpack(body)
        if first + replica.version + len(entries) != row:
            return None
        for entry in entries:
            replica.follow(entry)
        news += entries
    return news


def append(transaction: Transaction, pool: int, version: int, entries: list[Entry]) -> None:
    """Write a batch that leads to `version`."""
    transaction.execute("INSERT INTO resource_log VALUES (?, ?)", (pool * _VERSIONS + version, pack(entries)))


def compact(transaction: Transaction, pool: int, replica: Replica, base: int) -> int:
    """Write a new image if the log has become long; return the version of the image."""
    limit = max(COMPACT, 4 * len(replica.state.requests))
    if replica.version - base < limit:
        return base
    (base,) = transaction.execute("SELECT base FROM resource_pool WHERE id = ?", (pool,)).fetchone()
    if replica.version - base < limit:  # another has done it
        return int(base)
    transaction.execute(
        "UPDATE resource_pool SET base = ?, image = ? WHERE id = ?", (replica.version, freeze(replica.state), pool)
    )
    first = pool * _VERSIONS
    last = first + replica.version - HISTORY
    transaction.execute("DELETE FROM resource_log WHERE row > ? AND row <= ?", (first, last))
    return replica.version

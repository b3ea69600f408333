"""Resource pools as rows of a SQLite file.

A pool has one row with an image of its state at version `base`, and a log with one row per committed batch of entries:
the key is the pool's id and the version after the batch in one number, so that a batch is written into one page. A
replica that lacks entries reads the rows after its own version; if those do not join on to it (they were compacted
away, or the pool was deleted and made anew), it begins again from the image. The row of its own version shows that
they do: so the last rows always stay.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from millpond._sqlite import Transaction
from millpond.errors import EngineError
from millpond.resources._rules.replica import HISTORY, Replica
from millpond.resources._rules.state import State
from millpond.resources._rules.wire import Entry, freeze, pack, thaw, unpack

TABLES: Final = """
CREATE TABLE IF NOT EXISTS resource_pool (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, base INTEGER NOT NULL, image BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS resource_log (row INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""
_VERSIONS: Final = 1 << 40
"""Versions of a pool: its rows have the numbers from `id * _VERSIONS` on."""
COMPACT: Final = 2000
"""Entries after which a pool's log is compacted, or four times as many as it has requests if that is more."""


class UnreadablePool(EngineError):
    """What is stored of a pool makes no sense to this version. The other pools of the file are as they were."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(
            f"resource pool {name!r} cannot be read ({why}): if a newer Millpond wrote it, upgrade this one; else "
            "restore a backup, or delete the pool with admin.delete_pool(force=True). Other pools of the file are not "
            "harmed"
        )
        self.why = why


def _unreadable(error: Exception) -> UnreadablePool:
    return UnreadablePool(f"{type(error).__name__}: {error}")


def find(transaction: Transaction, name: str) -> int | None:
    """Return the id of a pool."""
    row = transaction.execute("SELECT id FROM resource_pool WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def create(transaction: Transaction, name: str) -> int:
    """Make an empty pool."""
    image = freeze(State())
    made = transaction.execute("INSERT INTO resource_pool (name, base, image) VALUES (?, 0, ?)", (name, image))
    return int(made.lastrowid or 0)


def names(transaction: Transaction, ids: Container[int] | None = None) -> list[str]:
    """Return the names of all pools, or of those with these ids."""
    rows = transaction.execute("SELECT id, name FROM resource_pool ORDER BY name")
    return [name for number, name in rows if ids is None or number in ids]


def delete(transaction: Transaction, pool: int) -> None:
    """Delete a pool."""
    first = pool * _VERSIONS
    transaction.execute("DELETE FROM resource_log WHERE row >= ? AND row < ?", (first, first + _VERSIONS))
    transaction.execute("DELETE FROM resource_pool WHERE id = ?", (pool,))
    transaction.execute("DELETE FROM session_pool WHERE pool = ?", (pool,))


def load(transaction: Transaction, pool: int) -> tuple[Replica, int]:
    """Read a whole pool; return it with the version of its image."""
    base, image = transaction.execute("SELECT base, image FROM resource_pool WHERE id = ?", (pool,)).fetchone()
    if type(base) is not int or base < 0:
        raise UnreadablePool(f"its image is of version {base!r}")
    before = transaction.execute(
        "SELECT body FROM resource_log WHERE row > ? AND row <= ? ORDER BY row",
        (pool * _VERSIONS, pool * _VERSIONS + base),
    ).fetchall()
    try:
        replica = Replica(thaw(image), base)
        for (body,) in before:
            replica.history.extend(unpack(body))
    except Exception as error:  # whatever it is, what is stored makes no sense
        raise _unreadable(error) from error
    if follow(transaction, pool, replica) is None:
        raise UnreadablePool(f"its log has a gap after version {replica.version}")
    return replica, base


def follow(transaction: Transaction, pool: int, replica: Replica) -> list[Entry] | None:
    """Apply what was written since to a replica; return that, or None if it does not join on."""
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
    try:
        for row, body in rows:
            entries = unpack(body)
            if first + replica.version + len(entries) != row:
                return None
            for entry in entries:
                replica.follow(entry)
            news += entries
    except Exception as error:
        raise _unreadable(error) from error
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

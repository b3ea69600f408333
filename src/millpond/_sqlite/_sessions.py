"""The sessions of a database: who uses it, as rows that outlive their process.

The order is what makes them proofs: a session's byte is locked before its row can be seen by anybody, so a row without
a lock is a dead session and never one that is about to begin.

A session notes which resource pools it uses, in `session_pool`, with the first thing it writes there: so whoever buries
it reads these pools, and not all of the file. The row with pool 0 says that it does; one of an older version has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._sqlite._liveness import LiveFile, Passport

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond._sqlite._database import Database, Transaction


def enrol(database: Database, live: LiveFile, also: Callable[[Transaction, int], object] | None = None) -> int:
    """Begin a session of this process and return its number, which nobody ever had; `also` is done with it."""
    transaction = None
    number = 0
    try:
        with database.writing() as transaction:
            passport = Passport.of_this_process(live).encode()
            number = transaction.execute("INSERT INTO session (passport) VALUES (?)", (passport,)).lastrowid or 0
            live.lock(number)
            note_use(transaction, number, 0)
            if also is not None:
                also(transaction, number)
        return number
    except BaseException:
        if number and transaction is not None and not transaction.committed:
            live.unlock(number)  # the next one gets the number
        raise


def enrolled(transaction: Transaction) -> dict[int, str]:
    """Read all sessions, with their passports as they are in the file."""
    return dict(transaction.execute("SELECT number, passport FROM session").fetchall())


def note_use(transaction: Transaction, number: int, pool: int) -> None:
    """Note that a session uses a resource pool."""
    transaction.execute("INSERT OR IGNORE INTO session_pool VALUES (?, ?)", (number, pool))


def used(transaction: Transaction, number: int) -> set[int] | None:
    """Return the ids of the resource pools that a session may have used; None if nobody has noted that."""
    pools = {pool for (pool,) in transaction.execute("SELECT pool FROM session_pool WHERE session = ?", (number,))}
    return pools - {0} if pools else None


def strike(transaction: Transaction, number: int) -> None:
    """Remove a session: one's own at its end, or that of a dead process when all that it held has been dealt with."""
    transaction.execute("DELETE FROM session WHERE number = ?", (number,))
    transaction.execute("DELETE FROM session_pool WHERE session = ?", (number,))

"""The sessions of a database: who uses it, as rows that outlive their process.

The order is what makes them proofs: a session's byte is locked before its row can be seen by anybody, so a row without
a lock is a dead session and never one that is about to begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond._sqlite._liveness import LiveFile, Passport

if TYPE_CHECKING:
    from millpond._sqlite._database import Database, Transaction


def enrol(database: Database, live: LiveFile) -> int:
    """Begin a session of this process and return its number, which nobody ever had."""
    transaction = None
    number = 0
    try:
        with database.writing() as transaction:
            passport = Passport.of_this_process(live).encode()
            number = transaction.execute("INSERT INTO session (passport) VALUES (?)", (passport,)).lastrowid or 0
            live.lock(number)
        return number
    except BaseException:
        if number and transaction is not None and not transaction.committed:
            live.unlock(number)  # the next one gets the number
        raise


def enrolled(transaction: Transaction) -> dict[int, Passport]:
    """Read all sessions."""
    rows = transaction.execute("SELECT number, passport FROM session").fetchall()
    return {number: Passport.decode(passport) for number, passport in rows}


def strike(transaction: Transaction, number: int) -> None:
    """Remove a session: one's own at its end, or that of a dead process when all that it held has been dealt with."""
    transaction.execute("DELETE FROM session WHERE number = ?", (number,))

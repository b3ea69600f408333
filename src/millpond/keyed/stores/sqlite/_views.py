"""Looking in: pools as they stand, read from the rows. Nothing here changes anything or passes the gate."""

from __future__ import annotations

from collections.abc import Sequence

from millpond._sqlite import Transaction
from millpond.keyed._envelope import came, opened
from millpond.keyed._records import Counts, DeadLetter, KeyView, Slot
from millpond.keyed.rules.tables import STATES
from millpond.keyed.stores.sqlite._pool import Pool

_FIRST = "(SELECT raw FROM keyed_job AS k WHERE k.pool = b.pool AND k.box = b.number ORDER BY k.position LIMIT 1)"
_LAST = "(SELECT raw FROM keyed_job AS k WHERE k.pool = b.pool AND k.box = b.number ORDER BY k.position DESC LIMIT 1)"
_STAMP = f"substr({_FIRST}, 1, 16)"
_OWNER = "coalesce((SELECT owner FROM keyed_slot AS s WHERE s.pool = b.pool AND s.slot = b.slot), '')"


def outcomes(transaction: Transaction, pool: Pool, now: int, ids: Sequence[str]) -> list[tuple[str, bytes] | None]:
    """Return how jobs ended, as far as that is (still) known."""
    found: list[tuple[str, bytes] | None] = []
    for job in ids:
        row = transaction.execute(
            "SELECT status, data FROM keyed_outcome WHERE pool = ? AND id = ? AND until > ?", (pool.id, job, now)
        ).fetchone()
        found.append(row)
    return found


def where(transaction: Transaction, pool: Pool, slot: int, mailbox: str, job: str) -> str:
    """Tell where a job is."""
    execute = transaction.execute
    if execute("SELECT 1 FROM keyed_delayed WHERE pool = ? AND id = ?", (pool.id, job)).fetchone():
        return "delayed"
    box = execute(
        "SELECT number, CASE WHEN state = 1 AND slot = ? THEN taken - done ELSE 0 END FROM keyed_box "
        "WHERE pool = ? AND mailbox = ?",
        (slot, pool.id, mailbox),
    ).fetchone()
    if box is not None:
        rows = execute(
            "SELECT position, raw FROM keyed_job WHERE pool = ? AND box = ? AND instr(raw, ?) ORDER BY position",
            (pool.id, box[0], job.encode()),
        )
        position = next((position for position, raw in rows if opened(raw).id == job), None)
        if position is not None:
            waiting = execute(
                "SELECT position FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT 1 OFFSET ?",
                (pool.id, *box),
            ).fetchone()
            return "running" if waiting is None or position < waiting[0] else "waiting"
    dead = execute("SELECT 1 FROM keyed_dead WHERE pool = ? AND job = ?", (pool.id, job)).fetchone()
    return "dead" if dead else "gone"


def owners(transaction: Transaction, pool: Pool) -> list[str]:
    """Return who owns each slot."""
    found = [""] * pool.origin.settings.slots
    for slot, owner in transaction.execute("SELECT slot, owner FROM keyed_slot WHERE pool = ?", (pool.id,)):
        found[slot] = owner
    return found


def slots(transaction: Transaction, pool: Pool) -> list[Slot]:
    """Return all slots."""
    found = [Slot()] * pool.origin.settings.slots
    rows = transaction.execute(
        "SELECT slot, owner, epoch, since, why, before FROM keyed_slot WHERE pool = ?", (pool.id,)
    )
    for slot, *fields in rows:
        found[slot] = Slot(*fields)
    return found


def keys(transaction: Transaction, pool: Pool, lane: str) -> list[KeyView]:
    """Return every mailbox of a lane that is not empty."""
    return [view for view, _ in _views(transaction, pool, lane, "NULL")]


def residents(transaction: Transaction, pool: Pool) -> list[tuple[KeyView, bytes]]:
    """Return the residents, each with its stored job (the last one, should it be about to be replaced)."""
    return _views(transaction, pool, "r", _LAST)


def _views(transaction: Transaction, pool: Pool, lane: str, job: str) -> list[tuple[KeyView, bytes]]:
    rows = transaction.execute(
        f"SELECT slot, mailbox, depth, {_STAMP}, state, CASE state WHEN 1 THEN worker ELSE {_OWNER} END, "
        f"CASE state WHEN 1 THEN token ELSE 0 END, failures, losses, {job} FROM keyed_box AS b "
        "WHERE pool = ? AND (lane = 'r') = ? AND depth > 0",
        (pool.id, lane == "r"),
    )
    views = [
        (KeyView(slot, mailbox, depth, came(stamp), STATES[state], worker, token, failures, losses), raw)
        for slot, mailbox, depth, stamp, state, worker, token, failures, losses, raw in rows
    ]
    return sorted(views, key=lambda one: (one[0].oldest, one[0].mailbox))


def dead_letters(transaction: Transaction, pool: Pool) -> list[DeadLetter]:
    """Return the dead letters, the oldest first."""
    rows = transaction.execute(
        "SELECT number, slot, mailbox, at, reason, raw FROM keyed_dead WHERE pool = ? ORDER BY number", (pool.id,)
    )
    return [DeadLetter(*row) for row in rows]


def counts(transaction: Transaction, pool: Pool, now: int) -> Counts:
    """Return how the pool stands."""
    numbers = pool.numbers
    ready, running, residents, oldest = transaction.execute(
        "SELECT count(*) FILTER (WHERE lane <> 'r' AND state = 0), count(*) FILTER (WHERE lane <> 'r' AND state = 1), "
        f"count(*) FILTER (WHERE lane = 'r' AND depth > 0), "
        f"min(CASE WHEN lane <> 'r' AND state = 0 THEN {_STAMP} END) FROM keyed_box AS b WHERE pool = ?",
        (pool.id,),
    ).fetchone()
    return Counts(
        now,
        numbers.jobs,
        ready,
        running,
        numbers.delayed,
        numbers.dead,
        residents,
        0 if oldest is None else int(oldest),
        numbers.dispatched,
        numbers.done,
        numbers.retried,
        numbers.buried,
        numbers.recovered,
        numbers.moved,
        bool(numbers.is_paused),
        bool(numbers.is_shut),
    )

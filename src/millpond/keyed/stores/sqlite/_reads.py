"""Answers to questions, read from the rows. Nothing here changes anything or passes the gate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from millpond._sqlite import Transaction
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.envelope import came, opened
from millpond.keyed.rules.page import Page, page_of
from millpond.keyed.rules.questions import Question
from millpond.keyed.rules.records import (
    LOOKED_AT,
    TAKE_BYTES,
    Act,
    Counts,
    DeadLetter,
    Delayed,
    KeyView,
    Paused,
    Slot,
    key_of,
)
from millpond.keyed.rules.tables import STATES
from millpond.keyed.stores.sqlite._pool import Pool

_ALL: Final = 1 << 62
_FIRST: Final = (
    "(SELECT raw FROM keyed_job AS k WHERE k.pool = b.pool AND k.box = b.number ORDER BY k.position LIMIT 1)"
)
_LAST: Final = (
    "(SELECT raw FROM keyed_job AS k WHERE k.pool = b.pool AND k.box = b.number ORDER BY k.position DESC LIMIT 1)"
)
_STAMP: Final = f"substr({_FIRST}, 1, 16)"
_VIEW: Final = (
    f"SELECT b.slot, b.mailbox, b.depth, {_STAMP}, b.state, "
    "CASE b.state WHEN 1 THEN b.worker ELSE coalesce(s.owner, '') END, CASE b.state WHEN 1 THEN b.token ELSE 0 END, "
    "CASE b.state WHEN 1 THEN b.taken - b.done ELSE 0 END, b.failures, b.losses, b.error, "
    "CASE b.state WHEN 2 THEN b.since ELSE 0 END, coalesce(s.since, 0), coalesce(s.why, ?), "
    f"CASE WHEN b.mailbox >= 'r' THEN {_LAST} ELSE x'' END "
    "FROM keyed_mailbox AS b LEFT JOIN keyed_slot AS s ON s.pool = b.pool AND s.slot = b.slot "
)


def answer(transaction: Transaction, pool: Pool, now: int, question: Question[Any]) -> Any:  # noqa: C901  (a table)
    """Answer a question."""
    match question:
        case about.Owners():
            return pool.numbers.version, _owners(transaction, pool)
        case about.Slots():
            return _slots(transaction, pool)
        case about.Keys(lane, after, limit, is_running):
            return _keys(transaction, pool, now, lane, after, limit, is_running=is_running)
        case about.Key(_, mailbox):
            rows = transaction.execute(
                f"{_VIEW} WHERE b.pool = ? AND b.mailbox = ?", (Slot().why, pool.id, mailbox)
            ).fetchall()
            return next(iter(_views(transaction, pool, rows)), None)
        case about.Jobs(spans):
            return _jobs(transaction, pool, spans)
        case about.DelayedJobs(after, limit):
            rows = transaction.execute(
                "SELECT id, due, slot, mailbox, body FROM keyed_delayed WHERE pool = ? AND id > ? ORDER BY id LIMIT ?",
                (pool.id, after, _more(limit)),
            ).fetchall()
            return page_of([Delayed(*row[1:]) for row in rows], [row[0] for row in rows], now, limit)
        case about.DeadLetters():
            return _dead_letters(transaction, pool, now, question)
        case about.Pauses(after, limit):
            rows = transaction.execute(
                "SELECT key, since, by, reason FROM keyed_paused WHERE pool = ? AND '=' || key > ? "
                "ORDER BY key LIMIT ?",
                (pool.id, after, _more(limit)),
            ).fetchall()
            return page_of([Paused(*row) for row in rows], [f"={row[0]}" for row in rows], now, limit)
        case about.Acts(limit):
            rows = transaction.execute(
                "SELECT at, by, what, about, reason FROM keyed_act WHERE pool = ? ORDER BY number DESC LIMIT ?",
                (pool.id, limit),
            ).fetchall()
            return [Act(*row) for row in reversed(rows)]
        case about.Where(slot, mailbox, job):
            return _where(transaction, pool, slot, mailbox, job)
        case about.Outcomes(ids):
            return _outcomes(transaction, pool, now, ids)
        case about.Counts():
            return _counts(transaction, pool, now)
    raise TypeError(f"no question: {question!r}")


def _more(limit: int | None) -> int:
    """Return how many rows to read, to see whether there are more."""
    return _ALL if limit is None else limit + 1


def _dead_letters(transaction: Transaction, pool: Pool, now: int, question: about.DeadLetters) -> Page[DeadLetter]:
    """Return dead letters; of those of other keys, nothing but number and mailbox is read."""
    rest = "number < ? ORDER BY number DESC" if question.is_newest_first else "number > ? ORDER BY number"
    start = int(question.after or (_ALL if question.is_newest_first else 0))
    places = transaction.execute(f"SELECT number, mailbox FROM keyed_dead WHERE pool = ? AND {rest}", (pool.id, start))
    wanted = (number for number, mailbox in places if question.key in (None, key_of(mailbox)))
    numbers = list(islice(wanted, _more(question.limit)))
    places.close()
    letters = [
        DeadLetter(
            *transaction.execute(
                "SELECT number, slot, mailbox, at, reason, raw, attempts FROM keyed_dead WHERE pool = ? AND number = ?",
                (pool.id, number),
            ).fetchone()
        )
        for number in numbers
    ]
    return page_of(letters, [str(number) for number in numbers], now, question.limit)


def _jobs(transaction: Transaction, pool: Pool, spans: Sequence[tuple[str, int, int]]) -> list[list[bytes] | None]:
    """Return some jobs of mailboxes, until it is too much."""
    found: list[list[bytes] | None] = []
    size = 0
    for mailbox, first, limit in spans:
        if size > TAKE_BYTES:
            found.append(None)
            continue
        rows = transaction.execute(
            "SELECT k.raw FROM keyed_mailbox AS b JOIN keyed_job AS k ON k.pool = b.pool AND k.box = b.number "
            "WHERE b.pool = ? AND b.mailbox = ? ORDER BY k.position LIMIT ? OFFSET ?",
            (pool.id, mailbox, limit, first),
        )
        jobs = [raw for (raw,) in rows]
        size += sum(map(len, jobs))
        found.append(jobs)
    return found


def _outcomes(transaction: Transaction, pool: Pool, now: int, ids: Sequence[str]) -> list[tuple[str, bytes] | None]:
    """Return how jobs ended, as far as that is (still) known, and as much as fits."""
    found: list[tuple[str, bytes] | None] = []
    size = 0
    for job in ids:
        if size > TAKE_BYTES:
            break
        row = transaction.execute(
            "SELECT status, data FROM keyed_outcome WHERE pool = ? AND id = ? AND until > ?", (pool.id, job, now)
        ).fetchone()
        found.append(row)
        size += len(row[1]) if row is not None else 0
    return found


def _where(transaction: Transaction, pool: Pool, slot: int, mailbox: str, job: str) -> str:
    """Return where a job is."""
    execute = transaction.execute
    if execute("SELECT 1 FROM keyed_delayed WHERE pool = ? AND id = ?", (pool.id, job)).fetchone():
        return "delayed"
    box = execute(
        "SELECT number, CASE WHEN state = 1 AND slot = ? THEN taken - done ELSE 0 END FROM keyed_mailbox "
        "WHERE pool = ? AND mailbox = ?",
        (slot, pool.id, mailbox),
    ).fetchone()
    if box is not None:
        rows = execute(
            "SELECT position, raw FROM keyed_job WHERE pool = ? AND box = ? AND instr(raw, ?) ORDER BY position DESC",
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


def _owners(transaction: Transaction, pool: Pool) -> list[str]:
    """Return who owns each slot."""
    found = [""] * pool.origin.settings.slots
    for slot, owner in transaction.execute("SELECT slot, owner FROM keyed_slot WHERE pool = ?", (pool.id,)):
        found[slot] = owner
    return found


def _slots(transaction: Transaction, pool: Pool) -> list[Slot]:
    """Return all slots."""
    found = [Slot()] * pool.origin.settings.slots
    rows = transaction.execute(
        "SELECT slot, owner, epoch, since, why, before FROM keyed_slot WHERE pool = ?", (pool.id,)
    )
    for slot, *fields in rows:
        found[slot] = Slot(*fields)
    return found


def _keys(
    transaction: Transaction,
    pool: Pool,
    now: int,
    lane: str,
    after: str,
    limit: int | None,
    *,
    is_running: bool,
) -> Page[KeyView]:
    """Return mailboxes of a lane that are not empty, by name."""
    view = (
        _VIEW.replace("keyed_mailbox AS b", "keyed_mailbox AS b INDEXED BY keyed_mailbox_running")
        if is_running
        else _VIEW
    )
    running = "AND b.state = 1" if is_running else ""
    rows = transaction.execute(
        f"{view} WHERE b.pool = ? AND b.mailbox > ? AND b.mailbox < ? AND b.depth > 0 {running} "
        "ORDER BY b.mailbox LIMIT ?",
        (Slot().why, pool.id, max(after, lane), f"{lane};", _more(limit)),
    ).fetchall()
    views = _views(transaction, pool, rows)
    return page_of(views, [view.mailbox for view in views], now, limit)


def _views(transaction: Transaction, pool: Pool, rows: Sequence[Sequence[Any]]) -> list[KeyView]:
    views = [
        KeyView(slot, mailbox, depth, came(stamp), STATES[state], *rest)
        for slot, mailbox, depth, stamp, state, *rest in rows
    ]
    if not any(view.last for view in views):
        return views
    cancelled = {job for (job,) in transaction.execute("SELECT id FROM keyed_cancelled WHERE pool = ?", (pool.id,))}
    return [view._replace(is_ending=opened(view.last).id in cancelled) for view in views]


def _counts(transaction: Transaction, pool: Pool, now: int) -> Counts:
    """Return how the pool stands."""
    numbers, execute = pool.numbers, transaction.execute
    (running,) = execute(
        "SELECT count(*) FROM keyed_mailbox INDEXED BY keyed_mailbox_running "
        "WHERE pool = ? AND state = 1 AND lane <> 'r'",
        (pool.id,),
    ).fetchone()
    (residents,) = execute(
        "SELECT count(*) FROM keyed_mailbox WHERE pool = ? AND mailbox > 'r:' AND mailbox < 'r;' AND depth > 0",
        (pool.id,),
    ).fetchone()
    return Counts(
        now,
        numbers.jobs,
        numbers.ready,
        running,
        numbers.delayed,
        numbers.dead,
        residents,
        _oldest(transaction, pool, numbers.ready),
        numbers.dispatched,
        numbers.done,
        numbers.retried,
        numbers.dead_total,
        numbers.recovered,
        numbers.moved,
        bool(numbers.is_paused),
        bool(numbers.is_shut),
    )


def _oldest(transaction: Transaction, pool: Pool, ready: int) -> int:
    """Return when the oldest job came that is ready; of many keys, only those that are next in their slots count."""
    if ready <= LOOKED_AT:
        row = transaction.execute(
            f"SELECT min({_STAMP}) FROM keyed_mailbox AS b INDEXED BY keyed_mailbox_ready "
            "WHERE pool = ? AND state = 0 AND lane <> 'r'",
            (pool.id,),
        ).fetchone()
    else:
        slots = json.dumps(list(range(pool.origin.settings.slots)))
        row = transaction.execute(
            f"SELECT min({_STAMP}) FROM (SELECT ? AS pool, "
            "(SELECT number FROM keyed_mailbox INDEXED BY keyed_mailbox_ready "
            "WHERE pool = ? AND state = 0 AND slot = j.value AND lane = l.value ORDER BY place LIMIT 1) AS number "
            """FROM json_each(?) AS j CROSS JOIN json_each('["j", "s"]') AS l) AS b""",
            (pool.id, pool.id, slots),
        ).fetchone()
    return int(row[0] or 0)

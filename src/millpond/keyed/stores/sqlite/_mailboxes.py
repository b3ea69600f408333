"""Mailboxes and their jobs as rows, within one transaction.

A mailbox is read when it is first asked for, changed in memory, and written by `flush`, all that were changed at once.
Whoever looks at rows by anything but the name of a mailbox flushes first. A mailbox that is empty has no row.

Indexes are named where SQLite, which knows no sizes, would rather walk through the whole pool.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from millpond._sqlite import Transaction
from millpond.keyed.rules.envelope import opened
from millpond.keyed.rules.records import key_of
from millpond.keyed.rules.tables import NOWHERE, PARKED, READY, RUNNING, Mailbox
from millpond.keyed.stores.sqlite._pool import Pool


@dataclass(slots=True, eq=False)
class SqlMailbox(Mailbox):
    """A mailbox: its fields up to `tail` are its columns."""

    number: int = 0
    """Its jobs name it by this."""
    place: int = 0
    """Its turn among those that stand where it stands."""
    tail: int = 0
    """The position of the next job to come."""
    stored: int = NOWHERE
    """The state that it has in the file."""
    is_stored: bool = False
    is_changed: bool = False
    """More than its depth and tail."""


_COLUMNS: Final = (
    "mailbox, lane, slot, state, depth, failures, losses, deaths, token, worker, taken, done, is_borrowed, unknown, "
    "since, error, number, place, tail"
)
_columns: Final = attrgetter(
    "name", "queue", "slot", "state", "depth", "failures", "losses", "deaths", "token", "worker", "taken", "done",
    "is_borrowed", "unknown", "since", "error", "number", "place", "tail",
)  # fmt: skip
_standing: Final = attrgetter(
    "queue", "state", "place", "depth", "tail", "failures", "losses", "deaths", "token", "worker", "taken", "done",
    "is_borrowed", "unknown", "since", "error",
)  # fmt: skip
_INSERT: Final = f"INSERT INTO keyed_mailbox (pool, {_COLUMNS}) VALUES ({', '.join('?' * 20)})"
_UPDATE: Final = (
    "UPDATE keyed_mailbox SET lane = ?, state = ?, place = ?, depth = ?, tail = ?, failures = ?, losses = ?, "
    "deaths = ?, token = ?, worker = ?, taken = ?, done = ?, is_borrowed = ?, unknown = ?, since = ?, error = ? "
    "WHERE pool = ? AND mailbox = ?"
)
_COUNT: Final = "UPDATE keyed_mailbox SET depth = ?, tail = ? WHERE pool = ? AND mailbox = ?"
_DELETE: Final = "DELETE FROM keyed_mailbox WHERE pool = ? AND mailbox = ?"
_CHUNK: Final = 32
"""So many mailboxes are read at once. (Not as JSON: SQLite ends a text there at a zero byte.)"""
_HEADS: Final = "SELECT raw FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT ?"
_ANY_SIZE: Final = 1 << 62
_SELECT: Final = f"SELECT {_COLUMNS} FROM keyed_mailbox WHERE pool = ? AND mailbox = ?"
_SELECT_CHUNK: Final = f"SELECT {_COLUMNS} FROM keyed_mailbox WHERE pool = ? AND mailbox IN ({', '.join('?' * _CHUNK)})"


class SqlMailboxes:
    """The mailboxes of a pool, for one transaction."""

    def __init__(self, transaction: Transaction, pool: Pool, *, has_parked: bool) -> None:
        self.has_parked = has_parked
        self._execute = transaction.execute
        self._executemany = transaction.executemany
        self._pool = pool.id
        self._numbers = pool.numbers
        self._known: dict[str, SqlMailbox | None] = {}
        self._dirty: dict[str, SqlMailbox] = {}
        self._added: list[tuple[int, int, int, bytes]] = []
        self._emptied: list[tuple[int, int]] = []
        self._left: set[tuple[str, int]] = set()
        """Where somebody left who is ready by the file."""
        self._stocked: set[tuple[str, int]] = set()
        """Where somebody is ready for sure."""

    # -- mailboxes ----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> SqlMailbox | None:
        box = self._find(name)
        return None if box is None or not box.depth else box

    def _find(self, name: str) -> SqlMailbox | None:
        try:
            return self._known[name]
        except KeyError:
            row = self._execute(_SELECT, (self._pool, name)).fetchone()
            box = self._known[name] = None if row is None else _load(row)
            return box

    def preload(self, names: Iterable[str]) -> None:
        missing = list({name for name in names if name not in self._known})
        self._known.update(dict.fromkeys(missing))
        for start in range(0, len(missing), _CHUNK):
            some = missing[start : start + _CHUNK]
            for row in self._execute(_SELECT_CHUNK, (self._pool, *some, *[None] * (_CHUNK - len(some)))):
                self._known[row[0]] = _load(row)

    def make(self, slot: int, name: str) -> SqlMailbox:
        box = self._find(name)
        if box is None:
            self._numbers.last_box += 1
            box = self._known[name] = SqlMailbox(name, name[0], slot, number=self._numbers.last_box)
        return box

    def changed(self, box: SqlMailbox) -> None:
        """Take note that a mailbox is to be written."""
        box.is_changed = True
        self._dirty[box.name] = box

    # -- places -------------------------------------------------------------------------------------------------------

    def move(self, box: SqlMailbox, state: int) -> None:
        place = 0
        if state in (RUNNING, PARKED):
            self._numbers.last_place += 1
            place = self._numbers.last_place
            self.has_parked = self.has_parked or state == PARKED
        if READY in (box.state, box.stored):
            self._leave_ready(box)
        if state != RUNNING:
            box.queue = box.lane
        self._stand(box, state, place)

    def _leave_ready(self, box: SqlMailbox) -> None:
        key = (box.queue, box.slot)
        self._left.add(key)
        self._stocked.discard(key)

    def make_ready(self, box: SqlMailbox, queue: str, *, first: bool = False) -> bool:
        if READY in (box.state, box.stored):
            self._leave_ready(box)
        box.queue = queue
        key = (queue, box.slot)
        is_only = not self.has_ready(*key)
        if first:
            self._numbers.first_place -= 1
            self._stand(box, READY, self._numbers.first_place)
        else:
            self._numbers.last_place += 1
            self._stand(box, READY, self._numbers.last_place)
        self._stocked.add(key)
        return is_only

    def _stand(self, box: SqlMailbox, state: int, place: int) -> None:
        if box.lane == "j":
            self._numbers.ready += (state == READY) - (box.state == READY)
        box.state, box.place = state, place
        self.changed(box)

    def has_ready(self, queue: str, slot: int) -> bool:
        key = (queue, slot)
        if key in self._stocked:
            return True
        if key in self._left:
            self.flush()
        row = self._execute(
            "SELECT 1 FROM keyed_mailbox INDEXED BY keyed_mailbox_ready "
            "WHERE pool = ? AND state = 0 AND slot = ? AND lane = ? LIMIT 1",
            (self._pool, slot, queue),
        ).fetchone()
        if row is not None:
            self._stocked.add(key)
        return row is not None

    def ready(self, queue: str, slot: int, most: int) -> tuple[Sequence[SqlMailbox], bool]:
        """As the protocol says; for a taker, who flushes before it begins."""
        if (queue, slot) in self._left:
            self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM keyed_mailbox INDEXED BY keyed_mailbox_ready "
            "WHERE pool = ? AND state = 0 AND slot = ? AND lane = ? ORDER BY place LIMIT ?",
            (self._pool, slot, queue, most + 1),
        ).fetchall()
        return [self._adopt(row) for row in rows[:most]], len(rows) > most

    def ready_slots(self, queue: str, slots: Sequence[int]) -> set[int]:
        """Return those of the slots in which something is ready."""
        self.flush()
        rows = self._execute(
            "SELECT j.value FROM json_each(?) AS j WHERE EXISTS "
            "(SELECT 1 FROM keyed_mailbox INDEXED BY keyed_mailbox_ready "
            "WHERE pool = ? AND state = 0 AND slot = j.value AND lane = ?)",
            (json.dumps(list(slots)), self._pool, queue),
        )
        return {row[0] for row in rows}

    def running(self, slots: Sequence[int]) -> dict[int, list[SqlMailbox]]:
        """Return those that run, by slot, in the order of their takes."""
        self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM json_each(?) AS j CROSS JOIN keyed_mailbox AS b INDEXED BY keyed_mailbox_running "
            "ON b.pool = ? AND b.state = 1 AND b.slot = j.value ORDER BY b.place",
            (json.dumps(list(slots)), self._pool),
        ).fetchall()
        found: dict[int, list[SqlMailbox]] = {}
        for row in rows:
            found.setdefault(row[2], []).append(self._adopt(row))
        return found

    def runs_suspect(self, worker: str) -> bool:
        self.flush()
        row = self._execute(
            "SELECT 1 FROM keyed_mailbox INDEXED BY keyed_mailbox_suspect "
            "WHERE pool = ? AND worker = ? AND state = 1 AND lane = 's' LIMIT 1",
            (self._pool, worker),
        ).fetchone()
        return row is not None

    def borrowed(self) -> list[SqlMailbox]:
        """Return those that run with somebody who took them when they were parked, in the order of their takes."""
        self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM keyed_mailbox INDEXED BY keyed_mailbox_borrowed "
            "WHERE pool = ? AND state = 1 AND is_borrowed = 1 ORDER BY place",
            (self._pool,),
        ).fetchall()
        return [self._adopt(row) for row in rows]

    def parked(self, lane: str, unknown: str, most: int) -> list[SqlMailbox]:
        """Return those that are parked."""
        self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM keyed_mailbox INDEXED BY keyed_mailbox_parked "
            "WHERE pool = ? AND state = 4 AND lane = ? AND unknown = ? ORDER BY place LIMIT ?",
            (self._pool, lane, unknown, most),
        ).fetchall()
        return [self._adopt(row) for row in rows]

    def paused(self, slot: int, key: str) -> list[SqlMailbox]:
        self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM keyed_mailbox INDEXED BY keyed_mailbox_paused "
            "WHERE pool = ? AND state = 3 AND slot = ? ORDER BY mailbox",
            (self._pool, slot),
        ).fetchall()
        return [self._adopt(row) for row in rows if key_of(row[0]) == key]

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def append(self, box: SqlMailbox, raw: bytes) -> None:
        """Put a job at the end of a mailbox."""
        self._added.append((self._pool, box.number, box.tail, raw))
        box.tail += 1
        box.depth += 1
        self._dirty[box.name] = box

    def heads(self, box: SqlMailbox, count: int, size: int = 0) -> Sequence[bytes]:
        self._flush_jobs()
        cursor = self._execute(_HEADS, (self._pool, box.number, count))
        jobs: tuple[bytes, ...] = cursor.fetchone()
        if count > 1 and box.depth > 1:
            left = (size or _ANY_SIZE) - len(jobs[0])
            more: list[bytes] = []
            for (raw,) in cursor:
                left -= len(raw)
                if left < 0:
                    break
                more.append(raw)
            jobs = (*jobs, *more)
        cursor.close()
        return jobs

    def last(self, box: SqlMailbox) -> bytes:
        """Return the last job."""
        self._flush_jobs()
        row = self._execute(
            "SELECT raw FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position DESC LIMIT 1",
            (self._pool, box.number),
        ).fetchone()
        return bytes(row[0])

    def waiting(self, box: SqlMailbox, taken: int, text: str) -> list[tuple[int, bytes]]:
        first = self._position(box, taken)
        return [(position, raw) for position, raw in self._containing(box, text) if position >= first]

    def find(self, box: SqlMailbox, job: str, taken: int) -> tuple[int, bytes, bool] | None:
        for position, raw in reversed(self._containing(box, job)):
            if opened(raw).id == job:
                return position, raw, position < self._position(box, taken)
        return None

    def _containing(self, box: SqlMailbox, text: str) -> list[tuple[int, bytes]]:
        """Return those jobs, with their positions, in which a text occurs: SQLite sorts out nearly all others."""
        self._flush_jobs()
        return self._execute(
            "SELECT position, raw FROM keyed_job WHERE pool = ? AND box = ? AND instr(raw, ?) ORDER BY position",
            (self._pool, box.number, text.encode()),
        ).fetchall()

    def _position(self, box: SqlMailbox, index: int) -> int:
        """Return the position of the job of that index; past the end: one that no job has reached."""
        self._flush_jobs()
        row = self._execute(
            "SELECT position FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT 1 OFFSET ?",
            (self._pool, box.number, index),
        ).fetchone()
        return box.tail if row is None else int(row[0])

    def remove(self, box: SqlMailbox, position: int) -> bool:
        was_first = self._position(box, 0) == position
        self._execute(
            "DELETE FROM keyed_job WHERE pool = ? AND box = ? AND position = ?", (self._pool, box.number, position)
        )
        box.depth -= 1
        self._dirty[box.name] = box
        return was_first

    def pop(self, box: SqlMailbox, count: int) -> None:
        """Remove jobs from the head of a mailbox."""
        if count >= box.depth:
            if self._added:
                self._flush_jobs()
            self._emptied.append((self._pool, box.number))
            box.depth = 0
            self._dirty[box.name] = box
            return
        self._flush_jobs()
        self._execute(
            "DELETE FROM keyed_job WHERE pool = ? AND box = ? AND position <= "
            "(SELECT position FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT 1 OFFSET ?)",
            (self._pool, box.number, self._pool, box.number, count - 1),
        )
        box.depth -= count
        self._dirty[box.name] = box

    def cut(self, box: SqlMailbox, keep: int) -> list[bytes]:
        self._flush_jobs()
        rest = self._execute(
            "SELECT position, raw FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position DESC LIMIT ?",
            (self._pool, box.number, max(0, box.depth - keep)),
        ).fetchall()
        if rest:
            self._execute(
                "DELETE FROM keyed_job WHERE pool = ? AND box = ? AND position >= ?",
                (self._pool, box.number, rest[-1][0]),
            )
            box.depth -= len(rest)
            self._dirty[box.name] = box
        return [raw for _, raw in reversed(rest)]

    # -- writing ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write all that was changed."""
        self._flush_jobs()
        if not self._dirty:
            return
        new, changed, counted, gone = [], [], [], []
        pool = self._pool
        for box in self._dirty.values():
            if not box.depth:
                if box.is_stored:
                    gone.append((pool, box.name))
                self._known[box.name] = None
                continue
            if not box.is_stored:
                new.append((pool, *_columns(box)))
            elif box.is_changed:
                changed.append((*_standing(box), pool, box.name))
            else:
                counted.append((box.depth, box.tail, pool, box.name))
            box.is_stored, box.is_changed, box.stored = True, False, box.state
        self._dirty.clear()
        self._left.clear()
        for statement, rows in ((_DELETE, gone), (_INSERT, new), (_UPDATE, changed), (_COUNT, counted)):
            if rows:
                self._executemany(statement, rows)

    def _flush_jobs(self) -> None:
        if self._emptied:
            self._executemany("DELETE FROM keyed_job WHERE pool = ? AND box = ?", self._emptied)
            self._emptied.clear()
        if self._added:
            self._executemany("INSERT INTO keyed_job VALUES (?, ?, ?, ?)", self._added)
            self._added.clear()

    def _adopt(self, row: Sequence[Any]) -> SqlMailbox:
        """Return the mailbox of a row, which is read but once."""
        box = self._known.get(row[0])
        if box is None:
            box = self._known[row[0]] = _load(row)
        return box


def _load(row: Sequence[Any]) -> SqlMailbox:
    box = SqlMailbox(*row)
    box.stored, box.is_stored = box.state, True
    return box

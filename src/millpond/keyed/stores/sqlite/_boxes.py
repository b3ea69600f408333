"""Mailboxes and their jobs as rows, within one transaction.

A mailbox is read when it is first asked for, changed in memory, and written by `flush`, all that were changed at once.
Whoever looks at rows by anything but the name of a mailbox flushes first. A mailbox that is empty has no row.

Indexes are named where SQLite, which knows no sizes, would rather walk through the whole pool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from millpond._sqlite import Transaction
from millpond.keyed._records import HEAVY
from millpond.keyed.stores.sqlite._pool import Pool

NOWHERE: Final = -1
READY: Final = 0
RUNNING: Final = 1
LATER: Final = 2
HELD: Final = 3
SHELVED: Final = 4
STATES: Final = ("ready", "running", "retry", "held", "shelved")


@dataclass(slots=True)
class Box:
    """A mailbox: the first fields are its columns."""

    mailbox: str
    number: int
    slot: int
    state: int = NOWHERE
    place: int = 0
    depth: int = 0
    tail: int = 0
    """The position of the next job to come."""
    failures: int = 0
    losses: int = 0
    token: int = 0
    worker: str = ""
    taken: int = 0
    done: int = 0
    is_lent: int = 0
    shelf: str = ""
    since: int = 0
    """When it came to a shelf; when a retry is due."""
    stored: int = NOWHERE
    """The state that it has in the file."""
    is_stored: bool = False
    is_changed: bool = False
    """More than its depth and tail."""

    def is_run_of(self, slot: int, token: int) -> bool:
        """Tell whether that take is running."""
        return self.state == RUNNING and self.slot == slot and self.token == token


_COLUMNS: Final = (
    "mailbox, number, slot, state, place, depth, tail, failures, losses, token, worker, taken, done, is_lent, shelf, "
    "since"
)
_INSERT: Final = f"INSERT INTO keyed_box (pool, lane, {_COLUMNS}) VALUES ({', '.join('?' * 18)})"
_UPDATE: Final = (
    "UPDATE keyed_box SET state = ?, place = ?, depth = ?, tail = ?, failures = ?, losses = ?, token = ?, worker = ?, "
    "taken = ?, done = ?, is_lent = ?, shelf = ?, since = ? WHERE pool = ? AND mailbox = ?"
)
_COUNT: Final = "UPDATE keyed_box SET depth = ?, tail = ? WHERE pool = ? AND mailbox = ?"
_DELETE: Final = "DELETE FROM keyed_box WHERE pool = ? AND mailbox = ?"
_CHUNK: Final = 32
"""So many mailboxes are read at once. (Not as JSON: SQLite ends a text there at a zero byte.)"""
_SELECT_CHUNK: Final = f"SELECT {_COLUMNS} FROM keyed_box WHERE pool = ? AND mailbox IN ({', '.join('?' * _CHUNK)})"


class Boxes:
    """The mailboxes of a pool, for one transaction."""

    def __init__(self, transaction: Transaction, pool: Pool) -> None:
        self._execute = transaction.execute
        self._executemany = transaction.executemany
        self._pool = pool.id
        self._numbers = pool.numbers
        self._known: dict[str, Box | None] = {}
        self._dirty: dict[str, Box] = {}
        self._added: list[tuple[int, int, int, bytes]] = []
        self._emptied: list[tuple[int, int]] = []
        self._left: set[tuple[str, int]] = set()
        """Where somebody left who is ready by the file."""
        self._stocked: set[tuple[str, int]] = set()
        """Where somebody is ready for sure."""

    # -- mailboxes ----------------------------------------------------------------------------------------------------

    def get(self, mailbox: str) -> Box | None:
        """Return a mailbox that is not empty."""
        box = self._find(mailbox)
        return None if box is None or not box.depth else box

    def _find(self, mailbox: str) -> Box | None:
        try:
            return self._known[mailbox]
        except KeyError:
            row = self._execute(
                f"SELECT {_COLUMNS} FROM keyed_box WHERE pool = ? AND mailbox = ?", (self._pool, mailbox)
            ).fetchone()
            box = self._known[mailbox] = None if row is None else _load(row)
            return box

    def preload(self, mailboxes: Iterable[str]) -> None:
        """Read many at once, since they will be asked for."""
        names = list({name for name in mailboxes if name not in self._known})
        self._known.update(dict.fromkeys(names))
        for start in range(0, len(names), _CHUNK):
            some = names[start : start + _CHUNK]
            for row in self._execute(_SELECT_CHUNK, (self._pool, *some, *[None] * (_CHUNK - len(some)))):
                self._known[row[0]] = _load(row)

    def found(self, slot: int, mailbox: str) -> Box:
        """Return a mailbox, a new one if need be."""
        box = self._find(mailbox)
        if box is None:
            self._numbers.last_box += 1
            box = self._known[mailbox] = Box(mailbox, self._numbers.last_box, slot)
        return box

    def changed(self, box: Box) -> None:
        """Take note that a mailbox is to be written."""
        box.is_changed = True
        self._dirty[box.mailbox] = box

    def set_state(self, box: Box, state: int, place: int = 0) -> None:
        """Let a mailbox stand somewhere else."""
        if state != READY and READY in (box.state, box.stored):
            key = (box.mailbox[0], box.slot)
            self._left.add(key)
            self._stocked.discard(key)
        box.state = state
        box.place = place
        self.changed(box)

    def append_ready(self, box: Box, *, first: bool) -> bool:
        """Let a mailbox be ready; tell whether it is the only one of its slot and lane."""
        key = (box.mailbox[0], box.slot)
        is_only = not self.has_ready(*key)
        if first:
            self._numbers.first_place -= 1
            self.set_state(box, READY, self._numbers.first_place)
        else:
            self._numbers.last_place += 1
            self.set_state(box, READY, self._numbers.last_place)
        self._stocked.add(key)
        return is_only

    def has_ready(self, lane: str, slot: int) -> bool:
        """Tell whether a mailbox is ready in that slot."""
        key = (lane, slot)
        if key in self._stocked:
            return True
        if key in self._left:
            self.flush()
        row = self._execute(
            "SELECT 1 FROM keyed_box INDEXED BY keyed_box_ready "
            "WHERE pool = ? AND state = 0 AND slot = ? AND lane = ? LIMIT 1",
            (self._pool, slot, lane),
        ).fetchone()
        if row is not None:
            self._stocked.add(key)
        return row is not None

    def ready(self, lane: str, slot: int, limit: int) -> list[Box]:
        """Return those that are ready, in their order; for a taker, who flushes before it begins."""
        if (lane, slot) in self._left:
            self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM keyed_box INDEXED BY keyed_box_ready "
            "WHERE pool = ? AND state = 0 AND slot = ? AND lane = ? ORDER BY place LIMIT ?",
            (self._pool, slot, lane, limit),
        ).fetchall()
        return [self._adopt(row) for row in rows]

    def ready_slots(self, lane: str, slots: Sequence[int]) -> set[int]:
        """Return those of the slots in which something is ready."""
        self.flush()
        rows = self._execute(
            "SELECT j.value FROM json_each(?) AS j WHERE EXISTS "
            "(SELECT 1 FROM keyed_box INDEXED BY keyed_box_ready "
            "WHERE pool = ? AND state = 0 AND slot = j.value AND lane = ?)",
            (json.dumps(list(slots)), self._pool, lane),
        )
        return {row[0] for row in rows}

    def running(self, slots: Sequence[int]) -> dict[int, list[Box]]:
        """Return those that run, by slot, in the order of their takes."""
        self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM json_each(?) AS j CROSS JOIN keyed_box AS b INDEXED BY keyed_box_running "
            "ON b.pool = ? AND b.state = 1 AND b.slot = j.value ORDER BY b.place",
            (json.dumps(list(slots)), self._pool),
        ).fetchall()
        found: dict[int, list[Box]] = {}
        for row in rows:
            found.setdefault(row[2], []).append(self._adopt(row))
        return found

    def lent(self) -> list[Box]:
        """Return those that run with somebody who took them from a shelf, in the order of their takes."""
        self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM keyed_box INDEXED BY keyed_box_lent "
            "WHERE pool = ? AND state = 1 AND is_lent = 1 ORDER BY place",
            (self._pool,),
        ).fetchall()
        return [self._adopt(row) for row in rows]

    def shelved(self, lane: str, name: str, limit: int) -> list[Box]:
        """Return those that lie on a shelf."""
        self.flush()
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM keyed_box INDEXED BY keyed_box_shelved "
            "WHERE pool = ? AND state = 4 AND lane = ? AND shelf = ? ORDER BY place LIMIT ?",
            (self._pool, lane, name, limit),
        ).fetchall()
        return [self._adopt(row) for row in rows]

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def append(self, box: Box, raw: bytes) -> None:
        """Put a job at the end of a mailbox."""
        self._added.append((self._pool, box.number, box.tail, raw))
        box.tail += 1
        box.depth += 1
        self._dirty[box.mailbox] = box

    def first(self, box: Box) -> bytes:
        """Return the first job."""
        return self.heads(box, 1, _nobody)[0]

    def heads(self, box: Box, many: int, is_doomed: Callable[[bytes], bool]) -> tuple[bytes, ...]:
        """Return the first jobs: one at least, fewer when they are large, none that is doomed."""
        self._flush_jobs()
        cursor = self._execute(
            "SELECT raw FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT ?",
            (self._pool, box.number, max(1, many)),
        )
        jobs: tuple[bytes, ...] = cursor.fetchone()
        if many > 1 and box.depth > 1:
            size = len(jobs[0])
            more: list[bytes] = []
            for (raw,) in cursor:
                size += len(raw)
                if size > HEAVY or is_doomed(raw):
                    break
                more.append(raw)
            jobs = (*jobs, *more)
        cursor.close()
        return jobs

    def last(self, box: Box) -> bytes:
        """Return the last job."""
        self._flush_jobs()
        row = self._execute(
            "SELECT raw FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position DESC LIMIT 1",
            (self._pool, box.number),
        ).fetchone()
        return bytes(row[0])

    def containing(self, box: Box, text: str) -> list[tuple[int, bytes]]:
        """Return those jobs, with their positions, in which a text occurs: SQLite sorts out nearly all others."""
        self._flush_jobs()
        return self._execute(
            "SELECT position, raw FROM keyed_job WHERE pool = ? AND box = ? AND instr(raw, ?) ORDER BY position",
            (self._pool, box.number, text.encode()),
        ).fetchall()

    def after(self, box: Box, taken: int) -> list[tuple[int, bytes]]:
        """Return all jobs but the first ones, with their positions."""
        self._flush_jobs()
        return self._execute(
            "SELECT position, raw FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT -1 OFFSET ?",
            (self._pool, box.number, taken),
        ).fetchall()

    def between(self, box: Box, first: int, end: int) -> list[bytes]:
        """Return the jobs from one position to before another."""
        rows = self._execute(
            "SELECT raw FROM keyed_job WHERE pool = ? AND box = ? AND position >= ? AND position < ? ORDER BY position",
            (self._pool, box.number, first, end),
        )
        return [row[0] for row in rows]

    def position(self, box: Box, index: int) -> int:
        """Return the position of the job of that index; past the end: one that no job has reached."""
        self._flush_jobs()
        row = self._execute(
            "SELECT position FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT 1 OFFSET ?",
            (self._pool, box.number, index),
        ).fetchone()
        return box.tail if row is None else int(row[0])

    def remove(self, box: Box, position: int) -> None:
        """Remove one job."""
        self._flush_jobs()
        self._execute(
            "DELETE FROM keyed_job WHERE pool = ? AND box = ? AND position = ?", (self._pool, box.number, position)
        )
        box.depth -= 1
        self._dirty[box.mailbox] = box

    def pop(self, box: Box, count: int) -> None:
        """Remove jobs from the head of a mailbox."""
        if count >= box.depth:
            self.clear(box)
            return
        self._flush_jobs()
        self._execute(
            "DELETE FROM keyed_job WHERE pool = ? AND box = ? AND position <= "
            "(SELECT position FROM keyed_job WHERE pool = ? AND box = ? ORDER BY position LIMIT 1 OFFSET ?)",
            (self._pool, box.number, self._pool, box.number, count - 1),
        )
        box.depth -= count
        self._dirty[box.mailbox] = box

    def cut(self, box: Box) -> None:
        """Remove all jobs but the first."""
        first = self.position(box, 0)
        self._execute(
            "DELETE FROM keyed_job WHERE pool = ? AND box = ? AND position > ?", (self._pool, box.number, first)
        )
        box.depth = 1
        self._dirty[box.mailbox] = box

    def clear(self, box: Box) -> None:
        """Remove all jobs."""
        if self._added:
            self._flush_jobs()
        self._emptied.append((self._pool, box.number))
        box.depth = 0
        self._dirty[box.mailbox] = box

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
                    gone.append((pool, box.mailbox))
                self._known[box.mailbox] = None
                continue
            if not box.is_stored:
                new.append((pool, box.mailbox[0], box.mailbox, box.number, box.slot, *_standing(box)))
            elif box.is_changed:
                changed.append((*_standing(box), pool, box.mailbox))
            else:
                counted.append((box.depth, box.tail, pool, box.mailbox))
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

    def _adopt(self, row: Sequence[Any]) -> Box:
        """Return the mailbox of a row, which is read but once."""
        box = self._known.get(row[0])
        if box is None:
            box = self._known[row[0]] = _load(row)
        return box


def _load(row: Sequence[Any]) -> Box:
    box = Box(*row)
    box.stored, box.is_stored = box.state, True
    return box


_standing = attrgetter(
    "state", "place", "depth", "tail", "failures", "losses", "token", "worker", "taken", "done", "is_lent", "shelf",
    "since",
)  # fmt: skip


def _nobody(raw: bytes) -> bool:
    return False

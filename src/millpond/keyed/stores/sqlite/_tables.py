"""The tables of a pool as rows, within one transaction.

What is read is remembered for the transaction, what is changed is written at its end, all at once, where that is
cheaper. What is seldom there at all (pauses, cancelled jobs, messages, parked mailboxes) is asked for once: whether
there is any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from millpond._sqlite import Transaction
from millpond.keyed.rules.envelope import opened
from millpond.keyed.rules.records import KEPT_ACTS, Act, DeadLetter, Delayed, Joiner, Member, Paused, Signal, Slot
from millpond.keyed.stores.sqlite._mailboxes import SqlMailboxes
from millpond.keyed.stores.sqlite._pool import Pool

V = TypeVar("V")
_CHUNK: Final = 64
"""Active slots that are read at once."""
_EXPIRED: Final = 500
"""Rows of a kind that are forgotten at once."""
_ALL: Final = 1 << 62
_RARE: Final = """SELECT
EXISTS (SELECT 1 FROM keyed_cancelled WHERE pool = ?), EXISTS (SELECT 1 FROM keyed_paused WHERE pool = ?),
EXISTS (SELECT 1 FROM keyed_message WHERE pool = ?),
EXISTS (SELECT 1 FROM keyed_mailbox INDEXED BY keyed_mailbox_parked WHERE pool = ? AND state = 4)"""
_MEMBER: Final = (
    "id, label, weight, concurrency, names, joined, lease_end, is_leaving, session, call, "
    "EXISTS (SELECT 1 FROM session WHERE session.number = keyed_member.session), is_dead"
)
_decode_verdicts = msgspec.msgpack.Decoder(dict[int, str]).decode


class SqlTables:
    """A pool, for one transaction. `is_dead` tells of a session whether its process is gone, by the kernel's word."""

    def __init__(self, transaction: Transaction, pool: Pool, is_dead: Callable[[int], bool]) -> None:
        self.settings, self.incarnation = pool.origin
        self.numbers = pool.numbers
        self._transaction, self._pool = transaction, pool
        cancelled, paused, messages, parked = transaction.execute(_RARE, (pool.id,) * 4).fetchone()
        self.members = SqlMembers(transaction, pool, is_dead)
        self.slots = SqlSlots(transaction, pool)
        self.mailboxes = SqlMailboxes(transaction, pool, has_parked=bool(parked))
        self.active = SqlActiveSlots(transaction, pool, self.mailboxes.flush)
        self.due = SqlDue(transaction, pool)
        self.delayed = SqlDelayedJobs(transaction, pool)
        self.outcomes = SqlOutcomes(transaction, pool)
        self.unique = SqlUnique(transaction, pool)
        self.batches = SqlBatches(transaction, pool)
        self.died = SqlDied(transaction, pool)
        self.dead = SqlDeadLetters(transaction, pool)
        self.pauses = SqlPauses(transaction, pool, is_any=paused)
        self.cancelled = SqlCancelled(transaction, pool, is_any=cancelled)
        self.messages = SqlMessages(transaction, pool, is_any=messages)
        self.signals = SqlSignals(transaction, pool)
        self.acts = SqlActs(transaction, pool)

    def flush(self) -> None:
        """Write all that was changed."""
        self.mailboxes.flush()
        self.active.flush()
        self.due.flush()
        self.outcomes.flush()
        self._pool.configure(self._transaction, self.settings)
        self._pool.save(self._transaction)


class _Part:
    """One table of a pool."""

    def __init__(self, transaction: Transaction, pool: Pool) -> None:
        self._execute = transaction.execute
        self._executemany = transaction.executemany
        self._pool = pool.id


class SqlActiveSlots(_Part):
    """The slots of each worker in which something is ready.

    A taker reads some at once; what it has popped and pushed is written when it asks for more, or by `flush`.
    """

    def __init__(self, transaction: Transaction, pool: Pool, flush_mailboxes: Callable[[], None]) -> None:
        super().__init__(transaction, pool)
        self._numbers = pool.numbers
        self._flush_mailboxes = flush_mailboxes
        self._several: set[tuple[str, str]] = set()
        """Queues and workers that have more than one for sure."""
        self._taker: tuple[str, str] | None = None
        self._read: list[tuple[int, int]] = []
        self._popped: list[tuple[int, str, str, int]] = []
        self._pushed: list[tuple[int, str, str, int, int]] = []

    def push(self, queue: str, worker: str, slot: int) -> bool:
        self._numbers.last_place += 1
        row = (self._pool, worker, queue, self._numbers.last_place, slot)
        if self._taker == (queue, worker):
            self._pushed.append(row)
            return False
        self._execute("INSERT OR IGNORE INTO keyed_active VALUES (?, ?, ?, ?, ?)", row)
        if (queue, worker) in self._several:
            return False
        (count,) = self._execute(
            "SELECT count(*) FROM (SELECT 1 FROM keyed_active WHERE pool = ? AND worker = ? AND lane = ? LIMIT 2)",
            (self._pool, worker, queue),
        ).fetchone()
        if count > 1:
            self._several.add((queue, worker))
        return bool(count == 1)

    def pop(self, queue: str, worker: str, want: int) -> int | None:
        if self._taker != (queue, worker):
            self.flush()
            self._flush_mailboxes()
            self._taker = (queue, worker)
        if not self._read:
            self._write()
            self._read = self._execute(
                "SELECT place, slot FROM keyed_active WHERE pool = ? AND worker = ? AND lane = ? "
                "ORDER BY place LIMIT ?",
                (self._pool, worker, queue, min(want, _CHUNK)),
            ).fetchall()[::-1]
        if not self._read:
            self._taker = None
            return None
        place, slot = self._read.pop()
        self._popped.append((self._pool, worker, queue, place))
        return slot

    def flush(self) -> None:
        """Write what a taker has done; it reads again."""
        self._write()
        self._read, self._taker = [], None

    def _write(self) -> None:
        if self._popped:
            self._several.clear()
            self._executemany(
                "DELETE FROM keyed_active WHERE pool = ? AND worker = ? AND lane = ? AND place = ?", self._popped
            )
            self._popped = []
        if self._pushed:
            self._executemany("INSERT OR IGNORE INTO keyed_active VALUES (?, ?, ?, ?, ?)", self._pushed)
            self._pushed = []

    def has(self, queue: str, worker: str) -> bool:
        self.flush()
        row = self._execute(
            "SELECT 1 FROM keyed_active WHERE pool = ? AND worker = ? AND lane = ? LIMIT 1",
            (self._pool, worker, queue),
        ).fetchone()
        return row is not None

    def drop(self, worker: str) -> None:
        self.flush()
        self._execute("DELETE FROM keyed_active WHERE pool = ? AND worker = ?", (self._pool, worker))


class SqlDue(_Part):
    """What happens at a time."""

    def __init__(self, transaction: Transaction, pool: Pool) -> None:
        super().__init__(transaction, pool)
        self._added: list[tuple[int, int, int, str, str]] = []

    def add(self, due: int, number: int, what: str, name: str) -> None:
        self._added.append((self._pool, due, number, what, name))

    def pop(self, now: int, most: int) -> Sequence[tuple[int, str, str]]:
        if not 0 < self.next() <= now:
            return ()
        rows = self._execute(
            "SELECT due, number, what, name FROM keyed_due WHERE pool = ? AND due <= ? ORDER BY due, number LIMIT ?",
            (self._pool, now, most),
        ).fetchall()
        self._executemany(
            "DELETE FROM keyed_due WHERE pool = ? AND due = ? AND number = ?", [(self._pool, *row[:2]) for row in rows]
        )
        return [(row[0], row[2], row[3]) for row in rows]

    def next(self) -> int:
        self.flush()
        row = self._execute(
            "SELECT due FROM keyed_due WHERE pool = ? ORDER BY due, number LIMIT 1", (self._pool,)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def flush(self) -> None:
        """Write what was added."""
        if self._added:
            self._executemany("INSERT INTO keyed_due VALUES (?, ?, ?, ?, ?)", self._added)
            self._added = []


class SqlActs(_Part):
    """What people did."""

    def add(self, act: Act) -> None:
        self._execute(
            "INSERT INTO keyed_act (pool, at, by, what, about, reason) VALUES (?, ?, ?, ?, ?, ?)", (self._pool, *act)
        )
        self._execute(
            "DELETE FROM keyed_act WHERE pool = ? AND number <= "
            "(SELECT number FROM keyed_act WHERE pool = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (self._pool, self._pool, KEPT_ACTS),
        )


class SqlPauses(_Part):
    """Keys of which nothing may begin."""

    def __init__(self, transaction: Transaction, pool: Pool, *, is_any: int) -> None:
        super().__init__(transaction, pool)
        self._is_any = is_any

    def __len__(self) -> int:
        return self._is_any

    def __contains__(self, key: object) -> bool:
        row = self._execute("SELECT 1 FROM keyed_paused WHERE pool = ? AND key = ?", (self._pool, key)).fetchone()
        return row is not None

    def put(self, paused: Paused) -> None:
        self._is_any = 1
        self._execute("INSERT OR REPLACE INTO keyed_paused VALUES (?, ?, ?, ?, ?)", (self._pool, *paused))

    def drop(self, key: str) -> None:
        self._execute("DELETE FROM keyed_paused WHERE pool = ? AND key = ?", (self._pool, key))


class SqlCancelled(_Part):
    """Ids of jobs that a worker has and that are not to run again."""

    def __init__(self, transaction: Transaction, pool: Pool, *, is_any: int) -> None:
        super().__init__(transaction, pool)
        self._is_any = is_any

    def __len__(self) -> int:
        return self._is_any

    def __contains__(self, job: object) -> bool:
        has = "SELECT 1 FROM keyed_cancelled WHERE pool = ? AND id = ?"
        return bool(self._is_any) and self._execute(has, (self._pool, job)).fetchone() is not None

    def add(self, job: str) -> None:
        self._is_any = 1
        self._execute("INSERT OR IGNORE INTO keyed_cancelled VALUES (?, ?)", (self._pool, job))

    def discard(self, job: str) -> None:
        if self._is_any:
            self._execute("DELETE FROM keyed_cancelled WHERE pool = ? AND id = ?", (self._pool, job))


class _Expiring(_Part, Generic[V]):
    """Values by id, each until a time."""

    table: ClassVar[str]

    def drop(self, name: str) -> None:
        self._execute(f"DELETE FROM {self.table} WHERE pool = ? AND id = ?", (self._pool, name))

    def expire(self, now: int) -> None:
        self._execute(
            f"DELETE FROM {self.table} WHERE pool = ? AND id IN "
            f"(SELECT id FROM {self.table} WHERE pool = ? AND until <= ? ORDER BY until LIMIT {_EXPIRED})",
            (self._pool, self._pool, now),
        )


class SqlOutcomes(_Expiring[tuple[str, bytes]]):
    """How jobs ended. They are many: written at once, by `flush`."""

    table = "keyed_outcome"

    def __init__(self, transaction: Transaction, pool: Pool) -> None:
        super().__init__(transaction, pool)
        self._added: list[tuple[int, str, int, str, bytes]] = []

    def get(self, now: int, name: str) -> tuple[str, bytes] | None:
        self.flush()
        found: tuple[str, bytes] | None = self._execute(
            "SELECT status, data FROM keyed_outcome WHERE pool = ? AND id = ? AND until > ?", (self._pool, name, now)
        ).fetchone()
        return found

    def put(self, until: int, name: str, value: tuple[str, bytes]) -> None:
        self._added.append((self._pool, name, until, *value))

    def drop(self, name: str) -> None:
        self.flush()
        super().drop(name)

    def flush(self) -> None:
        """Write what was put."""
        if self._added:
            self._executemany("INSERT OR REPLACE INTO keyed_outcome VALUES (?, ?, ?, ?, ?)", self._added)
            self._added = []


class _ExpiringNames(_Expiring[bool]):
    """Names, each until a time."""

    def get(self, now: int, name: str) -> bool | None:
        row = self._execute(
            f"SELECT 1 FROM {self.table} WHERE pool = ? AND id = ? AND until > ?", (self._pool, name, now)
        ).fetchone()
        return None if row is None else True

    def put(self, until: int, name: str, value: bool) -> None:
        self._execute(f"INSERT OR REPLACE INTO {self.table} VALUES (?, ?, ?)", (self._pool, name, until))


class SqlUnique(_ExpiringNames):
    """Ids that are not dispatched again."""

    table = "keyed_unique"


class SqlDied(_ExpiringNames):
    """Workers that were dismissed and were proven to be dead."""

    table = "keyed_died"

    def expire(self, now: int) -> None:
        self._execute("DELETE FROM keyed_died WHERE pool = ? AND until <= ?", (self._pool, now))


class SqlBatches(_Expiring[tuple[int, dict[int, str]]]):
    """The last dispatch of each producer, and what was answered."""

    table = "keyed_batch"

    def get(self, now: int, name: str) -> tuple[int, dict[int, str]] | None:
        row = self._execute(
            "SELECT number, verdicts FROM keyed_batch WHERE pool = ? AND id = ? AND until > ?", (self._pool, name, now)
        ).fetchone()
        if row is None:
            return None
        return row[0], {} if row[1] is None else _decode_verdicts(row[1])

    def put(self, until: int, name: str, value: tuple[int, dict[int, str]]) -> None:
        number, verdicts = value
        packed = msgspec.msgpack.encode(verdicts) if verdicts else None
        self._execute(
            "INSERT OR REPLACE INTO keyed_batch VALUES (?, ?, ?, ?, ?)", (self._pool, name, until, number, packed)
        )


class SqlDelayedJobs(_Part):
    """Delayed jobs by id."""

    def get(self, job: str) -> Delayed | None:
        row = self._execute(
            "SELECT due, slot, mailbox, body FROM keyed_delayed WHERE pool = ? AND id = ?", (self._pool, job)
        ).fetchone()
        return None if row is None else Delayed(*row)

    def put(self, job: str, delayed: Delayed) -> None:
        self._execute("INSERT INTO keyed_delayed VALUES (?, ?, ?, ?, ?, ?)", (self._pool, job, *delayed))

    def drop(self, job: str) -> None:
        self._execute("DELETE FROM keyed_delayed WHERE pool = ? AND id = ?", (self._pool, job))

    def of(self, mailbox: str, most: int) -> list[tuple[str, bytes]]:
        return self._execute(
            "SELECT id, body FROM keyed_delayed INDEXED BY keyed_delayed_mailbox "
            "WHERE pool = ? AND mailbox = ? LIMIT ?",
            (self._pool, mailbox, most),
        ).fetchall()


class SqlDeadLetters(_Part):
    """Dead letters by number."""

    def get(self, number: int) -> DeadLetter | None:
        row = self._execute(
            "SELECT number, slot, mailbox, at, reason, raw, attempts FROM keyed_dead WHERE pool = ? AND number = ?",
            (self._pool, number),
        ).fetchone()
        return None if row is None else DeadLetter(*row)

    def put(self, letter: DeadLetter) -> None:
        row = (self._pool, *letter, opened(letter.job).id)
        self._execute("INSERT INTO keyed_dead VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def drop(self, number: int) -> bool:
        gone = self._execute("DELETE FROM keyed_dead WHERE pool = ? AND number = ?", (self._pool, number)).rowcount
        return gone > 0


class SqlMessages(_Part):
    """Messages to residents."""

    def __init__(self, transaction: Transaction, pool: Pool, *, is_any: int) -> None:
        super().__init__(transaction, pool)
        self._is_any = is_any

    def __len__(self) -> int:
        return self._is_any

    def add(self, mailbox: str, number: int, data: bytes) -> None:
        self._is_any = 1
        self._execute("INSERT INTO keyed_message VALUES (?, ?, ?, ?)", (self._pool, mailbox, number, data))

    def of(self, mailbox: str) -> tuple[tuple[int, bytes], ...]:
        rows = self._execute(
            "SELECT number, data FROM keyed_message WHERE pool = ? AND mailbox = ? ORDER BY number",
            (self._pool, mailbox),
        )
        return tuple(rows)

    def count(self, mailbox: str) -> int:
        (found,) = self._execute(
            "SELECT count(*) FROM keyed_message WHERE pool = ? AND mailbox = ?", (self._pool, mailbox)
        ).fetchone()
        return int(found)

    def drop(self, mailbox: str, upto: int | None = None) -> None:
        self._execute(
            "DELETE FROM keyed_message WHERE pool = ? AND mailbox = ? AND number <= ?",
            (self._pool, mailbox, _ALL if upto is None else upto),
        )


class SqlSignals(_Part):
    """What each worker has not heard yet."""

    def add(self, worker: str, signal: Signal) -> None:
        self._execute("INSERT INTO keyed_signal VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (self._pool, worker, *signal[:6]))

    def last(self, worker: str) -> int:
        return 0  # nobody is handed anything, who would want to know

    def unheard(self, worker: str, heard: int) -> tuple[Signal, ...]:
        rows = self._execute(
            "SELECT number, kind, mailbox, job, note, data FROM keyed_signal WHERE pool = ? AND worker = ? "
            "ORDER BY number",
            (self._pool, worker),
        ).fetchall()
        if rows and rows[0][0] <= heard:
            self._execute(
                "DELETE FROM keyed_signal WHERE pool = ? AND worker = ? AND number <= ?", (self._pool, worker, heard)
            )
        return tuple(Signal(*row) for row in rows if row[0] > heard)

    def drop(self, worker: str) -> None:
        self._execute("DELETE FROM keyed_signal WHERE pool = ? AND worker = ?", (self._pool, worker))


class SqlMembers(_Part):
    """The workers."""

    def __init__(self, transaction: Transaction, pool: Pool, is_dead: Callable[[int], bool]) -> None:
        super().__init__(transaction, pool)
        self._is_dead = is_dead
        self._ids: dict[str, None] | None = None
        self._rows: dict[str, Sequence[Any] | None] = {}

    def __contains__(self, worker: object) -> bool:
        return worker in self._all_ids()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all_ids())

    def _all_ids(self) -> dict[str, None]:
        if self._ids is None:
            rows = self._execute("SELECT id FROM keyed_member WHERE pool = ? ORDER BY number", (self._pool,))
            self._ids = {row[0]: None for row in rows}
        return self._ids

    def _row(self, worker: str) -> Sequence[Any] | None:
        try:
            return self._rows[worker]
        except KeyError:
            row: Sequence[Any] | None = self._execute(
                f"SELECT {_MEMBER} FROM keyed_member WHERE pool = ? AND id = ?", (self._pool, worker)
            ).fetchone()
            self._rows[worker] = row
            return row

    def get(self, worker: str) -> Member | None:
        row = self._row(worker)
        return None if row is None else _member(row)

    def all(self) -> Sequence[Member]:
        rows = self._execute(f"SELECT {_MEMBER} FROM keyed_member WHERE pool = ? ORDER BY number", (self._pool,))
        return [_member(row)._replace(is_dead=self._is_gone(row)) for row in rows.fetchall()]

    def put(self, joiner: Joiner, now: int, lease_end: int) -> None:
        names = json.dumps(joiner.names)
        self._execute(
            "INSERT INTO keyed_member (pool, id, label, weight, concurrency, names, joined, lease_end, is_leaving, "
            "session, call) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0) "
            "ON CONFLICT (pool, id) DO UPDATE SET label = excluded.label, weight = excluded.weight, "
            "concurrency = excluded.concurrency, names = excluded.names, joined = excluded.joined, "
            "lease_end = excluded.lease_end, is_leaving = 0, session = excluded.session, call = 0, silent_since = 0, "
            "is_dead = 0",
            (self._pool, *joiner[:4], names, now, lease_end, joiner.session),
        )
        self._changed(joiner.id)

    def renew(self, worker: str, lease_end: int, *, is_leaving: bool) -> None:
        self._execute(
            "UPDATE keyed_member SET lease_end = ?, is_leaving = ?, silent_since = 0 WHERE pool = ? AND id = ?",
            (lease_end, is_leaving, self._pool, worker),
        )
        self._rows.pop(worker, None)

    def drop(self, worker: str) -> bool:
        gone = self._execute("DELETE FROM keyed_member WHERE pool = ? AND id = ?", (self._pool, worker)).rowcount
        self._changed(worker)
        return gone > 0

    def _changed(self, worker: str) -> None:
        self._ids = None
        self._rows.pop(worker, None)

    def last_call(self, worker: str) -> int:
        row = self._row(worker)
        return 0 if row is None else int(row[9])

    def count_call(self, worker: str, call: int, spare: int | None = None) -> None:
        self._execute(
            "UPDATE keyed_member SET call = max(call, ?) WHERE pool = ? AND id = ?", (call, self._pool, worker)
        )
        self._rows.pop(worker, None)

    def spare(self, worker: str) -> int:
        return 0  # a wake-up of another process carries nothing, so it has to ask anyway

    def use_spare(self, worker: str) -> None:
        """Nobody has any."""

    def is_proven_dead(self, worker: str) -> bool:
        row = self._row(worker)
        return row is not None and self._is_gone(row)

    def set_dead(self, worker: str) -> None:
        self._execute("UPDATE keyed_member SET is_dead = 1 WHERE pool = ? AND id = ?", (self._pool, worker))
        self._rows.pop(worker, None)

    def _is_gone(self, row: Sequence[Any]) -> bool:
        return bool(row[11]) or not row[10] or self._is_dead(row[8])


class SqlSlots(_Part):
    """The shares of the key space."""

    def __init__(self, transaction: Transaction, pool: Pool) -> None:
        super().__init__(transaction, pool)
        self._known: dict[int, Slot] = {}

    def get(self, slot: int) -> Slot:
        found = self._known.get(slot)
        if found is None:
            row = self._execute(
                "SELECT owner, epoch, since, why, before FROM keyed_slot WHERE pool = ? AND slot = ?",
                (self._pool, slot),
            ).fetchone()
            found = self._known[slot] = Slot() if row is None else Slot(*row)
        return found

    def put(self, slot: int, value: Slot) -> None:
        self._known[slot] = value
        self._execute("INSERT OR REPLACE INTO keyed_slot VALUES (?, ?, ?, ?, ?, ?, ?)", (self._pool, slot, *value))

    def preload(self, slots: Sequence[int]) -> None:
        rows = self._execute(
            "SELECT s.slot, s.owner, s.epoch, s.since, s.why, s.before FROM json_each(?) AS j "
            "CROSS JOIN keyed_slot AS s ON s.pool = ? AND s.slot = j.value",
            (json.dumps(list(slots)), self._pool),
        )
        self._known.update(dict.fromkeys(slots, Slot()))
        self._known.update((slot, Slot(*fields)) for slot, *fields in rows)

    def owned(self, worker: str) -> list[int]:
        rows = self._execute(
            "SELECT slot FROM keyed_slot WHERE pool = ? AND owner = ? AND owner <> ''", (self._pool, worker)
        )
        return sorted(row[0] for row in rows)


def _member(row: Sequence[Any]) -> Member:
    worker, label, weight, concurrency, names, joined, lease_end, is_leaving, *_ = row
    return Member(worker, label, weight, concurrency, tuple(json.loads(names)), joined, lease_end, bool(is_leaving))

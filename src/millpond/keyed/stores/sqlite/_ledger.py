"""The rules of a keyed pool (`keyed._ledger.Ledger`) on rows: a twin of it, verb by verb, for one transaction.

`hints` gathers who is to be woken when the transaction is committed. `is_dead` tells of a session whether its process
is gone, by the kernel's word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from millpond._sqlite import Transaction
from millpond.keyed._commands import (
    Cancel,
    Command,
    Drop,
    Notify,
    Pause,
    Purge,
    Replay,
    Resume,
    Shut,
    Start,
    Stop,
)
from millpond.keyed._records import (
    BATCH_RETENTION,
    Beat,
    Claimed,
    Joiner,
    Member,
    Moves,
    Order,
    Settle,
    Slot,
    Take,
    Verdicts,
    Work,
)
from millpond.keyed.stores.sqlite._boxes import RUNNING, Box
from millpond.keyed.stores.sqlite._mail import SqlMail
from millpond.keyed.stores.sqlite._pool import Pool

_EXPIRED = 100
"""Batches that are forgotten at once."""
_MEMBER = "id, label, weight, concurrency, names, joined, lease_end, is_leaving, session, call"
_decode_verdicts = msgspec.msgpack.Decoder(dict[int, str]).decode


class SqlLedger:
    """A pool, for one transaction."""

    def __init__(self, transaction: Transaction, pool: Pool, is_dead: Callable[[int], bool]) -> None:
        self._transaction = transaction
        self._execute = transaction.execute
        self._pool = pool
        self._numbers = pool.numbers
        self._is_proven = is_dead
        self._slots: dict[int, Slot] = {}
        self.hints: set[str] = set()
        self._ids: set[str] | None = None
        self.mail = SqlMail(transaction, pool, self._living_owner, self._is_member, self.hints.add)

    def flush(self) -> None:
        """Write all that was changed."""
        self.mail.flush()
        self._pool.save(self._transaction)

    # -- producers ----------------------------------------------------------------------------------------------------

    def dispatch(self, now: int, batch: str, orders: Sequence[Order]) -> Verdicts:
        """Put jobs into their mailboxes, in order. The same batch again is only answered again."""
        pool = self._pool.id
        row = self._execute(
            "SELECT until, verdicts FROM keyed_batch WHERE pool = ? AND id = ?", (pool, batch)
        ).fetchone()
        if row is not None and row[0] > now:
            return {} if row[1] is None else _decode_verdicts(row[1])
        verdicts: dict[int, str] = {}
        refused: set[str] = set()
        self.mail.boxes.preload(order.mailbox for order in orders)
        for index, order in enumerate(orders):
            if self._numbers.is_shut:
                verdict = "closed"
            elif order.mailbox in refused:
                verdict = "full"  # what came before it is not in, so neither is this: order is kept
            else:
                verdict = self.mail.verdict(now, order)
            if verdict:
                verdicts[index] = verdict
                if verdict in ("full", "pool"):
                    refused.add(order.mailbox)
        self._remember(now, batch, verdicts)
        return verdicts

    def _remember(self, now: int, batch: str, verdicts: dict[int, str]) -> None:
        pool = self._pool.id
        self._execute(
            "DELETE FROM keyed_batch WHERE pool = ? AND id IN "
            "(SELECT id FROM keyed_batch WHERE pool = ? AND until <= ? ORDER BY until LIMIT ?)",
            (pool, pool, now, _EXPIRED),
        )
        self._execute(
            "INSERT OR REPLACE INTO keyed_batch VALUES (?, ?, ?, ?)",
            (pool, batch, now + BATCH_RETENTION, msgspec.msgpack.encode(verdicts) if verdicts else None),
        )

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, now: int, joiner: Joiner) -> Beat:
        """Let a worker take part."""
        self._execute(
            f"INSERT INTO keyed_member (pool, {_MEMBER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0) "
            "ON CONFLICT (pool, id) DO UPDATE SET label = excluded.label, weight = excluded.weight, "
            "concurrency = excluded.concurrency, names = excluded.names, joined = excluded.joined, "
            "lease_end = excluded.lease_end, is_leaving = 0, session = excluded.session, call = 0",
            (
                *(self._pool.id, joiner.id, joiner.label, joiner.weight, joiner.concurrency, json.dumps(joiner.names)),
                *(now, now + self._pool.origin.settings.lease, joiner.session),
            ),
        )
        self._ids = None
        self._changed()
        return self.beat(now)

    def renew(self, now: int, worker: str, *, leaving: bool = False) -> Beat | None:
        """Prolong the lease of a worker; None: it is no member (any more)."""
        member = self._member(worker)
        if member is None:
            return None
        self._execute(
            "UPDATE keyed_member SET lease_end = ?, is_leaving = ? WHERE pool = ? AND id = ?",
            (
                now + self._pool.origin.settings.lease,
                member.is_leaving or leaving,
                self._pool.id,
                worker,
            ),
        )
        if leaving and not member.is_leaving:
            self._changed()
        return self.beat(now)

    def leave(self, now: int, worker: str) -> None:
        """Let a worker go: its slots are free."""
        rows = self._execute(
            "SELECT slot FROM keyed_slot WHERE pool = ? AND owner = ? AND owner <> ''", (self._pool.id, worker)
        ).fetchall()
        for (slot,) in sorted(rows):
            self._move(now, slot, "", "left")
        is_member = self._dismiss(worker)
        if rows and not is_member:
            self._changed()

    def beat(self, now: int) -> Beat:
        """Return the members and how the pool stands."""
        members = tuple(
            one._replace(is_dead=not is_there or self._is_proven(session)) for one, session, is_there in self._members()
        )
        numbers = self._numbers
        return Beat(now, self._pool.origin.incarnation, numbers.version, bool(numbers.is_shut), members)

    def _members(self) -> list[tuple[Member, int, bool]]:
        rows = self._execute(
            f"SELECT {_MEMBER}, EXISTS (SELECT 1 FROM session WHERE session.number = keyed_member.session) "
            "FROM keyed_member WHERE pool = ? ORDER BY number",
            (self._pool.id,),
        )
        return [(_member(row), row[8], bool(row[10])) for row in rows]

    def _member(self, worker: str) -> Member | None:
        row = self._row(worker)
        return None if row is None else _member(row)

    def _row(self, worker: str) -> Sequence[str | int] | None:
        found: Sequence[str | int] | None = self._execute(
            f"SELECT {_MEMBER} FROM keyed_member WHERE pool = ? AND id = ?", (self._pool.id, worker)
        ).fetchone()
        return found

    def _workers(self) -> set[str]:
        """Return the ids of all members."""
        if self._ids is None:
            rows = self._execute("SELECT id FROM keyed_member WHERE pool = ?", (self._pool.id,))
            self._ids = {row[0] for row in rows}
        return self._ids

    def _is_member(self, worker: str) -> bool:
        return worker in self._workers()

    def _dismiss(self, worker: str) -> bool:
        gone = self._execute("DELETE FROM keyed_member WHERE pool = ? AND id = ?", (self._pool.id, worker)).rowcount
        if gone:
            self._ids = None
            self.mail.dismiss(worker)
            self._changed()
        return gone > 0

    def _changed(self) -> None:
        """Members or owners are others now: everybody may want to look."""
        self._numbers.version += 1
        self.hints |= self._workers()

    # -- slots --------------------------------------------------------------------------------------------------------

    def give(self, now: int, worker: str, moves: Moves, why: str) -> int:
        """Pass slots on to others; return how many the caller owned."""
        given = 0
        takers = {one.id for one, _, _ in self._members() if not one.is_leaving}
        self._preload([slot for slot, _ in moves])
        for slot, taker in moves:
            if self._owner_of(slot) == worker:
                self._move(now, slot, taker if taker in takers else "", why)
                given += 1
        if given:
            self._changed()
        return given

    def claim(
        self,
        now: int,
        worker: str,
        slots: Sequence[int],
        dead: Mapping[str, int],
        known: Iterable[int] | None = None,
        call: int = 0,
    ) -> Claimed:
        """Take over slots that nobody owns or whose owner is dead, and what dead workers ran in them."""
        row = self._row(worker)
        if row is None or _member(row).lease_end <= now:
            return Claimed((), (), 0, is_gone=True)
        is_late = call < int(row[9])  # it was overtaken by a take, which its caller did not know of
        tokens = None if known is None or is_late else set(known)
        if tokens is not None:
            self._count_call(worker, call)
        for one, end in dead.items():
            if one != worker and self._is_dead(now, one, end):
                self._dismiss(one)
        return self._take_over(now, worker, slots, tokens)

    def _take_over(self, now: int, worker: str, slots: Sequence[int], tokens: set[int] | None) -> Claimed:
        members = self._workers()
        got, contested, recovered = [], [], self._tidy_lent(now, worker, members, tokens)
        self._preload(slots)
        running = self.mail.boxes.running(slots)
        ready = {lane: self.mail.boxes.ready_slots(lane, slots) for lane in "jr"}
        for slot in slots:
            owner = self._owner_of(slot)
            if owner != worker:
                if owner in members:
                    continue
                self._hand(now, slot, worker, "died" if owner else "free")
                got.append(slot)
            drained = self._slot(slot).since + self._pool.origin.settings.drain <= now
            runs = [box for box in running.get(slot, ()) if box.state == RUNNING]
            back, is_contested = self._tidy(now, worker, runs, members, tokens, drained=drained)
            recovered += back
            if is_contested:
                contested.append(slot)
            for lane in "jr":
                if slot in ready[lane] or (runs and self.mail.boxes.has_ready(lane, slot)):
                    self.mail.activate(lane, slot)
        if got:
            self._changed()
        return Claimed(tuple(got), tuple(contested), recovered, is_gone=False)

    def _tidy(
        self, now: int, worker: str, runs: list[Box], members: set[str], tokens: set[int] | None, *, drained: bool
    ) -> tuple[int, bool]:
        """Recover what nobody runs in a slot any more; tell whether somebody else still runs something there."""
        recovered, is_contested = 0, False
        for box in runs:
            is_lost = box.worker not in members
            if box.worker == worker:
                is_over = tokens is not None and box.token not in tokens
            else:
                is_over = is_lost or (drained and not box.is_lent)
                is_contested = is_contested or not (is_over or box.is_lent)
            if is_over:
                self.mail.recover(now, box, blame=is_lost)
                recovered += 1
        return recovered, is_contested

    def _tidy_lent(self, now: int, worker: str, members: set[str], tokens: set[int] | None) -> int:
        """Recover what was lent to somebody who is gone, or to the caller, who does not know of it."""
        recovered = 0
        for box in self.mail.boxes.lent():
            is_lost = box.worker not in members
            if is_lost or (box.worker == worker and tokens is not None and box.token not in tokens):
                self.mail.recover(now, box, blame=is_lost)
                recovered += 1
        return recovered

    def _is_dead(self, now: int, worker: str, seen: int) -> bool:
        """Tell whether a member is dead."""
        row = self._execute(
            "SELECT lease_end, session, EXISTS (SELECT 1 FROM session WHERE session.number = keyed_member.session) "
            "FROM keyed_member WHERE pool = ? AND id = ?",
            (self._pool.id, worker),
        ).fetchone()
        if row is None:
            return False
        end, session, is_there = row
        if not is_there or self._is_proven(session):
            return True
        lease = self._pool.origin.settings.lease  # an end further away than that: the clock went back since
        return bool(end == seen and not now < end <= now + lease)

    def _owner_of(self, slot: int) -> str:
        return self._slot(slot).owner

    def _living_owner(self, slot: int) -> str:
        owner = self._slot(slot).owner
        return owner if owner and self._is_member(owner) else ""

    def _slot(self, slot: int) -> Slot:
        found = self._slots.get(slot)
        if found is None:
            row = self._execute(
                "SELECT owner, epoch, since, why, before FROM keyed_slot WHERE pool = ? AND slot = ?",
                (self._pool.id, slot),
            ).fetchone()
            found = self._slots[slot] = Slot() if row is None else Slot(*row)
        return found

    def _preload(self, slots: Sequence[int]) -> None:
        """Read many slots at once, since they will be asked for."""
        rows = self._execute(
            "SELECT s.slot, s.owner, s.epoch, s.since, s.why, s.before FROM json_each(?) AS j "
            "CROSS JOIN keyed_slot AS s ON s.pool = ? AND s.slot = j.value",
            (json.dumps(list(slots)), self._pool.id),
        )
        self._slots.update(dict.fromkeys(slots, Slot()))
        self._slots.update((slot, Slot(*fields)) for slot, *fields in rows)

    def _move(self, now: int, slot: int, taker: str, why: str) -> None:
        self._hand(now, slot, taker, why)
        for lane in "jr" if taker else "":
            if self.mail.boxes.has_ready(lane, slot):
                self.mail.activate(lane, slot)

    def _hand(self, now: int, slot: int, taker: str, why: str) -> None:
        was = self._slot(slot)
        self._slots[slot] = Slot(taker, max(was.epoch + 1, now), now, why, was.owner)
        self._execute(
            "INSERT OR REPLACE INTO keyed_slot VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._pool.id, slot, *self._slots[slot]),
        )
        self._numbers.moved += 1

    # -- work ---------------------------------------------------------------------------------------------------------

    def work(
        self,
        now: int,
        worker: str,
        call: int,
        settles: Sequence[Settle],
        want: int,
        per: int,
        want_residents: int = 0,
        heard: int = 0,
    ) -> Work:
        """Settle what has ended, let happen what is due, and take more."""
        self.mail.boxes.preload(one.mailbox for one in settles)
        stale = tuple([index for index, one in enumerate(settles) if not self.mail.settle(now, one)])
        if any(one.how == "shelve" for one in settles):
            self.hints |= self._workers()  # somebody may know it
        due = self.mail.tick(now)
        row = self._row(worker)
        member = None if row is None else _member(row)
        if row is None or member is None or member.lease_end <= now:
            return Work(stale, (), (), True, False, due, now, self._numbers.version)
        signals = self.mail.signals(worker, heard)
        takes: list[Take] = []
        numbers = self._numbers
        is_open = not numbers.is_paused and not numbers.is_shut
        if call > int(row[9]):
            if is_open:
                numbers.last_token = token = max(numbers.last_token + 1, now)
                takes = self.mail.take(now, worker, "r", member.names, token, want_residents, 1)
                takes += self.mail.take(now, worker, "j", member.names, token, want, per)
            self._count_call(worker, call)
        more = is_open and self.mail.has_active(worker)
        return Work(stale, tuple(takes), signals, False, more, due, now, numbers.version)

    def _count_call(self, worker: str, call: int) -> None:
        self._execute(
            "UPDATE keyed_member SET call = max(call, ?) WHERE pool = ? AND id = ?", (call, self._pool.id, worker)
        )

    # -- commands -----------------------------------------------------------------------------------------------------

    def apply(self, now: int, command: Command) -> str:  # noqa: C901  (a table)
        """Carry out a command; the answer is one of the words in its description."""
        match command:
            case Start(slot, mailbox, body):
                return "closed" if self._numbers.is_shut else self.mail.start(now, slot, mailbox, body)
            case Stop(slot, mailbox):
                return self.mail.stop(now, slot, mailbox)
            case Notify(slot, mailbox, data):
                return self.mail.notify(slot, mailbox, data)
            case Cancel(slot, mailbox, job):
                return self.mail.cancel(now, slot, mailbox, job)
            case Purge(slot, mailbox):
                return str(self.mail.purge(now, slot, mailbox))
            case Pause(_, mailbox):
                if mailbox:
                    self.mail.pause(mailbox)
                else:
                    self._numbers.is_paused = 1
            case Resume(_, mailbox):
                if mailbox:
                    self.mail.resume(mailbox)
                else:
                    self._numbers.is_paused = self._numbers.is_shut = 0
                    self._changed()
            case Shut():
                self._numbers.is_shut = 1
                self._changed()
            case Replay(numbers):
                return str(self.mail.replay(now, numbers))
            case Drop(numbers):
                return str(self.mail.drop(numbers))
        return ""


def _member(row: Sequence[str | int]) -> Member:
    worker, label, weight, concurrency, names, joined, lease_end, is_leaving, *_ = row
    return Member(
        str(worker),
        str(label),
        int(weight),
        int(concurrency),
        tuple(json.loads(str(names))),
        int(joined),
        int(lease_end),
        bool(is_leaving),
    )

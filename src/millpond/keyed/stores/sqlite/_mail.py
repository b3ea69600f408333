"""The rules of mailboxes (`keyed._mail.Mail`) on rows: a twin of it, method by method, for one transaction.

What is seldom there at all (pauses, doomed jobs, notes, shelves, signals) is asked for once per transaction: whether
there is any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millpond._sqlite import Transaction
from millpond.keyed._envelope import opened, stamped
from millpond.keyed._records import (
    DEAD_RETRY,
    DUE,
    HEAVY,
    STAMP,
    VISIT,
    Order,
    Outcome,
    Settle,
    Signal,
    Special,
    Take,
)
from millpond.keyed.stores.sqlite._boxes import HELD, LATER, NOWHERE, RUNNING, SHELVED, Box, Boxes
from millpond.keyed.stores.sqlite._pool import Pool

_RARE = """SELECT
EXISTS (SELECT 1 FROM keyed_doomed WHERE pool = ?), EXISTS (SELECT 1 FROM keyed_paused WHERE pool = ?),
EXISTS (SELECT 1 FROM keyed_note WHERE pool = ?),
EXISTS (SELECT 1 FROM keyed_box INDEXED BY keyed_box_shelved WHERE pool = ? AND state = 4)"""
_FADING = 500
"""Outcomes and ids that are forgotten in one `tick`."""
_CHUNK = 64
"""Active slots that are read at once."""


class SqlMail:
    """The mailboxes of a pool, for one transaction. `hint` is told whom to wake."""

    def __init__(
        self,
        transaction: Transaction,
        pool: Pool,
        owner_of: Callable[[int], str],
        is_member: Callable[[str], bool],
        hint: Callable[[str], None],
    ) -> None:
        self._execute = transaction.execute
        self._executemany = transaction.executemany
        self._pool = pool.id
        self._numbers = pool.numbers
        self._settings = pool.origin.settings
        self._owner_of = owner_of
        self._is_member = is_member
        self._hint = hint
        self.boxes = Boxes(transaction, pool)
        self._outcomes: list[tuple[int, str, int, str, bytes]] = []
        self._dues: list[tuple[int, int, int, str, str]] = []
        self._busy_owners: set[tuple[str, str]] = set()
        doomed, paused, notes, shelves = self._execute(_RARE, (pool.id,) * 4).fetchone()
        self._has_doomed, self._has_paused, self._has_notes, self._has_shelves = doomed, paused, notes, shelves

    def flush(self) -> None:
        """Write all that was changed."""
        self.boxes.flush()
        if self._outcomes:
            self._executemany("INSERT OR REPLACE INTO keyed_outcome VALUES (?, ?, ?, ?, ?)", self._outcomes)
            self._outcomes.clear()
        if self._dues:
            self._executemany("INSERT INTO keyed_due VALUES (?, ?, ?, ?, ?)", self._dues)
            self._dues.clear()

    # -- coming in ----------------------------------------------------------------------------------------------------

    def verdict(self, now: int, order: Order) -> str:
        """Dispatch one order, or say why not."""
        special = order.special
        replaced = 0
        if special is not None:
            if (special.unique_for and self._is_known(now, special.id)) or self._delayed(special.id) is not None:
                return "same"
            if special.on_busy != "queue":
                answer, replaced = self._busy(now, order, special)
                if answer:
                    return answer
        if not replaced:  # else there is room
            answer = self._full(order)
            if answer:
                return answer
        self._numbers.dispatched += 1
        if special is not None:
            if special.unique_for:
                until = now + special.unique_for
                self._execute("INSERT OR REPLACE INTO keyed_unique VALUES (?, ?, ?)", (self._pool, special.id, until))
            due = special.at or now + special.delay
            if due > now:
                self._delay(due, order, special)
                return ""
        self.enter(order.slot, order.mailbox, stamped(now, order.body))
        return ""

    def _full(self, order: Order) -> str:
        settings, numbers = self._settings, self._numbers
        if settings.max_jobs and numbers.jobs + numbers.delayed >= settings.max_jobs:
            return "pool"
        if settings.max_per_key:
            box = self.boxes.get(order.mailbox)
            if box is not None and box.depth >= settings.max_per_key:
                return "full"
        return ""

    def _is_known(self, now: int, job: str) -> bool:
        row = self._execute("SELECT until FROM keyed_unique WHERE pool = ? AND id = ?", (self._pool, job)).fetchone()
        return row is not None and row[0] > now

    def _delay(self, due: int, order: Order, special: Special) -> None:
        self._numbers.delayed += 1
        self._execute(
            "INSERT INTO keyed_delayed VALUES (?, ?, ?, ?, ?, ?)",
            (self._pool, special.id, due, order.slot, order.mailbox, order.body),
        )
        self._remember(due, "delayed", special.id)
        if owner := self._owner_of(order.slot):
            self._hint(owner)  # so that it knows when to look

    def _busy(self, now: int, order: Order, special: Special) -> tuple[str, int]:
        """Return a verdict, or how many jobs were dropped to be replaced."""
        box = self.boxes.get(order.mailbox)
        if box is None:
            return "", 0
        if special.on_busy == "reject":
            return "busy", 0
        waiting = self.boxes.position(box, _taken(box, order.slot))
        envelopes = [
            (position, raw, opened(raw))
            for position, raw in self.boxes.containing(box, special.name)
            if position >= waiting
        ]
        alike = [
            (position, raw, one.id)
            for position, raw, one in envelopes
            if one.name == special.name and not self._is_doomed(one.id)
        ]
        if special.on_busy == "coalesce":
            return (f"into:{alike[-1][2]}" if alike else ""), 0
        for position, raw, _ in alike:  # replace
            self._remove(now, box, position, raw, "replaced")
        return "", len(alike)

    def enter(self, slot: int, mailbox: str, raw: bytes) -> None:
        """Put a job at the end of a mailbox."""
        box = self.boxes.found(slot, mailbox)
        self.boxes.append(box, raw)
        if mailbox[0] == "j":
            self._numbers.jobs += 1
        if box.state == NOWHERE:
            self.make_ready(box)

    def make_ready(self, box: Box, *, first: bool = False) -> None:
        """Let a mailbox be taken by the owner of its slot."""
        if self.boxes.append_ready(box, first=first):
            self.activate(box.mailbox[0], box.slot)

    def activate(self, lane: str, slot: int) -> None:
        """Tell the owner of a slot that something is ready there."""
        owner = self._owner_of(slot)
        if not owner:
            return
        self._numbers.last_place += 1
        self._execute(
            "INSERT OR IGNORE INTO keyed_active VALUES (?, ?, ?, ?, ?)",
            (self._pool, owner, lane, self._numbers.last_place, slot),
        )
        if (lane, owner) in self._busy_owners:
            return
        (count,) = self._execute(
            "SELECT count(*) FROM (SELECT 1 FROM keyed_active WHERE pool = ? AND worker = ? AND lane = ? LIMIT 2)",
            (self._pool, owner, lane),
        ).fetchone()
        if count == 1:
            self._hint(owner)
        else:
            self._busy_owners.add((lane, owner))

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> int:
        """Let happen what is due, not too much at a time; return when the next thing is, or 0."""
        self._fade(now)
        due = self._next_due()
        if due and due <= now:
            self._happen(now)
            due = self._next_due()
        return due

    def _next_due(self) -> int:
        if self._dues:
            self.flush()
        row = self._execute(
            "SELECT due FROM keyed_due WHERE pool = ? ORDER BY due, number LIMIT 1", (self._pool,)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _fade(self, now: int) -> None:
        """Forget outcomes and ids that were kept for long enough, not too many at a time: nobody sees them any more."""
        for table in ("outcome", "unique"):
            self._execute(
                f"DELETE FROM keyed_{table} WHERE pool = ? AND id IN "
                f"(SELECT id FROM keyed_{table} WHERE pool = ? AND until <= ? ORDER BY until LIMIT ?)",
                (self._pool, self._pool, now, _FADING),
            )

    def _happen(self, now: int) -> None:
        rows = self._execute(
            "SELECT due, number, what, name FROM keyed_due WHERE pool = ? AND due <= ? ORDER BY due, number LIMIT ?",
            (self._pool, now, DUE),
        ).fetchall()
        self._executemany(
            "DELETE FROM keyed_due WHERE pool = ? AND due = ? AND number = ?",
            [(self._pool, due, number) for due, number, _, _ in rows],
        )
        self.boxes.preload(name for _, _, what, name in rows if what == "later")
        for _, _, what, name in rows:
            match what:
                case "later":
                    box = self.boxes.get(name)
                    if box is not None and box.state == LATER and box.since <= now:
                        self.make_ready(box)
                case "delayed":
                    self._arrive(now, name)
                case "shelf":
                    self._clear_shelf(now, name)

    def _arrive(self, now: int, job: str) -> None:
        found = self._delayed(job)
        if found is not None and found[0] <= now:
            _, slot, mailbox, body = found
            self._undelay(job)
            self.enter(slot, mailbox, stamped(now, body))

    def _delayed(self, job: str) -> tuple[int, int, str, bytes] | None:
        """Return a delayed job: when it is due, its slot, its mailbox, its body."""
        found: tuple[int, int, str, bytes] | None = self._execute(
            "SELECT due, slot, mailbox, body FROM keyed_delayed WHERE pool = ? AND id = ?", (self._pool, job)
        ).fetchone()
        return found

    def _undelay(self, job: str) -> None:
        self._execute("DELETE FROM keyed_delayed WHERE pool = ? AND id = ?", (self._pool, job))
        self._numbers.delayed -= 1

    def _remember(self, due: int, what: str, name: str) -> None:
        self._numbers.last_due += 1
        self._dues.append((self._pool, due, self._numbers.last_due, what, name))

    def _clear_shelf(self, now: int, mailbox: str) -> None:
        box = self.boxes.get(mailbox)
        if box is None or box.state != SHELVED or box.since + self._settings.unknown > now:
            return
        if self._has_no_grave():
            self._remember(now + DEAD_RETRY, "shelf", mailbox)
            return
        self.boxes.set_state(box, NOWHERE)
        self._bury(now, box, b"no worker knows " + box.shelf.encode(), "dead")
        self._go_on(box)

    # -- a worker's report --------------------------------------------------------------------------------------------

    def settle(self, now: int, one: Settle) -> bool:
        """Take note of what became of a take; False: it is not running any more, and nothing changes."""
        box = self.boxes.get(one.mailbox)
        if box is None or not box.is_run_of(one.slot, one.token):
            return False
        count = max(0, min(one.done, box.taken) - box.done)
        is_refused = one.how == "bury" and self._has_no_grave()
        for outcome in one.outcomes:
            if not (is_refused and outcome.status == "dead"):
                self._conclude(now, outcome)
        if count:
            self._pop(box, count)
            self._numbers.done += count if one.mailbox[0] == "j" else 0
            box.done += count
            self.boxes.changed(box)
        if one.notes and self._has_notes:
            self._execute(
                "DELETE FROM keyed_note WHERE pool = ? AND mailbox = ? AND number <= ?",
                (self._pool, one.mailbox, one.notes),
            )
        if box.done == box.taken:  # whatever it says: the job behind the last one of a take was never tried
            self.boxes.set_state(box, NOWHERE)
            self._go_on(box)
        elif one.how != "keep":
            self.boxes.set_state(box, NOWHERE)
            self._end_take(now, box, one, is_refused=is_refused)
        return True

    def _end_take(self, now: int, box: Box, one: Settle, *, is_refused: bool) -> None:
        """Do what is to happen to the first job of a mailbox that does not run any more."""
        how, delay = one.how, one.delay
        if is_refused:
            how, delay = "retry", DEAD_RETRY
        if how in ("retry", "shelve") and self._has_doomed and self._is_doomed(opened(self.boxes.first(box)).id):
            how = "end"  # it will not be tried again, so nothing waits for that
        if how == "retry":
            self._numbers.retried += 1
            box.failures = one.failures
            box.since = now + delay
            self.boxes.set_state(box, LATER)
            self._remember(box.since, "later", box.mailbox)
        elif how == "shelve":
            box.shelf, box.since = one.reason.decode(), now
            self._numbers.last_place += 1
            self.boxes.set_state(box, SHELVED, self._numbers.last_place)
            self._has_shelves = True
            self._remember(now + self._settings.unknown, "shelf", box.mailbox)
        else:
            if how == "bury":
                self._bury(now, box, one.reason, "dead", tell=False)
            self._go_on(box)

    def _go_on(self, box: Box) -> None:
        """Let the next job of a mailbox that stands nowhere have its turn, if there is one."""
        if box.depth:
            self.make_ready(box)
        else:
            self._forget(box)

    def _pop(self, box: Box, count: int) -> None:
        """Remove jobs from the head of a mailbox."""
        if self._has_doomed:
            first = self.boxes.position(box, 0)
            last = self.boxes.position(box, count)
            for raw in self.boxes.between(box, first, last):
                self._undoom(opened(raw).id)
        self._numbers.jobs -= count if box.mailbox[0] == "j" else 0
        self.boxes.pop(box, count)
        if box.failures or box.losses:
            self._untrouble(box)

    def _untrouble(self, box: Box) -> None:
        box.failures = box.losses = 0
        self.boxes.changed(box)

    def _undoom(self, job: str) -> None:
        self._execute("DELETE FROM keyed_doomed WHERE pool = ? AND id = ?", (self._pool, job))

    def _is_doomed(self, job: str) -> bool:
        if not self._has_doomed:
            return False
        found = self._execute("SELECT 1 FROM keyed_doomed WHERE pool = ? AND id = ?", (self._pool, job))
        return found.fetchone() is not None

    def _conclude(self, now: int, outcome: Outcome) -> None:
        """Keep how a job ended, and tell its producer."""
        if outcome.keep:
            self._outcomes.append((self._pool, outcome.id, now + outcome.keep, outcome.status, outcome.data))
            if outcome.reply:
                self._hint(outcome.reply)

    def _end(self, now: int, raw: bytes, status: str, data: bytes = b"") -> None:
        """Write the outcome of a job that no worker reports."""
        envelope = opened(raw)
        if self._has_doomed:
            self._undoom(envelope.id)
        self._conclude(now, Outcome(envelope.id, status, data, envelope.keep, envelope.reply))

    def _bury(self, now: int, box: Box, reason: bytes, status: str, *, tell: bool = True) -> None:
        """Put the first job of a mailbox among the dead letters."""
        raw = self.boxes.first(box)
        numbers = self._numbers
        numbers.last_dead += 1
        numbers.dead += 1
        numbers.buried += 1
        self._execute(
            "INSERT INTO keyed_dead VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._pool, numbers.last_dead, box.slot, box.mailbox, now, reason, raw, opened(raw).id),
        )
        self._pop(box, 1)
        if tell:
            self._end(now, raw, status, reason)

    def _has_no_grave(self) -> bool:
        return 0 < self._settings.max_dead <= self._numbers.dead

    def _forget(self, box: Box) -> None:
        """Leave nothing of a mailbox that is empty."""
        if box.failures or box.losses:
            self._untrouble(box)
        if self._has_notes:
            self._execute("DELETE FROM keyed_note WHERE pool = ? AND mailbox = ?", (self._pool, box.mailbox))

    # -- a worker's take ----------------------------------------------------------------------------------------------

    def take(
        self, now: int, worker: str, lane: str, names: Iterable[str], token: int, want: int, per: int
    ) -> list[Take]:
        """Hand out up to `want` mailboxes that are ready, `per` jobs of each."""
        takes: list[Take] = []
        if want > 0:
            self._take_active(now, worker, lane, token, want, per, takes)
            if self._has_shelves and len(takes) < want:
                self._take_shelved(now, worker, lane, names, token, want, takes)
        return takes

    def _take_active(
        self, now: int, worker: str, lane: str, token: int, want: int, per: int, takes: list[Take]
    ) -> None:
        size = 0
        self.boxes.flush()
        while len(takes) < want and size <= HEAVY:
            slots = self._execute(
                "SELECT place, slot FROM keyed_active WHERE pool = ? AND worker = ? AND lane = ? "
                "ORDER BY place LIMIT ?",
                (self._pool, worker, lane, min(want - len(takes), _CHUNK)),
            ).fetchall()
            if not slots:
                break
            passed: list[tuple[int, str, str, int]] = []
            moved: list[tuple[int, int, str, str, int]] = []
            for place, slot in slots:
                if len(takes) >= want or size > HEAVY:
                    break
                many = min(VISIT, want - len(takes))
                ready = self.boxes.ready(lane, slot, many + 1) if self._owner_of(slot) == worker else []
                for box in ready[:many]:
                    size += self._take_one(now, worker, box, token, per, takes)
                if len(ready) > many:
                    self._numbers.last_place += 1
                    moved.append((self._numbers.last_place, self._pool, worker, lane, place))
                else:
                    passed.append((self._pool, worker, lane, place))
            key = "pool = ? AND worker = ? AND lane = ? AND place = ?"
            self._executemany(f"DELETE FROM keyed_active WHERE {key}", passed)
            self._executemany(f"UPDATE keyed_active SET place = ? WHERE {key}", moved)

    def _take_shelved(
        self, now: int, worker: str, lane: str, names: Iterable[str], token: int, want: int, takes: list[Take]
    ) -> None:
        for name in sorted(names):
            while len(takes) < want and (boxes := self.boxes.shelved(lane, name, want - len(takes))):
                for box in boxes:
                    self.boxes.set_state(box, NOWHERE)
                    self._take_one(now, worker, box, token, 1, takes, is_lent=True)

    def _take_one(
        self, now: int, worker: str, box: Box, token: int, per: int, takes: list[Take], *, is_lent: bool = False
    ) -> int:
        """Hand out one mailbox; return the size of its jobs."""
        while self._has_doomed and self._is_doomed(opened(raw := self.boxes.first(box)).id):
            self._pop(box, 1)
            self._end(now, raw, "cancelled")
            if not box.depth:
                self.boxes.set_state(box, NOWHERE)
                self._forget(box)
                return 0
        if self._has_paused and self._is_paused(box.mailbox):
            self.boxes.set_state(box, HELD)
            return 0
        jobs = self.boxes.heads(box, 1 if box.losses else per, self._is_doomed_job)
        box.token, box.worker, box.taken, box.done, box.is_lent = token, worker, len(jobs), 0, is_lent
        self._numbers.last_place += 1
        self.boxes.set_state(box, RUNNING, self._numbers.last_place)
        notes = self._notes(box.mailbox) if self._has_notes else ()
        takes.append(Take(box.slot, box.mailbox, token, jobs, box.failures, box.losses, notes))
        return sum(map(len, jobs))

    def _is_doomed_job(self, raw: bytes) -> bool:
        return bool(self._has_doomed) and self._is_doomed(opened(raw).id)

    def _is_paused(self, mailbox: str) -> bool:
        found = self._execute("SELECT 1 FROM keyed_paused WHERE pool = ? AND mailbox = ?", (self._pool, mailbox))
        return found.fetchone() is not None

    def _notes(self, mailbox: str) -> tuple[tuple[int, bytes], ...]:
        rows = self._execute(
            "SELECT number, data FROM keyed_note WHERE pool = ? AND mailbox = ? ORDER BY number", (self._pool, mailbox)
        )
        return tuple(rows)

    # -- workers that are gone ----------------------------------------------------------------------------------------

    def recover(self, now: int, box: Box, *, blame: bool) -> None:
        """End a take whose worker will not: its jobs are ready again. With `blame` its first job may have killed it."""
        self.boxes.set_state(box, NOWHERE)
        self._numbers.recovered += 1
        if blame and box.mailbox[0] == "j" and box.depth:
            box.losses += 1
            if box.losses >= self._settings.max_losses:
                self._bury(now, box, b"its worker died %d times while running it" % box.losses, "lost")
        if box.depth:
            self.make_ready(box, first=True)

    def dismiss(self, worker: str) -> None:
        """Forget what was set aside for a worker."""
        self._execute("DELETE FROM keyed_active WHERE pool = ? AND worker = ?", (self._pool, worker))
        self._execute("DELETE FROM keyed_signal WHERE pool = ? AND worker = ?", (self._pool, worker))

    # -- commands -----------------------------------------------------------------------------------------------------

    def start(self, now: int, slot: int, mailbox: str, body: bytes) -> str:
        """Let a resident run with these arguments."""
        raw = stamped(now, body)
        box = self.boxes.get(mailbox)
        if box is None:
            self.enter(slot, mailbox, raw)
            return "started"
        last = opened(self.boxes.last(box))
        if last.payload == opened(raw).payload and not self._is_doomed(last.id):
            return "same"
        if _taken(box, slot):
            self._doom(box)
            self.boxes.append(box, raw)
        else:
            self.boxes.set_state(box, NOWHERE)
            self._pop(box, box.depth)
            self.enter(slot, mailbox, raw)
        return "replaced"

    def stop(self, now: int, slot: int, mailbox: str) -> str:
        """End a resident."""
        box = self.boxes.get(mailbox)
        if box is None:
            return "gone"
        if _taken(box, slot):
            self._doom(box)
            return "stopping"
        self.boxes.set_state(box, NOWHERE)
        self._pop(box, box.depth)
        self._forget(box)
        return "stopped"

    def _doom(self, box: Box) -> None:
        """Tell the worker of a resident to end it, and drop what waits behind it."""
        self.boxes.cut(box)
        running = opened(self.boxes.first(box)).id
        self._add_doomed(running)
        self._signal(box.worker, "cancel", box.mailbox, job=running)

    def _add_doomed(self, job: str) -> None:
        self._has_doomed = True
        self._execute("INSERT OR IGNORE INTO keyed_doomed VALUES (?, ?)", (self._pool, job))

    def notify(self, slot: int, mailbox: str, data: bytes) -> str:
        """Leave a message for a resident."""
        box = self.boxes.get(mailbox)
        if box is None or self._is_doomed(opened(self.boxes.last(box)).id):
            return "gone"
        self._numbers.last_note += 1
        last = self._numbers.last_note
        self._execute("INSERT INTO keyed_note VALUES (?, ?, ?, ?)", (self._pool, mailbox, last, data))
        self._has_notes = True
        if box.state == RUNNING and box.slot == slot and box.depth == 1:  # else it is for the one that replaces it
            self._signal(box.worker, "note", mailbox, note=last, data=data)
        return "sent"

    def cancel(self, now: int, slot: int, mailbox: str, job: str) -> str:
        """Take a job back, if it is there."""
        delayed = self._delayed(job)
        if delayed is not None:
            self._undelay(job)
            self._end(now, stamped(now, delayed[3]), "cancelled")
            return "cancelled"
        box = self.boxes.get(mailbox)
        found = [] if box is None else [one for one in self.boxes.containing(box, job) if opened(one[1]).id == job]
        if box is None or not found:
            return "gone"
        position, raw = found[0]
        if position < self.boxes.position(box, _taken(box, slot)):
            self._add_doomed(job)
            self._signal(box.worker, "cancel", mailbox, job=job)
            return "asked"
        last = max(position for position, other in found if other == raw)
        self._remove(now, box, last, raw, "cancelled")
        return "cancelled"

    def purge(self, now: int, slot: int, mailbox: str) -> int:
        """Drop what no worker has."""
        box = self.boxes.get(mailbox)
        waiting = [] if box is None else self.boxes.after(box, _taken(box, slot))
        for position, raw in waiting:
            assert box is not None
            self._remove(now, box, position, raw, "purged")
        delayed = self._execute(
            "SELECT id, body FROM keyed_delayed INDEXED BY keyed_delayed_mailbox WHERE pool = ? AND mailbox = ?",
            (self._pool, mailbox),
        ).fetchall()
        for job, body in delayed:
            self._undelay(job)
            self._end(now, stamped(now, body), "purged")
        return len(waiting) + len(delayed)

    def pause(self, mailbox: str) -> None:
        """Let no job of this key begin."""
        self._execute("INSERT OR IGNORE INTO keyed_paused VALUES (?, ?)", (self._pool, mailbox))

    def resume(self, mailbox: str) -> None:
        """Undo `pause`."""
        self._execute("DELETE FROM keyed_paused WHERE pool = ? AND mailbox = ?", (self._pool, mailbox))
        box = self.boxes.get(mailbox)
        if box is not None and box.state == HELD:
            self.make_ready(box)

    def replay(self, now: int, numbers: Iterable[int]) -> int:
        """Put dead letters back into their mailboxes, in their order."""
        count = 0
        for number in sorted(set(numbers)):
            row = self._execute(
                "SELECT slot, mailbox, raw, job FROM keyed_dead WHERE pool = ? AND number = ?", (self._pool, number)
            ).fetchone()
            if row is not None:
                self.drop((number,))
                self._execute("DELETE FROM keyed_outcome WHERE pool = ? AND id = ?", (self._pool, row[3]))
                self.enter(row[0], row[1], stamped(now, row[2][STAMP:]))
                count += 1
        return count

    def drop(self, numbers: Iterable[int]) -> int:
        """Forget dead letters."""
        count = 0
        for number in set(numbers):
            count += self._execute(
                "DELETE FROM keyed_dead WHERE pool = ? AND number = ?", (self._pool, number)
            ).rowcount
        self._numbers.dead -= count
        return count

    # -- parts --------------------------------------------------------------------------------------------------------

    def _remove(self, now: int, box: Box, position: int, raw: bytes, status: str) -> None:
        """Take a job that no worker has out of its mailbox."""
        is_first = box.state != RUNNING and self.boxes.position(box, 0) == position
        self.boxes.remove(box, position)
        self._numbers.jobs -= box.mailbox[0] == "j"
        if not box.depth:
            self.boxes.set_state(box, NOWHERE)
            self._forget(box)
        elif is_first:
            if box.failures or box.losses:
                self._untrouble(box)
            if box.state in (LATER, SHELVED):
                self.make_ready(box)
        self._end(now, raw, status)

    def _signal(self, worker: str, kind: str, mailbox: str, *, job: str = "", note: int = 0, data: bytes = b"") -> None:
        if not self._is_member(worker):
            return
        self._numbers.last_signal += 1
        self._execute(
            "INSERT INTO keyed_signal VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self._pool, worker, self._numbers.last_signal, kind, mailbox, job, note, data),
        )
        self._hint(worker)

    def signals(self, worker: str, heard: int) -> tuple[Signal, ...]:
        """Return what a worker has not heard yet, and forget what it has."""
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

    def has_active(self, worker: str) -> bool:
        """Tell whether there may be something to take."""
        row = self._execute(
            "SELECT 1 FROM keyed_active WHERE pool = ? AND worker = ? LIMIT 1", (self._pool, worker)
        ).fetchone()
        return row is not None


def _taken(box: Box, slot: int) -> int:
    """Return how many jobs at the head of a mailbox a worker has."""
    return box.taken - box.done if box.state == RUNNING and box.slot == slot else 0

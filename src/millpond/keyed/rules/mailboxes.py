"""Where every job stands: how it enters its mailbox, is reported and recovered, and what happens in time.

Invariants, which the conformance suite checks after every step:

- I1 a mailbox that is not empty stands in exactly one place, once: ready, running, waiting for a retry, paused, or
  parked (no worker that had it knows its job). An empty one stands nowhere.
- I2 a slot with something ready and an owner is among the active slots of that owner.
- I4 only a report that names a running take, or a recorded command, removes a job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from millpond.keyed.rules.envelope import Envelope, opened, stamped
from millpond.keyed.rules.records import DEAD_RETRY, DUE_PER_CALL, LONGEST_ERROR, UNPROVEN, DeadLetter, Outcome, Report
from millpond.keyed.rules.tables import NOWHERE, PARKED, RETRY, RUNNING, SUSPECTS, M, Tables


class MailboxRules(Generic[M]):
    """The mailboxes of a pool. `hint` is called with the name of everybody for whom there may be news."""

    def __init__(self, tables: Tables[M], hint: Callable[[str], None]) -> None:
        self._tables = tables
        self._boxes = tables.mailboxes
        self._numbers = tables.numbers
        self._hint = hint

    # -- entering -----------------------------------------------------------------------------------------------------

    def enter(
        self, slot: int, mailbox: str, raw: bytes, hand_over: Callable[[M, bytes], bool] = lambda box, raw: False
    ) -> None:
        """Put a job at the end of a mailbox. One that is alone there may be taken by `hand_over`; else it is ready."""
        box = self._boxes.make(slot, mailbox)
        self._boxes.append(box, raw)
        if box.lane == "j":
            self._numbers.jobs += 1
        if box.state == NOWHERE and not hand_over(box, raw):
            self.make_ready(box)

    def make_ready(self, box: M, *, first: bool = False) -> None:
        """Make a mailbox ready, for the owner of its slot to take."""
        queue = SUSPECTS if box.losses and self._is_lost(box, 1) else box.lane
        if self._boxes.make_ready(box, queue, first=first):
            self.activate(queue, box.slot)

    def activate(self, queue: str, slot: int) -> None:
        """Notify the owner of a slot that something is ready there."""
        owner = self.owner_of(slot)
        if owner and self._tables.active.push(queue, owner, slot):
            self._hint(owner)

    def owner_of(self, slot: int) -> str:
        """Return the member that owns a slot, or nothing."""
        owner = self._tables.slots.get(slot).owner
        return owner if owner in self._tables.members else ""

    # -- time ---------------------------------------------------------------------------------------------------------

    def process_due(self, now: int) -> int:
        """Do what is due, not too much at a time; return when the next thing is, or 0."""
        tables = self._tables
        tables.outcomes.expire(now)
        tables.unique.expire(now)
        tables.died.expire(now)
        due = tables.due.pop(now, DUE_PER_CALL)
        if due:
            self._boxes.preload([name for _, what, name in due if what != "delayed"])
        for when, what, name in due:
            if what == "delayed":
                self._enter_delayed(now, name, when)
                continue
            box = self._boxes.get(name)
            if box is None:
                continue
            if what == "retry" and box.state == RETRY and box.since == when:
                self.try_again(now, box)
            elif what == "parked" and box.state == PARKED and box.since + self._tables.settings.unknown <= now:
                self._give_up_parked(now, box)
        return tables.due.next()

    def add_due(self, due: int, what: str, name: str) -> None:
        """Schedule something; of what is due at the same time, what was added first is first."""
        self._numbers.last_due += 1
        self._tables.due.add(due, self._numbers.last_due, what, name)

    def _enter_delayed(self, now: int, job: str, due: int) -> None:
        """Put a delayed job into its mailbox; not at the time of another one of that id, which was taken back."""
        delayed = self._tables.delayed.get(job)
        if delayed is not None and delayed.due == due:
            self.drop_delayed(job)
            self.enter(delayed.slot, delayed.mailbox, stamped(now, delayed.body))

    def drop_delayed(self, job: str) -> None:
        """Forget a delayed job."""
        self._tables.delayed.drop(job)
        self._numbers.delayed -= 1

    def try_again(self, now: int, box: M) -> None:
        """Make a mailbox ready whose retry is due, unless its first job is to be dead as soon as there is room."""
        if self._is_lost(box):
            self._boxes.move(box, NOWHERE)
            if self._give_up_lost(now, box):
                self.go_on(box)
        else:
            self.make_ready(box)

    def _give_up_parked(self, now: int, box: M) -> None:
        """Move a job to the dead letters that no worker has known for long enough."""
        if self._are_dead_letters_full():
            self.add_due(now + DEAD_RETRY, "parked", box.name)
            return
        self._boxes.move(box, NOWHERE)
        self._to_dead_letters(now, box, b"no worker knows " + box.unknown.encode(), "dead")
        self.go_on(box)

    # -- a worker's report --------------------------------------------------------------------------------------------

    def report(self, now: int, one: Report) -> bool:
        """Record what became of a take; False: it is not running any more, and nothing changes."""
        box = self._boxes.get(one.mailbox)
        if box is None or box.state != RUNNING or box.slot != one.slot or box.token != one.token:
            return False
        count = min(one.done, box.taken) - box.done
        is_refused = one.how == "to_dead_letters" and self._are_dead_letters_full()
        for outcome in one.outcomes:
            if not (is_refused and outcome.status == "dead"):
                self._keep_outcome(now, outcome)
        if count > 0:
            self.pop(box, count)
            box.done += count
            self._boxes.changed(box)
            if box.lane == "j":
                self._numbers.done += count
        if one.notes and self._tables.messages:
            self._tables.messages.drop(one.mailbox, one.notes)
        if box.done == box.taken:  # whatever it says: the job behind the last one of a take was never tried
            self._boxes.move(box, NOWHERE)
            self.go_on(box)
        elif one.how != "keep":
            self._boxes.move(box, NOWHERE)
            self._end_take(now, box, one, is_refused=is_refused)
        return True

    def _end_take(self, now: int, box: M, one: Report, *, is_refused: bool) -> None:
        """Do what is to happen to the first job of a mailbox that does not run any more."""
        how, delay = one.how, one.delay
        if is_refused:
            how, delay = "retry", DEAD_RETRY
        if how in ("retry", "park") and self._tables.cancelled and self.first(box).id in self._tables.cancelled:
            how = "end"  # it will not be tried again, so nothing waits for that
        if how == "retry":
            self._numbers.retried += 1
            box.failures, box.error = one.failures, one.reason[:LONGEST_ERROR]
            self._retry_at(now + delay, box)
        elif how == "park":
            box.unknown, box.since = one.reason.decode(), now
            self._boxes.move(box, PARKED)
            self.add_due(now + self._tables.settings.unknown, "parked", box.name)
        else:
            if how == "to_dead_letters":
                self._to_dead_letters(now, box, one.reason, tried=1)
            self.go_on(box)

    def _retry_at(self, due: int, box: M) -> None:
        box.since = due
        self._boxes.move(box, RETRY)
        self.add_due(due, "retry", box.name)

    def go_on(self, box: M) -> None:
        """Make a mailbox that stands nowhere ready for its next job, if there is one."""
        if box.depth:
            self.make_ready(box)
        elif self._tables.messages:
            self._tables.messages.drop(box.name)

    # -- jobs that end ------------------------------------------------------------------------------------------------

    def first(self, box: M) -> Envelope:
        """Return the first job of a mailbox."""
        return opened(self._boxes.heads(box, 1)[0])

    def pop(self, box: M, count: int) -> None:
        """Remove jobs from the head of a mailbox."""
        if self._tables.cancelled:
            for raw in self._boxes.heads(box, count):
                self._tables.cancelled.discard(opened(raw).id)
        if box.lane == "j":
            self._numbers.jobs -= count
        self._boxes.pop(box, count)
        if box.failures or box.losses or box.error:
            self.clear_failures(box)

    def clear_failures(self, box: M) -> None:
        """Forget what happened to a first job that is first no more."""
        box.failures = box.losses = box.deaths = 0
        box.error = b""
        self._boxes.changed(box)

    def is_emptied(self, box: M) -> bool:
        """Leave nothing of a mailbox that is empty; return whether it is."""
        if box.depth:
            return False
        self._boxes.move(box, NOWHERE)
        self.clear_failures(box)
        self.go_on(box)
        return True

    def end(self, now: int, raw: bytes, status: str, data: bytes = b"") -> None:
        """Write the outcome of a job that no worker reports."""
        envelope = opened(raw)
        self._tables.cancelled.discard(envelope.id)
        self._keep_outcome(now, Outcome(envelope.id, status, data, envelope.keep, envelope.reply))

    def _keep_outcome(self, now: int, outcome: Outcome) -> None:
        if outcome.keep:
            self._tables.outcomes.put(now + outcome.keep, outcome.id, (outcome.status, outcome.data))
            if outcome.reply:
                self._hint(outcome.reply)

    def _to_dead_letters(self, now: int, box: M, reason: bytes, status: str = "", *, tried: int = 0) -> None:
        """Put the first job of a mailbox among the dead letters; with a status, also write its outcome."""
        attempts = box.failures + box.losses + tried
        raw = self._boxes.heads(box, 1)[0]
        numbers = self._numbers
        numbers.last_dead += 1
        numbers.dead += 1
        numbers.dead_total += 1
        self._tables.dead.put(DeadLetter(numbers.last_dead, box.slot, box.name, now, reason, raw, attempts))
        self.pop(box, 1)
        if status:
            self.end(now, raw, status, reason)

    def _are_dead_letters_full(self) -> bool:
        return 0 < self._tables.settings.max_dead <= self._numbers.dead

    # -- workers that are gone ----------------------------------------------------------------------------------------

    def recover(self, now: int, box: M, *, blame: bool) -> None:
        """End a take whose worker will not: its jobs are ready again. With `blame` its first job may have killed it."""
        self._boxes.move(box, NOWHERE)
        self._numbers.recovered += 1
        if blame and box.lane == "j":
            box.losses += 1
            box.deaths += bool(self._tables.died.get(now, box.worker))
            if self._is_lost(box) and not self._give_up_lost(now, box):
                return
        if box.depth:
            self.make_ready(box, first=True)

    def _is_lost(self, box: M, more: int = 0) -> bool:
        """Return whether a first job has lost too many workers, or has with so many more."""
        most = self._tables.settings.max_losses
        return box.deaths + more >= most or box.losses + more >= UNPROVEN * most

    def _give_up_lost(self, now: int, box: M) -> bool:
        """Move a job to the dead letters that has lost too many workers; False: they are full, so it waits."""
        if self._are_dead_letters_full():
            self._retry_at(now + DEAD_RETRY, box)
            return False
        reason = b"its worker died %d times while running it" % box.deaths
        if box.deaths < self._tables.settings.max_losses:
            reason = b"its worker was lost %d times while running it (%d proven deaths)" % (box.losses, box.deaths)
        self._to_dead_letters(now, box, reason, "lost")
        return True

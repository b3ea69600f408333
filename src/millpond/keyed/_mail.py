"""Mailboxes: where every job stands, as pure rules. The store in memory runs them; the others are twins of them.

Invariants, which the conformance suite checks after every step:

- I1 a mailbox that is not empty stands in exactly one place, once: ready, running, later (a retry), held (paused) or on
  a shelf (nobody here knows its job). An empty one stands nowhere.
- I2 a slot with something ready and an owner is among the active slots of that owner.
- I4 only a settle that names a running take, or a recorded command, removes a job.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from millpond.keyed._envelope import came, opened, stamped
from millpond.keyed._records import (
    DEAD_RETRY,
    DUE,
    HEAVY,
    STAMP,
    VISIT,
    DeadLetter,
    Order,
    Outcome,
    Settings,
    Settle,
    Signal,
    Special,
    Take,
)


@dataclass(slots=True)
class Run:
    """A take that is not over."""

    token: int
    worker: str
    taken: int
    done: int = 0
    is_lent: bool = False
    """The worker does not own the slot: it took the mailbox from a shelf, since it knows the job."""


@dataclass(slots=True)
class Counters:
    dispatched: int = 0
    done: int = 0
    retried: int = 0
    buried: int = 0
    recovered: int = 0
    moved: int = 0


class Mail:
    """The mailboxes of a pool. `owner_of` tells who owns a slot; `hint` is told whom to wake."""

    def __init__(self, settings: Settings, owner_of: Callable[[int], str], hint: Callable[[str], None]) -> None:
        self.settings = settings
        self._owner_of = owner_of
        self._hint = hint
        self.boxes: dict[str, deque[bytes]] = {}
        self.ready: dict[tuple[str, int], deque[str]] = {}
        self.active: dict[tuple[str, str], deque[int]] = {}
        self.running: dict[int, dict[str, Run]] = {}
        self.later: dict[str, tuple[int, int]] = {}
        """mailbox -> (due, slot)"""
        self.delayed: dict[str, tuple[int, int, str, bytes]] = {}
        """job id -> (due, slot, mailbox, body)"""
        self.paused: set[str] = set()
        self.held: dict[str, int] = {}
        self.shelves: dict[str, dict[str, tuple[int, int]]] = {}
        """name -> mailbox -> (since, slot)"""
        self.lent: dict[str, int] = {}
        """mailbox -> slot, of those that run with somebody who took them from a shelf"""
        self.trouble: dict[str, tuple[int, int]] = {}
        """mailbox -> failures and losses of its first job"""
        self.doomed: set[str] = set()
        """ids of jobs that a worker has and that are not to run again"""
        self.notes: dict[str, deque[tuple[int, bytes]]] = {}
        self.outcomes: dict[str, tuple[int, str, bytes]] = {}
        self.dead: dict[int, DeadLetter] = {}
        self.unique: dict[str, int] = {}
        self.signals: dict[str, deque[Signal]] = {}
        """worker -> what it has not heard yet; only members have an entry"""
        self.jobs = 0
        """Jobs in mailboxes of the lane of jobs."""
        self.counters = Counters()
        self._last_dead = 0
        self._last_signal = 0
        self._last_note = 0
        self._last_due = 0
        self._due: list[tuple[int, int, str, str]] = []  # a heap of (time, number, what, id); what is not so is skipped
        self._fading: list[tuple[int, str, str]] = []  # the same for what only has to be forgotten

    # -- coming in ----------------------------------------------------------------------------------------------------

    def verdict(self, now: int, order: Order) -> str:
        """Dispatch one order, or say why not."""
        special = order.special
        if special is not None:
            is_known = special.unique_for and self.unique.get(special.id, 0) > now
            if is_known or special.id in self.delayed:
                return "same"
        replaced = 0
        if special is not None and special.on_busy != "queue":
            answer, replaced = self._busy(now, order, special)
            if answer:
                return answer
        settings = self.settings
        if not replaced:  # else there is room
            if settings.max_jobs and self.jobs + len(self.delayed) >= settings.max_jobs:
                return "pool"
            if settings.max_per_key and len(self.boxes.get(order.mailbox, ())) >= settings.max_per_key:
                return "full"
        self.counters.dispatched += 1
        if special is not None:
            if special.unique_for:
                self.unique[special.id] = now + special.unique_for
                heapq.heappush(self._fading, (now + special.unique_for, "unique", special.id))
            due = special.at or now + special.delay
            if due > now:
                self.delayed[special.id] = (due, order.slot, order.mailbox, order.body)
                self._remember(due, "delayed", special.id)
                if owner := self._owner_of(order.slot):
                    self._hint(owner)  # so that it knows when to look
                return ""
        self.enter(order.slot, order.mailbox, stamped(now, order.body))
        return ""

    def _busy(self, now: int, order: Order, special: Special) -> tuple[str, int]:
        """Return a verdict, or how many jobs were dropped to be replaced."""
        box = self.boxes.get(order.mailbox)
        if box is None:
            return "", 0
        if special.on_busy == "reject":
            return "busy", 0
        taken = self.taken(order.slot, order.mailbox)
        envelopes = [(raw, opened(raw)) for raw in list(box)[taken:]]
        alike = [(raw, one.id) for raw, one in envelopes if one.name == special.name and one.id not in self.doomed]
        if special.on_busy == "coalesce":
            return (f"into:{alike[-1][1]}" if alike else ""), 0
        for raw, _ in alike:  # replace
            self._remove(now, order.slot, order.mailbox, raw, "replaced")
        return "", len(alike)

    def enter(self, slot: int, mailbox: str, raw: bytes) -> None:
        """Put a job at the end of a mailbox."""
        box = self.boxes.setdefault(mailbox, deque())
        box.append(raw)
        if mailbox[0] == "j":
            self.jobs += 1
        if len(box) == 1:
            self.make_ready(slot, mailbox)

    def make_ready(self, slot: int, mailbox: str, *, first: bool = False) -> None:
        """Let a mailbox be taken by the owner of its slot."""
        ready = self.ready.setdefault((mailbox[0], slot), deque())
        if first:
            ready.appendleft(mailbox)
        else:
            ready.append(mailbox)
        if len(ready) == 1:
            self.activate(mailbox[0], slot)

    def activate(self, lane: str, slot: int) -> None:
        """Tell the owner of a slot that something is ready there."""
        owner = self._owner_of(slot)
        if not owner:
            return
        active = self.active.setdefault((lane, owner), deque())
        if slot not in active:
            active.append(slot)
        if len(active) == 1:
            self._hint(owner)

    # -- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> int:
        """Let happen what is due, not too much at a time; return when the next thing is, or 0."""
        self._fade(now)
        for _ in range(DUE):
            if not self._due or self._due[0][0] > now:
                break
            *_, what, name = heapq.heappop(self._due)
            match what:
                case "later":
                    if (entry := self.later.get(name)) and entry[0] <= now:
                        del self.later[name]
                        self.make_ready(entry[1], name)
                case "delayed":
                    if (job := self.delayed.get(name)) and job[0] <= now:
                        del self.delayed[name]
                        self.enter(job[1], job[2], stamped(now, job[3]))
                case "shelf":
                    self._clear_shelf(now, name)
        return self._due[0][0] if self._due else 0

    def _remember(self, due: int, what: str, name: str) -> None:
        """Let something happen at a time; of what is due at the same time, what was remembered first is first."""
        self._last_due += 1
        heapq.heappush(self._due, (due, self._last_due, what, name))

    def _fade(self, now: int) -> None:
        """Forget outcomes and ids that were kept for long enough."""
        while self._fading and self._fading[0][0] <= now:
            _, what, name = heapq.heappop(self._fading)
            if what == "outcome" and name in self.outcomes and self.outcomes[name][0] <= now:
                del self.outcomes[name]
            elif what == "unique" and self.unique.get(name, now + 1) <= now:
                del self.unique[name]

    def _clear_shelf(self, now: int, mailbox: str) -> None:
        for name, shelf in list(self.shelves.items()):
            if mailbox not in shelf or shelf[mailbox][0] + self.settings.unknown > now:
                continue
            if self._has_no_grave():
                self._remember(now + DEAD_RETRY, "shelf", mailbox)
                continue
            slot = shelf[mailbox][1]
            self._leave_place(slot, mailbox)
            self._bury(now, slot, mailbox, b"no worker knows " + name.encode(), "dead")
            self._go_on(slot, mailbox)

    # -- a worker's report --------------------------------------------------------------------------------------------

    def settle(self, now: int, one: Settle) -> bool:
        """Take note of what became of a take; False: it is not running any more, and nothing changes."""
        run = self.running.get(one.slot, {}).get(one.mailbox)
        if run is None or run.token != one.token:
            return False
        count = max(0, min(one.done, run.taken) - run.done)
        is_refused = one.how == "bury" and self._has_no_grave()
        for outcome in one.outcomes:
            if not (is_refused and outcome.status == "dead"):
                self._conclude(now, outcome)
        self._pop(one.mailbox, count)
        self.counters.done += count if one.mailbox[0] == "j" else 0
        run.done += count
        if one.notes and one.mailbox in self.notes:
            waiting = self.notes[one.mailbox]
            while waiting and waiting[0][0] <= one.notes:
                waiting.popleft()
        if run.done == run.taken:  # whatever it says: the job behind the last one of a take was never tried
            self._end_run(one.slot, one.mailbox)
            self._go_on(one.slot, one.mailbox)
        elif one.how != "keep":
            self._end_run(one.slot, one.mailbox)
            self._end_take(now, one, is_refused=is_refused)
        return True

    def _end_take(self, now: int, one: Settle, *, is_refused: bool) -> None:
        """Do what is to happen to the first job of a mailbox that does not run any more."""
        how, delay = one.how, one.delay
        if is_refused:
            how, delay = "retry", DEAD_RETRY
        if how in ("retry", "shelve") and opened(self.boxes[one.mailbox][0]).id in self.doomed:
            how = "end"  # it will not be tried again, so nothing waits for that
        if how == "retry":
            self.counters.retried += 1
            losses = self.trouble.get(one.mailbox, (0, 0))[1]
            self.trouble[one.mailbox] = (one.failures, losses)
            self.later[one.mailbox] = (now + delay, one.slot)
            self._remember(now + delay, "later", one.mailbox)
        elif how == "shelve":
            name = one.reason.decode()
            self.shelves.setdefault(name, {})[one.mailbox] = (now, one.slot)
            self._remember(now + self.settings.unknown, "shelf", one.mailbox)
        else:
            if how == "bury":
                self._bury(now, one.slot, one.mailbox, one.reason, "dead", tell=False)
            self._go_on(one.slot, one.mailbox)

    def _go_on(self, slot: int, mailbox: str) -> None:
        """Let the next job of a mailbox that stands nowhere have its turn, if there is one."""
        if mailbox in self.boxes:
            self.make_ready(slot, mailbox)
        else:
            self._forget(mailbox)

    def _pop(self, mailbox: str, count: int) -> None:
        """Remove jobs from the head of a mailbox."""
        if not count:
            return
        box = self.boxes[mailbox]
        for _ in range(count):
            raw = box.popleft()
            if self.doomed:
                self.doomed.discard(opened(raw).id)
        self.jobs -= count if mailbox[0] == "j" else 0
        self.trouble.pop(mailbox, None)
        if not box:
            del self.boxes[mailbox]

    def _conclude(self, now: int, outcome: Outcome) -> None:
        """Keep how a job ended, and tell its producer."""
        if outcome.keep:
            self.outcomes[outcome.id] = (now + outcome.keep, outcome.status, outcome.data)
            heapq.heappush(self._fading, (now + outcome.keep, "outcome", outcome.id))
            if outcome.reply:
                self._hint(outcome.reply)

    def _end(self, now: int, raw: bytes, status: str, data: bytes = b"") -> None:
        """Write the outcome of a job that no worker reports."""
        envelope = opened(raw)
        self.doomed.discard(envelope.id)
        self._conclude(now, Outcome(envelope.id, status, data, envelope.keep, envelope.reply))

    def _bury(self, now: int, slot: int, mailbox: str, reason: bytes, status: str, *, tell: bool = True) -> None:
        """Put the first job of a mailbox among the dead letters."""
        raw = self.boxes[mailbox][0]
        self._last_dead += 1
        self.dead[self._last_dead] = DeadLetter(self._last_dead, slot, mailbox, now, reason, raw)
        self.counters.buried += 1
        self._pop(mailbox, 1)
        if tell:
            self._end(now, raw, status, reason)

    def _has_no_grave(self) -> bool:
        return 0 < self.settings.max_dead <= len(self.dead)

    def _end_run(self, slot: int, mailbox: str) -> None:
        del self.running[slot][mailbox]
        self.lent.pop(mailbox, None)

    def _forget(self, mailbox: str) -> None:
        """Leave nothing of a mailbox that is empty."""
        self.trouble.pop(mailbox, None)
        self.notes.pop(mailbox, None)

    # -- a worker's take ----------------------------------------------------------------------------------------------

    def take(
        self, now: int, worker: str, lane: str, names: Iterable[str], token: int, want: int, per: int
    ) -> list[Take]:
        """Hand out up to `want` mailboxes that are ready, `per` jobs of each."""
        takes: list[Take] = []
        active = self.active.get((lane, worker))
        while active and len(takes) < want and not _is_heavy(takes):
            slot = active.popleft()
            ready = self.ready.get((lane, slot))
            if self._owner_of(slot) != worker or not ready:
                continue
            for _ in range(min(VISIT, want - len(takes), len(ready))):
                self._take_one(now, worker, slot, ready.popleft(), token, per, takes)
            if ready:
                active.append(slot)
            else:
                del self.ready[lane, slot]
        if self.shelves and len(takes) < want:
            for name in sorted(names):
                shelf = self.shelves.get(name, {})
                for mailbox, (_, slot) in list(shelf.items()):
                    if len(takes) < want and mailbox[0] == lane:
                        self._leave_place(slot, mailbox)
                        self._take_one(now, worker, slot, mailbox, token, 1, takes, is_lent=True)
        return takes

    def _take_one(
        self,
        now: int,
        worker: str,
        slot: int,
        mailbox: str,
        token: int,
        per: int,
        takes: list[Take],
        *,
        is_lent: bool = False,
    ) -> None:
        box = self.boxes[mailbox]
        while self.doomed and (first := opened(box[0])).id in self.doomed:
            self.doomed.discard(first.id)
            raw = box[0]
            self._pop(mailbox, 1)
            self._end(now, raw, "cancelled")
            if mailbox not in self.boxes:
                self._forget(mailbox)
                return
        if mailbox in self.paused:
            self.held[mailbox] = slot
            return
        failures, losses = self.trouble.get(mailbox, (0, 0))
        many = 1 if losses else per
        jobs = self._fitting(box, many)
        self.running.setdefault(slot, {})[mailbox] = Run(token, worker, len(jobs), is_lent=is_lent)
        if is_lent:
            self.lent[mailbox] = slot
        notes = tuple(self.notes.get(mailbox, ()))
        takes.append(Take(slot, mailbox, token, jobs, failures, losses, notes))

    def _fitting(self, box: deque[bytes], many: int) -> tuple[bytes, ...]:
        """Return the first jobs of a mailbox: one at least, fewer when they are large, none that is doomed."""
        jobs: list[bytes] = []
        size = 0
        for raw in box:
            size += len(raw)
            if jobs and (len(jobs) >= many or size > HEAVY or (self.doomed and opened(raw).id in self.doomed)):
                break
            jobs.append(raw)
        return tuple(jobs)

    # -- workers that are gone ----------------------------------------------------------------------------------------

    def recover(self, now: int, slot: int, mailbox: str, *, blame: bool) -> None:
        """End a take whose worker will not: its jobs are ready again. With `blame` its first job may have killed it."""
        self._end_run(slot, mailbox)
        self.counters.recovered += 1
        if blame and mailbox[0] == "j":
            failures, losses = self.trouble.get(mailbox, (0, 0))
            self.trouble[mailbox] = (failures, losses + 1)
            if losses + 1 >= self.settings.max_losses:
                self._bury(now, slot, mailbox, b"its worker died %d times while running it" % (losses + 1), "lost")
        if mailbox in self.boxes:
            self.make_ready(slot, mailbox, first=True)

    def admit(self, worker: str) -> None:
        """Have a place for what a worker is to be told."""
        self.signals.setdefault(worker, deque())

    def dismiss(self, worker: str) -> None:
        """Forget what was set aside for a worker."""
        for lane in "jr":
            self.active.pop((lane, worker), None)
        self.signals.pop(worker, None)

    # -- commands -----------------------------------------------------------------------------------------------------

    def start(self, now: int, slot: int, mailbox: str, body: bytes) -> str:
        """Let a resident run with these arguments."""
        raw = stamped(now, body)
        box = self.boxes.get(mailbox)
        if box is None:
            self.enter(slot, mailbox, raw)
            return "started"
        last = opened(box[-1])
        if last.id not in self.doomed and last.payload == opened(raw).payload:
            return "same"
        if self.taken(slot, mailbox):
            self._doom(now, slot, mailbox)
            box.append(raw)
        else:
            self._leave_place(slot, mailbox)
            self._pop(mailbox, len(box))
            self.enter(slot, mailbox, raw)
        return "replaced"

    def stop(self, now: int, slot: int, mailbox: str) -> str:
        """End a resident."""
        if mailbox not in self.boxes:
            return "gone"
        if self.taken(slot, mailbox):
            self._doom(now, slot, mailbox)
            return "stopping"
        self._leave_place(slot, mailbox)
        self._pop(mailbox, len(self.boxes[mailbox]))
        self._forget(mailbox)
        return "stopped"

    def _doom(self, now: int, slot: int, mailbox: str) -> None:
        """Tell the worker of a resident to end it, and drop what waits behind it."""
        box = self.boxes[mailbox]
        while len(box) > 1:
            box.pop()
        running = opened(box[0]).id
        self.doomed.add(running)
        self._signal(self.running[slot][mailbox].worker, "cancel", mailbox, job=running)

    def notify(self, slot: int, mailbox: str, data: bytes) -> str:
        """Leave a message for a resident."""
        if mailbox not in self.boxes or opened(self.boxes[mailbox][-1]).id in self.doomed:
            return "gone"
        self._last_note += 1
        self.notes.setdefault(mailbox, deque()).append((self._last_note, data))
        run = self.running.get(slot, {}).get(mailbox)
        if run is not None and len(self.boxes[mailbox]) == 1:  # else it is for the one that replaces what runs
            self._signal(run.worker, "note", mailbox, note=self._last_note, data=data)
        return "sent"

    def cancel(self, now: int, slot: int, mailbox: str, job: str) -> str:
        """Take a job back, if it is there."""
        if job in self.delayed:
            raw = stamped(now, self.delayed.pop(job)[3])
            self._end(now, raw, "cancelled")
            return "cancelled"
        taken = self.taken(slot, mailbox)
        for index, raw in enumerate(self.boxes.get(mailbox, ())):
            if opened(raw).id == job:
                if index < taken:
                    self.doomed.add(job)
                    self._signal(self.running[slot][mailbox].worker, "cancel", mailbox, job=job)
                    return "asked"
                self._remove(now, slot, mailbox, raw, "cancelled")
                return "cancelled"
        return "gone"

    def purge(self, now: int, slot: int, mailbox: str) -> int:
        """Drop what no worker has."""
        waiting = list(self.boxes.get(mailbox, ()))[self.taken(slot, mailbox) :]
        for raw in waiting:
            self._remove(now, slot, mailbox, raw, "purged")
        delayed = [job for job, entry in self.delayed.items() if entry[2] == mailbox]
        for job in delayed:
            self._end(now, stamped(now, self.delayed.pop(job)[3]), "purged")
        return len(waiting) + len(delayed)

    def pause(self, mailbox: str) -> None:
        """Let no job of this key begin."""
        self.paused.add(mailbox)

    def resume(self, mailbox: str) -> None:
        """Undo `pause`."""
        self.paused.discard(mailbox)
        slot = self.held.pop(mailbox, None)
        if slot is not None:
            self.make_ready(slot, mailbox)

    def replay(self, now: int, numbers: Iterable[int]) -> int:
        """Put dead letters back into their mailboxes, in their order."""
        letters = [self.dead.pop(number) for number in sorted(set(numbers)) if number in self.dead]
        for letter in letters:
            self.outcomes.pop(opened(letter.job).id, None)
            self.enter(letter.slot, letter.mailbox, stamped(now, letter.job[STAMP:]))
        return len(letters)

    def drop(self, numbers: Iterable[int]) -> int:
        """Forget dead letters."""
        return sum(self.dead.pop(number, None) is not None for number in set(numbers))

    # -- parts --------------------------------------------------------------------------------------------------------

    def taken(self, slot: int, mailbox: str) -> int:
        """Return how many jobs at the head of a mailbox a worker has."""
        run = self.running.get(slot, {}).get(mailbox)
        return 0 if run is None else run.taken - run.done

    def _remove(self, now: int, slot: int, mailbox: str, raw: bytes, status: str) -> None:
        """Take a job that no worker has out of its mailbox."""
        box = self.boxes[mailbox]
        index = len(box) - 1 - list(reversed(box)).index(raw)  # of two that are equal, a worker may have the first
        del box[index]
        self.jobs -= mailbox[0] == "j"
        if not box:
            self._leave_place(slot, mailbox)
            del self.boxes[mailbox]
            self._forget(mailbox)
        elif not index:
            self.trouble.pop(mailbox, None)
            if self._leave_wait(mailbox):
                self.make_ready(slot, mailbox)
        self._end(now, raw, status)

    def _leave_place(self, slot: int, mailbox: str) -> None:
        """Take a mailbox that does not run away from where it stands."""
        ready = self.ready.get((mailbox[0], slot))
        if ready and mailbox in ready:
            ready.remove(mailbox)
            if not ready:
                del self.ready[mailbox[0], slot]
        self.held.pop(mailbox, None)
        self._leave_wait(mailbox)

    def _leave_wait(self, mailbox: str) -> bool:
        """Let a mailbox wait no more for its first job to be tried again, or for somebody who knows it."""
        did_wait = self.later.pop(mailbox, None) is not None
        for name, shelf in list(self.shelves.items()):
            did_wait = shelf.pop(mailbox, None) is not None or did_wait
            if not shelf:
                del self.shelves[name]
        return did_wait

    def _signal(self, worker: str, kind: str, mailbox: str, *, job: str = "", note: int = 0, data: bytes = b"") -> None:
        if worker in self.signals:
            self._last_signal += 1
            self.signals[worker].append(Signal(self._last_signal, kind, mailbox, job, note, data))
            self._hint(worker)

    def places(self) -> Iterator[tuple[int, str, str]]:
        """Yield every place in which a mailbox stands: slot, mailbox, state."""
        for (_, slot), ready in self.ready.items():
            for mailbox in ready:
                yield slot, mailbox, "ready"
        for slot, runs in self.running.items():
            for mailbox in runs:
                yield slot, mailbox, "running"
        for mailbox, (_, slot) in self.later.items():
            yield slot, mailbox, "retry"
        for mailbox, slot in self.held.items():
            yield slot, mailbox, "held"
        for shelf in self.shelves.values():
            for mailbox, (_, slot) in shelf.items():
                yield slot, mailbox, "shelved"

    def oldest(self) -> int:
        """Return when the oldest job came that is ready and first of its key."""
        heads = (came(self.boxes[box][0]) for (lane, _), ready in self.ready.items() if lane == "j" for box in ready)
        return min(heads, default=0)


def _is_heavy(takes: list[Take]) -> bool:
    return sum(len(raw) for take in takes for raw in take.jobs) > HEAVY

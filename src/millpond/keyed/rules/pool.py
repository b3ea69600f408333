"""The rules of a keyed pool: what every verb of a store does, with the time given to it. The executable specification.

Ownership. A slot has an owner and an epoch that grows with each change. Whoever owns a slot may *give* it to another:
from then on the other takes what is ready there, and each key that still runs with the giver follows when it is
settled. So a hand-over holds back running keys, never their slot. What a dead worker had is *claimed*.

Death. A worker is dead when its lease is over on the store's clock **and** the claimer has seen that same end of it
unchanged for one lease on its own clock (it names what it saw), or when the store can prove it. So neither a jump of
the store's clock nor its outage makes anybody take anything away from the living.

Fence. Everything that a worker reports names its take by a token that no other take ever had; where the take is not
running any more, nothing changes. Tokens only grow: the later of last + 1 and the time in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, cast

from millpond.keyed.rules import commands as do
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.mailboxes import MailboxRules
from millpond.keyed.rules.orders import OrderRules
from millpond.keyed.rules.questions import A
from millpond.keyed.rules.records import (
    BATCH_RETENTION,
    DEATH_RETENTION,
    HANDED,
    Act,
    Batch,
    Claimed,
    Joiner,
    Member,
    Moves,
    Order,
    PoolState,
    Report,
    Slot,
    Take,
    Verdicts,
    Work,
)
from millpond.keyed.rules.tables import QUEUES, RUNNING, SUSPECTS, M, Tables
from millpond.keyed.rules.takes import Hand, TakeRules


class Rules(Generic[M]):
    """A pool. `hint` is called with the name of every worker or producer for whom there may be news.

    `hand` sends a worker a job that it need not ask for (see `takes`); without it every worker has to ask.
    """

    def __init__(
        self,
        tables: Tables[M],
        hint: Callable[[str], None] = lambda name: None,
        hand: Hand = lambda worker, before, signal: False,
    ) -> None:
        self.tables = tables
        self._numbers = tables.numbers
        self._hint = hint
        self.hand = hand
        self.mailboxes = MailboxRules(tables, hint)
        self.takes = TakeRules(tables, self.mailboxes, hand)
        self.orders = OrderRules(tables, self.mailboxes, self.takes, hint)

    # -- producers ----------------------------------------------------------------------------------------------------

    def dispatch(self, now: int, batch: Batch, orders: Sequence[Order]) -> Verdicts:
        """Put jobs into their mailboxes, in order. The same batch again is only answered again, an older one ignored.

        A producer has one batch under way: an older one was answered, or given up, before the last one was sent.
        """
        batches = self.tables.batches
        batches.expire(now)
        last = batches.get(now, batch.producer)
        if last is not None and batch.number <= last[0]:
            return last[1] if batch.number == last[0] else {}
        verdicts: dict[int, str] = {}
        refused: set[str] = set()
        self.tables.mailboxes.preload([order.mailbox for order in orders])
        for index, order in enumerate(orders):
            if self._numbers.is_shut:
                verdict = "closed"
            elif order.mailbox in refused:
                verdict = "full"  # what came before it is not in, so neither is this: order is kept
            else:
                verdict = self.orders.dispatch(now, order, is_small=len(orders) <= HANDED)
            if verdict:
                verdicts[index] = verdict
                if verdict in ("full", "pool"):
                    refused.add(order.mailbox)
        batches.put(now + BATCH_RETENTION, batch.producer, (batch.number, verdicts))
        return verdicts

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, now: int, joiner: Joiner) -> PoolState:
        """Add a worker to the members."""
        self.tables.members.put(joiner, now, now + self.tables.settings.lease)
        self._changed()
        return self.beat(now)

    def renew(self, now: int, worker: str, *, leaving: bool = False, version: int = 0) -> PoolState | None:
        """Prolong the lease of a worker; None: it is no member (any more).

        One that knows the members of this `version` is told briefly: else N workers would tell one another, at each
        heartbeat, the names of all their jobs.
        """
        members = self.tables.members
        member = members.get(worker)
        if member is None:
            return None
        members.renew(worker, now + self.tables.settings.lease, is_leaving=member.is_leaving or leaving)
        if leaving and not member.is_leaving:
            self._changed()
        return self.beat(now, is_brief=version == self._numbers.version)

    def leave(self, now: int, worker: str) -> None:
        """Remove a worker from the members: its slots are free."""
        owned = self.tables.slots.owned(worker)
        for slot in owned:
            self._set_owner(now, slot, "", "left")
        if not self._dismiss(now, worker) and owned:
            self._changed()

    def beat(self, now: int, *, is_brief: bool = False) -> PoolState:
        """Return the members and how the pool stands."""
        tables, numbers = self.tables, self._numbers
        members = tuple(tables.members.all())
        if is_brief:
            members = tuple(Member(one.id, "", 0, 0, (), *one[5:]) for one in members)
        return PoolState(now, tables.incarnation, numbers.version, bool(numbers.is_shut), members, is_brief)

    def _dismiss(self, now: int, worker: str) -> bool:
        """Remove a worker from the members; return whether it was one."""
        if self.tables.members.is_proven_dead(worker):
            self.tables.died.put(now + DEATH_RETENTION, worker, True)
        if not self.tables.members.drop(worker):
            return False
        self.tables.active.drop(worker)
        self.tables.signals.drop(worker)
        self._changed()
        return True

    def _changed(self) -> None:
        """Members or owners are others now: everybody may want to look."""
        self._numbers.version += 1
        self._hint_members()

    def _hint_members(self) -> None:
        for worker in self.tables.members:
            self._hint(worker)

    # -- slots --------------------------------------------------------------------------------------------------------

    def give(self, now: int, worker: str, moves: Moves, why: str) -> int:
        """Pass slots on to others; return how many the caller owned."""
        given, slots = 0, self.tables.slots
        takers = {one.id for one in self.tables.members.all() if not one.is_leaving}
        slots.preload([slot for slot, _ in moves])
        for slot, wanted in moves:
            if slots.get(slot).owner == worker:
                taker = wanted if wanted in takers else ""
                self._set_owner(now, slot, taker, why)
                for queue in QUEUES if taker else ():
                    if self.tables.mailboxes.has_ready(queue, slot):
                        self.mailboxes.activate(queue, slot)
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
        heard: int = 0,
    ) -> Claimed:
        """Take over slots that nobody owns or whose owner is dead, and what dead workers ran in them.

        `dead` says which end of its lease the caller has seen of each for so long. For slots that are the caller's own
        already this is a check. With `known`, what the caller runs in them by the store's word but not by its own (the
        answer to a take was lost) is ready again; takes numbered up to `call` do not happen any more. What was handed
        to it by signals after `heard` may still be on its way, and stays.
        """
        members = self.tables.members
        me = members.get(worker)
        if me is None or me.lease_end <= now:
            return Claimed((), (), 0, is_gone=True)
        is_late = call < members.last_call(worker)  # it was overtaken by a take, which its caller did not know of
        tokens = None if known is None or is_late else set(known)
        if tokens is not None:
            members.count_call(worker, call)
            signals = self.tables.signals.unheard(worker, 0)
            tokens.update(one.note for one in signals if one.kind == "take" and one.number > heard)
        for one, end in dead.items():
            if one != worker and self._is_dead(now, one, end):
                self._dismiss(now, one)
        return self._take_over(now, worker, slots, tokens)

    def _take_over(self, now: int, worker: str, slots: Sequence[int], tokens: set[int] | None) -> Claimed:
        tables, boxes = self.tables, self.tables.mailboxes
        got, contested = [], []
        recovered = self._recover_borrowed(now, worker, tokens)
        tables.slots.preload(slots)
        running = boxes.running(slots)
        ready = {queue: boxes.ready_slots(queue, slots) for queue in QUEUES}
        for slot in slots:
            owner = tables.slots.get(slot).owner
            if owner != worker:
                if owner in tables.members:
                    continue
                self._set_owner(now, slot, worker, "died" if owner else "free")
                got.append(slot)
            runs = [box for box in running.get(slot, ()) if box.state == RUNNING]
            count, is_contested = self._recover_slot(now, worker, slot, runs, tokens)
            recovered += count
            if is_contested:
                contested.append(slot)
            for queue in QUEUES:
                if slot in ready[queue] or (runs and boxes.has_ready(queue, slot)):
                    self.mailboxes.activate(queue, slot)
        if got:
            self._changed()
        return Claimed(tuple(got), tuple(contested), recovered, is_gone=False)

    def _recover_slot(
        self, now: int, worker: str, slot: int, runs: Iterable[M], tokens: set[int] | None
    ) -> tuple[int, bool]:
        """Recover what nobody runs in a slot any more; return how many, and whether another still runs something."""
        recovered, is_contested = 0, False
        is_drained = self.tables.slots.get(slot).since + self.tables.settings.drain <= now
        for box in _newest_first(runs):
            is_lost = box.worker not in self.tables.members
            if box.worker == worker:
                is_over = tokens is not None and box.token not in tokens
            else:
                is_over = is_lost or (is_drained and not box.is_borrowed)
                is_contested = is_contested or not (is_over or box.is_borrowed)
            if is_over:
                self.mailboxes.recover(now, box, blame=is_lost)
                recovered += 1
        return recovered, is_contested

    def _recover_borrowed(self, now: int, worker: str, tokens: set[int] | None) -> int:
        """Recover what was borrowed by somebody who is gone, or by the caller, who does not know of it."""
        recovered = 0
        for box in _newest_first(self.tables.mailboxes.borrowed()):
            is_lost = box.worker not in self.tables.members
            if is_lost or (box.worker == worker and tokens is not None and box.token not in tokens):
                self.mailboxes.recover(now, box, blame=is_lost)
                recovered += 1
        return recovered

    def _is_dead(self, now: int, worker: str, seen: int) -> bool:
        member = self.tables.members.get(worker)
        if member is None:
            return False
        end = member.lease_end  # further away than a lease: the clock went back since
        is_over = end == seen and not now < end <= now + self.tables.settings.lease
        return is_over or self.tables.members.is_proven_dead(worker)

    def _set_owner(self, now: int, slot: int, owner: str, why: str) -> None:
        was = self.tables.slots.get(slot)
        self.tables.slots.put(slot, Slot(owner, max(was.epoch + 1, now), now, why, was.owner))
        self._numbers.moved += 1

    # -- work ---------------------------------------------------------------------------------------------------------

    def work(
        self,
        now: int,
        worker: str,
        call: int,
        settles: Sequence[Report],
        want: int,
        per: int,
        want_residents: int = 0,
        heard: int = 0,
        spare: int = 0,
    ) -> Work:
        """Record what has ended, do what is due, and hand out more.

        `call` counts the calls of the worker, from 1: one that comes again, or late, takes nothing. `heard` is the
        highest signal that the worker has acted upon. Of what it wants and does not get, up to `spare` keys may be
        handed to it before its next call.
        """
        tables, numbers = self.tables, self._numbers
        tables.mailboxes.preload([one.mailbox for one in settles])
        stale = tuple([index for index, one in enumerate(settles) if not self.mailboxes.report(now, one)])
        if any(one.how == "park" for one in settles):
            self._hint_members()  # somebody may know it
        due = self.mailboxes.process_due(now)
        member = tables.members.get(worker)
        if member is None or member.lease_end <= now:
            return Work(stale, (), (), True, False, due, now, numbers.version)
        signals = self.takes.checked(tables.signals.unheard(worker, heard))
        takes: list[Take] = []
        is_open = not numbers.is_paused and not numbers.is_shut
        if call > tables.members.last_call(worker):
            want -= sum(one.kind == "take" and one.data != b"" for one in signals)
            if is_open:
                takes = self._take(now, member, want, per, want_residents)
            left = want - sum(take.mailbox[0] == "j" for take in takes)
            tables.members.count_call(worker, call, max(0, min(spare, left)) if is_open else 0)
        is_more = is_open and self._has_more(worker)
        return Work(stale, tuple(takes), signals, False, is_more, due, now, numbers.version)

    def _take(self, now: int, member: Member, want: int, per: int, want_residents: int) -> list[Take]:
        token = self.takes.next_token(now)
        takes = self.takes.take(now, member.id, "r", member.names, token, want_residents, 1)
        if want > 0 and self.takes.has_suspect(member.id):
            suspects = self.takes.take(now, member.id, SUSPECTS, (), token, 1, 1)
            want -= len(suspects)
            takes += suspects
        takes += self.takes.take(now, member.id, "j", member.names, token, want, per)
        return takes

    def _has_more(self, worker: str) -> bool:
        active = self.tables.active
        return active.has("j", worker) or active.has("r", worker) or self.takes.has_suspect(worker)

    # -- commands -----------------------------------------------------------------------------------------------------

    def do(self, now: int, command: Command[A]) -> A:
        """Carry out a command."""
        one: Command[Any] = command
        match one:
            case do.Dispatch(batch, orders):
                answer: Any = self.dispatch(now, batch, orders)
            case do.Join(joiner):
                answer = self.join(now, joiner)
            case do.Renew(worker, leaving, version):
                answer = self.renew(now, worker, leaving=leaving, version=version)
            case do.Leave(worker):
                answer = self.leave(now, worker)  # type: ignore[func-returns-value]
            case do.Give(worker, moves, why):
                answer = self.give(now, worker, moves, why)
            case do.Claim(worker, slots, dead, known, call, heard):
                answer = self.claim(now, worker, slots, dead, known, call, heard)
            case do.Work(worker, call, reports, want, per, residents, heard, spare):
                answer = self.work(now, worker, call, reports, want, per, residents, heard, spare)
            case _:
                answer = self._apply(now, one)
        return cast(A, answer)

    def _apply(self, now: int, command: Command[Any]) -> str:  # noqa: C901  (a table)
        """Carry out a command whose answer is one of the words in its description."""
        orders, numbers = self.orders, self._numbers
        match command:
            case do.Start(slot, mailbox, body):
                return "closed" if numbers.is_shut else orders.start(now, slot, mailbox, body)
            case do.Stop(slot, mailbox):
                return orders.stop(slot, mailbox)
            case do.Notify(slot, mailbox, data):
                return orders.message(slot, mailbox, data)
            case do.Cancel(slot, mailbox, job):
                return orders.cancel(now, slot, mailbox, job)
            case do.Purge(slot, mailbox, most):
                return str(orders.purge(now, slot, mailbox, most))
            case do.Retry(_, mailbox):
                return orders.retry(now, mailbox)
            case do.Log(by, what, subject, reason):
                self.tables.acts.add(Act(now, by, what, subject, reason))
            case do.Pause(slot, key, by, reason):
                orders.pause(now, slot, key, by, reason)
                numbers.is_paused = numbers.is_paused if key else 1
            case do.Resume(slot, key):
                orders.resume(slot, key)
                if not key:
                    numbers.is_paused = numbers.is_shut = 0
                    self._changed()
            case do.Shut():
                numbers.is_shut = 1
                self._changed()
            case do.Gone(worker):
                return self._gone(worker)
            case do.Replay(letters):
                return str(orders.replay(now, letters))
            case do.Drop(letters):
                return str(orders.drop(letters))
            case do.Configure(changes):
                return self._configure(changes)
        return ""

    def _gone(self, worker: str) -> str:
        """Take note that the process of a worker has ended: nobody has to wait until its lease is over."""
        if worker not in self.tables.members:
            return "unknown"
        self.tables.members.set_dead(worker)
        self._changed()
        return "noted"

    def _configure(self, changes: Iterable[tuple[str, Any]]) -> str:
        """Change settings. Workers go by the lease and the drain that they joined with, so those stay."""
        was = self.tables.settings
        settings = was._replace(**dict(changes))
        if (was.lease, was.drain) != (settings.lease, settings.drain) and any(True for _ in self.tables.members):
            return "busy"
        self.tables.settings = settings
        return "done"


def _newest_first(boxes: Iterable[M]) -> list[M]:
    """Return mailboxes that run, by their takes: each is put in front of the line, so the oldest is the first again."""
    return sorted(boxes, key=lambda box: (box.token, box.name), reverse=True)

"""The rules of a keyed pool, as a pure object: what every verb of a store does, with the time given to it.

It is the executable specification. The store in memory runs it as it is; SQLite and Redis have twins of it, and a
differential test keeps them equal. It knows no clock, thread or randomness.

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
from millpond.keyed._envelope import came, opened
from millpond.keyed._mail import Mail
from millpond.keyed._records import (
    BATCH_RETENTION,
    Beat,
    Claimed,
    Counts,
    DeadLetter,
    Joiner,
    KeyView,
    Member,
    Moves,
    Order,
    Settings,
    Settle,
    Slot,
    Take,
    Verdicts,
    Work,
)


class Ledger:
    """A pool. `hint` is called with the name of every worker or producer for whom there may be news."""

    def __init__(
        self,
        settings: Settings,
        incarnation: str,
        hint: Callable[[str], None] = lambda name: None,
        is_dead: Callable[[str], bool] = lambda worker: False,
    ) -> None:
        self.settings = settings
        self.incarnation = incarnation
        self.version = 1
        self.is_shut = False
        self.is_paused = False
        self.members: dict[str, Member] = {}
        self.slots: list[Slot] = [Slot()] * settings.slots
        self.mail = Mail(settings, self._living_owner, hint)
        self._hint = hint
        self._is_proven = is_dead
        self._calls: dict[str, int] = {}
        self._last_token = 0
        self._batches: dict[str, tuple[int, dict[int, str]]] = {}

    # -- producers ----------------------------------------------------------------------------------------------------

    def dispatch(self, now: int, batch: str, orders: Sequence[Order]) -> Verdicts:
        """Put jobs into their mailboxes, in order. The same batch again is only answered again."""
        while self._batches and next(iter(self._batches.values()))[0] <= now:
            del self._batches[next(iter(self._batches))]
        if batch in self._batches and self._batches[batch][0] > now:
            return self._batches[batch][1]
        verdicts: dict[int, str] = {}
        refused: set[str] = set()
        for index, order in enumerate(orders):
            if self.is_shut:
                verdict = "closed"
            elif order.mailbox in refused:
                verdict = "full"  # what came before it is not in, so neither is this: order is kept
            else:
                verdict = self.mail.verdict(now, order)
            if verdict:
                verdicts[index] = verdict
                if verdict in ("full", "pool"):
                    refused.add(order.mailbox)
        self._batches[batch] = (now + BATCH_RETENTION, verdicts)
        return verdicts

    def outcomes(self, now: int, ids: Iterable[str]) -> list[tuple[str, bytes] | None]:
        """Return how jobs ended, as far as that is (still) known."""
        kept = [self.mail.outcomes.get(one) for one in ids]
        return [None if one is None or one[0] <= now else one[1:] for one in kept]

    def where(self, slot: int, mailbox: str, job: str) -> str:
        """Tell where a job is: `delayed`, `waiting`, `running` (a worker has it), `dead` or `gone`."""
        if job in self.mail.delayed:
            return "delayed"
        taken = self.mail.taken(slot, mailbox)
        for index, raw in enumerate(self.mail.boxes.get(mailbox, ())):
            if opened(raw).id == job:
                return "running" if index < taken else "waiting"
        return "dead" if any(opened(one.job).id == job for one in self.mail.dead.values()) else "gone"

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, now: int, joiner: Joiner) -> Beat:
        """Let a worker take part."""
        self.members[joiner.id] = Member(
            joiner.id,
            joiner.label,
            joiner.weight,
            joiner.concurrency,
            joiner.names,
            now,
            now + self.settings.lease,
            is_leaving=False,
        )
        self._calls[joiner.id] = 0
        self.mail.admit(joiner.id)
        self._changed()
        return self._beat(now)

    def renew(self, now: int, worker: str, *, leaving: bool = False) -> Beat | None:
        """Prolong the lease of a worker; None: it is no member (any more)."""
        member = self.members.get(worker)
        if member is None:
            return None
        end = now + self.settings.lease
        self.members[worker] = member._replace(lease_end=end, is_leaving=member.is_leaving or leaving)
        if leaving and not member.is_leaving:
            self._changed()
        return self._beat(now)

    def leave(self, now: int, worker: str) -> None:
        """Let a worker go: its slots are free."""
        owned = [slot for slot, one in enumerate(self.slots) if one.owner == worker]
        for slot in owned:
            self._move(now, slot, "", "left")
        is_member = worker in self.members
        self._dismiss(worker)
        if owned and not is_member:
            self._changed()

    def _beat(self, now: int) -> Beat:
        members = tuple(one._replace(is_dead=self._is_proven(one.id)) for one in self.members.values())
        return Beat(now, self.incarnation, self.version, self.is_shut, members)

    def _dismiss(self, worker: str) -> None:
        if self.members.pop(worker, None) is not None:
            self._calls.pop(worker, None)
            self.mail.dismiss(worker)
            self._changed()

    def _living_owner(self, slot: int) -> str:
        owner = self.slots[slot].owner
        return owner if owner in self.members else ""

    def _changed(self) -> None:
        """Members or owners are others now: everybody may want to look."""
        self.version += 1
        for worker in self.members:
            self._hint(worker)

    # -- slots --------------------------------------------------------------------------------------------------------

    def give(self, now: int, worker: str, moves: Moves, why: str) -> int:
        """Pass slots on to others; return how many the caller owned."""
        given = 0
        for slot, taker in moves:
            if self.slots[slot].owner == worker:
                member = self.members.get(taker)
                self._move(now, slot, taker if member is not None and not member.is_leaving else "", why)
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
        """Take over slots that nobody owns or whose owner is dead, and what dead workers ran in them.

        `dead` says which end of its lease the caller has seen of each for so long. For slots that are the caller's own
        already this is a check. With `known`, what the caller runs in them by the store's word but not by its own (the
        answer to a take was lost) is ready again; takes numbered up to `call` do not happen any more.
        """
        me = self.members.get(worker)
        if me is None or me.lease_end <= now:
            return Claimed((), (), 0, is_gone=True)
        is_late = call < self._calls[worker]  # it was overtaken by a take, which its caller did not know of
        tokens = None if known is None or is_late else set(known)
        if tokens is not None:
            self._calls[worker] = call
        for one, end in dead.items():
            if one != worker and one in self.members and self._is_dead(now, one, end):
                self._dismiss(one)
        got, contested, recovered = [], [], self._tidy_lent(now, worker, tokens)
        for slot in slots:
            owner = self.slots[slot].owner
            if owner != worker:
                if owner in self.members:
                    continue
                self._move(now, slot, worker, "died" if owner else "free")
                got.append(slot)
            back, is_contested = self._tidy(now, worker, slot, tokens)
            recovered += back
            if is_contested:
                contested.append(slot)
        if got:
            self._changed()
        return Claimed(tuple(got), tuple(contested), recovered, is_gone=False)

    def _tidy(self, now: int, worker: str, slot: int, tokens: set[int] | None) -> tuple[int, bool]:
        """Recover what nobody runs in a slot any more; tell whether somebody else still runs something there."""
        recovered, is_contested = 0, False
        drained = self.slots[slot].since + self.settings.drain <= now
        for mailbox, run in list(self.mail.running.get(slot, {}).items()):
            is_lost = run.worker not in self.members
            if run.worker == worker:
                is_over = tokens is not None and run.token not in tokens
            else:
                is_over = is_lost or (drained and not run.is_lent)
                is_contested = is_contested or not (is_over or run.is_lent)
            if is_over:
                self.mail.recover(now, slot, mailbox, blame=is_lost)
                recovered += 1
        for lane in "jr":
            if self.mail.ready.get((lane, slot)):
                self.mail.activate(lane, slot)
        return recovered, is_contested

    def _tidy_lent(self, now: int, worker: str, tokens: set[int] | None) -> int:
        """Recover what was lent to somebody who is gone, or to the caller, who does not know of it."""
        recovered = 0
        for mailbox, slot in list(self.mail.lent.items()):
            run = self.mail.running[slot][mailbox]
            is_lost = run.worker not in self.members
            if is_lost or (run.worker == worker and tokens is not None and run.token not in tokens):
                self.mail.recover(now, slot, mailbox, blame=is_lost)
                recovered += 1
        return recovered

    def _is_dead(self, now: int, worker: str, seen: int) -> bool:
        end = self.members[worker].lease_end  # further away than a lease: the clock went back since
        return self._is_proven(worker) or (end == seen and not now < end <= now + self.settings.lease)

    def _move(self, now: int, slot: int, taker: str, why: str) -> None:
        was = self.slots[slot]
        self.slots[slot] = Slot(taker, max(was.epoch + 1, now), now, why, was.owner)
        self.mail.counters.moved += 1
        for lane in "jr":
            if self.mail.ready.get((lane, slot)):
                self.mail.activate(lane, slot)

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
        """Settle what has ended, let happen what is due, and take more.

        `call` counts the calls of the worker, from 1: one that comes again, or late, takes nothing. `heard` is the
        highest signal that the worker has acted upon.
        """
        stale = tuple(index for index, one in enumerate(settles) if not self.mail.settle(now, one))
        if any(one.how == "shelve" for one in settles):
            for each in self.members:
                self._hint(each)  # somebody may know it
        due = self.mail.tick(now)
        member = self.members.get(worker)
        if member is None or member.lease_end <= now:
            return Work(stale, (), (), True, False, due, now, self.version)
        signals = self.mail.signals.get(worker)
        while signals and signals[0].number <= heard:
            signals.popleft()
        takes: list[Take] = []
        is_open = not self.is_paused and not self.is_shut
        if call > self._calls[worker] and is_open:
            self._last_token = token = max(self._last_token + 1, now)
            takes = self.mail.take(now, worker, "r", member.names, token, want_residents, 1)
            takes += self.mail.take(now, worker, "j", member.names, token, want, per)
        self._calls[worker] = max(self._calls[worker], call)
        more = is_open and any(self.mail.active.get((lane, worker)) for lane in "jr")
        return Work(stale, tuple(takes), tuple(signals or ()), False, more, due, now, self.version)

    # -- commands -----------------------------------------------------------------------------------------------------

    def apply(self, now: int, command: Command) -> str:  # noqa: C901  (a table)
        """Carry out a command; the answer is one of the words in its description."""
        match command:
            case Start(slot, mailbox, body):
                return "closed" if self.is_shut else self.mail.start(now, slot, mailbox, body)
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
                    self.is_paused = True
            case Resume(_, mailbox):
                if mailbox:
                    self.mail.resume(mailbox)
                else:
                    self.is_paused = self.is_shut = False
                    self._changed()
            case Shut():
                self.is_shut = True
                self._changed()
            case Replay(numbers):
                return str(self.mail.replay(now, numbers))
            case Drop(numbers):
                return str(self.mail.drop(numbers))
        return ""

    # -- looking in ---------------------------------------------------------------------------------------------------

    def beat(self, now: int) -> Beat:
        """Return the members and how the pool stands, for somebody who is no member."""
        return self._beat(now)

    def keys(self, lane: str = "j") -> list[KeyView]:
        """Return every mailbox of a lane that is not empty."""
        views = []
        for slot, mailbox, state in self.mail.places():
            if mailbox[0] == lane:
                box = self.mail.boxes[mailbox]
                run = self.mail.running.get(slot, {}).get(mailbox)
                failures, losses = self.mail.trouble.get(mailbox, (0, 0))
                worker = run.worker if run is not None else self.slots[slot].owner
                token = run.token if run is not None else 0
                views.append(KeyView(slot, mailbox, len(box), came(box[0]), state, worker, token, failures, losses))
        return sorted(views, key=lambda view: (view.oldest, view.mailbox))

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters, the oldest first."""
        return list(self.mail.dead.values())

    def residents(self) -> list[tuple[KeyView, bytes]]:
        """Return the residents, each with its stored job (the last one, should it be about to be replaced)."""
        return [(view, self.mail.boxes[view.mailbox][-1]) for view in self.keys("r")]

    def counts(self, now: int) -> Counts:
        """Return how the pool stands."""
        mail, counters = self.mail, self.mail.counters
        states = [state for _, mailbox, state in mail.places() if mailbox[0] == "j"]
        return Counts(
            now,
            mail.jobs,
            states.count("ready"),
            states.count("running"),
            len(mail.delayed),
            len(mail.dead),
            sum(mailbox[0] == "r" for mailbox in mail.boxes),
            mail.oldest(),
            counters.dispatched,
            counters.done,
            counters.retried,
            counters.buried,
            counters.recovered,
            counters.moved,
            self.is_paused,
            self.is_shut,
        )

"""One pool in a companion: its replica, its calls on their way, and the right to decide.

A companion that has the gate decides: its own processes' calls at once, others' as they come into the inbox, and
appends what it decided as one item. A companion without the gate posts its calls into the inbox and follows the log;
it takes the gate when nobody has shown a sign of work for half a second (`GATE`).

What is decided on the replica is a guess until the store has appended it: only then is anybody told. When the store
refuses (the gate is lost) or does not answer (nobody knows), the replica is thrown away and read again, and the calls
of one's own that are still unanswered are made once more, under their numbers: what was done is only answered.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineError
from millpond.resources._rules import changes
from millpond.resources._rules.commands import Bury, Command, Reply, Tick
from millpond.resources._rules.records import HELD
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.state import State
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.log._log import (
    GATE,
    LOST_WORDS,
    OVER,
    Answer,
    Answered,
    Item,
    Log,
    Parcel,
    Posted,
    Snapshot,
    Step,
    Synced,
    Witness,
    decode_item,
    decode_parcel,
    decode_snapshot,
    encode,
)

SURE: Final = 0.8 * GATE / 1_000_000
"""Seconds after the store's last word for which a decider goes on without asking whether the gate is still its own."""
LOOK: Final = 1.0
"""Seconds after which a pool that somebody uses is looked at, hint or no hint."""
ANSWER: Final = 0.2
"""The same while somebody waits for an answer from whoever decides."""
BLIND: Final = 0.05
"""The same while something is expected and no hints are to be had, as behind a proxy that passes none on."""
LATE: Final = 0.3
"""Seconds after which a companion sees to something that is due, when whoever decides has not."""
COMPACT: Final = 2000
"""Entries after which a snapshot is written, or four times as many as there are requests if that is more."""
ROUNDS: Final = 10
"""Batches that are decided in a turn, at the most: others want their turn, too."""
TOMBSTONES: Final = 1000
"""Sessions that are remembered as over, so that late copies of their calls have no effect."""
BATCH: Final = 2000
"""Calls that are decided at once, at the most."""
DRIFT: Final = 2000
"""One part in so many is what two clocks may differ in speed, at most."""
TRUSTED: Final = 10_000_000
"""Microseconds for which a time that the store told counts beside later ones: its clock may be set."""


class StoreClock:
    """The store's clock as this companion knows it: never ahead of it, and it never goes back.

    An answer that was long on its way tells a time that is long past. The quickest of the last ones counts, so that the
    clock does not fall behind after a slow one, and then jump: a lease that began in between would end too early.
    """

    def __init__(self) -> None:
        self._offset = self._heard_at = self._last = 0

    def heard(self, now: int) -> None:
        """Take the time that the store has just told."""
        here = int(elapsed() * 1_000_000)
        age = here - self._heard_at
        if now - here >= self._offset - age // DRIFT or age >= TRUSTED:
            self._offset, self._heard_at = now - here, here

    def now(self) -> int:
        """Return the time, in whole microseconds."""
        here = int(elapsed() * 1_000_000)
        self._last = max(self._last, self._offset + here - (here - self._heard_at) // DRIFT)
        return self._last


class Listener:
    """Who is told what happens in a pool: one session of a process of this machine."""

    session: str
    witness: Witness

    def news(self, pool: str, entries: list[Entry], everything: bool) -> None:
        """Take entries; with `everything`, they are all of them."""
        raise NotImplementedError

    def missed(self, pool: str) -> None:
        """Take the word that something may have been missed."""
        raise NotImplementedError

    def replied(self, number: int, reply: Reply) -> None:
        """Take the reply to a call."""
        raise NotImplementedError


class HostedPool:
    """A pool as one companion has it."""

    def __init__(self, name: str, log: Log, me: str, clock: StoreClock) -> None:
        self.name = name
        self._log, self._me, self._clock = log, me, clock
        self.replica = Replica()
        self.listeners: dict[str, Listener] = {}
        """The sessions of this machine that use it."""
        self.curious: set[str] = set()
        """Those of them that want to hear everything."""
        self._answered: dict[str, Answered] = {}
        self._gone: deque[str] = deque()  # the last sessions that are over
        self._owners: dict[str, str] = {}  # request -> session
        self._queue: deque[Posted] = deque()  # to be decided or posted
        self._posted: dict[tuple[str, int], tuple[Posted, float]] = {}  # posted when, and not answered yet
        self._maybe_posted: set[tuple[str, int]] = set()  # of these there may be a copy in the inbox
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._epoch = 0
        self._seq = -1  # -1: to be read from the beginning
        self._tip = b""
        self._base = 0
        self._base_version = 0
        self._sure_until = 0.0
        self._look_at = 0.0
        self.has_hints = True
        """Whether the store's hints reach this companion."""
        self._decided_at = 0.0
        self._bad: set[tuple[str, int]] = set()
        self._was_read = False
        self._reached = (0, b"")  # the last item that was surely in the store
        self.went_back = False
        """Whether the store has lost something that it had: who ended since is to be looked for again."""
        self._is_hinted = False
        self.arrivals: list[tuple[str, Witness]] = []
        """Sessions that began to use it, and are to be registered before anything is done for them."""
        self._over: dict[str, tuple[Posted, float]] = {}  # sessions that are over, until that is written down
        self._written_off: list[str] = []  # for those it is
        self._called_at: dict[str, float] = {}  # by session
        self._rests_until = 0.0

    # --- what comes in -----------------------------------------------------------------------------------------

    def call(self, session: str, number: int, acked: int, command: Command) -> None:
        """Take a call of a session of this machine."""
        self._called_at[session] = elapsed()
        self._queue.append(Posted(session, number, acked, command))

    def send(self, command: Command) -> None:
        """Take a command of the companion itself, which may be done twice without harm."""
        self._queue.append(Posted("", 0, 0, command))

    def bury(self, session: str, reason: str) -> None:
        """Write down that a session is over, and forget it then; where nothing was done there is nothing to write."""
        may_be_known = self._seq or self._queue or any(key[0] == session for key in self._maybe_posted)
        self.forget(session)
        if not may_be_known:
            self._over.pop(session, None)
            self._written_off.append(session)
            return
        call = Posted("", 0, 0, Bury(session, reason))
        self._queue.append(call)
        self._over[session] = (call, elapsed())

    def admit(self, session: Listener) -> None:
        """Admit a session of this machine."""
        name = session.session
        self.listeners[name] = session
        self._called_at[name] = elapsed()
        self._written_off = [one for one in self._written_off if one != name]  # it has come back
        self.arrivals.append((name, session.witness))

    def is_idle(self, session: str, seconds: float) -> bool:
        """Return whether a session has nothing here, wants to hear nothing, and has not called for so long."""
        return not (
            self.replica.state.index.sessions.get(session)
            or session in self.curious
            or any(one.session == session for one in self._queue)
            or any(key[0] == session for key in self._posted)
            or elapsed() - self._called_at.get(session, 0.0) < seconds
        )

    def retire(self, session: str) -> None:
        """Retire a session that is idle until it comes again: nobody need watch over it here."""
        self.forget(session)
        self._written_off.append(session)

    def forget(self, session: str) -> None:
        """Remove a session from those who are notified."""
        self.listeners.pop(session, None)
        self._called_at.pop(session, None)
        self.curious.discard(session)
        self._posted = {key: one for key, one in self._posted.items() if key[0] != session}
        self._maybe_posted = {key for key in self._maybe_posted if key[0] != session}

    def look_soon(self) -> None:
        """Look at the log at the next turn: a hint has come."""
        self._look_at = 0.0
        self._is_hinted = True

    def read_anew(self) -> None:
        """Read everything again at the next turn: it was dropped."""
        self._start_over([])
        self._rests_until = 0.0

    def leave(self) -> None:
        """Give the gate up, if it is ours: nobody need wait for it."""
        if self._epoch:
            self._log.leave(self.name, self._epoch)
            self._epoch = 0

    # --- turns -------------------------------------------------------------------------------------------------

    @property
    def is_known(self) -> bool:
        """Whether it was read from the store at all."""
        return self._seq >= 0

    @property
    def is_decider(self) -> bool:
        """Whether the gate is surely ours still."""
        return self._epoch > 0 and elapsed() < self._sure_until

    @property
    def has_to_tell(self) -> bool:
        """Whether the store has yet to hear something: who is over, if nobody is left."""
        return bool(self._queue or self._over or self._written_off)

    def wakes_at(self) -> float | None:
        """Return when it has something to do if nobody calls; None when nothing is to be expected."""
        if self.rests:
            return self._rests_until
        if self._queue or self._inbox or self.arrivals or self._written_off or self._is_hinted:
            return 0.0
        if not self.listeners:
            return self._look_at if self._over else None  # till it is written down who is over
        at = self._look_at
        due = self.replica.state.due()
        if due is not None:
            late = 0.0 if self._epoch else LATE
            at = min(at, elapsed() + max(0, due - self._clock.now()) / 1_000_000 + late)
        return at

    def turn(self) -> None:
        """Do all that can be done now."""
        while self.arrivals:
            self._log.register(self.name, self._me, *self.arrivals[0])
            self.arrivals.pop(0)
        self._add_tick()
        if elapsed() >= self._look_at or self._seq < 0:
            self.sync()
        for _ in range(ROUNDS):
            if not self._queue and not self._inbox:
                break
            if self.is_decider:
                self._decide_all()
            else:
                self.sync()
                if not self.is_decider:
                    break  # it was posted; a hint will tell what came of it
        if self._written_off:
            self._log.unregister(self.name, self._written_off)
            self._written_off = []

    @property
    def rests(self) -> bool:
        """Whether it could not be read a moment ago, and is left alone for a while."""
        return elapsed() < self._rests_until

    def give_up(self) -> None:
        """Forget all calls, whose callers were told that they failed, and rest; who has died is not forgotten."""
        self._queue = deque(one for one in self._queue if not one.number)
        self._rests_until = elapsed() + LOOK
        self._maybe_posted.clear()
        self._posted.clear()
        self._inbox.clear()
        self._epoch = 0
        self._seq = -1
        self.arrivals = [(one.session, one.witness) for one in self.listeners.values()]
        self._look_at = elapsed() + LOOK
        self._is_hinted = False

    @property
    def last_time(self) -> int:
        """When the last thing happened that we know of."""
        return self.replica.history[-1].at if self.replica.history else 0

    def _add_tick(self) -> None:
        due = self.replica.state.due()
        if due is None or self._queue:
            return
        late = 0 if self._epoch else int(LATE * 1_000_000)
        if due + late <= self._clock.now():
            self.send(Tick())

    # --- the store ---------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Post what waits, follow what is new, and take the gate if there is something to decide and it is free."""
        self._post_again()
        waiting = list(self._queue)
        posts = [encode(Parcel(self._me, waiting[start : start + BATCH])) for start in range(0, len(waiting), BATCH)]
        wants_gate = bool(waiting or self._posted)
        self._maybe_posted.update((one.session, one.number) for one in waiting if one.number)
        known = self._seq
        found = self._exchange(known, posts, wants_gate)
        for one in waiting:
            self._queue.popleft()
            if one.number:
                self._posted[one.session, one.number] = (one, elapsed())
        self._is_hinted = False
        if known < 0:
            self._load_or_fail(found)
        elif self._joins(found):
            for seq, tip, body in found.items:
                self._take_item(seq, tip, body)
            self._reached = (self._seq, self._tip)
        else:  # it was compacted, dropped, or went back in time
            self._seq = -1
            self._load_or_fail(self._exchange(-1, (), wants_gate))
        self._look_at = elapsed() + self._patience()

    def _patience(self) -> float:
        """Return how many seconds from now the store is looked at without a hint."""
        if not self.has_hints and self._expects_news():
            return BLIND
        return ANSWER if self._posted or self._over else LOOK

    def _expects_news(self) -> bool:
        """Return whether another machine may have something for us: an answer, a call, a grant, something watched."""
        if self._posted or self._over or self.curious:
            return True
        if self._epoch and elapsed() - self._decided_at < GATE / 1_000_000:  # till then others post to us
            return True
        state = self.replica.state
        return any(
            state.requests[request].state != HELD
            for one in self.listeners
            for request in state.index.sessions.get(one, ())
        )

    def _post_again(self) -> None:
        """Take what was posted a while ago and not answered: the store may have lost it. Its number makes that safe."""
        before = elapsed() - LOOK
        late = [key for key, (_, at) in self._posted.items() if at < before]
        self._queue.extendleft([self._posted.pop(key)[0] for key in reversed(late)])
        self._bury_again(before)

    def _bury_again(self, before: float) -> None:
        """Say again who is over, if that was said before then and is not written down."""
        for session, (call, at) in self._over.items():
            if at < before and call not in self._queue:
                self._queue.append(call)
                self._over[session] = (call, elapsed())

    def _load_or_fail(self, found: Synced) -> None:
        """Begin anew; what does not fit together was changed as it was read, so it is read once more."""
        if not self._load(found) and not self._load(self._exchange(-1, (), True)):
            raise EngineError(f"the log of pool {self.name!r} has a gap: restore a backup, or drop it")

    def _exchange(self, seq: int, posts: Sequence[bytes], wants_gate: bool) -> Synced:
        found = self._log.sync(self.name, self._me, seq, self._tip, posts, wants_gate=wants_gate)
        self._clock.heard(found.now)
        self._epoch, self._sure_until = found.epoch, elapsed() + SURE
        self._inbox = deque(found.inbox)
        return found

    def _joins(self, found: Synced) -> bool:
        """Return whether what was found goes on where we are."""
        seq, tip = self._seq, self._tip
        for one, own, body in found.items:
            if one != seq + 1 or decode_item(body).previous != tip:
                return False
            seq, tip = one, own
        return (seq, tip) == (found.seq, found.tip)

    def _load(self, found: Synced) -> bool:
        """Begin anew from the snapshot: nothing was known, or what was known is old or did not come true."""
        if found.snapshot is None:
            self.replica, self._answered = Replica(), {}
        else:
            kept = decode_snapshot(found.snapshot)
            self.replica, self._answered = Replica(State.load(kept.image), kept.version), kept.answered
        self._gone = deque(one for one, known in self._answered.items() if known.acked == OVER)
        self._seq = self._base = found.base
        self._base_version = self.replica.version
        self._owners = {one.id: one.session for one in self.replica.state.requests.values()}
        self._tip = b""
        for seq, tip, body in found.items:
            if seq <= found.base:
                self.replica.history.extend(step.entry for step in decode_item(body).steps if step.entry is not None)
                self._tip = tip
            else:
                self._take_item(seq, tip, body, is_told=False)
        if (self._seq, self._tip) != (found.seq, found.tip):
            self._seq = -1
            return False
        self.went_back = self.went_back or not self._has_reached(found)
        self._reached = (self._seq, self._tip)
        if self._was_read:
            self.arrivals = [
                (one.session, one.witness) for one in self.listeners.values()
            ]  # it may know nobody any more
            for listener in list(self.listeners.values()):
                listener.missed(self.name)
        self._was_read = True
        for session, number in list(self._posted):
            self._answer_again(session, number)
        # The store may have forgotten what was posted.
        self._queue.extendleft([one for one, _ in reversed(self._posted.values())])
        self._posted.clear()
        for session in [one for one in self._over if one not in self.replica.state.index.sessions]:
            self._write_off(session)
        self._bury_again(elapsed())
        return True

    def _write_off(self, session: str) -> None:
        """Take note that it is written down that a session is over."""
        if self._over.pop(session, None) is not None:
            self._written_off.append(session)

    def _has_reached(self, found: Synced) -> bool:
        """Return whether a store that was read anew has what it had; one that was compacted meanwhile is believed."""
        seq = self._reached[0]
        if not seq or (found.items and seq < found.items[0][0]):
            return True
        return any(item[:2] == self._reached for item in found.items)

    def _answer_again(self, session: str, number: int) -> None:
        """Answer a call that was done while we were not looking."""
        known = self._answered.get(session)
        if known is not None and number in known.replies:
            self._reply(session, number, known.replies[number])

    def _take_item(self, seq: int, tip: bytes, body: bytes, *, is_told: bool = True) -> None:
        """Follow what another decided."""
        steps = decode_item(body).steps
        for step in steps:
            if step.entry is not None:
                self.replica.follow(step.entry)
            self._note(step)
        self._seq, self._tip = seq, tip
        if is_told:
            self._tell(steps)
        else:
            self._tell_owners(steps)

    # --- deciding ----------------------------------------------------------------------------------------------

    def _decide_all(self) -> None:
        """Decide the inbox and the queue, append it, and tell what came of it."""
        steps: list[Step] = []
        quiet: list[tuple[str, int, Reply]] = []
        mine: list[Posted] = []
        taken: list[int] = []
        try:
            while self._inbox and len(steps) < BATCH:
                place, body = self._inbox.popleft()
                taken.append(place)
                for call in self._calls_of(body):
                    self._decide(call, False, steps, quiet)
            while self._queue and len(steps) < BATCH:
                call = self._queue.popleft()
                mine.append(call)
                self._decide(call, True, steps, quiet)
        except Exception:
            self._start_over(mine)
            return
        item = None
        tip = self._tip
        if steps:
            tip = os.urandom(8)
            item = (self._seq + 1, tip, encode(Item(self._tip, steps)))
        snapshot = self._new_snapshot() if steps else None
        hints = self._concerned(steps)
        try:
            done = self._log.append(self.name, self._epoch, self._tip, item, taken, snapshot, hints)
        except BaseException:  # nobody knows whether it is there: read it again, and see
            self._start_over(mine)
            raise
        self._clock.heard(done.now)
        if not done.is_done:
            self._start_over(mine)
            return
        self._decided_at = elapsed()
        self._sure_until = elapsed() + SURE
        self._look_at = elapsed() + self._patience()
        self._inbox = deque(done.inbox)
        if item is not None:
            self._seq, self._tip = self._reached = (item[0], tip)
            if snapshot is not None:
                self._base, self._base_version = self._seq, self.replica.version
        self._tell(steps)
        for session, number, reply in quiet:
            self._reply(session, number, reply)

    def _calls_of(self, body: bytes) -> list[Posted]:
        """Return the calls of a parcel; one that cannot be read is passed over, lest it stop everybody for ever."""
        try:
            return decode_parcel(body).calls
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            logger.error("a parcel cannot be read", extra={"millpond": {"pool": self.name, "error": str(error)}})
            return []

    def _decide(self, call: Posted, is_direct: bool, steps: list[Step], quiet: list[tuple[str, int, Reply]]) -> None:
        reply, entry = self._decision(call)
        if type(call.command) is Bury and entry is None and not self._seq and not steps:
            self._write_off(call.command.session)  # a goodbye makes no pool
            return
        answer = None
        if call.number:
            answer = Answer(call.session, call.number, call.acked, reply)
        elif type(call.command) is Bury and not call.command.reason.startswith(LOST_WORDS):  # else it may live
            answer = Answer(call.command.session, 0, 0, reply)
        if entry is None and is_direct and call.number and (call.session, call.number) not in self._maybe_posted:
            quiet.append((call.session, call.number, reply))  # nothing changed, and there is no other copy of it
        elif entry is not None or answer is not None:
            steps.append(Step(entry, answer))
            self._note(steps[-1])

    def _decision(self, call: Posted) -> tuple[Reply, Entry | None]:
        known = self._answered.get(call.session) if call.number else None
        if known is not None and call.number <= known.acked:
            return Reply("forgotten"), None  # a late copy: its answer has arrived
        if known is not None and call.number in known.replies:
            return known.replies[call.number], None
        if self._bad and _name(call) in self._bad:
            return Reply(
                "failed", detail="the command could not be carried out: this looks like a bug, please report it"
            ), None
        try:
            return self.replica.decide(call.command, max(self._clock.now(), self.last_time))
        except Exception:
            logger.exception("a command failed", extra={"millpond": {"pool": self.name, "command": repr(call.command)}})
            # It fails alone: the others are decided again without it.
            self._bad.add(_name(call))
            raise

    def _start_over(self, mine: list[Posted]) -> None:
        """Throw away what was decided and not appended; our own calls are made again."""
        self._queue.extendleft(reversed(mine))
        self._inbox = deque()
        self._epoch = 0
        self._seq = -1
        self._look_at = 0.0

    def _new_snapshot(self) -> bytes | None:
        if self.replica.version - self._base_version < max(COMPACT, 4 * len(self.replica.state.requests)):
            return None
        return encode(Snapshot(self.replica.version, self.replica.state.image(), self._answered))

    # --- telling -----------------------------------------------------------------------------------------------

    def _note(self, step: Step) -> None:
        """Remember an answer, and forget what is not needed any more. Number 0: the session is over."""
        answer = step.answer
        if answer is None:
            return
        if not answer.number:
            self._answered.pop(answer.session, None)
            self._answered[answer.session] = Answered(OVER, {})
            self._gone.append(answer.session)
            if len(self._gone) > TOMBSTONES:
                self._answered.pop(self._gone.popleft(), None)
            self._write_off(answer.session)
            return
        known = self._answered.get(answer.session)
        if known is None:
            known = self._answered[answer.session] = Answered(0, {})
        if answer.acked > known.acked:
            known.acked = answer.acked
            for number in [one for one in known.replies if one <= answer.acked]:
                del known.replies[number]
        known.replies[answer.number] = answer.reply

    def _concerned(self, steps: Iterable[Step]) -> set[str]:
        """Return the sessions of other machines that should hear of it soon."""
        found: set[str] = set()
        owners = self._owners
        for step in steps:
            if step.answer is not None and step.answer.number:
                found.add(step.answer.session)
            if step.entry is not None:
                for change in step.entry.changes:
                    if type(change) is changes.Asked:
                        owners[change.request.id] = change.request.session
                    elif type(change) in _ABOUT_A_REQUEST:
                        found.add(owners.get(change.id, ""))  # type: ignore[union-attr]
        found.discard("")
        return {one for one in found if one not in self.listeners}

    def _tell(self, steps: Iterable[Step]) -> None:
        """Notify the sessions of this machine of what was decided: entries first, then the answers to them."""
        told: dict[str, list[Entry]] = {}
        everything: list[Entry] = []
        listeners = self.listeners
        replies: list[Answer] = []
        for step in steps:
            if step.entry is not None:
                everything.append(step.entry)
                author = step.answer.session if step.answer is not None else ""
                for session in self._sessions_of(step.entry, author):
                    if session in listeners:
                        told.setdefault(session, []).append(step.entry)
            if step.answer is not None and step.answer.number:
                replies.append(step.answer)
        for session in self.curious:
            if everything and session in listeners:
                listeners[session].news(self.name, everything, True)
        for session, entries in told.items():
            if session not in self.curious:
                listeners[session].news(self.name, entries, False)
        for one in replies:
            self._reply(one.session, one.number, one.reply)

    def _tell_owners(self, steps: Iterable[Step]) -> None:
        """Keep the books of who has which request, without telling anybody."""
        for step in steps:
            if step.entry is not None:
                self._sessions_of(step.entry, "")

    def _sessions_of(self, entry: Entry, author: str) -> set[str]:
        """Return whom an entry concerns, and keep the books of who has which request."""
        owners = self._owners
        found = {author}
        for change in entry.changes:
            kind = type(change)
            if kind is changes.Asked:
                owners[change.request.id] = change.request.session  # type: ignore[union-attr]
                found.add(change.request.session)  # type: ignore[union-attr]
            elif kind in _ABOUT_A_REQUEST:
                known = change.id  # type: ignore[union-attr]
                found.add(owners.get(known, ""))
                if kind is changes.Ended:
                    owners.pop(known, None)
                elif kind is changes.Adopted or kind is changes.Returned:
                    owners[known] = change.session  # type: ignore[union-attr]
                    found.add(change.session)  # type: ignore[union-attr]
        return found

    def _reply(self, session: str, number: int, reply: Reply) -> None:
        self._posted.pop((session, number), None)
        self._maybe_posted.discard((session, number))
        listener = self.listeners.get(session)
        if listener is not None:
            listener.replied(number, reply)


_ABOUT_A_REQUEST: Final = frozenset(
    {
        changes.Offered,
        changes.Held,
        changes.Claimed,
        changes.Left,
        changes.Returned,
        changes.Declined,
        changes.Renewed,
        changes.Adopted,
        changes.Ended,
        changes.Suspected,
        changes.Passed,
    }
)


def _name(call: Posted) -> tuple[str, int]:
    return (call.session, call.number) if call.number else (repr(call.command), 0)

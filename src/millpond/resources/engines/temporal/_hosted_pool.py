"""What a pool's workflow does, without Temporal: it runs the rules, and keeps what they do not know.

Everything here is deterministic and has no clock but the one it is told, so a replay comes to the same decisions. What
it adds to the rules (`_rules.step`):

- *batches* take effect once: the last one of every lane is remembered with its replies, also over continue-as-new;
- *notices* to workflows, whose grants come without being asked for again;
- *silence*: a process that was not heard of for `SILENT` has its grants marked as suspect, and after `FORGOTTEN` loses
  its places in line (never a lock); time in which the pool had no worker does not count;
- *death*: of a workflow that the server closed, after the time that it declared for its work to end;
- *size*: what waits must fit into one payload, so a request that would not is refused;
- *rebuilding*: a command that breaks a rule of ours, or could not be written down, leaves no trace.

All that it keeps is bounded: by what is held and waits now, or by who was heard of in the last `FORGOTTEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from millpond.resources._rules import changes, commands, wire
from millpond.resources._rules.placement import POLICIES
from millpond.resources._rules.records import HELD, QUARANTINED, Request, Resource
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.state import State
from millpond.resources._rules.step import Outcome, step, told
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.temporal import _sessions
from millpond.resources.engines.temporal._messages import (
    FORMAT,
    Answer,
    Batch,
    CarriedState,
    Memory,
    News,
    Notice,
    Refusal,
    Since,
)

SECOND: Final = 1_000_000
SILENT: Final = 60 * SECOND
"""A process that was not heard of for so long may be dead."""
FORGOTTEN: Final = 600 * SECOND
"""After so long it loses its places in line, and its lane is forgotten."""
LATE: Final = 5 * SECOND
"""A pool that does what is due so late was not running."""
LIMIT: Final = 2 * 1024 * 1024
"""Bytes that one payload may have, unless the server says that it is less. More would be a burden to it."""
HIGHEST: Final = 2**53
"""A token beyond the next two centuries."""
JOURNAL: Final = 5000
"""Entries after which the way back to the last good state is cut short."""
BROKEN: Final = 5
"""Commands of one batch that may break the rules: coming back from each takes a while in a large pool."""
BUILT_IN: Final = frozenset(POLICIES)
"""Placements that every worker knows."""
RECENT: Final = 300
"""Entries that are carried over continue-as-new, for readers that are a little behind."""
PAST: Final = 100
"""Entries of what went before that a new reader gets with the state, so that its history does not begin with itself."""
RULES: Final[dict[int, Callable[[State, commands.Command, int], Outcome]]] = {1: step}
"""The rules by number. A run goes on with those it began with; a new run begins with the newest.

Whoever changes what `step` decides adds a number, and keeps the old function for as long as a run may last (a day).
What a hosted pool itself decides is as much a part of a replay: change it behind a number of the rules, too.
"""


class HostedPool:
    """One pool: the state, and those who speak with it."""

    def __init__(
        self,
        pool: str,
        incarnation: str,
        carried: CarriedState | None = None,
        rules: int = 1,
        knows: Callable[[str], bool] = POLICIES.__contains__,
        limit: int = 0,
    ) -> None:
        self.pool = pool
        self.incarnation = incarnation
        self.limit = min(limit or LIMIT, LIMIT)
        self.replica = Replica()
        self.now = 0
        self.notices: list[Notice] = []
        self.refusals: list[Refusal] = []
        self._lanes: dict[str, Memory] = {}
        self._heard: dict[str, int] = {}
        self._graces: dict[str, int] = {}
        self._closed: dict[str, tuple[int, str]] = {}
        self._quarantine = ""
        self._told = 0  # up to here, answers hold what happened
        if carried is not None:
            self._take_over(carried)
        self._step = RULES[rules]
        self._knows = knows  # a placement
        self._journal: list[Entry] = []
        self._broken = 0
        self._rebase()
        state = self.replica.state
        self._known = {one.id: (one.session, _weight(one)) for one in state.requests.values()}
        self._weight = sum(weight for _, weight in self._known.values())
        self._resources = {one.name: _weight_of_resource(one) for one in state.resources.values()}
        self._weight += sum(self._resources.values())

    def _take_over(self, carried: CarriedState) -> None:
        self.incarnation = carried.incarnation
        self.limit = min(carried.limit or LIMIT, LIMIT)
        self.now = carried.now
        self.notices = list(carried.notices)
        self.refusals = list(carried.refusals)
        self.replica = Replica(State.load(carried.image), carried.version)
        self.replica.history.extend(carried.recent)
        self._lanes = dict(carried.lanes)
        self._heard = dict(carried.heard)
        self._graces = {
            one.session: grace for one, grace in zip(carried.image.requests, carried.graces, strict=False) if grace
        }
        self._closed = dict(carried.closed)
        self._quarantine = carried.quarantine
        self._told = max(carried.told, carried.version - len(carried.recent))

    def carried_state(self) -> CarriedState:
        """Return all that the next run needs. It holds live records: write it before the next change."""
        image = self.replica.state.image()
        graces = [self._graces.get(one.session, 0) for one in image.requests]
        return CarriedState(
            FORMAT,
            self.incarnation,
            self.replica.version,
            self.now,
            image,
            self._lanes,
            self._heard,
            graces if any(graces) else [],
            self._closed,
            self.notices,
            list(self.replica.history)[-RECENT:],
            self.refusals,
            self._quarantine,
            self._told,
            self.limit,
        )

    # --- what comes in -----------------------------------------------------------------------------------------

    def take(self, batch: Batch, now: int, beyond: Collection[int] = ()) -> Answer:
        """Run the commands of a batch, once; but not those whose numbers are beyond reckoning."""
        self.tick(now)
        last = self._lanes.get(batch.lane)
        if last is not None and batch.number < last.number:
            raise ValueError(f"batch {batch.number} of {batch.lane} came after batch {last.number}: it is too late")
        if last is not None and batch.number == last.number:
            return Answer(self.incarnation, self._told, self._told, self.now, _with_ids(last.replies, batch.commands))
        if batch.session:
            self._hear(batch.session)
        replies = [_BEYOND if index in beyond else self.apply(command) for index, command in enumerate(batch.commands)]
        for session, grace in batch.graces.items():
            if session in self.replica.state.index.sessions:
                self._graces[session] = max(grace, self._graces.get(session, 0))
        for death in batch.deaths:
            if death.but is None:
                self.died(death.session, death.at, death.how)
            else:
                self.outlived(death.session, death.at, death.how, death.but)
        if batch.number:
            self._lanes[batch.lane] = Memory(batch.number, self.now, _without_ids(replies, batch.commands))
        base, self._told = self._told, self.replica.version
        entries = self._since(base)
        if len(self._journal) > JOURNAL:
            self._rebase()
        return Answer(self.incarnation, base, self._told, self.now, replies, entries)

    def apply(self, command: commands.Command) -> commands.Reply:
        """Run one command, and write the notices that come of it."""
        if (refusal := self._check(command)) is not None:
            return refusal
        if self._broken >= BROKEN:
            return commands.Reply("refused", detail="commands before it, in the same batch, broke the rules too often")
        try:
            reply, decided = self._step(self.replica.state, command, self.now)
            entry = Entry(self.now, getattr(command, "session", ""), decided)
            if decided:
                wire.pack([entry])  # it must be possible to carry it on
        except Exception as error:
            self._broken += 1
            self._rebuild()
            return commands.Reply("refused", detail=f"{type(error).__name__}: {error}")
        if decided:
            self.replica.history.append(entry)
            self.replica.version += 1
            self._journal.append(entry)
            for change in decided:
                self._note(change, command, reply)
        return reply

    def tick(self, now: int) -> None:
        """End what is over."""
        self._broken = 0
        due = self.due()
        if due is not None and now - max(due, self.now) > LATE:
            self._oversleep(now)
        self.now = max(self.now, now)
        due = self.replica.state.due()
        if due is not None and due <= self.now:
            self.apply(commands.Tick())
        for session, (at, why) in list(self._closed.items()):
            if at <= self.now:
                del self._closed[session]
                self.apply(commands.Bury(session, why))
        for session, heard in list(self._heard.items()):
            if heard + SILENT <= self.now:
                self._miss(session, heard)
        for lane, memory in list(self._lanes.items()):
            if memory.at + FORGOTTEN <= self.now:
                del self._lanes[lane]

    def due(self) -> int | None:
        """Return the next time at which `tick` has something to do."""
        times = [at for at, _ in self._closed.values()]
        own = self.replica.state.due()
        if own is not None:
            times.append(own)
        sessions = self.replica.state.index.sessions
        for session, heard in self._heard.items():
            if sessions.get(session):
                silent = heard + SILENT
                times.append(silent if silent > self.now else heard + FORGOTTEN)
        return min((time for time in times if time > self.now or time == own), default=None)

    def died(self, session: str, at: int, how: str) -> None:
        """Take note that the server closed a workflow: what it held ends, when its work has had time to end."""
        if session not in self.replica.state.index.sessions or session in self._closed:
            return
        grace = self._graces.get(session, 0)
        if at + grace <= self.now:
            self.apply(commands.Bury(session, how))
            return
        self._closed[session] = (at + grace, how)
        until = f"{how}; its work is given until {_time_of_day(at + grace)} to end"
        for request in self._requests_of(session):
            if request.state == HELD:
                self.apply(commands.Suspect(session, request.token, until))
            else:
                self.apply(commands.Withdraw(session, request.id, by="millpond", reason=how))

    def outlived(self, session: str, at: int, how: str, but: Sequence[str]) -> None:
        """Take note of all that a workflow still knows of: the rest was left by earlier runs of it."""
        grace = self._graces.get(session, 0)
        for request in self._requests_of(session):
            if request.id in but or request.asked >= at:
                continue
            if grace and request.state == HELD:  # their work is given time to end
                self.apply(commands.Adopt("", request.token, request.holder, "kept", how, grace, by="millpond"))
            else:
                self.apply(commands.Withdraw(session, request.id, by="millpond", reason=how))

    def refuse(self, signal: str, why: str, now: int) -> None:
        """Remember a signal that could not be understood."""
        self.refusals = [*self.refusals[-19:], Refusal(now, signal, why[:500])]

    def quarantine(self, why: str) -> None:
        """Lend nothing of what is here until somebody says that it may be."""
        self._quarantine = why
        for name in list(self.replica.state.resources):
            self.apply(commands.Mark(name, QUARANTINED, "millpond", why))

    # --- what is asked -----------------------------------------------------------------------------------------

    def news(self, since: Since) -> News:
        """Return what a reader does not know."""
        version, history = self.replica.version, self.replica.history
        if since.incarnation == self.incarnation and version - len(history) <= since.version <= version:
            missing = version - since.version
            entries = list(history)[-missing:] if missing else []
            return News(self.incarnation, version, self.now, entries)
        past = list(history)[-PAST:] if self._weight < self.limit // 2 else []  # all of it must fit into one answer
        return News(self.incarnation, version, self.now, past, self.replica.state.image())

    def chains(self) -> list[str]:
        """Return the sessions of all workflows that hold or wait and are not known to be closed, the holders first."""
        state = self.replica.state
        sessions = state.index.sessions
        found = [one for one in sessions if _sessions.is_workflow(one) and one not in self._closed]
        return sorted(found, key=lambda one: not any(state.requests[known].token for known in sessions[one]))

    def placements(self) -> set[str]:
        """Return the placements of all that may still be given something."""
        return {one.placement for one in self.replica.state.requests.values() if one.state != HELD}

    def is_in_use(self) -> bool:
        """Return whether anybody holds or waits."""
        return bool(self.replica.state.requests)

    def has_workflows(self) -> bool:
        """Return whether any workflow holds or waits."""
        return any(_sessions.is_workflow(one) for one in self.replica.state.index.sessions)

    # --- small things ------------------------------------------------------------------------------------------

    def _oversleep(self, now: int) -> None:
        """Hold against nobody that the pool did not hear of them: it had no worker until now."""
        for session, heard in self._heard.items():
            self._heard[session] = now if heard + SILENT > self.now else heard + now - self.now

    def _hear(self, session: str) -> None:
        was_silent = self._heard.get(session, 0) + SILENT <= self.now
        self._heard[session] = self.now
        if was_silent:
            for request in self._requests_of(session):
                if request.suspect.startswith(_SILENCE):
                    self.apply(commands.Suspect(session, request.token, ""))

    def _miss(self, session: str, heard: int) -> None:
        """See to what a silent process left."""
        for request in self._requests_of(session):
            if request.state == HELD:
                if not request.suspect:
                    self.apply(commands.Suspect(session, request.token, f"{_SILENCE} for {SILENT // SECOND} s"))
            elif heard + FORGOTTEN <= self.now:
                why = f"{_SILENCE} for {FORGOTTEN // SECOND} s"
                self.apply(commands.Withdraw(session, request.id, by="millpond", reason=why))
        if heard + FORGOTTEN <= self.now and session not in self.replica.state.index.sessions:
            del self._heard[session]
            self.apply(
                commands.Bury(session, f"{_SILENCE} for {FORGOTTEN // SECOND} s")
            )  # its requests' numbers go, too

    def _requests_of(self, session: str) -> list[Request]:
        state = self.replica.state
        return [state.requests[known] for known in list(state.index.sessions.get(session, ()))]

    def _check(self, command: commands.Command) -> commands.Reply | None:
        """Say why a command cannot be taken."""
        if (seen := getattr(command, "seen", 0)) > max(HIGHEST, self.replica.state.token):
            return commands.Reply("refused", detail=f"no pool has a token as high as {seen}")
        if isinstance(command, commands.Acquire):
            if command.id in self._known:
                return None
            if not self._knows(command.placement):
                why = f"placement {command.placement!r} is not known to the pool's worker: register it there"
                return commands.Reply("refused", command.id, detail=why)
            if self._weight + _weight(command) > self.limit * 92 // 100:
                why = f"{len(self._known)} requests hold or wait, and that is all that Temporal can carry"
                return commands.Reply("full", command.id, detail=why)
        elif isinstance(command, commands.Add) and self._weight + _weight_of_resource(command) > self.limit * 92 // 100:
            return commands.Reply("refused", detail="these are all the resources and requests that Temporal can carry")
        return None

    def _note(self, change: changes.AnyChange, command: commands.Command, reply: commands.Reply) -> None:
        """Keep count of requests, and write to workflows about what they did not ask for in this very command."""
        if isinstance(change, changes.Asked):
            request = change.request
            self._known[request.id] = (request.session, weight := _weight(request))
            self._weight += weight
            self._closed.pop(request.session, None)  # it asks, so it lives
        elif isinstance(change, changes.Held):
            if not (reply.kind == HELD and reply.id == change.id):
                self._write(self._known[change.id][0], "granted", change.id, change.token, change.shares)
        elif isinstance(change, changes.Ended):
            session, weight = self._known.pop(change.id)
            self._weight -= weight
            self._forgive(session)
            asked_for = isinstance(command, commands.Release | commands.Withdraw) and command.session == session
            if not asked_for and change.how != "died":
                detail = ": ".join(filter(None, (told(change.how, change.by), change.reason)))
                self._write(session, "ended", change.id, change.token, (), detail)
        elif isinstance(change, changes.Adopted):
            before, weight = self._known[change.id]
            self._known[change.id] = (change.session, weight)
            self._forgive(before)
            if before != change.session:
                self._write(before, "ended", change.id, 0, (), told(change.how, change.by or str(change.holder)))
        elif isinstance(change, changes.Returned):
            self._known[change.id] = (change.session, self._known[change.id][1])
        elif isinstance(change, changes.Added):
            self._resources[change.resource.name] = weight = _weight_of_resource(change.resource)
            self._weight += weight
        elif isinstance(change, changes.Removed):
            self._weight -= self._resources.pop(change.name, 0)

    def _forgive(self, session: str) -> None:
        """Forget how long the work of somebody may go on who has nothing any more."""
        if session not in self.replica.state.index.sessions:
            self._graces.pop(session, None)

    def _write(
        self, session: str, kind: str, request: str, token: int, shares: tuple[tuple[str, int], ...], detail: str = ""
    ) -> None:
        if _sessions.is_workflow(session) and session not in self._closed:
            chain = _sessions.workflow_of(session)[1]
            self.notices.append(Notice(self.pool, chain, kind, request, token, shares, detail, session))

    def _since(self, version: int) -> list[Entry]:
        """Return what happened after a version; what timers and signals did goes with the next answer."""
        new = self.replica.version - version
        if new <= len(self._journal):
            return self._journal[-new:] if new else []
        return list(self.replica.history)[-new:]

    def _rebase(self) -> None:
        """Keep this as the last state that is surely good."""
        self._base = wire.freeze(self.replica.state), self.replica.version
        self._journal = []

    def _rebuild(self) -> None:
        """Come back to the state after the last command that was good."""
        history = self.replica.history
        base, version = self._base
        self.replica = Replica(wire.thaw(base), version)
        for entry in self._journal:
            self.replica.follow(entry)
        self.replica.history = history


_SAME: Final = "="
_BEYOND: Final = commands.Reply("refused", detail="a number in it is beyond all reckoning")
_SILENCE: Final = "its process was not heard of"


def _weight(request: Request | commands.Acquire) -> int:
    """Return about how many bytes a request takes when it is compressed: names are mostly numbers, in hex.

    It is measured, not computed, since another build of zlib may find another length in a replay.
    """
    names, holder = len(request.id) + len(request.holder.id), request.holder
    if _sessions.is_workflow(request.session):
        chain = _sessions.workflow_of(request.session)[1]
        names += len(chain) + (len(holder.host) if holder.host != chain else 0)
    texts = len(request.reason.encode()) + len(request.group) + sum(len(want.selector) for want in request.wants) // 4
    lists = sum(map(len, request.rank)) + sum(map(len, request.refused))
    return 22 + (56 * names + 60 * texts + 25 * lists) // 100


def _weight_of_resource(resource: Resource | commands.Add) -> int:
    texts = len(resource.name) + sum(len(key) // 4 + len(value) for key, value in resource.labels.items())
    return 10 + 60 * texts // 100


def _without_ids(replies: Sequence[commands.Reply], asked: Sequence[commands.Command]) -> list[commands.Reply]:
    """Leave out of replies what the batch says itself when it comes again: ids of requests do not compress."""
    return [
        msgspec.structs.replace(one, id=_SAME) if one.id and one.id == getattr(command, "id", "") else one
        for one, command in zip(replies, asked, strict=True)
    ]


def _with_ids(replies: Sequence[commands.Reply], asked: Sequence[commands.Command]) -> list[commands.Reply]:
    return [
        msgspec.structs.replace(one, id=getattr(command, "id", "")) if one.id == _SAME else one
        for one, command in zip(replies, asked, strict=False)
    ]


def _time_of_day(microseconds: int) -> str:
    return f"{datetime.fromtimestamp(microseconds // SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"

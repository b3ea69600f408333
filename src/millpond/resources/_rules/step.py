"""The rules of resource pools as one pure function: `step(state, command, now) -> outcome`.

The package (`_rules/__init__.py`) says what the rules are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import takewhile
from typing import Any, NamedTuple

from millpond.resources._rules import changes, commands
from millpond.resources._rules.changes import AnyChange
from millpond.resources._rules.commands import Reply
from millpond.resources._rules.line import Line, bits
from millpond.resources._rules.placement import Plan, assign, cost, needed, pick
from millpond.resources._rules.records import (
    ACTIVE,
    AWAY,
    CORDONED,
    DRAINING,
    HELD,
    OFFERED,
    REMOVING,
    WAITING,
    Request,
    Resource,
    Want,
)
from millpond.resources._rules.state import State

Shares = tuple[tuple[str, int], ...]


class Outcome(NamedTuple):
    """What a command led to: the answer, and all that changed."""

    reply: Reply
    changes: list[AnyChange]


def step(state: State, command: commands.Command, now: int) -> Outcome:
    """Apply one command at `now` (microseconds of the engine's clock)."""
    turn = _Turn(state, now, "" if type(command) is commands.Bury else getattr(command, "session", ""))
    turn.end_what_is_over()
    reply = _VERBS[type(command)](turn, command)
    if turn.freed or (turn.changes and turn.is_camping()):
        turn.hand_over()
        if reply.kind == WAITING:
            reply = _standing(state.requests[reply.id])
    return Outcome(reply, turn.changes)


class _Turn:
    """One step in progress: what it decided so far, and which resources that may have made available."""

    __slots__ = ("_camp", "_camp_as_of", "author", "changes", "freed", "now", "state")

    def __init__(self, state: State, now: int, author: str) -> None:
        self.state = state
        self.now = now
        self.author = author
        self.changes: list[AnyChange] = []
        self.freed = 0
        self._camp: tuple[Request | None, int, Shares | None] = (None, 0, None)
        self._camp_as_of = -1  # how many changes it takes into account

    def decide(self, change: AnyChange) -> None:
        self.changes.append(change)
        self.state.evolve(change, self.now)

    def next_token(self, seen: int = 0) -> int:
        return max(self.state.token + 1, self.now, seen + 1)

    # --- handing over ------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Give what was freed to those who wait for it, the first first."""
        state = self.state
        mask, self.freed = self.freed, 0
        while state.lines and not state.settings.paused:
            if self.is_camping():
                mask |= state.free  # what is kept, and for whom, may be another thing now
            if not mask & state.free:
                return
            found = self._first_served(mask & state.free)
            if found is None:
                return
            self._give(*found)
            mask |= self.freed
            self.freed = 0

    def _first_served(self, mask: int) -> tuple[Request, Shares] | None:
        """Return the first waiter that something of `mask` may serve, and what it is given."""
        state = self.state
        if state.bundles:
            camper, kept, shares = self.camp()
            if camper is not None and shares is not None:
                return camper, shares  # not always the head of its line: it was overtaken long enough
            mask &= ~kept
            if not mask:
                return None
        groups, turn = state.groups, state.turn
        found: tuple[Request, Shares] | None = None
        soonest = 0
        first: tuple[int, int, Request] | None = None
        for line in state.lines_for(mask):
            group = groups.get(line.group) if groups else None
            start = group.turn if group is not None and group.turn > turn else turn
            entry = line.heap[0]
            if first is None or start < soonest or (start == soonest and entry < first):
                shares = self.find(entry[2], mask)
                if shares is not None:
                    found = entry[2], shares
                    soonest, first = start, entry
                elif line.is_mixed and state.exclusive:
                    behind = self._behind(line, mask)
                    if behind is not None and (first is None or start < soonest or behind[0] < first):
                        found = behind[0][2], behind[1]
                        soonest, first = start, behind[0]
        return found

    def _behind(self, line: Line, mask: int) -> tuple[tuple[int, int, Request], Shares] | None:
        """Return the first of a line who can be served although its head is held up by an exclusive request.

        It asked before that one did, so it is not held up, and stands behind the head only by its priority.
        """
        head = line.heap[0][2]
        for request in line.requests():
            shares = self.find(request, mask) if request.seq < head.seq else None
            if shares is not None:
                return (self.state.order(request), request.seq, request), shares
        return None

    # --- exclusive requests ------------------------------------------------------------------------------------

    def reserved(self, request: Request, mask: int) -> int:
        """Return those of `mask` on which an exclusive request waits that this one must not overtake."""
        state = self.state
        wanted = 0
        for want in request.wants:
            wanted |= state.matcher(want.selector).mask
        found = 0
        for slot in bits(mask & wanted & state.guarded):
            resource = state.at(slot)
            for one in state.exclusive[resource.name].values():
                if one.seq >= request.seq:
                    break
                goes_first = one.group == request.group and state.order(request) < state.order(one)
                if not goes_first and self._could_have(one, resource):
                    found |= 1 << slot
                    break
        return found

    def _could_have(self, request: Request, resource: Resource) -> bool:
        """Tell whether nothing but the units that others hold keeps an exclusive request from its resource."""
        need = needed(request.wants[0], resource)
        if need > resource.capacity or resource.name in request.refused:
            return False
        group = self.state.groups.get(request.group) if request.group else None
        return group is None or not group.quota or group.held + need <= group.quota

    def _left_by(self, request: Request) -> int:
        """Return what others may have, when this bundle does not wait any more."""
        state = self.state
        name = state.alone(request)
        group = state.groups.get(request.group) if request.group else None
        if name is None or (group is not None and group.quota):
            return state.free
        return state.mask((name,)) & state.free

    def _give(self, request: Request, shares: Shares) -> None:
        token = self.next_token()
        if request.bundle:
            self.freed |= self._left_by(request)  # what was kept for it, others may have now
        is_there = request.sure or not request.session or (request.session == self.author and not request.picky)
        if is_there:
            self.decide(changes.Held(request.id, token, shares, self.now + request.lease if request.lease else 0))
        else:
            self.decide(changes.Offered(request.id, token, shares, self.now + self.state.settings.claim))
        self.take_room(request)

    def take_room(self, request: Request) -> None:
        """Take note that a group has less room: an exclusive one that has none any more holds nobody up."""
        state = self.state
        if request.group in state.writers and state.groups[request.group].quota:
            self.freed |= state.free & state.guarded

    def find(self, request: Request, within: int = -1) -> Shares | None:
        """Return what the request can be given now, or None; a single unit only from `within`."""
        state = self.state
        matcher = state.matcher(request.wants[0].selector)
        free = state.free
        if not free & matcher.mask:
            return None
        if state.bundles:
            camper, kept, shares = self.camp()
            if camper is request:
                return shares
            free &= ~kept
        if state.guarded & free:
            free &= ~self.reserved(request, free if request.bundle else free & within)
        if request.refused:
            free &= ~state.mask(request.refused)
        room = self.room(request) if request.group else None
        if request.bundle:
            return assign(state, request, free, room)
        candidates = free & matcher.mask & within
        if not candidates or (room is not None and room < 1):
            return None
        return ((state.at(pick(state, request, matcher, candidates)).name, 1),)

    # --- keeping units for bundles -----------------------------------------------------------------------------

    def overdue(self, bundles: Iterable[Request] | None = None) -> Iterator[Request]:
        """Iterate over the bundles that have been overtaken long enough, the oldest first."""
        before = self.now - self.state.settings.patience
        return takewhile(
            lambda bundle: bundle.asked <= before, self.state.bundles.values() if bundles is None else bundles
        )

    def is_camping(self) -> bool:
        """Tell whether units may have to be kept for a bundle."""
        return bool(self.state.bundles) and any(True for _ in self.overdue())

    def camp(self) -> tuple[Request | None, int, Shares | None]:
        """Return the bundle for which units are kept now, the resources kept, and its shares if they are complete."""
        state = self.state
        if self._camp_as_of != len(self.changes):
            self._camp_as_of = len(self.changes)
            self._camp = (None, 0, None)
            for bundle in self.overdue():
                room = self.room(bundle)
                usable = self.usable(bundle)
                if cost(state, bundle, usable, room) is not None:
                    free = state.free & usable
                    if state.guarded & free:
                        free &= ~self.reserved(bundle, free)
                    plan = Plan(state, bundle, free, room)
                    self._camp = (bundle, plan.kept(), plan.shares())
                    break
        return self._camp

    def usable(self, request: Request) -> int:
        """Return the resources that the request may be given some time, as things are."""
        return self.state.active & ~self.state.mask(request.refused)

    def room(self, request: Request) -> int | None:
        """Return how many units the quota of its group leaves for the request: None if there is no quota.

        The oldest of its bundles that is overdue has the first right to them, else single units could starve it.
        """
        group = self.state.groups.get(request.group) if request.group else None
        if group is None or not group.quota:
            return None
        promised = 0
        mine: Iterable[Request] = (bundle for bundle in self.overdue() if bundle.group == group.name)
        if group.name in self.state.writers:
            writers = self.overdue(self.state.writers[group.name].values())
            mine = merge(mine, writers, key=lambda bundle: bundle.seq)
        for bundle in mine:
            if bundle is not request:
                promised = cost(self.state, bundle, self.usable(bundle), group.quota) or 0
            if promised or bundle is request:
                break
        return group.quota - group.held - promised

    # --- ending ------------------------------------------------------------------------------------------------

    def end_what_is_over(self) -> None:
        """End the offers, leases, waits and absences whose time has come, and hand over what they leave."""
        state = self.state
        while True:
            over = state.next_due(self.now)
            if over is None:
                break
            kind, key = over
            if kind:
                self.decide(changes.Undelayed(key))
                self.freed |= 1 << state.resources[key].slot
                continue
            request = state.requests[key]
            if request.state == OFFERED:
                self.leave(request, 0, "did not claim what it was offered")
            elif request.state == HELD:
                self.end(request, "expired", reason="its lease ended")
            elif request.deadline and request.deadline <= self.now:
                self.end(request, "timed out")
            else:
                self.end(request, "died", reason="it did not come back")
        if self.freed:
            self.hand_over()

    def end(self, request: Request, how: str, by: str = "", reason: str = "") -> None:
        """Let a request or grant be over."""
        shares = request.shares
        self._free(request)
        pause = self.state.settings.delay if shares and how in ("expired", "revoked", "died") else 0
        delayed = self.now + pause if pause else 0
        self.decide(changes.Ended(request.id, how, by, reason, delayed, request.token, shares, request.holder))
        self._settle(shares)

    def leave(self, request: Request, until: int, reason: str) -> None:
        """Let a request be away: it has nothing, but keeps its place."""
        shares = request.shares
        self._free(request)
        self.decide(changes.Left(request.id, until, reason))
        self._settle(shares)

    def decline(self, request: Request) -> None:
        """Let a request refuse what it was offered: it goes back in line, and never gets that again."""
        shares = request.shares
        self._free(request)
        self.decide(changes.Declined(request.id, tuple(sorted({*request.refused, *(name for name, _ in shares)}))))
        self._settle(shares)

    def wait_again(self, request: Request) -> bool:
        """Let a request that is back in line have its chance; if there is none any more, end it and return False."""
        self.freed |= self.state.free
        if request.deadline and request.deadline <= self.now:
            self.end(request, "timed out")
            return False
        if request.patient or self.is_possible(request):
            return True
        self.end(request, "unsatisfiable", reason="no resource can satisfy it any more")
        return False

    def _free(self, request: Request) -> None:
        """Take note of what an ending will make available to others."""
        state = self.state
        if request.shares:
            for name, _ in request.shares:
                self.freed |= 1 << state.resources[name].slot
            group = state.groups.get(request.group) if request.group else None
            if group is not None and group.quota:
                self.freed |= state.free
        if request.bundle and request.state == WAITING:
            self.freed |= self._left_by(request)

    def _settle(self, shares: Shares) -> None:
        """Complete a drain or a removal when nobody is left on the resource."""
        for name, _ in shares:
            resource = self.state.resources[name]
            if resource.used:
                continue
            if resource.state == DRAINING:
                self.decide(changes.Marked(name, CORDONED, "", resource.note or "drained"))
            elif resource.state == REMOVING:
                self.decide(changes.Removed(name, "", resource.note))

    def is_possible(self, request: Request) -> bool:
        """Tell whether the request could be satisfied if nobody held anything and all resources were active."""
        state = self.state
        group = state.groups.get(request.group) if request.group else None
        quota = group.quota if group is not None and group.quota else None
        return cost(state, request, state.present & ~state.mask(request.refused), quota) is not None

    def end_the_impossible(self) -> None:
        """Tell those who wait in vain, after resources or quotas became less."""
        vain = []
        for line in self.state.lines.values():
            if not self.is_possible(line.heap[0][2]):
                vain += [request for request in line.requests() if not request.patient]
        for request in sorted(vain, key=lambda one: one.seq):
            self.end(request, "unsatisfiable", reason="no resource can satisfy it any more")


def is_bundle(wants: tuple[Want, ...]) -> bool:
    """Tell whether these wants need several units at once."""
    return len(wants) > 1 or wants[0].count > 1 or wants[0].units != 1


# --- the verbs -------------------------------------------------------------------------------------------------


def _acquire(turn: _Turn, command: commands.Acquire) -> Reply:
    state = turn.state
    known = state.requests.get(command.id)
    if known is not None:
        return _ask_again(turn, command, known)
    if command.chosen and command.id in state.used:
        return Reply("used", command.id, detail=told(state.used[command.id].how, state.used[command.id].by))
    now = turn.now
    request = Request(
        command.id,
        command.session,
        command.holder,
        command.wants,
        command.priority,
        command.group,
        command.lease,
        command.reason,
        command.placement,
        command.rank,
        command.refused,
        command.picky,
        command.sure,
        command.chosen,
        command.patient,
        state.seq + 1,
        now,
        now + command.timeout if command.timeout else 0,
    )
    request.bundle = is_bundle(command.wants)
    request.by = command.by
    shares = None if state.settings.paused else turn.find(request)
    if shares is not None:
        request.state = HELD
        request.token = turn.next_token(command.seen)
        request.shares = shares
        request.since = now
        request.until = now + command.lease if command.lease else 0
    elif not command.patient and not turn.is_possible(request):
        return Reply("unsatisfiable", command.id)
    elif not command.wait:
        return Reply("busy", command.id)
    turn.decide(changes.Asked(request, seen=command.seen))
    if shares is not None:
        turn.take_room(request)
    return _standing(request)


def _ask_again(turn: _Turn, command: commands.Acquire, known: Request) -> Reply:
    if known.session != command.session:
        if known.state != AWAY or not known.until:  # its process may live
            return Reply("taken", known.id, detail=str(known.holder))
        turn.decide(changes.Returned(known.id, command.session, command.holder, seen=command.seen))
        if not turn.wait_again(known):
            return Reply("unsatisfiable", command.id)
    return _standing(known)


def _standing(request: Request) -> Reply:
    return Reply(request.state, request.id, request.token, request.shares, request.until)


def _claim(turn: _Turn, command: commands.Claim) -> Reply:
    state = turn.state
    for known in command.ids:
        request = state.requests.get(known)
        if request is None or request.session != command.session:
            continue
        if request.state == OFFERED:
            turn.decide(changes.Claimed(known, turn.now + request.lease if request.lease else 0))
        elif request.state == AWAY:
            turn.decide(changes.Returned(known, request.session, request.holder))
            turn.wait_again(request)
    return Reply("ok")


def _decline(turn: _Turn, command: commands.Decline) -> Reply:
    request = turn.state.requests.get(command.id)
    if request is None or request.state != OFFERED or request.token != command.token:
        return Reply("stale", command.id, command.token)
    turn.decline(request)
    turn.wait_again(request)
    return Reply("ok", request.id)


def _withdraw(turn: _Turn, command: commands.Withdraw) -> Reply:
    state = turn.state
    request = state.requests.get(command.id)
    if request is None:
        used = state.used.get(command.id)
        return Reply("ended", command.id, detail=told(used.how, used.by)) if used else Reply("unknown", command.id)
    if request.session != command.session and not command.by:
        return Reply("taken", command.id, detail=str(request.holder))
    is_granted = request.state in (HELD, OFFERED)
    how = "released" if is_granted and not request.chosen else "withdrawn"  # who chose an id may ask again
    turn.end(request, "revoked" if command.by and is_granted else how, command.by, command.reason)
    return Reply(how, command.id)


def _by_token(turn: _Turn, session: str, token: int, resource: str = "") -> Request | Reply:
    """Return the grant whose token counts, or why there is none."""
    state = turn.state
    known = state.tokens.get(token)
    if known is not None:
        request = state.requests[known]
        if not resource or any(name == resource for name, _ in request.shares):
            return request
        return Reply("stale", known, token, detail=f"it is not a grant of {resource!r}")
    past = state.past.get(token)
    if past is None:
        return Reply("stale", "", token, detail="it was never granted, or ended long ago")
    if past.how == "released" and past.session == session:
        return Reply("ended", past.id, token, detail="released by you")
    return Reply("stale", past.id, token, detail=told(past.how, past.by, past.reason))


def told(how: str, by: str = "", reason: str = "") -> str:
    """Say how something ended."""
    return how + (f" by {by}" if by else "") + (f": {reason}" if reason else "")


def _release(turn: _Turn, command: commands.Release) -> Reply:
    request = _by_token(turn, command.session, command.token, command.resource)
    if isinstance(request, Reply):
        return request
    reply = Reply("released", request.id, request.token, request.shares)
    turn.end(request, "revoked" if command.by else "released", command.by, command.reason)
    return reply


def _renew(turn: _Turn, command: commands.Renew) -> Reply:
    request = _by_token(turn, command.session, command.token)
    if isinstance(request, Reply):
        return request
    if request.state == HELD and (request.lease or request.suspect):
        turn.decide(changes.Renewed(request.id, turn.now + request.lease if request.lease else 0))
    return _standing(request)


def _pass(turn: _Turn, command: commands.Pass) -> Reply:
    request = _by_token(turn, command.session, command.token)
    if isinstance(request, Reply):
        return request
    if request.state != HELD:
        return Reply("stale", request.id, command.token, detail="it was offered, but is not held yet")
    if request.session != command.session:
        return Reply("stale", request.id, command.token, detail=f"it is in the hands of {request.holder}")
    if not request.passed:
        turn.decide(changes.Passed(request.id))
    return Reply("ok", request.id, request.token)


def _adopt(turn: _Turn, command: commands.Adopt) -> Reply:
    request = _by_token(turn, command.session, command.token, command.resource)
    if isinstance(request, Reply):
        return request
    if request.state != HELD:
        return Reply("stale", request.id, command.token, detail="it was offered, but is not held yet")
    if command.how == "transferred" and not request.passed:
        detail = "it was not passed on: its holder must call transfer()"
        return Reply("stale", request.id, command.token, detail=detail)
    turn.decide(
        changes.Adopted(
            request.id,
            turn.next_token(command.seen),
            command.session,
            command.holder,
            command.how,
            command.reason,
            command.lease,
            turn.now + command.lease if command.lease else 0,
            command.by,
        )
    )
    return _standing(request)


def _suspect(turn: _Turn, command: commands.Suspect) -> Reply:
    request = _by_token(turn, command.session, command.token)
    if isinstance(request, Reply):
        return request
    if request.suspect != command.why:
        turn.decide(changes.Suspected(request.id, command.why))
    return Reply("ok", request.id, request.token)


def _bury(turn: _Turn, command: commands.Bury) -> Reply:
    state = turn.state
    if not command.session:
        return Reply("ok")  # nobody cannot die
    mine = sorted((state.requests[known] for known in state.sessions.get(command.session, ())), key=lambda one: one.seq)
    for request in mine:
        if request.state == AWAY and request.until:
            continue  # it is known to be dead
        if request.deadline and request.deadline <= turn.now and request.state != HELD:
            turn.end(request, "timed out")  # its time was over while it was offered something
        elif request.chosen and request.state != HELD:
            turn.leave(request, turn.now + state.settings.retention, command.reason)
        else:
            turn.end(request, "died", reason=command.reason)
    if turn.changes:
        turn.decide(changes.Buried(command.session, command.reason))
    return Reply("ok")


def _add(turn: _Turn, command: commands.Add) -> Reply:
    state = turn.state
    if command.name in state.resources:
        return Reply("exists", command.name)
    slot = next((index for index, resource in enumerate(state.slots) if resource is None), len(state.slots))
    turn.decide(changes.Added(Resource(command.name, command.labels, command.capacity, slot), command.by))
    turn.freed |= 1 << slot
    return Reply("ok", command.name)


# What an operator changes may lift what held others back elsewhere: a bundle that had units, or the room of its group,
# kept for it, and cannot be served now. So all that is free is looked at.


def _remove(turn: _Turn, command: commands.Remove) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    if resource.used:
        turn.decide(changes.Marked(command.name, REMOVING, command.by, command.reason))
    else:
        turn.decide(changes.Removed(command.name, command.by, command.reason))
    turn.freed |= turn.state.free
    turn.end_the_impossible()
    return Reply("ok", command.name, detail=REMOVING if resource.used else "removed")


def _relabel(turn: _Turn, command: commands.Relabel) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    turn.decide(changes.Relabelled(command.name, command.labels, command.by, command.reason))
    turn.freed |= turn.state.free | 1 << resource.slot
    turn.end_the_impossible()
    return Reply("ok", command.name)


def _resize(turn: _Turn, command: commands.Resize) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    turn.decide(changes.Resized(command.name, command.capacity, command.by, command.reason))
    turn.freed |= turn.state.free | 1 << resource.slot
    turn.end_the_impossible()
    return Reply("ok", command.name)


def _mark(turn: _Turn, command: commands.Mark) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    if resource.state == REMOVING and command.state != ACTIVE:
        return Reply("ok", command.name, detail=REMOVING)  # it goes anyway; only to make it active calls it back
    turn.decide(changes.Marked(command.name, command.state, command.by, command.reason))
    turn.freed |= turn.state.free | 1 << resource.slot
    turn._settle(((command.name, 0),))
    return Reply("ok", command.name, detail=resource.state)


def _configure(turn: _Turn, command: commands.Configure) -> Reply:
    turn.decide(changes.Configured(command.settings, command.by, command.reason))
    turn.freed |= turn.state.free
    return Reply("ok")


def _set_group(turn: _Turn, command: commands.SetGroup) -> Reply:
    turn.decide(changes.GroupSet(command.name, command.weight, command.quota, command.by, command.reason))
    turn.freed |= turn.state.free
    turn.end_the_impossible()
    return Reply("ok", command.name)


def _tick(turn: _Turn, command: commands.Tick) -> Reply:
    return Reply("ok")


_VERBS: dict[type[commands.Command], Callable[[_Turn, Any], Reply]] = {
    commands.Acquire: _acquire,
    commands.Claim: _claim,
    commands.Decline: _decline,
    commands.Withdraw: _withdraw,
    commands.Release: _release,
    commands.Renew: _renew,
    commands.Pass: _pass,
    commands.Adopt: _adopt,
    commands.Suspect: _suspect,
    commands.Bury: _bury,
    commands.Add: _add,
    commands.Remove: _remove,
    commands.Relabel: _relabel,
    commands.Resize: _resize,
    commands.Mark: _mark,
    commands.Configure: _configure,
    commands.SetGroup: _set_group,
    commands.Tick: _tick,
}

"""A judge for the rules of resource pools: it watches the shipping `step` and says which promise was broken.

Everything is computed again from the records, naively (all waiters times all resources, bundles by trying all ways), so
that no index of the state is trusted. `Judge.step` is `_rules.step` plus all of these, after every single command:

- the indexes: masks, tokens, sessions, lines, bundles, due time, units in use, units of groups, matchers;
- G1 no grant beyond capacity, or of what is not to be lent; G2 tokens; G3 order; G4 no idle unit that a waiter can use;
- a grant is transferred only after its holder passed it on, and that is over with the transfer;
- G7 what is sent twice changes nothing more; G8 what time may end; G9 a stale token changes nothing;
- a replica that follows the changes through their encoding, and a pool loaded from its image, are the same pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from millpond.resources._rules import changes, commands, plainly, selectors
from millpond.resources._rules.image import Image
from millpond.resources._rules.records import (
    ACTIVE,
    ALL,
    AWAY,
    DRAINING,
    HELD,
    OFFERED,
    REMOVING,
    WAITING,
    Request,
    Resource,
)
from millpond.resources._rules.state import State
from millpond.resources._rules.step import Outcome, step

Shares = tuple[tuple[str, int], ...]
_CHANGES: Final = msgspec.msgpack.Decoder(list[changes.AnyChange])
_IMAGE: Final = msgspec.msgpack.Decoder(Image)
_REPEATABLE: Final = (
    commands.Acquire,
    commands.Release,
    commands.Withdraw,
    commands.Claim,
    commands.Decline,
    commands.Pass,
    commands.Bury,
)


class BrokenPromise(AssertionError):
    """A state or a step that the rules do not allow."""


def picture(state: State) -> bytes:
    """Return the image of a state as bytes."""
    return msgspec.msgpack.encode(state.image())


def clone(state: State) -> State:
    """Return a copy of a state, made the way engines make one: through its encoded image."""
    return State.load(_IMAGE.decode(picture(state)))


class Judge:
    """One pool under watch, with a replica that follows it and a twin that is loaded anew from time to time."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()
        self.replica = clone(self.state)
        self.twin = clone(self.state)
        self.steps = 0

    def step(self, command: commands.Command, now: int, *, twice: bool = False) -> Outcome:
        """Apply a command and check everything; `twice` sends it again, which must change nothing."""
        before = clone(self.state)
        outcome = step(self.state, command, now)
        self.steps += 1
        check_state(self.state, now)
        check_step(before, self.state, command, outcome, now)
        self._compare(command, outcome, now)
        if (
            twice
            and isinstance(command, _REPEATABLE)
            and not any(isinstance(one, changes.Returned) for one in outcome.changes)
        ):
            self._send_again(command, now)  # (a claim that brought one back may find an offer the next time)
        return outcome

    def reload(self) -> None:
        """Start the twin from an image again."""
        self.twin = clone(self.state)

    def _compare(self, command: commands.Command, outcome: Outcome, now: int) -> None:
        wire = msgspec.msgpack.encode(outcome.changes)
        for change in _CHANGES.decode(wire):
            self.replica.evolve(change, now)
        mine = picture(self.state)
        _expect(picture(self.replica) == mine, "a replica that follows the changes is another pool")
        again = step(self.twin, command, now)
        _expect(again == outcome, f"a loaded pool decides otherwise: {again} instead of {outcome}")
        _expect(picture(self.twin) == mine, "a loaded pool becomes another pool")

    def _send_again(self, command: commands.Command, now: int) -> None:
        mine = picture(self.state)
        outcome = step(self.state, command, now)
        if isinstance(command, commands.Acquire) and outcome.reply.kind in ("busy", "unsatisfiable"):
            _expect(not outcome.changes, "a refused request changed something")
            return
        _expect(not outcome.changes, f"sent again, {command} led to {outcome.changes}")
        _expect(picture(self.state) == mine, f"sent again, {command} changed the pool")


def _expect(holds: bool, complaint: str) -> None:
    if not holds:
        raise BrokenPromise(complaint)


def _same(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise BrokenPromise(f"{what}: {found!r}, but by the records {wanted!r}")


# --- a state, by itself ----------------------------------------------------------------------------------------------


def check_state(state: State, now: int) -> None:
    """Raise BrokenPromise unless the state is one that may stand after a step at `now`."""
    _check_resources(state)
    _check_requests(state, now)
    _check_lines(state)
    _check_time(state, now)
    for request in plainly.waiting(state):
        _expect(request.patient or plainly.possible(state, request), f"{request.id} waits in vain")
        shares = plainly.servable(state, request, now)
        _expect(shares is None, f"G4: {request.id} waits, although it could have {shares}")
    bundle = plainly.reserved_for(state, now)
    if bundle is not None:
        _check_camp(state, bundle, now)


def _check_resources(state: State) -> None:
    used: dict[str, int] = dict.fromkeys(state.resources, 0)
    held: dict[str, int] = {}
    for request in state.requests.values():
        for name, units in request.shares:
            used[name] += units
            held[request.group] = held.get(request.group, 0) + units
    free = active = present = 0
    for name, resource in state.resources.items():
        bit = 1 << resource.slot
        _same(resource.name, name, "a resource under another name")
        _same(state.index.slots[resource.slot], resource, f"slot {resource.slot}")
        _same(resource.used, used[name], f"units of {name} in use")
        free |= bit if plainly.lendable(resource) else 0
        active |= bit if resource.state == ACTIVE else 0
        present |= bit if resource.state != REMOVING else 0
        _expect(resource.state not in (DRAINING, REMOVING) or resource.used > 0, f"{name} stays {resource.state}")
    _same(sum(slot is not None for slot in state.index.slots), len(state.resources), "slots in use")
    _same(
        (state.index.free, state.index.active, state.index.present),
        (free, active, present),
        "masks (free, active, present)",
    )
    for group in state.groups.values():
        _same(group.held, held.get(group.name, 0) if group.name else 0, f"units held by group {group.name!r}")
    for group_name in held:
        _expect(not group_name or group_name in state.groups, f"group {group_name!r} holds, but is not known")
    for text, matcher in state.index.matchers.items():
        alternatives = selectors.parse(text)
        masks = [
            sum(1 << one.slot for one in state.resources.values() if selectors.matches(wanted, one.name, one.labels))
            for wanted in alternatives
        ]
        _same(matcher.masks, masks, f"resources that match {text!r}")
        _same(matcher.mask, plainly.union(masks), f"resources that match {text!r}")


def _check_requests(state: State, now: int) -> None:
    sessions: dict[str, set[str]] = {}
    tokens: dict[int, str] = {}
    for name, request in state.requests.items():
        _same(request.id, name, "a request under another id")
        sessions.setdefault(request.session, set()).add(name)
        if request.state in (HELD, OFFERED):
            _expect(0 < request.token <= state.token and request.token not in tokens, f"token of {name}")
            tokens[request.token] = name
            _expect(bool(request.shares) and request.since > 0, f"{name} is {request.state} without shares")
            wanted = sum(want.count for want in request.wants)
            _same(len({one for one, _ in request.shares}), wanted, f"resources of {name}")
            for want, (resource, units) in zip(plainly.wishes(request.wants), request.shares, strict=True):
                whole = state.resources[resource].capacity if want.units == ALL else units
                _same(units, whole, f"units of {resource} that {name} has, who has all of them")
        else:
            _expect(request.state in (WAITING, AWAY), f"{name} is {request.state!r}")
            _expect(not request.token and not request.shares, f"{name} is {request.state} and has something")
        _expect(request.state == HELD or not request.passed, f"{name} is {request.state}, but was passed on")
        if request.state == WAITING:
            _same(request.until, 0, f"until of {name}, who waits")
        elif request.state == HELD:
            _same(bool(request.until), bool(request.lease), f"{name} has an end, and has a lease")
        elif request.state == OFFERED:
            _expect(request.until > 0, f"the offer to {name} has no end")
        _expect(request.seq <= state.seq, f"seq of {name}")
    _same({name: set(ids) for name, ids in state.index.sessions.items()}, sessions, "sessions")
    _same(state.index.tokens, tokens, "tokens")


def _check_lines(state: State) -> None:
    found: dict[str, object] = {}
    for key, line in state.index.lines.items():
        requests = line.requests()
        _expect(requests == sorted(requests, key=lambda one: plainly.order(state, one)), f"order of line {key}")
        for request in requests:
            _expect(request is state.requests.get(request.id), f"{request.id} stands in line as another")
            _expect(request.id not in found, f"{request.id} stands in two lines")
            found[request.id] = key
        _expect(bool(requests) and line.size == len(requests), f"size of line {key}")
        _expect(line.heap[0][2] is requests[0], f"head of line {key}")
    for text, matcher in state.index.matchers.items():
        wanted = {key for key in state.index.lines if any(want.selector == text for want in key[0])}
        _same(set(matcher.lines), wanted, f"lines of {text!r}")
    _same(found, {one.id: (one.wants, one.group, one.refused) for one in plainly.waiting(state)}, "lines")
    bundles = [one for one in sorted(plainly.waiting(state), key=lambda one: one.seq) if one.bundle]
    _same(list(state.index.bundles), [one.id for one in bundles if plainly.exclusive_target(one) is None], "bundles")
    names = {name for one in bundles if (name := plainly.exclusive_target(one)) is not None}
    alone = {name: [one.id for one in bundles if plainly.exclusive_target(one) == name] for name in names}
    _same({name: list(ids) for name, ids in state.index.exclusive.items()}, alone, "exclusive requests")
    groups = {one.group for one in bundles if one.group and plainly.exclusive_target(one) is not None}
    mine = {
        name: [one.id for one in bundles if plainly.exclusive_target(one) is not None and one.group == name]
        for name in groups
    }
    _same(
        {name: list(ids) for name, ids in state.index.exclusive_by_group.items()}, mine, "exclusive requests by group"
    )
    guarded = plainly.union(1 << one.slot for one in state.resources.values() if one.name in names)
    _same(state.index.exclusive_mask, guarded, "resources with an exclusive request")


def _check_time(state: State, now: int) -> None:
    times = [one.delayed for one in state.resources.values()]
    for request in state.requests.values():
        times.append(request.until)
        if request.state in (WAITING, AWAY):
            times.append(request.deadline)
    due = min((time for time in times if time), default=None)
    _same(state.due(), due, "due")
    _expect(due is None or due > now, f"what was over at {due} still stands at {now}")


def _check_camp(state: State, bundle: Request, now: int) -> None:
    """Check that what is kept for a bundle is of use to it, no more than it needs, and the most that helps."""
    kept = [one for one in state.resources.values() if plainly.kept(state, bundle, now) >> one.slot & 1]
    _expect(all(map(plainly.lendable, kept)), f"{[one.name for one in kept]} kept for {bundle.id} cannot be lent")
    useful = [
        one for one in kept if any(plainly.suits(want, one) and one.capacity >= want.units for want in bundle.wants)
    ]
    _same([one.name for one in kept], [one.name for one in useful], f"kept for {bundle.id}, but of no use")
    _expect(len(kept) <= sum(want.count for want in bundle.wants), f"more is kept for {bundle.id} than it wants")
    if plainly.room(state, bundle, now) is not None or sum(want.count for want in bundle.wants) > 5:
        return  # what is too large for the quota is not kept; many wishes cannot be tried in all ways
    free = [one for one in state.resources.values() if plainly.usable(state, bundle) >> one.slot & 1]
    _same(_most(bundle, kept), _most(bundle, free), f"wishes of {bundle.id} that could be met from what is kept")


# --- a step, by what it changed --------------------------------------------------------------------------------------


def check_step(before: State, after: State, command: commands.Command, outcome: Outcome, now: int) -> None:
    """Raise BrokenPromise unless the rules allow this step."""
    _check_capacity(before, after, command)
    _check_order(before, after, outcome)
    _check_endings(before, after, command, outcome, now)
    due = before.due()
    over = due is not None and due <= now
    if not over and isinstance(command, commands.Acquire):
        _check_id(before, command, outcome)
    kind = outcome.reply.kind
    if kind in ("stale", "unknown", "used", "taken", "busy", "unsatisfiable", "exists"):
        came_back = any(isinstance(one, changes.Returned) for one in outcome.changes)  # to find that it waits in vain
        _expect(over or came_back or not outcome.changes, f"G9: {command} is {kind}, but changed {outcome.changes}")
    if isinstance(command, commands.Acquire) and kind in (HELD, OFFERED, WAITING, AWAY):
        stands = after.requests[command.id]
        _same(
            (kind, outcome.reply.token, outcome.reply.shares, outcome.reply.until),
            (stands.state, stands.token, stands.shares, stands.until),
            f"the answer to {command.id}",
        )
    _check_grants(before, command, outcome, now)


def _check_capacity(before: State, after: State, command: commands.Command) -> None:
    for name, resource in after.resources.items():
        if resource.used > resource.capacity and not (isinstance(command, commands.Resize) and command.name == name):
            old = before.resources.get(name)
            _expect(old is not None and resource.used <= old.used, f"G1: {name} has {resource.used} units in use")


def _grant(change: changes.AnyChange) -> tuple[str, int, Shares] | None:
    if isinstance(change, changes.Offered | changes.Held):
        return change.id, change.token, change.shares
    if isinstance(change, changes.Asked) and change.request.state == HELD:
        return change.request.id, change.request.token, change.request.shares
    return None


def _check_grants(state: State, command: commands.Command, outcome: Outcome, now: int) -> None:
    """G1, G2: replay the changes on the state as it was, and look at each grant at its moment."""
    for change in outcome.changes:
        grant = _grant(change)
        token = change.token if isinstance(change, changes.Adopted) else grant[1] if grant else 0
        if token:
            mine = isinstance(change, changes.Adopted | changes.Asked)
            seen = max(state.token, getattr(command, "seen", 0) if mine else 0)
            _expect(token > seen and token >= now, f"G2: token {token}, {seen} seen, at {now}")
        if isinstance(change, changes.Passed | changes.Adopted):
            _check_transfer(state.requests[change.id], command, change)
        if isinstance(change, changes.Claimed | changes.Renewed | changes.Held | changes.Offered):
            one = state.requests[change.id]
            until = now + one.lease if one.lease else 0
            _same(change.until, now + state.settings.claim if isinstance(change, changes.Offered) else until, "its end")
        if isinstance(change, changes.Held | changes.Offered):
            own = (
                not isinstance(command, commands.Bury)
                and getattr(command, "session", "") == one.session
                and not one.picky
            )
            _same(isinstance(change, changes.Held), one.sure or not one.session or own, f"{change.id} needs no claim")
        if grant is None:
            state.evolve(change, now)
            continue
        name, _, shares = grant
        asking = change.request if isinstance(change, changes.Asked) else state.requests[name]
        bundle = plainly.reserved_for(state, now)
        if bundle is not None and bundle.id != name:
            reserved = plainly.kept(state, bundle, now)
            taken = [resource for resource, _ in shares if reserved >> state.resources[resource].slot & 1]
            _same(taken, [], f"given to {name}, although kept for {bundle.id}")
        late = [resource for resource, _ in shares if plainly.is_held_back(state, asking, state.resources[resource])]
        _same(late, [], f"given to {name}, although one waits for it alone who asked before")
        left = plainly.room(state, asking, now)
        _expect(left is None or sum(units for _, units in shares) <= left, f"{name} has no room for {shares}")
        _expect(not state.settings.paused, f"{name} was granted {shares} in a paused pool")
        lent = {resource: plainly.lendable(state.resources[resource]) for resource, _ in shares}
        state.evolve(change, now)
        request = state.requests[name]
        for (resource, units), want in zip(shares, plainly.wishes(request.wants), strict=True):
            given = state.resources[resource]
            _expect(lent[resource], f"{resource} is not to be lent, but {name} has it")
            _expect(given.used <= given.capacity, f"G1: {given.used} units of {resource} are in use")
            _expect(resource not in request.refused, f"{name} was given {resource}, which it refused")
            _expect(plainly.suits(want, given), f"{name} was given {resource}, which is not what it wants")
            _same(units, given.capacity if want.units == ALL else want.units, f"units of {resource} for {name}")
        group = state.groups.get(request.group) if request.group else None
        if group is not None and group.quota:
            _expect(group.held <= group.quota, f"{name} was given more than the quota of {group.name!r}")


def _check_transfer(request: Request, command: commands.Command, change: changes.Passed | changes.Adopted) -> None:
    """Check that a grant leaves the hands of its holder by its own will, unless it is taken by an operator."""
    _same(request.state, HELD, f"the state of {request.id}, which comes into other hands")
    if isinstance(change, changes.Passed):
        mine = (
            isinstance(command, commands.Pass) and command.session == request.session and command.token == request.token
        )
        _expect(mine and not request.passed, f"{command} passed {request.id} on")
    elif change.how == "transferred":
        _expect(request.passed, f"{request.id} was transferred, but its holder had not passed it on")


def _check_order(before: State, after: State, outcome: Outcome) -> None:
    """G3: nobody is served before an equal one that has been waiting all the while and still is."""
    touched = {getattr(change, "id", "") for change in outcome.changes}
    still = [one for one in plainly.waiting(before) if one.id not in touched and one.id in after.requests]
    for name, _, _ in filter(None, map(_grant, outcome.changes)):
        served = after.requests.get(name) or before.requests.get(name)
        if served is None:
            continue
        for one in still:
            equal = (one.wants, one.group, one.refused) == (served.wants, served.group, served.refused)
            if not equal or one.seq == served.seq:
                continue
            if one.priority == served.priority:
                _expect(one.seq > served.seq, f"G3: {served.id} was served before {one.id}")
            elif not after.settings.ageing and before.settings == after.settings:
                overdue = served.bundle and served.seq < one.seq
                overdue = overdue or _is_between(before, after, served, one)
                _expect(overdue or one.priority < served.priority, f"G3: {served.id} was served before {one.id}")


def _is_between(before: State, after: State, served: Request, one: Request) -> bool:
    """Return whether an exclusive request came after the one and before the other, who is held up by it."""
    everybody = [*before.requests.values(), *after.requests.values()]
    return any(plainly.exclusive_target(other) is not None and served.seq < other.seq < one.seq for other in everybody)


def _check_id(before: State, command: commands.Acquire, outcome: Outcome) -> None:
    """G7: an id takes effect once, and belongs to its session until that is known to be dead."""
    kind = outcome.reply.kind
    known = before.requests.get(command.id)
    if known is not None:
        is_dead = known.state == AWAY and known.until > 0
        if known.session == command.session:
            _same((kind, outcome.changes), (known.state, []), f"the answer to {command.id}, asked again")
        elif not is_dead:
            _same(kind, "taken", f"the answer to {command.id} of another session")
    elif command.chosen and command.id in before.used:
        _same(kind, "used", f"the answer to {command.id}")


def _check_endings(before: State, after: State, command: commands.Command, outcome: Outcome, now: int) -> None:
    """G8: time ends no lock, and no lease before its end; a grant ends by its token, its id or a proof of death."""
    asked = {one.request.id for one in outcome.changes if isinstance(one, changes.Asked)}
    for name, one in before.requests.items():
        if name in after.requests and name not in asked:
            now_is = after.requests[name]
            _same((now_is.seq, now_is.asked), (one.seq, one.asked), f"the place of {name}")
    if isinstance(command, commands.Bury) and command.session:
        for name in after.index.sessions.get(command.session, ()):
            one = after.requests[name]
            _expect(
                one.chosen and one.state == AWAY and one.until > 0, f"{name} is {one.state}, but its session is dead"
            )
    for name in (one.id for one in outcome.changes if isinstance(one, changes.Adopted)):
        _expect(name not in after.requests or not after.requests[name].passed, f"{name} can be adopted again")
    for change in outcome.changes:
        if not isinstance(change, changes.Ended):
            continue
        was = before.requests.get(change.id)
        if was is None or was.state != HELD:
            continue
        fair = {
            "expired": bool(was.lease) and was.until <= now,
            "died": isinstance(command, commands.Bury) and command.session == was.session != "",
            "released": (isinstance(command, commands.Release) and command.token == was.token)
            or (isinstance(command, commands.Withdraw) and command.id == was.id),
        }
        fair["revoked"] = fair["released"] and bool(getattr(command, "by", ""))
        fair["withdrawn"] = isinstance(command, commands.Withdraw) and command.id == was.id and was.chosen
        pause = after.settings.delay if after.settings == before.settings else 0
        for name, _ in was.shares if change.how in ("expired", "revoked", "died") and pause else ():
            is_gone = any(isinstance(one, changes.Removed) and one.name == name for one in outcome.changes)
            late = now + pause if is_gone else after.resources[name].delayed
            _expect(late >= now + pause, f"{name} was taken away, but is lent without a pause")
        _expect(fair.get(change.how, False), f"G8: {command} ended the grant of {was.id} as {change.how!r}")


def _most(request: Request, there: Iterable[Resource]) -> int:
    """Return how many of the wishes the free units of these resources can meet at once, by trying."""
    wants = plainly.wishes(request.wants)

    def go(index: int, left: tuple[Resource, ...]) -> int:
        if index == len(wants):
            return 0
        best = go(index + 1, left)
        want = wants[index]
        for one in left:
            if plainly.suits(want, one) and one.capacity - one.used >= (
                one.capacity if want.units == ALL else want.units
            ):
                best = max(best, 1 + go(index + 1, tuple(other for other in left if other is not one)))
        return best

    return go(0, tuple(there))

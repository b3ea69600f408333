"""The rules of resource pools as one pure function: `step(state, command, now) -> outcome`.

The package (`_rules/__init__.py`) says what the rules are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from millpond.resources._rules import changes, commands
from millpond.resources._rules.changes import AnyChange
from millpond.resources._rules.commands import Reply
from millpond.resources._rules.handover import Shares, Turn
from millpond.resources._rules.placement import cost
from millpond.resources._rules.records import (
    ACTIVE,
    AWAY,
    CORDONED,
    DRAINING,
    HELD,
    OFFERED,
    QUARANTINED,
    REMOVING,
    WAITING,
    Request,
    Resource,
    Want,
)
from millpond.resources._rules.state import State


class Outcome(NamedTuple):
    """What a command led to: the answer, and all that changed."""

    reply: Reply
    changes: list[AnyChange]


def step(state: State, command: commands.Command, now: int) -> Outcome:
    """Apply one command at `now` (microseconds of the engine's clock)."""
    turn = Turn(state, now, "" if type(command) is commands.Bury else getattr(command, "session", ""))
    _end_what_is_over(turn)
    reply = _VERBS[type(command)](turn, command)
    if turn.freed or (state.index.bundles and turn.changes and turn.is_reserving()):
        turn.hand_over()
        if reply.kind == WAITING:
            reply = _standing(state.requests[reply.id])
    return Outcome(reply, turn.changes)


# --- ending ----------------------------------------------------------------------------------------------------


def _end_what_is_over(turn: Turn) -> None:
    """End the offers, leases, waits and absences whose time has come, and hand over what they leave."""
    state = turn.state
    while True:
        over = state.index.next_due(turn.now)
        if over is None:
            break
        kind, key = over
        if kind:
            turn.decide(changes.Undelayed(key))
            continue
        request = state.requests[key]
        if request.state == OFFERED:
            _leave(turn, request, 0, "did not claim what it was offered")
        elif request.state == HELD:
            _end(turn, request, "expired", reason="its lease ended")
        elif request.deadline and request.deadline <= turn.now:
            _end(turn, request, "timed out")
        else:
            _end(turn, request, "died", reason="it did not come back")
    if turn.freed:
        turn.hand_over()


def _end(turn: Turn, request: Request, how: str, by: str = "", reason: str = "") -> None:
    """End a request or grant."""
    shares = request.shares
    pause = turn.state.settings.delay if shares and how in ("expired", "revoked", "died") else 0
    delayed = turn.now + pause if pause else 0
    turn.decide(changes.Ended(request.id, how, by, reason, delayed, request.token, shares, request.holder))
    _settle(turn, shares)


def _leave(turn: Turn, request: Request, until: int, reason: str) -> None:
    """Mark a request as away: it has nothing, but keeps its place."""
    shares = request.shares
    turn.decide(changes.Left(request.id, until, reason))
    _settle(turn, shares)


def _wait_again(turn: Turn, request: Request) -> bool:
    """End a request that is back in line if it has no chance any more; return whether it has one."""
    if request.deadline and request.deadline <= turn.now:
        _end(turn, request, "timed out")
        return False
    if request.patient or _is_possible(turn.state, request):
        return True
    _end(turn, request, "unsatisfiable", reason="no resource can satisfy it any more")
    return False


def _settle(turn: Turn, shares: Shares) -> None:
    """Complete a drain or a removal when nobody is left on the resource."""
    for name, _ in shares:
        resource = turn.state.resources[name]
        if resource.used:
            continue
        if resource.state == DRAINING:
            turn.decide(changes.Marked(name, CORDONED, "", resource.note or "drained"))
        elif resource.state == REMOVING:
            turn.decide(changes.Removed(name, "", resource.note))


def _is_possible(state: State, request: Request) -> bool:
    """Return whether the request could be satisfied if nobody held anything and all resources were active."""
    group = state.groups.get(request.group) if request.group else None
    quota = group.quota if group is not None and group.quota else None
    return cost(state, request, state.index.present & ~state.index.mask(request.refused), quota) is not None


def _end_the_impossible(turn: Turn) -> None:
    """End those who wait in vain, after resources or quotas became less."""
    vain = []
    for line in turn.state.index.lines.values():
        if not _is_possible(turn.state, line.heap[0][2]):
            vain += [request for request in line.requests() if not request.patient]
    for request in sorted(vain, key=lambda one: one.seq):
        _end(turn, request, "unsatisfiable", reason="no resource can satisfy it any more")


def is_bundle(wants: tuple[Want, ...]) -> bool:
    """Return whether these wants need several units at once."""
    return len(wants) > 1 or wants[0].count > 1 or wants[0].units != 1


# --- the verbs -------------------------------------------------------------------------------------------------


def _acquire(turn: Turn, command: commands.Acquire) -> Reply:
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
    elif not command.patient and not _is_possible(state, request):
        return Reply("unsatisfiable", command.id, detail=_namesake(state, command))
    elif not command.wait:
        return Reply("busy", command.id)
    turn.decide(changes.Asked(request, seen=command.seen))
    return _standing(request)


def _namesake(state: State, command: commands.Acquire) -> str:
    """Return the resource whose name stands where a label should, or ""."""
    return next((want.selector for want in command.wants if want.selector in state.resources), "")


def _ask_again(turn: Turn, command: commands.Acquire, known: Request) -> Reply:
    if known.session != command.session:
        if known.state != AWAY or not known.until:  # its process may live
            return Reply("taken", known.id, detail=str(known.holder))
        turn.decide(changes.Returned(known.id, command.session, command.holder, seen=command.seen))
        if not _wait_again(turn, known):
            return Reply("unsatisfiable", command.id)
    return _standing(known)


def _standing(request: Request) -> Reply:
    return Reply(request.state, request.id, request.token, request.shares, request.until)


def _claim(turn: Turn, command: commands.Claim) -> Reply:
    state = turn.state
    for known in command.ids:
        request = state.requests.get(known)
        if request is None or request.session != command.session:
            continue
        if request.state == OFFERED:
            turn.decide(changes.Claimed(known, turn.now + request.lease if request.lease else 0))
        elif request.state == AWAY:
            turn.decide(changes.Returned(known, request.session, request.holder))
            _wait_again(turn, request)
    return Reply("ok")


def _decline(turn: Turn, command: commands.Decline) -> Reply:
    request = turn.state.requests.get(command.id)
    if request is None or request.state != OFFERED or request.token != command.token:
        return Reply("stale", command.id, command.token)
    refused = tuple(sorted({*request.refused, *(name for name, _ in request.shares)}))
    shares = request.shares
    turn.decide(changes.Declined(request.id, refused))  # it goes back in line, and never gets that again
    _settle(turn, shares)
    _wait_again(turn, request)
    return Reply("ok", request.id)


def _withdraw(turn: Turn, command: commands.Withdraw) -> Reply:
    state = turn.state
    request = state.requests.get(command.id)
    if request is None:
        used = state.used.get(command.id)
        return Reply("ended", command.id, detail=told(used.how, used.by)) if used else Reply("unknown", command.id)
    if request.session != command.session and not command.by:
        return Reply("taken", command.id, detail=str(request.holder))
    is_granted = request.state in (HELD, OFFERED)
    how = "released" if is_granted and not request.chosen else "withdrawn"  # who chose an id may ask again
    _end(turn, request, "revoked" if command.by and is_granted else how, command.by, command.reason)
    return Reply(how, command.id)


def _by_token(turn: Turn, session: str, token: int, resource: str = "") -> Request | Reply:
    """Return the grant whose token counts, or why there is none."""
    state = turn.state
    known = state.index.tokens.get(token)
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


def _release(turn: Turn, command: commands.Release) -> Reply:
    request = _by_token(turn, command.session, command.token, command.resource)
    if isinstance(request, Reply):
        return request
    reply = Reply("released", request.id, request.token, request.shares)
    _end(turn, request, "revoked" if command.by else "released", command.by, command.reason)
    return reply


def _renew(turn: Turn, command: commands.Renew) -> Reply:
    request = _by_token(turn, command.session, command.token)
    if isinstance(request, Reply):
        return request
    if request.state == HELD and (request.lease or request.suspect):
        turn.decide(changes.Renewed(request.id, turn.now + request.lease if request.lease else 0))
    return _standing(request)


def _pass(turn: Turn, command: commands.Pass) -> Reply:
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


def _adopt(turn: Turn, command: commands.Adopt) -> Reply:
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


def _suspect(turn: Turn, command: commands.Suspect) -> Reply:
    request = _by_token(turn, command.session, command.token)
    if isinstance(request, Reply):
        return request
    if request.suspect != command.why:
        turn.decide(changes.Suspected(request.id, command.why))
    return Reply("ok", request.id, request.token)


def _bury(turn: Turn, command: commands.Bury) -> Reply:
    state = turn.state
    if not command.session:
        return Reply("ok")  # nobody cannot die
    mine = sorted(
        (state.requests[known] for known in state.index.sessions.get(command.session, ())), key=lambda one: one.seq
    )
    for request in mine:
        if request.state == AWAY and request.until:
            continue  # it is known to be dead
        if request.deadline and request.deadline <= turn.now and request.state != HELD:
            _end(turn, request, "timed out")  # its time was over while it was offered something
        elif request.chosen and request.state != HELD:
            _leave(turn, request, turn.now + state.settings.retention, command.reason)
        else:
            _end(turn, request, "died", reason=command.reason)
    if turn.changes:
        turn.decide(changes.Buried(command.session, command.reason))
    return Reply("ok")


def _add(turn: Turn, command: commands.Add) -> Reply:
    state = turn.state
    if command.name in state.resources:
        return Reply("exists", command.name)
    slot = next((index for index, resource in enumerate(state.index.slots) if resource is None), len(state.index.slots))
    turn.decide(changes.Added(Resource(command.name, command.labels, command.capacity, slot), command.by))
    return Reply("ok", command.name)


def _remove(turn: Turn, command: commands.Remove) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    if resource.used:
        turn.decide(changes.Marked(command.name, REMOVING, command.by, command.reason))
    else:
        turn.decide(changes.Removed(command.name, command.by, command.reason))
    _end_the_impossible(turn)
    return Reply("ok", command.name, detail=REMOVING if resource.used else "removed")


def _relabel(turn: Turn, command: commands.Relabel) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    turn.decide(changes.Relabelled(command.name, command.labels, command.by, command.reason))
    _end_the_impossible(turn)
    return Reply("ok", command.name)


def _resize(turn: Turn, command: commands.Resize) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    turn.decide(changes.Resized(command.name, command.capacity, command.by, command.reason))
    _end_the_impossible(turn)
    return Reply("ok", command.name)


def _mark(turn: Turn, command: commands.Mark) -> Reply:
    resource = turn.state.resources.get(command.name)
    if resource is None:
        return Reply("unknown", command.name)
    if resource.state == REMOVING and command.state != ACTIVE:
        return Reply("ok", command.name, detail=REMOVING)  # it goes anyway; only to make it active calls it back
    if resource.state == QUARANTINED and command.state in (CORDONED, DRAINING):
        return Reply("ok", command.name, detail=QUARANTINED)  # lent to nobody as it is, and its reason stays
    turn.decide(changes.Marked(command.name, command.state, command.by, command.reason))
    _settle(turn, ((command.name, 0),))
    return Reply("ok", command.name, detail=resource.state)


def _configure(turn: Turn, command: commands.Configure) -> Reply:
    turn.decide(changes.Configured(command.settings, command.by, command.reason))
    return Reply("ok")


def _set_group(turn: Turn, command: commands.SetGroup) -> Reply:
    turn.decide(changes.GroupSet(command.name, command.weight, command.quota, command.by, command.reason))
    _end_the_impossible(turn)
    return Reply("ok", command.name)


def _tick(turn: Turn, command: commands.Tick) -> Reply:
    return Reply("ok")


_VERBS: dict[type[commands.Command], Callable[[Turn, Any], Reply]] = {
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

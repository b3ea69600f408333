"""What people ask about a pool, answered from a replica: pure functions, and the records they return.

Times are seconds: `since` on the engine's clock (close to the time of day), durations up to the moment of asking.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from millpond._events import Event
from millpond._words import duration, who
from millpond.errors import NotFound
from millpond.resources import _history
from millpond.resources._rules.commands import Acquire
from millpond.resources._rules.line import bits
from millpond.resources._rules.placement import fitting
from millpond.resources._rules.records import (
    ALL,
    AWAY,
    HELD,
    OFFERED,
    REMOVING,
    WAITING,
    Holder,
    Request,
    Resource,
    Want,
)
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.state import STRIDE, State

KEPT: Final = ", but kept for "
LOOKED_AT: Final = 300
"""Requests among which one is looked for to say why it waits."""


@dataclass(frozen=True, slots=True)
class ResourceView:
    """A resource: what it is, and how much of it is in use."""

    name: str
    """Its name."""
    labels: Mapping[str, str]
    """What is known of it; a flag has an empty text."""
    capacity: int
    """How many units it has."""
    used: int
    """Units that are held, or offered to a waiter."""
    state: str
    """`active`, `cordoned`, `draining`, `quarantined` or `removing`."""
    note: str = ""
    """The reason of the operator who changed its state."""
    holders: tuple[str, ...] = ()
    """Who holds units of it."""

    @property
    def free(self) -> int:
        """The units that are in nobody's hands."""
        return max(0, self.capacity - self.used)


@dataclass(frozen=True, slots=True)
class HolderView:
    """Who holds what, since when, and why."""

    resources: tuple[str, ...]
    """What is held, by name."""
    units: Mapping[str, int]
    """How many units of each."""
    token: int
    """The fencing token: operators name it to take the grant away."""
    kind: str
    """`process`, `workflow` or `person`."""
    id: str
    """The name of the holder: `holder=`, or host and pid."""
    host: str
    """The machine of the holder."""
    pid: int
    """Its process; 0: none."""
    started: int
    """When that process was started, in the kernel's own count: with the pid it names one process."""
    reason: str
    """Why it is held."""
    group: str
    """The tenant."""
    request_id: str
    """The id of the request."""
    since: float
    """Since when it is held."""
    held_for: float
    """For how many seconds."""
    state: str = HELD
    """`held`, or `offered`: not yet seen to be taken."""
    expires_in: float | None = None
    """Seconds until the lease ends; None: a lock."""
    suspect: str = ""
    """Why this grant seems forgotten; empty: it does not."""

    def __str__(self) -> str:
        return str(Holder(self.kind, self.id, self.host, self.pid))


@dataclass(frozen=True, slots=True)
class WaiterView:
    """Who waits for what, in which place, since when, and why it was not granted yet."""

    request_id: str
    """The id of the request."""
    selectors: tuple[str, ...]
    """What is asked for."""
    position: int
    """The place in line, from 1, among those who want the very same."""
    kind: str
    """`process`, `workflow` or `person`."""
    id: str
    """The name of the waiter: `holder=`, or host and pid."""
    host: str
    """The machine of the waiter."""
    pid: int
    """Its process; 0: none."""
    reason: str
    """Why it is asked for."""
    group: str
    """The tenant."""
    priority: int
    """Higher is served first, within a group."""
    since: float
    """Since when it waits."""
    waiting_for: float
    """For how many seconds."""
    state: str
    """`waiting`, or `away`: its process is gone and its place is kept."""
    why: str
    """Why it was not granted yet, in a sentence: who has it, since when, why."""

    def __str__(self) -> str:
        return str(Holder(self.kind, self.id, self.host, self.pid))


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool in figures."""

    resources: int
    """Resources in the pool."""
    units: int
    """Units of all of them."""
    free_units: int
    """Units that nobody holds."""
    schedulable_units: int
    """Free units that could be lent now: neither cordoned, in quarantine nor kept back."""
    held: int
    """Grants."""
    offered: int
    """Hand-overs that were not yet seen to be taken."""
    waiting: int
    """Requests in line."""
    away: int
    """Requests whose place is kept though their process is gone."""
    suspects: int
    """Grants that seem forgotten."""
    grants_total: int
    """Grants made since the pool was created."""
    oldest_wait: float
    """Seconds that the first in line has waited."""
    oldest_hold: float
    """Seconds of the longest hold."""
    paused: str = ""
    """Why the pool is paused; empty: it is not."""
    groups: Mapping[str, int] = field(default_factory=dict)
    """Units that each group holds."""


def resources(replica: Replica, now: int) -> list[ResourceView]:
    """Return all resources, in the pool's order."""
    holders = _holders_by_resource(replica.state)
    return [
        ResourceView(
            one.name,
            dict(one.labels),
            one.capacity,
            one.used,
            one.state,
            one.note,
            tuple(str(request.holder) for request, _ in holders.get(one.name, ())),
        )
        for one in replica.state.index.slots
        if one is not None
    ]


def candidates(replica: Replica, now: int, wants: tuple[Want, ...]) -> list[ResourceView]:
    """Return the resources that could be lent now to one with these wants."""
    state = replica.state
    mask = 0
    for want in wants:
        mask |= fitting(state, want, state.index.free)
    names = {state.index.at(slot).name for slot in bits(mask)}
    return [one for one in resources(replica, now) if one.name in names]


def holders(replica: Replica, now: int) -> list[HolderView]:
    """Return who holds what, the longest hold first; offers that are not claimed yet are among them."""
    held = [one for one in replica.state.requests.values() if one.shares]
    return [_holder(one, now) for one in sorted(held, key=lambda one: (one.since, one.token))]


def waiters(replica: Replica, now: int, first: int | None = None) -> list[WaiterView]:
    """Return who waits, in the order in which they would be served; all, or the first ones."""
    state = replica.state
    waiting = _in_order_of_service(state)
    by_resource = _holders_by_resource(state)
    places: dict[object, int] = {}
    views = []
    for one in waiting[:first]:
        place = places[one.wants] = places.get(one.wants, 0) + 1
        holder = one.holder
        views.append(
            WaiterView(
                one.id,
                tuple(wish(want.selector, want.count, want.units) for want in one.wants),
                place,
                holder.kind,
                holder.id,
                holder.host,
                holder.pid,
                one.reason,
                one.group,
                one.priority,
                one.asked / 1e6,
                (now - one.asked) / 1e6,
                one.state,
                _why(state, one, place - 1, by_resource, now),
            )
        )
    return views


def _in_order_of_service(state: State) -> list[Request]:
    """Return who waits as they would be served one after the other, the groups taking turns."""
    lines: dict[str, list[Request]] = {}
    for one in state.requests.values():
        if one.state in (WAITING, AWAY):
            lines.setdefault(one.group if state.groups else "", []).append(one)
    heap = []
    for name, line in lines.items():
        line.sort(key=lambda one: (state.index.order(one), one.seq), reverse=True)
        heap.append((state.start(name), state.index.order(line[-1]), line[-1].seq, name))
    heapq.heapify(heap)
    order = []
    while heap:
        start, _, _, name = heap[0]
        order.append(lines[name].pop())
        if not lines[name]:
            heapq.heappop(heap)
            continue
        group = state.groups.get(name)
        cost = STRIDE // (group.weight if group is not None else 1) if state.groups else 0
        head = lines[name][-1]
        heapq.heapreplace(heap, (start + cost, state.index.order(head), head.seq, name))
    return order


def statistics(replica: Replica, now: int) -> PoolStatistics:
    """Return the pool in figures."""
    state = replica.state
    count = dict.fromkeys((WAITING, AWAY, OFFERED, HELD), 0)
    for one in state.requests.values():
        count[one.state] += 1
    waits = [one.asked for one in state.requests.values() if one.state in (WAITING, AWAY)]
    holds = [one.since for one in state.requests.values() if one.state == HELD]
    free = [state.index.at(slot) for slot in bits(state.index.free)]
    return PoolStatistics(
        resources=len(state.resources),
        units=sum(one.capacity for one in state.resources.values()),
        free_units=sum(max(0, one.capacity - one.used) for one in state.resources.values()),
        schedulable_units=sum(one.capacity - one.used for one in free),
        held=count[HELD],
        offered=count[OFFERED],
        waiting=count[WAITING],
        away=count[AWAY],
        suspects=sum(1 for one in state.requests.values() if one.suspect and one.state == HELD),
        grants_total=state.grants,
        oldest_wait=(now - min(waits)) / 1e6 if waits else 0.0,
        oldest_hold=(now - min(holds)) / 1e6 if holds else 0.0,
        paused=state.settings.paused,
        groups={one.name: one.held for one in state.groups.values() if one.name},
    )


def history(replica: Replica, pool: str, resource: str | None, limit: int, *, acts: bool = False) -> list[Event]:
    """Return the last events, oldest first; with `resource`, those that touch it; with `acts`, those of operators."""
    writer = _history.EventWriter(pool, replica.state.requests.values())
    told = list(writer.of_acts(replica.state.acts) if acts else writer.of_entries(replica.history))
    if resource is not None:
        told = [
            one for one in told if one.data.get("resource") == resource or resource in one.data.get("resources", ())
        ]
    return told[-limit:] if limit else []


def explain(replica: Replica, now: int, name: str) -> str:
    """Say how a request or a resource stands, in a sentence."""
    state = replica.state
    request = state.requests.get(name)
    if request is not None:
        return _explain_request(replica, request, now)
    resource = state.resources.get(name)
    if resource is not None:
        return f"{name} is {_resource_status(resource, _holders_by_resource(state), now)}"
    used = state.used.get(name)
    if used is not None:
        return f"request {name!r} is over: {used.how}" + (f" by {used.by}" if used.by else "")
    raise NotFound(f"there is no request or resource {name!r}: waiters() and resources() list what there is")


def _explain_request(replica: Replica, request: Request, now: int) -> str:
    names = ", ".join(name for name, _ in request.shares)
    if request.state == HELD:
        reason = f" ({request.reason})" if request.reason else ""
        return (
            f"request {request.id!r} holds {names} since {_age(now - request.since)} under token {request.token}: "
            f"{_who(request)}{reason}{_doubt(request)}"
        )
    if request.state == OFFERED:
        return f"request {request.id!r} of {_who(request)} was offered {names} and has not claimed it yet"
    state = replica.state
    order = _in_order_of_service(state)
    ahead = sum(one.wants == request.wants for one in order[: order.index(request)])
    why = _why(state, request, ahead, _holders_by_resource(state), now)
    return f"request {request.id!r} waits since {_age(now - request.asked)} in place {ahead + 1}: {why}"


def _holder(one: Request, now: int) -> HolderView:
    return HolderView(
        tuple(name for name, _ in one.shares),
        dict(one.shares),
        one.token,
        one.holder.kind,
        one.holder.id,
        one.holder.host,
        one.holder.pid,
        one.holder.started,
        one.reason,
        one.group,
        one.id,
        one.since / 1e6,
        (now - one.since) / 1e6,
        one.state,
        (one.until - now) / 1e6 if one.until else None,
        one.suspect,
    )


def _holders_by_resource(state: State) -> dict[str, list[tuple[Request, int]]]:
    found: dict[str, list[tuple[Request, int]]] = {}
    for request in state.requests.values():
        for name, units in request.shares:
            found.setdefault(name, []).append((request, units))
    return found


def wish(selector: str, count: int, units: int) -> str:
    """Say what is asked for."""
    text = selector if count == 1 else f"{count} of {selector}"
    return text if units == 1 else f"{text} (all units)" if units == ALL else f"{text} ({units} units)"


def wishes(wants: Iterable[Want]) -> str:
    """Say what a request asks for, in a person's words."""
    return ", ".join(wish(one.selector, one.count, one.units) for one in wants)


def _why(state: State, request: Request, ahead: int, holders: dict[str, list[tuple[Request, int]]], now: int) -> str:
    if request.state == AWAY:
        return f"it is away: {request.suspect}"
    if (barrier := _barrier(state, request.group)) is not None:
        return barrier
    first = [f"{ahead} ahead of it"] if ahead else []
    return "; ".join([*first, *_in_the_way(state, request, holders, now)])


def _barrier(state: State, group: str) -> str | None:
    """Say what keeps a whole group, or everybody, from being granted anything; None: nothing does."""
    if state.settings.paused:
        return f"the pool is paused: {state.settings.paused}"
    found = state.groups.get(group) if group else None
    if found is not None and found.quota and found.held >= found.quota:
        return f"group {found.name!r} holds {found.held} of its {found.quota} units"
    return None


def _in_the_way(
    state: State, asking: Request | Acquire, holders: dict[str, list[tuple[Request, int]]], now: int
) -> list[str]:
    """Say of the resources that would do why they are not to be had."""
    mask = 0
    for want in asking.wants:
        mask |= state.index.matcher(want.selector).mask
    suitable = [state.index.at(slot) for slot in bits(mask)]
    if not suitable:
        return ["no resource matches it" + (": it waits for one to be added" if isinstance(asking, Request) else "")]
    why_free = _why_free_is_not_enough(state, asking, suitable)
    found = [f"{one.name} is {_resource_status(one, holders, now, asking, why_free)}" for one in suitable[:3]]
    if len(suitable) > 3:
        found.append(f"and {len(suitable) - 3} more that match are not to be had either")
    return found


def _why_free_is_not_enough(state: State, asking: Request | Acquire, suitable: Sequence[Resource]) -> str:
    """Say why a free resource that would do is not lent to one who asks: too few, or kept for another."""
    wanted = sum(want.count for want in asking.wants)
    free = sum(1 for one in suitable if one.capacity > one.used)
    if free < wanted:
        return f", but {wanted} are wanted at once and {free} {'is' if free == 1 else 'are'} free"
    names = {one.name for one in suitable}
    exclusive = [one for name in names for one in state.index.exclusive.get(name, {}).values()]
    older = [one for one in (*exclusive, *state.index.bundles.values()) if one.id != asking.id]
    if isinstance(asking, Request):
        older = [one for one in older if one.seq < asking.seq]
    if older:
        first = min(older, key=lambda one: one.seq).holder
        return f"{KEPT}{who(first.id, first.host, first.pid)}, who waits longer"
    return ", and about to be lent to the next in line"


def standing(replica: Replica, now: int, asked: Acquire) -> str:
    """Say why a request that has just ended was not granted; nothing where very many wait: looking would take long."""
    state = replica.state
    if len(state.requests) > LOOKED_AT:
        return ""
    if (barrier := _barrier(state, asked.group)) is not None:
        return barrier
    waiting = [one for one in state.requests.values() if one.state == WAITING and one.id != asked.id]
    others = sum(one.wants == asked.wants for one in waiting)
    first = [f"{others} more wait{'s' if others == 1 else ''} for it"] if others else []
    return "; ".join([*first, *_in_the_way(state, asked, _holders_by_resource(state), now)])


def _resource_status(
    resource: Resource,
    holders: dict[str, list[tuple[Request, int]]],
    now: int,
    asking: Request | Acquire | None = None,
    why_free: str = "",
) -> str:
    note = f" ({resource.note})" if resource.note else ""
    if resource.state == REMOVING:
        return f"being removed{note}"
    if asking is not None and resource.name in asking.refused:
        return "declined by the requester"
    if resource.delayed > now:
        return f"not lent for another {_age(resource.delayed - now + 999_999)}"
    hands = [_hand(one, now) for one, _ in holders.get(resource.name, ())[:2]]
    if resource.state != "active":
        return " and ".join([f"{resource.state}{note}", *hands])
    if not hands:
        return f"free{why_free}"
    if resource.capacity > 1:
        left = max(0, resource.capacity - resource.used)
        kept = why_free if left and why_free.startswith(KEPT) else ""
        hands.append(f"{left} of {resource.capacity} units free{kept}")
    return " and ".join(hands)


def _hand(one: Request, now: int) -> str:
    how = "held by" if one.state == HELD else "offered to"
    reason = f" ({one.reason})" if one.reason else ""
    return f"{how} {_who(one)} since {_age(now - one.since)}{reason}{_doubt(one)}"


def _who(one: Request) -> str:
    return who(one.holder.id, one.holder.host, one.holder.pid)


def _doubt(one: Request) -> str:
    return f", suspect: {one.suspect}" if one.suspect else ""


def _age(microseconds: int) -> str:
    return duration(microseconds / 1e6)

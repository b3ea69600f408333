"""The rules, said plainly: what may be given to whom, computed from the records alone, by trying.

For reviewers, and for whoever writes the rules again elsewhere: each function here is one rule, with no index and no
shortcut. `step` says the same faster; the conformance suite compares the two after every command (`Judge`). One
rule is taken from `placement`: which units are kept for a bundle (`kept`), since several choices are as good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millpond.resources._rules import selectors
from millpond.resources._rules.placement import Plan
from millpond.resources._rules.records import ACTIVE, ALL, REMOVING, WAITING, Group, Request, Resource, Want
from millpond.resources._rules.state import State

Shares = tuple[tuple[str, int], ...]


def waiting(state: State) -> list[Request]:
    """Return the requests that wait."""
    return [one for one in state.requests.values() if one.state == WAITING]


def lendable(resource: Resource) -> bool:
    """Return whether units of it can be lent now."""
    return resource.state == ACTIVE and not resource.delayed and resource.used < resource.capacity


def servable(state: State, request: Request, now: int) -> Shares | None:
    """Return what a waiter could be given now, if anything."""
    if state.settings.paused:
        return None
    free = {one.name: one for one in state.resources.values() if lendable(one) and one.name not in request.refused}
    bundle = reserved_for(state, now)
    if bundle is not None and bundle.id != request.id:
        reserved = kept(state, bundle, now)
        free = {name: one for name, one in free.items() if not reserved >> one.slot & 1}
    free = {name: one for name, one in free.items() if not is_held_back(state, request, one)}
    left = room(state, request, now)
    if left is not None and _is_hard(request):
        return None  # the cheapest of several whole resources is not looked for
    return way(request, free, {one.name: one.capacity - one.used for one in free.values()}, left)


def exclusive_target(request: Request) -> str | None:
    """Return the name of the one resource of which a request wants several units, or all."""
    [want, *more] = request.wants
    is_one = not more and want.count == 1 and want.units != 1
    return want.selector.strip()[1:] if is_one and want.selector.strip().startswith("@") else None


def is_held_back(state: State, request: Request, resource: Resource) -> bool:
    """Return whether somebody waits for several units of this very resource whom the request must not overtake."""
    for one in waiting(state):
        if exclusive_target(one) != resource.name or one.seq >= request.seq:
            continue
        if one.group == request.group and order(state, request) < order(state, one):
            continue
        need = resource.capacity if one.wants[0].units == ALL else one.wants[0].units
        group = _group(state, one)
        left = group.quota - group.held if group is not None and group.quota else need
        if need <= left and need <= resource.capacity and resource.name not in one.refused:
            return True
    return False


def possible(state: State, request: Request) -> bool:
    """Return whether a request could be satisfied if nobody held anything and all were active."""
    there = {
        one.name: one for one in state.resources.values() if one.state != REMOVING and one.name not in request.refused
    }
    group = _group(state, request)
    quota = group.quota if group is not None and group.quota else None
    if quota is not None and _is_hard(request):
        quota = None
    return way(request, there, {one.name: one.capacity for one in there.values()}, quota) is not None


def reserved_for(state: State, now: int) -> Request | None:
    """Return the bundle for which freed units are kept."""
    for request in sorted(waiting(state), key=lambda one: one.seq):
        if not request.bundle or exclusive_target(request) is not None or request.asked > now - state.settings.patience:
            continue
        there = _active(state, request)
        left = room(state, request, now)
        if way(request, there, {one.name: one.capacity for one in there.values()}, left) is not None:
            return request
    return None


def kept(state: State, bundle: Request, now: int) -> int:
    """Return the resources, as bits, that are kept for a bundle."""
    return Plan(state, bundle, usable(state, bundle), room(state, bundle, now)).kept()


def _active(state: State, request: Request) -> dict[str, Resource]:
    return {
        one.name: one for one in state.resources.values() if one.state == ACTIVE and one.name not in request.refused
    }


def usable(state: State, request: Request) -> int:
    """Return the resources, as bits, of which the request may be given something now."""
    return union(
        1 << one.slot
        for one in state.resources.values()
        if lendable(one) and one.name not in request.refused and not is_held_back(state, request, one)
    )


def _group(state: State, request: Request) -> Group | None:
    return state.groups.get(request.group) if request.group else None


def room(state: State, request: Request, now: int) -> int | None:
    """Return what the quota leaves, less what the oldest bundle of the group that is overdue will need."""
    group = _group(state, request)
    if group is None or not group.quota:
        return None
    for bundle in sorted(waiting(state), key=lambda one: one.seq):
        if bundle.bundle and bundle.group == request.group and bundle.asked <= now - state.settings.patience:
            if bundle.id == request.id:
                break
            there = _active(state, bundle)
            whole = {one.name: one.capacity for one in there.values()}
            least = [units for units in range(1, group.quota + 1) if way(bundle, there, whole, units) is not None]
            if least:
                return group.quota - group.held - least[0]
    return group.quota - group.held


def _is_hard(request: Request) -> bool:
    return len(wishes(request.wants)) > 1 and any(want.units == ALL for want in request.wants)


def wishes(wants: Iterable[Want]) -> list[Want]:
    """Return one want for each resource that is wanted."""
    return [want for want in wants for _ in range(want.count)]


def suits(want: Want, resource: Resource) -> bool:
    """Return whether a resource is one that is wanted."""
    return any(selectors.matches(one, resource.name, resource.labels) for one in selectors.parse(want.selector))


def way(request: Request, there: Mapping[str, Resource], units: Mapping[str, int], room: int | None) -> Shares | None:
    """Return a way to give a request all it wants of these units within `room`, by trying."""
    if any(want.count > len(there) for want in request.wants):
        return None
    wants = wishes(request.wants)

    def go(index: int, taken: frozenset[str], left: int | None) -> Shares | None:
        if index == len(wants):
            return ()
        want = wants[index]
        for name, resource in there.items():
            need = resource.capacity if want.units == ALL else want.units
            fits = name not in taken and units[name] >= need and (left is None or need <= left)
            if fits and suits(want, resource):
                rest = go(index + 1, taken | {name}, None if left is None else left - need)
                if rest is not None:
                    return ((name, need), *rest)
        return None

    return go(0, frozenset(), room)


def union(masks: Iterable[int]) -> int:
    """Return the union of masks."""
    result = 0
    for mask in masks:
        result |= mask
    return result


def order(state: State, request: Request) -> tuple[int, int]:
    """Return what sorts a request within its group: the smaller, the sooner."""
    ageing = state.settings.ageing
    return request.asked - request.priority * ageing if ageing else -request.priority, request.seq

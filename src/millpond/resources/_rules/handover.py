"""Who is next: a step in progress decides changes, and gives what they made available to those who wait for it.

What a change makes available follows from the change (`_FREES`): nobody else has to remember it. It may be more than
the units of a grant: room in the quota of a group, what was kept for a bundle, what an exclusive request held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import takewhile
from typing import Any, Final

from millpond.resources._rules import changes
from millpond.resources._rules.changes import AnyChange
from millpond.resources._rules.line import Line, bits
from millpond.resources._rules.placement import Plan, assign, cost, needed, pick
from millpond.resources._rules.records import WAITING, Request, Resource
from millpond.resources._rules.state import State

Shares = tuple[tuple[str, int], ...]


class Turn:
    """One step in progress: what it decided so far, and which resources that may have made available."""

    __slots__ = ("_reservation", "_reservation_as_of", "author", "changes", "freed", "index", "now", "state")

    def __init__(self, state: State, now: int, author: str) -> None:
        self.state = state
        self.index = state.index
        self.now = now
        self.author = author
        self.changes: list[AnyChange] = []
        self.freed = 0
        self._reservation: tuple[Request | None, int, Shares | None] = (None, 0, None)
        self._reservation_as_of = -1  # how many changes it takes into account

    def decide(self, change: AnyChange) -> None:
        """Make a change, and note what it makes available."""
        kind = type(change)
        if kind in _FREES:
            self.freed |= _FREES[kind](self.state, change)
        self.changes.append(change)
        self.state.evolve(change, self.now)

    def next_token(self, seen: int = 0) -> int:
        """Return the token of the next grant."""
        return max(self.state.token + 1, self.now, seen + 1)

    # --- handing over ------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Give what was freed to those who wait for it, the first first."""
        state = self.state
        index = self.index
        mask, self.freed = self.freed, 0
        while index.lines and not state.settings.paused:
            if index.bundles and self.is_reserving():
                mask |= index.free  # what is reserved, and for whom, may be another thing now
            if not mask & index.free:
                return
            found = self._first_served(mask & index.free)
            if found is None:
                return
            self._give(*found)
            mask |= self.freed
            self.freed = 0

    def _first_served(self, mask: int) -> tuple[Request, Shares] | None:
        """Return the first waiter that something of `mask` may serve, and what it is given."""
        state = self.state
        index = self.index
        if index.bundles:
            reserved_for, reserved, shares = self.reservation()
            if reserved_for is not None and shares is not None:
                return reserved_for, shares  # not always the head of its line: it was overtaken long enough
            mask &= ~reserved
            if not mask:
                return None
        groups, turn = state.groups, state.turn
        found: tuple[Request, Shares] | None = None
        soonest = 0
        first: tuple[int, int, Request] | None = None
        for line in index.lines_for(mask):
            group = groups.get(line.group) if groups else None
            start = group.turn if group is not None and group.turn > turn else turn
            entry = line.heap[0]
            if first is None or start < soonest or (start == soonest and entry < first):
                shares = self.find(entry[2], mask)
                if shares is not None:
                    found = entry[2], shares
                    soonest, first = start, entry
                elif line.is_mixed and index.exclusive:
                    behind = self._behind(line, mask)
                    if behind is not None and (first is None or start < soonest or behind[0] < first):
                        found = behind[0][2], behind[1]
                        soonest, first = start, behind[0]
        return found

    def _behind(self, line: Line, mask: int) -> tuple[tuple[int, int, Request], Shares] | None:
        """Return the first of a line who can be served although its head is held back by an exclusive request.

        It asked before that one did, so it is not held back, and stands behind the head only by its priority.
        """
        head = line.heap[0][2]
        for request in line.requests():
            shares = self.find(request, mask) if request.seq < head.seq else None
            if shares is not None:
                return (self.index.order(request), request.seq, request), shares
        return None

    def _give(self, request: Request, shares: Shares) -> None:
        token = self.next_token()
        is_there = request.sure or not request.session or (request.session == self.author and not request.picky)
        if is_there:
            self.decide(changes.Held(request.id, token, shares, self.now + request.lease if request.lease else 0))
        else:
            self.decide(changes.Offered(request.id, token, shares, self.now + self.state.settings.claim))

    def find(self, request: Request, within: int = -1) -> Shares | None:
        """Return what the request can be given now, or None; a single unit only from `within`."""
        state = self.state
        index = self.index
        matcher = index.matcher(request.wants[0].selector)
        free = index.free
        if not free & matcher.mask:
            return None
        if index.bundles:
            reserved_for, reserved, shares = self.reservation()
            if reserved_for is request:
                return shares
            free &= ~reserved
        if index.exclusive_mask & free:
            free &= ~self.held_back(request, free if request.bundle else free & within)
        if request.refused:
            free &= ~index.mask(request.refused)
        room = self.room(request) if request.group else None
        if request.bundle:
            return assign(state, request, free, room)
        candidates = free & matcher.mask & within
        if not candidates or (room is not None and room < 1):
            return None
        return ((index.at(pick(state, request, matcher, candidates)).name, 1),)

    # --- exclusive requests ------------------------------------------------------------------------------------

    def held_back(self, request: Request, mask: int) -> int:
        """Return those of `mask` on which an exclusive request waits that this one must not overtake."""
        index = self.index
        wanted = 0
        for want in request.wants:
            wanted |= index.matcher(want.selector).mask
        found = 0
        for slot in bits(mask & wanted & index.exclusive_mask):
            resource = index.at(slot)
            for one in index.exclusive[resource.name].values():
                if one.seq >= request.seq:
                    break
                goes_first = one.group == request.group and index.order(request) < index.order(one)
                if not goes_first and self._could_have(one, resource):
                    found |= 1 << slot
                    break
        return found

    def _could_have(self, request: Request, resource: Resource) -> bool:
        """Return whether nothing but the units that others hold keeps an exclusive request from its resource."""
        need = needed(request.wants[0], resource)
        if need > resource.capacity or resource.name in request.refused:
            return False
        group = self.state.groups.get(request.group) if request.group else None
        return group is None or not group.quota or group.held + need <= group.quota

    # --- reserving units for bundles ---------------------------------------------------------------------------

    def overdue(self, bundles: Iterable[Request] | None = None) -> Iterator[Request]:
        """Iterate over the bundles that have been overtaken long enough, the oldest first."""
        before = self.now - self.state.settings.patience
        return takewhile(
            lambda bundle: bundle.asked <= before, self.index.bundles.values() if bundles is None else bundles
        )

    def is_reserving(self) -> bool:
        """Return whether units may have to be kept for a bundle."""
        return bool(self.index.bundles) and any(True for _ in self.overdue())

    def reservation(self) -> tuple[Request | None, int, Shares | None]:
        """Return the bundle for which units are kept now, the resources kept, and its shares if they are complete."""
        state = self.state
        if self._reservation_as_of != len(self.changes):
            self._reservation_as_of = len(self.changes)
            self._reservation = (None, 0, None)
            for bundle in self.overdue():
                room = self.room(bundle)
                usable = self.usable(bundle)
                if cost(state, bundle, usable, room) is not None:
                    free = state.index.free & usable
                    if state.index.exclusive_mask & free:
                        free &= ~self.held_back(bundle, free)
                    plan = Plan(state, bundle, free, room)
                    self._reservation = (bundle, plan.kept(), plan.shares())
                    break
        return self._reservation

    def usable(self, request: Request) -> int:
        """Return the resources that the request may be given some time, as things are."""
        return self.index.active & ~self.index.mask(request.refused)

    def room(self, request: Request) -> int | None:
        """Return how many units the quota of its group leaves for the request: None if there is no quota.

        The oldest of its bundles that is overdue has the first right to them, else single units could starve it.
        """
        group = self.state.groups.get(request.group) if request.group else None
        if group is None or not group.quota:
            return None
        promised = 0
        mine: Iterable[Request] = (bundle for bundle in self.overdue() if bundle.group == group.name)
        by_group = self.index.exclusive_by_group
        if group.name in by_group:
            mine = merge(mine, self.overdue(by_group[group.name].values()), key=lambda bundle: bundle.seq)
        for bundle in mine:
            if bundle is not request:
                promised = cost(self.state, bundle, self.usable(bundle), group.quota) or 0
            if promised or bundle is request:
                break
        return group.quota - group.held - promised


# --- what a change makes available -----------------------------------------------------------------------------


def _of_waiting(state: State, request: Request) -> int:
    """Return what others may have, when this one does not wait any more: what was kept for it, or held back."""
    if not request.bundle or request.state != WAITING:
        return 0
    name = state.index.exclusive_target(request)
    group = state.groups.get(request.group) if request.group else None
    if name is None or (group is not None and group.quota):
        return state.index.free
    return state.index.mask((name,)) & state.index.free


def _by_grant(state: State, request: Request) -> int:
    """Return what others may have, when this one is given something.

    An exclusive request of its group that has no room any more in the quota holds nobody back.
    """
    freed = _of_waiting(state, request) if request.bundle else 0
    if request.group in state.index.exclusive_by_group:
        group = state.groups.get(request.group)
        if group is not None and group.quota:
            freed |= state.index.free & state.index.exclusive_mask
    return freed


def _by_hand_over(state: State, change: changes.Held | changes.Offered) -> int:
    request = state.requests[change.id]
    return _by_grant(state, request) if request.bundle or request.group else 0


def _by_request(state: State, change: changes.Asked) -> int:
    request = change.request
    return _by_grant(state, request) if request.group and request.token else 0


def _by_end(state: State, change: changes.Ended | changes.Left) -> int:
    """Return what a request gives back: its units, and with them its part of a quota; or its place in line."""
    request = state.requests[change.id]
    if not request.shares:
        return _of_waiting(state, request)
    freed = 0
    for name, _ in request.shares:
        freed |= 1 << state.resources[name].slot
    group = state.groups.get(request.group) if request.group else None
    return freed | state.index.free if group is not None and group.quota else freed


def _by_new_wait(state: State, change: changes.Declined | changes.Returned) -> int:
    """Return everything: who is back in line may have any of it, and what it declined others may."""
    return state.index.free | state.index.mask(tuple(name for name, _ in state.requests[change.id].shares))


def _by_resource(
    state: State, change: changes.Relabelled | changes.Resized | changes.Marked | changes.Undelayed
) -> int:
    return 1 << state.resources[change.name].slot


def _by_new_resource(state: State, change: changes.Added) -> int:
    return 1 << change.resource.slot


def _by_operator(state: State, change: Any) -> int:
    """Return everything: this may lift what held others back elsewhere.

    A bundle that had units, or the room of its group, kept for it may be beyond help now.
    """
    return state.index.free


def _by_operator_on_a_resource(state: State, change: Any) -> int:
    return state.index.free | _by_resource(state, change)


_FREES: Final[dict[type[changes.Change], Callable[[State, Any], int]]] = {
    changes.Asked: _by_request,
    changes.Offered: _by_hand_over,
    changes.Held: _by_hand_over,
    changes.Ended: _by_end,
    changes.Left: _by_end,
    changes.Declined: _by_new_wait,
    changes.Returned: _by_new_wait,
    changes.Added: _by_new_resource,
    changes.Undelayed: _by_resource,
    changes.Relabelled: _by_operator_on_a_resource,
    changes.Resized: _by_operator_on_a_resource,
    changes.Marked: _by_operator_on_a_resource,
    changes.Removed: _by_operator,
    changes.Configured: _by_operator,
    changes.GroupSet: _by_operator,
}
"""What may be available to others by a change: resources that are free now, or after it. Asked before it is made."""

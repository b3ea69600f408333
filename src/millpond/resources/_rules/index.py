"""The indexes of a pool: what makes every question about its records quick, and can be derived from them.

A state keeps one (`State.index`) and tells it of every change of a record; `load` builds it again. Nothing of it is in
the image, and a copy of the rules elsewhere needs none of it.

Resources are bits: `free` has a bit for each that can be lent now, a `Matcher` one for each that suits a selector, so
"the first free one that suits" is two machine words of work even among a thousand.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final

from millpond.resources._rules.line import Line, LineKey, Matcher
from millpond.resources._rules.records import ACTIVE, AWAY, REMOVING, WAITING, Request, Resource

MATCHERS: Final = 2000


class Index:
    """What can be derived from the resources and requests of a pool. Read it freely; only a state changes it."""

    __slots__ = (
        "_due",
        "_most",
        "_requests",
        "_resources",
        "_suitors",
        "active",
        "ageing",
        "bundles",
        "common",
        "exclusive",
        "exclusive_by_group",
        "exclusive_mask",
        "free",
        "lines",
        "matchers",
        "named",
        "present",
        "sessions",
        "slots",
        "tokens",
    )

    def __init__(self, resources: dict[str, Resource], requests: dict[str, Request]) -> None:
        self._resources = resources
        self._requests = requests
        self.ageing = 0  # of the settings
        self.slots: list[Resource | None] = []
        self.free = 0  # active, not delayed, with free units
        self.active = 0
        self.present = 0  # not being removed
        self.tokens: dict[int, str] = {}
        self.sessions: dict[str, dict[str, None]] = {}
        self.matchers: dict[str, Matcher] = {}
        self.named: dict[str, Matcher] = {}  # those of one resource, by its name
        self.common: dict[str, Matcher] = {}  # the others
        self.lines: dict[LineKey, Line] = {}
        self.bundles: dict[str, Request] = {}  # that wait, in the order of asking; without the exclusive ones
        self.exclusive: dict[str, OrderedDict[str, Request]] = {}  # those that wait, in this order, by resource
        self.exclusive_by_group: dict[str, OrderedDict[str, Request]] = {}  # the same, for those that have a group
        self.exclusive_mask = 0  # the resources for which there is an exclusive one
        self._due: list[tuple[int, int, str]] = []
        self._most = MATCHERS
        self._suitors: dict[int, list[Matcher]] = {}  # slot -> the common ones that it suits; emptied when they change

    # --- questions ---------------------------------------------------------------------------------------------

    def matcher(self, selector: str) -> Matcher:
        """Return the matcher of a selector."""
        found = self.matchers.get(selector)
        if found is None:
            if len(self.matchers) >= self._most + len(self._resources):
                self._forget_matchers()
            found = self.matchers[selector] = Matcher(selector, self._resources)
            if found.name is None:
                self.common[selector] = found
                self._suitors = {}
            else:
                self.named[found.name] = found
        return found

    def at(self, slot: int) -> Resource:
        """Return the resource of a slot."""
        resource = self.slots[slot]
        assert resource is not None
        return resource

    def mask(self, names: tuple[str, ...]) -> int:
        """Return the bits of these resources."""
        mask = 0
        for name in names:
            resource = self._resources.get(name)
            if resource is not None:
                mask |= 1 << resource.slot
        return mask

    def order(self, request: Request) -> int:
        """Return what sorts a request within its group: the smaller, the sooner."""
        ageing = self.ageing
        return request.asked - request.priority * ageing if ageing else -request.priority

    def exclusive_target(self, request: Request) -> str | None:
        """Return the one resource, asked for by name, of which the request wants several units; else None."""
        if not request.bundle or len(request.wants) > 1 or request.wants[0].count > 1:
            return None
        return self.matcher(request.wants[0].selector).name

    def due(self) -> int | None:
        """Return the time at which something ends by itself, if anything does."""
        heap = self._due
        while heap:
            time, kind, key = heap[0]
            if self._is_due(time, kind, key):
                return time
            heapq.heappop(heap)
        return None

    def next_due(self, now: int) -> tuple[int, str] | None:
        """Take off the next thing that is over: `(0, request id)` or `(1, resource)`."""
        due = self.due() if self._due else None
        if due is None or due > now:
            return None
        _, kind, key = heapq.heappop(self._due)
        return kind, key

    def lines_for(self, mask: int) -> list[Line]:
        """Return the lines that one of these resources may serve; a line of a bundle may be there several times."""
        if mask & (mask - 1):  # several
            wanted = [one for one in self.common.values() if one.lines and one.mask & mask]
            wanted += [one for one in self.named.values() if one.lines and one.mask & mask]
            return [line for one in wanted for line in one.lines.values()]
        slot = mask.bit_length() - 1
        suitors = self._suitors.get(slot)
        if suitors is None:
            suitors = self._suitors[slot] = [one for one in self.common.values() if one.mask & mask]
        lines = [line for one in suitors for line in one.lines.values()]
        named = self.named.get(self.at(slot).name) if self.named else None
        if named is not None:
            lines += named.lines.values()
        return lines

    def _is_due(self, time: int, kind: int, key: str) -> bool:
        if kind:
            resource = self._resources.get(key)
            return resource is not None and resource.delayed == time
        request = self._requests.get(key)
        if request is None:
            return False
        return request.until == time or (request.deadline == time and request.state in (WAITING, AWAY))

    # --- resources ---------------------------------------------------------------------------------------------

    def add(self, resource: Resource) -> None:
        """Add a resource."""
        self.place(resource)
        self.learn(resource)
        self.refresh(resource)
        if resource.name in self.exclusive:
            self.exclusive_mask |= 1 << resource.slot

    def place(self, resource: Resource) -> None:
        """Put a resource into its slot."""
        while len(self.slots) <= resource.slot:
            self.slots.append(None)
        self.slots[resource.slot] = resource

    def remove(self, resource: Resource) -> None:
        """Remove a resource."""
        self._suitors = {}
        for matcher in self.matchers.values():
            matcher.forget(resource)
        keep = ~(1 << resource.slot)
        self.free &= keep
        self.active &= keep
        self.present &= keep
        self.exclusive_mask &= keep
        self.slots[resource.slot] = None

    def learn(self, resource: Resource) -> None:
        """Match a resource again: it is new, or has other labels."""
        self._suitors = {}
        for matcher in self.matchers.values():
            matcher.learn(resource)

    def refresh(self, resource: Resource) -> None:
        """Set the bits of a resource by its state and its units."""
        bit = 1 << resource.slot
        active = resource.state == ACTIVE
        self.active = self.active | bit if active else self.active & ~bit
        self.present = self.present & ~bit if resource.state == REMOVING else self.present | bit
        free = active and not resource.delayed and resource.used < resource.capacity
        self.free = self.free | bit if free else self.free & ~bit

    def delay(self, resource: Resource) -> None:
        """Note when a resource that is lent again later is due."""
        heapq.heappush(self._due, (resource.delayed, 1, resource.name))

    # --- requests ----------------------------------------------------------------------------------------------

    def list_session(self, request: Request) -> None:
        """Add a request to those of its session."""
        self.sessions.setdefault(request.session, {})[request.id] = None

    def unlist_session(self, request: Request) -> None:
        """Remove a request from those of its session."""
        mine = self.sessions[request.session]
        del mine[request.id]
        if not mine:
            del self.sessions[request.session]

    def join(self, request: Request) -> None:
        """Add a request that waits to its line."""
        key = (request.wants, request.group, request.refused)
        line = self.lines.get(key)
        if line is None:
            line = self._line(key)
        line.push(self.order(request), request)
        if not request.bundle:
            return
        name = self.exclusive_target(request)
        if name is None:
            is_last = not self.bundles or next(reversed(self.bundles.values())).seq < request.seq
            self.bundles[request.id] = request
            if not is_last:
                self.bundles = dict(sorted(self.bundles.items(), key=lambda item: item[1].seq))
            return
        _enlist(self.exclusive, name, request)
        if request.group:
            _enlist(self.exclusive_by_group, request.group, request)
        if name in self._resources:
            self.exclusive_mask |= 1 << self._resources[name].slot

    def _line(self, key: LineKey) -> Line:
        line = self.lines[key] = Line(key)
        for want in key[0]:
            self.matcher(want.selector).lines[key] = line
        return line

    def part(self, request: Request) -> None:
        """Remove a request that waits from its line."""
        key = (request.wants, request.group, request.refused)
        line = self.lines[key]
        line.leave(request)
        if not line.size:
            del self.lines[key]
            for want in request.wants:
                self.matchers[want.selector].lines.pop(key, None)
        if not request.bundle:
            return
        name = self.exclusive_target(request)
        if name is None:
            del self.bundles[request.id]
            return
        _strike(self.exclusive, name, request)
        if request.group:
            _strike(self.exclusive_by_group, request.group, request)
        if name not in self.exclusive and name in self._resources:
            self.exclusive_mask &= ~(1 << self._resources[name].slot)

    def line_up(self) -> None:
        """Build the lines of all that wait again."""
        self.lines.clear()
        self.bundles.clear()
        self.exclusive.clear()
        self.exclusive_by_group.clear()
        self.exclusive_mask = 0
        for matcher in self.matchers.values():
            matcher.lines.clear()
        for request in sorted(self._requests.values(), key=lambda one: one.seq):
            if request.state == WAITING:
                self.join(request)

    def schedule(self, request: Request) -> None:
        """Note when a request is due."""
        heap = self._due
        if request.until:
            heapq.heappush(heap, (request.until, 0, request.id))
        if request.deadline and (request.state == WAITING or request.state == AWAY):
            heapq.heappush(heap, (request.deadline, 0, request.id))
        if len(heap) > 256 and len(heap) > 4 * (len(self._requests) + len(self._resources)):
            self._due = [entry for entry in set(heap) if self._is_due(*entry)]
            heapq.heapify(self._due)

    def _forget_matchers(self) -> None:
        """Keep the matchers for which somebody waits."""
        self.matchers = {text: matcher for text, matcher in self.matchers.items() if matcher.lines}
        self.named = {name: matcher for name, matcher in self.named.items() if matcher.lines}
        self.common = {text: matcher for text, matcher in self.common.items() if matcher.lines}
        self._suitors = {}
        self._most = max(MATCHERS, 2 * len(self.matchers))


def _enlist(lists: dict[str, OrderedDict[str, Request]], key: str, request: Request) -> None:
    """Put a request into the list of this key, which is in the order of asking."""
    found = lists.setdefault(key, OrderedDict())
    is_last = not found or next(reversed(found.values())).seq < request.seq
    found[request.id] = request
    if not is_last:
        lists[key] = OrderedDict(sorted(found.items(), key=lambda item: item[1].seq))


def _strike(lists: dict[str, OrderedDict[str, Request]], key: str, request: Request) -> None:
    found = lists[key]
    del found[request.id]
    if not found:
        del lists[key]

"""The state of a resource pool: its records, and the indexes that make every question about them quick.

Only `evolve` changes a state, one decided change at a time; it decides nothing. The rules (`_rules.step`) and the
replicas that follow them share it, so both always hold the same records. Indexes are derived: they are not in the
image, and `load` builds them again.

Resources are bits: `free` has a bit for each that can be lent now, a `Matcher` one for each that suits a selector, so
"the first free one that suits" is two machine words of work even among a thousand.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from millpond.resources._rules import changes
from millpond.resources._rules.image import Image
from millpond.resources._rules.line import Line, LineKey, Matcher
from millpond.resources._rules.records import (
    ACTIVE,
    ALL,
    AWAY,
    HELD,
    OFFERED,
    REMOVING,
    WAITING,
    Ending,
    Group,
    Request,
    Resource,
    Settings,
)

REMEMBERED: Final = 1000
"""Endings that are remembered, so that a stale token can be told what became of it."""
ACTS: Final = 200
"""Acts of operators that are remembered."""
GROUPS: Final = 1000
MATCHERS: Final = 2000
STRIDE: Final = 1_000_000
"""Virtual time that one unit costs a group of weight 1."""
FINAL: Final = frozenset({"released"})
"""Endings after which a chosen request id has had its effect. After any other it may ask again."""


class State:
    """One pool. Read its attributes freely, change it by `evolve` only."""

    __slots__ = (
        "_due",
        "_most",
        "_suitors",
        "active",
        "acts",
        "bundles",
        "common",
        "exclusive",
        "free",
        "grants",
        "groups",
        "guarded",
        "lines",
        "matchers",
        "named",
        "past",
        "present",
        "requests",
        "resources",
        "seq",
        "sessions",
        "settings",
        "slots",
        "token",
        "tokens",
        "turn",
        "used",
        "writers",
    )

    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}
        self.requests: dict[str, Request] = {}
        self.groups: dict[str, Group] = {}
        self.settings = Settings()
        self.seq = 0
        self.token = 0
        self.turn = 0  # virtual time of the fair share
        self.grants = 0
        self.past: OrderedDict[int, Ending] = OrderedDict()  # by token
        self.used: OrderedDict[str, Ending] = OrderedDict()  # by chosen id
        self.acts: deque[changes.Act] = deque(maxlen=ACTS)
        # derived
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
        self.writers: dict[str, OrderedDict[str, Request]] = {}  # the same, by group, for those that have one
        self.guarded = 0  # the resources for which there is an exclusive one
        self._due: list[tuple[int, int, str]] = []
        self._most = MATCHERS
        self._suitors: dict[int, list[Matcher]] = {}  # slot -> the common ones that it suits; emptied when they change

    # --- questions ---------------------------------------------------------------------------------------------

    def matcher(self, selector: str) -> Matcher:
        """Return who suits a selector."""
        found = self.matchers.get(selector)
        if found is None:
            if len(self.matchers) >= self._most + len(self.resources):
                self._forget_matchers()
            found = self.matchers[selector] = Matcher(selector, self.resources)
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
            resource = self.resources.get(name)
            if resource is not None:
                mask |= 1 << resource.slot
        return mask

    def order(self, request: Request) -> int:
        """Return what sorts a request within its group: the smaller, the sooner."""
        ageing = self.settings.ageing
        return request.asked - request.priority * ageing if ageing else -request.priority

    def alone(self, request: Request) -> str | None:
        """Return the one resource, asked for by name, of which the request wants several units; else None."""
        if not request.bundle or len(request.wants) > 1 or request.wants[0].count > 1:
            return None
        return self.matcher(request.wants[0].selector).name

    def start(self, group: str) -> int:
        """Return the virtual time at which a group is served next."""
        found = self.groups.get(group)
        return self.turn if found is None else max(found.turn, self.turn)

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
        due = self.due()
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
            resource = self.resources.get(key)
            return resource is not None and resource.delayed == time
        request = self.requests.get(key)
        if request is None:
            return False
        return request.until == time or (request.deadline == time and request.state in (WAITING, AWAY))

    # --- changes -----------------------------------------------------------------------------------------------

    def evolve(self, change: changes.AnyChange, now: int) -> None:
        """Apply a change that was decided at `now`."""
        _EVOLVE[type(change)](self, change, now)

    def _asked(self, change: changes.Asked, now: int) -> None:
        request = change.request.__copy__()  # type: ignore[attr-defined]  # the change is history, the request goes on
        self.requests[request.id] = request
        self.sessions.setdefault(request.session, {})[request.id] = None
        self.seq = max(self.seq, request.seq)
        self.token = max(self.token, change.seen)
        if request.by:
            self.acts.append(changes.Act(now, change))
        if request.state == WAITING:
            self._join(request)
        else:
            self._occupy(request)
        self._schedule(request)

    def _given(self, change: changes.Offered | changes.Held, now: int) -> None:
        request = self.requests[change.id]
        self._part(request)
        request.state = OFFERED if type(change) is changes.Offered else HELD
        request.token = change.token
        request.shares = change.shares
        request.since = now
        request.until = change.until
        self._occupy(request)
        self._schedule(request)

    def _claimed(self, change: changes.Claimed, now: int) -> None:
        request = self.requests[change.id]
        request.state = HELD
        request.since = now
        request.until = change.until
        self._schedule(request)

    def _left(self, change: changes.Left, now: int) -> None:
        request = self.requests[change.id]
        self._vacate(request, now)
        request.state = AWAY
        request.until = change.until
        request.suspect = change.reason
        self._schedule(request)

    def _returned(self, change: changes.Returned, now: int) -> None:
        request = self.requests[change.id]
        self._move(request, change.session)
        self.token = max(self.token, change.seen)
        request.holder = change.holder
        request.state = WAITING
        request.until = 0
        request.suspect = ""
        self._join(request)
        self._schedule(request)

    def _declined(self, change: changes.Declined, now: int) -> None:
        request = self.requests[change.id]
        self._vacate(request, now)
        request.state = WAITING
        request.until = 0
        request.refused = change.refused
        self._join(request)
        self._schedule(request)

    def _renewed(self, change: changes.Renewed, now: int) -> None:
        request = self.requests[change.id]
        request.until = change.until
        request.suspect = ""
        self._schedule(request)

    def _adopted(self, change: changes.Adopted, now: int) -> None:
        request = self.requests[change.id]
        if change.by:
            self.acts.append(changes.Act(now, change, request.shares))
        self._remember(Ending(request.id, request.token, change.how, change.by, change.reason, now, request.session))
        del self.tokens[request.token]
        self._move(request, change.session)
        request.holder = change.holder
        request.token = change.token
        request.lease = change.lease
        request.until = change.until
        request.since = now
        request.reason = change.reason or request.reason
        request.suspect = ""
        request.passed = False
        self.token = change.token
        self.tokens[change.token] = request.id
        self._schedule(request)

    def _ended(self, change: changes.Ended, now: int) -> None:
        request = self.requests.pop(change.id)
        if change.by:
            self.acts.append(changes.Act(now, change))
        ending = Ending(
            request.id, request.token, change.how, change.by, change.reason, now, request.session, request.chosen
        )
        shares = request.shares
        self._vacate(request, now)
        if change.delayed:
            for name, _ in shares:
                resource = self.resources[name]
                resource.delayed = max(resource.delayed, change.delayed)
                heapq.heappush(self._due, (resource.delayed, 1, name))
                self._refresh(resource)
        request.state = ""  # entries in heaps see that it is gone
        self._unlist(request)
        self._remember(ending)

    def _suspected(self, change: changes.Suspected, now: int) -> None:
        self.requests[change.id].suspect = change.why

    def _passed(self, change: changes.Passed, now: int) -> None:
        self.requests[change.id].passed = True

    def _added(self, change: changes.Added, now: int) -> None:
        resource = change.resource.__copy__()  # type: ignore[attr-defined]
        while len(self.slots) <= resource.slot:
            self.slots.append(None)
        self.slots[resource.slot] = resource
        self.resources[resource.name] = resource
        self._suitors = {}
        for matcher in self.matchers.values():
            matcher.learn(resource)
        self._refresh(resource)
        if resource.name in self.exclusive:
            self.guarded |= 1 << resource.slot

    def _removed(self, change: changes.Removed, now: int) -> None:
        resource = self.resources.pop(change.name)
        self._suitors = {}
        for matcher in self.matchers.values():
            matcher.forget(resource)
        keep = ~(1 << resource.slot)
        self.free &= keep
        self.active &= keep
        self.present &= keep
        self.guarded &= keep
        self.slots[resource.slot] = None

    def _relabelled(self, change: changes.Relabelled, now: int) -> None:
        resource = self.resources[change.name]
        resource.labels = change.labels
        self._suitors = {}
        for matcher in self.matchers.values():
            matcher.learn(resource)

    def _resized(self, change: changes.Resized, now: int) -> None:
        resource = self.resources[change.name]
        resource.capacity = change.capacity
        for request in self.requests.values():
            if any(name == change.name for name, _ in request.shares):
                self._fill(request, resource)
        self._refresh(resource)

    def _marked(self, change: changes.Marked, now: int) -> None:
        resource = self.resources[change.name]
        resource.state = change.state
        resource.note = "" if change.state == ACTIVE else change.reason
        self._refresh(resource)

    def _configured(self, change: changes.Configured, now: int) -> None:
        before, self.settings = self.settings, change.settings
        if before.ageing != self.settings.ageing:
            self._line_up()

    def _group_set(self, change: changes.GroupSet, now: int) -> None:
        group = self._group(change.name)
        group.weight = change.weight
        group.quota = change.quota

    def _undelayed(self, change: changes.Undelayed, now: int) -> None:
        resource = self.resources[change.name]
        resource.delayed = 0
        self._refresh(resource)

    def _buried(self, change: changes.Buried, now: int) -> None:
        """Change nothing: what it held has ended by itself. This is for those who listen."""

    # --- indexes -----------------------------------------------------------------------------------------------

    def _join(self, request: Request) -> None:
        key = (request.wants, request.group, request.refused)
        line = self.lines.get(key)
        if line is None:
            line = self._line(key)
        line.push(self.order(request), request)
        if not request.bundle:
            return
        name = self.alone(request)
        if name is None:
            is_last = not self.bundles or next(reversed(self.bundles.values())).seq < request.seq
            self.bundles[request.id] = request
            if not is_last:
                self.bundles = dict(sorted(self.bundles.items(), key=lambda item: item[1].seq))
            return
        _enlist(self.exclusive, name, request)
        if request.group:
            _enlist(self.writers, request.group, request)
        if name in self.resources:
            self.guarded |= 1 << self.resources[name].slot

    def _line(self, key: LineKey) -> Line:
        line = self.lines[key] = Line(key)
        for want in key[0]:
            self.matcher(want.selector).lines[key] = line
        return line

    def _part(self, request: Request) -> None:
        """Let one who waits leave its line."""
        key = (request.wants, request.group, request.refused)
        line = self.lines[key]
        line.leave(request)
        if not line.size:
            del self.lines[key]
            for want in request.wants:
                self.matchers[want.selector].lines.pop(key, None)
        if not request.bundle:
            return
        name = self.alone(request)
        if name is None:
            del self.bundles[request.id]
            return
        _strike(self.exclusive, name, request)
        if request.group:
            _strike(self.writers, request.group, request)
        if name not in self.exclusive and name in self.resources:
            self.guarded &= ~(1 << self.resources[name].slot)

    def _line_up(self) -> None:
        self.lines.clear()
        self.bundles.clear()
        self.exclusive.clear()
        self.writers.clear()
        self.guarded = 0
        for matcher in self.matchers.values():
            matcher.lines.clear()
        for request in sorted(self.requests.values(), key=lambda one: one.seq):
            if request.state == WAITING:
                self._join(request)

    def _forget_matchers(self) -> None:
        """Keep the matchers for which somebody waits."""
        self.matchers = {text: matcher for text, matcher in self.matchers.items() if matcher.lines}
        self.named = {name: matcher for name, matcher in self.named.items() if matcher.lines}
        self.common = {text: matcher for text, matcher in self.common.items() if matcher.lines}
        self._suitors = {}
        self._most = max(MATCHERS, 2 * len(self.matchers))

    def _unlist(self, request: Request) -> None:
        """Drop a request from the index by session."""
        mine = self.sessions[request.session]
        del mine[request.id]
        if not mine:
            del self.sessions[request.session]

    def _move(self, request: Request, session: str) -> None:
        self._unlist(request)
        request.session = session
        self.sessions.setdefault(session, {})[request.id] = None

    def _occupy(self, request: Request) -> None:
        self.tokens[request.token] = request.id
        self.token = max(self.token, request.token)
        self.grants += 1
        total = 0
        for name, units in request.shares:
            resource = self.resources[name]
            resource.used += units
            total += units
            if resource.used >= resource.capacity:
                self.free &= ~(1 << resource.slot)
        if request.group or self.groups:
            group = self._group(request.group)
            group.held += total if request.group else 0  # the others have no quota
            start = max(group.turn, self.turn)
            self.turn = start
            group.turn = start + total * STRIDE // group.weight

    def _vacate(self, request: Request, now: int) -> None:
        """Take back what a request holds or was offered, or its place in line."""
        if request.state == WAITING:
            self._part(request)
        if request.state != HELD and request.state != OFFERED:
            return
        del self.tokens[request.token]
        total = 0
        for name, units in request.shares:
            resource = self.resources[name]
            resource.used -= units
            total += units
            if request.state == HELD:
                resource.freed = now
                resource.last = request.holder.id
            if resource.state == ACTIVE and not resource.delayed and resource.used < resource.capacity:
                self.free |= 1 << resource.slot
        if request.group:
            self._group(request.group).held -= total
        if request.state == OFFERED:
            request.token = request.since = 0
        request.shares = ()

    def _fill(self, request: Request, resource: Resource) -> None:
        """Let who has the whole of a resource have the whole of it again, now that it has another size."""
        wants = [want for want in request.wants for _ in range(want.count)]
        shares = []
        for want, (name, units) in zip(wants, request.shares, strict=True):
            now = resource.capacity if name == resource.name and want.units == ALL else units
            resource.used += now - units
            if request.group:
                self._group(request.group).held += now - units
            shares.append((name, now))
        request.shares = tuple(shares)

    def _refresh(self, resource: Resource) -> None:
        bit = 1 << resource.slot
        active = resource.state == ACTIVE
        self.active = self.active | bit if active else self.active & ~bit
        self.present = self.present & ~bit if resource.state == REMOVING else self.present | bit
        free = active and not resource.delayed and resource.used < resource.capacity
        self.free = self.free | bit if free else self.free & ~bit

    def _group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= GROUPS:
                idle = [one for one in self.groups.values() if not one.held and not one.quota and one.weight == 1]
                for one in [one for one in idle if one.turn <= self.turn] or idle:
                    del self.groups[one.name]
            group = self.groups[name] = Group(name)
        return group

    def _schedule(self, request: Request) -> None:
        heap = self._due
        if request.until:
            heapq.heappush(heap, (request.until, 0, request.id))
        if request.deadline and (request.state == WAITING or request.state == AWAY):
            heapq.heappush(heap, (request.deadline, 0, request.id))
        if len(heap) > 256 and len(heap) > 4 * (len(self.requests) + len(self.resources)):
            self._due = [entry for entry in set(heap) if self._is_due(*entry)]
            heapq.heapify(self._due)

    def _remember(self, ending: Ending) -> None:
        if ending.token:
            self.past[ending.token] = ending
            if len(self.past) > REMEMBERED:
                self.past.popitem(last=False)
        if ending.chosen and ending.how in FINAL:
            self.used[ending.id] = ending
            if len(self.used) > REMEMBERED:
                self.used.popitem(last=False)

    # --- images ------------------------------------------------------------------------------------------------

    def image(self) -> Image:
        """Return the whole pool as records. They are the live ones: encode them before the next change."""
        return Image(
            self.seq,
            self.token,
            self.turn,
            self.settings,
            list(self.resources.values()),
            list(self.requests.values()),
            list(self.groups.values()),
            list(self.past.values()),
            {},
            self.grants,
            list(self.used.values()),
            list(self.acts),
        )

    @classmethod
    def load(cls, image: Image) -> State:
        """Make a state of an image (whose records it takes over)."""
        state = cls()
        state.settings = image.settings
        for resource in image.resources:
            resource.used = 0
            while len(state.slots) <= resource.slot:
                state.slots.append(None)
            state.slots[resource.slot] = resource
            state.resources[resource.name] = resource
            if resource.delayed:
                state._due.append((resource.delayed, 1, resource.name))
        for request in image.requests:
            state.requests[request.id] = request
            state.sessions.setdefault(request.session, {})[request.id] = None
            if request.token and request.state in (HELD, OFFERED):
                state._occupy(request)
        state.groups = {group.name: group for group in image.groups}
        for group in image.groups:
            group.held = sum(
                units for one in image.requests for _, units in one.shares if one.group == group.name != ""
            )
        for resource in image.resources:
            state._refresh(resource)
        state._line_up()
        for request in image.requests:
            state._schedule(request)
        state.past.update((ending.token, ending) for ending in image.endings)
        state.used.update((ending.id, ending) for ending in image.used)
        state.acts.extend(image.acts)
        heapq.heapify(state._due)
        state.seq, state.token, state.turn, state.grants = image.seq, image.token, image.turn, image.grants
        return state


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


def _noting(evolve: Callable[[State, Any, int], None]) -> Callable[[State, Any, int], None]:
    """Return what applies a change, and keeps it if it is an operator's."""

    def noting(state: State, change: Any, now: int) -> None:
        if change.by:
            state.acts.append(changes.Act(now, change))
        evolve(state, change, now)

    return noting


_EVOLVE: dict[type[changes.Change], Callable[[State, Any, int], None]] = {
    changes.Asked: State._asked,
    changes.Offered: State._given,
    changes.Held: State._given,
    changes.Claimed: State._claimed,
    changes.Left: State._left,
    changes.Returned: State._returned,
    changes.Declined: State._declined,
    changes.Renewed: State._renewed,
    changes.Adopted: State._adopted,
    changes.Ended: State._ended,
    changes.Suspected: State._suspected,
    changes.Added: State._added,
    changes.Removed: _noting(State._removed),
    changes.Relabelled: _noting(State._relabelled),
    changes.Resized: _noting(State._resized),
    changes.Marked: _noting(State._marked),
    changes.Configured: _noting(State._configured),
    changes.GroupSet: _noting(State._group_set),
    changes.Undelayed: State._undelayed,
    changes.Buried: State._buried,
    changes.Passed: State._passed,
}

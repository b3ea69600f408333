"""The state of a resource pool: its records, and what each change does to them.

Only `evolve` changes a state, one decided change at a time; it decides nothing. The rules (`_rules.step`) and the
replicas that follow them share it, so both always hold the same records. What can be derived from them is in `index`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from millpond.resources._rules import changes
from millpond.resources._rules.image import Image
from millpond.resources._rules.index import Index
from millpond.resources._rules.records import (
    ACTIVE,
    ALL,
    AWAY,
    HELD,
    OFFERED,
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
STRIDE: Final = 1_000_000
"""Virtual time that one unit costs a group of weight 1."""
FINAL: Final = frozenset({"released"})
"""Endings after which a chosen request id has had its effect. After any other it may ask again."""


class State:
    """One pool. Read its attributes freely, change it by `evolve` only."""

    __slots__ = (
        "acts",
        "grants",
        "groups",
        "index",
        "past",
        "requests",
        "resources",
        "seq",
        "settings",
        "token",
        "turn",
        "used",
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
        self.index = Index(self.resources, self.requests)

    # --- questions ---------------------------------------------------------------------------------------------

    def start(self, group: str) -> int:
        """Return the virtual time at which a group is served next."""
        found = self.groups.get(group)
        return self.turn if found is None else max(found.turn, self.turn)

    def due(self) -> int | None:
        """Return the time at which something ends by itself, if anything does."""
        return self.index.due()

    # --- changes -----------------------------------------------------------------------------------------------

    def evolve(self, change: changes.AnyChange, now: int) -> None:
        """Apply a change that was decided at `now`."""
        _EVOLVE[type(change)](self, change, now)

    def _asked(self, change: changes.Asked, now: int) -> None:
        request = change.request.__copy__()  # type: ignore[attr-defined]  # the change is history, the request goes on
        index = self.index
        self.requests[request.id] = request
        index.list_session(request)
        self.seq = max(self.seq, request.seq)
        self.token = max(self.token, change.seen)
        if request.by:
            self.acts.append(changes.Act(now, change))
        if request.state == WAITING:
            index.join(request)
        else:
            self._occupy(request)
        if request.until or request.deadline:
            index.schedule(request)

    def _given(self, change: changes.Offered | changes.Held, now: int) -> None:
        request = self.requests[change.id]
        self.index.part(request)
        request.state = OFFERED if type(change) is changes.Offered else HELD
        request.token = change.token
        request.shares = change.shares
        request.since = now
        request.until = change.until
        self._occupy(request)
        if change.until:
            self.index.schedule(request)

    def _claimed(self, change: changes.Claimed, now: int) -> None:
        request = self.requests[change.id]
        request.state = HELD
        request.since = now
        request.until = change.until
        self.index.schedule(request)

    def _left(self, change: changes.Left, now: int) -> None:
        request = self.requests[change.id]
        self._vacate(request, now)
        request.state = AWAY
        request.until = change.until
        request.suspect = change.reason
        self.index.schedule(request)

    def _returned(self, change: changes.Returned, now: int) -> None:
        request = self.requests[change.id]
        self._move(request, change.session)
        self.token = max(self.token, change.seen)
        request.holder = change.holder
        request.state = WAITING
        request.until = 0
        request.suspect = ""
        self.index.join(request)
        self.index.schedule(request)

    def _declined(self, change: changes.Declined, now: int) -> None:
        request = self.requests[change.id]
        self._vacate(request, now)
        request.state = WAITING
        request.until = 0
        request.refused = change.refused
        self.index.join(request)
        self.index.schedule(request)

    def _renewed(self, change: changes.Renewed, now: int) -> None:
        request = self.requests[change.id]
        request.until = change.until
        request.suspect = ""
        self.index.schedule(request)

    def _adopted(self, change: changes.Adopted, now: int) -> None:
        request = self.requests[change.id]
        if change.by:
            self.acts.append(changes.Act(now, change, request.shares))
        self._remember(Ending(request.id, request.token, change.how, change.by, change.reason, now, request.session))
        del self.index.tokens[request.token]
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
        self.index.tokens[change.token] = request.id
        self.index.schedule(request)

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
                self.index.delay(resource)
                self.index.refresh(resource)
        request.state = ""  # entries in heaps see that it is gone
        self.index.unlist_session(request)
        self._remember(ending)

    def _suspected(self, change: changes.Suspected, now: int) -> None:
        self.requests[change.id].suspect = change.why

    def _passed(self, change: changes.Passed, now: int) -> None:
        self.requests[change.id].passed = True

    def _added(self, change: changes.Added, now: int) -> None:
        resource = change.resource.__copy__()  # type: ignore[attr-defined]
        self.resources[resource.name] = resource
        self.index.add(resource)

    def _removed(self, change: changes.Removed, now: int) -> None:
        self.index.remove(self.resources.pop(change.name))

    def _relabelled(self, change: changes.Relabelled, now: int) -> None:
        resource = self.resources[change.name]
        resource.labels = change.labels
        self.index.learn(resource)

    def _resized(self, change: changes.Resized, now: int) -> None:
        resource = self.resources[change.name]
        resource.capacity = change.capacity
        for request in self.requests.values():
            if any(name == change.name for name, _ in request.shares):
                self._fill(request, resource)
        self.index.refresh(resource)

    def _marked(self, change: changes.Marked, now: int) -> None:
        resource = self.resources[change.name]
        resource.state = change.state
        resource.note = "" if change.state == ACTIVE else change.reason
        self.index.refresh(resource)

    def _configured(self, change: changes.Configured, now: int) -> None:
        before, self.settings = self.settings, change.settings
        if before.ageing != self.settings.ageing:
            self.index.ageing = self.settings.ageing
            self.index.line_up()

    def _group_set(self, change: changes.GroupSet, now: int) -> None:
        group = self._group(change.name)
        group.weight = change.weight
        group.quota = change.quota

    def _undelayed(self, change: changes.Undelayed, now: int) -> None:
        resource = self.resources[change.name]
        resource.delayed = 0
        self.index.refresh(resource)

    def _buried(self, change: changes.Buried, now: int) -> None:
        """Change nothing: what it held has ended by itself. This is for those who listen."""

    # --- units, endings ----------------------------------------------------------------------------------------

    def _move(self, request: Request, session: str) -> None:
        self.index.unlist_session(request)
        request.session = session
        self.index.list_session(request)

    def _occupy(self, request: Request) -> None:
        index = self.index
        index.tokens[request.token] = request.id
        self.token = max(self.token, request.token)
        self.grants += 1
        total = 0
        for name, units in request.shares:
            resource = self.resources[name]
            resource.used += units
            total += units
            if resource.used >= resource.capacity:
                index.free &= ~(1 << resource.slot)
        if request.group or self.groups:
            group = self._group(request.group)
            group.held += total if request.group else 0  # the others have no quota
            start = max(group.turn, self.turn)
            self.turn = start
            group.turn = start + total * STRIDE // group.weight

    def _vacate(self, request: Request, now: int) -> None:
        """Take back what a request holds or was offered, or its place in line."""
        if request.state == WAITING:
            self.index.part(request)
        if request.state != HELD and request.state != OFFERED:
            return
        index = self.index
        del index.tokens[request.token]
        total = 0
        for name, units in request.shares:
            resource = self.resources[name]
            resource.used -= units
            total += units
            if request.state == HELD:
                resource.freed = now
                resource.last = request.holder.id
            if resource.state == ACTIVE and not resource.delayed and resource.used < resource.capacity:
                index.free |= 1 << resource.slot
        if request.group:
            self._group(request.group).held -= total
        if request.state == OFFERED:
            request.token = request.since = 0
        request.shares = ()

    def _fill(self, request: Request, resource: Resource) -> None:
        """Give who has the whole of a resource the whole of it again, now that it has another size."""
        wants = [want for want in request.wants for _ in range(want.count)]
        shares = []
        for want, (name, units) in zip(wants, request.shares, strict=True):
            now = resource.capacity if name == resource.name and want.units == ALL else units
            resource.used += now - units
            if request.group:
                self._group(request.group).held += now - units
            shares.append((name, now))
        request.shares = tuple(shares)

    def _group(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= GROUPS:
                idle = [one for one in self.groups.values() if not one.held and not one.quota and one.weight == 1]
                for one in [one for one in idle if one.turn <= self.turn] or idle:
                    del self.groups[one.name]
            group = self.groups[name] = Group(name)
        return group

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
        index = state.index
        index.ageing = image.settings.ageing
        for resource in image.resources:
            resource.used = 0
            index.place(resource)
            state.resources[resource.name] = resource
            if resource.delayed:
                index.delay(resource)
        for request in image.requests:
            state.requests[request.id] = request
            index.list_session(request)
            if request.token and request.state in (HELD, OFFERED):
                state._occupy(request)
        state.groups = {group.name: group for group in image.groups}
        for group in image.groups:
            group.held = sum(
                units for one in image.requests for _, units in one.shares if one.group == group.name != ""
            )
        for resource in image.resources:
            index.refresh(resource)
        index.line_up()
        for request in image.requests:
            index.schedule(request)
        state.past.update((ending.token, ending) for ending in image.endings)
        state.used.update((ending.id, ending) for ending in image.used)
        state.acts.extend(image.acts)
        state.seq, state.token, state.turn, state.grants = image.seq, image.token, image.turn, image.grants
        return state


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

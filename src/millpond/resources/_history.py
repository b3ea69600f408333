"""Entries of a log as events: who did what, when and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from millpond._events import Event
from millpond.resources._rules import changes, selectors
from millpond.resources._rules.records import ACTIVE, HELD, OFFERED, Holder, Request
from millpond.resources._rules.wire import Entry

_NAMES: dict[type[changes.Change], str] = {
    changes.Left: "away",
    changes.GroupSet: "group set",
    changes.Undelayed: "lent again",
}


class Known(NamedTuple):
    """What is remembered of a request, to name those to whom something happens later."""

    id: str
    holder: Holder
    shares: tuple[tuple[str, int], ...]
    state: str


class EventWriter:
    """Writes entries as events. It begins with the requests that there are, and remembers what it hears."""

    def __init__(self, pool: str, requests: Iterable[Known | Request]) -> None:
        self._pool = pool
        self._who: dict[str, Holder] = {}
        self._what: dict[str, tuple[tuple[str, int], ...]] = {}
        self._offered: set[str] = set()
        for one in requests:
            self._who[one.id] = one.holder
            self._what[one.id] = one.shares
            if one.state == OFFERED:
                self._offered.add(one.id)

    def of_acts(self, acts: Iterable[changes.Act]) -> Iterator[Event]:
        """Return what operators did, oldest first."""
        for act in acts:
            if act.shares and isinstance(act.change, changes.Adopted):
                self._what[act.change.id] = act.shares
            yield from (event for event in self.of_entries([Entry(act.at, "", [act.change])]) if event.data.get("by"))

    def of_entries(self, entries: Iterable[Entry]) -> Iterator[Event]:
        """Return the events of entries, oldest first."""
        entries = list(entries)
        for entry in entries:
            for change in entry.changes:
                if isinstance(change, changes.Asked):
                    self._who[change.request.id] = change.request.holder
                elif isinstance(change, changes.Ended) and change.holder is not None:
                    self._who.setdefault(change.id, change.holder)
        for entry in entries:
            for change in entry.changes:
                for name, data in self._events(change):
                    known = {key: value for key, value in data.items() if value}
                    yield Event(name, self._pool, entry.at / 1_000_000, known)

    def _events(self, change: changes.AnyChange) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events of a change: what was accepted at once and given back before a claim was granted as well."""
        if isinstance(change, changes.Asked) and change.request.by:
            request = change.request
            wanted = [name for want in request.wants if (name := selectors.only_name(selectors.parse(want.selector)))]
            about = {"request": request.id, "holder": str(request.holder), "resources": wanted}
            yield "reserved", {**about, "by": request.by, "reason": request.reason}
        if isinstance(change, changes.Offered):
            self._offered.add(change.id)
        elif (
            isinstance(change, changes.Claimed | changes.Left | changes.Declined | changes.Ended)
            and change.id in self._offered
        ):
            self._offered.discard(change.id)
            if isinstance(change, changes.Ended) and change.how == "released":
                yield "granted", self._grant(change.id, change.token, change.shares)
        yield self._event(change)

    def _event(self, change: changes.AnyChange) -> tuple[str, dict[str, Any]]:
        """Return the name of the event and what belongs to it."""
        if isinstance(change, changes.Asked):
            request = change.request
            data = self._grant(request.id, request.token, request.shares)
            name = "granted" if request.state == HELD else "asked"
            return name, {**data, "reason": request.reason, "group": request.group, "priority": request.priority}
        if isinstance(change, changes.Offered | changes.Held):
            name = "offered" if isinstance(change, changes.Offered) else "granted"
            return name, self._grant(change.id, change.token, change.shares)
        if isinstance(change, changes.Claimed):
            return "granted", self._grant(change.id, 0, self._what.get(change.id, ()))
        if isinstance(change, changes.Passed):
            return "passed on", self._grant(change.id, 0, self._what.get(change.id, ()))
        if isinstance(change, changes.Adopted):
            self._who[change.id] = change.holder
            data = self._grant(change.id, change.token, self._what.get(change.id, ()))
            return change.how, {**data, "by": change.by, "reason": change.reason}
        if isinstance(change, changes.Ended):
            data = self._grant(change.id, change.token, change.shares)
            self._who.pop(change.id, None)
            self._what.pop(change.id, None)
            return change.how, {**data, "by": change.by, "reason": change.reason}
        return self._of_resource(change)

    def _of_resource(self, change: changes.AnyChange) -> tuple[str, dict[str, Any]]:
        if isinstance(change, changes.Added):
            resource = change.resource
            return "added", {"resource": resource.name, "labels": resource.labels, "by": change.by}
        if isinstance(change, changes.Marked):
            name = "uncordoned" if change.state == ACTIVE else change.state
            return name, {"resource": change.name, "by": change.by, "reason": change.reason}
        data: dict[str, Any] = {key: getattr(change, key) for key in change.__struct_fields__}
        if "name" in data:
            data["resource"] = data.pop("name")
        if "id" in data:
            data["request"] = data.pop("id")
            data["holder"] = str(self._who.get(data["request"], ""))
        return _NAMES.get(type(change), type(change).__name__.lower()), data

    def _grant(self, request: str, token: int, shares: tuple[tuple[str, int], ...]) -> dict[str, Any]:
        self._what[request] = shares
        return {
            "request": request,
            "holder": str(self._who.get(request, "")),
            "token": token,
            "resources": [name for name, _ in shares],
        }

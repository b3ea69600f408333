"""What the page and its API tell, each by the word of the command that prints it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from millpond._rows import event_record, record
from millpond._words import duration, who
from millpond.errors import NotFound
from millpond.keyed import KeyedPool, KeyedStatistics, SlotView, WorkerView
from millpond.resources import HolderView, ResourcePool, WaiterView
from millpond.web._moves import Moves, unaccounted
from millpond.web._pools import OpenPools

PAGE, LONGEST_PAGE = 50, 1000
RUNNING = 200
"""Running jobs that a look at a pool tells."""
TOLD = 200
"""Pools of each kind of which figures are told; of more, the names."""
MARKED = 300
"""Keys with jobs that a look at a pool tells, to mark their slots."""
HIDDEN = ("arguments",)
"""What jobs are given: it may be secret, so it is told only where that was asked for."""
WHY = {
    "rebalanced": "it was given over when workers joined or left, so that each has its share",
    "left": "the worker that had it left",
    "died": "the worker that had it died",
    "free": "nobody had it",
    "nobody yet": "no worker has asked for it yet",
}


class Query:
    """What is asked for: the parameters of a URL."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        for name in given:
            if name not in known:
                raise ValueError(f"there is no parameter {name!r} here; there is {', '.join(known) or 'none'}")
        self._given = given

    def text(self, name: str) -> str:
        """Return a parameter that must be there."""
        if not self._given.get(name):
            raise ValueError(f"say {name}=")
        return self._given[name]

    def maybe(self, name: str) -> str | None:
        """Return a parameter, or None."""
        return self._given.get(name) or None

    def number(self, name: str, default: int, most: int) -> int:
        """Return a number from 0 to `most`."""
        text = self._given.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) > most:
            raise ValueError(f"{name} is a number from 0 to {most}, not {text[:40]!r}")
        return int(text)

    def limit(self) -> int:
        """Return how many rows a page has."""
        return max(1, self.number("limit", PAGE, LONGEST_PAGE))


class Looks:
    """Answers to questions about a place. Every method may block."""

    def __init__(self, pools: OpenPools, *, show_payloads: bool) -> None:
        self.pools = pools
        self._is_open = show_payloads
        self._moves: dict[str, Moves] = {}
        self._seen: dict[str, tuple[tuple[int, int], list[SlotView]]] = {}
        self.table: dict[str, tuple[Callable[[Query], Any], tuple[str, ...]]] = {
            "pools": (self._pools, ()),
            "workers": (self._workers, ("pool",)),
            "moves": (self._moved, ("pool",)),
            "slots": (self._slots, ("pool", "number")),
            "keys": (self._keys, ("pool", "after", "limit")),
            "key": (self._key, ("pool", "key")),
            "jobs": (self._jobs, ("pool", "id", "key", "name", "state", "after", "limit")),
            "dead": (self._dead, ("pool", "key", "after", "limit")),
            "residents": (self._residents, ("pool", "after", "limit")),
            "paused": (self._paused, ("pool", "after", "limit")),
            "ls": (self._ls, ("pool", "after", "limit", "find")),
            "who": (self._who, ("pool", "after", "limit")),
            "waiters": (self._waiters, ("pool", "after", "limit")),
            "show": (self._show, ("pool", "resource")),
            "settings": (self._settings, ("pool", "kind")),
            "events": (self._events, ("pool", "kind", "limit", "acts")),
            "audit": (self._audit, ("limit",)),
        }
        """Every word, how it is answered, and which parameters it takes."""

    def answer(self, word: str, given: Mapping[str, str]) -> Any:
        """Answer a question."""
        ask, known = self.table[word]
        return ask(Query(given, known))

    # --- all pools -----------------------------------------------------------------------------------------------

    def overview(self) -> list[dict[str, Any]]:
        """Return how all pools stand."""
        return self.pools.once("overview", self._overview)

    def _overview(self) -> list[dict[str, Any]]:
        lent, with_keys = self.pools.names()
        rows = []
        for kind, names, tell in (("keyed", with_keys, self._of_keyed), ("resources", lent, self._of_resources)):
            for name in names[:TOLD]:
                try:
                    rows.append(tell(name))
                except NotFound:  # it has just gone
                    continue
            rows += [{"kind": kind, "pool": name, "is_name_only": True} for name in names[TOLD:]]
        return rows

    def _pools(self, query: Query) -> dict[str, Any]:
        return {"rows": self.overview()}

    def _of_keyed(self, name: str) -> dict[str, Any]:
        pool = self.pools.keyed(name)
        found, workers = pool.statistics(), pool.workers()
        alive = [one for one in workers if one.lease_left > 0]
        row: dict[str, Any] = {"kind": "keyed", "pool": name, **record(found)}
        row["unaccounted"] = unaccounted(found)
        row["capacity"] = sum(one.concurrency for one in alive if not one.is_leaving)
        row["workers"], row["silent"] = len(alive), len(workers) - len(alive)
        row["paused"] = None
        if found.is_paused:
            whole = [one for one in pool.admin.paused(limit=1) if one.key is None]
            row["paused"] = record(whole[0]) if whole else {"by": "", "reason": "", "since": None}
        return row

    def _of_resources(self, name: str) -> dict[str, Any]:
        found = record(self.pools.resources(name).statistics())
        return {"kind": "resources", "pool": name, **found, "is_paused": bool(found["paused"])}

    # --- keyed pools ---------------------------------------------------------------------------------------------

    def _keyed(self, query: Query) -> KeyedPool:
        return self.pools.keyed(query.text("pool"))

    def keyed_state(self, name: str) -> dict[str, Any]:
        """Return what the live picture of a keyed pool needs."""
        return self.pools.once(("keyed", name), lambda: self._keyed_state(name))

    def _keyed_state(self, name: str) -> dict[str, Any]:
        pool = self.pools.keyed(name)
        workers, found = pool.workers(), pool.statistics()
        slots = self._slots_of(pool, found)
        if name not in self._moves:
            self._moves[name] = Moves(float(pool.admin.settings()["lease"]))
        ids = ["", *sorted({slot.owner for slot in slots} - {""})]
        number = {worker: index for index, worker in enumerate(ids)}
        keys = pool.keys(limit=MARKED)
        running = pool.jobs(state="running", limit=RUNNING)
        return {
            "now": time.time(),
            "pool": name,
            "statistics": {**record(found), "unaccounted": unaccounted(found)},
            "workers": [record(one) for one in workers],
            "owners": ids,
            "slots": [number[slot.owner] for slot in slots],
            "marks": [[one.slot, one.state, one.key[:200]] for one in keys],
            "running": [
                [one.id[:200], one.key[:200], one.name, one.worker, one.running_since, one.attempts] for one in running
            ],
            "more_running": bool(running.next),
            "moves": self._moves[name].look(workers, slots, found),
        }

    def _slots_of(self, pool: KeyedPool, found: KeyedStatistics) -> list[SlotView]:
        """Return all slots: read again only when one has moved since, by figures that were read before them."""
        now = (found.moved_total, found.dispatched_total)
        known, slots = self._seen.get(pool.name, ((-1, 0), []))
        if known[0] != now[0] or known[1] > now[1]:  # a pool of that name that was made anew counts from 0
            slots = pool.slots()
        self._seen[pool.name] = (now, slots)
        return slots

    def _workers(self, query: Query) -> dict[str, Any]:
        return {"rows": [record(one) for one in self._keyed(query).workers()]}

    def _moved(self, query: Query) -> dict[str, Any]:
        return {"rows": self.keyed_state(query.text("pool"))["moves"]}

    def _slots(self, query: Query) -> dict[str, Any]:
        pool = self._keyed(query)
        slots = pool.slots()
        text = query.maybe("number")
        if text is None:
            return {"rows": [record(one) for one in slots]}
        slot = slots[query.number("number", 0, len(slots) - 1)]
        return {**record(slot), "because": because(slot, pool.workers())}

    def _keys(self, query: Query) -> dict[str, Any]:
        return self._page(self._keyed(query).keys(after=query.maybe("after") or "", limit=query.limit()))

    def _key(self, query: Query) -> dict[str, Any]:
        pool, key = self._keyed(query), query.text("key")
        slot, workers = pool.owner(key), pool.workers()
        jobs = pool.jobs(key=key, limit=PAGE)
        paused = [record(one) for one in pool.admin.paused(limit=LONGEST_PAGE) if one.key in (None, key)]
        return {
            "key": key,
            "slot": record(slot),
            "because": because(slot, workers),
            "paused": paused,
            **self._page(jobs),
        }

    def _jobs(self, query: Query) -> dict[str, Any]:
        state: Any = query.maybe("state")
        found = self._keyed(query).jobs(
            id=query.maybe("id"),
            key=query.maybe("key"),
            name=query.maybe("name"),
            state=state,
            after=query.maybe("after") or "",
            limit=query.limit(),
        )
        return self._page(found)

    def _dead(self, query: Query) -> dict[str, Any]:
        admin = self._keyed(query).admin
        return self._page(
            admin.dead_letters(
                query.maybe("key"), after=query.maybe("after") or "", limit=query.limit(), newest_first=True
            )
        )

    def _residents(self, query: Query) -> dict[str, Any]:
        return self._page(self._keyed(query).residents(after=query.maybe("after") or "", limit=query.limit()))

    def _paused(self, query: Query) -> dict[str, Any]:
        return self._page(self._keyed(query).admin.paused(after=query.maybe("after") or "", limit=query.limit()))

    def _page(self, page: Any) -> dict[str, Any]:
        return {"rows": [self._row(one) for one in page], "next": page.next}

    def _row(self, view: Any) -> dict[str, Any]:
        row = record(view)
        if not self._is_open:
            for name in HIDDEN:
                row.pop(name, None)
        return row

    # --- resource pools ------------------------------------------------------------------------------------------

    def _resources(self, query: Query) -> ResourcePool:
        return self.pools.resources(query.text("pool"))

    def resources_state(self, name: str) -> dict[str, Any]:
        """Return what the live picture of a resource pool needs: its figures, which tell when to look again."""
        return self.pools.once(("resources", name), lambda: {"now": time.time(), **self._of_resources(name)})

    def _ls(self, query: Query) -> dict[str, Any]:
        pool = self._resources(query)
        find = (query.maybe("find") or "").lower()
        found = [one for one in pool.resources() if not find or find in _searched(one)]
        rows, more = _some(found, query)
        names = {one.name for one in rows}
        holders: dict[str, list[dict[str, Any]]] = {}
        for holder in pool.holders():
            for name in names.intersection(holder.resources):
                holders.setdefault(name, []).append(person(holder))
        return {
            "rows": [{**record(one), "held_by": holders.get(one.name, [])} for one in rows],
            "next": more,
            "total": len(found),
        }

    def _who(self, query: Query) -> dict[str, Any]:
        found = self._resources(query).holders()
        rows, more = _some(found, query)
        return {"rows": [person(one) for one in rows], "next": more, "total": len(found)}

    def _waiters(self, query: Query) -> dict[str, Any]:
        found = self._resources(query).waiters()
        rows, more = _some(found, query)
        return {"rows": [person(one) for one in rows], "next": more, "total": len(found)}

    def _show(self, query: Query) -> dict[str, Any]:
        pool, name = self._resources(query), query.text("resource")
        stands = pool.admin.explain(name)
        views = [one for one in pool.resources() if one.name == name]
        if not views:
            raise NotFound(f"there is no resource {name!r} in pool {pool.name!r}")
        holders = [person(one) for one in pool.holders() if name in one.resources]
        named = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
        waiters = [person(one) for one in pool.waiters() if named.search(f"{one.why} {' '.join(one.selectors)}")]
        history = [event_record(one) for one in pool.admin.history(name, limit=PAGE)][::-1]
        row = {**record(views[0]), "stands": stands, "held_by": holders, "waiters": waiters[:PAGE]}
        return {**row, "history": history}

    # --- both ----------------------------------------------------------------------------------------------------

    def _settings(self, query: Query) -> dict[str, Any]:
        name = query.text("pool")
        if self.pools.kind(name, query.maybe("kind")) == "keyed":
            return dict(self.pools.keyed(name).admin.settings())
        return dict(self.pools.resources(name).admin.settings())

    def _events(self, query: Query) -> dict[str, Any]:
        name, limit = query.text("pool"), query.limit()
        kind = self.pools.kind(name, query.maybe("kind"))
        return {"rows": self._told(name, kind, limit, acts_only=bool(query.maybe("acts")))}

    def _told(self, name: str, kind: str, limit: int, *, acts_only: bool) -> list[dict[str, Any]]:
        """Return what happened in a pool, the latest first: of a keyed pool, what people did to it."""
        if kind == "keyed":
            acts = self.pools.keyed(name).admin.history(limit)
            return [{"kind": kind, "pool": name, "event": one.what, **record(one)} for one in reversed(acts)]
        events = self.pools.resources(name).admin.history(limit=limit, acts=acts_only)
        return [{"kind": kind, **event_record(one)} for one in reversed(events)]

    def _audit(self, query: Query) -> dict[str, Any]:
        limit = query.limit()
        lent, with_keys = self.pools.names()
        rows: list[dict[str, Any]] = []
        for kind, names in (("keyed", with_keys), ("resources", lent)):
            for name in names:
                try:
                    rows += self._told(name, kind, limit, acts_only=True)
                except NotFound:
                    continue
        return {"rows": sorted(rows, key=lambda row: float(-row["time"]))[:limit]}


def person(view: HolderView | WaiterView) -> dict[str, Any]:
    """Return a holder or a waiter, with a name for people."""
    return {**record(view), "who": who(view.id, view.host, view.pid)}


def because(slot: SlotView, workers: list[WorkerView]) -> str:
    """Say why a slot, and so each of its keys, is where it is."""
    labels = {one.id: one.label for one in workers}

    def name(worker: str) -> str:
        return f"{worker} ({labels[worker]})" if worker in labels else worker

    reason = WHY.get(slot.why, slot.why)
    before = f"; before, it was {name(slot.before)}" if slot.before and slot.before != slot.owner else ""
    if not slot.owner:
        return f"slot {slot.number}, which belongs to nobody: {reason}{before}"
    age = duration(time.time() - slot.since) if slot.since else "the beginning"
    return f"slot {slot.number}, which belongs to {name(slot.owner)} since {age}, because {reason}{before}"


def _searched(resource: Any) -> str:
    labels = " ".join(f"{key}={value}" for key, value in resource.labels.items())
    return f"{resource.name} {resource.state} {labels} {' '.join(resource.holders)}".lower()


def _some(found: list[Any], query: Query) -> tuple[list[Any], str]:
    """Return a page of a list that is in memory anyway, and where the next one begins."""
    first, limit = query.number("after", 0, 10**9), query.limit()
    rest = first + limit < len(found)
    return found[first : first + limit], str(first + limit) if rest else ""

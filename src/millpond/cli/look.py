"""Commands that look: who holds what, what is there, keys, jobs, workers. They change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from millpond import keyed, resources
from millpond._rows import event_record, record
from millpond._urls import shown
from millpond._words import duration
from millpond.cli import words
from millpond.cli.place import Place
from millpond.cli.report import emit, table, write
from millpond.cli.tail import Tails
from millpond.errors import NotFound
from millpond.keyed import ActView, KeyedPool
from millpond.resources import ResourcePool

PAST = 50
"""Events that are shown of what was."""
COUNTED = 1000
"""Paused keys that are counted for a line about a pool."""
Columns = Mapping[str, Callable[[Any], str]]


def _ago(field: str) -> Callable[[Any], str]:
    return lambda row: "" if row[field] is None else duration(row[field])


def _text(field: str) -> Callable[[Any], str]:
    return lambda row: "" if row[field] is None else str(row[field])


def _joined(field: str) -> Callable[[Any], str]:
    return lambda row: ", ".join(row[field])


def _labels(row: Any) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(row["labels"].items()))


def names(place: Place, name: str | None) -> list[str]:
    """Return the resource pools that are meant."""
    place.check()
    found = resources.pools(place.url)
    if name is None:
        return found
    pool, _, resource = name.partition("/")
    if pool not in found and pool in with_keys(place):
        raise NotFound(f"{pool!r} is a keyed pool: look at it by keys, jobs, workers, dead and events")
    if pool not in found:
        others = with_keys(place)
        beside = f" to hold (keyed pools: {', '.join(others)})" if others and not found else ""
        raise NotFound(f"there is no {pool!r} at {shown(place.url)}; there is {', '.join(found) or 'nothing'}{beside}")
    if resource:
        with ResourcePool(pool, place.url) as looked_at:
            known = [one.name for one in looked_at.resources()]
        if resource not in known:
            raise NotFound(f"there is no {name!r}; there is {', '.join(f'{pool}/{one}' for one in known) or 'nothing'}")
    return [pool]


# --- resources --------------------------------------------------------------------------------------------------------

WHO: Columns = {
    "pool": _text("pool"),
    "what": _joined("resources"),
    "who": _text("who"),
    "since": _ago("since_s"),
    "state": lambda row: f"{row['state']}{_until(row.get('expires_in'))}",
    "why": _text("reason"),
}


def _until(seconds: float | None) -> str:
    """Return when a lease ends, unless it is renewed; of a lock nothing."""
    return "" if seconds is None else time.strftime(" until %m-%d %H:%M:%S", time.localtime(time.time() + seconds))


def who(place: Place, name: str | None, output: str, *, watch: bool = False) -> None:
    """Print who holds what, and who waits."""
    while True:
        rows = [row for pool in names(place, name) for row in _who(place, pool, name)]
        if watch:
            click.clear()
        if not rows and output == "table":
            write("nobody holds anything")
        else:
            emit(rows, WHO, output)
        if not watch:
            return
        time.sleep(1.0)


def _who(place: Place, pool: str, name: str | None) -> list[dict[str, Any]]:
    wanted = (name or "").partition("/")[2]
    with ResourcePool(pool, place.url) as looked_at:
        holders, waiters = looked_at.holders(), looked_at.waiters()
        known = [one.name for one in looked_at.resources()]
    rows = []
    for holder in holders:
        if not wanted or wanted in holder.resources:
            row = {**record(holder), "pool": pool, "who": words.person(holder), "since_s": holder.held_for}
            rows.append(row if not holder.suspect else {**row, "state": f"{holder.state}, suspect"})
    for waiter in waiters:
        state = "next" if waiter.position == 1 else f"waits, number {waiter.position}"
        row = {**record(waiter), "pool": pool, "who": words.person(waiter), "since_s": waiter.waiting_for}
        rows.append({**row, "resources": list(waiter.selectors), "state": state})
    tails, held = Tails(place.file), {name for holder in holders for name in holder.resources}
    for resource in known:
        left = "" if resource in held or wanted not in ("", resource) else tails.left_behind(pool, resource)
        if left:
            row = {"pool": pool, "resources": [resource], "who": f"process {left}", "since_s": None}
            rows.append({**row, "state": "left behind", "reason": "by a run that was killed: it keeps others waiting"})
    return rows


LS: Columns = {
    "pool": _text("pool"),
    "resource": _text("name"),
    "state": _text("state"),
    "used": lambda row: f"{row['used']}/{row['capacity']}",
    "holders": _joined("holders"),
    "labels": _labels,
    "note": _text("note"),
}


def ls(place: Place, name: str | None, output: str) -> None:
    """Print what there is to hold."""
    rows = []
    wanted = (name or "").partition("/")[2]
    for pool in names(place, name):
        with ResourcePool(pool, place.url) as looked_at:
            rows += [{"pool": pool, **record(one)} for one in looked_at.resources() if wanted in ("", one.name)]
    if not rows and output == "table":
        write(f"there is nothing at {shown(place.url)}")
    else:
        emit(rows, LS, output)


def show(place: Place, name: str, output: str) -> None:
    """Print how one resource stands, and what happened to it."""
    (pool,) = names(place, name)
    resource = name.partition("/")[2]
    with ResourcePool(pool, place.url) as looked_at:
        if not resource:
            known = [one.name for one in looked_at.resources()]
            if len(known) != 1:
                raise NotFound(f"say which: {', '.join(f'{pool}/{one}' for one in known)}")
            resource = known[0]
        stands, past = looked_at.admin.explain(resource), looked_at.admin.history(resource, limit=20)
        (view,) = [one for one in looked_at.resources() if one.name == resource]
    if output != "table":
        row = {"pool": pool, **record(view), "stands": stands, "history": [event_record(event) for event in past]}
        emit([row], {}, output)
        return
    write(words.plain(stands))
    _say_if_unknown(place, past)
    for event in past:
        write(_event(event))


def _say_if_unknown(place: Place, past: Sequence[object]) -> None:
    """Say that there is no history to show, where that is so for every program that has just started."""
    if not past and place.url.startswith("temporal:"):
        write(
            "(on Temporal a program knows the last hundred steps of a pool, or none of a large one: see its workflow)"
        )


def _event(event: Any) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.time))
    data = " ".join(f"{key}={value}" for key, value in event.data.items() if value not in ("", None, (), {}))
    return words.plain(f"{when}  {event.name}  {data}")


def events(place: Place, name: str, output: str, *, follow: bool) -> None:
    """Print what happened in a pool, and what happens; of a keyed pool, what people did to it."""
    place.check()
    if name in with_keys(place) and name not in lent(place):
        _acts(place, name, output, follow=follow)
        return
    (pool,) = names(place, name)
    wanted = name.partition("/")[2]
    with ResourcePool(pool, place.url) as looked_at:
        stream = looked_at.watch() if follow else iter(())
        past = looked_at.admin.history(wanted or None, limit=PAST)
        if output == "json" and not follow:
            emit([event_record(event) for event in past], {}, "json")
            return
        if output == "table":
            _say_if_unknown(place, past)
        for event in [*past]:
            _print_event(event, output)
        for event in stream:
            if wanted in ("", event.data.get("resource"), *event.data.get("resources", ())):
                _print_event(event, output)


def _acts(place: Place, name: str, output: str, *, follow: bool) -> None:
    with keyed_pool(place, name) as pool:
        printed: list[ActView] = []
        while True:
            acts = pool.admin.history(PAST)
            new = [one for one in acts if one not in printed]
            if output == "json" and not follow:
                emit([record(one) for one in new], {}, "json")
                return
            for one in new:
                if output == "table":
                    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.time))
                    reason = f": {one.reason}" if one.reason else ""
                    write(words.plain(f"{when}  {one.what}  {one.about}  by {one.by}{reason}"))
                else:
                    emit([record(one)], {}, "jsonl")
            if not follow:
                return
            printed = acts
            time.sleep(1.0)


def _print_event(event: Any, output: str) -> None:
    if output == "table":
        write(_event(event))
    else:  # one line each: nobody knows the end
        emit([event_record(event)], {}, "jsonl")


def either(place: Place, name: str) -> None:
    """Refuse a name that neither a resource pool nor a keyed pool has."""
    found = [*lent(place), *with_keys(place)]
    if name not in found:
        there = ", ".join(sorted(set(found))) or "nothing"
        raise NotFound(f"there is no pool {name!r} at {shown(place.url)}; there is {there}")


def lent(place: Place) -> list[str]:
    """Return the resource pools of a place."""
    return resources.pools(place.url) if place.has_resources else []


def with_keys(place: Place) -> list[str]:
    """Return the keyed pools of a place."""
    return keyed.pools(place.url) if place.has_keys else []


# --- all pools --------------------------------------------------------------------------------------------------------

POOLS: Columns = {"pool": _text("pool"), "kind": _text("kind"), "stands": _text("stands")}


def pools(place: Place, output: str) -> None:
    """Print the pools of a place."""
    rows: list[dict[str, Any]] = []
    place.check()
    for name in lent(place):
        with ResourcePool(name, place.url) as pool:
            found = pool.statistics()
        stands = f"{found.held} held, {found.waiting} wait, {found.free_units} of {found.units} units free"
        stands += f", paused: {found.paused}" if found.paused else ""
        rows.append({"pool": name, "kind": "resources", "stands": stands, **record(found)})
    for name in with_keys(place):
        with KeyedPool(name, place.url, create=False) as tenants:
            numbers, held_back = tenants.statistics(), tenants.admin.paused(limit=COUNTED)
        paused_keys = sum(one.key is not None for one in held_back)
        stands = f"{numbers.jobs} jobs, {numbers.workers} workers, {numbers.dead} dead"
        stands += ", paused" if numbers.is_paused else ""
        stands += f", {paused_keys}{'+' if held_back.next else ''} keys paused" if paused_keys else ""
        rows.append({"pool": name, "kind": "keyed", "stands": stands, **record(numbers), "keys_paused": paused_keys})
    emit(rows, POOLS, output)


# --- keyed pools ------------------------------------------------------------------------------------------------------


def keyed_pool(place: Place, name: str) -> KeyedPool:
    """Return a keyed pool that is there."""
    place.check()
    found = keyed.pools(place.url)
    if name not in found:
        raise NotFound(f"there is no keyed pool {name!r} at {shown(place.url)}; there is {', '.join(found) or 'none'}")
    return KeyedPool(name, place.url, create=False)


WORKERS: Columns = {
    "worker": _text("id"),
    "where": _text("label"),
    "slots": _text("slots"),
    "concurrency": _text("concurrency"),
    "lease left": lambda row: f"{row['lease_left']:.1f} s",
    "state": lambda row: "leaving" if row["is_leaving"] else "silent" if row["lease_left"] < 0 else "works",
    "jobs": _joined("jobs"),
}


def workers(place: Place, name: str, output: str) -> None:
    """Print the workers of a keyed pool."""
    with keyed_pool(place, name) as pool:
        emit([record(one) for one in pool.workers()], WORKERS, output)


KEYS: Columns = {
    "key": _text("key"),
    "jobs": _text("depth"),
    "oldest": _ago("oldest_age"),
    "state": _text("state"),
    "worker": _text("worker"),
    "there because": _text("why"),
    "failures": _text("failures"),
}


def keys(place: Place, name: str, output: str, *, after: str, limit: int) -> None:
    """Print the keys of a keyed pool that have jobs."""
    with keyed_pool(place, name) as pool:
        page = pool.keys(after=after, limit=limit)
    _page([record(one) for one in page], KEYS, output, page.next)


def _clock(field: str) -> Callable[[Any], str]:
    def show(row: Any) -> str:
        return "" if row[field] is None else time.strftime("%m-%d %H:%M:%S", time.localtime(row[field]))

    return show


JOBS: Columns = {
    "id": _text("id"),
    "key": _text("key"),
    "job": _text("name"),
    "state": _text("state"),
    "dispatched": _clock("dispatched_at"),
    "due": _clock("due_at"),
    "worker": _text("worker"),
    "attempts": _text("attempts"),
    "error": _text("error"),
}


def jobs(place: Place, name: str, output: str, wanted: dict[str, Any], *, after: str, limit: int) -> None:
    """Print jobs of a keyed pool."""
    with keyed_pool(place, name) as pool:
        page = pool.jobs(**wanted, after=after, limit=limit)
    _page([record(one) for one in page], JOBS, output, page.next)


DEAD: Columns = {
    "number": _text("number"),
    "id": _text("id"),
    "key": _text("key"),
    "job": _text("name"),
    "died": _clock("died_at"),
    "attempts": _text("attempts"),
    "why": _text("reason"),
}


def dead(place: Place, name: str, output: str, *, key: str | None, after: str, limit: int) -> None:
    """Print the dead letters of a keyed pool."""
    with keyed_pool(place, name) as pool:
        page = pool.admin.dead_letters(key, after=after, limit=limit)
    _page([record(one) for one in page], DEAD, output, page.next)


PAUSED: Columns = {
    "key": lambda row: "(the whole pool)" if row["key"] is None else str(row["key"]),
    "since": _clock("since"),
    "by": _text("by"),
    "why": _text("reason"),
}


def paused(place: Place, name: str, output: str, *, after: str, limit: int) -> None:
    """Print the keys of a keyed pool that are paused."""
    with keyed_pool(place, name) as pool:
        page = pool.admin.paused(after=after, limit=limit)
    _page([record(one) for one in page], PAUSED, output, page.next)


RESIDENTS: Columns = {
    "resident": _text("name"),
    "key": _text("key"),
    "state": _text("state"),
    "worker": _text("worker"),
    "started": _clock("started_at"),
    "failures": _text("failures"),
    "error": _text("error"),
}


def residents(place: Place, name: str, output: str, *, after: str, limit: int) -> None:
    """Print the residents of a keyed pool."""
    with keyed_pool(place, name) as pool:
        page = pool.residents(after=after, limit=limit)
    _page([record(one) for one in page], RESIDENTS, output, page.next)


def _page(rows: list[dict[str, Any]], columns: Columns, output: str, more: str) -> None:
    if rows or output != "table":
        emit(rows, columns, output)
    else:
        write(table([], list(columns)))
    if more:
        click.echo(f"there is more: --after {more}", err=True)

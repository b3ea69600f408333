"""Commands that act on resources and on keyed pools. Each says what it will do, and asks, unless it is told not to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from millpond import keyed
from millpond.cli import look, words
from millpond.cli.manner import Manner
from millpond.cli.place import Place
from millpond.errors import NotFound
from millpond.resources import HolderView, ResourcePool


def _resource(pool: ResourcePool, name: str) -> str:
    """Return the resource that `POOL/RESOURCE`, or `POOL` if it has one, means."""
    resource = name.partition("/")[2]
    known = [one.name for one in pool.resources()]
    if resource in known:
        return resource
    if not resource and len(known) == 1:
        return known[0]
    raise NotFound(f"say which: {', '.join(f'{pool.name}/{one}' for one in known) or 'there is none'}")


def _held(pool: ResourcePool, resource: str, token: int | None) -> HolderView:
    for holder in pool.holders():
        if resource in holder.resources and token in (None, holder.token):
            return holder
    raise NotFound(f"nobody holds {pool.name}/{resource}" + (f" under token {token}" if token else ""))


def on_resource(place: Place, verb: str, name: str, manner: Manner, **more: Any) -> None:
    """Do something to a resource."""
    look.names(place, name)
    with ResourcePool(name.partition("/")[0], place.url) as pool:
        resource = _resource(pool, name)
        reason = manner.reason or f"by {verb} from a shell"
        full, admin = f"{pool.name}/{resource}", pool.admin
        if verb in ("release", "steal"):
            holder = _held(pool, resource, more.get("token"))
            who = f"{full}, which {words.held(holder)}"
            if verb == "release":
                manner.go(f"release {who}", lambda: admin.release(resource, token=holder.token, reason=reason))
            else:
                owner = more["holder"]
                manner.go(
                    f"take {who}, and keep it for {owner}",
                    lambda: admin.keep(resource, token=holder.token, holder=owner, reason=reason, lease=more["lease"]),
                )
        elif verb == "reserve":
            owner = more["holder"]
            manner.go(
                f"reserve {full} for {owner}",
                lambda: admin.reserve(resource, holder=owner, reason=reason, lease=more["lease"]),
            )
        elif verb == "drain":
            manner.go(f"drain {full}", lambda: admin.drain(resource, reason=reason, timeout=more["timeout"]))
        else:
            manner.go(f"{verb} {full}", lambda: getattr(admin, verb)(resource, reason=reason))


def add(place: Place, name: str, resources: Sequence[str], labels: dict[str, str], capacity: int) -> None:
    """Add resources to a pool, which is made if need be."""
    with ResourcePool(name, place.url) as pool:
        for resource in resources or [name]:
            pool.add(resource, labels=labels or None, capacity=capacity)
            print(f"added {name}/{resource}")


def on_jobs(place: Place, verb: str, name: str, manner: Manner, *, ids: Sequence[str], key: str | None) -> None:
    """Do something to jobs or dead letters of a keyed pool."""
    with look.keyed_pool(place, name) as pool:
        chosen = [int(one) if one.isdigit() and verb != "cancel" else one for one in ids]
        which = f"{len(chosen)} jobs" if chosen else f"all of key {key!r}" if key is not None else "all"
        if verb == "cancel":
            if not ids:
                raise click.UsageError("say which jobs: their ids")
            manner.go(f"cancel {which} of {name}", lambda: pool.admin.cancel(ids, key=key))
        elif verb == "purge":
            if key is None:
                raise click.UsageError("say of which key: --key KEY")
            manner.go(f"drop the waiting jobs of key {key!r} of {name}", lambda: pool.admin.purge(key))
        else:
            do = getattr(pool.admin, verb)
            manner.go(
                f"{verb} dead letters of {name}: {which}",
                lambda: do(chosen) if chosen else do(key=key) if key is not None else do(),
            )


def on_key(place: Place, verb: str, name: str, manner: Manner, key: str | None) -> None:
    """Pause or resume a key, a keyed pool, or a resource pool."""
    what = f"{verb} {name}" if key is None else f"{verb} key {key!r} of {name}"
    if name in _keyed(place):
        with look.keyed_pool(place, name) as tenants:
            if verb == "pause":
                manner.go(what, lambda: tenants.admin.pause(key, reason=manner.reason))
            else:
                manner.go(what, lambda: tenants.admin.resume(key))
        return
    look.names(place, name)
    with ResourcePool(name, place.url) as pool:
        if verb == "pause":
            manner.go(what, lambda: pool.admin.pause(reason=manner.reason or "from a shell"))
        else:
            manner.go(what, lambda: pool.admin.resume(reason=manner.reason or None))


def _keyed(place: Place) -> list[str]:
    return [] if place.url.startswith("temporal") else keyed.pools(place.url)

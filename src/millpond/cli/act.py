"""Commands that act on resources and on keyed pools. Each says what it will do, and asks, unless it is told not to."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any

import click

from millpond import _operate
from millpond._urls import shown
from millpond._words import duration
from millpond.cli import look, words
from millpond.cli.manner import Manner
from millpond.cli.place import Place
from millpond.cli.report import write
from millpond.errors import NotFound
from millpond.keyed import KeyedPool
from millpond.resources import HolderView, ResourcePool

_NAME = re.compile(r"[^:{}/=\s]+")
NOT_YET = 75


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
    try:
        return _operate.held(pool, resource, token)
    except _operate.Ambiguous as error:
        raise click.UsageError(f"{words.plain(error)}: --if-token") from None


def on_resource(place: Place, verb: str, name: str, manner: Manner, **more: Any) -> None:
    """Do something to a resource."""
    place.check()
    named = name.partition("/")[0]
    if named in look.with_keys(place) and named not in look.lent(place):
        hint = "; to drain a worker, send it SIGTERM" if verb == "drain" else ""
        raise NotFound(f"{named!r} is a keyed pool, which has no resources to {verb}{hint}")
    look.names(place, name)
    with ResourcePool(name.partition("/")[0], place.url) as pool:
        resource = _resource(pool, name)
        reason = manner.reason or f"by {verb} from a shell"
        full, admin = f"{pool.name}/{resource}", pool.admin
        if verb in ("release", "steal"):
            holder = _held(pool, resource, more.get("token"))
            who = f"{full}, held by {words.person(holder)} since {duration(holder.held_for)}"
            who += f" ({holder.reason})" if holder.reason else ""
            if verb == "release":
                manner.go(f"release {who}", lambda: admin.release(resource, token=holder.token, reason=reason))
            else:
                owner = more["holder"]

                def take() -> str:
                    kept = admin.keep(resource, token=holder.token, holder=owner, reason=reason, lease=more["lease"])
                    return f"token {kept}"

                manner.go(f"take {who}, and keep it for {owner}", take)
        elif verb == "reserve":
            owner = more["holder"]
            holders = [one for one in pool.holders() if resource in one.resources]
            first = f", when {words.person(holders[0])} gives it back" if holders else ""
            manner.go(
                f"reserve {full} for {owner}{first}",
                lambda: admin.reserve(resource, holder=owner, reason=reason, lease=more["lease"]) and None,
            )
        elif verb == "drain":
            manner.go(f"drain {full}", lambda: admin.drain(resource, reason=reason, timeout=more["timeout"]))
        else:
            manner.go(f"{verb} {full}", lambda: getattr(admin, verb)(resource, reason=reason))


def add(
    place: Place,
    name: str,
    names: Sequence[str],
    labels: dict[str, str],
    capacity: int,
    *,
    exist_ok: bool,
    is_trial: bool,
) -> None:
    """Add resources to a pool, which is made if need be."""
    for one in (name, *names):
        if not _NAME.fullmatch(one):
            raise click.UsageError(f"{one!r} could not be named again: leave out / : = {{ }} and blanks")
    with ResourcePool(name, place.url) as pool:
        known = {one.name for one in pool.resources()}
        if not names and known - {name}:
            raise click.UsageError(f"say what to add to {name}: there is {', '.join(sorted(known))}")
        for resource in names or [name]:
            if resource in known and not exist_ok:
                raise click.UsageError(f"there is {name}/{resource} already: say --exist-ok to leave it as it is")
            if resource not in known and is_trial:
                write(f"would add {name}/{resource}")
            elif resource not in known:
                pool.add(resource, labels=labels or None, capacity=capacity)
                write(f"added {name}/{resource}")


def on_jobs(
    place: Place, verb: str, name: str, manner: Manner, *, ids: Sequence[str], key: str | None, is_all: bool
) -> None:
    """Do something to jobs or dead letters of a keyed pool."""
    if verb == "purge":
        if key is None or ids:
            raise click.UsageError("purge drops what waits of one key: --key KEY, and no ids (see cancel)")
    elif verb == "cancel":
        if not ids:
            raise click.UsageError("say which jobs: their ids")
    elif sum((bool(ids), key is not None, is_all)) != 1:
        raise click.UsageError(f"say what to {verb}: ids or numbers, or --key KEY, or --all")
    with look.keyed_pool(place, name) as pool:
        if verb == "purge":
            assert key is not None
            manner.go(
                f"drop the waiting jobs of key {key!r} of {name}",
                lambda: pool.admin.purge(key, reason=manner.reason),
                none=f"there is nothing to purge: no job of key {key!r} of {name} waits",
            )
        elif verb == "cancel":
            manner.go(
                f"cancel {len(ids)} jobs of {name}",
                lambda: pool.admin.cancel(ids, key=key, reason=manner.reason),
                none=f"there is nothing to cancel: no such job of {name} has not ended",
            )
        elif verb == "retry":
            keys = _operate.retrying(pool, ids, key)
            none = f"there is nothing to try again: no job of {name if key is None else repr(key)} waits for that"
            if not keys:
                raise click.ClickException(none)
            manner.go(
                f"try again now: {len(keys)} keys of {name}",
                lambda: pool.admin.retry(*keys, reason=manner.reason),
                none=none,
            )
        else:
            do = getattr(pool.admin, verb)
            chosen = _operate.letters(ids)
            which = f"{len(chosen)} of them" if chosen else "all" if key is None else f"all of key {key!r}"
            manner.go(
                f"{verb} dead letters of {name}: {which}",
                lambda: do(chosen or None, key=key, reason=manner.reason),
                none=f"there is nothing to {verb}: see `millpond dead {name}`",
            )


def dispatch(place: Place, name: str, job: str, key: str, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    """Dispatch a job by its name."""
    with look.keyed_pool(place, name) as pool:
        named, wait, is_forced, reason = (options.pop(one) for one in ("named", "wait", "is_forced", "reason"))
        is_trial = options.pop("is_trial")
        if not is_forced and (problem := _operate.unknown_job(pool, job)):
            raise click.UsageError(f"{problem}; so its key would wait (--force: let it)")
        if is_trial:
            write(f"would dispatch {job} of key {key!r} to {name}")
            return
        receipt = pool.declare_job(job).options(**options).dispatch(key, *arguments, **named)
        pool.admin.note("dispatch", f"{job} {receipt.id} of {key[:200]}", reason=reason)
        if wait is None:
            write(f"dispatched {receipt.id}")
            return
        try:
            write(json.dumps(receipt.result(wait), default=str))
        except TimeoutError:
            state = [one.state for one in pool.jobs(id=receipt.id, key=key)]
            where = f"it is {state[0]}" if state else "it has just ended"
            click.echo(f"millpond: job {receipt.id} has not ended in {wait:g} s: {where}", err=True)
            raise SystemExit(NOT_YET) from None


def configure(place: Place, name: str, manner: Manner, changes: dict[str, Any]) -> None:
    """Change settings of a pool, or show them."""
    place.check()
    _refuse_resource(name)
    listed = ", ".join(f"{key}={value}" for key, value in changes.items())
    is_keyed = name in look.with_keys(place)
    if is_keyed and name in look.lent(place):
        raise click.UsageError(f"there are two pools {name!r}, a keyed one and one of resources: use Python for that")
    look.either(place, name)
    with KeyedPool(name, place.url, create=False) if is_keyed else ResourcePool(name, place.url) as pool:
        known = [one for one in inspect.signature(pool.admin.configure).parameters if one not in ("reason", "by")]
        if not changes:
            for one, value in pool.admin.settings().items():
                write(f"{one}={'null' if value is None else value}")
            return
        for one, value in changes.items():
            if one not in known:
                raise click.UsageError(f"{name} has no setting {one!r}; it has {', '.join(known)}")
            if value is None and one.startswith("max_"):
                changes[one] = 0  # no limit
            elif value is None:
                raise click.UsageError(f"{one} cannot be null")
        configure: Any = pool.admin.configure
        manner.go(f"configure {name}: {listed}", lambda: configure(**changes, reason=manner.reason))


def _refuse_resource(name: str) -> None:
    if "/" in name:
        raise click.UsageError(f"name a pool, not a resource of it: {name.partition('/')[0]}")


def on_key(place: Place, verb: str, name: str, manner: Manner, key: str | None) -> None:
    """Pause or resume a key, a keyed pool, or a resource pool."""
    _refuse_resource(name)
    what = f"{verb} {name}" if key is None else f"{verb} key {key!r} of {name}"
    place.check()
    is_keyed = name in look.with_keys(place)
    if is_keyed and key is None and name in look.lent(place):
        raise click.UsageError(f"there are two pools {name!r}, a keyed one and one of resources: use Python for that")
    if is_keyed:
        with look.keyed_pool(place, name) as tenants:
            if verb == "pause":
                is_idle = key is not None and not tenants.jobs(key=key, limit=1)
                note = "it has no jobs now: those to come will wait" if is_idle else None

                def pause() -> str | None:
                    tenants.admin.pause(key, reason=manner.reason)
                    return note

                manner.go(what, pause)
            else:
                _refuse_to_resume(tenants, key)
                manner.go(what, lambda: tenants.admin.resume(key, reason=manner.reason))
        return
    if key is not None:
        there = ", ".join(look.with_keys(place)) or "none"
        raise click.UsageError(
            f"there is no keyed pool {name!r} at {shown(place.url)}, so it has no keys; there is {there}"
        )
    look.either(place, name)
    with ResourcePool(name, place.url) as pool:
        if verb == "pause":
            manner.go(what, lambda: pool.admin.pause(reason=manner.reason or "from a shell"))
        else:
            if not pool.statistics().paused:
                raise click.ClickException(f"there is nothing to resume: {name} is not paused")
            manner.go(what, lambda: pool.admin.resume(reason=manner.reason or None))


def _refuse_to_resume(pool: KeyedPool, key: str | None) -> None:
    """Refuse to undo a pause that there is not."""
    if key is not None and key not in {one.key for one in pool.admin.paused()}:
        raise click.ClickException(f"there is nothing to resume: key {key!r} of {pool.name} is not paused")
    numbers = pool.statistics()
    if key is None and not (numbers.is_paused or numbers.is_shut):
        raise click.ClickException(f"there is nothing to resume: {pool.name} is neither paused nor shut down")

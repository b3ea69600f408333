"""What the page and its API do, each by the word of the command that does it. Every act needs a reason and is kept."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millpond import _operate
from millpond._words import duration, who
from millpond.errors import NotFound
from millpond.keyed import KeyedPool
from millpond.resources import ResourcePool
from millpond.web._pools import OpenPools

MOST = 1000
"""Jobs or resources that one act names."""
LONGEST_REASON = 500
NOBODY = "somebody"
"""Who acts and gives no name."""
COMMON = ("pool", "reason", "by", "dry_run")
ON_RESOURCE = ("cordon", "uncordon", "quarantine", "remove", "drain")


class Plan(NamedTuple):
    """What would be done, and how."""

    what: str
    do: Callable[[], object]
    none: str = ""
    """What is wrong when nothing was to be done."""


class Body:
    """What an act is given: an object of JSON."""

    def __init__(self, given: object, known: tuple[str, ...]) -> None:
        if not isinstance(given, dict):
            raise ValueError("send an object of JSON")
        for name in given:
            if name not in known:
                raise ValueError(f"there is no field {str(name)[:40]!r} here; there is {', '.join(known)}")
        self._given: Mapping[str, Any] = given

    def text(self, name: str) -> str:
        """Return a text that must be there."""
        found = self.maybe(name)
        if found is None:
            raise ValueError(f"say {name}")
        return found

    def maybe(self, name: str) -> str | None:
        """Return a text, or None."""
        found = self._given.get(name)
        if found is not None and not isinstance(found, str):
            raise ValueError(f"{name} is text, not {str(found)[:40]!r}")
        return found or None

    def flag(self, name: str) -> bool:
        """Return whether something is wanted."""
        found = self._given.get(name, False)
        if not isinstance(found, bool):
            raise ValueError(f"{name} is true or false, not {str(found)[:40]!r}")
        return found

    def token(self) -> int | None:
        """Return the token of a grant: a number, or its digits, since the numbers of JavaScript are too small."""
        found = self._given.get("token")
        if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) < 20:
            return int(found)
        if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
            raise ValueError(f"token is a number, not {str(found)[:40]!r}")
        return found

    def seconds(self, name: str) -> float | None:
        """Return a duration, or None."""
        found = self._given.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ValueError(f"{name} is a number of seconds, not {str(found)[:40]!r}")
        return float(found)

    def names(self, name: str) -> list[str]:
        """Return a list of texts; numbers may be among them."""
        found = self._given.get(name, [])
        if not isinstance(found, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in found):
            raise ValueError(f"{name} is a list of texts")
        if len(found) > MOST:
            raise ValueError(f"{name} are at most {MOST}, not {len(found)}")
        return [str(one) for one in found]

    def value(self, name: str, kind: type[Any]) -> Any:
        """Return a list or an object; an empty one if it is not there."""
        found = self._given.get(name)
        if found is None:
            return kind()
        if not isinstance(found, kind):
            raise ValueError(f"{name} is {'a list' if kind is list else 'an object'}, not {str(found)[:40]!r}")
        return found


class Acts:
    """Carries out what operators want. Every method may block."""

    def __init__(self, pools: OpenPools) -> None:
        self._pools = pools
        self.table: dict[str, tuple[Callable[[Body, str, str], Plan], tuple[str, ...]]] = {
            "release": (self._release, ("resource", "token")),
            "steal": (self._steal, ("resource", "token", "holder", "lease")),
            "reserve": (self._reserve, ("resource", "holder", "lease")),
            "withdraw": (self._withdraw, ("request",)),
            "add": (self._add, ("resources", "labels", "capacity")),
            "cancel": (self._cancel, ("ids", "key")),
            "retry": (self._retry, ("ids", "key", "all")),
            "replay": (self._letters("replay"), ("ids", "key", "all")),
            "discard": (self._letters("discard"), ("ids", "key", "all")),
            "purge": (self._purge, ("key",)),
            "dispatch": (self._dispatch, ("job", "key", "arguments", "named", "id", "delay", "force")),
            "pause": (self._pause("pause"), ("key", "kind")),
            "resume": (self._pause("resume"), ("key", "kind")),
            "configure": (self._configure, ("changes", "kind")),
        }
        """Every word, how it is planned, and which fields it takes beside `COMMON`."""
        for verb in ON_RESOURCE:
            self.table[verb] = (self._on_resource(verb), ("resource",))

    def act(self, verb: str, given: object, by: str) -> dict[str, Any]:
        """Do it for somebody, or say what would be done."""
        plan_it, known = self.table[verb]
        body = Body(given, (*COMMON, *known))
        reason = " ".join((body.maybe("reason") or "").split())
        if len(reason) > LONGEST_REASON or any("\ud800" <= one <= "\udfff" for one in reason):
            raise ValueError(f"reason is at most {LONGEST_REASON} characters of plain Unicode")
        is_trial = body.flag("dry_run")
        if not reason and not is_trial:
            raise ValueError("say why: reason is kept with what was done, for those who will ask")
        plan = plan_it(body, reason, by)
        if is_trial:
            return {"would": plan.what}
        answer = plan.do()
        if plan.none and answer == 0:
            raise NotFound(plan.none)
        return {"done": plan.what, "result": answer if isinstance(answer, int | str) else None}

    # --- resources -----------------------------------------------------------------------------------------------

    def _resource(self, body: Body) -> tuple[ResourcePool, str]:
        pool, name = self._pools.resources(body.text("pool")), body.text("resource")
        if name not in {one.name for one in pool.resources()}:
            raise NotFound(f"there is no resource {name!r} in pool {pool.name!r}")
        return pool, name

    def _on_resource(self, verb: str) -> Callable[[Body, str, str], Plan]:
        def plan(body: Body, reason: str, by: str) -> Plan:
            pool, name = self._resource(body)
            admin = pool.admin.on_behalf_of(by)

            def drain() -> None:
                with contextlib.suppress(TimeoutError):  # it goes on draining, and no request waits for that
                    admin.drain(name, reason=reason, timeout=0.0)

            do = drain if verb == "drain" else lambda: getattr(admin, verb)(name, reason=reason)
            return Plan(f"{verb} {pool.name}/{name}", do)

        return plan

    def _release(self, body: Body, reason: str, by: str) -> Plan:
        pool, name = self._resource(body)
        holder = _operate.held(pool, name, body.token())
        held = f"held by {who(holder.id, holder.host, holder.pid)} since {duration(holder.held_for)}"
        admin = pool.admin.on_behalf_of(by)
        return Plan(
            f"release {pool.name}/{name}, {held}", lambda: admin.release(name, token=holder.token, reason=reason)
        )

    def _steal(self, body: Body, reason: str, by: str) -> Plan:
        pool, name = self._resource(body)
        holder, lease = _operate.held(pool, name, body.token()), body.seconds("lease")
        owner = _owner(body, by)
        held = f"held by {who(holder.id, holder.host, holder.pid)} since {duration(holder.held_for)}"
        admin = pool.admin.on_behalf_of(by)
        return Plan(
            f"take {pool.name}/{name}, {held}, and keep it for {owner}",
            lambda: str(admin.keep(name, token=holder.token, holder=owner, reason=reason, lease=lease)),
        )

    def _reserve(self, body: Body, reason: str, by: str) -> Plan:
        pool, name = self._resource(body)
        owner, lease = _owner(body, by), body.seconds("lease")
        admin = pool.admin.on_behalf_of(by)
        holders = [one for one in pool.holders() if name in one.resources]
        when = f", when {who(holders[0].id, holders[0].host, holders[0].pid)} gives it back" if holders else ""
        return Plan(
            f"reserve {pool.name}/{name} for {owner}{when}",
            lambda: admin.reserve(name, holder=owner, reason=reason, lease=lease),
        )

    def _withdraw(self, body: Body, reason: str, by: str) -> Plan:
        pool, request = self._pools.resources(body.text("pool")), body.text("request")
        admin = pool.admin.on_behalf_of(by)
        return Plan(
            f"take request {request!r} out of the line of {pool.name}",
            lambda: admin.withdraw(request, reason=reason),
        )

    def _add(self, body: Body, reason: str, by: str) -> Plan:
        pool, names = self._pools.resources(body.text("pool")), body.names("resources")
        labels, capacity = body.value("labels", dict), body.value("capacity", int) or 1
        if not names:
            raise ValueError("say which resources to add")

        def add() -> int:
            admin = pool.admin.on_behalf_of(by)
            for name in names:
                pool.add(name, labels=labels or None, capacity=capacity)
                admin.relabel(name, labels, reason=reason)  # an addition itself has no place for who and why
            return len(names)

        return Plan(f"add {', '.join(names[:3])}{' ...' if len(names) > 3 else ''} to {pool.name}", add)

    # --- keyed pools ---------------------------------------------------------------------------------------------

    def _keyed(self, body: Body) -> KeyedPool:
        return self._pools.keyed(body.text("pool"))

    def _cancel(self, body: Body, reason: str, by: str) -> Plan:
        pool, ids, key = self._keyed(body), body.names("ids"), body.maybe("key")
        if not ids:
            raise ValueError("say which jobs: ids")
        return Plan(
            f"cancel {_jobs(ids)} of {pool.name}",
            lambda: pool.admin.cancel(ids, key=key, reason=reason, by=by),
            f"there is nothing to cancel: no such job of {pool.name} has not ended",
        )

    def _retry(self, body: Body, reason: str, by: str) -> Plan:
        pool, (ids, key, is_all) = self._keyed(body), _which("retry", body)
        keys = _operate.retrying(pool, ids, key)
        return Plan(
            f"try again now: {len(keys)} {'key' if len(keys) == 1 else 'keys'} of {pool.name}",
            lambda: pool.admin.retry(*keys, reason=reason, by=by) if keys else 0,
            "" if is_all else "there is nothing to try again: no such job waits for that",
        )

    def _letters(self, verb: str) -> Callable[[Body, str, str], Plan]:
        def plan(body: Body, reason: str, by: str) -> Plan:
            pool, (ids, key, is_all) = self._keyed(body), _which(verb, body)
            chosen = _operate.letters(ids)
            which = _jobs(ids) if chosen else "all" if key is None else f"all of key {key!r}"
            return Plan(
                f"{verb} dead letters of {pool.name}: {which}",
                lambda: getattr(pool.admin, verb)(chosen or None, key=key, reason=reason, by=by),
                "" if is_all else f"there is nothing to {verb}",
            )

        return plan

    def _purge(self, body: Body, reason: str, by: str) -> Plan:
        pool, key = self._keyed(body), body.text("key")
        return Plan(
            f"drop the waiting jobs of key {key!r} of {pool.name}",
            lambda: pool.admin.purge(key, reason=reason, by=by),
        )

    def _dispatch(self, body: Body, reason: str, by: str) -> Plan:
        pool, job, key = self._keyed(body), body.text("job"), body.text("key")
        arguments, named = body.value("arguments", list), body.value("named", dict)
        if not body.flag("force") and (problem := _operate.unknown_job(pool, job)):
            raise ValueError(f"{problem}; so its key would wait (force: let it)")
        dispatch = pool.declare_job(job).options(id=body.maybe("id"), delay=body.seconds("delay")).dispatch

        def do() -> str:
            receipt = dispatch(key, *arguments, **named)
            pool.admin.note("dispatch", f"{job} {receipt.id} of {key[:200]}", reason=reason, by=by)
            return receipt.id

        return Plan(f"dispatch {job} of key {key!r} to {pool.name}", do)

    # --- both ----------------------------------------------------------------------------------------------------

    def _pause(self, verb: str) -> Callable[[Body, str, str], Plan]:
        def plan(body: Body, reason: str, by: str) -> Plan:
            name, key = body.text("pool"), body.maybe("key")
            kind = "keyed" if key is not None else self._pools.kind(name, body.maybe("kind"))
            what = f"{verb} {name}" if key is None else f"{verb} key {key!r} of {name}"
            if kind == "keyed":
                tenants = self._pools.keyed(name)
                return Plan(what, lambda: getattr(tenants.admin, verb)(key, reason=reason, by=by))
            admin = self._pools.resources(name).admin.on_behalf_of(by)
            return Plan(what, lambda: getattr(admin, verb)(reason=reason))

        return plan

    def _configure(self, body: Body, reason: str, by: str) -> Plan:
        name, changes = body.text("pool"), body.value("changes", dict)
        is_keyed = self._pools.kind(name, body.maybe("kind")) == "keyed"
        pool: Any = self._pools.keyed(name) if is_keyed else self._pools.resources(name)
        admin = pool.admin if is_keyed else pool.admin.on_behalf_of(by)
        known = [one for one in inspect.signature(admin.configure).parameters if one not in ("reason", "by")]
        if not changes or any(one not in known for one in changes):
            raise ValueError(f"changes has some of {', '.join(known)}")
        who_did = {"by": by} if is_keyed else {}
        listed = ", ".join(f"{one}={value}" for one, value in changes.items())
        return Plan(f"configure {name}: {listed}", lambda: admin.configure(**changes, reason=reason, **who_did))


def _owner(body: Body, by: str) -> str:
    """Return for whom something is kept: whom they name, else who acts."""
    owner = body.maybe("holder") or by.rpartition(" (web")[0]
    if owner != NOBODY:
        return owner
    if body.flag("dry_run"):
        return "you"
    raise ValueError("say for whom it is kept: holder, or by, your name")


def _which(verb: str, body: Body) -> tuple[list[str], str | None, bool]:
    """Return the jobs that are meant: by ids, of a key, or all."""
    ids, key, is_all = body.names("ids"), body.maybe("key"), body.flag("all")
    if sum((bool(ids), key is not None, is_all)) != 1:
        raise ValueError(f"say what to {verb}: ids, or key, or all")
    return ids, key, is_all


def _jobs(ids: list[str]) -> str:
    return ids[0][:80] if len(ids) == 1 else f"{len(ids)} of them"

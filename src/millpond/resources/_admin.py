# Generated from _async_admin.py by tools/twins.py: edit that file, then run `make format`.
"""Operators' verbs: they change resources and other people's grants, and everything they do is in the history.

The synchronous twin, `_admin.py`, is generated from this file by `tools/twins.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from millpond._events import Event
from millpond.errors import AcquireTimeout, NotFound, PoolError, StaleToken
from millpond.resources import _arguments
from millpond.resources import _questions as about
from millpond.resources._bridge import Bridge, pause
from millpond.resources._engine import Question
from millpond.resources._grant import Grant
from millpond.resources._own_requests import OwnRequests
from millpond.resources._rules import commands, selectors
from millpond.resources._rules.records import ACTIVE, CORDONED, DRAINING, QUARANTINED, Holder, Settings, Want
from millpond.resources._rules.selectors import Labels

T = TypeVar("T")
_FIELDS = {
    "patience": "patience",
    "ageing": "ageing",
    "claim_within": "claim",
    "lock_delay": "delay",
    "retention": "retention",
    "free_after": "free_after",
}
_OPERATOR = _arguments.PRIORITY + 1
"""The priority of an operator's reservation: ahead of everybody."""


class Admin:
    """What operators do to a pool. Each verb takes `reason=`: it is shown and kept in the history."""

    def __init__(self, bridge: Bridge, own: OwnRequests, by: str, take: Callable[[commands.Adopt], Any]) -> None:
        self._bridge = bridge
        self._own = own
        self._by = by
        self._take = take

    def on_behalf_of(self, who: str) -> Admin:
        """Return the same verbs, done for somebody else: the history names them instead of this process."""
        return Admin(self._bridge, self._own, _arguments.name(who, "who it is done for"), self._take)

    # --- resources ---------------------------------------------------------------------------------------------

    def remove(self, resource: str, *, reason: str | None = None) -> None:
        """Remove a resource: at once when nobody holds it, else when the last holder gives it back."""
        self._change(commands.Remove(_resource(resource), self._by, _arguments.text(reason, "reason")))

    def relabel(self, resource: str, labels: Labels, *, reason: str | None = None) -> None:
        """Give a resource other labels (all of them). Holders keep it; waiters are looked at again."""
        new = _arguments.labels(labels)
        self._change(commands.Relabel(_resource(resource), new, self._by, _arguments.text(reason, "reason")))

    def resize(self, resource: str, capacity: int, *, reason: str | None = None) -> None:
        """Change how many units a resource has. Nobody loses any: less takes effect as they are given back."""
        size = _arguments.whole(capacity, "capacity", 1)
        self._change(commands.Resize(_resource(resource), size, self._by, _arguments.text(reason, "reason")))

    def cordon(self, resource: str, *, reason: str | None = None) -> None:
        """Stop lending a resource; its holder keeps it. What is quarantined stays so."""
        self._mark(resource, CORDONED, reason)

    def uncordon(self, resource: str, *, reason: str | None = None) -> None:
        """Lend a resource again: the end of cordon, drain, quarantine and of a removal that is not complete."""
        self._mark(resource, ACTIVE, reason)

    def quarantine(self, resource: str, *, reason: str) -> None:
        """Take a broken resource out of service until somebody uncordons it."""
        self._mark(resource, QUARANTINED, _arguments.why(reason))

    def drain(self, resource: str, *, reason: str | None = None, timeout: float | None = None) -> None:
        """Stop lending a resource, and wait until it is given back; then it is cordoned, or still quarantined.

        With `timeout` over first, `AcquireTimeout` is raised and the resource goes on draining.
        """
        _arguments.microseconds(timeout, "timeout")
        resource = _resource(resource)
        self._mark(resource, DRAINING, reason)
        if not pause(self._bridge, about.IsDraining(resource), timeout):
            raise AcquireTimeout(f"{resource!r} is still held after {timeout:g} s: it goes on draining; see holders()")

    # --- other people's grants ---------------------------------------------------------------------------------

    def release(self, resource: str, *, token: int, reason: str) -> None:
        """Take a grant away from its holder, if `token` is the one that counts; else raise `StaleToken`."""
        token, resource = _arguments.whole(token, "token"), _resource(resource)
        command = commands.Release(self._own.engine.session, token, resource, self._by, _arguments.why(reason))
        _insist_on_token(self._send(command), resource, token)

    def withdraw(self, request_id: str, *, reason: str) -> None:
        """Remove somebody's request from the queue."""
        request_id = _arguments.name(request_id, "request_id")
        command = commands.Withdraw(self._own.engine.session, request_id, self._by, _arguments.why(reason))
        if self._send(command).kind in ("unknown", "ended"):
            raise NotFound(f"there is no request {request_id!r} in pool {self._own.pool!r}: see waiters()")

    def steal(self, resource: str, *, token: int, reason: str, lease: float | None = None) -> Grant:
        """Take a grant over in one step: it is yours under a new token, and its holder is told that it is lost."""
        command = commands.Adopt(
            self._own.engine.session,
            _arguments.whole(token, "token"),
            self._own.holder,
            "stolen",
            _arguments.why(reason),
            _arguments.microseconds(lease, "lease", 0.05),
            _resource(resource),
            self._by,
        )
        grant: Grant = self._take(command)
        return grant

    def keep(self, resource: str, *, token: int, holder: str, reason: str, lease: float | None = None) -> int:
        """Keep a grant for a person, say for a post-mortem: it outlives the process that has it. Return its new token.

        It ends by `release(resource, token=…)`, or after `lease` seconds.
        """
        command = commands.Adopt(
            "",
            _arguments.whole(token, "token"),
            Holder("person", _arguments.name(holder, "holder")),
            "kept",
            _arguments.why(reason),
            _arguments.microseconds(lease, "lease", 0.05),
            _resource(resource),
            self._by,
        )
        reply = self._send(command)
        _insist_on_token(reply, resource, token)
        return reply.token

    def reserve(self, resource: str, *, holder: str, reason: str, lease: float | None = None) -> str:
        """Reserve a resource for a person, ahead of everybody who waits: now, or as soon as it is given back.

        Return the id of the reservation; `withdraw` ends it, whether it is held yet or not.
        """
        command = commands.Acquire(
            self._own.new_id(),
            "",
            0,
            Holder("person", _arguments.name(holder, "holder")),
            (Want(selectors.write(name=_resource(resource)), 1, 0),),
            priority=_OPERATOR,
            lease=_arguments.microseconds(lease, "lease", 0.05),
            reason=f"{_arguments.why(reason)} (reserved by {self._by})",
            sure=True,
            by=self._by,
        )
        reply = self._send(command)
        if reply.kind == "unsatisfiable":
            raise _no_resource(resource, self._own.pool)
        return reply.id

    # --- the pool ----------------------------------------------------------------------------------------------

    def pause(self, *, reason: str) -> None:
        """Grant nothing until `resume`; what is held stays held, requests line up."""
        text = _arguments.why(reason)
        self._configure(lambda now: msgspec.structs.replace(now, paused=text), text)

    def resume(self, *, reason: str | None = None) -> None:
        """Grant again."""
        self._configure(lambda now: msgspec.structs.replace(now, paused=""), _arguments.text(reason, "reason"))

    def configure(
        self,
        *,
        patience: float | None = None,
        ageing: float | None = None,
        claim_within: float | None = None,
        lock_delay: float | None = None,
        retention: float | None = None,
        free_after: float | None = None,
        reason: str | None = None,
    ) -> None:
        """Change the settings of the pool, for all who use it; what is None stays. All in seconds.

        `patience`: a bundle that waited this long has freed units kept for it. `ageing`: waiting that weighs as much
        as one point of priority (0: priorities are strict). `claim_within`: an offer not claimed in this time goes to
        the next. `lock_delay`: pause before a resource is lent again after an expiry, a revocation or a death.
        `retention`: a `request_id` keeps its place this long after its process died. `free_after` (Redis and
        PostgreSQL): what a machine held that has not been heard of for this long is lent again, although nobody knows
        whether its processes still use it; 0, the default: it stays, and is shown as suspect.
        """
        changes: dict[str, int] = {}
        given = {"patience": patience, "ageing": ageing, "lock_delay": lock_delay, "retention": retention}
        for name, value in {**given, "free_after": free_after}.items():
            if value is not None:
                length = _arguments.microseconds(value, name)  # 0 for ages, too, and 1 for nothing
                changes[_FIELDS[name]] = 0 if value == 0 else length
        if claim_within is not None:
            changes["claim"] = _arguments.microseconds(claim_within, "claim_within", 0.01)
        text = _arguments.text(reason, "reason")
        self._configure(lambda now: msgspec.structs.replace(now, **changes), text)

    def settings(self) -> dict[str, float]:
        """Return the settings of the pool, as `configure` takes them: seconds."""
        found = self._ask(about.PoolSettings())
        return {name: getattr(found, field) / 1_000_000 for name, field in _FIELDS.items()}

    def group(self, name: str, *, weight: int = 1, quota: int | None = None, reason: str | None = None) -> None:
        """Give a group (tenant) its weight in the fair share, and the most units it may hold."""
        self._change(
            commands.SetGroup(
                _arguments.name(name, "a group's name"),
                _arguments.whole(weight, "weight", 1),
                0 if quota is None else _arguments.whole(quota, "quota", 1),
                self._by,
                _arguments.text(reason, "reason"),
            )
        )

    def history(self, resource: str | None = None, *, limit: int = 100, acts: bool = False) -> list[Event]:
        """Return what happened lately, oldest first: who did what, when and why.

        With `acts`, only what operators did: the last 200 of those are kept, however much else happens.
        """
        only_acts = _arguments.flag(acts, "acts")
        pool, most = self._own.pool, _arguments.whole(limit, "limit", 0)
        resource = None if resource is None else _resource(resource)
        return self._ask(about.History(pool, resource, most, only_acts))

    def explain(self, name: str) -> str:
        """Say in a sentence how a request or a resource stands, and why a waiter was not granted yet."""
        return self._ask(about.Explain(_arguments.name(name, "a request or resource")))

    def delete_pool(self, *, force: bool = False) -> None:
        """Delete the pool with all its resources. Refused while anybody holds or waits, unless forced.

        With `force`, a pool that cannot be read is deleted, too.
        """
        is_forced = _arguments.flag(force, "force")
        self._own.check_open()
        if not is_forced and (users := self._ask(about.CountRequests())):
            raise PoolError(
                f"pool {self._own.pool!r} is in use by {users} holders and waiters: see holders(), or say force=True"
            )
        self._bridge.call(lambda: self._own.engine.drop(self._own.pool))

    # --- small things ------------------------------------------------------------------------------------------

    def _send(self, command: commands.Command) -> commands.Reply:
        self._own.check_open()
        return self._bridge.send(command)

    def _ask(self, question: Question[T]) -> T:
        self._own.check_open()
        return self._bridge.ask(question)

    def _mark(self, resource: str, state: str, reason: str | None) -> None:
        self._change(commands.Mark(_resource(resource), state, self._by, _arguments.text(reason, "reason")))

    def _configure(self, change: Callable[[Settings], Settings], reason: str) -> None:
        settings = self._ask(about.PoolSettings())
        self._send(commands.Configure(change(settings), self._by, reason))

    def _change(self, command: commands.Command) -> commands.Reply:
        reply = self._send(command)
        if reply.kind == "unknown":
            raise _no_resource(reply.id, self._own.pool)
        return reply


def _resource(name: object) -> str:
    return _arguments.name(name, "a resource's name")


def _no_resource(name: str, pool: str) -> NotFound:
    return NotFound(f"there is no resource {name!r} in pool {pool!r}: see resources()")


def _insist_on_token(reply: commands.Reply, resource: str, token: int) -> None:
    if reply.kind in ("stale", "ended"):
        raise StaleToken(
            f"token {token} does not hold {resource!r}: {reply.detail}; nothing was changed, see holders() for the "
            "token that counts"
        )

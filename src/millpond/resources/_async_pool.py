"""A pool of named resources that are lent to holders.

The synchronous twin, `_pool.py`, is generated from this file by `tools/twins.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeAlias, TypeVar

from millpond._clock import elapsed
from millpond._events import Event, Observer
from millpond._fork import this
from millpond._person import user_and_host
from millpond._urls import shown
from millpond.errors import AcquireTimeout, AlreadyExists, EngineUnavailable, StaleToken
from millpond.resources import _arguments, _history
from millpond.resources import _questions as about
from millpond.resources._arguments import Units
from millpond.resources._async_admin import AsyncAdmin
from millpond.resources._async_bridge import ON_LOST, AsyncBridge, AsyncStream, begin, check_on_lost
from millpond.resources._async_grant import AsyncGrant, Chooser, OnLost
from millpond.resources._async_observed import grant_maker
from millpond.resources._engine import Question
from millpond.resources._own_requests import OwnRequests
from millpond.resources._rules import commands
from millpond.resources._rules.commands import Acquire, Reply
from millpond.resources._rules.records import HELD, Want
from millpond.resources._rules.selectors import Labels, Selector
from millpond.resources._rules.wire import Entry
from millpond.resources._views import HolderView, PoolStatistics, ResourceView, WaiterView
from millpond.resources._watching import Watching
from millpond.resources.engines import has_registry, open_engine

T = TypeVar("T")
Placement: TypeAlias = str | Chooser
"""A policy by name, or a function that returns the candidates it will take, best first."""


class AsyncResourcePool:
    """Scarce named things, lent to whoever asks, first come first served.

    `url` says where the pool lives: `memory:` in this process, `sqlite:///file.db` between all processes of this
    machine. Pools of one name and URL are one pool, in however many objects and processes.

    `holder` names you to others (else host and pid do). `placement` is `first`, `lru`, `mru`, `random`, `pack`,
    `spread` or a function that ranks the free candidates and may decline an offer; on Temporal also the name of one
    that is registered with the pool's worker. `on_lost` says what happens when a lease is lost or a grant taken away
    while it is used: see the docs; `suspect_after` seconds a grant counts as held too long. `on_event` is called with
    an `Event` when this object has acquired something (how long it waited), could not, or has released it.
    """

    def __init__(
        self,
        name: str,
        url: str = "memory:",
        *,
        holder: str | None = None,
        placement: Placement = "first",
        on_lost: OnLost = ON_LOST,
        suspect_after: float | None = None,
        on_event: Observer | None = None,
    ) -> None:
        check_on_lost(on_lost)
        _arguments.microseconds(suspect_after, "suspect_after")
        self.name = _arguments.name(name, "a pool's name")
        self.url = url
        self._chooser = placement if callable(placement) else None
        self._policy = "first" if callable(placement) else _arguments.policy(placement, registered=has_registry(url))
        self._on_lost = on_lost
        if on_event is not None and not callable(on_event):
            raise TypeError(f"on_event must be callable, not {on_event!r}")
        self._on_event = on_event
        self._make_grant = grant_maker(on_event)
        self._holder = _arguments.text(holder, "holder")
        self._suspect_after = suspect_after
        self._open()

    def _open(self) -> None:
        """Begin, in whatever process this is."""
        self._pid = this.pid
        self._engine = open_engine(self.url)
        self._bridge = AsyncBridge(self._engine, self.name)
        self._own = OwnRequests(self._engine, self.name, self._holder, self._suspect_after)
        self._admin = AsyncAdmin(self._bridge, self._own, _operator(), self._take)
        self._streams: weakref.WeakSet[AsyncStream[Sequence[Entry]]] = weakref.WeakSet()

    def _check(self) -> None:
        """Refuse to work after close; begin anew in a forked child, which holds nothing of what its parent holds."""
        if this.pid != self._pid:
            if not self._engine.is_shared:
                raise RuntimeError(
                    f"pool {self.name!r} lives in the memory of process {self._pid}, and this is its forked child "
                    f"{this.pid}: use a sqlite:/// URL to share it"
                )
            self._open()
        self._own.check_open()

    @property
    def admin(self) -> AsyncAdmin:
        """Operators' verbs."""
        self._check()
        return self._admin

    # --- acquiring ---------------------------------------------------------------------------------------------

    def acquire(
        self,
        selector: Selector | None = None,
        /,
        *,
        name: str | None = None,
        count: int = 1,
        units: Units = 1,
        timeout: float | None = None,
        lease: float | None = None,
        priority: int = 0,
        group: str | None = None,
        request_id: str | None = None,
        reason: str | None = None,
        wait_for_capacity: bool = False,
    ) -> AsyncGrant:
        """Wait for resources and return them as a grant, itself a context manager.

        `selector` says which: labels, or a list of alternatives; or `name=` one of them. `count` different ones,
        `units` of each (`"all"`: exclusively). A **lock** unless `lease=` seconds are given: then it ends unless it is
        renewed, which is done for you.

        Raise `AcquireTimeout` after `timeout` seconds, and `Unsatisfiable` at once if no resource could ever do,
        unless `wait_for_capacity`. Cancelled or interrupted, nothing is held and nothing asked for any more.

        With a `request_id`, asking again after a crash takes the old place in the line.
        """
        want = _arguments.want(selector, name=name, count=count, units=units)
        return begin(
            self._grant((want,), timeout, lease, priority, group, request_id, reason, wait_for_capacity, wait=True)
        )

    def acquire_all(
        self,
        selectors: Iterable[Selector | Want],
        /,
        *,
        timeout: float | None = None,
        lease: float | None = None,
        priority: int = 0,
        group: str | None = None,
        request_id: str | None = None,
        reason: str | None = None,
        wait_for_capacity: bool = False,
    ) -> AsyncGrant:
        """Wait for several resources at once, all or nothing: bundles never deadlock, and do not starve.

        A part is a selector, or `want(selector, name=, count=, units=)`. `grant.resources` has them in this order.
        """
        wants = _arguments.bundle(selectors)
        return begin(
            self._grant(wants, timeout, lease, priority, group, request_id, reason, wait_for_capacity, wait=True)
        )

    async def try_acquire(
        self,
        selector: Selector | None = None,
        /,
        *,
        name: str | None = None,
        count: int = 1,
        units: Units = 1,
        lease: float | None = None,
        priority: int = 0,
        group: str | None = None,
        request_id: str | None = None,
        reason: str | None = None,
    ) -> AsyncGrant | None:
        """Return a grant if it can be had now, else None, without waiting."""
        want = _arguments.want(selector, name=name, count=count, units=units)
        grant = self._grant((want,), None, lease, priority, group, request_id, reason, False, wait=False)
        try:
            await grant._obtain()
        except AcquireTimeout:
            return None
        return grant

    async def adopt(self, token: int, *, lease: float | None = None, reason: str | None = None) -> AsyncGrant:
        """Take over a grant that was passed on with `transfer()`: it is yours under a new token, in one step."""
        self._check()
        command = commands.Adopt(
            self._engine.session,
            _arguments.whole(token, "token"),
            self._own.holder,
            "transferred",
            _arguments.text(reason, "reason"),
            _arguments.microseconds(lease, "lease", 0.05),
            seen=self._own.seen,
        )
        return await self._take(command)

    # --- resources and questions -------------------------------------------------------------------------------

    async def add(self, name: str, *, labels: Labels | None = None, capacity: int = 1, exist_ok: bool = False) -> None:
        """Add a resource. `capacity` is how many units it has, for holders that share it."""
        plain = _arguments.name(name, "a resource's name")
        may_exist = _arguments.flag(exist_ok, "exist_ok")
        self._check()
        command = commands.Add(plain, _arguments.labels(labels), _arguments.whole(capacity, "capacity", 1), _operator())
        if (await self._bridge.send(command)).kind == "exists" and not may_exist:
            raise AlreadyExists(
                f"pool {self.name!r} has a resource {name!r} already: use exist_ok=True, admin.relabel or admin.resize"
            )

    async def resources(self) -> list[ResourceView]:
        """Return all resources, in the pool's order."""
        return await self._ask(about.Resources())

    async def holders(self) -> list[HolderView]:
        """Return who holds what: since when, why, under which token; the longest hold first."""
        return await self._ask(about.Holders())

    async def waiters(self) -> list[WaiterView]:
        """Return who waits, in the order of service: position, since when, and why not granted."""
        return await self._ask(about.Waiters())

    async def statistics(self) -> PoolStatistics:
        """Return the pool in figures."""
        return await self._ask(about.Statistics())

    def watch(self) -> AsyncIterator[Event]:
        """Iterate over what happens in the pool from now on, until the pool is closed.

        Raise `PoolError` when you fall behind by very much.
        """
        self._check()
        stream: AsyncStream[Sequence[Entry]] = AsyncStream()
        watching = Watching(self._engine.watch(self.name, stream.put))
        self._streams.add(stream)
        events = self._events(stream, watching)
        watching.end_with(events)
        return events

    async def _events(self, stream: AsyncStream[Sequence[Entry]], watching: Watching) -> AsyncIterator[Event]:
        try:
            writer = _history.EventWriter(self.name, await self._bridge.ask(about.Requests()))
            async for entries in stream:
                told = list(writer.of_entries(entries))
                while told:
                    yield told.pop(0)
        finally:
            watching.stop()
            self._streams.discard(stream)

    # --- closing -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Give back what this object holds, withdraw what it asked for, and stop. Closing again does nothing."""
        if self._own.is_closed or this.pid != self._pid:
            return
        for stream in list(self._streams):
            stream.close()
        interrupt: BaseException | None = None
        answer: Reply | Exception | None = None
        for command in self._own.close():
            if not isinstance(answer, EngineUnavailable):  # else the next one would not be answered either
                answer, again = await self._bridge.finish(command)
                interrupt = again or interrupt
            if isinstance(answer, Exception):
                self._own.owe(command)
        await self._bridge.call(self._engine.close)
        if interrupt is not None:
            raise interrupt

    async def __aenter__(self) -> AsyncResourcePool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> tuple[object, ...]:
        if not self._engine.is_shared:
            raise TypeError(
                f"pool {self.name!r} lives in the memory of process {self._pid} and cannot be sent to another one: "
                "use a sqlite:/// URL to share it"
            )
        again = partial(
            type(self),
            holder=self._holder or None,
            placement=self._chooser or self._policy,
            on_lost=self._on_lost,
            suspect_after=self._suspect_after,
            on_event=self._on_event,
        )
        return again, (self.name, self.url)

    def __repr__(self) -> str:
        closed = " closed" if self._own.is_closed else ""
        return f"<{type(self).__name__} {self.name!r} on {shown(self.url)}{closed}>"

    # --- small things ------------------------------------------------------------------------------------------

    def _grant(
        self,
        wants: tuple[Want, ...],
        timeout: float | None,
        lease: float | None,
        priority: int,
        group: str | None,
        request_id: str | None,
        reason: str | None,
        patient: bool,
        *,
        wait: bool,
    ) -> AsyncGrant:
        self._check()
        limit = _arguments.microseconds(timeout, "timeout")
        command = Acquire(
            self._own.new_id() if request_id is None else _arguments.chosen_id(request_id),
            self._engine.session,
            0,
            self._own.holder,
            wants,
            _arguments.priority(priority),
            _arguments.text(group, "group"),
            _arguments.microseconds(lease, "lease", 0.05),
            _arguments.text(reason, "reason"),
            self._policy,
            picky=self._chooser is not None,
            chosen=request_id is not None,
            patient=_arguments.flag(patient, "wait_for_capacity"),
            wait=wait and timeout != 0,
            timeout=limit,
            seen=self._own.seen,
        )
        return self._make_grant(self._bridge, self._own, command, timeout, self._on_lost, self._chooser)

    async def _take(self, command: commands.Adopt) -> AsyncGrant:
        self._check()
        with self._own.taking_over():
            return await self._adopt(command)

    async def _adopt(self, command: commands.Adopt) -> AsyncGrant:
        sent = elapsed()
        reply, interrupt = await self._bridge.finish(command)
        if interrupt is not None:
            if isinstance(reply, Reply) and reply.kind == HELD:
                self._own.owe(commands.Release(command.session, reply.token))
            raise interrupt
        if isinstance(reply, Exception):
            raise reply
        if reply.kind in ("stale", "ended"):
            raise StaleToken(f"token {command.token} holds nothing to take over: {reply.detail}; see holders()")
        acquire = Acquire(
            reply.id, command.session, 0, command.holder, (Want(),), lease=command.lease, reason=command.reason
        )
        grant = self._make_grant(self._bridge, self._own, acquire, None, self._on_lost)
        grant._adopted(reply, sent)
        return grant

    async def _ask(self, question: Question[T]) -> T:
        self._check()
        return await self._bridge.ask(question)


def _operator() -> str:
    """Return who does it, for the history."""
    return f"{user_and_host()}:{this.pid}"

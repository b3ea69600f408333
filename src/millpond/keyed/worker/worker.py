"""A worker: a member of the pool that runs jobs. It lives in an event loop, and talks to the store from threads.

Worker      joins, is lost, joins again, leaves         this file
Heartbeat   renews the lease, watches the clock         heartbeat
Feed        reports and takes                           feed
Rebalancer  gives and claims slots                      rebalancer
Runner      begins and stops what was taken             runner
Membership  the time under one id, and its lease        membership
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
from functools import partial

from millpond._clock import elapsed
from millpond._events import Observer, logger
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.rules import commands as do
from millpond.keyed.rules.checks import check_seconds
from millpond.keyed.rules.records import SECOND, Joiner
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.shared.notices import tell
from millpond.keyed.stores.base import Subscription
from millpond.keyed.worker.feed import Feed
from millpond.keyed.worker.heartbeat import Heartbeat
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.runner import Runner

CANCELLED = 2.0
"""Seconds that coroutines get to end once they were cancelled."""


class Worker:
    """Runs jobs of a pool, from `start` to `close`."""

    def __init__(
        self,
        connection: PoolConnection,
        *,
        concurrency: int = 100,
        weight: int = 1,
        strict: bool = False,
        grace: float | None = None,
        stall: float = 60.0,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ValueError(f"concurrency must be a whole number from 1, not {concurrency!r}")
        if type(weight) is not int or not 1 <= weight <= 1000:
            raise ValueError(f"weight must be a whole number from 1 to 1000, not {weight!r}")
        if strict and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL:
            raise ValueError("strict=True ends the process by SIGALRM, but this program has a handler for it")
        if grace is not None:
            check_seconds(grace, "grace")
        check_seconds(stall, "stall")
        self._connection = connection
        self._stall = stall
        self._concurrency = concurrency
        self._weight = weight
        self._strict = strict
        self._grace = grace
        self._has_runner = False
        self._measuring: list[Observer] = []
        self._membership: Membership | None = None
        self._subscription: Subscription | None = None
        self._closing: asyncio.Future[None] | None = None
        self._departing: asyncio.Future[None] | None = None
        self.stopped: asyncio.Event = asyncio.Event()
        """Set when the worker is to end, or does."""

    @property
    def id(self) -> str:
        """The id under which it is a member now; another one after it lost its lease."""
        return "" if self._membership is None else self._membership.id

    @property
    def is_member(self) -> bool:
        """Whether its lease surely holds."""
        return self._membership is not None and self._membership.may_begin()

    def measure(self, observer: Observer) -> None:
        """Also tell this observer of every run of a handler from now on; from whatever thread."""
        self._measuring.append(observer)
        if self._has_runner:
            self._runner.measure(observer)

    async def start(self) -> None:
        """Join the pool and begin to take jobs."""
        self._loop = asyncio.get_running_loop()
        connection = self._connection
        self._store, self._settings, placement = await self._loop.run_in_executor(None, connection.engage)
        store, settings = self._store, self._settings
        self._feed = Feed(
            connection.name, store, settings, placement, self._lost, self._renew_soon, self._shut, connection.observer
        )
        self._runner = Runner(
            connection.name,
            connection.definitions,
            self._concurrency,
            self._feed.report,
            connection.observer,
            largest=settings.payload_limit,
            tracing=connection.tracing,
        )
        for observer in self._measuring:
            self._runner.measure(observer)
        self._has_runner = True
        lease = settings.lease / SECOND
        outer = None
        try:
            outer = store.outer_heart(lease, self._stall, renews=not self._strict)
            beats = self._join, self._is_wanted, self._feed.tell, self._lost, self._feed.is_stuck, self._is_running
            self._heartbeat = Heartbeat(connection.name, store, lease, *beats, outer)
            membership = await self._loop.run_in_executor(None, self._join)
        except BaseException:
            if outer is not None:
                outer.close()
            connection.dismiss(store)
            raise
        self._heartbeat.start(membership)
        self._feed.start(self._runner)

    async def close(self, grace: float | None = None) -> None:
        """Leave the pool: what was not begun is handed over at once, what runs has `grace` seconds to end."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(grace))
        await asyncio.shield(self._closing)

    async def _close(self, grace: float | None) -> None:
        self.stopped.set()
        grace = next(each for each in (grace, self._grace, self._settings.drain / SECOND) if each is not None)
        feed, runner, heartbeat, membership = self._feed, self._runner, self._heartbeat, self._membership
        feed.stop_taking()
        heartbeat.is_leaving = True
        runner.close()
        in_thread = partial(self._loop.run_in_executor, None)
        try:
            if membership is not None and not membership.is_over:
                await in_thread(feed.rebalancer.hand_over, membership, runner)
        except EngineError as error:
            logger.warning("a worker of pool %r leaves without handing over: %s", self._connection.name, error)
        is_idle = await runner.idle(grace)
        if not is_idle:
            runner.stop("closing")
            is_idle = await runner.idle(CANCELLED, hurried=True)
        if is_idle:
            await self._depart()
        else:
            logger.warning(
                "%d plain functions still run on a worker of pool %r that is to end: they keep their keys, and the "
                "worker its lease, until they return",
                self.running,
                self._connection.name,
            )
            self._departing = asyncio.ensure_future(self._depart())

    async def _depart(self) -> None:
        """Leave the pool when nothing runs any more."""
        feed, runner, heartbeat = self._feed, self._runner, self._heartbeat
        in_thread = partial(self._loop.run_in_executor, None)
        while True:
            await runner.idle(None, hurried=True)
            is_heard = await in_thread(feed.flush, self._settings.lease / SECOND)
            if not is_heard or (runner.is_idle and feed.is_quiet()):
                break  # else the last answer brought something, which is given back
        await in_thread(feed.end)
        await in_thread(heartbeat.end)
        membership = self._membership  # it may have been renewed meanwhile
        if membership is not None and not membership.is_over:
            membership.end(disarm=True)
            await in_thread(self._leave, membership)
        runner.shut()
        if self._subscription is not None:
            self._subscription.close()
        await in_thread(self._connection.dismiss, self._store)
        tell(self._connection.observer, "worker_left", self._connection.name, worker=self.id)

    @property
    def is_gone(self) -> bool:
        """Whether it has left, or has nothing to wait for."""
        return self._departing is None or self._departing.done()

    async def departed(self) -> None:
        """Wait until it has left, which `close` does not do for plain functions that go on."""
        if self._departing is not None:
            await asyncio.shield(self._departing)

    @property
    def running(self) -> int:
        """How many jobs and residents it runs."""
        return len(self._runner.takes) if self._has_runner else 0

    def hurry(self) -> None:
        """Give what runs no more time."""
        if self._has_runner:  # else nothing runs: the store could not be reached yet
            self._runner.hurry()

    # -- from threads of heartbeat and feed ---------------------------------------------------------------------------

    def _join(self) -> Membership:
        """Become a member under a new id."""
        connection, store = self._connection, self._store
        settings = self._settings = connection.agree(store, lenient=self._membership is not None)
        joiner = Joiner(
            secrets.token_hex(5),
            f"{socket.gethostname()}:{os.getpid()}",
            self._weight,
            self._concurrency,
            tuple(sorted(connection.handled())),
        )
        sent = elapsed()
        beat = store.do(do.Join(joiner))
        membership = Membership(joiner.id, settings.lease / SECOND, sent, strict=self._strict)
        try:
            if (
                connection.agree(store, lenient=True)[:3] != settings[:3]
            ):  # somebody changed lease or drain at this moment
                raise EngineUnavailable(f"settings of pool {connection.name!r} were changed while a worker joined")
            subscription = store.listen(joiner.id, self._feed.wake, partial(self._feed.hand, membership=membership))
        except BaseException:  # a member that nobody renews would be given slots
            membership.end(disarm=True)
            with contextlib.suppress(EngineError):
                store.do(do.Leave(joiner.id))
            raise
        was = self.id
        old, self._subscription = self._subscription, subscription
        if old is not None:
            old.close()
        self._membership = membership
        self._feed.serve(membership, beat, settings)
        self._start_permanent()
        tell(connection.observer, "worker_joined", connection.name, worker=joiner.id)
        if was:
            tell(connection.observer, "worker_back", connection.name, worker=joiner.id, was=was)
        return membership

    def _start_permanent(self) -> None:
        """Start the residents which the pool is never without: the store may be new, or have lost them."""
        connection, store = self._connection, self._store
        for definition, key, args in connection.permanent:
            try:
                with connection.as_worker():
                    start = do.Start(*connection.address(key, definition.name), connection.envelope(definition, args))
                store.do(start)
            except Exception as error:  # the next worker that joins will try, or this one when it joins anew
                logger.warning("%r of pool %r could not be started: %r", definition.name, connection.name, error)

    def _lost(self, membership: Membership, why: str) -> None:
        """Stop what runs under a membership that is over, or cannot be renewed in time."""
        if membership.is_over:
            return
        membership.end()
        self._runner.give_up(membership, "lease")
        tell(self._connection.observer, "worker_lost", self._connection.name, worker=membership.id, why=why)
        self._heartbeat.give_up(membership)

    def _is_wanted(self) -> bool:
        """Return whether anything can run here; if not, leave, since nobody else will end this worker."""
        if not self._loop.is_closed():
            return True
        logger.error("the event loop of a worker of pool %r was closed before the worker", self._connection.name)
        membership = self._membership
        if membership is not None:
            membership.end()
            if not self._is_running(membership):
                self._leave(membership)
        self._feed.end(wait=False)
        self._heartbeat.end(wait=False)
        if self._subscription is not None:
            self._subscription.close()
        return False

    def _renew_soon(self) -> None:
        self._heartbeat.wake()

    def _shut(self) -> None:
        """End, since the whole pool does."""
        if self._closing is None:
            logger.warning("pool %r is shut down, so its worker ends; admin.resume() opens it", self._connection.name)
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.close()))

    def _is_running(self, membership: Membership) -> bool:
        """Return whether anything still runs under a membership."""
        return bool(self._runner.takes.under(membership.id))

    def _leave(self, membership: Membership) -> None:
        try:
            self._store.do(do.Leave(membership.id))
        except EngineError as error:
            logger.warning("worker %s could not say that it leaves: %s", membership.id, error)

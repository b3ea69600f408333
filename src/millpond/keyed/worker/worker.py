"""A worker: a member of the pool that runs jobs. It lives in an event loop, and talks to the store from threads.

Worker   joins, is lost, joins again, leaves            this file
Heart    renews the lease, watches the clock            _heart
Lane     reports and takes, gives and claims slots      _lane
Runner   runs what was taken                            _runner
Tenure   a membership under one id                      _tenure
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
from millpond.keyed.shared.connection import Home
from millpond.keyed.shared.notices import tell
from millpond.keyed.stores.base import Ear
from millpond.keyed.worker.feed import Lane
from millpond.keyed.worker.heartbeat import Heart
from millpond.keyed.worker.membership import Tenure
from millpond.keyed.worker.runner import Runner

CANCELLED = 2.0
"""Seconds that coroutines get to end once they were cancelled."""


class Worker:
    """Runs jobs of a pool, from `start` to `close`."""

    def __init__(
        self,
        home: Home,
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
        self._home = home
        self._stall = stall
        self._concurrency = concurrency
        self._weight = weight
        self._strict = strict
        self._grace = grace
        self._has_runner = False
        self._measuring: list[Observer] = []
        self._tenure: Tenure | None = None
        self._ear: Ear | None = None
        self._closing: asyncio.Future[None] | None = None
        self._departing: asyncio.Future[None] | None = None
        self.stopped: asyncio.Event = asyncio.Event()
        """Set when the worker is to end, or does."""

    @property
    def id(self) -> str:
        """The id under which it is a member now; another one after it lost its lease."""
        return "" if self._tenure is None else self._tenure.id

    @property
    def is_member(self) -> bool:
        """Whether its lease surely holds."""
        return self._tenure is not None and self._tenure.may_begin()

    def measure(self, observer: Observer) -> None:
        """Also tell this observer of every run of a handler from now on; from whatever thread."""
        self._measuring.append(observer)
        if self._has_runner:
            self._runner.measure(observer)

    async def start(self) -> None:
        """Join the pool and begin to take jobs."""
        self._loop = asyncio.get_running_loop()
        home = self._home
        self._store, self._settings, placement = await self._loop.run_in_executor(None, home.engage)
        store, settings = self._store, self._settings
        self._lane = Lane(home.name, store, settings, placement, self._lost, self._doubt, self._shut, home.observer)
        self._runner = Runner(
            home.name,
            home.definitions,
            self._concurrency,
            self._lane.settle,
            home.observer,
            largest=settings.payload_limit,
            tracing=home.tracing,
        )
        for observer in self._measuring:
            self._runner.measure(observer)
        self._has_runner = True
        lease = settings.lease / SECOND
        outer = None
        try:
            outer = store.outer_heart(lease, self._stall, renews=not self._strict)
            beats = self._join, self._is_wanted, self._lane.tell, self._lost, self._lane.is_stuck
            self._heart = Heart(home.name, store, lease, *beats, outer)
            tenure = await self._loop.run_in_executor(None, self._join)
        except BaseException:
            if outer is not None:
                outer.close()
            home.dismiss(store)
            raise
        self._heart.start(tenure)
        self._lane.start(self._runner)

    async def close(self, grace: float | None = None) -> None:
        """Leave the pool: what was not begun is handed over at once, what runs has `grace` seconds to end."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(grace))
        await asyncio.shield(self._closing)

    async def _close(self, grace: float | None) -> None:
        self.stopped.set()
        grace = next(each for each in (grace, self._grace, self._settings.drain / SECOND) if each is not None)
        lane, runner, heart, tenure = self._lane, self._runner, self._heart, self._tenure
        lane.is_closing = True
        heart.is_leaving = True
        runner.close()
        in_thread = partial(self._loop.run_in_executor, None)
        try:
            if tenure is not None and not tenure.is_over:
                await in_thread(lane.hand_over, tenure, runner)
        except EngineError as error:
            logger.warning("a worker of pool %r leaves without handing over: %s", self._home.name, error)
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
                self._home.name,
            )
            self._departing = asyncio.ensure_future(self._depart())

    async def _depart(self) -> None:
        """Leave the pool when nothing runs any more."""
        lane, runner, heart = self._lane, self._runner, self._heart
        in_thread = partial(self._loop.run_in_executor, None)
        while True:
            await runner.idle(None, hurried=True)
            is_heard = await in_thread(lane.flush, self._settings.lease / SECOND)
            if not is_heard or (runner.is_idle and lane.is_quiet()):
                break  # else the last answer brought something, which is given back
        await in_thread(lane.end)
        await in_thread(heart.end)
        tenure = self._tenure  # it may have been renewed meanwhile
        if tenure is not None and not tenure.is_over:
            tenure.end(disarm=True)
            await in_thread(self._leave, tenure)
        runner.shut()
        if self._ear is not None:
            self._ear.close()
        await in_thread(self._home.dismiss, self._store)
        tell(self._home.observer, "worker_left", self._home.name, worker=self.id)

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
        return len(self._runner.visits) + len(self._runner.residents) if self._has_runner else 0

    def hurry(self) -> None:
        """Give what runs no more time."""
        if self._has_runner:  # else nothing runs: the store could not be reached yet
            self._runner.hurry()

    # -- from threads of heart and lane -------------------------------------------------------------------------------

    def _join(self) -> Tenure:
        """Become a member under a new id."""
        home, store = self._home, self._store
        settings = self._settings = home.agree(store, lenient=self._tenure is not None)
        joiner = Joiner(
            secrets.token_hex(5),
            f"{socket.gethostname()}:{os.getpid()}",
            self._weight,
            self._concurrency,
            tuple(sorted(home.handled())),
        )
        sent = elapsed()
        beat = store.join(joiner)
        tenure = Tenure(joiner.id, settings.lease / SECOND, sent, strict=self._strict)
        try:
            if home.agree(store, lenient=True)[:3] != settings[:3]:  # somebody changed lease or drain at this moment
                raise EngineUnavailable(f"settings of pool {home.name!r} were changed while a worker joined")
            ear = store.listen(joiner.id, self._lane.wake, partial(self._lane.hand, tenure=tenure))
        except BaseException:  # a member that nobody renews would be given slots
            tenure.end(disarm=True)
            with contextlib.suppress(EngineError):
                store.leave(joiner.id)
            raise
        was = self.id
        old, self._ear = self._ear, ear
        if old is not None:
            old.close()
        self._tenure = tenure
        self._lane.serve(tenure, beat, settings)
        self._start_standing()
        tell(home.observer, "worker_joined", home.name, worker=joiner.id)
        if was:
            tell(home.observer, "worker_back", home.name, worker=joiner.id, was=was)
        return tenure

    def _start_standing(self) -> None:
        """See that the residents are there which the pool is never without: the store may be new, or have lost them."""
        home, store = self._home, self._store
        for definition, key, args in home.standing:
            try:
                with home.as_worker():
                    start = do.Start(*home.address(key, definition.name), home.envelope(definition, args))
                store.apply(start)
            except Exception as error:  # the next worker that joins will try, or this one when it joins anew
                logger.warning("%r of pool %r could not be started: %r", definition.name, home.name, error)

    def _lost(self, tenure: Tenure, why: str) -> None:
        """Stop what runs under a membership that is over, or cannot be renewed in time."""
        if tenure.is_over:
            return
        tenure.end()
        self._runner.give_up(tenure, "lease")
        tell(self._home.observer, "worker_lost", self._home.name, worker=tenure.id, why=why)
        self._heart.stir()

    def _is_wanted(self) -> bool:
        """Tell whether anything can run here: else it has to be no member any more, since nobody will end it."""
        if not self._loop.is_closed():
            return True
        logger.error("the event loop of a worker of pool %r was closed before the worker", self._home.name)
        tenure = self._tenure
        if tenure is not None:
            tenure.end()
            if not tenure.visits:
                self._leave(tenure)
        self._lane.end(wait=False)
        self._heart.end(wait=False)
        if self._ear is not None:
            self._ear.close()
        return False

    def _doubt(self) -> None:
        self._heart.stir()

    def _shut(self) -> None:
        """End, since the whole pool does."""
        if self._closing is None:
            logger.warning("pool %r is shut down, so its worker ends; admin.resume() opens it", self._home.name)
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.close()))

    def _leave(self, tenure: Tenure) -> None:
        try:
            self._store.leave(tenure.id)
        except EngineError as error:
            logger.warning("worker %s could not say that it leaves: %s", tenure.id, error)

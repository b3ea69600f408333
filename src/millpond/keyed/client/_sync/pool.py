# Generated from pool.py by tools/twins.py: edit that file, then run `make format`.
"""A pool of jobs that carry a key: one worker owns a key at a time, and runs its jobs in order."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from millpond._events import Observer
from millpond._tracing import Tracing
from millpond._urls import shown
from millpond.keyed import views
from millpond.keyed.client import cursor
from millpond.keyed.client._sync.admin import KeyedAdmin
from millpond.keyed.client._sync.handle import KeyedJob, KeyedResident
from millpond.keyed.client._sync.search import STATES, Search, Start, Wanted
from millpond.keyed.client.bridge import Bridge, Working
from millpond.keyed.client.schedule import Controller, Keys, Schedule
from millpond.keyed.jobs import Job, Resident
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.page import Page
from millpond.keyed.rules.placement import Placement
from millpond.keyed.rules.records import KeyView
from millpond.keyed.rules.settings import checked_settings
from millpond.keyed.rules.times import MISSED, Cron, Every, Missed, Times
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.shared.definition import Policy, define
from millpond.keyed.views import JobView, KeyedStatistics, KeyInfo, ResidentView, SlotView, WorkerView
from millpond.keyed.worker import serve

P = ParamSpec("P")
R = TypeVar("R")
JobState = Literal["waiting", "running", "retry", "paused", "parked", "delayed", "dead"]
PAGE = 1000
"""Keys that are read in one call."""


class JobDecorator(Protocol):
    """Makes a job of a handler, with options."""

    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], Coroutine[Any, Any, R]], /) -> KeyedJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Job, P], R], /) -> KeyedJob[P, R]: ...


class KeyedPool:
    """Jobs that carry a key, on many workers and machines.

    `url` says where the pool lives: `memory:` in this process, `sqlite:///file.db` between the processes of this
    machine, `redis://host` anywhere. It is opened when it is first used.

    What follows holds for the whole pool, and is kept in the store from when the pool is created; leave it out to use a
    pool as it is, and see `admin.configure` to change it. `slots`: shares of the key space (4096). `lease`: seconds
    without a sign of life after which a worker's keys go to others (5). `drain`: seconds that a handler has to end when
    its key moves (30). `placement`: `rendezvous`, `jump`, or `("name", function)`: all programs of a pool give the same
    name. Limits: `payload_limit` bytes of arguments (1 MiB), `max_jobs`, `max_per_key`, `max_dead` (none);
    `max_losses`: a job that so many workers died of is dead (3); a lease that ends without a proof of death counts for
    a fifth of that.

    `create=False` uses a pool that is there, and raises `NotFound` where there is none.

    `on_event` is called with an `Event` for everything that happens to workers and jobs of this process. `tracing`: a
    `millpond.otel.Tracing`, with which a job is traced from its dispatch to its run, also in another process.
    """

    def __init__(
        self,
        name: str,
        url: str = "memory:",
        *,
        slots: int | None = None,
        lease: float | None = None,
        drain: float | None = None,
        placement: str | Placement | tuple[str, Placement] | None = None,
        payload_limit: int | None = None,
        max_jobs: int | None = None,
        max_per_key: int | None = None,
        max_dead: int | None = None,
        max_losses: int | None = None,
        create: bool = True,
        on_event: Observer | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        wanted = checked_settings(
            slots=slots,
            lease=lease,
            drain=drain,
            payload_limit=payload_limit,
            max_jobs=max_jobs,
            max_per_key=max_per_key,
            max_dead=max_dead,
            max_losses=max_losses,
        )
        self.name = name
        self.url = url
        self._connection = PoolConnection(name, url, wanted, placement, on_event, create=create, tracing=tracing)
        self._bridge = Bridge(self._connection)
        self._controlled: set[str] = set()
        self.admin = KeyedAdmin(self._bridge)
        """Operators' verbs."""

    # --- jobs ----------------------------------------------------------------------------------------------------

    @overload
    def job(self, function: Callable[Concatenate[Job, P], Coroutine[Any, Any, R]], /) -> KeyedJob[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Job, P], R], /) -> KeyedJob[P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        max_attempts: int = 1,
        backoff: float = 1.0,
        backoff_limit: float = 300.0,
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        timeout: float | None = None,
        keep_result: float = 60.0,
    ) -> JobDecorator: ...
    def job(self, *function: Callable[..., Any], **options: Any) -> Any:
        """Make a job of a handler, which takes a `Job` and then whatever is dispatched.

        `max_attempts`: how often it is tried when it raises one of `retry_on`; its key waits meanwhile, `backoff`
        seconds at first, then twice as long each time up to `backoff_limit`. After that the job is among the dead
        letters. `timeout` seconds for a coroutine. `keep_result`: seconds for which its outcome is kept.
        """
        name = options.pop("name", None)
        policy = _policy("job", options)

        def decorate(function: Callable[..., Any]) -> KeyedJob[Any, Any]:
            definition = define(function, name, policy)
            self._connection.add(definition)
            return KeyedJob(self._bridge, definition)

        return decorate(*function) if function else decorate

    def declare_job(self, name: str, *, keep_result: float = 60.0) -> KeyedJob[..., Any]:
        """Return a job by its name, to dispatch it where its handler is not known: in another program."""
        return KeyedJob(self._bridge, define(None, name, Policy(keep_result=keep_result)))

    @overload
    def resident(self, function: Callable[Concatenate[Resident, P], object], /) -> KeyedResident[P]: ...
    @overload
    def resident(
        self, *, name: str | None = None, backoff: float = 1.0, backoff_limit: float = 300.0
    ) -> Callable[[Callable[Concatenate[Resident, P], object]], KeyedResident[P]]: ...
    def resident(self, *function: Callable[..., Any], **options: Any) -> Any:
        """Make a resident of a handler, which takes a `Resident` and then the arguments of `start`.

        It runs on one worker until it is stopped or returns, and elsewhere when its worker goes. An exception restarts
        it, after `backoff` seconds at first, then twice as long each time up to `backoff_limit`.
        """
        name = options.pop("name", None)
        policy = _policy("resident", options)

        def decorate(function: Callable[..., Any]) -> KeyedResident[Any]:
            definition = define(function, name, policy, resident=True)
            self._connection.add(definition)
            return KeyedResident(self._bridge, definition)

        return decorate(*function) if function else decorate

    def declare_resident(self, name: str) -> KeyedResident[...]:
        """Return a resident by its name, to start and stop it where its handler is not known."""
        return KeyedResident(self._bridge, define(None, name, Policy(), resident=True))

    def reconcile(self, resident: KeyedResident[Any], wanted: Mapping[str, Mapping[str, Any]]) -> int:
        """Make the residents of this name equal to `wanted`, which has the arguments of each by key.

        Those that are missing are started, those with other arguments replaced, those that are not wanted stopped.
        Return how many changes were asked for (one that is still ending counts again). Do it as often as you like: what
        is right stays untouched.
        """
        return resident.reconcile(wanted)

    # --- what the pool does by itself --------------------------------------------------------------------------------

    def cron(
        self,
        expression: str,
        *,
        keys: Keys = None,
        tz: str | datetime.tzinfo = "UTC",
        missed: Missed = "once",
        name: str | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., R]], KeyedJob[..., R]]:
        """Make a job of a handler that is dispatched by a cron expression, once over all workers.

        `expression`: minute, hour, day, month, weekday, as in `0 3 * * *`; a sixth field in front gives seconds. `tz`:
        the time zone that it means; when clocks change it does as Debian's cron. `keys`: a list of keys, each of which
        gets a job each time, or a function that returns one; without it there is one, named like the job. `missed`:
        when no worker was there at some of its times, the job runs `once` for the latest, for `all` of the last day, or
        not at all (`skip`; up to a minute late is not missed). The handler takes the job and, if it has another
        parameter, the time for which it was due. Other options are those of `job`; no result is kept unless you say so.
        """
        return self._scheduled(Cron(expression, tz), keys, missed, name, options)

    def every(
        self, seconds: float, *, keys: Keys = None, missed: Missed = "once", name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., R]], KeyedJob[..., R]]:
        """Make a job of a handler that is dispatched every so many seconds, once over all workers.

        It counts from the epoch, so `every(3600)` is on the hour in UTC. For the options see `cron`.
        """
        return self._scheduled(Every(seconds), keys, missed, name, options)

    def _scheduled(
        self, times: Times, keys: Keys, missed: Missed, name: str | None, options: dict[str, Any]
    ) -> Callable[[Callable[..., R]], KeyedJob[..., R]]:
        if missed not in MISSED:
            raise ValueError(f"missed is one of {', '.join(MISSED)}, not {missed!r}")
        policy = _policy("job", {"keep_result": 0.0, **options})

        def decorate(function: Callable[..., R]) -> KeyedJob[..., R]:
            definition = define(function, name, policy)
            Schedule(self._connection, definition, times, keys, missed).keep()
            return KeyedJob(self._bridge, definition)

        return decorate

    def controller(
        self, resident: KeyedResident[Any], *, every: float = 30.0, name: str | None = None
    ) -> Callable[[Callable[[Resident], Any]], Callable[[Resident], Any]]:
        """Keep residents equal to what a function returns: one worker asks it every so many seconds.

        It returns the arguments of each by key, as `reconcile` takes them. When the store has lost its data, or
        somebody has stopped what should be there, all are back at its next turn. The function itself stays as it is.
        """
        given: Any = resident  # whatever that is: a function, where somebody forgot the parentheses
        if not isinstance(given, KeyedResident) or given.connection is not self._connection:
            raise TypeError(f"controller() takes a resident of this pool first, not {given!r}")

        def decorate(function: Callable[[Resident], Any]) -> Callable[[Resident], Any]:
            own = str(name or getattr(function, "__name__", "controller"))
            controller = Controller(self._connection, own, function, resident.definition, every)
            if resident.name in self._controlled:
                raise ValueError(
                    f"resident {resident.name!r} has a controller already: two would undo each other's work"
                )
            controller.keep()
            self._controlled.add(resident.name)
            return function

        return decorate

    # --- working -------------------------------------------------------------------------------------------------

    def worker(
        self,
        *,
        concurrency: int = 100,
        weight: int = 1,
        strict: bool = False,
        grace: float | None = None,
        stall: float = 60.0,
    ) -> Working:
        """Return a worker of this process, to be used as a context manager.

        It runs up to `concurrency` keys at a time, and gets `weight` times as many as others. When the block ends it
        leaves: what it has not begun is handed over at once, what runs has `grace` seconds (as `drain` of the pool).
        `strict`: should it lose its lease, the process is ended instead of the handlers being asked to stop.
        `stall`: for so many seconds a process that computes without giving a sign of life (a function that holds the
        GIL) keeps its lease, on stores that other machines use.
        """
        return Working(
            self._connection,
            {"concurrency": concurrency, "weight": weight, "strict": strict, "grace": grace, "stall": stall},
        )

    def run(
        self,
        *,
        concurrency: int = 100,
        weight: int = 1,
        strict: bool = False,
        grace: float | None = None,
        stall: float = 60.0,
        health: str | None = None,
    ) -> None:
        """Run a worker until SIGTERM, Ctrl-C or the shutdown of the pool; see `worker` for the options.

        A first signal lets the worker leave gracefully; a second one stops what it runs, and three seconds later the
        process, should a plain function not heed it.

        `health`: tell probes how it is. `"127.0.0.1:8080"` serves `/healthz`, `/readyz` and `/metrics` there; a
        path is a file that is touched every second while the worker is a member, and is not there else.
        """
        options = {"concurrency": concurrency, "weight": weight, "strict": strict, "grace": grace, "stall": stall}
        serve.serve(self._connection, options, health)

    # --- looking in ----------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerView]:
        """Return the workers, the oldest first."""
        beat = self._bridge.look(about.Members())
        _, owners = self._bridge.look(about.Owners())
        return views.workers(beat, owners)

    def slots(self) -> list[SlotView]:
        """Return who owns what, since when, and why."""
        return views.slots(self._bridge.look(about.Slots()))

    def keys(self, *, after: str = "", limit: int | None = None) -> Page[KeyInfo]:
        """Return the keys that have jobs: all of them, the one with the oldest job first; or `limit` of them.

        With `limit`, they come in the order in which the store has them; `next` of the page is the `after=` of the next
        one. All of a large pool are many: take pages.
        """
        page = self._page("keys", "j", after, limit)
        found = Page((views.key(each, page.now) for each in page), page.next)
        if limit is None:
            found.sort(key=lambda one: (-one.oldest_age, one.key))
        return found

    def _page(self, what: str, lane: str, after: str, limit: int | None) -> Page[KeyView]:
        """Return some mailboxes of a lane, or all of them, in several calls: none of them holds others up for long."""
        start = cursor.read(what, after) if after else ""
        rest = cursor.check_limit(limit)
        found: Page[KeyView] = Page()
        while True:
            page = self._bridge.look(about.Keys(lane, start, PAGE if rest is None else min(rest, PAGE)))
            found += page
            found.now, start = page.now, page.next
            rest = None if rest is None else rest - len(page)
            if not start or rest == 0:
                found.next = cursor.written(what, start)
                return found

    def jobs(
        self,
        *,
        id: str | None = None,  # noqa: A002  (what it is called everywhere)
        key: str | None = None,
        name: str | None = None,
        state: JobState | None = None,
        after: str = "",
        limit: int | None = 100,
    ) -> Page[JobView]:
        """Return jobs that have not ended, and dead ones: those of a key in their order.

        Find them by id, key, name and state: `waiting`, `running`, `retry`, `paused`, `parked`, `delayed`, `dead`.
        `next` of the page is the `after=` of the next one. Without a key, finding an id means to look at all jobs.
        """
        if state is not None and state not in STATES:
            raise ValueError(f"state is one of {', '.join(STATES)}, not {state!r}")
        for what, given in (("id", id), ("name", name)):
            if given is not None and not isinstance(given, str):
                raise TypeError(f"{what}= is text, not {given!r}")
        self._bridge.open()
        plain = None if key is None else self._connection.checked_key(key)
        start = Start(*cursor.read("jobs", after)) if after else None
        most = cursor.check_limit(limit)
        wanted = Wanted(None if id is None else frozenset((id,)), plain, name, state)
        search = Search(self._bridge, wanted, sys.maxsize if most is None else most)
        more = search.run(start)
        return Page(search.found, cursor.written("jobs", more))

    def owner(self, key: str) -> SlotView:
        """Return the slot of a key: who owns it, since when, and why."""
        self._bridge.open()
        return self.slots()[self._connection.address(key)[0]]

    def residents(self, *, after: str = "", limit: int | None = None) -> Page[ResidentView]:
        """Return the residents: all of them, by name and key; or `limit` of them, see `keys`."""
        page = self._page("residents", "r", after, limit)
        found = Page((views.resident(each) for each in page), page.next)
        if limit is None:
            found.sort(key=lambda one: (one.name, one.key))
        return found

    def statistics(self) -> KeyedStatistics:
        """Return how the pool stands, and what it has done since it was created."""
        counts = self._bridge.look(about.Counts())
        beat = self._bridge.look(about.Members())
        return views.statistics(counts, len(beat.members))

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection to the store. Workers, jobs and residents go on: `admin.shutdown` ends those."""
        self._bridge.close()

    def __enter__(self) -> KeyedPool:
        self._bridge.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {shown(self.url)!r}>"


_OPTIONS = {
    "job": ("max_attempts", "backoff", "backoff_limit", "retry_on", "timeout", "keep_result"),
    "resident": ("backoff", "backoff_limit"),
}


def _policy(what: str, options: Mapping[str, Any]) -> Policy:
    unknown = [name for name in options if name not in _OPTIONS[what]]
    if unknown:
        raise TypeError(f"{what}() has no option {unknown[0]!r}; it has name, {', '.join(_OPTIONS[what])}")
    return Policy(**options)

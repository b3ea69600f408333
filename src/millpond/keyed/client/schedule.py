"""What a pool does by itself: jobs that are dispatched at times, and residents that are kept as a function wants them.

Each of them is a resident, so one worker at a time sees to it, and another goes on when that one dies. Nothing else is
kept: a job that is due has an id made of its name, key and time, which the store takes once only. So whoever goes on
dispatches again what may have been missed, and what was not missed is there already.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

from millpond._events import logger
from millpond.keyed.client._sync.handle import LONGEST_ID, KeyedResident
from millpond.keyed.client.bridge import Bridge
from millpond.keyed.client.sender import BATCH
from millpond.keyed.jobs import Resident
from millpond.keyed.rules.checks import check_seconds
from millpond.keyed.rules.records import SECOND, Order, OrderOptions
from millpond.keyed.rules.times import DAY, LATE, Missed, Times, due_between
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.shared.definition import Definition, Policy, define

T = TypeVar("T")
KeysNow: TypeAlias = Callable[[], Iterable[str] | Awaitable[Iterable[str]]]
Keys: TypeAlias = Iterable[str] | KeysNow | None
Wanted: TypeAlias = Mapping[str, Mapping[str, Any]]

STEP = 5.0
"""Seconds after which it looks at the clock again, which people may set."""
SET_BACK = 600.0
"""Seconds by which a clock may be put back without a job being dispatched again."""
AGES = 100 * 366 * DAY
KEEPER = Policy(backoff=1.0, backoff_limit=15.0)
"""What happens when one of these fails: it is tried again soon."""


class Schedule:
    """A job that is dispatched at times, for one key or many."""

    def __init__(self, connection: PoolConnection, job: Definition, times: Times, keys: Keys, missed: Missed) -> None:
        self._connection = connection
        self._job = job
        self._times = times
        self._keys = _checked_keys(connection, job.name, keys)
        self._missed: Missed = missed
        self._takes_time = _takes_time(job, times)
        self._spec = repr(times)
        self._bridge = Bridge(connection)
        self._keeper = define(self._run, f"{job.name}.schedule", KEEPER, resident=True)

    def keep(self) -> None:
        """Keep one worker of the pool at it, always."""
        self._connection.check_free(self._job.name)
        self._connection.check_free(self._keeper.name)
        self._connection.add(self._job)
        self._connection.keep_standing(self._keeper, self._job.name, (self._spec,))

    async def _run(self, resident: Resident, spec: str) -> None:
        """Dispatch what is due, for ever."""
        if spec != self._spec:  # it was started by a program of another version: here, ours holds
            await in_thread(self._start_anew)
            await resident.lost
        since = resident.started_at
        while True:
            now = time.time()
            for due in due_between(self._times, min(since, now), now, self._missed):
                keys = await self._keys_now()
                await in_thread(self._dispatch, due, keys)
            since = now
            await asyncio.sleep(max(0.0, min(STEP, self._times.after(now) - time.time())))

    def _start_anew(self) -> None:
        with self._connection.as_worker():
            KeyedResident[...](self._bridge, self._keeper).start(self._job.name, self._spec)

    async def _keys_now(self) -> list[str]:
        if not callable(self._keys):
            return list(self._keys)
        keys = await answer(self._keys)
        if isinstance(keys, str | bytes):
            raise TypeError(f"the function of keys= of job {self._job.name!r} returned the text {keys!r}, not a list")
        return list(keys)

    def _dispatch(self, due: float, keys: list[str]) -> None:
        """Dispatch the job for all keys; those that are refused miss this time, and no other key suffers for it."""
        moment = datetime.datetime.fromtimestamp(due, self._times.tz)
        memory = round(self._memory(due) * SECOND)
        refused: dict[str, str] = {}
        with self._connection.as_worker():
            for start in range(0, len(keys), BATCH):
                orders: dict[str, Order] = {}
                for key in keys[start : start + BATCH]:
                    try:
                        orders[key] = self._order(key, due, moment, memory)
                    except (TypeError, ValueError) as error:
                        refused[repr(key)] = str(error)
                for index, word in self._bridge.dispatch(list(orders.values())).items():
                    if word != "same":
                        refused[list(orders)[index]] = _WORDS.get(word, word)
        for key, why in list(refused.items())[:1]:
            logger.warning(
                "job %r (%s) was not dispatched for %d of %d keys at %s, such as %s: %s",
                *(self._job.name, self._spec, len(refused), len(keys), moment.isoformat(), key, why),
            )

    def _memory(self, due: float) -> float:
        """Return for how many seconds the id of a job must be known: as long as its time may be looked at again."""
        until = self._times.after(due)
        length = AGES if until == math.inf else max(until - due, LATE)
        return length + (DAY if self._missed == "all" else SET_BACK)

    def _order(self, key: str, due: float, moment: datetime.datetime, memory: int) -> Order:
        name = self._job.name
        job = f"{name}@{due:.3f}@{self._connection.checked_key(key)}"
        if len(job) > LONGEST_ID:
            job = blake2b(job.encode(), digest_size=16).hexdigest()
        args = (moment,) if self._takes_time else ()
        return self._connection.order(self._job, key, args, {}, OrderOptions(job, name, unique_for=memory))[1]


_WORDS = {"full": "its key is full (max_per_key)", "pool": "the pool is full (max_jobs)", "closed": "it was shut down"}


class Controller:
    """A function that says which residents there should be, asked again and again."""

    def __init__(
        self, connection: PoolConnection, name: str, function: Callable[..., Any], resident: Definition, every: float
    ) -> None:
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            raise TypeError(
                f"a controller takes the resident that it is itself, and nothing else: def {name}(me)"
            ) from None
        self._function = function
        self._every = check_seconds(every, "every= of a controller", 0.05, DAY)
        self._wanted = KeyedResident[...](Bridge(connection), resident)
        self._connection = connection
        self._keeper = define(self._run, name, KEEPER, resident=True)

    def keep(self) -> None:
        """Keep one worker of the pool at it, always."""
        self._connection.keep_standing(self._keeper, "controller", ())

    async def _run(self, resident: Resident) -> None:
        """Make the residents what the function wants, for ever."""
        while True:
            wanted = await answer(self._function, resident)
            changes = await in_thread(self._reconcile, wanted)
            if changes:
                logger.info("controller %r changed %d residents", resident.name, changes)
            await asyncio.sleep(self._every)

    def _reconcile(self, wanted: Wanted) -> int:
        with self._connection.as_worker():
            return self._wanted.reconcile(wanted)


def in_zone(function: Callable[..., Any], tz: datetime.tzinfo) -> Callable[..., Any]:
    """Return a handler that is given its time in the zone of its schedule: times travel in UTC."""

    def call(job: Any, due: Any) -> Any:
        return function(job, due.astimezone(tz) if isinstance(due, datetime.datetime) else due)

    return call


def _takes_time(job: Definition, times: Times) -> bool:
    """Return whether a handler takes the time for which it was due; refuse one that takes anything else."""
    if job.function is None:
        raise TypeError(f"a schedule needs a handler for job {job.name!r}, not None")
    try:
        job.shape.encode((), {})
        return False  # it can do without
    except TypeError:
        pass
    try:
        now = datetime.datetime.now(datetime.UTC)
        args, kwargs = job.shape.decode(job.shape.encode((now,), {}))
        if kwargs or len(args) != 1 or not isinstance(args[0], datetime.datetime):
            raise TypeError("its second parameter takes no datetime")
    except Exception as error:
        raise TypeError(
            f"job {job.name!r} is dispatched by a schedule: it takes the job, and if you like the time for which it "
            f"was due: def {job.name}(job, due: datetime) ({error})"
        ) from None
    job.function = in_zone(job.function, times.tz)
    return True


def _checked_keys(connection: PoolConnection, name: str, keys: Keys) -> tuple[str, ...] | KeysNow:
    if keys is None:
        return (name,)
    if callable(keys):
        return keys
    if isinstance(keys, str | bytes):
        raise TypeError(f"keys= of job {name!r} is a list of keys, or a function that returns one, not a text")
    return tuple([connection.checked_key(key) for key in keys])


async def answer(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user: a coroutine function here, a plain one in a thread."""
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    value = function(*args) if is_async else await in_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a plain function in a thread of its own; however often this is cancelled, it ends with the function."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = function(*args), None
        except BaseException as error:
            outcome = None, error
        try:
            loop.call_soon_threadsafe(future.set_result, outcome)
        except RuntimeError:  # the loop is closed: nobody waits
            return

    threading.Thread(target=run, name="millpond-permanent", daemon=True).start()
    is_cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            is_cancelled = True
    value, error = future.result()
    if is_cancelled:
        if inspect.iscoroutine(value):
            value.close()  # nobody will await it
        raise asyncio.CancelledError
    if error is not None:
        raise error
    return value  # type: ignore[return-value]

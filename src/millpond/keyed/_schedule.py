"""What a pool does by itself: jobs that are dispatched at times, and residents that are kept as a function wants them.

Each of them is a resident, so one worker at a time sees to it, and another goes on when that one dies. Nothing else is
kept: a job that is due has an id made of its name, key and time, which the store takes once only. So whoever goes on
dispatches again what may have been missed, and what was not missed is there already.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias, TypeVar

from millpond._events import logger
from millpond.errors import PoolFull
from millpond.keyed._definition import Definition, Policy, define
from millpond.keyed._handle import LONGEST_ID, KeyedResident
from millpond.keyed._home import Home
from millpond.keyed._job import Resident
from millpond.keyed._outbox import BATCH
from millpond.keyed._port import Port
from millpond.keyed._records import SECOND, Order, Special
from millpond.keyed._times import DAY, Missed, Times, due_between

T = TypeVar("T")
KeysNow: TypeAlias = Callable[[], Iterable[str] | Awaitable[Iterable[str]]]
Keys: TypeAlias = Iterable[str] | KeysNow | None
Wanted: TypeAlias = Mapping[str, Mapping[str, Any]]

STEP = 5.0
"""Seconds after which it looks at the clock again, which people may set."""
KEEPER = Policy(backoff=1.0, backoff_limit=15.0)
"""What happens when one of these fails: it is tried again soon."""


class Schedule:
    """A job that is dispatched at times, for one key or many."""

    def __init__(self, home: Home, job: Definition, times: Times, keys: Keys, missed: Missed) -> None:
        assert job.function is not None
        count = len(inspect.signature(job.function).parameters) - 1
        if count > 1:
            raise TypeError(
                f"job {job.name!r} is dispatched by a schedule: it takes the job, and if you like the time for which "
                f"it was due: def {job.name}(job, due)"
            )
        self._home = home
        self._job = job
        self._times = times
        self._keys = _checked_keys(home, job.name, keys)
        self._missed: Missed = missed
        self._takes_time = count == 1
        self._spec = repr(times)
        self._port = Port(home)
        self._keeper = define(self._run, f"{job.name}.schedule", KEEPER, resident=True)

    def keep(self) -> None:
        """Let there always be one worker that sees to it."""
        self._home.keep_standing(self._keeper, self._job.name, (self._spec,))

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
        KeyedResident[...](self._port, self._keeper).start(self._job.name, self._spec)

    async def _keys_now(self) -> list[str]:
        keys = self._keys
        return list(await answer(keys) if callable(keys) else keys)

    def _dispatch(self, due: float, keys: list[str]) -> None:
        args = (datetime.datetime.fromtimestamp(due, self._times.tz),) if self._takes_time else ()
        until = self._times.after(due)
        memory = round((min(until, due + 366 * DAY) - due + DAY) * SECOND)
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            verdicts = self._port.dispatch([self._order(key, due, args, memory) for key in part])
            refused = [part[index] for index, word in verdicts.items() if word != "same"]
            if refused:
                raise PoolFull(
                    f"job {self._job.name!r} of {self._spec} was refused for {len(refused)} keys, such as "
                    f"{refused[0]!r}: the pool is full or shut down; it is tried again"
                )

    def _order(self, key: str, due: float, args: tuple[Any, ...], memory: int) -> Order:
        name = self._job.name
        job = f"{name}@{due:.3f}@{key}"
        if len(job) > LONGEST_ID:
            job = blake2b(job.encode(), digest_size=16).hexdigest()
        return self._home.order(self._job, key, args, {}, Special(job, name, unique_for=memory))[1]


class Controller:
    """A function that says which residents there should be, asked again and again."""

    def __init__(self, home: Home, name: str, function: Callable[..., Any], resident: Definition, every: float) -> None:
        if not 0.05 <= every <= DAY:
            raise ValueError(f"controller(every=) takes seconds from 0.05 to a day, not {every!r}")
        if len(inspect.signature(function).parameters) != 1:
            raise TypeError(f"a controller takes the resident that it is itself, and nothing else: def {name}(me)")
        self._function = function
        self._every = every
        self._wanted = KeyedResident[...](Port(home), resident)
        self._home = home
        self._keeper = define(self._run, name, KEEPER, resident=True)

    def keep(self) -> None:
        """Let there always be one worker that sees to it."""
        self._home.keep_standing(self._keeper, "controller", ())

    async def _run(self, resident: Resident) -> None:
        """Make the residents what the function wants, for ever."""
        while True:
            wanted = await answer(self._function, resident)
            changes = await in_thread(self._wanted.reconcile, wanted)
            if changes:
                logger.info("controller %r changed %d residents", resident.name, changes)
            await asyncio.sleep(self._every)


def _checked_keys(home: Home, name: str, keys: Keys) -> tuple[str, ...] | KeysNow:
    if keys is None:
        return (name,)
    if callable(keys):
        return keys
    if isinstance(keys, str):
        raise TypeError(f"keys= of job {name!r} is a list of keys, or a function that returns one, not a text")
    return tuple([home.checked_key(key) for key in keys])


async def answer(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user: a coroutine function here, a plain one in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    return await in_thread(function, *args)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a plain function in a thread; should this task be cancelled, it ends when the function has ended."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise

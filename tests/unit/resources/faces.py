"""Both faces of a resource pool on every engine, for one body of test: `async` as it is, `sync` each call in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

from millpond._clock import elapsed
from millpond.resources import AsyncGrant, AsyncResourcePool, Grant, ResourcePool, _timers
from waiting import auntil

_AT_ONCE = {"check"}
_worlds = itertools.count(1)


def url_of(engine: str, folder: Path) -> str:
    """Return a URL that nobody else has."""
    world = next(_worlds)
    if engine == "memory":
        return f"memory:{world}-{os.getpid()}"
    return f"sqlite:///{folder}/{world}.db" + ("?synchronous=FULL" if engine == "full" else "")


async def eventually(question: Callable[[], Any]) -> Any:
    """Return the answer once it is true; it may be a coroutine."""
    return await auntil(question)


@contextlib.contextmanager
def early_timers(seconds: float) -> Iterator[None]:
    """Run now what is due within so many seconds.

    So a lease that no slow machine can lose is renewed all the same while a test looks.
    """

    def ahead() -> float:
        return elapsed() + seconds

    with mock.patch.object(_timers, "elapsed", ahead):
        with _timers._timer_thread.condition:
            _timers._timer_thread.condition.notify()
        yield


class Threaded:
    """A synchronous pool, grant or admin, with every call in a thread, so that it can be awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "admin":
            return Threaded(found)
        if name in ("acquire", "acquire_all"):
            return lambda *args, **options: Pending(found, args, options)
        if not callable(found) or name in _AT_ONCE:
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return wrap(await asyncio.to_thread(found, *args, **options))

        return call

    async def __aenter__(self) -> Threaded:
        await asyncio.to_thread(self.inner.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self.inner.__exit__, *error)

    def __repr__(self) -> str:
        return repr(self.inner)


class Pending:
    """What `acquire` of an asynchronous pool returns: to be awaited, or entered."""

    def __init__(self, acquire: Callable[..., Any], args: Any, options: Any) -> None:
        self._call = (acquire, args, options)

    async def _obtain(self) -> Threaded:
        acquire, args, options = self._call
        return Threaded(await asyncio.to_thread(acquire, *args, **options))

    def __await__(self) -> Any:
        return self._obtain().__await__()

    async def __aenter__(self) -> Threaded:
        self._grant = await self._obtain()
        return await self._grant.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._grant.__aexit__(*error)


def wrap(value: Any) -> Any:
    return Threaded(value) if isinstance(value, Grant) else value


class Faces:
    """Opens pools of one colour and URL, and closes them in the end."""

    def __init__(self, colour: str, engine: str, folder: Path) -> None:
        self.colour = colour
        self.engine = engine
        self.url = url_of(engine, folder)
        self._opened: list[Any] = []

    def open(self, name: str = "lab", **options: Any) -> Any:
        """Open a pool; all of one name are one pool."""
        if self.colour == "async":
            pool: Any = AsyncResourcePool(name, self.url, **options)
        else:
            pool = Threaded(ResourcePool(name, self.url, **options))
        self._opened.append(pool)
        return pool

    async def close(self) -> None:
        for pool in self._opened:
            await pool.close()


@contextlib.asynccontextmanager
async def faces(colour: str, engine: str, folder: Path) -> AsyncIterator[Faces]:
    made = Faces(colour, engine, folder)
    with ThreadPoolExecutor(64) as threads:  # enough for all who wait
        asyncio.get_running_loop().set_default_executor(threads)
        try:
            yield made
        finally:
            await made.close()


def raw(grant: Any) -> Grant | AsyncGrant:
    """Return the grant itself."""
    inner: Grant | AsyncGrant = grant.inner if isinstance(grant, Threaded) else grant
    return inner


async def is_renewed(grant: Any) -> None:
    """Wait until a lease has been renewed once more; it is of 60 s."""
    request = raw(grant)._request
    before = request.sent
    with early_timers(21):
        await eventually(lambda: request.sent > before)

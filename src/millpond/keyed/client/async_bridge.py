"""How a task talks to a keyed pool: it awaits. The twin for threads is `bridge`; nothing else differs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from millpond.errors import PoolClosed
from millpond.keyed.client.results import Results
from millpond.keyed.client.sender import Sender
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.questions import A, Question
from millpond.keyed.rules.records import Order, Verdicts
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.stores.base import Store
from millpond.keyed.worker.worker import Worker

T = TypeVar("T")


class AsyncBridge:
    """The ways of one pool object to its store."""

    def __init__(self, connection: PoolConnection) -> None:
        self.connection = connection
        self._doors: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        self._begin()
        connection.forked.append(self._begin)

    def _begin(self) -> None:
        self.results = Results(self.connection)
        self._sender = Sender(self.connection)

    async def open(self) -> None:
        """Open the store, if that has not been done. Tasks go on in the order in which they came."""
        loop = asyncio.get_running_loop()
        async with self._doors.setdefault(loop, asyncio.Lock()):
            if not self.connection.is_open:
                await loop.run_in_executor(None, self.connection.open)

    async def enter(self) -> None:
        """Open the store, also when the pool was closed here before."""
        if self.connection.is_closed:
            self.connection.revive()
            self._begin()
        await self.open()

    async def ask(self, question: Callable[[Store], T], *, once: bool = False) -> T:
        """Do something with the store; `once` if that must not be done twice."""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: self.connection.ask(question, once=once))

    async def do(self, command: Command[A]) -> A:
        """Carry out a command; again, after its answer was lost, when it may be repeated."""
        return await self.ask(lambda store: store.do(command), once=not command.may_repeat)

    async def look(self, question: Question[A]) -> A:
        """Ask the store something."""
        return await self.ask(lambda store: store.ask(question))

    async def dispatch(self, orders: Sequence[Order]) -> Verdicts:
        """Hand jobs to the store."""
        return await self.begin(orders)()

    def begin(self, orders: Sequence[Order]) -> Callable[[], Coroutine[Any, Any, Verdicts]]:
        """Begin to hand jobs to the store; return what waits for its word."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        pending = self._sender.begin(orders, lambda: _later(loop, future))

        async def ended() -> Verdicts:
            await future
            return pending.result()

        return ended

    async def wait(self, future: Future[T], timeout: float | None) -> T:
        """Wait for something; raise TimeoutError."""
        async with asyncio.timeout(timeout):
            try:
                return await asyncio.shield(asyncio.wrap_future(future))
            except asyncio.CancelledError:
                if not future.cancelled():
                    raise
                raise PoolClosed(
                    f"pool {self.connection.name!r} was closed here while its outcome was waited for"
                ) from None

    def caller(self, function: Callable[[bytes], object]) -> Callable[[bytes], object]:
        """Return what calls a function of the user from another thread: in the loop of the caller."""
        loop = asyncio.get_running_loop()

        def call(value: bytes) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                loop.call_soon_threadsafe(function, value)

        return call

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close everything."""
        loop = asyncio.get_running_loop()
        for step in (self._sender.close, self.results.close, self.connection.close):
            await loop.run_in_executor(None, step)


def _later(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
        loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class AsyncWorking:
    """A worker of this process, for as long as a block lasts."""

    def __init__(self, connection: PoolConnection, options: dict[str, Any]) -> None:
        self._connection = connection
        self._options = options
        self._worker: Worker | None = None

    @property
    def id(self) -> str:
        """The id under which it is a member now; another one after it lost its lease."""
        return "" if self._worker is None else self._worker.id

    @property
    def is_member(self) -> bool:
        """Whether its lease surely holds."""
        return self._worker is not None and self._worker.is_member

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker ends, since the pool was shut down; False after so many seconds."""
        if self._worker is not None:
            try:
                async with asyncio.timeout(timeout):
                    await self._worker.stopped.wait()
            except TimeoutError:
                return False
        return True

    async def close(self, grace: float | None = None) -> None:
        """Leave the pool; what runs has `grace` seconds to end."""
        if self._worker is not None:
            await self._worker.close(grace)

    async def __aenter__(self) -> AsyncWorking:
        self._worker = Worker(self._connection, **self._options)
        starting = asyncio.ensure_future(self._worker.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            if starting.exception() is None:  # it has joined: nobody would end it
                await self._worker.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

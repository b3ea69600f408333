"""How a thread talks to a keyed pool: it blocks. The twin for tasks is `async_bridge`; nothing else differs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

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


class Bridge:
    """The ways of one pool object to its store."""

    def __init__(self, connection: PoolConnection) -> None:
        self.connection = connection
        self._begin()
        connection.forked.append(self._begin)

    def _begin(self) -> None:
        self.results = Results(self.connection)
        self._sender = Sender(self.connection)

    def open(self) -> None:
        """Open the store, if that has not been done."""
        self.connection.open()

    def enter(self) -> None:
        """Open the store, also when the pool was closed here before."""
        if self.connection.is_closed:
            self.connection.revive()
            self._begin()
        self.open()

    def ask(self, question: Callable[[Store], T], *, once: bool = False) -> T:
        """Do something with the store; `once` if that must not be done twice."""
        return self.connection.ask(question, once=once)

    def do(self, command: Command[A]) -> A:
        """Carry out a command; again, after its answer was lost, when it may be repeated."""
        return self.ask(lambda store: store.do(command), once=not command.may_repeat)

    def look(self, question: Question[A]) -> A:
        """Ask the store something."""
        return self.ask(lambda store: store.ask(question))

    def dispatch(self, orders: Sequence[Order]) -> Verdicts:
        """Hand jobs to the store."""
        return self._sender.send(orders)

    def begin(self, orders: Sequence[Order]) -> Callable[[], Verdicts]:
        """Begin to hand jobs to the store; return what waits for its word."""
        told = threading.Event()
        pending = self._sender.begin(orders, told.set)

        def ended() -> Verdicts:
            told.wait()
            return pending.result()

        return ended

    def wait(self, future: Future[T], timeout: float | None) -> T:
        """Wait for something; raise TimeoutError."""
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                "this would block the event loop of this thread, and everything that runs in it: use AsyncKeyedPool "
                "there, or wait in a plain function"
            )
        if self.results.is_here():
            raise RuntimeError("a function that is told of progress must not wait for a result: do so elsewhere")
        try:
            return future.result(timeout)
        except CancelledError:
            raise PoolClosed(
                f"pool {self.connection.name!r} was closed here while its outcome was waited for"
            ) from None

    def caller(self, function: Callable[[bytes], object]) -> Callable[[bytes], object]:
        """Return what calls a function of the user from another thread: there."""
        return function

    def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def close(self) -> None:
        """Close everything."""
        self._sender.close()
        self.results.close()
        self.connection.close()


class Working:
    """A worker of this process, for as long as a block lasts, with an event loop in a thread of its own."""

    def __init__(self, connection: PoolConnection, options: dict[str, Any]) -> None:
        self._connection = connection
        self._options = options
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def id(self) -> str:
        """The id under which it is a member now; another one after it lost its lease."""
        return "" if self._worker is None else self._worker.id

    @property
    def is_member(self) -> bool:
        """Whether its lease surely holds."""
        return self._worker is not None and self._worker.is_member

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the worker ends, since the pool was shut down; False after so many seconds."""
        if self._worker is not None and self._loop is not None:
            stopped = asyncio.run_coroutine_threadsafe(self._worker.stopped.wait(), self._loop)
            try:
                stopped.result(timeout)
            except TimeoutError:
                stopped.cancel()
                return False
        return True

    def close(self, grace: float | None = None) -> None:
        """Leave the pool; what runs has `grace` seconds to end."""
        if self._worker is not None and self._loop is not None and self._thread is not None:
            worker, self._worker = self._worker, None
            self._call(worker.close(grace))
            asyncio.run_coroutine_threadsafe(worker.departed(), self._loop).add_done_callback(self._end)
            if worker.is_gone:
                self._thread.join()

    def __enter__(self) -> Working:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()

        def live() -> None:
            assert self._loop is not None
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # type: ignore[arg-type,return-value]
                runner.get_loop().call_soon(started.set)
                runner.get_loop().run_forever()

        self._thread = threading.Thread(target=live, name=f"millpond-{self._connection.name}-loop", daemon=True)
        self._thread.start()
        started.wait()
        starting = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        try:
            self._worker = starting.result()
        except BaseException:
            self._undo(starting)
            raise
        return self

    def _undo(self, starting: Future[Worker]) -> None:
        """End a start that failed or was interrupted: a worker that has joined meanwhile leaves, as at the end."""
        assert self._thread is not None
        try:
            self._worker = starting.result()
        except Exception:
            self._end()
            self._thread.join()
        else:
            self.close()

    async def _start(self) -> Worker:
        worker = Worker(self._connection, **self._options)
        await worker.start()
        return worker

    def _call(self, step: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(step, self._loop).result()

    def _end(self, _: object = None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def __exit__(self, *error: object) -> None:
        self.close()

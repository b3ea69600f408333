"""What a handler is given: the job or the resident, and whether it is still its own."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from millpond.errors import LeaseLost
from millpond.keyed.rules.checks import check_seconds
from millpond.keyed.shared.arguments import decode


class Retry(Exception):
    """Raise it in a handler to have the job tried again after `delay` seconds, however often it has been tried."""

    def __init__(self, delay: float | None = None) -> None:
        self.delay = None if delay is None else check_seconds(delay, "the delay of Retry()")
        super().__init__(delay)


_lock = threading.Lock()
"""For all that is watched: there is one for each take, and hardly any is ever used."""


class Lost:
    """Becomes true when a handler is to stop: its worker lost its lease, its drain ran out, or it was cancelled.

    A coroutine is cancelled then as well; a plain function cannot be, so it had better look: `if job.lost: return`. A
    function that returns after it has seen this counts as stopped: unless it was cancelled it is run again, elsewhere.
    Wait with `job.lost.wait(5)` in a function, with `await job.lost` in a coroutine.
    """

    __slots__ = ("_is_set", "_watchers", "is_heeded", "reason")

    def __init__(self) -> None:
        self.reason = ""
        """Why: `lease`, `drain`, `closing`, `moved`, `stopped`, `paused`, `cancelled`."""
        self.is_heeded = False
        """Whether anybody has looked since: a function that returns then has not done all of its work."""
        self._is_set = False
        self._watchers: list[Callable[[], object]] | None = None

    def __bool__(self) -> bool:
        if self._is_set:
            self.is_heeded = True
        return self._is_set

    @property
    def is_set(self) -> bool:
        """Whether it is true, without heeding it."""
        return self._is_set

    def set(self, reason: str) -> None:
        """Call all who watch, once."""
        with _lock:
            if self._is_set:
                return
            self.reason = reason
            self._is_set = True
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            watcher()

    def watch(self, watcher: Callable[[], object]) -> None:
        """Call `watcher` when it becomes true, from whatever thread; at once if it is."""
        with _lock:
            if not self._is_set:
                self._watchers = [*(self._watchers or ()), watcher]
                return
        watcher()

    def unwatch(self, watcher: Callable[[], object]) -> None:
        """Call `watcher` no more."""
        with _lock:
            if self._watchers is not None:
                self._watchers = [each for each in self._watchers if each != watcher]

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is true, or for so many seconds; tell whether it is."""
        event = threading.Event()
        self.watch(event.set)
        try:
            event.wait(timeout)
        finally:
            self.unwatch(event.set)
        return bool(self)

    def __await__(self) -> Generator[Any, None, str]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            loop.call_soon_threadsafe(_finish, future)

        self.watch(wake)
        try:
            yield from future
        finally:
            self.unwatch(wake)
        self.is_heeded = True
        return self.reason


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(slots=True, eq=False)
class Job:
    """A job that is being run."""

    key: str
    """Its key."""
    id: str
    """Its id, as in the receipt."""
    name: str
    """The name of its handler."""
    attempt: int
    """1 at first; more when it failed, or was running when its worker died."""
    token: int
    """Grows with every take of the key: let what you write to elsewhere refuse a smaller one."""
    dispatched_at: float
    """Seconds since the epoch, by the store's clock."""
    pool: str
    """The name of the pool."""
    lost: Lost
    """Tells when this is to stop: wait for it, or ask it; it has a `reason`."""
    _tell: Callable[[Any], None] = lambda value: None

    def progress(self, value: Any) -> None:
        """Report progress to whoever waits for the job: a number, a text, whatever can travel.

        Tell it as often as you like: it is sent some twenty times a second at most, and each replaces the one before. A
        job that keeps no result tells nobody.
        """
        self._tell(value)

    def check(self) -> None:
        """Raise `LeaseLost` if the key is not this worker's any more."""
        if self.lost:
            raise LeaseLost(f"job {self.name!r} of key {self.key!r} is to stop ({self.lost.reason}); do nothing more")


class Resident:
    """A job that stays: it runs on one worker until it is stopped, and is sent messages.

    `for message in resident` in a function and `async for message in resident` in a coroutine give what `notify` sends;
    the loop of a function ends when the resident is to end, a coroutine is cancelled then. A message counts as handled
    when the next one is asked for; one that was not is given again to whoever runs the resident next.
    """

    __slots__ = (
        "_given",
        "_handled",
        "_inbox",
        "_seen",
        "_waiter",
        "_wake",
        "attempt",
        "id",
        "key",
        "lost",
        "name",
        "pool",
        "started_at",
        "token",
    )

    def __init__(
        self, job: Job, notes: Iterable[tuple[int, bytes]] = (), handled: Callable[[int], object] = lambda number: None
    ) -> None:
        self.key = job.key
        self.id = job.id
        self.name = job.name
        self.attempt = job.attempt
        """1 at first; more when it failed before."""
        self.token = job.token
        """Grows with every take of the resident: let what you write to elsewhere refuse a smaller one."""
        self.pool = job.pool
        self.started_at = job.dispatched_at
        """When it was asked for: seconds since the epoch, by the store's clock."""
        self.lost = job.lost
        self._handled = handled
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._seen = 0
        self._given = 0
        self._wake = threading.Condition()
        self._waiter: Callable[[], object] = lambda: None
        for number, data in notes:
            self.deliver(number, data)

    def deliver(self, number: int, data: bytes) -> None:
        """Bring a message, from whatever thread; one that came before is passed over."""
        with self._wake:
            if number > self._seen:
                self._seen = number
                self._inbox.append((number, data))
                self._wake.notify_all()
                self._waiter()

    def check(self) -> None:
        """Raise `LeaseLost` if it is to end."""
        if self.lost:
            raise LeaseLost(f"resident {self.name!r} of key {self.key!r} is to end ({self.lost.reason})")

    def receive(self, timeout: float | None = None) -> Any:
        """Wait for a message, in a plain function; raise TimeoutError, or `LeaseLost` when it is to end."""
        self._acknowledge()
        self.lost.watch(self._notify)
        try:
            with self._wake:
                if not self._wake.wait_for(lambda: self._inbox or self.lost, timeout):
                    raise TimeoutError(f"no message for resident {self.name!r} of key {self.key!r} in {timeout} s")
        finally:
            self.lost.unwatch(self._notify)
        self.check()
        return self._give()

    def __iter__(self) -> Iterator[Any]:
        while not self.lost:
            try:
                message = self.receive()
            except LeaseLost:
                return
            yield message

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self._acknowledge()
        loop = asyncio.get_running_loop()
        while not self._inbox:
            future: asyncio.Future[None] = loop.create_future()
            self._waiter = lambda future=future: loop.call_soon_threadsafe(_finish, future)  # type: ignore[misc]
            if not self._inbox:
                await future
        return self._give()

    def _give(self) -> Any:
        self._given, data = self._inbox[0]
        return decode(data)

    def _acknowledge(self) -> None:
        """Take note that the message that was given last is dealt with."""
        if self._given:
            self._inbox.popleft()
            self._handled(self._given)
            self._given = 0

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify_all()

"""How a thread talks to an engine: it blocks. The twin for event loops is `_async_bridge`; nothing else differs."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from millpond._clock import elapsed
from millpond.errors import PoolError
from millpond.resources._engine import UNREAD, Engine, Question, Ticket, answer_or, fell_behind
from millpond.resources._rules.commands import Command, Reply

T = TypeVar("T")
G = TypeVar("G", bound="Obtainable")


class Latch(Generic[T]):
    """A value that comes once, from any thread, to the one that waits for it."""

    __slots__ = ("_lock", "_value", "is_set")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_set = False

    def set(self, value: T) -> None:
        """Bring the value; only the first counts."""
        if not self.is_set:
            self._value = value
            self.is_set = True
        with contextlib.suppress(RuntimeError):  # released already; not if Ctrl-C struck between the two
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False when the time is over first."""
        if self.is_set:
            return True
        if timeout is None:
            # In slices, so that Ctrl-C gets through on every platform.
            while not self._lock.acquire(timeout=3600.0):
                pass
        elif not self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX)):
            return False
        return True

    @property
    def value(self) -> T:
        """What came."""
        return self._value


class Obtainable:
    """A grant that is obtained before anybody sees it."""

    __slots__ = ()

    def _obtain(self) -> Any:
        raise NotImplementedError

    def _abandon(self) -> None:
        raise NotImplementedError


def begin(grant: G) -> G:
    """Obtain a grant before it is handed to the caller."""
    try:
        grant._obtain()
        return grant
    except BaseException:
        grant._abandon()
        raise


TRIES: Final = 3
"""How often a call may raise before that is its answer."""
ON_LOST: Final = "raise"
"""What happens by default when a grant is lost: a thread cannot be cancelled, so it hears of it by `check()`."""


def check_on_lost(on_lost: object) -> None:
    """Refuse what nobody knows how to do when a grant is lost."""
    if on_lost == "cancel":
        raise ValueError("on_lost='cancel' is for asyncio: a thread cannot be cancelled; use 'raise' or a function")
    if not callable(on_lost) and on_lost not in ("raise", "ignore"):
        raise ValueError(f"on_lost must be 'raise', 'ignore' or a function, not {on_lost!r}")


class Block:
    """A `with` block in progress: nothing can interrupt it from outside."""

    def __init__(self, on_lost: object) -> None:
        pass

    def interrupt(self) -> None:
        """Do nothing: a thread cannot be interrupted."""

    def absorb(self, error: BaseException | None) -> bool:
        """Return whether the error came of `interrupt`."""
        return False


def pause(bridge: Bridge, question: Question[bool], timeout: float | None) -> bool:
    """Wait until a question about the pool is answered with no; False when the time is over first."""
    deadline = None if timeout is None else elapsed() + timeout
    changed = threading.Event()
    stop = bridge.engine.watch(bridge.pool, lambda entries: changed.set())
    try:
        while bridge.ask(question):
            left = 1.0 if deadline is None else min(1.0, deadline - elapsed())
            if left <= 0:
                return False
            changed.wait(left)
            changed.clear()
    finally:
        stop()
    return True


class Bridge:
    """The engine, as one pool of this thread sees it."""

    blocks = True

    def __init__(self, engine: Engine, pool: str) -> None:
        self.engine = engine
        self.pool = pool

    def send(self, command: Command) -> Reply:
        """Run a command and return its answer."""
        latch: Latch[Reply | Exception] = Latch()
        return self._result(self.engine.apply(self.pool, command, latch.set, block=True), latch)

    def ask(self, question: Question[T]) -> T:
        """Ask a question about the pool."""
        latch: Latch[T | Exception] = Latch()
        return self._result(self.engine.ask(self.pool, question, latch.set, block=True), latch)

    def glance(self, question: Question[T], otherwise: T, timeout: float) -> T:
        """Ask a question that is not worth waiting for: return `otherwise` when there is no answer in time."""
        latch: Latch[T | Exception] = Latch()
        try:
            ticket = self.engine.ask(self.pool, question, latch.set, block=False)
        except (PoolError, RuntimeError):  # closed meanwhile
            return otherwise
        if not latch.wait(timeout):
            ticket.cancel()
            return otherwise
        return otherwise if isinstance(latch.value, Exception) else latch.value

    def finish(self, command: Command) -> tuple[Reply | Exception, BaseException | None]:
        """Run a command to its end although the caller is being interrupted; return that with the answer.

        Interrupted, an engine goes on with what it has begun, but who knows whether it had: so it is told again, and
        the first answer counts. Any exception may be that of a signal's handler; one that comes again and again is the
        engine's own, and the answer.
        """
        latch: Latch[Reply | Exception] = Latch()
        interrupt: BaseException | None = None
        failures = 0
        while not latch.is_set:
            try:
                self.engine.apply(self.pool, command, latch.set, block=True)
                latch.wait()
            except Exception as error:
                failures += 1
                if failures == TRIES and not latch.is_set:
                    return error, None
                interrupt = error
            except BaseException as error:
                interrupt = error
        return latch.value, interrupt

    def take_back(self, command: Command, owe: Callable[[], None], within: float) -> BaseException | None:
        """Run a command that takes something back, waiting for its answer for so many seconds; return an interrupt.

        Whenever it fails, `owe` is called: then that sees to it. Interrupted, it is told again, as in `finish`.
        """
        latch: Latch[Reply | Exception] = Latch()
        deadline = elapsed() + within
        interrupt: BaseException | None = None
        failures = 0
        while not latch.is_set:
            try:
                self.engine.apply(self.pool, command, answer_or(owe, latch.set), block=True)
                latch.wait(deadline - elapsed())
                break
            except Exception as error:
                failures += 1
                if failures == TRIES and not latch.is_set:
                    owe()
                    return None
                interrupt = error
            except BaseException as error:
                interrupt = error
        return interrupt

    def call(self, function: Callable[[], T]) -> T:
        """Run something that blocks."""
        return function()

    def _result(self, ticket: Ticket, latch: Latch[T | Exception]) -> T:
        try:
            latch.wait()
        except BaseException:
            ticket.cancel()
            raise
        if isinstance(latch.value, Exception):
            raise latch.value
        return latch.value


class Stream(Generic[T]):
    """Values that arrive from any thread and are iterated over here, until it is closed.

    It keeps `limit` values for one who reads slowly. What comes after them is not kept: then the iteration raises
    `PoolError` after those.
    """

    def __init__(self, limit: int = UNREAD) -> None:
        self._condition = threading.Condition()
        self._values: deque[T] = deque()
        self._limit = limit
        self._closed = False
        self._is_cut = False

    def put(self, value: T) -> None:
        """Add a value."""
        with self._condition:
            self._is_cut = self._is_cut or len(self._values) >= self._limit
            if not self._is_cut:
                self._values.append(value)
            self._condition.notify()

    def close(self) -> None:
        """End the iteration after what is there."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._condition:
            while not self._values:
                if self._is_cut:
                    raise fell_behind(self._limit)
                if self._closed:
                    raise StopIteration
                self._condition.wait()
            return self._values.popleft()

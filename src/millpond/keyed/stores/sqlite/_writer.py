"""Where the threads of this process hand in what they want written.

A thread that has something to write queues it, and if no other is writing and the gate stands open it carries out all
that is queued, in one transaction. Otherwise the thread of the writer does, which waits in line at the gate. So a call
costs one transaction and no switch of threads while nothing is in the way, and calls that have to wait share the next
transaction. What fails in company is tried again alone, so that no caller gets another's error.

A caller that waits too long is told who is in the way; its call is withdrawn, so nothing has happened. A signal
(Ctrl-C) strikes before or after a transaction, never within.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from millpond._interrupts import shielded
from millpond._sqlite import Database, DiskFull, EngineClock, Transaction
from millpond.errors import EngineError, EngineUnavailable, PoolClosed

T = TypeVar("T")
STUCK = 10.0
"""Seconds after which a call that could not begin is given up."""


class _Call:
    """Something to write, and what came of it."""

    __slots__ = ("error", "over", "result", "step")

    def __init__(self, step: Callable[[Transaction], Any]) -> None:
        self.step = step
        self.result: Any = None
        self.error: Exception | None = None
        self.over = threading.Lock()
        """Held until it is over."""
        self.over.acquire()

    def end(self, error: Exception | None = None) -> None:
        if self.over.locked():
            self.error = error
            self.over.release()


class Writer:
    """All writing of this process to one file."""

    def __init__(self, database: Database, clock: EngineClock) -> None:
        self._database = database
        self._clock = clock
        self._turn = threading.Lock()
        """Of the threads of this process: taken before the gate."""
        self._queue: deque[_Call] = deque()
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        self._is_closed = False
        self.writes = 0
        self._thread = threading.Thread(target=self._serve, name="millpond-keyed-writer", daemon=True)
        self._thread.start()

    def write(self, step: Callable[[Transaction], T]) -> T:
        """Carry out a step in a transaction, perhaps together with those of other threads."""
        if self._is_closed:
            raise PoolClosed(f"{self._database.path!r} is closed in this process: open the pool again")
        call = _Call(step)
        self._queue.append(call)
        if not shielded(self._try_now):
            self._wakes.put(True)
            self._wait(call)
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def close(self) -> None:
        """End the thread; fail the calls that still wait."""
        self._is_closed = True
        self._wakes.put(False)
        self._thread.join(5.0)
        while self._queue:
            self._queue.popleft().end(PoolClosed(f"{self._database.path!r} was closed"))

    # -- parts --------------------------------------------------------------------------------------------------------

    def _wait(self, call: _Call) -> None:
        try:
            is_over = call.over.acquire(timeout=STUCK)
        except BaseException:
            self._withdraw(call)
            raise
        if is_over:
            return
        if self._withdraw(call):
            why = self._database.gate.obstacle(STUCK)
            raise EngineUnavailable(f"{self._database.path!r} did not answer for {STUCK:g} s: {why}")
        call.over.acquire()  # it is being carried out

    def _withdraw(self, call: _Call) -> bool:
        try:
            self._queue.remove(call)
        except ValueError:
            return False
        return True

    def _try_now(self) -> bool:
        """Carry out all that is queued, if nobody is in the way."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if not self._enter(self._database.gate.try_enter):
                return False
            try:
                self._carry_out()
            finally:
                self._database.gate.leave()
        finally:
            self._turn.release()
        return True

    def _serve(self) -> None:
        """Carry out what is queued, each time a caller could not do so itself."""
        while self._wakes.get():
            if self._queue:
                with self._turn:
                    if self._enter(self._stand_in_line):
                        try:
                            self._carry_out()
                        finally:
                            self._database.gate.leave()

    def _stand_in_line(self) -> bool:
        self._database.gate.enter()
        return True

    def _enter(self, how: Callable[[], bool]) -> bool:
        """Enter the gate; an error is everybody's."""
        try:
            return how()
        except EngineError as error:
            for call in self._taken():
                call.end(error)
            return False

    def _taken(self) -> list[_Call]:
        calls = []
        while self._queue:
            calls.append(self._queue.popleft())
        return calls

    def _carry_out(self) -> None:
        calls = self._taken()
        try:
            self._commit(calls)
        except Exception as error:
            if len(calls) == 1:
                calls[0].end(error)
            for call in calls:
                if call.over.locked():
                    self._commit_alone(call)

    def _commit_alone(self, call: _Call) -> None:
        try:
            self._commit([call])
        except Exception as error:
            call.end(error)

    def _commit(self, calls: list[_Call]) -> None:
        try:
            self._commit_once(calls)
        except DiskFull:
            if not self._make_room():
                raise
            self._commit_once(calls)

    def _make_room(self) -> bool:
        """Move the WAL into the database, which takes much less: a small change writes whole pages there."""
        with contextlib.suppress(EngineError):
            return self._database.checkpoint_if_large(1, is_urgent=True)
        return False

    def _commit_once(self, calls: list[_Call]) -> None:
        if not calls:
            return
        with self._database.writing() as transaction:
            for call in calls:
                call.result = call.step(transaction)
            self._clock.record(transaction)
        self.writes += 1
        for call in calls:
            call.end()

"""A file, as this process has it open for keyed pools: one for all its pools and stores.

Writing. Whoever has something to write queues it and waits for his turn. Who has it carries out all that is queued, in
one transaction: so threads that come while another one waits at the gate, or writes, share the next transaction. What
fails there is tried again alone, so that nobody hears of another's error.

The thread sleeps until the bell is rung (there is news for somebody who listens here), a process dies, or a second is
over. It buries the dead, tells those who listen, and keeps the write-ahead log short.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from millpond import _fork
from millpond._events import logger
from millpond._sqlite import Database, EngineClock, FileReplaced, Transaction
from millpond._sqlite._url import Synchronous
from millpond.errors import EngineError
from millpond.keyed.stores.sqlite._ears import Ear, Ears
from millpond.keyed.stores.sqlite._pool import Pools
from millpond.keyed.stores.sqlite._sessions import Sessions
from millpond.keyed.stores.sqlite._tables import FORMAT, TABLES

T = TypeVar("T")
LOOK = 1.0
"""Seconds after which the thread looks by itself."""
CHECKPOINT = 32
"""Transactions between two looks at the size of the write-ahead log."""
WAL_LIMIT = 16 << 20
"""Bytes of it from which on it is moved into the file: jobs come and go in many pages."""


class _Call:
    """Something to write."""

    __slots__ = ("error", "is_done", "result", "step")

    def __init__(self, step: Callable[[Transaction], Any]) -> None:
        self.step = step
        self.is_done = False
        self.result: Any = None
        self.error: Exception | None = None


class Home:
    """A file and this process."""

    def __init__(self, path: str, synchronous: Synchronous) -> None:
        self.path = path
        self.synchronous = synchronous
        self.pid = _fork.this.pid
        self.users = 0
        self.is_void = False
        """The file was replaced, or this was closed: open another."""
        self.pools = Pools()
        self.ears = Ears()
        self._turn = threading.Lock()
        self._queue: deque[_Call] = deque()
        self._writes = 0
        self.database = Database(path, tables=[TABLES], synchronous=synchronous)
        try:
            self._check_format()
            self.clock = EngineClock(self.database)
            self.sessions = Sessions(self.database)
        except BaseException:
            self.database.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.sessions.bell, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._watch, name="millpond-keyed-sqlite", daemon=True)
        self.sessions.meet()
        self._listen_for_deaths()
        self.sessions.bell.ring(self.sessions.others())
        self._thread.start()

    def _check_format(self) -> None:
        with self.database.writing() as transaction:
            row = transaction.execute("SELECT value FROM meta WHERE key = 'keyed_format'").fetchone()
            if row is None:
                transaction.execute("INSERT INTO meta VALUES ('keyed_format', ?)", (FORMAT,))
            elif row[0] > FORMAT:
                raise EngineError(
                    f"the keyed pools in {self.path!r} were written by a newer Millpond (format {row[0]}, this one "
                    f"knows up to {FORMAT}): upgrade millpond"
                )

    # -- reading and writing ------------------------------------------------------------------------------------------

    def write(self, step: Callable[[Transaction], T]) -> T:
        """Carry out a step in a transaction, perhaps together with those of other threads."""
        call = _Call(step)
        self._queue.append(call)
        with self._turn:
            if not call.is_done:
                self._carry_out(call)
        self._writes += 1
        if self._writes % CHECKPOINT == 0:
            self.sessions.bell.ring_self()
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def _carry_out(self, own: _Call) -> None:
        """Carry out all that is queued, or at least our own."""
        calls: list[_Call] = []
        while self._queue:
            calls.append(self._queue.popleft())
        if own not in calls:
            calls.append(own)  # it was taken by one who was interrupted
        try:
            self._commit(calls)
        except Exception as error:
            if isinstance(error, FileReplaced):
                self.is_void = True
            if len(calls) == 1:
                raise
            for call in calls:
                if not call.is_done:
                    self._try_alone(call)

    def _try_alone(self, call: _Call) -> None:
        try:
            self._commit([call])
        except Exception as error:
            call.error, call.is_done = error, True

    def _commit(self, calls: list[_Call]) -> None:
        transaction: Transaction | None = None
        try:
            with self.database.writing() as transaction:
                for call in calls:
                    call.result = call.step(transaction)
                self.clock.record(transaction)
        finally:
            if transaction is not None and transaction.committed:
                for call in calls:
                    call.is_done = True

    def read(self, step: Callable[[Transaction], T]) -> T:
        """Carry out a step that only reads."""
        with self.database.reading() as transaction:
            return step(transaction)

    # -- hints --------------------------------------------------------------------------------------------------------

    def listen(self, ear: Ear) -> None:
        """Let somebody be told hints, also those of other processes."""
        self.ears.add(ear)
        row = (ear.pool, ear.name, self.sessions.number)
        self.write(lambda transaction: transaction.execute("INSERT OR IGNORE INTO keyed_ear VALUES (?, ?, ?, 0)", row))

    def deafen(self, ear: Ear) -> None:
        """Let somebody be told no more."""
        if self.ears.discard(ear) and not self.is_void:
            row = (ear.pool, ear.name, self.sessions.number)
            try:
                self.write(
                    lambda transaction: transaction.execute(
                        "DELETE FROM keyed_ear WHERE pool = ? AND name = ? AND session = ?", row
                    )
                )
            except EngineError as error:  # it goes with the session
                logger.debug("an ear stays in the file", extra={"millpond": {"error": str(error)}})

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _listen_for_deaths(self) -> None:
        if self.sessions.deaths.fileno() >= 0:
            self._selector.register(self.sessions.deaths, selectors.EVENT_READ)

    def _watch(self) -> None:
        """Wait for something to hear, and tell it, until this is closed."""
        looked = time.monotonic()
        while not self._is_over():
            patience = self.sessions.patience()
            self._selector.select(LOOK if patience is None else min(LOOK, patience))
            if self._is_over():
                return
            try:
                self._turn_once()
                if time.monotonic() - looked >= LOOK:
                    looked = time.monotonic()
                    self._look_after_own()
            except EngineError as error:
                logger.warning("a keyed pool's file is in trouble", extra={"millpond": {"error": str(error)}})
                time.sleep(0.1)
            except Exception:
                if not self._is_over():
                    logger.exception("the watch over a keyed pool's file failed")
                    time.sleep(0.1)

    def _is_over(self) -> bool:
        return self.is_void

    def _turn_once(self) -> None:
        self.sessions.bell.drain()
        is_news = self.sessions.look()
        if is_news:
            self.sessions.bury()
        is_news = self.sessions.meet() or is_news
        if is_news:
            self.ears.call_all()
        with self.database.glancing() as transaction:
            self.ears.call_rung(transaction, self.sessions.number)
        if self._writes >= CHECKPOINT:
            self._writes = 0
            self.database.checkpoint_if_large(WAL_LIMIT)

    def _look_after_own(self) -> None:
        deaths = self.sessions.deaths
        self.sessions.look_after_own()
        if self.sessions.deaths is not deaths:
            self._selector.close()
            self._selector = selectors.DefaultSelector()
            self._selector.register(self.sessions.bell, selectors.EVENT_READ)
            self._listen_for_deaths()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the session: what workers of this process had is free to be claimed."""
        if self.pid != _fork.this.pid:
            return
        was_void, self.is_void = self.is_void, True
        self.sessions.bell.ring_self()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        try:
            if not was_void and self.database.gate.enter_within(5.0):
                try:
                    self.sessions.say_goodbye()
                finally:
                    self.database.gate.leave()
        except EngineError as error:  # the kernel will tell the others that we are gone
            logger.warning("a session could not be ended", extra={"millpond": {"error": str(error)}})
        self.sessions.bell.ring(self.sessions.others())
        self._selector.close()
        self.sessions.close()
        self.database.close()

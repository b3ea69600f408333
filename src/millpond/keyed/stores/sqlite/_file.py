"""A file, as this process has it open for keyed pools: one for all its pools and stores.

Its thread sleeps until the bell is rung (there is news for somebody who listens here), a process dies, or a second is
over. It buries the dead, tells those who listen, and keeps the write-ahead log short.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from millpond import _fork
from millpond._events import logger
from millpond._sqlite import Database, EngineClock, FileReplaced, Transaction
from millpond._sqlite._url import Place
from millpond.errors import EngineError
from millpond.keyed.stores.sqlite._listeners import Listeners, Subscription
from millpond.keyed.stores.sqlite._own_workers import OwnWorkers
from millpond.keyed.stores.sqlite._pool import Pools
from millpond.keyed.stores.sqlite._schema import FORMAT, TABLES
from millpond.keyed.stores.sqlite._sessions import Sessions
from millpond.keyed.stores.sqlite._writer import Writer

T = TypeVar("T")
LOOK = 1.0
"""Seconds after which the thread looks by itself."""
CHECKPOINT = 32
"""Transactions between two looks at the size of the write-ahead log."""
WAL_LIMIT = 16 << 20
"""Bytes of it from which on it is moved into the file: jobs come and go in many pages."""


class SharedFile:
    """A file and this process."""

    def __init__(self, place: Place) -> None:
        self.path = place.path
        self.synchronous = place.synchronous
        self.pid = _fork.this.pid
        self.is_void = False
        """The file was replaced, or this was closed: open another."""
        self.pools = Pools()
        self.listeners = Listeners()
        self.workers = OwnWorkers()
        self._checked = 0
        self.database = Database(place.path, tables=[TABLES], synchronous=place.synchronous, mode=place.mode)
        try:
            self._check_format()
            self.clock = EngineClock(self.database)
            self.sessions = Sessions(self.database, self.listeners.names)
        except BaseException:
            self.database.close()
            raise
        self._writer = Writer(self.database, self.clock)
        self._selector = selectors.DefaultSelector()
        self.sessions.own.register(self._selector)
        self._thread = threading.Thread(target=self._watch, name="millpond-keyed-sqlite", daemon=True)
        self.sessions.own.meet()
        self.sessions.own.bell.ring(self.sessions.own.others())
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
            elif row[0] < FORMAT:
                raise EngineError(
                    f"the keyed pools in {self.path!r} were written before the first release of Millpond (format "
                    f"{row[0]}, this one reads {FORMAT}): use the version that wrote them, or another file"
                )

    # -- reading and writing ------------------------------------------------------------------------------------------

    def write(self, step: Callable[[Transaction], T]) -> T:
        """Carry out a step in a transaction, perhaps together with those of other threads."""
        try:
            return self._writer.write(step)
        except FileReplaced:
            self.is_void = True
            raise
        finally:
            if self._writer.writes - self._checked >= CHECKPOINT:
                self.sessions.own.bell.ring_self()

    def read(self, step: Callable[[Transaction], T]) -> T:
        """Carry out a step that only reads."""
        with self.database.reading() as transaction:
            return step(transaction)

    # -- hints --------------------------------------------------------------------------------------------------------

    def listen(self, subscription: Subscription) -> None:
        """Subscribe to hints, also those of other processes."""
        self.listeners.add(subscription)
        key = (subscription.pool, subscription.name)
        self.write(
            lambda transaction: transaction.execute(
                "INSERT OR IGNORE INTO keyed_listener VALUES (?, ?, ?, 0)", (*key, self.sessions.number)
            )
        )

    def unsubscribe(self, subscription: Subscription) -> None:
        """Unsubscribe."""
        if self.listeners.discard(subscription) and not self.is_void:
            key = (subscription.pool, subscription.name)
            try:
                self.write(
                    lambda transaction: transaction.execute(
                        "DELETE FROM keyed_listener WHERE pool = ? AND name = ? AND session = ?",
                        (*key, self.sessions.number),
                    )
                )
            except EngineError as error:  # it goes with the session
                logger.debug("a subscription stays in the file", extra={"millpond": {"error": str(error)}})

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Wait for something to hear, and tell it, until this is closed."""
        looked = time.monotonic()
        while not self._is_over():
            patience = self.sessions.own.patience()
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
        self.sessions.own.bell.drain()
        dead = self.sessions.own.find_dead()
        if dead:
            self.sessions.bury(dead)
        if self.sessions.own.meet() or dead:
            self.listeners.call_all()
        with self.database.glancing() as transaction:
            self.listeners.call_rung(transaction, self.sessions.number)
        if self._writer.writes - self._checked >= CHECKPOINT:
            self._checked = self._writer.writes
            self.database.checkpoint_if_large(WAL_LIMIT)

    def _look_after_own(self) -> None:
        """Take a new session if somebody buried ours by mistake, and mend a live file that was replaced."""
        if self.sessions.own.is_well():
            return
        try:
            with self.database.gate:
                self.sessions.own.mend()
            self.listeners.call_all()  # while our session was buried nobody could tell us anything
        finally:
            self._selector.close()
            self._selector = selectors.DefaultSelector()
            self.sessions.own.register(self._selector)

    # -- the end ------------------------------------------------------------------------------------------------------

    def is_replaced(self) -> bool:
        """Return whether the path names another file by now, or none."""
        return self.database.is_replaced()

    def shut_down(self) -> None:
        """End the session: what workers of this process had is free to be claimed."""
        if self.pid != _fork.this.pid:
            return
        was_void, self.is_void = self.is_void, True
        self.sessions.own.bell.ring_self()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        self._writer.close()
        if not was_void:
            self.sessions.own.end(self.sessions.say_goodbye)
        self.sessions.own.bell.ring(self.sessions.own.others())
        self._selector.close()
        self.sessions.own.close()
        self.database.close()

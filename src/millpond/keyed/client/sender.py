"""Dispatches of one process on their way to the store: gathered, in order, and sent once.

Whoever comes while a call is out waits for it and goes with the next, together with everybody else who came meanwhile.
Each call names its batch, so that after a lost answer it is sent again and changes nothing if it had arrived; until
that is clear nothing later goes out, so order holds.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from millpond._clock import elapsed
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.rules.commands import Dispatch
from millpond.keyed.rules.records import Batch, Order, Verdicts
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.stores.base import NothingChanged, PoolGone

BATCH = 500
BATCH_BYTES = 4 << 20
APART = 2 * BATCH
"""What lies between the numbers of batches: should the dispatches of one have to go by themselves, each has its own."""
PATIENCE = 20.0
"""Seconds for which an unanswered batch is sent again; the store remembers it for longer."""


class Pending:
    """Orders of one caller."""

    __slots__ = ("error", "is_done", "orders", "told", "verdicts")

    def __init__(self, orders: Sequence[Order], told: Callable[[], None] | None = None) -> None:
        self.orders = orders
        self.verdicts: dict[int, str] = {}
        self.error: Exception | None = None
        self.is_done = False
        self.told = told

    def result(self) -> Verdicts:
        """Return what the store said; raise what went wrong."""
        if self.error is not None:
            raise self.error
        return self.verdicts


Load: TypeAlias = tuple[Batch, list[Pending], list[Order]]
"""What goes with one call."""


class Sender:
    """The one way by which jobs of this process come to the store."""

    def __init__(self, connection: PoolConnection) -> None:
        self._connection = connection
        self._id = secrets.token_hex(6)  # a process has several, each of which numbers its batches
        self._queue: deque[Pending] = deque()
        self._sending = threading.Lock()
        self._batches = 0
        self._underway: deque[Load] = deque()
        """What is being sent. It stays when its sender is interrupted: the next one sends it again, as it was."""
        self._thread: threading.Thread | None = None
        self._ending = threading.Lock()
        self._bell = threading.Event()
        self._is_closed = False

    def send(self, orders: Sequence[Order]) -> Verdicts:
        """Dispatch, and wait for the store's word."""
        pending = Pending(orders)
        self._queue.append(pending)
        with self._sending:
            while not pending.is_done:
                self._flush()
        return pending.result()

    def begin(self, orders: Sequence[Order], told: Callable[[], None]) -> Pending:
        """Dispatch from a thread of our own, which calls `told` when the store has answered."""
        pending = Pending(orders, told)
        with self._ending:
            self._queue.append(pending)
            if self._thread is None or not self._thread.is_alive():
                name = f"millpond-{self._connection.name}-sender"
                self._thread = threading.Thread(target=self._live, name=name, daemon=True)
                self._thread.start()
        self._bell.set()
        return pending

    def close(self) -> None:
        """End the thread; what is in the queue goes first."""
        self._is_closed = True
        self._bell.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout=PATIENCE)

    def _live(self) -> None:
        while True:
            self._bell.wait()
            self._bell.clear()
            while self._queue or self._underway:
                with self._sending:
                    self._flush()
            with self._ending:  # nobody may count on a thread that has seen an empty queue
                if self._is_closed and not self._queue:
                    self._thread = None
                    return

    def _flush(self) -> None:
        """Send one call with what is in the queue, as much as fits. Called by whoever holds the lock."""
        if not self._underway:
            self._gather()
        while self._underway:
            batch, all_pending, orders = self._underway[0]
            try:
                _share(all_pending, self._deliver(batch, orders))
            except EngineError as error:
                for pending in all_pending:
                    pending.error = error
            except Exception as error:
                if len(all_pending) > 1:  # one of them cannot be sent at all, which is nothing to the others
                    numbers = range(batch.number + 1, batch.number + 1 + len(all_pending))
                    singles = [
                        (batch._replace(number=number), [pending], list(pending.orders))
                        for number, pending in zip(numbers, all_pending, strict=True)
                    ]
                    self._underway = deque(singles)
                    continue
                all_pending[0].error = error
            for pending in all_pending:
                pending.is_done = True
                if pending.told is not None:
                    pending.told()
            self._underway.popleft()

    def _gather(self) -> None:
        """Put together what goes with one call. A dispatch leaves the queue when it is done: no interrupt loses one."""
        while self._queue and self._queue[0].is_done:
            self._queue.popleft()
        all_pending: list[Pending] = []
        orders: list[Order] = []
        size = 0
        for pending in self._first(BATCH):
            if len(orders) >= BATCH or size >= BATCH_BYTES:
                break
            all_pending.append(pending)
            orders += pending.orders
            size += sum(len(order.body) for order in pending.orders)
        if all_pending:
            self._batches += 1
            self._underway.append((Batch(self._id, self._batches * APART), all_pending, orders))

    def _first(self, number: int) -> list[Pending]:
        """Return the first in the queue, to which others add meanwhile."""
        while True:
            with contextlib.suppress(RuntimeError):  # somebody did so between two steps of this
                return list(itertools.islice(self._queue, number))

    def _deliver(self, batch: Batch, orders: Sequence[Order]) -> Verdicts:
        deadline = elapsed() + PATIENCE
        pause = 0.02
        is_gone = False
        while True:
            try:
                store = self._connection.reopen()[0] if is_gone else self._connection.store
                return store.do(Dispatch(batch, orders))
            except PoolGone:
                is_gone = True
            except NothingChanged:
                raise
            except EngineUnavailable as error:
                if elapsed() > deadline:
                    raise EngineUnavailable(
                        f"pool {self._connection.name!r} has not answered for {PATIENCE:.0f} s ({error}); whether "
                        f"these {len(orders)} jobs are in is unknown: dispatch with options(id=...) to be able to "
                        "repeat it"
                    ) from error
                time.sleep(pause)
                pause = min(1.0, pause * 2)


def _share(all_pending: Sequence[Pending], verdicts: Verdicts) -> None:
    """Give each its part of the store's answer to all."""
    start = 0
    for pending in all_pending if verdicts else ():
        end = start + len(pending.orders)
        pending.verdicts = {at - start: word for at, word in verdicts.items() if start <= at < end}
        start = end

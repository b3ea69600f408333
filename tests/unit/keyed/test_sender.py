"""Dispatches on their way: nobody's are lost, and nobody pays for another's."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from millpond.errors import PoolClosed
from millpond.keyed import Job, KeyedPool
from millpond.keyed.client.sender import Pending, Sender
from millpond.keyed.rules.commands import Dispatch
from millpond.keyed.rules.records import Batch, Order, Verdicts
from waiting import HANG


class StubHome:
    """A store that takes everything but what is marked as bad."""

    name = "p"
    producer = "me"

    def __init__(self) -> None:
        self.store = self
        self.taken: list[str] = []

    def do(self, command: Dispatch) -> Verdicts:
        return self.dispatch(command.batch, command.orders)

    def dispatch(self, batch: Batch, orders: Sequence[Order]) -> Verdicts:
        if any(order.body == b"bad" for order in orders):
            raise TypeError("this cannot be sent")
        self.taken += [order.mailbox for order in orders]
        return {at: "full" for at, order in enumerate(orders) if order.body == b"full"}


class Watched(deque[Pending]):
    """A queue that does something in the moment in which it is found empty."""

    when_empty: Callable[[], object] | None = None

    def __len__(self) -> int:
        number = super().__len__()
        if not number and self.when_empty is not None:
            call, self.when_empty = self.when_empty, None
            call()
        return number


def test_what_comes_while_the_thread_ends_is_sent_all_the_same():
    home, told = StubHome(), threading.Event()
    outbox = Sender(home)  # type: ignore[arg-type]
    outbox._queue = queue = Watched()
    first = threading.Event()
    outbox.begin([Order(1, "j:a", b"x")], first.set)
    assert first.wait(HANG)

    def come() -> None:
        comer = threading.Thread(target=outbox.begin, args=([Order(1, "j:b", b"x")], told.set))
        comer.start()
        comer.join(0.1)  # in time, unless it has to wait for the thread to have ended

    outbox._is_closed = True
    queue.when_empty = come
    outbox._bell.set()
    assert told.wait(HANG)
    assert home.taken == ["j:a", "j:b"]


def test_an_interrupt_while_parcels_go_one_by_one_loses_none():
    """The store ignores what is older than the last that it had of a producer."""

    class Store(StubHome):
        last = 0
        interrupts = 1

        def dispatch(self, batch: Batch, orders: Sequence[Order]) -> Verdicts:
            if batch.number <= self.last:
                return {}
            if self.interrupts and orders[0].mailbox == "j:2" and len(orders) == 1:
                self.interrupts -= 1
                raise KeyboardInterrupt
            verdicts = super().dispatch(batch, orders)
            self.last = batch.number
            return verdicts

    home = Store()
    outbox = Sender(home)  # type: ignore[arg-type]
    all_pending = [Pending([Order(1, f"j:{number}", body)]) for number, body in enumerate([b"x", b"bad", b"y", b"z"])]
    outbox._queue.extend(all_pending)
    with pytest.raises(KeyboardInterrupt):
        outbox.send([Order(1, "j:last", b"z")])
    assert outbox.send([Order(1, "j:more", b"z")]) == {}
    assert home.taken == ["j:0", "j:2", "j:3", "j:last", "j:more"]
    assert all(pending.is_done for pending in all_pending) and isinstance(all_pending[1].error, TypeError)


def test_what_cannot_be_sent_at_all_fails_alone():
    home = StubHome()
    outbox = Sender(home)  # type: ignore[arg-type]
    all_pending = [
        Pending([Order(1, f"j:{number}", body)]) for number, body in enumerate([b"x", b"bad", b"full", b"y"])
    ]
    outbox._queue.extend(all_pending)
    assert outbox.send([Order(1, "j:last", b"z")]) == {}
    assert home.taken == ["j:0", "j:2", "j:3", "j:last"]
    assert [pending.verdicts for pending in all_pending] == [{}, {}, {0: "full"}, {}]
    with pytest.raises(TypeError, match="cannot be sent"):
        all_pending[1].result()


def test_close_and_dispatch_many_at_once_never_hang(make: Callable[..., Any]):
    for _ in range(20):
        pool: KeyedPool = make()

        @pool.job
        def do(job: Job) -> None: ...

        threads = [threading.Thread(target=lambda pool=pool, do=do: _dispatch(do)) for _ in range(4)]
        for thread in threads:
            thread.start()
        pool.close()
        for thread in threads:
            thread.join(HANG)
            assert not thread.is_alive()


def _dispatch(do: Any) -> None:
    with contextlib.suppress(PoolClosed):
        do.dispatch_many([(f"k{number}",) for number in range(50)])

"""What a worker asks of its store: little when it works, next to nothing when it does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable

import keyed_play as play
import pytest

from millpond.keyed import Job, KeyedPool, Resident
from millpond.keyed.rules import commands as do
from millpond.keyed.rules.envelope import Envelope, encode
from millpond.keyed.rules.records import Batch, Joiner, Order, Settings
from millpond.keyed.stores.memory import MemoryStore
from millpond.keyed.worker import pace
from waiting import HANG, until


def calls_while(store: play.Tampered, seconds: float) -> tuple[Counter[str], float]:
    """Return what is asked while time passes, and how many times `seconds` that really was."""
    start, began = len(store.calls), time.monotonic()
    time.sleep(seconds)  # nothing is to happen, so there is nothing to wait for
    return Counter(store.calls[start:]), (time.monotonic() - began) / seconds


def is_quiet(store: play.Tampered) -> bool:
    """Return whether little is asked for half a second. What was to be said of earlier things may come late."""
    spent, times = calls_while(store, 0.5)
    print(dict(spent))
    return sum(spent.values()) < 12 * times


def test_jobs_go_in_batches(pool: KeyedPool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pace, "QUICK", 1e6)  # these jobs are quick, however slow the machine is

    @pool.job
    async def do(job: Job, number: int) -> int:
        return number

    store = play.tamper(pool)
    with pool.worker():
        do.dispatch("warm", 0).result(HANG)
        start = len(store.calls)
        for one in do.dispatch_many([(f"k{number % 50}", number) for number in range(2000)]):
            one.result(HANG)
        spent = Counter(store.calls[start:])
    assert spent["dispatch"] == 4
    assert spent["work"] < 700
    assert sum(spent.values()) < 2800  # an outcome is asked for by itself


def test_one_job_at_a_time_costs_few_calls(pool: KeyedPool):
    @pool.job
    async def do(job: Job) -> None: ...

    store = play.tamper(pool)
    with pool.worker():
        do.dispatch("warm").result(HANG)
        start, began = len(store.calls), time.monotonic()
        for _ in range(100):
            do.dispatch("k").result(HANG)
        spent = Counter(store.calls[start:])
        looks = time.monotonic() - began  # one a second, without a cause
    assert spent["dispatch"] == 100
    assert spent["work"] <= 320 + looks
    assert spent["Outcomes"] <= 320 + looks


def states(pool: KeyedPool) -> list[str]:
    return [one.state for one in pool.keys()]  # noqa: SIM118


STATES = ["idle", "busy", "paused", "paused key", "shut", "parked", "retry", "delayed", "resident", "full"]


@pytest.mark.parametrize("state", STATES)
def test_a_worker_that_has_nothing_to_do_is_quiet(make: Callable[..., KeyedPool], state: str):
    pool = make(lease=30.0)
    gate, begun = play.Gate(), threading.Event()

    @pool.job(max_attempts=3, backoff=1000)
    async def do(job: Job, bad: bool = False) -> None:
        if bad:
            raise ValueError
        begun.set()
        await gate.pass_()

    @pool.resident
    async def stay(resident: Resident) -> None:
        await asyncio.sleep(3600)

    store = play.tamper(pool)
    with pool.worker(concurrency=1 if state == "full" else 100):
        match state:
            case "idle":
                until(lambda: list(play.slot_share(pool).values()) == [play.SLOTS])
            case "busy":
                do.dispatch("k"), do.dispatch("k")
                until(lambda: states(pool) == ["running"])
            case "paused":
                pool.admin.pause()
                do.dispatch("k"), stay.start("k")
                until(lambda: list(play.slot_share(pool).values()) == [play.SLOTS])
            case "paused key":
                pool.admin.pause("k")
                do.dispatch("k")
                until(lambda: states(pool) == ["paused"])
            case "shut":
                do.dispatch("k")
                assert begun.wait(HANG)  # what was only taken is given back
                pool.admin.shutdown()
                until(lambda: [one.is_leaving for one in pool.workers()] == [True])
            case "parked":
                pool.declare_job("x").dispatch("k"), pool.declare_resident("y").start("k")
                until(lambda: [*states(pool), pool.residents()[0].state] == ["parked"] * 2)
            case "retry":
                do.dispatch("k", bad=True)
                until(lambda: states(pool) == ["retry"])
            case "delayed":
                do.options(delay=1000).dispatch("k")
                until(lambda: list(play.slot_share(pool).values()) == [play.SLOTS])
            case "resident":
                stay.start("k")
                until(lambda: pool.residents()[0].state == "running")
            case "full":
                for number in range(20):
                    do.dispatch(f"k{number}")
                until(lambda: sorted(states(pool)) == ["ready"] * 19 + ["running"])
        until(lambda: is_quiet(store))
        gate.open()


def test_a_producer_that_waits_is_quiet(pool: KeyedPool):
    do = pool.declare_job("do")
    store = play.tamper(pool)
    began = time.monotonic()
    receipts = do.dispatch_many([(f"k{number}",) for number in range(300)])
    for one in receipts:
        with pytest.raises(TimeoutError):
            one.result(0)
    start, now = len(store.calls), time.monotonic()
    with pytest.raises(TimeoutError):
        receipts[0].result(0.8)
    spent = Counter(store.calls[start:])
    assert spent.pop("Where") <= 300 * (time.monotonic() - began) + 1  # each is looked for once a second, at most
    assert sum(spent.values()) < 10 * (time.monotonic() - now) / 0.8, spent


def test_a_producer_is_remembered_once_however_often_it_dispatches(pool: KeyedPool):
    do = pool.declare_job("do")
    for number in range(30):
        do.dispatch(f"k{number % 3}")
    tables = pool._connection.store.tables  # type: ignore[attr-defined]
    assert len(tables.batches.rows) == 1


class CountedSlot(int):
    """Counts with how many others slots are compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedSlot.compared += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def test_a_store_in_memory_looks_at_few_slots_however_many_have_something_ready(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CountedSlot, "compared", 0)
    store, settings = MemoryStore(), Settings()
    store.open(settings)
    store.do(do.Join(Joiner("w", "host")))
    store.do(do.Claim("w", range(settings.slots), {}))
    body, many = encode(Envelope("id", "f", "", 0, b"")), 3000
    for number in range(many):
        order = Order(CountedSlot(number), f"j:k{number}", body)
        store.do(do.Dispatch(Batch("producer", number + 1), [order]))
    assert store.tables is not None
    eaten_from_the_front = [*store.tables.active.of.values(), *store.tables.mailboxes.ready_in.values()]
    assert not any(type(each) is dict for each in eaten_from_the_front), "its next one is behind all that were taken"
    taken = 0
    for call in range(1, many):
        work = store.do(do.Work("w", call, [], 1, 1))
        taken += len(work.takes)
    assert taken == many - 1 and CountedSlot.compared < 30 * many

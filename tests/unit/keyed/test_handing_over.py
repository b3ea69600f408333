"""Jobs that come with the wake-up: an idle worker begins them without asking the store."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any

import keyed_play as play
import pytest

from millpond.keyed import Job, KeyedPool
from millpond.keyed.rules import commands as do
from millpond.keyed.rules.envelope import Envelope, encode, stamped
from millpond.keyed.rules.records import Report, Signal, Take
from millpond.keyed.shared.definition import Policy, define
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.runner import Runner
from waiting import HANG, becomes, until


class Desert:
    """Holds up the calls by which a worker takes and reports, once `is_dry`."""

    def __init__(self, pool: KeyedPool) -> None:
        self.rain = threading.Event()
        self.rain.set()
        self.waiting = 0
        self.spare = 0
        store = play.tamper(pool)
        carry_out = store.inner.do

        def patient(command: do.Command[Any]) -> Any:
            if not isinstance(command, do.Work):
                return carry_out(command)
            self.waiting += not self.rain.is_set()
            assert self.rain.wait(HANG)
            answer = carry_out(command)
            self.spare = command.spare
            return answer

        store.do = patient  # type: ignore[attr-defined]


@pytest.fixture(params=["few slots", "defaults"])
def made(request: pytest.FixtureRequest, make: Callable[..., KeyedPool]) -> KeyedPool:
    return make(slots=16, lease=play.LONG, drain=play.LONG) if request.param == "few slots" else make(lease=play.LONG)


def test_a_job_begins_while_the_worker_cannot_ask_the_store(made: KeyedPool):
    begun: list[str] = []

    @made.job
    async def do(job: Job) -> None:
        begun.append(job.key)

    store = Desert(made)
    if not made._connection.store.hands_over:
        pytest.skip("a wake-up of this store carries nothing")
    with made.worker():
        do.dispatch("warm").result(HANG)
        until(lambda: store.spare > 0, "the worker waits for more")
        store.rain.clear()
        try:
            numbers = itertools.count()
            until(lambda: do.dispatch(f"k{next(numbers)}") and len(begun) > 1, "a job begins with the wake-up")
        finally:
            store.rain.set()
        assert do.dispatch("after").result(HANG) is None


@pytest.mark.parametrize("lost", ["all", "every other"])
def test_a_lost_wake_up_loses_no_job_and_runs_none_twice(pool: KeyedPool, lost: str):
    ran: list[int] = []

    @pool.job
    async def do(job: Job, number: int) -> int:
        ran.append(number)
        return number

    store = play.tamper(pool)
    listen, count = store.inner.listen, 0

    def deaf(name: str, heard: Any, handed: Any = None) -> Any:
        def maybe(before: int, signal: Signal) -> None:
            nonlocal count
            count += 1
            if lost != "all" and count % 2:
                handed(before, signal)
                handed(before, signal)  # twice is as good as once

        return listen(name, heard, maybe if handed is not None else None)

    store.listen = deaf  # type: ignore[attr-defined]
    with pool.worker():
        receipts = [do.dispatch(f"k{number}", number) for number in range(30)]
        assert [receipt.result(HANG) for receipt in receipts] == list(range(30))
        until(lambda: count > 0 or do.dispatch("more", 99).result(HANG), "something was handed over")
    assert sorted(number for number in ran if number != 99) == list(range(30))


def test_no_more_runs_at_once_than_the_worker_may(pool: KeyedPool):
    running = most = 0
    gate = play.Gate()

    @pool.job
    async def do(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.pass_()
        running -= 1

    with pool.worker(concurrency=3):
        receipts = [do.dispatch(f"k{number}") for number in range(40)]  # one at a time, so that they are handed over
        until(lambda: running == 3)
        gate.open()
        for receipt in receipts:
            receipt.result(HANG)
    assert most == 3


def test_a_job_that_was_handed_over_can_be_cancelled(pool: KeyedPool):
    begun = threading.Event()

    @pool.job
    async def do(job: Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    @pool.job
    async def warm(job: Job) -> None: ...

    with pool.worker():
        warm.dispatch("warm").result(HANG)
        receipt = do.dispatch("k")
        assert begun.wait(HANG)
        assert receipt.cancel()
        becomes(receipt.status, "cancelled")


# --- what the runner does with them --------------------------------------------------------------------------------------


class Scene:
    """A runner, what it reports, and what it ran."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.ran: list[int] = []

        async def do(job: Job) -> None:
            self.ran.append(job.token)

        self.membership = Membership("a", play.LONG, 1e12)
        definition = define(do, "do", Policy())
        self.payload = definition.shape.encode((), {})
        self.runner = Runner("p", {"do": definition}, 10, self.reports.append)

    def take(self, number: int, *, slot: int = 1, is_over: bool = False) -> Signal:
        body = stamped(1, encode(Envelope(f"job-{number}", "do", "", 0, self.payload)))
        return Signal(number, "take", f"j:k{number}", "", 1000 + number, b"" if is_over else body, slot)

    async def settle(self) -> None:
        """Wait until the loop has done what it has to."""
        async with asyncio.timeout(HANG):
            await self.runner.idle(HANG)
            for _ in range(5):
                await asyncio.sleep(0)
            await self.runner.idle(HANG)


@pytest.mark.asyncio
async def test_signals_are_acted_upon_once_and_in_order_whichever_way_they_come():
    scene = Scene()
    assert scene.runner.hear(scene.membership, [scene.take(1)], 0)
    assert not scene.runner.hear(scene.membership, [scene.take(3)], 2), "the one before it was lost"
    assert scene.runner.hear(scene.membership, [scene.take(1), scene.take(2), scene.take(3)])
    assert scene.runner.hear(scene.membership, [scene.take(2)], 1) and scene.runner.hear(
        scene.membership, [scene.take(3)], 2
    )
    await scene.settle()
    assert scene.ran == [1001, 1002, 1003] and scene.membership.heard == 3
    assert sorted(one.token for one in scene.reports if one.done) == [1001, 1002, 1003]


@pytest.mark.asyncio
async def test_a_take_that_is_over_is_not_begun_however_late_its_wake_up_comes():
    scene = Scene()
    assert scene.runner.hear(scene.membership, [scene.take(1, is_over=True)])
    assert scene.runner.hear(scene.membership, [scene.take(1)], 0), "the wake-up, at last"
    await scene.settle()
    assert scene.ran == [] and scene.membership.heard == 1


@pytest.mark.asyncio
async def test_a_job_whose_slot_was_given_away_meanwhile_is_handed_back():
    scene = Scene()
    scene.runner.give_away(scene.membership, [1], 1e12)
    await scene.settle()
    scene.runner.hear(scene.membership, [scene.take(1), scene.take(2, slot=2)])
    await scene.settle()
    assert scene.ran == [1002]
    assert [(one.token, one.done, one.how) for one in scene.reports] == [(1001, 0, "end"), (1002, 1, "end")]
    (late,) = (Take(one.slot, one.mailbox, one.note, (one.data,)) for one in [scene.take(4)])
    scene.runner.start(scene.membership, [late])  # the store says so now: it is borrowed, or the slot is ours again
    await scene.settle()
    assert scene.ran == [1002, 1004]
    scene.runner.take_back(scene.membership, [1])
    await scene.settle()
    scene.runner.hear(scene.membership, [scene.take(3)])
    await scene.settle()
    assert scene.ran == [1002, 1004, 1003]


@pytest.mark.asyncio
async def test_a_job_that_comes_after_the_lease_is_not_begun():
    scene = Scene()
    scene.membership.end()
    scene.runner.hear(scene.membership, [scene.take(1)])
    await scene.settle()
    assert scene.ran == [] and [(one.token, one.done) for one in scene.reports] == [(1001, 0)]

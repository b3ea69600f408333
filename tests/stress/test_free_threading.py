"""Races that only a build without the GIL can lose: two threads that really run at once, on one task, timer or pool.

They run where a free-threaded Python runs the tests, with PYTHON_GIL=0: `make matrix` does so when it finds one. With the
GIL they would show nothing. The storms of `test_storm.py` and `test_process_storm.py` run there too.
"""

from __future__ import annotations

import asyncio
import collections
import random
import select
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from millpond import KeyedPool, Priority, ResourcePool, Task, ThreadPool, _atomic, as_completed, wait
from millpond.keyed import Job
from millpond.keyed.worker.feed import Feed
from millpond.keyed.worker.job_runner import JobRunner
from millpond.keyed.worker.rebalancer import Rebalancer
from millpond.local._calls import HoldingCall
from millpond.local._timer import Appointment
from millpond.resources._watching import Watching
from millpond.resources.engines.sqlite._wakeups import Wakeups
from waiting import HANG, until

has_gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
pytestmark = pytest.mark.skipif(has_gil, reason="this Python has the GIL: what only a free-threaded build can lose")

ROUNDS = 20_000


def race(rounds: int, make: Callable[[], Any], *sides: Callable[[Any], Any]) -> list[list[Any]]:
    """Run each part on the same new object in threads at the same moment, round by round; return what they got."""
    things = [make() for _ in range(rounds)]
    start = threading.Barrier(len(sides))
    got: list[list[Any]] = [[] for _ in sides]

    def run(side: Callable[[Any], Any], mine: list[Any]) -> None:
        for number in range(0, rounds, 50):
            start.wait(HANG)
            mine += [side(thing) for thing in things[number : number + 50]]

    threads = [threading.Thread(target=run, args=pair) for pair in zip(sides, got, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * HANG)
        assert not thread.is_alive()
    return [list(each) for each in zip(*got, strict=True)]


def hand_around(take: Callable[[], Any], put: Callable[[int], None]) -> list[int]:
    """Run two threads that take a number, one at a time, and put the next in its place; return all that were taken."""
    taken: list[list[int]] = [[], []]

    def run(mine: list[int]) -> None:
        for _ in range(20 * ROUNDS):
            number = take()
            if number is not None:
                mine.append(number)
                put(number + 1)

    put(1)
    threads = [threading.Thread(target=run, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * HANG)
    return sorted(taken[0] + taken[1])


def test_of_those_who_claim_a_task_one_has_it():
    task: Any = Task()
    taken = hand_around(lambda: _atomic.claim(task), lambda number: setattr(task, "_fn", number))
    assert taken == list(range(1, len(taken) + 1))
    assert _atomic.claim(task) == len(taken) + 1


def test_of_those_who_take_an_attribute_away_one_has_it():
    thing: Any = types.SimpleNamespace()
    taken = hand_around(lambda: _atomic.take_away(thing, "value"), lambda number: setattr(thing, "value", number))
    assert taken == list(range(1, len(taken) + 1))
    assert _atomic.take_away(thing, "value") == len(taken) + 1


def test_what_a_call_holds_is_given_back_once():
    given: list[Any] = []
    race(ROUNDS, lambda: HoldingCall(int, given.append, Task()), HoldingCall.release, HoldingCall.release)
    assert len(given) == ROUNDS


def test_an_appointment_is_kept_or_cancelled_and_never_both():
    kept: list[None] = []

    def keep(appointment: Appointment) -> None:
        appointment.keep()

    def make() -> Appointment:
        return Appointment(lambda: kept.append(None), own_thread=False)

    outcomes = race(ROUNDS, make, keep, Appointment.cancel)
    assert len(kept) + sum(each[1] for each in outcomes) == ROUNDS


def test_who_looks_at_a_task_while_it_ends_is_notified_once():
    """A callback and a blocked thread against the end of the task, with and without earlier watchers."""

    def make() -> tuple[Task[int], list[Any]]:
        return Task(), []

    def look(pair: tuple[Task[int], list[Any]]) -> int:
        task, called = pair
        task.add_done_callback(called.append)
        return task.result(HANG)

    def end(pair: tuple[Task[int], list[Any]]) -> None:
        pair[0].set_result(7)

    pairs: list[tuple[Task[int], list[Any]]] = []

    def remembered() -> tuple[Task[int], list[Any]]:
        pairs.append(make())
        return pairs[-1]

    outcomes = race(ROUNDS, remembered, look, look, end)
    assert all(each[:2] == [7, 7] for each in outcomes)
    assert [len(called) for _, called in pairs if len(called) != 2] == []


@pytest.mark.parametrize("order", ["fifo", "lifo", "priority", Priority(levels=2)])
def test_a_task_runs_or_is_cancelled_and_never_both(order):
    ran: list[int] = []
    cancelled: list[int] = []
    with ThreadPool(2, order=order) as pool:

        def submit_and_cancel(side: int) -> None:
            for number in range(side, ROUNDS, 2):
                task = pool.submit(ran.append, number)
                cancelled.extend([number] if task.cancel() else [])

        threads = [threading.Thread(target=submit_and_cancel, args=(side,)) for side in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10 * HANG)
        assert pool.drain(HANG)
        assert pool.statistics().completed == len(ran)
    assert sorted(ran + cancelled) == list(range(ROUNDS))


def test_no_wake_up_is_lost_between_a_submit_and_a_worker_that_goes_to_sleep():
    """One task at a time: each finds the only worker on its way to sleep, or asleep, or on its way out."""
    with ThreadPool(1, idle_timeout=0.0005) as pool:
        for number in range(ROUNDS // 10):
            assert pool.submit(int, number).result(HANG) == number
            if number % 100 == 0:
                assert pool.drain(HANG)


def test_a_pool_that_is_closed_while_its_workers_go_to_sleep_ends():
    for number in range(200):
        pool = ThreadPool(2)
        tasks = [pool.submit(int, each) for each in range(number % 4)]
        assert pool.shutdown(timeout=HANG)
        assert all(task.done() for task in tasks)


def test_all_results_of_maps_and_of_waiting_arrive():
    with ThreadPool(4) as pool:
        for _ in range(20):
            assert list(pool.map(abs, range(-2000, 0))) == list(range(2000, 0, -1))
            assert sorted(pool.map(abs, range(-500, 0), ordered=False)) == list(range(1, 501))
            tasks = [pool.submit(int, each) for each in range(500)]
            assert sum(task.result() for task in as_completed(tasks, HANG)) == sum(range(500))
            assert not wait([pool.submit(int) for _ in range(500)], HANG).not_done


def test_all_awaited_calls_come_back_to_their_loop():
    async def many() -> int:
        total = 0
        for _ in range(40):
            total += sum(await asyncio.gather(*(pool.run(int, each) for each in range(100))))
        return total

    with ThreadPool(4) as pool:
        assert asyncio.run(asyncio.wait_for(many(), 10 * HANG)) == 40 * sum(range(100))


def test_keys_keep_their_order_and_leave_nothing_behind():
    seen: dict[int, list[int]] = {key: [] for key in range(8)}
    with ThreadPool(4) as pool:

        def submit(key: int) -> None:
            for number in range(2000):
                pool.options(key=key).submit(seen[key].append, number)

        threads = [threading.Thread(target=submit, args=(key,)) for key in seen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10 * HANG)
        assert pool.drain(10 * HANG)
        queues = pool._runner.backlog.worker_queues
        assert queues is not None and not queues.has_keys
    assert all(each == list(range(2000)) for each in seen.values())


def test_a_bounded_pool_gives_every_place_back():
    with ThreadPool(2, max_queued=3) as pool:
        done: list[int] = []

        def submit() -> None:
            for number in range(2000):
                pool.submit(done.append, number)

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10 * HANG)
            assert not thread.is_alive()
        assert pool.drain(HANG)
    assert len(done) == 8_000


# -- keyed pools ------------------------------------------------------------------------------------------------------


def lost_between(tell: Callable[[int], object], take: Callable[[], int | None]) -> list[int]:
    """Run a thread that tells numbers and one that takes the last told, all the time; return those never taken."""
    turns, got, lost = [0], [0], []
    is_over = threading.Event()

    def taker() -> None:
        while not is_over.is_set():
            number = take()
            if number is not None:
                got[0] = number
            turns[0] += 1

    thread = threading.Thread(target=taker)
    thread.start()
    for number in range(1, ROUNDS // 20):
        tell(number)
        start = turns[0]
        while got[0] != number and turns[0] < start + 3:
            time.sleep(0)
        lost.extend([number] if got[0] != number else [])
    is_over.set()
    thread.join(HANG)
    return lost


def test_a_heartbeat_that_comes_while_the_last_one_is_taken_is_not_lost():
    rebalancer: Any = types.SimpleNamespace(_state=None, is_more=False)
    tell: Any = Rebalancer.tell
    assert (
        lost_between(lambda number: tell(rebalancer, number), lambda: cast(Any, Rebalancer._next_state(rebalancer)))
        == []
    )


def test_a_progress_that_is_told_while_the_last_one_is_reported_is_not_lost():
    run: Any = types.SimpleNamespace(progress=None, running="a", outcomes=[])
    run.report = run.filled = lambda report: report
    loop = types.SimpleNamespace(call_later=None, call_soon_threadsafe=lambda *_: None)
    runner: Any = types.SimpleNamespace(
        _encoded=lambda value, *_: value, _loop=loop, _hand_in=lambda _: None, _report_progress=None
    )
    envelope: Any = types.SimpleNamespace(id="a", name="job", keep=1, reply="")

    def take() -> int | None:
        JobRunner._report_progress(runner, run)
        return run.outcomes.pop().data if run.outcomes else None

    assert lost_between(lambda number: JobRunner._note_progress(runner, run, envelope, number), take) == []


def test_what_ends_while_a_worker_says_what_it_has_to_report_is_no_trouble():
    report = types.SimpleNamespace(token=1)
    feed: Any = types.SimpleNamespace(_reports=collections.deque([report] * 1000))
    is_over = threading.Event()

    def end() -> None:
        while not is_over.is_set():
            feed._reports.append(report)
            feed._reports.popleft()

    thread = threading.Thread(target=end)
    thread.start()
    try:
        assert all(Feed._reported(feed) == {1} for _ in range(ROUNDS // 4))
    finally:
        is_over.set()
        thread.join(HANG)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_jobs_that_many_threads_dispatch_keep_their_order(store, tmp_path):
    ran: dict[str, list[int]] = collections.defaultdict(list)
    busy: set[str] = set()
    twice: list[str] = []
    with KeyedPool("storm", _url(store, tmp_path), lease=600.0, drain=600.0) as pool:

        def begin(key: str) -> None:
            twice.extend([key] if key in busy else [])
            busy.add(key)

        @pool.job
        def step(job: Job, number: int) -> int:
            begin(job.key)
            ran[job.key].append(number)
            busy.discard(job.key)
            return number

        @pool.job
        async def step_in_the_loop(job: Job, number: int) -> int:
            begin(job.key)
            ran[job.key].append(number)
            await asyncio.sleep(0)
            busy.discard(job.key)
            return number

        def dispatch(seed: int) -> None:
            chance = random.Random(seed)
            receipts = []
            for number in range(300):
                job = chance.choice([step, step_in_the_loop])
                receipts.append((number, job.dispatch(f"{seed}-{number % 3}", number)))
                if chance.random() < 0.02:
                    pool.statistics(), pool.keys(), pool.jobs()
            for number, receipt in receipts:
                assert receipt.result(timeout=HANG) == number

        with pool.worker(concurrency=3), pool.worker(concurrency=3), ThreadPool(4) as callers:
            assert len(list(callers.map(dispatch, range(4)))) == 4
    assert not twice
    assert ran == {f"{seed}-{rest}": list(range(rest, 300, 3)) for seed in range(4) for rest in range(3)}


# -- resource pools ---------------------------------------------------------------------------------------------------


def _url(store: str, folder: Path) -> str:
    return "memory:free-threading" if store == "memory" else f"sqlite:///{folder}/storm.db"


def test_what_is_watched_is_stopped_once():
    stopped: list[None] = []
    race(ROUNDS, lambda: Watching(lambda: stopped.append(None)), Watching.stop, Watching.stop)
    assert len(stopped) == ROUNDS


def test_no_wake_up_of_an_engine_is_lost():
    """One call at a time: each finds the engine's thread on its way to sleep, asleep, or just awake."""
    rounds = ROUNDS // 10
    wakeups: Any = Wakeups.__new__(Wakeups)
    wakeups.listen = lambda: None
    bell = types.SimpleNamespace(drain=lambda: None, fileno=lambda: -1)
    Wakeups.__init__(wakeups, cast(Any, types.SimpleNamespace(bell=bell)))
    waiting: collections.deque[int] = collections.deque()
    done: list[int] = []
    answered = threading.Semaphore(0)

    def serve() -> None:
        while len(done) < rounds:
            if not waiting:
                assert select.select([wakeups._wakes[0]], [], [], HANG)[0], "a wake-up was lost"
            wakeups.clear()
            while waiting:
                done.append(waiting.popleft())
                answered.release()

    thread = threading.Thread(target=serve)
    thread.start()
    for number in range(rounds):
        waiting.append(number)
        wakeups.wake()
        assert answered.acquire(timeout=HANG)
    thread.join(HANG)
    wakeups.close()
    assert done == list(range(rounds))


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_what_many_threads_ask_for_is_held_by_one_at_a_time(engine, tmp_path):
    url = _url(engine, tmp_path)
    holders: dict[str, set[int]] = {name: set() for name in "abc"}
    crowds: list[set[int]] = []

    def use(seed: int) -> int:
        chance, held = random.Random(seed), 0
        with ResourcePool("storm", url) as pool:
            for _ in range(150):
                name, how = chance.choice("abc"), chance.random()
                try:
                    if how < 0.7:
                        grant = pool.acquire(
                            name=name, timeout=HANG if how < 0.5 else how / 500, lease=3600 if how < 0.1 else None
                        )
                    else:
                        found = pool.try_acquire(name=name)
                        if found is None:
                            continue
                        grant = found
                except TimeoutError:
                    assert how >= 0.5
                    continue
                holders[name].add(seed)
                crowd = holders[name].copy()
                crowds.extend([crowd] if len(crowd) > 1 else [])
                holders[name].discard(seed)
                grant.release()
                held += 1
                if how > 0.95:
                    pool.holders(), pool.waiters(), pool.statistics()
        return held

    with ResourcePool("storm", url) as pool:
        for name in holders:
            pool.add(name)
        with ThreadPool(6) as users:
            assert all(users.map(use, range(6), chunksize=1))
        until(lambda: not pool.holders() and not pool.waiters())
    assert not crowds

"""Races that only a build without the GIL can lose: two threads that really run at once, on one task, timer or pool.

They run where a free-threaded Python runs the tests, with PYTHON_GIL=0 (`make matrix` looks for none: such builds are not
claimed yet); with the GIL they would show nothing. The storms of `test_storm.py` and `test_process_storm.py` run there too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from millpond import Priority, Task, ThreadPool, as_completed, wait
from millpond.local import _atomic
from millpond.local._calls import HoldingCall
from millpond.local._timer import Appointment
from waiting import HANG

has_gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
pytestmark = pytest.mark.skipif(has_gil, reason="this Python has the GIL: what only a free-threaded build can lose")

ROUNDS = 20_000


def race(rounds: int, make: Callable[[], Any], *sides: Callable[[Any], Any]) -> list[list[Any]]:
    """Let threads do each their part on the same new object at the same moment, round by round; return what they got."""
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
    """Let two threads take a number, one at a time, and put the next one in its place; return all that were taken."""
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

"""Dedicated queues, work stealing, and key affinity."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest

from millpond import ThreadPool
from waiting import HANG


@pytest.mark.parametrize("queues", ["shared", "dedicated"])
def test_tasks_of_a_key_run_in_one_worker_in_order(queues):
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    random_keys = random.Random(1)
    with ThreadPool(4, queues=queues) as pool:
        for number in range(2000):
            key = random_keys.randrange(10)
            pool.options(key=key).submit(lambda k, n: seen[k].append((n, threading.get_ident())), key, number)
            if number % 3 == 0:
                pool.submit(int)
    for of_key in seen.values():
        numbers = [number for number, _ in of_key]
        assert numbers == sorted(numbers)
        assert len({thread for _, thread in of_key}) == 1
    assert sum(map(len, seen.values())) == 2000


def test_tasks_of_a_key_never_run_at_once_even_when_the_pool_is_resized():
    running: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(lambda: -1)
    wrong = []

    def step(key: int, number: int) -> None:
        running[key] += 1
        if running[key] != 1 or last[key] > number:
            wrong.append((key, number))
        last[key] = number
        threading.Event().wait(0.0002)
        running[key] -= 1

    random_sizes = random.Random(2)
    with ThreadPool(4) as pool:
        for number in range(1500):
            key = number % 7
            pool.options(key=key).submit(step, key, number)
            if number % 100 == 0:
                pool.resize(random_sizes.randrange(1, 9))
        assert pool.drain(HANG)
        assert pool.statistics().completed == 1500
    assert wrong == []


def test_a_slow_key_does_not_hold_up_tasks_without_a_key():
    go_on = threading.Event()
    with ThreadPool(2) as pool:
        slow = [pool.options(key="slow").submit(go_on.wait, HANG) for _ in range(3)]
        for _ in range(50):
            pool.submit(int).result(HANG)
        go_on.set()
        assert all(task.result(HANG) for task in slow)


def test_a_task_of_a_key_that_was_cancelled_does_not_block_the_key():
    go_on = threading.Event()
    with ThreadPool(2) as pool:
        keyed = pool.options(key="k")
        first, second, third = keyed.submit(go_on.wait, HANG), keyed.submit(int), keyed.submit(lambda: "third")
        assert second.cancel()
        go_on.set()
        assert first.result(HANG)
        assert third.result(HANG) == "third"
        assert pool.drain(HANG)
        queues = pool._runner.backlog.worker_queues
        assert queues is not None and not queues.has_keys


def test_a_task_may_wait_for_a_later_one_of_its_own_key():
    with ThreadPool(2) as pool:
        keyed = pool.options(key="k")
        assert keyed.submit(lambda: keyed.submit(lambda: "inner").result()).result(HANG) == "inner"


def test_keys_survive_recycling_idle_timeouts_and_pauses():
    with ThreadPool(2, max_tasks_per_worker=2, idle_timeout=0.001) as pool:
        ran: list[int] = []
        for number in range(100):
            if number % 20 == 10:
                pool.pause()
            pool.options(key="k").submit(ran.append, number)
            if number % 20 == 15:
                pool.resume()
        assert pool.drain(HANG)
    assert ran == list(range(100))


def test_dedicated_queues_run_everything():
    with ThreadPool(4, queues="dedicated") as pool:
        assert [task.result(HANG) for task in [pool.submit(pow, n, 2) for n in range(2000)]] == [
            n * n for n in range(2000)
        ]
        assert list(pool.map(abs, range(-100, 0))) == list(range(100, 0, -1))


def test_a_dedicated_pool_pushes_tasks_to_workers_own_lines():
    go_on = threading.Event()
    with ThreadPool(2, queues="dedicated") as pool:
        running = threading.Barrier(3)
        for _ in range(2):
            pool.submit(lambda: (running.wait(HANG), go_on.wait(HANG)))
        running.wait(HANG)
        for _ in range(10):
            pool.submit(int)
        backlog = pool._runner.backlog
        assert backlog.worker_queues is not None
        assert sorted(len(each.shared) for each in backlog.worker_queues.all()) == [5, 5]
        assert len(backlog.queue) == 0
        go_on.set()


def test_an_idle_worker_steals_from_a_busy_neighbour():
    go_on, started = threading.Event(), threading.Event()
    with ThreadPool(2, queues="dedicated") as pool:
        running = threading.Barrier(3)

        def stay() -> None:
            running.wait(HANG)
            started.set()
            go_on.wait(HANG)

        blocked = pool.submit(stay)
        pool.submit(running.wait, HANG)
        running.wait(HANG)
        tasks = [pool.submit(threading.get_ident) for _ in range(20)]
        assert len({task.result(HANG) for task in tasks}) == 1, "all by the one that is free"
        assert not blocked.done()
        go_on.set()


def test_shrinking_a_dedicated_pool_hands_its_tasks_over():
    go_on = threading.Event()
    with ThreadPool(4, queues="dedicated") as pool:
        running = threading.Barrier(5)
        for _ in range(4):
            pool.submit(lambda: (running.wait(HANG), go_on.wait(HANG)))
        running.wait(HANG)
        tasks = [pool.submit(pow, n, 2) for n in range(40)]
        pool.resize(1)
        go_on.set()
        assert [task.result(HANG) for task in tasks] == [n * n for n in range(40)]


def test_purge_empties_every_line():
    go_on = threading.Event()
    with ThreadPool(1, queues="dedicated") as pool:
        running = threading.Barrier(2)
        pool.submit(lambda: (running.wait(HANG), go_on.wait(HANG)))
        running.wait(HANG)
        tasks = [pool.submit(int), pool.options(key="k").submit(int)]
        assert pool.statistics().queued == 2
        assert pool.purge() == 2
        assert all(task.cancelled() for task in tasks)
        go_on.set()


@pytest.mark.parametrize("end", ["resume", "shutdown"])
def test_tasks_with_keys_that_came_while_the_pool_was_paused_all_run(end):
    """An idle worker is no help to a key that belongs to another one, which has not been started."""
    pool = ThreadPool(4)
    pool.submit(int).result(HANG)
    pool.pause()
    tasks = [pool.options(key=number).submit(str, number) for number in range(8)]
    if end == "resume":
        pool.resume()
        assert [task.result(HANG) for task in tasks] == list("01234567")
    assert pool.shutdown(timeout=HANG)
    assert [task.result(0) for task in tasks] == list("01234567")


def test_a_pool_that_shrinks_ends_the_tasks_of_keys_without_starting_threads_again_and_again():
    started: list[str] = []
    go_on, running = threading.Event(), threading.Barrier(5)
    with ThreadPool(4, on_event=lambda event: started.append(event.name)) as pool:
        for key in range(4):
            pool.options(key=key).submit(lambda: (running.wait(HANG), go_on.wait(HANG)))
        running.wait(HANG)
        tasks = [pool.options(key=key).submit(int) for key in range(4) for _ in range(3)]
        pool.resize(1)
        go_on.set()
        assert [task.result(HANG) for task in tasks] == [0] * 12
    assert started.count("worker_started") == 4


def test_cancelled_tasks_with_keys_are_swept_out_too():
    go_on, running = threading.Event(), threading.Event()
    with ThreadPool(1) as pool:
        keyed = pool.options(key="k")
        keyed.submit(lambda: (running.set(), go_on.wait(HANG)))
        assert running.wait(HANG)
        keep = [keyed.submit(int, number) for number in range(100)]
        for _ in range(3):
            for each in [keyed.submit(int) for _ in range(5000)]:
                assert each.cancel()
        queues = pool._runner.backlog.worker_queues
        assert queues is not None and sum(map(len, queues.queues())) < 6000
        assert pool.statistics().queued == 100
        go_on.set()
        assert [task.result(HANG) for task in keep] == list(range(100))

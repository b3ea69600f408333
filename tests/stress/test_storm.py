"""Storms over `ThreadPool`: none lost, none run twice, no thread left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

from millpond import CancelToken, PoolFull, Priority, Task, ThreadPool, as_completed, wait
from waiting import HANG, until


@pytest.fixture
def seed() -> int:
    value = int(os.environ.get("MILLPOND_SEED", random.randrange(1 << 32)))
    print(f"MILLPOND_SEED={value}")
    return value


@pytest.fixture
def tiny_switch_interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Storm:
    """Producers that submit numbered tasks, and a trouble-maker that cancels, resizes and pauses."""

    def __init__(self, pool: ThreadPool, number: int, seed: int, *, producers: int = 4) -> None:
        self.pool = pool
        self.ran: list[int] = []
        self.tasks: list[list[Task[None]]] = [[] for _ in range(producers)]
        self.share = number // producers
        self.random = random.Random(seed)
        self.is_over = threading.Event()

    def produce(self, which: int) -> None:
        submit, ran, tasks = self.pool.submit, self.ran.append, self.tasks[which]
        for number in range(which * self.share, (which + 1) * self.share):
            tasks.append(submit(ran, number))

    def make_trouble(self) -> None:
        while not self.is_over.is_set():
            what = self.random.random()
            if what < 0.2:
                self.pool.resize(self.random.randrange(1, 17))
            elif what < 0.3:
                self.pool.pause()
                time.sleep(self.random.random() * 0.002)
                self.pool.resume()
            else:
                tasks = self.random.choice(self.tasks)
                for task in tasks[-self.random.randrange(1, 200) :]:
                    task.cancel()
            time.sleep(self.random.random() * 0.003)

    def run(self) -> None:
        producers = [threading.Thread(target=self.produce, args=(n,)) for n in range(len(self.tasks))]
        trouble = threading.Thread(target=self.make_trouble)
        for thread in [*producers, trouble]:
            thread.start()
        for thread in producers:
            thread.join()
        self.is_over.set()
        trouble.join()
        before = -1
        while not self.pool.drain(HANG):  # as long as it takes, but something must run
            assert len(self.ran) > before, f"tasks wait and nobody runs them: {self.pool.statistics()}"
            before = len(self.ran)

    def check(self) -> None:
        every = [task for tasks in self.tasks for task in tasks]
        cancelled = {number for number, task in enumerate(every) if task.cancelled()}
        assert all(task.done() for task in every)
        assert len(self.ran) == len(set(self.ran)), "a task ran twice"
        assert set(self.ran).isdisjoint(cancelled), "a cancelled task ran"
        assert len(self.ran) + len(cancelled) == len(every), "a task was lost"
        now = self.pool.statistics()
        counted = (now.completed, now.cancelled, now.queued, now.running)
        assert counted == (len(self.ran), len(cancelled), 0, 0), "what was counted is not what was done"


@pytest.mark.timeout(900)
def test_a_million_tasks_with_cancels_resizes_and_pauses(seed, tiny_switch_interval):
    with ThreadPool(8, name="storm", idle_timeout=0.005) as pool:
        storm = Storm(pool, 1_000_000, seed)
        storm.run()
        storm.check()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("storm")]


@pytest.mark.parametrize(
    "options",
    [
        {"order": "lifo"},
        {"order": "priority"},
        {"order": Priority(levels=3)},
        {"queues": "dedicated"},
        {"max_queued": 50},
        {"max_tasks_per_worker": 7},
        {"sizing": "lazy"},
        {"context": None, "idle_timeout": 0.0},
    ],
    ids=str,
)
def test_every_strategy_weathers_a_storm(seed, tiny_switch_interval, options):
    with ThreadPool(6, name="storm", **options) as pool:
        storm = Storm(pool, 20_000, seed, producers=3)
        storm.run()
        storm.check()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("storm")]


@pytest.mark.timeout(300)
def test_waiters_of_every_kind_never_miss_the_end(seed, tiny_switch_interval):
    """100,000 tasks, each waited for in one of five ways, by several threads at once."""
    import concurrent.futures

    with ThreadPool(4) as pool:

        def one_round(kind: int) -> int:
            tasks: list[Any] = [pool.submit(int, n) for n in range(200)]
            if kind == 0:
                return sum(task.result(HANG) for task in tasks)
            if kind == 1:
                return sum(task.result() for task in as_completed(tasks, timeout=HANG))
            if kind == 2:
                return sum(task.result() for task in concurrent.futures.as_completed(tasks, timeout=HANG))
            if kind == 3:
                return sum(task.result() for task in wait(tasks, timeout=HANG).done)
            return sum(task.result() for task in concurrent.futures.wait(tasks, timeout=HANG).done)

        def rounds(offset: int) -> None:
            for number in range(100):
                assert one_round((number + offset) % 5) == 19_900

        errors = []

        def guarded(offset: int) -> None:
            try:
                rounds(offset)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


def test_a_lone_task_never_misses_a_worker_that_goes_to_sleep(seed, tiny_switch_interval):
    """Nothing is submitted after it, and no idle worker leaves: who sleeps beside it would sleep for ever."""
    late: list[int] = []

    def ask_one_by_one(pool: ThreadPool) -> None:
        for number in range(5000):
            try:
                pool.submit(int, number).result(HANG)
            except TimeoutError:
                late.append(number)
                return

    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ThreadPool(1, idle_timeout=None)) for _ in range(4)]
        threads = [threading.Thread(target=ask_one_by_one, args=(pool,)) for pool in pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not late, f"workers slept beside tasks: {late}"


def test_options_weather_a_storm_too(seed, tiny_switch_interval):
    """Keys in order, tokens, time-outs, groups, maps and subpools at the same time."""
    rng = random.Random(seed)
    of_key: dict[int, list[int]] = {key: [] for key in range(5)}
    with ThreadPool(4, max_queued=200, when_full="block", name="storm") as pool:
        share = pool.subpool(2)
        mapped = pool.map(abs, range(-5000, 0))
        tokens: list[CancelToken] = []
        tasks: list[Task[Any]] = []
        plain: list[Task[Any]] = []
        for number in range(4000):
            kind = rng.randrange(5)
            if kind == 0:
                key = rng.randrange(5)
                tasks.append(pool.options(key=key).submit(of_key[key].append, number))
            elif kind == 1:
                token = CancelToken()
                tokens.append(token)
                tasks.append(pool.options(cancel=token, timeout=3600).submit(int, number))
                if rng.random() < 0.3:
                    token.cancel()
            elif kind == 2:
                plain.append(share.submit(int, number))
            elif kind == 3:
                with pool.group() as group:
                    for n in range(3):
                        group.submit(int, n)
                assert group.results() == [0, 1, 2]
            else:
                maybe = pool.try_submit(int, number)
                tasks += [maybe] if maybe is not None else []
        assert sum(mapped) == 5000 * 5001 // 2
        assert pool.drain(HANG)
        assert share.drain(HANG)
        assert all(task.done() for task in itertools.chain(tasks, plain))
    for key, numbers in of_key.items():
        assert numbers == sorted(numbers), f"the tasks of key {key} did not run in their order"


def test_pools_closed_under_the_hands_of_submitters_lose_nothing(seed, tiny_switch_interval):
    """Every submit either raises or its task runs, whenever the pool closes."""
    rng = random.Random(seed)
    for _ in range(150):
        pool = ThreadPool(rng.randrange(1, 4), idle_timeout=0.0 if rng.random() < 0.5 else 10.0)
        ran: list[int] = []
        taken: list[int] = []

        def submit(start: int, pool=pool, ran=ran, taken=taken) -> None:
            for number in range(start, start + 1000):
                try:
                    task = pool.submit(ran.append, number)
                except RuntimeError:
                    return
                taken.append(number)
                assert task is not None

        threads = [threading.Thread(target=submit, args=(n * 1000,)) for n in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(rng.random() * 0.003)
        pool.shutdown(wait=True)
        after = list(ran)
        for thread in threads:
            thread.join()
        until(lambda: len(ran) >= len(taken), "that all runs that was taken")  # noqa: B023
        assert Counter(ran) == Counter(taken)
        assert len(ran) - len(after) <= 3, "shutdown(wait=True) waited for all but those being submitted"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_million_tasks(seed, tiny_switch_interval):
    for round_number in range(10):
        with ThreadPool(8, name="storm", idle_timeout=0.005) as pool:
            storm = Storm(pool, 1_000_000, seed + round_number)
            storm.run()
            storm.check()


def test_a_full_pool_under_many_submitters_never_holds_too_much(seed, tiny_switch_interval):
    taken: list[int] = []
    done: list[int] = []
    refused: list[int] = []
    crowds: set[int] = set()
    with ThreadPool(2, max_queued=3, when_full="raise") as pool:

        def submit(times: int) -> None:
            for number in range(times):
                try:
                    pool.submit(done.append, number)
                except PoolFull:
                    refused.append(number)
                else:
                    taken.append(number)
                    crowds.add(len(taken) - len(done))  # in this order: it may be too small, but not too large

        def storm(times: int) -> None:
            threads = [threading.Thread(target=submit, args=(times,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        go_on = threading.Event()
        for _ in range(2):
            pool.submit(go_on.wait, HANG)
        storm(100)  # while the workers are busy
        assert len(taken) == 3, f"{len(taken)} tasks wait in a pool for 3"
        go_on.set()
        storm(2000)
        assert pool.drain(HANG)
    assert max(crowds) <= 5, f"{max(crowds)} tasks were in a pool for 5"
    assert len(done) + len(refused) == 8400

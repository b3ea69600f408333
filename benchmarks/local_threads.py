"""What do threads cost when tasks wait for something, one by one, and at rest?"""

from __future__ import annotations

import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

from harness import Question, clock, scale

from millpond import ThreadPool

THREADS = 100


def bare_threads() -> float:
    """The floor: 100 threads that each do their share, without any pool."""
    each = scale(10_000) // THREADS or 1

    def share() -> None:
        for _ in range(each):
            time.sleep(0.001)

    def work() -> None:
        threads = [threading.Thread(target=share) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return clock(work) * 1000


def sleepers(make) -> float:
    number = max(THREADS, scale(10_000))

    def work() -> None:
        with make(THREADS) as pool:
            for _ in range(number):
                pool.submit(time.sleep, 0.001)

    return clock(work) * 1000


def one_by_one(make, workers: int) -> float:
    number = scale(3000)
    with make(workers) as pool:
        pool.submit(int).result()

        def work() -> None:
            for _ in range(number):
                pool.submit(int).result()

        return clock(work) / number * 1e6


def pending(make) -> float:
    number = scale(100_000)
    go_on = threading.Event()
    with make(1) as pool:
        pool.submit(go_on.wait)
        for _ in range(10):
            pool.submit(int)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(number):
            pool.submit(int)
        size = (tracemalloc.get_traced_memory()[0] - before) / number
        tracemalloc.stop()
        go_on.set()
    return size


QUESTIONS = [
    Question(
        key="sleepers",
        title="10k x sleep(1 ms) on 100 threads, over bare threads",
        sides={
            "bare threads": bare_threads,
            "ThreadPoolExecutor": lambda: sleepers(ThreadPoolExecutor),
            "millpond": lambda: sleepers(ThreadPool),
        },
        unit="ms",
        reference="bare threads",
        score="overhead",
        must=0.35,
        aim=0.20,
        rounds=5,
    ),
    Question(
        key="one_by_one",
        title="One by one: submit, then its result",
        sides={
            "ThreadPoolExecutor": lambda workers: one_by_one(ThreadPoolExecutor, workers),
            "millpond": lambda workers: one_by_one(ThreadPool, workers),
        },
        unit="µs/task",
        reference="ThreadPoolExecutor",
        params=[{"workers": 1}, {"workers": 4}],
        must=0.85,
        take="median",
        rounds=11,
        note="two thread switches of the kernel each; bimodal on every pool",
    ),
    Question(
        key="memory",
        title="Memory of a pending task",
        sides={"ThreadPoolExecutor": lambda: pending(ThreadPoolExecutor), "millpond": lambda: pending(ThreadPool)},
        unit="B/task",
        reference="ThreadPoolExecutor",
        score="value",
        must=250,
        aim=170,
        rounds=1,
    ),
]

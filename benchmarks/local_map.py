"""What does an item of a map cost?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from harness import Question, clock, scale

from millpond import ThreadPool

N = 100_000


def noop(_: int) -> None:
    pass


def run(pool, **options) -> float:
    number = scale(N)

    def work() -> None:
        for _ in pool.map(noop, range(number), **options):
            pass

    with pool:
        return clock(work) / number * 1e6


WORKERS = [{"workers": 1}, {"workers": 4}, {"workers": 32}]

QUESTIONS = [
    Question(
        key="map",
        title="`map` of 100k no-ops, adaptive chunks",
        sides={
            "ThreadPoolExecutor": lambda workers: run(ThreadPoolExecutor(workers)),
            "millpond": lambda workers: run(ThreadPool(workers)),
        },
        unit="µs/item",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        must=80,
        aim=140,
    ),
    Question(
        key="map_lazy",
        title="`map` of 100k no-ops, lazy, 1000 ahead",
        sides={
            "ThreadPoolExecutor": lambda workers: run(ThreadPoolExecutor(workers)),
            "millpond": lambda workers: run(ThreadPool(workers), buffersize=1000),
        },
        unit="µs/item",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        note="the standard pool has no lazy map before 3.14: its eager one stands beside ours",
    ),
]

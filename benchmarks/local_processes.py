"""What does a small task in another process cost?"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from harness import Question, clock, scale

from millpond import ProcessPool

N = 20_000
START = "forkserver"


def noop() -> None:
    pass


def burst(pool) -> float:
    number = scale(N)
    for future in [pool.submit(noop) for _ in range(100)]:
        future.result()

    def work() -> None:
        for future in [pool.submit(noop) for _ in range(number)]:
            future.result()

    return clock(work) / number * 1e6


def stock(workers: int) -> float:
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(START)) as pool:
        return burst(pool)


def ours(workers: int = 2, **options) -> float:
    with ProcessPool(workers, start_method=START, **options) as pool:
        return burst(pool)


def mp_pool(workers: int) -> float:
    number = scale(N)
    with multiprocessing.get_context(START).Pool(workers) as pool:
        pool.apply(noop)

        def work() -> None:
            for result in [pool.apply_async(noop) for _ in range(number)]:
                result.get()

        return clock(work) / number * 1e6


SIDES = {"ProcessPoolExecutor": stock, "multiprocessing.Pool": mp_pool, "millpond": ours}
WORKERS = [{"workers": 2}, {"workers": 4}]

QUESTIONS = [
    Question(
        key="processes",
        title="20k small tasks in processes, vs ProcessPoolExecutor",
        sides=SIDES,
        unit="µs/task",
        reference="ProcessPoolExecutor",
        params=WORKERS,
        must=20,
        aim=35,
        note="crash recovery on; equal numbers of tasks; workers warm on every side",
    ),
    Question(
        key="processes_pool",
        title="The same vs multiprocessing.Pool.apply_async",
        sides={name: SIDES[name] for name in ("multiprocessing.Pool", "millpond")},
        unit="µs/task",
        reference="multiprocessing.Pool",
        params=WORKERS,
        must=8,
        aim=12,
    ),
    Question(
        key="processes_options",
        title="20k small tasks in 2 processes: what the options of a ProcessPool cost",
        sides={
            "defaults": ours,
            "max_queued=10**6": lambda: ours(max_queued=10**6),
            "on_event": lambda: ours(on_event=lambda event: None),
        },
        subject="on_event",
        unit="µs/task",
        reference="defaults",
        score="overhead",
    ),
]

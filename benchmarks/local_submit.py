"""What does it cost to submit a task and take its result?"""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor, wait

from harness import Question, clock, scale

from millpond import ThreadPool, as_completed

N = 100_000
variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")


def noop() -> None:
    pass


def burst(pool) -> float:
    number = scale(N)

    def work() -> None:
        for future in [pool.submit(noop) for _ in range(number)]:
            future.result()

    with pool:
        return clock(work) / number * 1e6


def burst_in_a_context(pool, submit) -> float:
    """With a variable set, so that a context really has to travel."""
    number = scale(N)
    variable.set(1)

    def work() -> None:
        for future in [submit() for _ in range(number)]:
            future.result()

    with pool:
        return clock(work) / number * 1e6


def stock_in_a_context(workers: int) -> float:
    pool = ThreadPoolExecutor(workers)
    copy = contextvars.copy_context
    return burst_in_a_context(pool, lambda: pool.submit(copy().run, noop))


def ours_in_a_context(workers: int) -> float:
    pool = ThreadPool(workers)
    return burst_in_a_context(pool, lambda: pool.submit(noop))


def wait_all(pool) -> float:
    number = scale(N)
    with pool:
        return clock(lambda: wait([pool.submit(noop) for _ in range(number)])) / number * 1e6


def completed(pool, each) -> float:
    number = scale(N)

    def work() -> None:
        for future in each([pool.submit(noop) for _ in range(number)]):
            future.result()

    with pool:
        return clock(work) / number * 1e6


def stock_as_completed(workers: int) -> float:
    from concurrent.futures import as_completed as standard

    return completed(ThreadPoolExecutor(workers), standard)


WORKERS = [{"workers": 1}, {"workers": 4}, {"workers": 32}]
POND = 590.0
"""Go's pond v2, submit then wait for each: 415-590 ns per task, measured once on such a machine (GOALS.md)."""

QUESTIONS = [
    Question(
        key="submit",
        title="Submit 100k no-ops, take each result",
        sides={
            "ThreadPoolExecutor": lambda workers: burst(ThreadPoolExecutor(workers)),
            "millpond": lambda workers: burst(ThreadPool(workers)),
        },
        unit="µs/task",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        must=10,
        aim=15,
        note="every default on: contextvars, counters, idle time-out, fork and exit safety",
    ),
    Question(
        key="submit_pond",
        title="The same beside Go's pond v2 (quoted, 590 ns)",
        sides={"millpond": lambda workers: burst(ThreadPool(workers)) * 1000 / POND},
        unit="x pond's time",
        reference="millpond",
        score="value",
        params=WORKERS,
        must=2.0,
        aim=1.2,
        note="pond was not run here: 415-590 ns/task measured once on such a machine",
    ),
    Question(
        key="submit_context",
        title="The same with contextvars carried",
        sides={"ThreadPoolExecutor": stock_in_a_context, "millpond": ours_in_a_context},
        unit="µs/task",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        must=7,
        aim=10,
        note="one variable set; the standard pool by submit(copy_context().run, f), as people do",
    ),
    Question(
        key="wait",
        title="Submit 100k no-ops, the standard `wait()`",
        sides={
            "ThreadPoolExecutor": lambda workers: wait_all(ThreadPoolExecutor(workers)),
            "millpond": lambda workers: wait_all(ThreadPool(workers)),
        },
        unit="µs/task",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        must=8,
        aim=11,
    ),
    Question(
        key="as_completed",
        title="Submit 100k no-ops, `as_completed()` (each its own)",
        sides={
            "ThreadPoolExecutor": stock_as_completed,
            "millpond": lambda workers: completed(ThreadPool(workers), as_completed),
        },
        unit="µs/task",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        must=8,
        aim=11,
    ),
]

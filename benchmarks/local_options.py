"""What does each option of a ThreadPool cost?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from harness import Question, clock, scale

from millpond import CancelToken, Priority, ThreadPool

N = 50_000


def noop() -> None:
    pass


def cost(submit, pool) -> float:
    number = scale(N)

    def work() -> None:
        for future in [submit(noop) for _ in range(number)]:
            future.result()

    with pool:
        return clock(work) / number * 1e6


def plain(**options) -> float:
    pool = ThreadPool(4, **options)
    return cost(pool.submit, pool)


def optioned(options, **pool_options) -> float:
    pool = ThreadPool(4, **pool_options)
    return cost(pool.options(**options).submit, pool)


def after_a_key() -> float:
    """Plain tasks of a pool that has keys to keep as well."""
    pool = ThreadPool(4)
    pool.options(key=1).submit(noop).result()
    return cost(pool.submit, pool)


def forget() -> float:
    number = scale(N)
    pool = ThreadPool(4)

    def work() -> None:
        for _ in range(number):
            pool.go(noop)
        pool.drain()

    with pool:
        return clock(work) / number * 1e6


def in_subpool() -> float:
    pool = ThreadPool(4)
    return cost(pool.subpool(4).submit, pool)


def stock() -> float:
    pool = ThreadPoolExecutor(4)
    return cost(pool.submit, pool)


CASES = {
    "defaults": plain,
    "context=None": lambda: plain(context=None),
    "max_queued=10**6": lambda: plain(max_queued=10**6),
    "order='lifo'": lambda: plain(order="lifo"),
    "Priority(levels=3)": lambda: plain(order=Priority(levels=3)),
    "order='priority'": lambda: plain(order="priority"),
    "queues='dedicated'": lambda: plain(queues="dedicated"),
    "on_event": lambda: plain(on_event=lambda event: None),
    "max_tasks_per_worker=10**6": lambda: plain(max_tasks_per_worker=10**6),
    "plain, after options(key=)": after_a_key,
    "options(key=)": lambda: optioned({"key": 1}),
    "options(timeout=)": lambda: optioned({"timeout": 60}),
    "options(cancel=)": lambda: optioned({"cancel": CancelToken()}),
    "subpool(4)": in_subpool,
    "go()": forget,
}

QUESTIONS = [
    Question(
        key="options",
        title="Submit 50k no-ops on 4 workers, take each result: what each option costs",
        sides={"ThreadPoolExecutor": stock, **CASES},
        subject="defaults",
        unit="µs/task",
        reference="ThreadPoolExecutor",
        rounds=2,
    )
]

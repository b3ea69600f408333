"""What do tasks cost, and what do two threads give, on a Python without the GIL?

Run it with one: `PYTHON_GIL=0 .venv-3.14t/bin/python benchmarks/run.py local_free_threaded` (`make matrix` makes that
environment). On others it is only tried, by the smoke runs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from harness import Question, clock, scale
from local_map import run
from local_submit import burst

from millpond import ThreadPool

STEPS = 3_000_000
"""Of a loop, in all tasks together: some tenths of a second on one thread."""


def compute(steps: int) -> int:
    total = 0
    for step in range(steps):
        total += step & 7
    return total


def shares(tasks: int) -> list[int]:
    return [scale(STEPS) // tasks] * tasks


def on_one_thread(tasks: int) -> float:
    return clock(lambda: [compute(share) for share in shares(tasks)]) * 1000


def submitted(pool, tasks: int) -> float:
    def work() -> None:
        for future in [pool.submit(compute, share) for share in shares(tasks)]:
            future.result()

    with pool:
        pool.submit(int).result()
        return clock(work) * 1000


def mapped(pool, tasks: int) -> float:
    with pool:
        pool.submit(int).result()
        return clock(lambda: list(pool.map(compute, shares(tasks)))) * 1000


WORKERS = [{"workers": 1}, {"workers": 2}, {"workers": 4}]
TASKS = [{"tasks": 3000}, {"tasks": 60}]
POOLS = {
    "ThreadPoolExecutor": lambda tasks: submitted(ThreadPoolExecutor(2), tasks),
    "millpond": lambda tasks: submitted(ThreadPool(2), tasks),
}
MAPS = {
    "ThreadPoolExecutor, map": lambda tasks: mapped(ThreadPoolExecutor(2), tasks),
    "millpond, map": lambda tasks: mapped(ThreadPool(2), tasks),
}

QUESTIONS = [
    Question(
        key="free_submit",
        title="Without the GIL: submit 100k no-ops, take each result",
        sides={
            "ThreadPoolExecutor": lambda workers: burst(ThreadPoolExecutor(workers)),
            "millpond": lambda workers: burst(ThreadPool(workers)),
        },
        unit="µs/task",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        must=6,
        aim=10,
        free_threaded=True,
    ),
    Question(
        key="free_map",
        title="Without the GIL: `map` of 100k no-ops",
        sides={
            "ThreadPoolExecutor": lambda workers: run(ThreadPoolExecutor(workers)),
            "millpond": lambda workers: run(ThreadPool(workers)),
        },
        unit="µs/item",
        reference="ThreadPoolExecutor",
        params=WORKERS,
        free_threaded=True,
    ),
    Question(
        key="free_compute",
        title="Without the GIL: tasks that compute, on 2 threads, beside ThreadPoolExecutor",
        sides={**POOLS, **MAPS},
        unit="ms",
        reference="ThreadPoolExecutor",
        params=TASKS,
        must=1.0,
        rounds=5,
        free_threaded=True,
    ),
    Question(
        key="free_parallel",
        title="Without the GIL: the same beside a loop on one thread",
        sides={"one thread": on_one_thread, **POOLS},
        unit="ms",
        reference="one thread",
        params=TASKS,
        aim=1.8,
        rounds=5,
        note="two cores, so 2x at most, and less of it the more other programs want them",
        free_threaded=True,
    ),
]

"""Run code that may crash the interpreter: each crash costs its own task only."""

from __future__ import annotations

import os

from millpond import ProcessPool, TaskTimeout, WorkerDied


def fragile(number: int) -> int:
    if number % 10 == 3:
        os._exit(1)  # as a bug in an extension would
    return number * number


def endless() -> None:
    while True:
        pass


def main() -> None:
    with ProcessPool(2, name="fragile") as pool:
        tasks = [pool.submit(fragile, number) for number in range(30)]
        crashed = [number for number, task in enumerate(tasks) if isinstance(task.exception(), WorkerDied)]
        print("crashed:", crashed)
        print("the rest:", sum(task.result() for task in tasks if task.exception() is None))
        try:
            pool.options(timeout=0.2).submit(endless).result()
        except TaskTimeout:
            print("and one that never ended was killed")


if __name__ == "__main__":
    main()

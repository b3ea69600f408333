"""The pure core: microseconds per command, release and acquire in turn, with waiters in line all the time."""

from __future__ import annotations

import time
from collections import deque

from harness import Question, scale

from millpond.resources._rules import changes as to
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder, Want
from millpond.resources._rules.state import State
from millpond.resources._rules.step import step


def churn(resources: int, waiters: int, selectors: int, *, named: bool = False, groups: int = 0) -> float:
    """Return the microseconds per command."""
    state = State()
    held: deque[int] = deque()
    numbers = 0
    holder = Holder(host="here", pid=1)
    if named:
        wants = [Want(f"@r{number}") for number in range(resources)]
    else:
        wants = [Want("*"), *(Want(f"kind={number}") for number in range(selectors - 1))]
    for number in range(resources):
        step(state, do.Add(f"r{number}", {"kind": str(number % selectors)}), 0)

    def run(command: do.Command) -> None:
        for change in step(state, command, numbers).changes:
            if isinstance(change, to.Asked):
                if change.request.token:
                    held.append(change.request.token)
            elif isinstance(change, to.Held):
                held.append(change.token)

    def acquire() -> None:
        nonlocal numbers
        numbers += 1
        group = str(numbers % groups) if groups else ""
        run(do.Acquire(str(numbers), "s", 0, holder, (wants[numbers % len(wants)],), group=group))

    for _ in range(waiters + resources):
        acquire()
    commands = scale(100_000)
    began = time.perf_counter()
    for _ in range(commands // 2):
        run(do.Release("s", held.popleft()))
        acquire()
    return (time.perf_counter() - began) / commands * 1e6


QUESTIONS = [
    Question(
        "resources_step",
        "one step of the core, 10 resources, 100 waiters",
        {"millpond": lambda: churn(10, 100, 5)},
        "µs",
        "millpond",
        score="value",
        must=6.67,
        note="150,000 commands per second",
    ),
    Question(
        "resources_step_many",
        "one step of the core, 1,000 resources, 10,000 waiters, 50 selectors",
        {
            "millpond": lambda: churn(1000, 10_000, 50),
            "1,000 locks by name": lambda: churn(1000, 10_000, 1, named=True),
            "100 groups": lambda: churn(1000, 10_000, 50, groups=100),
        },
        "µs",
        "millpond",
        score="value",
        must=50,
    ),
]

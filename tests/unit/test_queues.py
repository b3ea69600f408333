"""Which task is next: the lines alone, and in a pool."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import Priority, Task, ThreadPool
from millpond.local._queues import Fifo, Heap, Lanes, Lifo
from millpond.local._threads import OptionTask
from waiting import HANG


def task(priority: float = 0) -> Any:
    made: Any = OptionTask()
    made.priority = priority
    made.key = None
    return made


@pytest.mark.parametrize("make", [Fifo, Lifo, Heap, lambda: Lanes(3)])
def test_a_line_gives_back_what_was_put_in_and_then_is_empty(make):
    line = make()
    tasks = [task() for _ in range(5)]
    line.extend(tasks)
    assert len(line) == 5
    assert set(line) == set(tasks)
    assert {line.take() for _ in range(5)} == set(tasks)
    with pytest.raises(IndexError):
        line.take()
    with pytest.raises(IndexError):
        line.oldest()


@pytest.mark.parametrize("make", [Fifo, Lifo, Heap, lambda: Lanes(3)])
def test_a_task_that_is_put_back_is_the_next_again(make):
    line = make()
    line.extend([task() for _ in range(3)])
    first = line.take()
    line.put_back(first)
    assert line.take() is first


def test_fifo_gives_the_first_and_lifo_the_last():
    tasks = [task() for _ in range(3)]
    assert [line.take() for line in [Fifo(tasks)] for _ in tasks] == tasks
    assert [line.take() for line in [Lifo(tasks)] for _ in tasks] == tasks[::-1]


def test_lifo_gives_up_its_oldest():
    tasks = [task() for _ in range(3)]
    assert Lifo(tasks).oldest() is tasks[0]


@given(st.lists(st.integers(0, 4)))
def test_lanes_and_heap_serve_higher_priorities_first_and_equal_ones_in_order(priorities):
    tasks = [task(each) for each in priorities]
    expected = sorted(tasks, key=lambda each: -each.priority)  # a stable sort
    for line in (Lanes(5), Heap()):
        line.extend(tasks)  # type: ignore[attr-defined]
        assert [line.take() for _ in tasks] == expected  # type: ignore[attr-defined]


@given(st.lists(st.integers(0, 4), min_size=1))
def test_lanes_and_heap_give_up_the_oldest_of_the_least_urgent(priorities):
    tasks = [task(each) for each in priorities]
    expected = next(each for each in tasks if each.priority == min(priorities))
    for line in (Lanes(5), Heap()):
        line.extend(tasks)  # type: ignore[attr-defined]
        assert line.oldest() is expected  # type: ignore[attr-defined]
        assert len(line) == len(tasks) - 1  # type: ignore[arg-type]


def run_in_order(pool: ThreadPool, submit: Any) -> list[Any]:
    """Hold the only worker, let `submit` queue tasks, and return the order in which they ran."""
    started, go_on = threading.Event(), threading.Event()
    ran: list[Any] = []

    def hold() -> None:
        started.set()
        go_on.wait(HANG)

    with pool:
        pool.submit(hold)
        started.wait(HANG)
        submit(pool, ran.append)
        go_on.set()
    return ran


def submit_three(pool: ThreadPool, note: Any) -> None:
    for number in range(3):
        pool.submit(note, number)


def test_a_fifo_pool_runs_the_first_first():
    assert run_in_order(ThreadPool(1), submit_three) == [0, 1, 2]


def test_a_lifo_pool_runs_the_last_first():
    assert run_in_order(ThreadPool(1, order="lifo"), submit_three) == [2, 1, 0]


@pytest.mark.parametrize("order", ["priority", Priority(), Priority(levels=10)])
def test_a_priority_pool_runs_the_most_urgent_first(order):
    def submit(pool: ThreadPool, note: Any) -> None:
        for priority in (1, 5, 3, 5):
            pool.options(priority=priority).submit(note, priority)
        pool.submit(note, "plain")  # priority 0

    assert run_in_order(ThreadPool(1, order=order), submit) == [5, 5, 3, 1, "plain"]


def test_a_priority_is_refused_where_it_means_nothing():
    with ThreadPool(1) as pool, pytest.raises(ValueError, match="order='priority'"):
        pool.options(priority=1)
    with ThreadPool(1, order=Priority(levels=3)) as pool, pytest.raises(ValueError, match="from 0 to 2"):
        pool.options(priority=3)
    with ThreadPool(1, order="priority") as pool, pytest.raises(TypeError, match="number"):
        pool.options(priority="high")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="levels"):
        Priority(levels=0)


def test_cancelled_tasks_are_swept_from_a_long_line():
    started, go_on = threading.Event(), threading.Event()
    with ThreadPool(1) as pool:
        pool.submit(lambda: (started.set(), go_on.wait(HANG)))
        started.wait(HANG)
        keep = [pool.submit(int, n) for n in range(100)]
        for _ in range(3):
            for each in [pool.submit(int) for _ in range(5000)]:
                assert each.cancel()
        assert len(pool._crew.line) < 6000, "ghosts are swept, so memory does not grow"
        assert pool.statistics().queued == 100
        go_on.set()
        assert [each.result(HANG) for each in keep] == list(range(100))


def test_cancelling_from_the_end_of_a_long_line_is_quick():
    """`deque.remove` would make this quadratic: 20,000 x 10,000 comparisons."""
    started, go_on = threading.Event(), threading.Event()
    with ThreadPool(1) as pool:
        pool.submit(lambda: (started.set(), go_on.wait(HANG)))
        started.wait(HANG)
        tasks: list[Task[int]] = [pool.submit(int) for _ in range(20_000)]
        assert all(each.cancel() for each in reversed(tasks))
        go_on.set()
        assert pool.statistics().cancelled == 20_000

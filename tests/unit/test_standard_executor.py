"""`ThreadPool` does what the documentation of `concurrent.futures.ThreadPoolExecutor` says.

Most tests run twice: with the standard pool, which shows that the test asks for what the standard does, and with ours.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
)
from concurrent.futures.thread import BrokenThreadPool
from functools import partial
from typing import Any

import pytest

from millpond import PoolClosed, Task, ThreadPool
from millpond.local._calls import run
from waiting import HANG, freed, until


@pytest.fixture(params=[ThreadPoolExecutor, ThreadPool], ids=["standard", "millpond"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def hostile_switching() -> Iterator[None]:
    """Switch threads as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, so that no failure leaves a task waiting for it."""
    event = threading.Event()
    yield event
    event.set()


class Thing:
    """Something that can be watched by a weak reference."""


def start_and_wait(started: threading.Event, gate: threading.Event) -> bool:
    started.set()
    return gate.wait(HANG)


def in_threads(number: int, function: Callable[[int], object]) -> None:
    """Call `function(i)` in `number` threads that start together; raise the first error."""
    barrier = threading.Barrier(number)
    errors: list[BaseException] = []

    def call(index: int) -> None:
        barrier.wait(HANG)
        try:
            function(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


# -- being one --------------------------------------------------------------------------------------------------------


def test_a_thread_pool_is_a_standard_executor():
    with ThreadPool(1) as pool:
        assert isinstance(pool, ThreadPoolExecutor)
        assert isinstance(pool, Executor)
        task = pool.submit(int)
        assert type(task) is Task
        assert issubclass(Task, Future)


def test_the_constructor_takes_the_standard_arguments_by_position(kind):
    seen: list[str] = []
    with kind(2, "mill", seen.append, ("ready",)) as pool:
        name = pool.submit(lambda: threading.current_thread().name).result(HANG)
    assert name == "mill_0"
    assert seen == ["ready"]


def test_the_default_number_of_workers_is_the_standard_one():
    with ThreadPool() as ours, ThreadPoolExecutor() as standard:
        assert ours._max_workers == standard._max_workers


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_the_default_number_of_workers_is_the_standard_one_when_the_process_is_tied_to_one_cpu():
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from concurrent.futures import ThreadPoolExecutor; from millpond import ThreadPool\n"
        "print(ThreadPool()._max_workers - ThreadPoolExecutor()._max_workers)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.strip() == "0"


@pytest.mark.parametrize("number", [0, -1])
def test_no_workers_are_refused(kind, number):
    with pytest.raises(ValueError, match="max_workers"):
        kind(max_workers=number)


def test_an_initializer_that_cannot_be_called_is_refused(kind):
    with pytest.raises(TypeError, match="initializer"):
        kind(initializer="nothing")


def test_pickling_a_pool_fails_as_it_does_for_the_standard_pool(kind):
    with kind(1) as pool, pytest.raises((TypeError, pickle.PicklingError), match="pickle"):  # 3.14: a PicklingError
        pickle.dumps(pool)


def test_a_pool_that_got_no_task_has_no_thread(kind):
    before = set(threading.enumerate())
    with kind(4):
        assert set(threading.enumerate()) <= before


# -- submit -----------------------------------------------------------------------------------------------------------


def test_submit_returns_a_future_of_the_call(kind):
    with kind(1) as pool:
        future = pool.submit(pow, 2, 5)
        assert future.result(HANG) == 32
        assert future.exception() is None
        assert future.done() and not future.running() and not future.cancelled()


def test_submit_passes_every_keyword_on(kind):
    keywords = {"self": 1, "fn": 2, "timeout": 3, "args": 4, "kwargs": 5, "func": 6, "task": 7, "key": 8, "cancel": 9}

    def echo(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with kind(1) as pool:
        assert pool.submit(echo, "a", "b", **keywords).result(HANG) == (("a", "b"), keywords)


def test_submit_takes_the_function_by_position_only(kind):
    with kind(1) as pool, pytest.raises(TypeError):
        pool.submit(fn=int)


def test_every_sort_of_callable_can_be_submitted(kind):
    class Adder:
        def __init__(self, base: int = 0) -> None:
            self.base = base

        def add(self, number: int) -> int:
            return self.base + number

        __call__ = add

        @classmethod
        def make(cls, number: int) -> int:
            return cls(1).add(number)

        @staticmethod
        def give(number: int) -> int:
            return number

    with kind(2) as pool:
        calls = [abs, Adder(1), Adder(2).add, Adder.make, Adder.give, partial(pow, 3), lambda number: -number]
        assert [pool.submit(call, 2).result(HANG) for call in calls] == [2, 3, 4, 3, 2, 9, -2]
        assert pool.submit(Adder, 5).result(HANG).base == 5


def test_tasks_run_in_threads_named_after_the_prefix(kind):
    barrier = threading.Barrier(3)

    def name() -> str:
        barrier.wait(HANG)
        return threading.current_thread().name

    with kind(3, thread_name_prefix="mill") as pool:
        names = {future.result(HANG) for future in [pool.submit(name) for _ in range(3)]}
    assert names == {"mill_0", "mill_1", "mill_2"}


def test_as_many_tasks_run_at_once_as_there_are_workers_and_no_more(kind):
    running, most, lock = 0, 0, threading.Lock()
    barrier = threading.Barrier(3)

    def task() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(HANG)
        with lock:
            running -= 1

    with kind(3) as pool:
        for future in [pool.submit(task) for _ in range(30)]:
            future.result(HANG)
    assert most == 3


def test_a_single_worker_starts_tasks_in_the_order_of_submit(kind):
    order: list[int] = []
    with kind(1) as pool:
        for number in range(1000):
            pool.submit(order.append, number)
    assert order == list(range(1000))


def test_submits_from_many_threads_lose_and_double_nothing(kind, hostile_switching):
    results: list[list[Future[int]]] = [[] for _ in range(4)]
    with kind(3) as pool:
        in_threads(4, lambda i: results[i].extend(pool.submit(int, i * 1000 + n) for n in range(500)))
        got = [future.result(HANG) for futures in results for future in futures]
    assert got == [i * 1000 + n for i in range(4) for n in range(500)]


def test_each_task_runs_exactly_once_under_contention(kind, hostile_switching):
    counter: list[int] = []
    with kind(4) as pool:
        in_threads(4, lambda i: [pool.submit(counter.append, i * 1000 + n) for n in range(500)])
    assert sorted(counter) == [i * 1000 + n for i in range(4) for n in range(500)]


def test_a_task_can_submit_to_its_own_pool(kind):
    with kind(1) as pool:
        inner = pool.submit(pool.submit, int, 7).result(HANG)
        assert inner.result(HANG) == 7


def test_a_task_that_waits_with_a_timeout_for_another_gets_its_timeout_error(kind, gate):
    """The inner task ends only when the outer one goes on: the standard pool copes, since the wait is bounded."""

    def outer(pool: Executor) -> str:
        inner = pool.submit(gate.wait, HANG)
        try:
            inner.result(timeout=0.05)
        except TimeoutError:
            return "timed out"
        return "ended"

    with kind(1) as pool:
        task = pool.submit(outer, pool)
        try:
            assert task.result(HANG) == "timed out"
        finally:
            gate.set()


def test_tasks_that_wait_for_tasks_each_run_once(hostile_switching):
    """Only ours can do this at all: the waiting worker runs the task it waits for, unless another has it."""
    ran: list[int] = []

    def leaf(number: int) -> int:
        ran.append(number)
        return number

    with ThreadPool(3) as pool:

        def parent(number: int) -> int:
            child = pool.submit(leaf, number)
            return child.result(HANG) if number % 2 else child.result()

        parents = [pool.submit(parent, number) for number in range(3000)]
        assert [task.result(HANG) for task in parents] == list(range(3000))
    assert sorted(ran) == list(range(3000))


def test_two_tasks_that_wait_for_the_same_third_run_it_once(hostile_switching):
    ran: list[int] = []
    with ThreadPool(3) as pool:
        for number in range(300):
            start = threading.Barrier(2)
            box: list[Task[None]] = []

            def wait_for_it(start: threading.Barrier = start, box: list[Task[None]] = box) -> None:
                start.wait(HANG)
                box[0].result()

            pool.pause()
            waiters = [pool.submit(wait_for_it) for _ in range(2)]
            box.append(pool.submit(ran.append, number))
            pool.resume()
            for waiter in waiters:
                waiter.result(HANG)
    assert ran == list(range(300))


def test_a_task_that_is_cancelled_while_another_waits_for_it_either_ran_or_is_cancelled(hostile_switching):
    for number in range(300):
        with ThreadPool(2) as pool:
            ran: list[int] = []
            start = threading.Barrier(2)
            box: list[Task[None]] = []

            def wait_for_it(start: threading.Barrier = start, box: list[Task[None]] = box) -> str:
                start.wait(HANG)
                try:
                    box[0].result()
                except CancelledError:
                    return "cancelled"
                return "ran"

            def cancel_it(start: threading.Barrier = start, box: list[Task[None]] = box) -> bool:
                start.wait(HANG)
                return box[0].cancel()

            pool.pause()
            waiter, canceller = pool.submit(wait_for_it), pool.submit(cancel_it)
            box.append(pool.submit(ran.append, number))
            pool.resume()
            outcome, was_cancelled = waiter.result(HANG), canceller.result(HANG)
        assert (outcome, was_cancelled, ran) in [("cancelled", True, []), ("ran", False, [number])]


def test_a_task_can_be_taken_out_of_turn_only_once(gate):
    """Two that cancel it, or one that cancels it and one that waits for it, must not both believe to have it."""
    with ThreadPool(1) as pool:
        pool.submit(gate.wait, HANG)
        task = pool.submit(int)
        assert pool._runner.backlog.claim(task)
        assert not pool._runner.backlog.claim(task)
        task.set_result(0)
        gate.set()


def test_a_worker_that_meets_a_task_taken_out_of_turn_leaves_it_whole(gate):
    """The one who took it may be about to run it: see `Worker.help_now`."""
    with ThreadPool(1) as pool:
        pool.submit(gate.wait, HANG)
        task = pool.submit(int, "5")
        call = pool._runner.backlog.claim(task)
        assert call is not None
        gate.set()
        assert pool.drain(HANG)  # the worker has passed it by
        run(task, call)
        assert task.result(HANG) == 5


# -- map --------------------------------------------------------------------------------------------------------------


def test_map_yields_the_results_in_the_order_of_its_source(kind):
    with kind(4) as pool:
        assert list(pool.map(lambda number: number * 2, range(1000))) == [number * 2 for number in range(1000)]


def test_map_stops_at_the_end_of_the_shortest_source(kind):
    with kind(2) as pool:
        assert list(pool.map(pow, [2, 3, 4], [3, 2])) == [8, 9]
        assert list(pool.map(pow, itertools.count(), [3, 2])) == [0, 1]


def test_map_of_nothing_yields_nothing(kind):
    with kind(2) as pool:
        assert list(pool.map(abs, [])) == []
        assert list(pool.map(pow, [1, 2], [])) == []
        assert list(pool.map(abs)) == []


def test_map_accepts_a_chunksize(kind):
    with kind(2) as pool:
        assert list(pool.map(abs, range(10), chunksize=3)) == list(range(10))


def test_map_returns_an_iterator_that_is_spent_once(kind):
    with kind(2) as pool:
        results = pool.map(abs, range(3))
        assert iter(results) is results
        assert list(results) == [0, 1, 2]
        assert list(results) == []


def test_map_reads_its_source_at_once_and_in_the_callers_thread(kind, gate):
    readers: list[int] = []

    def source() -> Iterator[int]:
        for number in range(50):
            readers.append(threading.get_ident())
            yield number

    with kind(1) as pool:
        blocker = pool.submit(gate.wait, HANG)
        pool.map(abs, source())
        assert readers == [threading.get_ident()] * 50
        gate.set()
        blocker.result(HANG)


def test_map_runs_everything_even_if_nobody_takes_the_results(kind):
    ran: list[int] = []
    with kind(2) as pool:
        pool.map(ran.append, range(100))
    assert sorted(ran) == list(range(100))


def test_map_runs_everything_even_if_its_iterator_was_dropped_at_once(kind):
    ran: list[int] = []
    with kind(2) as pool:
        results = pool.map(ran.append, range(100))
        del results
        gc.collect()
    assert sorted(ran) == list(range(100))


def test_map_raises_an_error_in_its_place(kind):
    with kind(2) as pool:
        results = pool.map(lambda number: 10 // number, [5, 2, 0, 1])
        assert next(results) == 2
        assert next(results) == 5
        with pytest.raises(ZeroDivisionError):
            next(results)
        with pytest.raises(StopIteration):
            next(results)


def test_an_error_taken_from_a_map_cancels_what_has_not_started(kind, gate):
    ran: list[int] = []
    second_runs = threading.Event()

    def task(number: int) -> None:
        ran.append(number)
        if number == 0:
            raise ValueError(number)
        second_runs.set()
        gate.wait(HANG)

    with kind(1) as pool:
        results = pool.map(task, range(4))
        assert second_runs.wait(HANG)
        with pytest.raises(ValueError, match="0"):
            next(results)
        gate.set()
    assert ran == [0, 1]


def test_closing_the_iterator_of_a_map_cancels_what_has_not_started(kind, gate):
    ran: list[int] = []
    second_runs = threading.Event()

    def task(number: int) -> None:
        ran.append(number)
        if number == 1:
            second_runs.set()
            gate.wait(HANG)

    with kind(1) as pool:
        results = pool.map(task, range(5))
        next(results)
        assert second_runs.wait(HANG)
        results.close()
        gate.set()
    assert ran == [0, 1]


def test_an_error_of_the_source_comes_out_of_the_call_of_map(kind):
    def source() -> Iterator[int]:
        yield 1
        raise LookupError("the source is broken")

    with kind(1) as pool, pytest.raises(LookupError):
        pool.map(abs, source())


def test_stop_iteration_in_a_mapped_function_does_not_cut_the_results_short(kind):
    def stop(number: int) -> int:
        if number == 2:
            raise StopIteration
        return number

    with kind(1) as pool:
        results = pool.map(stop, range(5))
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(results)


@pytest.mark.parametrize("timeout", [0, 0.01, -1])
def test_map_raises_timeout_error_when_a_result_is_late(kind, gate, timeout):
    with kind(2) as pool:
        results = pool.map(lambda _: gate.wait(HANG), range(2), timeout=timeout)
        with pytest.raises(TimeoutError):
            next(results)
        gate.set()


def let_an_hour_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)


def test_the_timeout_of_map_counts_from_the_call(kind, gate, monkeypatch):
    with kind(1) as pool:
        results = pool.map(lambda number: number and gate.wait(HANG), range(2), timeout=3600)
        assert next(results) == 0
        with monkeypatch.context() as patch:
            let_an_hour_pass(patch)
            with pytest.raises(TimeoutError):  # it hangs when the hour counts from here
                next(results)
        gate.set()


def test_results_that_are_there_are_taken_although_the_timeout_of_map_has_passed(kind, monkeypatch):
    with kind(1) as pool:
        results = pool.map(abs, range(3), timeout=3600)
        pool.shutdown()
        with monkeypatch.context() as patch:
            let_an_hour_pass(patch)
            assert list(results) == [0, 1, 2]


def test_results_before_a_slow_item_can_be_taken_while_it_runs(kind, gate):
    def task(number: int) -> int:
        if number == 700:
            gate.wait(HANG)
        return number

    with kind(1) as pool:
        results = pool.map(task, range(5000), timeout=HANG)
        try:
            assert [next(results) for _ in range(700)] == list(range(700))
        finally:
            gate.set()


def test_a_mapped_item_can_wait_for_a_later_one_when_there_is_a_worker_for_each(kind):
    later_ran = threading.Event()

    def task(number: int) -> bool:
        if number == 700:
            return later_ran.wait(HANG)
        if number == 701:
            later_ran.set()
        return True

    with kind(2) as pool:
        assert all(pool.map(task, range(5000)))


def test_map_does_not_keep_results_alive_that_were_taken(kind, no_gc):
    with kind(2) as pool:
        for thing in pool.map(lambda _: Thing(), range(50)):
            ref = weakref.ref(thing)
            del thing
            until(lambda: freed(ref))  # noqa: B023


def test_map_frees_each_argument_when_its_call_has_ended(kind, gate, no_gc):
    refs: list[weakref.ref[Thing]] = []

    def source() -> Iterator[Thing]:
        for _ in range(20):
            thing = Thing()
            refs.append(weakref.ref(thing))
            yield thing

    calls = itertools.count()

    def task(_: Thing) -> None:
        if next(calls) == 10:
            gate.wait(HANG)

    with kind(1) as pool:
        pool.map(task, source())
        try:
            until(lambda: sum(ref() is None for ref in refs) >= 10)
        finally:
            gate.set()


def test_map_after_shutdown_is_refused(kind):
    pool = kind(1)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.map(abs, [1])


def test_shutdown_that_cancels_ends_a_map_with_cancelled_error(kind, gate):
    started = threading.Event()

    def task(number: int) -> int:
        started.set()
        gate.wait(HANG)
        return number

    pool = kind(1)
    results = pool.map(task, range(5))
    assert started.wait(HANG)
    pool.shutdown(wait=False, cancel_futures=True)
    gate.set()
    assert next(results) == 0
    with pytest.raises(CancelledError):
        list(results)
    pool.shutdown()


def test_many_maps_at_once_do_not_mix(kind, hostile_switching):
    with kind(3) as pool:

        def check(index: int) -> None:
            for _ in range(5):
                assert list(pool.map(lambda n: (index, n), range(200))) == [(index, n) for n in range(200)]

        in_threads(4, check)


# -- shutdown ---------------------------------------------------------------------------------------------------------


def test_shutdown_waits_for_everything_that_was_submitted(kind):
    ran: list[int] = []
    pool = kind(2)
    for number in range(200):
        pool.submit(ran.append, number)
    pool.shutdown()
    assert sorted(ran) == list(range(200))


def test_shutdown_ends_the_threads(kind):
    pool = kind(3, thread_name_prefix="mill")
    list(pool.map(abs, range(10)))
    pool.shutdown()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mill_")]


def test_shutdown_without_wait_returns_at_once_and_the_work_is_still_done(kind, gate):
    pool = kind(1)
    futures = [pool.submit(gate.wait, HANG) for _ in range(3)]
    pool.shutdown(wait=False)
    assert not any(future.done() for future in futures)
    gate.set()
    assert [future.result(HANG) for future in futures] == [True] * 3


def test_shutdown_takes_wait_by_position(kind, gate):
    pool = kind(1)
    future = pool.submit(gate.wait, HANG)
    pool.shutdown(False)
    assert not future.done()
    gate.set()
    pool.shutdown(True)
    assert future.done()


def test_shutdown_can_cancel_what_is_queued_but_not_what_runs(kind, gate):
    started = threading.Event()
    pool = kind(1)
    running = pool.submit(start_and_wait, started, gate)
    queued = [pool.submit(abs, number) for number in range(10)]
    assert started.wait(HANG)
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in queued)
    assert not running.done()
    gate.set()
    assert running.result(HANG) is True
    pool.shutdown()


def test_shutdown_twice_is_harmless(kind):
    pool = kind(2)
    pool.submit(abs, 1)
    pool.shutdown()
    pool.shutdown()
    pool.shutdown(wait=False, cancel_futures=True)


def test_shutdown_of_an_unused_pool_returns(kind):
    kind(2).shutdown()


def test_shutdown_in_several_threads_waits_in_each(kind, gate):
    pool = kind(1)
    future = pool.submit(gate.wait, HANG)
    saw: list[bool] = []

    def shut(index: int) -> None:
        if index == 0:
            gate.set()
        pool.shutdown()
        saw.append(future.done())

    in_threads(4, shut)
    assert saw == [True] * 4


def test_submit_after_shutdown_raises_runtime_error(kind):
    pool = kind(1)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(abs, 1)


def test_our_refusal_after_shutdown_says_which_pool_and_what_to_do():
    pool = ThreadPool(1, name="mill")
    pool.shutdown()
    with pytest.raises(PoolClosed, match=r"'mill' is shut down.*make a new one"):
        pool.submit(abs, 1)


def test_the_with_block_waits_for_the_tasks(kind):
    ran: list[int] = []
    with kind(2) as pool:
        assert isinstance(pool, kind)
        for number in range(100):
            pool.submit(ran.append, number)
    assert len(ran) == 100
    with pytest.raises(RuntimeError):
        pool.submit(abs, 1)


def test_an_error_in_the_with_block_comes_out_after_the_tasks_have_ended(kind):
    ran: list[int] = []
    with pytest.raises(LookupError), kind(1) as pool:
        for number in range(50):
            pool.submit(ran.append, number)
        raise LookupError
    assert len(ran) == 50


def test_a_submit_that_races_with_shutdown_is_refused_or_done(kind, hostile_switching):
    for _ in range(100):
        pool = kind(2)
        accepted: list[Future[int]] = []

        def submit(index: int, pool: Executor = pool, accepted: list[Future[int]] = accepted) -> None:
            if index == 0:
                pool.shutdown(wait=False)
                return
            with contextlib.suppress(RuntimeError):
                for number in range(50):
                    accepted.append(pool.submit(abs, number))  # noqa: PERF401

        in_threads(3, submit)
        for future in accepted:
            future.result(HANG)
        pool.shutdown()


def test_a_submit_that_races_with_a_cancelling_shutdown_is_refused_or_settled(kind, hostile_switching):
    for _ in range(100):
        pool = kind(2)
        accepted: list[Future[int]] = []

        def submit(index: int, pool: Executor = pool, accepted: list[Future[int]] = accepted) -> None:
            if index == 0:
                pool.shutdown(wait=True, cancel_futures=True)
                return
            with contextlib.suppress(RuntimeError):
                for number in range(50):
                    accepted.append(pool.submit(abs, number))  # noqa: PERF401

        in_threads(3, submit)
        for future in accepted:
            try:
                future.result(HANG)
            except CancelledError:
                assert future.cancelled()
        pool.shutdown()


def test_a_task_can_shut_its_own_pool_down():
    """The standard pool cannot: it joins the thread that asks."""
    pool = ThreadPool(2)
    assert pool.submit(pool.shutdown).result(HANG) is True
    pool.shutdown()


# -- initializer ------------------------------------------------------------------------------------------------------


def test_the_initializer_runs_once_in_each_worker_before_its_first_task(kind):
    local = threading.local()
    calls: list[str] = []
    barrier = threading.Barrier(3)

    def prepare(*args: Any) -> None:
        calls.append(threading.current_thread().name)
        local.args = args

    def task() -> Any:
        barrier.wait(HANG)
        return local.args

    with kind(3, initializer=prepare, initargs=(1, "two")) as pool:
        futures = [pool.submit(task) for _ in range(9)]
        assert [future.result(HANG) for future in futures] == [(1, "two")] * 9
    assert len(calls) == len(set(calls)) == 3


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_failing_initializer_breaks_the_pool_for_pending_and_later_tasks(kind, gate, caplog, error):
    def fail() -> None:
        gate.wait(HANG)
        raise error("no database")

    with kind(1, initializer=fail) as pool:
        pending = [pool.submit(abs, number) for number in range(5)]
        gate.set()
        for future in pending:
            with pytest.raises(BrokenThreadPool):
                future.result(HANG)
        with pytest.raises(BrokenThreadPool) as caught:
            pool.submit(abs, 1)
        assert {BrokenExecutor, RuntimeError} <= set(type(caught.value).__mro__)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]
    assert caplog.records[0].exc_info is not None


def test_our_broken_pool_says_what_the_initializer_raised():
    def fail() -> None:
        raise ValueError("no database")

    with ThreadPool(1, initializer=fail, name="mill") as pool:
        try:
            error = pool.submit(abs, 1).exception(HANG)
        except BrokenThreadPool as refused:
            error = refused
        assert "no database" in str(error) and "mill" in str(error)


def test_a_failing_initializer_ends_a_map_with_broken_thread_pool(kind, gate):
    def fail() -> None:
        gate.wait(HANG)
        raise ValueError

    with kind(1, initializer=fail) as pool:
        results = pool.map(abs, range(5))
        gate.set()
        with pytest.raises(BrokenThreadPool):
            list(results)


def test_no_task_is_forgotten_when_the_initializer_fails_while_others_submit(hostile_switching):
    def fail() -> None:
        raise ValueError

    for _ in range(50):
        pool = ThreadPool(1, initializer=fail)
        accepted: list[Task[int]] = []

        def submit(index: int, pool: ThreadPool = pool, accepted: list[Task[int]] = accepted) -> None:
            try:
                while True:
                    accepted.append(pool.submit(abs, index))
            except BrokenThreadPool:
                pass

        in_threads(3, submit)
        for task in accepted:
            assert isinstance(task.exception(HANG), BrokenThreadPool)
        pool.shutdown()


# -- what tasks raise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, CancelledError]
)
def test_whatever_a_task_raises_goes_to_the_future_and_the_worker_lives(kind, error):
    raised = error("out")

    def fail() -> None:
        raise raised

    with kind(1, thread_name_prefix="mill") as pool:
        first = pool.submit(lambda: threading.current_thread().name).result(HANG)
        future = pool.submit(fail)
        with pytest.raises(error) as caught:
            future.result(HANG)
        assert caught.value is raised
        assert future.exception() is raised
        assert not future.cancelled()
        assert pool.submit(lambda: threading.current_thread().name).result(HANG) == first


def test_whatever_a_mapped_function_raises_the_worker_lives(kind):
    def fail(_: int) -> None:
        raise SystemExit(3)

    with kind(1, thread_name_prefix="mill") as pool:
        with pytest.raises(SystemExit):
            list(pool.map(fail, range(3)))
        assert pool.submit(lambda: threading.current_thread().name).result(HANG) == "mill_0"


def test_a_callback_that_raises_system_exit_does_not_stop_the_queue(gate):
    """The standard pool loses the worker here, and with a single one hangs."""

    def leave(_: object) -> None:
        raise SystemExit

    with ThreadPool(1) as pool:
        first = pool.submit(gate.wait, HANG)
        first.add_done_callback(leave)
        second = pool.submit(abs, -2)
        gate.set()
        assert second.result(HANG) == 2


# -- what a pool keeps alive ------------------------------------------------------------------------------------------


def test_arguments_are_freed_when_the_task_is_done_although_its_future_lives(kind, no_gc):
    with kind(1) as pool:
        positional, keyword = Thing(), Thing()
        refs = [weakref.ref(positional), weakref.ref(keyword)]
        future = pool.submit(lambda thing, other: None, positional, other=keyword)
        del positional, keyword
        future.result(HANG)
        until(lambda: freed(*refs))


def test_the_function_is_freed_when_the_task_is_done(kind, no_gc):
    with kind(1) as pool:
        thing = Thing()
        ref = weakref.ref(thing)
        future = pool.submit(lambda held=thing: None)
        del thing
        future.result(HANG)
        until(lambda: freed(ref))


def test_a_result_is_freed_with_its_future_while_the_worker_idles(kind, no_gc):
    with kind(1) as pool:
        future = pool.submit(Thing)
        ref = weakref.ref(future.result(HANG))
        assert ref() is not None
        del future
        until(lambda: freed(ref))


def test_a_future_that_was_watched_in_every_way_is_freed_with_its_last_name(kind, no_gc):
    import concurrent.futures as standard

    go = threading.Event()
    with kind(1) as pool:
        future = pool.submit(go.wait, HANG)
        future.add_done_callback(lambda _: None)
        standard.wait([future], timeout=0)
        with pytest.raises(TimeoutError):
            list(standard.as_completed([future], timeout=0))
        with pytest.raises(TimeoutError):
            future.result(0)
        go.set()
        assert future.result(HANG) is True
        ref = weakref.ref(future)
        del future
        until(lambda: freed(ref))


@pytest.mark.parametrize("how", ["result", "exception", "nobody looks"])
def test_an_error_and_its_frames_are_freed_with_the_future(kind, no_gc, how):
    refs: list[weakref.ref[Any]] = []

    class Failure(Exception):
        pass

    def fail(thing: Thing) -> None:
        held = thing
        refs.append(weakref.ref(held))
        error = Failure()
        refs.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    def look(pool: Executor) -> None:
        future = pool.submit(fail, Thing())
        if how == "result":
            with pytest.raises(Failure):
                future.result(HANG)
        elif how == "exception":
            future.exception(HANG)
        until(future.done)

    def look_without_pytest(pool: Executor) -> None:  # pytest's own records would keep the error
        if how != "result":
            look(pool)
            return
        future = pool.submit(fail, Thing())
        try:
            future.result(HANG)
        except Failure:
            pass
        finally:
            del future

    with kind(1) as pool:
        look_without_pytest(pool)
        assert len(refs) == 2
        until(lambda: freed(*refs))


def test_an_error_in_a_map_is_freed_when_it_was_handled(kind, no_gc):
    refs: list[weakref.ref[Any]] = []

    def fail(number: int) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        if number == 1:
            raise ValueError(number)

    def consume(pool: Executor) -> None:
        with contextlib.suppress(ValueError):
            list(pool.map(fail, range(3)))

    with kind(1) as pool:
        consume(pool)
        until(lambda: freed(*refs))


def test_a_cancelled_task_frees_its_arguments_at_once_although_it_is_still_in_line(no_gc):
    go = threading.Event()
    with ThreadPool(1) as pool:
        pool.submit(go.wait, HANG)
        thing = Thing()
        ref = weakref.ref(thing)
        task = pool.submit(id, thing)
        del thing
        assert task.cancel()
        assert ref() is None
        go.set()


def test_a_dropped_pool_ends_its_threads_and_still_runs_what_is_queued(kind):
    go = threading.Event()
    ran: list[int] = []
    pool = kind(1, thread_name_prefix="dropped")
    ref = weakref.ref(pool)
    pool.submit(go.wait, HANG)
    for number in range(5):
        pool.submit(ran.append, number)
    del pool
    assert ref() is None, "something keeps the pool alive"
    go.set()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("dropped_")])
    assert ran == list(range(5))


def test_asking_again_and_again_with_a_timeout_costs_no_memory(kind, gate):
    with kind(1) as pool:
        future = pool.submit(gate.wait, HANG)

        def ask(times: int) -> None:
            for _ in range(times):
                try:
                    future.result(timeout=0)
                except TimeoutError:
                    continue
                raise AssertionError("it did not time out")

        ask(100)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        ask(2000)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        gate.set()
    assert grown < 20_000


def test_draining_again_and_again_with_a_timeout_costs_no_memory(gate):
    with ThreadPool(1) as pool:
        pool.submit(gate.wait, HANG)
        pool.drain(timeout=0)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(2000):
            assert not pool.drain(timeout=0)
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        gate.set()
    assert grown < 20_000


def test_everyday_use_is_silent_in_development_mode():
    script = """
import asyncio, concurrent.futures as standard, gc
import millpond
from millpond import ThreadPool

with ThreadPool(2) as pool:
    tasks = [pool.submit(pow, 2, n) for n in range(50)]
    assert [task.result() for task in standard.as_completed(tasks)]
    assert len(standard.wait(tasks).done) == 50
    assert list(pool.map(abs, range(100))) == list(range(100))
    failed = pool.submit(lambda: 1 / 0)
    assert isinstance(failed.exception(), ZeroDivisionError)

async def main():
    asyncio.get_running_loop().slow_callback_duration = 3600.0  # a busy machine is no reason to warn
    with ThreadPool(2) as pool:
        assert await pool.run(abs, -1) == 1
        assert await pool.submit(abs, -2) == 2
        assert await asyncio.gather(*(pool.run(abs, -n) for n in range(100))) == list(range(100))
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(pool, abs, -3) == 3
        loop.set_default_executor(ThreadPool(1))
        assert await asyncio.to_thread(abs, -4) == 4

asyncio.run(main(), debug=True)
dropped = ThreadPool(1)
dropped.submit(abs, 1)
del dropped, tasks, failed
gc.collect()
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True, timeout=HANG
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")

"""What a pool says to people: its names, its refusals, its errors."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import pickle
import sys
import threading
from typing import Any

import pytest

import millpond
from millpond import AsyncPool, ProcessPool, ThreadPool, current_token
from pool_calls import ended, hide_cloudpickle, make_function, same
from waiting import HANG, until

# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["millpond", "millpond.local"])
@pytest.mark.parametrize("name", ["AsyncTask", "AsyncMap", "AsyncGroup", "AsyncSubPool"])
def test_what_an_async_pool_hands_out_has_a_public_name(module, name):
    home = importlib.import_module(module)
    assert isinstance(getattr(home, name), type)
    assert name in home.__all__ and name in dir(home)


def test_the_public_names_are_the_types_of_what_an_async_pool_hands_out():
    async def main() -> None:
        async with AsyncPool(2) as pool:
            task = await pool.submit(asyncio.sleep, 0)
            results = pool.map(asyncio.sleep, [0])
            assert isinstance(task, millpond.AsyncTask)
            assert isinstance(results, millpond.AsyncMap)
            assert isinstance(pool.group(), millpond.AsyncGroup)
            assert isinstance(pool.subpool(1), millpond.AsyncSubPool)
            await results

    asyncio.run(main())


# -- refusals ----------------------------------------------------------------------------------------------------------


async def coroutine_function() -> None: ...


class Service:
    async def method(self) -> None: ...


VERBS: dict[str, Any] = {
    "submit": lambda pool, fn: pool.submit(fn),
    "try_submit": lambda pool, fn: pool.try_submit(fn),
    "go": lambda pool, fn: pool.go(fn),
    "submit_many": lambda pool, fn: pool.submit_many(fn, [()]),
    "map": lambda pool, fn: pool.map(fn, [1]),
    "group": lambda pool, fn: pool.group().submit(fn),
    "options": lambda pool, fn: pool.options(timeout=5).submit(fn),
    "options_map": lambda pool, fn: pool.options(timeout=5).map(fn, [1]),
}
FUNCTIONS = [coroutine_function, Service().method, functools.partial(coroutine_function)]


@pytest.fixture(scope="module")
def process_pool():
    with ProcessPool(1) as pool:
        yield pool


@pytest.fixture(params=["threads", "subpool", "processes"])
def pool(request):
    if request.param == "processes":
        yield request.getfixturevalue("process_pool")
        return
    with ThreadPool(1) as pool:
        yield pool if request.param == "threads" else pool.subpool(1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_coroutine_function_is_refused_where_nothing_would_await_it(pool, verb):
    for function in FUNCTIONS:
        with pytest.raises(TypeError, match="AsyncPool"):
            VERBS[verb](pool, function)
    assert pool.statistics().submitted == 0


def test_a_coroutine_function_is_refused_by_run_too(pool):
    async def main() -> None:
        with pytest.raises(TypeError, match="AsyncPool"):
            await pool.run(coroutine_function)
        with pytest.raises(TypeError, match="AsyncPool"):
            await pool.options(timeout=5).run(coroutine_function)

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["drain", "shutdown"])
def test_an_async_pool_refuses_what_is_no_time_out(verb):
    async def main() -> None:
        async with AsyncPool(1) as pool:
            with pytest.raises(TypeError, match="timeout must be a number of seconds"):
                await getattr(pool, verb)(timeout="x")
            with pytest.raises(ValueError, match="timeout must be 0 or more"):
                await getattr(pool, verb)(timeout=-1)
            assert await pool.run(same, 5) == 5

    asyncio.run(main())


@pytest.mark.parametrize(
    "make", [ThreadPool, ProcessPool, AsyncPool, lambda n, name: ThreadPool(n).subpool(n, name=name)]
)
def test_a_pool_that_is_pickled_says_which_pool_and_what_to_do(make):
    pool = make(1, name="precious")
    with pytest.raises(TypeError, match=r"'precious'.*(make a pool|submit from here)"):
        pickle.dumps(pool)


def test_an_unpicklable_result_is_named_when_cloudpickle_is_not_installed():
    with ended(ProcessPool(1, initializer=hide_cloudpickle)) as pool:
        error = pool.submit(make_function).exception(HANG)
        assert isinstance(error, pickle.PicklingError)
        assert "the result of make_function, a function, cannot be pickled" in str(error)
        assert "return plain data" in str(error)
        assert pool.submit(same, 5).result(HANG) == 5


# -- groups ------------------------------------------------------------------------------------------------------------


def stop_when_asked(started: threading.Event) -> bool:
    started.set()
    return current_token().wait(HANG)


def test_a_running_task_of_a_group_sees_that_another_has_failed():
    started = threading.Event()

    def fail() -> None:
        started.wait(HANG)
        raise ValueError("bad")

    with ThreadPool(3) as pool:
        with pytest.raises(ValueError, match="bad"), pool.group() as group:
            other = pool.submit(current_token)
            task = group.submit(stop_when_asked, started)
            group.submit(fail)
        assert task.result(HANG) is True
        assert not other.result(HANG).cancelled, "only the group is asked to stop"
        assert pool.submit(lambda: current_token().cancelled).result(HANG) is False


def test_a_running_task_of_a_group_sees_that_its_block_has_failed():
    started = threading.Event()
    with ThreadPool(2) as pool:
        with pytest.raises(ValueError, match="bad"), pool.group() as group:
            task = group.submit(stop_when_asked, started)
            started.wait(HANG)
            raise ValueError("bad")
        assert task.result(HANG) is True


def test_a_running_task_of_a_group_sees_that_the_group_was_cancelled():
    started = threading.Event()
    with ThreadPool(2) as pool, pool.group() as group:
        task = group.submit(stop_when_asked, started)
        started.wait(HANG)
        group.cancel()
        assert task.result(HANG) is True


# -- cost --------------------------------------------------------------------------------------------------------------


def test_a_task_with_a_key_makes_no_later_submit_dearer():
    held, tasks = threading.Event(), []

    def calls_of_submits() -> int:
        """Count the Python functions that 50 plain submits call while the worker is busy."""
        number = 0

        def count(frame: Any, kind: str, _: Any) -> None:
            nonlocal number
            number += kind == "call" and "/millpond/" in frame.f_code.co_filename

        tasks.append(threads.submit(int))  # a function is checked only when it is another than the last
        before = sys.getprofile()
        gc.disable()  # what other tests left would be counted when it is collected just now
        sys.setprofile(count)
        try:
            for _ in range(50):
                tasks.append(threads.submit(int))  # noqa: PERF401
        finally:
            sys.setprofile(before)
            gc.enable()
        return number

    with ThreadPool(1) as threads:
        try:
            blocker = threads.submit(held.wait)
            until(blocker.running)
            plain = calls_of_submits()
            keyed = threads.options(key="k").submit(int)
            assert calls_of_submits() <= plain  # the first submit of a function checks it
            held.set()
            keyed.result(HANG)
            assert threads.drain(HANG)
            held.clear()
            blocker = threads.submit(held.wait)
            until(blocker.running)
            assert calls_of_submits() <= plain
        finally:
            held.set()
        assert threads.drain(HANG)

"""A `ThreadPool` serves asyncio wherever the standard pool does, and its tasks can be awaited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millpond import Task, ThreadPool
from waiting import HANG

Call = Callable[..., Awaitable[Any]]


@pytest.fixture(params=[ThreadPoolExecutor, ThreadPool], ids=["standard", "millpond"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def hostile_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def run(main: Awaitable[Any], *, debug: bool = True) -> Any:
    """Run a coroutine in a loop of its own, never for ever."""

    async def bounded() -> Any:
        return await asyncio.wait_for(main, HANG)

    return asyncio.run(bounded(), debug=debug)


def in_executor(pool: Any, fn: Callable[..., Any], *args: Any) -> Awaitable[Any]:
    return asyncio.get_running_loop().run_in_executor(pool, fn, *args)


def wrapped(pool: Any, fn: Callable[..., Any], *args: Any) -> Awaitable[Any]:
    return asyncio.wrap_future(pool.submit(fn, *args))


def awaited(pool: Any, fn: Callable[..., Any], *args: Any) -> Awaitable[Any]:
    return pool.submit(fn, *args)  # type: ignore[no-any-return]


def run_by_pool(pool: Any, fn: Callable[..., Any], *args: Any) -> Awaitable[Any]:
    return pool.run(fn, *args)  # type: ignore[no-any-return]


WAYS = [
    pytest.param(in_executor, ThreadPoolExecutor, id="run_in_executor of the standard pool"),
    pytest.param(wrapped, ThreadPoolExecutor, id="wrap_future of a standard future"),
    pytest.param(in_executor, ThreadPool, id="run_in_executor"),
    pytest.param(wrapped, ThreadPool, id="wrap_future"),
    pytest.param(awaited, ThreadPool, id="await task"),
    pytest.param(run_by_pool, ThreadPool, id="pool.run"),
]
every_way = pytest.mark.parametrize(("call", "kind"), WAYS)


@every_way
def test_a_result_reaches_the_coroutine(call: Call, kind: Any):
    async def main() -> None:
        with kind(2) as pool:
            assert await call(pool, pow, 2, 5) == 32

    run(main())


@every_way
def test_an_error_reaches_the_coroutine_as_it_is(call: Call, kind: Any):
    error = ValueError("raised")

    def fail() -> None:
        raise error

    async def main() -> None:
        with kind(1) as pool:
            with pytest.raises(ValueError, match="raised") as caught:
                await call(pool, fail)
            assert caught.value is error

    run(main())


@every_way
@pytest.mark.parametrize("moment", ["before", "after"])
def test_stop_iteration_becomes_a_runtime_error(call: Call, kind: Any, moment: str, gate: threading.Event):
    if sys.version_info < (3, 13) and call in (in_executor, wrapped):
        pytest.skip("asyncio itself hangs on it before 3.13")

    def stop() -> None:
        gate.wait(HANG)
        raise StopIteration("end")

    async def main() -> None:
        with kind(1) as pool:
            future = call(pool, stop)
            if moment == "before":
                gate.set()
                pool.shutdown()
            else:
                asyncio.get_running_loop().call_later(0.01, gate.set)
            with pytest.raises(RuntimeError, match="StopIteration"):
                await future

    run(main())


@every_way
def test_a_task_that_is_done_already_can_be_awaited(call: Call, kind: Any):
    async def main() -> None:
        with kind(1) as pool:
            future = call(pool, abs, -1)
            pool.shutdown()
            assert await future == 1

    run(main())


@every_way
@pytest.mark.parametrize("number", [3000])
def test_thousands_can_be_gathered(call: Call, kind: Any, number: int):
    async def main() -> None:
        with kind(4) as pool:
            assert await asyncio.gather(*(call(pool, int, n) for n in range(number))) == list(range(number))

    run(main(), debug=False)


@every_way
def test_nothing_is_lost_between_threads_and_loop_under_contention(call: Call, kind: Any, hostile_switching):
    async def main() -> None:
        with kind(3) as pool:
            for _ in range(30):
                assert await asyncio.gather(*(call(pool, int, n) for n in range(20))) == list(range(20))
            for n in range(100):
                assert await call(pool, int, n) == n

    run(main(), debug=False)


@every_way
def test_cancelling_the_waiting_side_cancels_a_task_in_line(call: Call, kind: Any, gate: threading.Event):
    ran: list[int] = []

    async def main() -> None:
        with kind(1) as pool:
            blocker = asyncio.ensure_future(call(pool, gate.wait, HANG))

            async def wait_for_it() -> None:
                await call(pool, ran.append, 1)

            waiter = asyncio.create_task(wait_for_it())
            await asyncio.sleep(0)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            gate.set()
            await blocker

    run(main())
    assert ran == []


@every_way
def test_cancelling_the_waiting_side_leaves_a_running_task_alone(call: Call, kind: Any, gate: threading.Event):
    started, ended = threading.Event(), threading.Event()

    def task() -> None:
        started.set()
        gate.wait(HANG)
        ended.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with kind(1) as pool:

            async def wait_for_it() -> None:
                await call(pool, task)

            waiter = asyncio.create_task(wait_for_it())
            await loop.run_in_executor(None, started.wait, HANG)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert not ended.is_set()
            gate.set()
        assert ended.is_set()

    run(main())


@every_way
def test_a_wait_for_that_times_out_cancels_a_task_in_line(call: Call, kind: Any, gate: threading.Event):
    ran: list[int] = []

    async def main() -> None:
        with kind(1) as pool:
            blocker = asyncio.ensure_future(call(pool, gate.wait, HANG))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.ensure_future(call(pool, ran.append, 1)), 0.02)
            gate.set()
            await blocker

    run(main())
    assert ran == []


@pytest.mark.parametrize("call", [wrapped, awaited])
@pytest.mark.parametrize("moment", ["before the wait", "during the wait"])
def test_awaiting_a_task_that_somebody_cancels_raises_the_cancelled_error_of_asyncio(
    call: Call, moment: str, gate: threading.Event
):
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPool(1) as pool:
            pool.submit(gate.wait, HANG)
            task = pool.submit(abs, 1)
            if moment == "before the wait":
                task.cancel()
            else:
                loop.call_later(0.02, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await (task if call is awaited else asyncio.wrap_future(task))
            gate.set()

    run(main())


@every_way
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_cancelled_error_of_futures_that_a_function_raises_becomes_that_of_asyncio(
    call: Call, kind: Any, moment: str, gate: threading.Event
):
    """As asyncio converts it: a coroutine that waits for another pool's future in there was cancelled with it."""

    def fail() -> None:
        gate.wait(HANG)
        raise concurrent.futures.CancelledError("inner")

    async def main() -> None:
        with kind(1) as pool:
            future = call(pool, fail)
            if moment == "before":
                gate.set()
                pool.shutdown()
            else:
                asyncio.get_running_loop().call_later(0.01, gate.set)
            with pytest.raises(asyncio.CancelledError):
                await future

    run(main())


@every_way
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_raised_by_a_task_leaves_the_loop(call: Call, kind: Any, error: type[BaseException]):
    def leave() -> None:
        raise error

    async def main() -> None:
        await call(pool, leave)

    with kind(1) as pool, pytest.raises(error):
        asyncio.run(main())


def test_one_task_can_be_awaited_from_two_loops_in_two_threads(hostile_switching):
    for _ in range(30):
        gate = threading.Event()
        with ThreadPool(1) as pool:
            task = pool.submit(gate.wait, HANG)
            got: list[bool] = []

            async def main(task: Task[bool] = task, got: list[bool] = got) -> None:
                got.append(await task)
                got.append(await asyncio.wrap_future(task))

            threads = [threading.Thread(target=run, args=(main(),), kwargs={"debug": False}) for _ in range(2)]
            for thread in threads:
                thread.start()
            gate.set()
            for thread in threads:
                thread.join(HANG)
        assert got == [True] * 4


def test_one_task_can_be_awaited_by_many_coroutines(gate: threading.Event):
    async def main() -> None:
        with ThreadPool(1) as pool:
            task = pool.submit(gate.wait, HANG)

            async def wait_for_it() -> bool:
                return await task

            waiters = [asyncio.create_task(wait_for_it()) for _ in range(20)]
            await asyncio.sleep(0)
            gate.set()
            assert await asyncio.gather(*waiters) == [True] * 20

    run(main())


@every_way
def test_a_loop_closed_before_the_task_ends_disturbs_nobody(
    call: Call, kind: Any, gate: threading.Event, caplog: pytest.LogCaptureFixture
):
    with kind(1) as pool:
        loop = asyncio.new_event_loop()

        async def begin() -> asyncio.Future[Any]:
            return asyncio.ensure_future(call(pool, gate.wait, HANG))

        if call is awaited:  # wrapping it in a task would leave that task pending, in every way alike

            async def begin() -> asyncio.Future[Any]:
                from millpond.local._loop_bridge import wrap

                return wrap(pool.submit(gate.wait, HANG))

        future = loop.run_until_complete(begin())
        loop.close()
        with caplog.at_level(logging.WARNING):
            gate.set()
            assert pool.submit(abs, -1).result(HANG) == 1
        assert not future.done()
        if kind is ThreadPool and call in (awaited, run_by_pool):  # the standard way logs an error here
            assert caplog.records == []
        # and the next loop works
        assert run(_one_call(call, pool)) == 2
        del future


async def _one_call(call: Call, pool: Any) -> Any:
    return await call(pool, abs, -2)


@every_way
def test_a_loop_is_freed_that_was_closed_before_the_task_ended(
    call: Call, kind: Any, gate: threading.Event, caplog: pytest.LogCaptureFixture
):
    def begin(pool: Any) -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()

        async def start() -> None:
            future = call(pool, gate.wait, HANG)
            if isinstance(future, Task):
                next(future.__await__())

        loop.run_until_complete(start())
        loop.close()
        return weakref.ref(loop)

    with kind(1) as pool:
        ref = begin(pool)
        assert ref() is not None
        gate.set()
    caplog.clear()
    gc.collect()
    assert ref() is None


def test_a_loop_is_freed_after_ordinary_use():
    refs: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        refs.append(weakref.ref(asyncio.get_running_loop()))
        with ThreadPool(2) as pool:
            await asyncio.gather(*(pool.run(abs, n) for n in range(10)))
            await pool.submit(abs, 1)

    run(main())
    gc.collect()
    assert refs[0]() is None


def test_a_pool_can_be_the_default_executor_and_is_shut_down_with_the_loop():
    pool = ThreadPool(2, name="default")

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(pool)
        name = await asyncio.to_thread(lambda: threading.current_thread().name)
        assert name.startswith("default_")
        assert await asyncio.get_running_loop().run_in_executor(None, abs, -1) == 1
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.01)

    run(main())
    assert pool._shutdown
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("default_")]
    with pytest.raises(RuntimeError):
        pool.submit(abs, 1)


def test_to_thread_carries_context_variables_into_our_pool():
    import contextvars

    variable = contextvars.ContextVar("variable", default=0)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPool(1))
        variable.set(5)
        assert await asyncio.to_thread(variable.get) == 5

    run(main())


def test_awaiting_outside_of_a_loop_says_so(gate: threading.Event):
    with ThreadPool(1) as pool:
        task = pool.submit(gate.wait, HANG)
        with pytest.raises(RuntimeError, match="no running event loop"):
            next(task.__await__())
        gate.set()


def test_run_outside_of_a_loop_says_what_to_take_instead_and_queues_nothing():
    with ThreadPool(1) as pool:
        for call in (pool.run, pool.options(timeout=HANG).run):
            with pytest.raises(RuntimeError, match=r"no running event loop.* take submit\(\.\.\.\)\.result\(\)"):
                call(int)
        assert pool.statistics().submitted == 0


def test_many_loops_in_many_threads_share_a_pool(hostile_switching):
    errors: list[BaseException] = []
    with ThreadPool(3) as pool:

        async def main(base: int) -> None:
            for _ in range(10):
                numbers = [base + n for n in range(20)]
                assert await asyncio.gather(*(pool.run(int, n) for n in numbers)) == numbers

        def serve(base: int) -> None:
            try:
                run(main(base), debug=False)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=serve, args=(100 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG)
            assert not thread.is_alive()
    assert errors == []


def test_async_for_in_the_thread_of_the_loop_is_not_blocked_while_tasks_run(gate: threading.Event):
    """The coroutine sets the gate that the task waits for: nothing here may block the loop."""

    async def main() -> None:
        with ThreadPool(1) as pool:
            waiting = pool.run(gate.wait, HANG)
            await asyncio.sleep(0)
            assert not waiting.done()
            gate.set()
            assert await waiting is True

    run(main())

"""`AsyncPool`: the verbs, the order, the bound, groups, subpools, events."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from millpond._events import Event
from millpond.errors import PoolClosed, PoolFull, TaskTimeout
from millpond.local import Block, CancelToken, Priority, ThreadPool, current_token
from millpond.local.coroutines._pool import AsyncPool
from millpond.local.coroutines._task import AsyncTask
from waiting import HANG, auntil

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(autouse=True)
async def leaves_nothing_behind() -> AsyncIterator[None]:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task not in before and task is not asyncio.current_task()]
    assert not complaints


async def echo(value: Any) -> Any:
    return value


async def double(value: int) -> int:
    await asyncio.sleep(0)
    return 2 * value


async def fail(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


class Gate:
    """A call that waits until it is let through, and tells how many are in it."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self._open = asyncio.Event()

    async def __call__(self, value: Any = None) -> Any:
        self.begun.append(value)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self._open.wait()
        finally:
            self.inside -= 1
        self.ended.append(value)
        return value

    def open(self) -> None:
        self._open.set()


async def spin(passes: int = 10) -> None:
    """Wait for some passes of the loop."""
    for _ in range(passes):
        await asyncio.sleep(0)


# -- submitting ---------------------------------------------------------------------------------------------------------


async def test_submit_returns_a_task_that_is_awaited_for_the_result() -> None:
    async with AsyncPool(2) as pool:
        task = await pool.submit(double, 21)
        assert isinstance(task, AsyncTask)
        assert asyncio.isfuture(task)
        assert await task == 42
        assert task.done() and task.result() == 42


async def test_run_submits_and_waits_in_one() -> None:
    async with AsyncPool(2) as pool:
        assert await pool.run(double, 4) == 8


async def test_keyword_arguments_reach_the_function() -> None:
    async def both(a: int, *, timeout: int) -> tuple[int, int]:
        return a, timeout

    async with AsyncPool(2) as pool:
        assert await pool.run(both, 1, timeout=2) == (1, 2)
        assert await pool.options(timeout=3600).run(both, 1, timeout=3) == (1, 3)


async def test_never_more_than_max_workers_run_at_once() -> None:
    gate = Gate()
    async with AsyncPool(3) as pool:
        tasks = await pool.submit_many(gate, [(each,) for each in range(10)])
        await auntil(lambda: gate.inside == 3)
        await spin()
        assert gate.begun == [0, 1, 2]
        gate.open()
        assert await asyncio.gather(*tasks) == list(range(10))
    assert gate.most == 3


async def test_an_error_is_raised_as_it_is_and_the_pool_goes_on() -> None:
    async with AsyncPool(1) as pool:
        error = KeyError("mine")
        with pytest.raises(KeyError) as caught:
            await pool.run(fail, error)
        assert caught.value is error
        assert await pool.run(echo, 1) == 1
        assert pool.statistics().failed == 1


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseException("odd")])
async def test_a_base_exception_reaches_whoever_awaits_and_kills_nothing(error: BaseException) -> None:
    async with AsyncPool(1) as pool:
        task = await pool.submit(fail, error)
        after = await pool.submit(echo, "alive")
        with pytest.raises(type(error)):
            await task
        assert await after == "alive"
        with pytest.raises(type(error)):
            await pool.map(fail, [error])
    assert pool.statistics().running == pool.statistics().queued == 0


async def test_a_stop_iteration_becomes_a_runtime_error() -> None:
    async with AsyncPool(1) as pool:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await pool.run(lambda: next(iter(())))


async def test_what_cannot_be_called_is_refused() -> None:
    async with AsyncPool(1) as pool:
        with pytest.raises(TypeError, match="fn must be callable"):
            await pool.submit(42)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="fn must be callable"):
            pool.map(None, [1])  # type: ignore[call-overload]


async def test_bad_arguments_are_refused_at_the_door() -> None:
    for bad, kind in (
        ({"max_workers": 0}, ValueError),
        ({"max_workers": 1.5}, TypeError),
        ({"max_queued": -1}, ValueError),
        ({"when_full": "explode"}, ValueError),
        ({"when_full": "raise"}, ValueError),  # without max_queued it can never apply
        ({"order": "random"}, ValueError),
        ({"context": "mine"}, ValueError),
        ({"on_event": 3}, TypeError),
        ({"threads": 3}, TypeError),
    ):
        with pytest.raises(kind):
            AsyncPool(**bad)
    with ThreadPool(1, max_queued=1) as bounded, pytest.raises(ValueError, match="could block the loop"):
        AsyncPool(threads=bounded)
    async with AsyncPool(1) as pool:
        for wait in (pool.drain, lambda timeout: pool.shutdown(timeout=timeout), pool.group().wait):
            for timeout, error in (("x", TypeError), (-1, ValueError), (float("inf"), ValueError)):
                with pytest.raises(error, match="timeout must be"):
                    await wait(timeout)  # type: ignore[arg-type]


async def test_wrong_arguments_of_the_call_are_the_tasks_error() -> None:
    async with AsyncPool(1) as pool:
        task = await pool.submit(echo)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="missing 1 required"):
            await task


async def test_try_submit_answers_none_when_full() -> None:
    gate = Gate()
    async with AsyncPool(1, max_queued=1) as pool:
        first = pool.try_submit(gate, 1)
        second = pool.try_submit(gate, 2)
        assert first is not None and second is not None
        assert pool.try_submit(gate, 3) is None
        assert pool.statistics().rejected == 1
        gate.open()
        assert [await first, await second] == [1, 2]


async def test_the_error_of_go_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncPool(1, name="mill") as pool:
        with caplog.at_level(logging.ERROR, "millpond"):
            await pool.go(fail, ValueError("lost?"))
            await pool.drain()
    [record] = caplog.records
    assert "'mill'" in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


async def test_the_error_of_go_reaches_on_event_once_instead_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    async with AsyncPool(1, on_event=events.append) as pool:
        await pool.go(fail, ValueError("seen"))
    failures = [event for event in events if event.name == "task_failed"]
    assert len(failures) == 1 and isinstance(failures[0].data["error"], ValueError)
    assert not caplog.records


async def test_an_error_that_nobody_awaits_is_reported_by_asyncio() -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    async with AsyncPool(1) as pool:
        await pool.submit(fail, ValueError("unseen"))
    gc.collect()
    loop.set_exception_handler(before)
    assert ["never retrieved" in each["message"] for each in complaints] == [True]


# -- what a task body sees ------------------------------------------------------------------------------------------------


async def test_each_task_is_an_asyncio_task_of_its_own() -> None:
    async def me() -> Any:
        first = asyncio.current_task()
        await asyncio.sleep(0)
        assert asyncio.current_task() is first
        return first

    async with AsyncPool(1, name="mill") as pool:
        one, two = await pool.run(me), await pool.run(me)
    assert one is not two and one is not asyncio.current_task()
    assert one.get_name() == "mill"


@pytest.mark.parametrize("suspends", [True, False])
async def test_asyncio_timeout_works_inside_a_task(suspends: bool) -> None:
    async def hasty() -> str:
        if suspends:
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(3600)
        except TimeoutError:
            task = asyncio.current_task()
            assert task is not None and not task.cancelling()
            return "late"
        return "in time"

    async with AsyncPool(1) as pool:
        assert await pool.run(hasty) == "late"
        assert await pool.map(hasty_of(hasty), [1, 2]) == ["late", "late"]


def hasty_of(fn: Callable[[], Awaitable[str]]) -> Callable[[int], Awaitable[str]]:
    async def call(_: int) -> str:
        return await fn()

    return call


mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


async def test_a_task_runs_in_a_copy_of_its_submitters_context() -> None:
    async def look_and_change() -> str:
        before = mark.get()
        mark.set("changed inside")
        await asyncio.sleep(0)
        assert mark.get() == "changed inside"
        return before

    async with AsyncPool(1) as pool:
        assert await pool.run(look_and_change) == "none"
        mark.set("outer")
        task = await pool.submit(look_and_change)
        mark.set("later")
        assert await task == "outer"
        assert mark.get() == "later"
        assert await pool.run(mark.get) == "later"  # a plain function, in a thread
        assert await pool.map(hasty_of(look_and_change), [1]) == ["later"]
        assert mark.get() == "later"


async def test_without_context_a_task_does_not_see_its_submitters() -> None:
    async def look() -> str:
        return mark.get()

    async with AsyncPool(1, context=None) as pool:
        mark.set("outer")
        assert await pool.run(look) == "none"


# -- plain functions --------------------------------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread_and_never_blocks_the_loop() -> None:
    released = threading.Event()
    async with AsyncPool(2) as pool:
        task = await pool.submit(lambda: released.wait(HANG) and threading.current_thread())
        assert await pool.run(echo, 1) == 1
        released.set()
        assert await task is not threading.current_thread()


async def test_an_awaitable_that_a_plain_function_returns_is_awaited() -> None:
    async with AsyncPool(2) as pool:
        assert await pool.run(lambda value: double(value), 3) == 6
        assert await pool.map(lambda value: double(value), [1, 2]) == [2, 4]


async def test_every_kind_of_coroutine_function_runs_in_the_loop() -> None:
    class Callable_:
        async def __call__(self, value: int) -> threading.Thread:
            return threading.current_thread()

        async def method(self, value: int) -> threading.Thread:
            return threading.current_thread()

    async def plain(value: int, other: int = 0) -> threading.Thread:
        return threading.current_thread()

    async with AsyncPool(2) as pool:
        for fn in (plain, Callable_(), Callable_().method, functools.partial(plain, other=2)):
            assert await pool.run(fn, 1) is threading.current_thread()
        assert not [each for each in threading.enumerate() if each.name.startswith(f"{pool.name}-threads")]


async def test_the_given_threads_are_used_and_left_open() -> None:
    with ThreadPool(1, name="given") as threads:
        async with AsyncPool(2, threads=threads) as pool:
            assert (await pool.run(threading.current_thread)).name.startswith("given")
        assert threads.submit(int, "3").result() == 3


async def test_a_cancelled_plain_function_is_asked_and_waited_for() -> None:
    begun, seen = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        if current_token().wait(HANG):
            seen.set()
        return "thrown away"

    async with AsyncPool(1) as pool:
        task = await pool.submit(work)
        await auntil(begun.is_set)
        assert task.cancel()
        assert not task.done()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen.is_set()
        assert pool.statistics().cancelled == 1


async def test_a_timed_out_plain_function_is_given_up() -> None:
    released = threading.Event()
    async with AsyncPool(1) as pool:
        with pytest.raises(TaskTimeout, match="timeout of 0.02 s"):
            await pool.options(timeout=0.02).run(released.wait, HANG)
        assert await pool.run(echo, "free again") == "free again"
        released.set()


async def test_a_timeout_covers_the_awaitable_that_a_plain_function_returns() -> None:
    async with AsyncPool(1) as pool:
        with pytest.raises(TaskTimeout):
            await pool.options(timeout=0.05).run(lambda: asyncio.sleep(3600))


# -- options ------------------------------------------------------------------------------------------------------------------


async def test_a_timeout_cancels_the_coroutine() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool:
        with pytest.raises(TaskTimeout, match="timeout of 0.01 s"):
            await pool.options(timeout=0.01).run(gate)
        assert gate.inside == 0
        assert await pool.options(timeout=3600).run(echo, 1) == 1


async def test_a_time_out_error_of_the_function_itself_stays_what_it_is() -> None:
    async with AsyncPool(1) as pool:
        with pytest.raises(TimeoutError) as caught:
            await pool.options(timeout=3600).run(fail, TimeoutError("mine"))
        assert not isinstance(caught.value, TaskTimeout)


async def test_a_timeout_counts_from_the_start_and_not_from_the_submit() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool:
        first = await pool.submit(gate)
        second = await pool.options(timeout=0.01).submit(echo, 1)  # which ends in its first step
        await asyncio.sleep(0.02)
        assert not second.done()
        gate.open()
        await first
        assert await second == 1


async def test_a_token_cancels_queued_and_running_tasks() -> None:
    gate = Gate()
    token = CancelToken()
    async with AsyncPool(1) as pool:
        tasks = await pool.options(cancel=token).submit_many(gate, [(1,), (2,)])
        other = await pool.submit(echo, "untouched")
        await auntil(lambda: gate.inside == 1)
        token.cancel()
        assert tasks[1].cancelled()
        assert await other == "untouched"
        assert tasks[0].cancelled()
        assert gate.inside == 0
        late = await pool.options(cancel=token).submit(gate, 3)
        assert late.cancelled()
    assert gate.begun == [1]
    assert pool.statistics().cancelled == 3


async def test_a_token_may_be_cancelled_in_another_thread() -> None:
    gate = Gate()
    token = CancelToken()
    async with AsyncPool(1) as pool:
        task = await pool.options(cancel=token).submit(gate, 1)
        await auntil(lambda: gate.inside == 1)
        await asyncio.get_running_loop().run_in_executor(None, token.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_tasks_of_one_key_run_one_at_a_time_in_order() -> None:
    running: set[str] = set()
    order: dict[str, list[int]] = {"a": [], "b": []}

    async def work(key: str, number: int) -> None:
        assert key not in running
        running.add(key)
        await spin(number % 3)
        order[key].append(number)
        running.discard(key)

    async with AsyncPool(4) as pool:
        for number in range(10):
            for key in "ab":
                await pool.options(key=key).submit(work, key, number)
    assert order == {"a": list(range(10)), "b": list(range(10))}


async def test_a_cancelled_or_failed_task_lets_the_next_of_its_key_run() -> None:
    gate = Gate()
    async with AsyncPool(2) as pool:
        keyed = pool.options(key="k")
        first, second, third = [await keyed.submit(gate, each) for each in (1, 2, 3)]
        await auntil(lambda: gate.inside == 1)
        assert second.cancel()
        assert first.cancel()
        await auntil(lambda: gate.begun == [1, 3])
        gate.open()
        assert await third == 3
        with pytest.raises(KeyError):
            await keyed.run(fail, KeyError())
        assert await keyed.run(echo, 4) == 4
    assert pool.statistics().queued == 0


async def test_higher_priorities_run_first() -> None:
    for order in ("priority", Priority(levels=3)):
        gate, begun = Gate(), list[int]()

        async def note(value: int, begun: list[int] = begun) -> None:
            begun.append(value)

        async with AsyncPool(1, order=order) as pool:
            await pool.submit(gate)
            await auntil(lambda: gate.inside == 1)  # noqa: B023
            for priority in (0, 2, 1, 2, 0):
                await pool.options(priority=priority).submit(note, priority)
            gate.open()
        assert begun == [2, 2, 1, 0, 0]
    async with AsyncPool(1) as pool:
        with pytest.raises(ValueError, match="order='priority'"):
            pool.options(priority=1)


async def test_lifo_runs_the_freshest_first() -> None:
    gate, begun = Gate(), []

    async def note(value: int) -> None:
        begun.append(value)

    async with AsyncPool(1, order="lifo") as pool:
        await pool.submit(gate)
        await auntil(lambda: gate.inside == 1)
        await pool.submit_many(note, [(1,), (2,), (3,)])
        gate.open()
    assert begun == [3, 2, 1]


# -- the bound ----------------------------------------------------------------------------------------------------------------


async def test_a_full_pool_makes_submitters_wait_in_order() -> None:
    gate, entered = Gate(), list[int]()

    async def submitter(number: int) -> None:
        await pool.submit(gate, number)
        entered.append(number)

    async with AsyncPool(1, max_queued=1) as pool:
        async with asyncio.TaskGroup() as submitters:
            for number in range(5):
                submitters.create_task(submitter(number))
            await auntil(lambda: gate.inside == 1)
            await spin()
            assert entered == [0, 1]
            assert pool.statistics().waiting_submitters == 3
            gate.open()
        assert entered == [0, 1, 2, 3, 4]
    assert gate.ended == [0, 1, 2, 3, 4]


async def test_a_cancelled_submitter_leaves_the_line_and_submits_nothing() -> None:
    gate = Gate()
    async with AsyncPool(1, max_queued=0) as pool:
        await pool.submit(gate, 0)
        waiting = [asyncio.ensure_future(pool.submit(gate, number)) for number in (1, 2)]
        await spin()
        waiting[0].cancel()
        await spin()
        assert pool.statistics().waiting_submitters == 1
        gate.open()
        await waiting[1]
    assert gate.ended == [0, 2]


async def test_block_gives_up_after_its_timeout_and_bounds_the_waiters() -> None:
    gate = Gate()
    async with AsyncPool(1, max_queued=0, when_full=Block(timeout=0.01)) as pool:
        await pool.submit(gate)
        with pytest.raises(PoolFull, match=r"no room came within 0.01 s"):
            await pool.submit(gate)
        assert pool.statistics().rejected == 1
        assert pool.statistics().waiting_submitters == 0
        gate.open()
    gate = Gate()
    async with AsyncPool(1, max_queued=0, when_full=Block(timeout=3600, max_waiting=1)) as pool:
        await pool.submit(gate)
        first = asyncio.ensure_future(pool.submit(gate))
        await spin()
        with pytest.raises(PoolFull, match="1 submitters wait already"):
            await pool.submit(gate)
        assert pool.statistics().rejected == 1
        gate.open()
        await first


async def test_raise_drop_and_drop_oldest() -> None:
    for policy in ("raise", "drop", "drop_oldest", lambda statistics, task: "drop"):
        gate = Gate()
        async with AsyncPool(1, max_queued=1, when_full=policy) as pool:
            running = await pool.submit(gate, "running")
            await auntil(lambda: gate.inside == 1)  # noqa: B023
            queued = await pool.submit(gate, "queued")
            if policy == "raise":
                with pytest.raises(PoolFull, match="1 workers and 1 queued"):
                    await pool.submit(gate, "new")
            else:
                new = await pool.submit(gate, "new")
                assert new.cancelled() == (policy != "drop_oldest")
                assert queued.cancelled() == (policy == "drop_oldest")
            assert pool.statistics().rejected == 1
            gate.open()
            assert await running == "running"
        assert gate.ended == ["running", "new" if policy == "drop_oldest" else "queued"]


async def test_caller_runs_makes_the_submitter_wait_for_its_own_task() -> None:
    gate = Gate()
    async with AsyncPool(1, max_queued=0, when_full="caller_runs") as pool:
        await pool.submit(gate, 1)
        await spin()
        submitter = asyncio.ensure_future(pool.submit(gate, 2))
        await auntil(lambda: gate.inside == 2)
        assert not submitter.done()
        gate.open()
        assert (await submitter).result() == 2


async def test_a_policy_with_a_wrong_answer_is_told_so() -> None:
    gate = Gate()
    async with AsyncPool(1, max_queued=0, when_full=lambda statistics, task: "maybe") as pool:  # type: ignore[arg-type,return-value]
        await pool.submit(gate)
        with pytest.raises(ValueError, match="'maybe'"):
            await pool.submit(gate)
        gate.open()


async def test_a_task_that_submits_to_its_own_full_pool_does_not_wait_for_itself() -> None:
    async def parent() -> int:
        return await (await pool.submit(double, 4))

    async with AsyncPool(1, max_queued=0) as pool, asyncio.timeout(HANG):
        assert await pool.run(parent) == 8


async def test_a_token_cancelled_while_its_task_waits_for_room_lets_the_submitter_go() -> None:
    gate, token = Gate(), CancelToken()
    async with AsyncPool(1, max_queued=0) as pool:
        await pool.submit(gate, 1)
        submitter = asyncio.ensure_future(pool.options(cancel=token).submit(gate, 2))
        await spin()
        token.cancel()
        assert (await submitter).cancelled()
        assert pool.statistics().waiting_submitters == 0
        gate.open()
    assert gate.ended == [1]


# -- nesting ------------------------------------------------------------------------------------------------------------------


async def test_tasks_that_wait_for_tasks_of_their_pool_never_deadlock() -> None:
    async def deep(depth: int) -> int:
        return 0 if not depth else 1 + await pool.run(deep, depth - 1)

    async def wide(depth: int) -> int:
        return 1 if not depth else sum(await pool.map(wide, [depth - 1] * 3))

    async def grouped(depth: int) -> int:
        if not depth:
            return 1
        async with pool.group() as group:
            for _ in range(3):
                await group.submit(grouped, depth - 1)
        return sum(await group.results())

    async def lazy(depth: int) -> int:
        if not depth:
            return 1
        return sum([each async for each in pool.map(lazy, [depth - 1] * 3, buffersize=2, ordered=bool(depth % 2))])

    async with AsyncPool(1) as pool, asyncio.timeout(HANG):
        assert await pool.run(deep, 100) == 100
        assert await pool.run(wide, 3) == 27
        assert await pool.run(grouped, 3) == 27
        assert await pool.run(lazy, 3) == 27
    now = pool.statistics()
    assert now.running == now.queued == 0


async def test_a_keyed_task_that_waits_behind_others_of_its_key_is_reached() -> None:
    async def parent() -> int:
        keyed = pool.options(key="k")
        await keyed.submit(double, 1)
        return await (await keyed.submit(double, 2))

    async with AsyncPool(1) as pool, asyncio.timeout(HANG):
        assert await pool.run(parent) == 4


async def test_awaiting_a_task_of_ones_own_key_is_an_error_and_not_a_deadlock() -> None:
    async def parent() -> int:
        return await pool.options(key="k").run(double, 1)

    async with AsyncPool(2) as pool, asyncio.timeout(HANG):
        with pytest.raises(RuntimeError, match="can start only after it"):
            await pool.options(key="k").run(parent)


async def test_drain_and_shutdown_inside_a_task_are_refused() -> None:
    async with AsyncPool(2) as pool:
        for verb in (pool.drain, pool.shutdown):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await pool.run(verb)


# -- groups and subpools --------------------------------------------------------------------------------------------------------


async def test_a_group_waits_for_its_tasks_and_gives_results_in_order() -> None:
    async with AsyncPool(2) as pool:
        async with pool.group() as group:
            for each in range(5):
                await group.submit(double, each)
        assert await group.results() == [0, 2, 4, 6, 8]
        assert len(group) == 5 and "5 done" in repr(group)


async def test_the_first_error_of_a_group_cancels_the_others_in_line_and_running() -> None:
    gate = Gate()
    error = KeyError("first")
    async with AsyncPool(2) as pool:
        with pytest.raises(KeyError) as caught:
            async with pool.group() as group:
                running = await group.submit(gate, 1)
                await group.submit(fail, error)
                queued = [await group.submit(gate, each) for each in (2, 3)]
        assert caught.value is error
        assert running.cancelled() and all(each.cancelled() for each in queued)
        assert gate.inside == 0 and not gate.ended
        with pytest.raises(RuntimeError, match="this group has ended"):
            await group.submit(gate)
        assert "failed" in repr(group)


async def test_an_error_in_the_block_of_a_group_cancels_its_tasks_and_waits_for_them() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool:
        with pytest.raises(ZeroDivisionError):
            async with pool.group() as group:
                await group.submit(gate, 1)
                await auntil(lambda: gate.inside == 1)
                _ = 1 / 0
        assert gate.inside == 0
        assert pool.statistics().running == 0


async def test_group_wait_answers_false_at_its_timeout_and_cancels_nothing() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool, pool.group() as group:
        task = await group.submit(gate, 1)
        assert not await group.wait(0.01)
        with pytest.raises(TimeoutError):
            await group.results(0.01)
        assert not task.done()
        gate.open()
        assert await group.results() == [1]


async def test_a_subpool_runs_its_share_within_the_parents_limit() -> None:
    gate = Gate()
    async with AsyncPool(3) as pool:
        small = pool.subpool(2, name="small")
        tasks = await small.submit_many(gate, [(each,) for each in range(4)])
        await auntil(lambda: gate.inside == 2)
        await pool.submit_many(gate, [("p",), ("q",)])
        await auntil(lambda: gate.inside == 3)
        await spin()
        assert gate.begun == [0, 1, "p"]
        assert small.statistics().running == 2 and small.statistics().queued == 2
        assert pool.statistics().running == 3 and pool.statistics().queued == 3
        tasks[3].cancel()
        gate.open()
        await small.drain()
        assert await small.map(double, range(5)) == [0, 2, 4, 6, 8]
        assert small.statistics().completed == 8 and small.statistics().cancelled == 1
    assert gate.most == 3
    assert pool.statistics().completed == 10
    with pytest.raises(PoolClosed, match=pool.name):
        await small.submit(echo, 1)


async def test_a_subpool_can_be_shut_down_alone() -> None:
    async with AsyncPool(2) as pool:
        small = pool.subpool(1)
        async with small:
            await small.submit(double, 1)
        with pytest.raises(PoolClosed):
            await small.submit(double, 1)
        assert await pool.run(double, 1) == 2


async def test_leaving_a_pool_by_an_error_cancels_what_waits_in_its_subpools() -> None:
    gate = Gate()
    with pytest.raises(ZeroDivisionError):
        async with AsyncPool(1) as pool:
            small = pool.subpool(1).subpool(1)
            tasks = await small.submit_many(gate, [(each,) for each in range(3)])
            await auntil(lambda: gate.inside == 1)
            _ = 1 / 0
    assert all(task.cancelled() for task in tasks)
    assert pool.statistics().cancelled == small.statistics().cancelled == 3


# -- managing -----------------------------------------------------------------------------------------------------------------


async def test_resize_up_starts_more_and_resize_down_lets_tasks_end() -> None:
    gates = [Gate() for _ in range(6)]
    async with AsyncPool(1) as pool:
        for gate in gates:
            await pool.submit(gate)
        await auntil(lambda: gates[0].inside == 1)
        pool.resize(3)
        await auntil(lambda: gates[2].inside == 1)
        assert pool.statistics().max_workers == 3
        pool.resize(1)
        gates[0].open()
        gates[1].open()
        await auntil(lambda: gates[1].inside == 0)
        await spin()
        assert not gates[3].begun
        for gate in gates:
            gate.open()
    assert pool.statistics().completed == 6


async def test_pause_starts_nothing_and_resume_goes_on() -> None:
    async with AsyncPool(2) as pool:
        pool.pause()
        task = await pool.submit(echo, 1)
        results = pool.map(echo, range(3))
        await spin()
        assert not task.done()
        assert pool.statistics().state == "paused" and pool.statistics().queued == 4
        pool.resume()
        assert await task == 1
        assert await results == [0, 1, 2]


async def test_purge_cancels_what_has_not_started() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool:
        running = await pool.submit(gate, 1)
        await auntil(lambda: gate.inside == 1)
        plain = await pool.submit_many(gate, [(2,), (3,)])
        keyed = await pool.options(key="k").submit_many(gate, [(4,), (5,)])
        assert pool.purge() == 4
        assert all(task.cancelled() for task in (*plain, *keyed))
        gate.open()
        assert await running == 1
        assert await pool.options(key="k").run(echo, 6) == 6


async def test_drain_waits_for_everything_and_leaves_the_pool_open() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool:
        await pool.submit(gate, 1)
        assert not await pool.drain(0.01)
        gate.open()
        assert await pool.drain()
        assert gate.ended == [1]
        assert await pool.run(echo, 2) == 2


async def test_shutdown_finishes_what_is_queued_and_refuses_more() -> None:
    gate = Gate()
    pool = AsyncPool(1, max_queued=1)
    tasks = [await pool.submit(gate, each) for each in (1, 2)]
    refused = asyncio.ensure_future(pool.submit(gate, 3))
    await spin()
    assert not await pool.shutdown(timeout=0.01)
    with pytest.raises(PoolClosed, match="restart"):
        await refused
    for verb in (pool.submit, pool.run, pool.go):
        with pytest.raises(PoolClosed):
            await verb(echo, 1)
    with pytest.raises(PoolClosed):
        pool.map(echo, [1])
    gate.open()
    assert await pool.shutdown()
    assert [task.result() for task in tasks] == [1, 2]
    assert pool.statistics().state == "closed"


async def test_shutdown_can_cancel_queued_and_running_tasks() -> None:
    gate = Gate()
    pool = AsyncPool(1)
    tasks = await pool.submit_many(gate, [(1,), (2,)])
    await auntil(lambda: gate.inside == 1)
    assert await pool.shutdown(cancel_futures=True)
    assert all(task.cancelled() for task in tasks) and gate.inside == 0


async def test_a_closed_pool_can_be_restarted() -> None:
    pool = AsyncPool(1)
    small = pool.subpool(1)
    assert await pool.run(threading.get_ident) != threading.get_ident()
    await pool.shutdown()
    await pool.restart()
    async with pool:
        assert await small.run(double, 2) == 4
        assert await pool.run(threading.get_ident) != threading.get_ident()


async def test_many_cancelled_tasks_are_swept_out_of_the_line() -> None:
    gate = Gate()
    for order in ("fifo", "lifo", "priority", Priority(levels=2)):
        async with AsyncPool(1, order=order) as pool:
            await pool.submit(gate)
            await spin()
            tasks = await pool.submit_many(echo, [(each,) for each in range(1000)])
            for task in tasks[:-10]:
                task.cancel()
            left = [weakref.ref(task) for task in tasks]
            del tasks[:-10], task
            gc.collect()
            assert sum(each() is not None for each in left) < 200
            gate.open()
            assert await asyncio.gather(*tasks) == list(range(990, 1000))


async def test_the_counts_add_up() -> None:
    async with AsyncPool(2, name="mill") as pool:
        await pool.map(echo, range(10))
        await pool.submit_many(double, [(1,), (2,)])
        (await pool.submit(echo, 1)).cancel()
        with pytest.raises(KeyError):
            await pool.run(fail, KeyError())
    now = pool.statistics()
    assert (now.kind, now.completed, now.failed, now.cancelled, now.submitted) == ("asyncio", 13, 1, 1, 14)
    assert now.largest == 2
    assert repr(pool) == "<AsyncPool 'mill' 0/2 busy, 0 queued, 13 done (1 failed), closed>"
    assert "AsyncPool mill" in pool._repr_html_()


async def test_tasks_and_options_show_what_they_are() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool:
        task = await pool.submit(gate)
        assert "queued" in repr(task)
        await spin()
        assert "running" in repr(task) and task.running()
        gate.open()
        await task
        assert "returned" in repr(task)
        failed = await pool.submit(fail, KeyError())
        with pytest.raises(KeyError):
            await failed
        assert "raised KeyError" in repr(failed)
        assert "timeout=3" in repr(pool.options(timeout=3))


async def test_events_tell_what_happens() -> None:
    events: list[Event] = []
    gate = Gate()
    async with AsyncPool(1, max_queued=0, when_full="drop", name="mill", on_event=events.append) as pool:
        await pool.run(double, 1)
        task = await pool.submit(gate)
        await spin()
        await pool.submit(gate)
        task.cancel()
        await pool.drain()
        assert await pool.map(echo, [1]) == [1]
    assert [event.name for event in events] == [
        "task_started",
        "task_finished",
        "task_started",
        "task_rejected",
        "task_cancelled",
        "task_cancelled",
        "task_started",
        "task_finished",
        "pool_closed",
    ]
    assert events[0].pool == "mill" and events[0].data["function"] == "double"
    assert events[0].data["waited"] >= 0 and events[1].data["seconds"] >= 0


async def test_how_long_tasks_wait_is_measured() -> None:
    events: list[Event] = []
    gate = Gate()
    async with AsyncPool(1, on_event=events.append) as pool:
        assert pool.statistics().queueing_delay == 0.0
        await pool.submit(gate)
        task = await pool.submit(echo, 1)
        first = pool.statistics().queueing_delay
        await asyncio.sleep(0.01)
        waiting = pool.statistics().queueing_delay
        assert first is not None and waiting is not None and waiting > first + 0.009
        gate.open()
        await task
        assert [event.data["waited"] for event in events if event.name == "task_started"][1] > 0.009
        await pool.drain()
        assert pool.statistics().queueing_delay == 0.0
        assert pool.statistics().submitted == 2


async def test_what_waits_in_the_parents_queue_is_purged_with_its_subpool() -> None:
    gate = Gate()
    async with AsyncPool(1) as pool:
        small = pool.subpool(2)
        running = await pool.submit(gate)
        tasks = await small.submit_many(echo, [(each,) for each in range(4)])
        await spin()
        assert small.purge() == 4
        assert all(task.cancelled() for task in tasks)
        gate.open()
        await running
        assert small.statistics().cancelled == 4


async def test_a_function_in_a_thread_sees_that_its_group_failed() -> None:
    begun = threading.Event()

    def plain() -> str | None:
        begun.set()
        assert current_token().wait(60)
        return current_token().reason

    async def failing() -> None:
        while not begun.is_set():
            await asyncio.sleep(0)
        raise KeyError

    async with AsyncPool(2) as pool:
        with pytest.raises(KeyError):
            async with pool.group() as group:
                task = await group.submit(plain)
                await group.submit(failing)
        assert task.cancelled()


# -- loops ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
async def test_a_loop_with_eager_tasks_works_too() -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    try:
        async with AsyncPool(3) as pool:
            assert await asyncio.gather(*(pool.run(double, each) for each in range(20))) == [2 * n for n in range(20)]
            assert await pool.map(echo, range(100)) == list(range(100))
            task = await pool.submit(Gate())
            await spin()
            task.cancel()
    finally:
        loop.set_task_factory(None)


async def test_a_loop_with_a_task_factory_of_its_own_works_too() -> None:
    loop = asyncio.get_running_loop()
    made = []

    def factory(loop: asyncio.AbstractEventLoop, body: Any, **kwargs: Any) -> Any:
        made.append(body)
        return asyncio.Task(body, loop=loop, **kwargs)

    loop.set_task_factory(factory)
    try:
        async with AsyncPool(3) as pool:
            assert await pool.run(double, 1) == 2
            assert made
            task = await pool.submit(double, 1)
            await asyncio.sleep(0)
            task.cancel()  # it is running, but has not taken its first step
            with pytest.raises(asyncio.CancelledError):
                await task
        assert pool.statistics().cancelled == 1
    finally:
        loop.set_task_factory(None)


async def test_a_pool_that_is_forgotten_at_rest_is_freed_at_once() -> None:
    class Listener:
        def __call__(self, event: Event) -> None: ...

    listener = Listener()
    pool = AsyncPool(3, on_event=listener)
    assert await pool.run(double, 1) == 2
    assert await pool.map(double, range(3)) == [0, 2, 4]
    gone = weakref.ref(listener)  # all parts of the pool hold it
    del pool, listener
    gc.collect()
    assert gone() is None


async def test_quick_tasks_do_not_keep_the_loop_from_breathing() -> None:
    since, most, running = 0, 0, True

    async def pulse() -> None:
        nonlocal since
        while running:
            since = 0
            await asyncio.sleep(0)

    async def busy(_: int) -> None:
        nonlocal since, most
        since += 1
        most = max(most, since)
        end = time.perf_counter() + 0.0005
        while time.perf_counter() < end:
            pass

    heart = asyncio.ensure_future(pulse())
    await asyncio.sleep(0)
    async with AsyncPool(50) as pool:
        await pool.map(busy, range(400))
        await pool.submit_many(busy, [(each,) for each in range(200)])
    running = False
    await heart
    assert most <= 100, "so many ran while the loop could do nothing else"


async def test_a_task_factory_that_raises_fails_the_call_and_costs_no_place() -> None:
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, body: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    async with AsyncPool(1) as pool:
        task = await pool.submit(double, 1)
        results = pool.map(double, [1, 2])
        loop.set_task_factory(factory)
        await spin()
        loop.set_task_factory(None)
        with pytest.raises(ZeroDivisionError):
            await task
        with pytest.raises(ZeroDivisionError):
            await results
        assert await pool.run(double, 1) == 2

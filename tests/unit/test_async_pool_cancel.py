"""`AsyncPool` and cancellation: at every await, in every stage, and in storms; nothing is lost and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import TaskTimeout
from millpond.local import CancelToken
from millpond.local.coroutines._pool import AsyncPool
from millpond.local.coroutines._task import AsyncTask
from waiting import HANG, auntil

everything_async = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    complaints: list[dict[str, Any]] = []

    def complain(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # Whoever is cancelled in the moment when its call fails does not see the error: asyncio reports it then.
        if not isinstance(context.get("exception"), KeyError):
            complaints.append(context)

    asyncio.get_running_loop().set_exception_handler(complain)
    before = asyncio.all_tasks()
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task not in before and task is not asyncio.current_task()]
    assert not complaints


@pytest_asyncio.fixture
async def clean() -> AsyncIterator[None]:
    async with nothing_left():
        yield


async def spin(passes: int = 10) -> None:
    for _ in range(passes):
        await asyncio.sleep(0)


def assert_at_rest(pool: AsyncPool) -> None:
    """Every count is back at zero, and none was lost."""
    now = pool.statistics()
    assert (now.running, now.queued, now.waiting_submitters) == (0, 0, 0)
    assert now.submitted == now.completed + now.cancelled


async def assert_every_place_is_free(pool: AsyncPool) -> None:
    """As many tasks as the pool has workers run at once: no place was lost."""
    most, door = pool.statistics().max_workers, asyncio.Event()
    tasks = [pool.try_submit(door.wait) for _ in range(most)]
    await auntil(lambda: pool.statistics().running == most)
    door.set()
    assert await asyncio.gather(*filter(None, tasks)) == [True] * most


class Body:
    """A call with many awaits that tells when it is inside."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.begun = 0

    async def __call__(self, passes: int = 4) -> int:
        self.begun += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await spin(passes)
            return passes
        finally:
            self.inside -= 1


async def run_it(pool: AsyncPool, body: Body) -> None:
    await pool.run(body)


async def submit_and_await(pool: AsyncPool, body: Body) -> None:
    task = await pool.submit(body)
    await task


async def run_behind_others(pool: AsyncPool, body: Body) -> None:
    async with pool.group() as group:
        for _ in range(5):
            await group.submit(body)


async def map_all(pool: AsyncPool, body: Body) -> None:
    await pool.map(body, range(6))


async def map_each(pool: AsyncPool, body: Body) -> None:
    async for _ in pool.map(body, range(6), ordered=False):
        await asyncio.sleep(0)


async def map_lazily(pool: AsyncPool, body: Body) -> None:
    async for _ in pool.map(body, range(6), buffersize=2):
        await asyncio.sleep(0)


async def map_async_source(pool: AsyncPool, body: Body) -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(6):
            await asyncio.sleep(0)
            yield number

    async for _ in pool.map(body, source(), buffersize=2):
        await asyncio.sleep(0)


async def keyed_and_timed(pool: AsyncPool, body: Body) -> None:
    optioned = pool.options(key="k", timeout=3600, cancel=CancelToken())
    async with contextlib.AsyncExitStack():
        await asyncio.gather(*(optioned.run(body) for _ in range(3)))


async def nested(pool: AsyncPool, body: Body) -> None:
    async def parent() -> None:
        await asyncio.gather(pool.run(body), pool.run(body))
        await pool.map(body, [1, 2])

    await pool.run(parent)


async def in_a_subpool(pool: AsyncPool, body: Body) -> None:
    small = pool.subpool(1)
    await asyncio.gather(*(small.run(body) for _ in range(3)))


async def many(pool: AsyncPool, body: Body) -> None:
    tasks = await pool.submit_many(body, [(2,)] * 8)
    await asyncio.gather(*tasks)


async def drained(pool: AsyncPool, body: Body) -> None:
    task = await pool.submit(body)
    try:
        await pool.drain()
    finally:
        task.cancel()


async def own_pool(pool: AsyncPool, body: Body) -> None:
    async with AsyncPool(2, max_queued=1) as mine:
        await asyncio.gather(*(mine.run(body) for _ in range(5)))


USES = [
    run_it,
    submit_and_await,
    run_behind_others,
    map_all,
    map_each,
    map_lazily,
    map_async_source,
    keyed_and_timed,
    nested,
    in_a_subpool,
    many,
    drained,
    own_pool,
]


@everything_async
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("bound", [None, 0, 2])
@pytest.mark.parametrize("use", USES)
async def test_a_caller_can_be_cancelled_at_every_await(
    use: Callable[[AsyncPool, Body], Awaitable[None]], bound: int | None, busy: bool, clean: None
) -> None:
    for steps in range(41):
        body, background = Body(), Body()
        pool = AsyncPool(2, max_queued=bound)
        others = [asyncio.ensure_future(pool.run(background, 3)) for _ in range(4 if busy else 0)]
        await spin(2)
        caller = asyncio.ensure_future(use(pool, body))
        await spin(steps)
        caller.cancel()
        cancelled = False
        try:
            await caller
        except asyncio.CancelledError:
            cancelled = True
        assert cancelled or steps > 3
        assert body.inside == 0, f"something ran on after the cancellation at step {steps}"
        assert [await other for other in others] == [3] * len(others)
        await pool.drain()
        assert_at_rest(pool)
        assert background.begun == len(others)
        assert await pool.run(body, 1) == 1
        await pool.shutdown()


@everything_async
@pytest.mark.parametrize("steps", range(31))
async def test_a_pool_left_by_cancellation_leaves_nothing_running(steps: int, clean: None) -> None:
    body = Body()
    pools = []

    async def use() -> None:
        async with AsyncPool(3, max_queued=4) as pool:
            pools.append(pool)
            small = pool.subpool(1)
            await pool.submit_many(body, [(5,)] * 4)
            await small.submit_many(body, [(5,)] * 3)
            pool.map(body, range(10))
            unread = pool.map(body, range(10), buffersize=2)
            await pool.options(key="k").submit_many(body, [(5,)] * 3)
            await anext(unread)

    caller = asyncio.ensure_future(use())
    await spin(steps)
    caller.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await caller
    assert body.inside == 0
    for pool in pools:
        assert_at_rest(pool)


@everything_async
async def test_a_pool_left_by_an_error_waits_for_what_refuses_to_go_even_when_cancelled_again(clean: None) -> None:
    released = asyncio.Event()
    begun = asyncio.Event()

    async def refuse() -> None:
        begun.set()
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()

    async def use() -> None:
        async with AsyncPool(1) as pool:
            await pool.submit(refuse)
            await begun.wait()
            raise ZeroDivisionError

    caller = asyncio.ensure_future(use())
    await begun.wait()
    await spin()
    for _ in range(3):
        caller.cancel()
        await spin()
        assert not caller.done()
    released.set()
    with pytest.raises(asyncio.CancelledError):
        await caller


@everything_async
async def test_a_queued_task_is_cancelled_at_once_and_never_runs(clean: None) -> None:
    body = Body()
    async with AsyncPool(1) as pool:
        first = await pool.submit(body)
        second = await pool.submit(body)
        assert second.cancel() and second.cancelled()
        assert not second.cancel()
        await first
        assert not first.cancel()
    assert body.begun == 1
    assert_at_rest(pool)


@everything_async
async def test_a_running_task_is_done_only_when_its_coroutine_has_ended(clean: None) -> None:
    cleaning = asyncio.Event()
    cleaned = False

    async def careful() -> None:
        nonlocal cleaned
        try:
            await asyncio.sleep(3600)
        finally:
            await cleaning.wait()
            cleaned = True

    async with AsyncPool(1) as pool:
        task = await pool.submit(careful)
        await spin()
        assert task.cancel("please")
        await spin()
        assert not task.done() and pool.statistics().running == 1
        cleaning.set()
        with pytest.raises(asyncio.CancelledError, match="please"):
            await task
        assert cleaned


@everything_async
async def test_a_coroutine_that_swallows_its_cancellation_keeps_its_result(clean: None) -> None:
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return "finished all the same"

    async with AsyncPool(1) as pool:
        task = await pool.submit(stubborn)
        await spin()
        task.cancel()
        assert await task == "finished all the same"
        assert await pool.options(timeout=0.01).run(stubborn) == "finished all the same"
    assert pool.statistics().completed == 2 and pool.statistics().cancelled == 0
    assert_at_rest(pool)


@everything_async
async def test_a_task_can_cancel_itself_by_its_handle_in_its_first_step(clean: None) -> None:
    handles: list[AsyncTask[None]] = []

    async def suicidal() -> None:
        handles[0].cancel()
        await asyncio.sleep(3600)

    async with AsyncPool(1) as pool:
        handles.append(await pool.submit(suicidal))
        with pytest.raises(asyncio.CancelledError):
            await handles[0]
        assert await pool.run(Body(), 1) == 1
    assert_at_rest(pool)


@everything_async
async def test_a_cancelled_error_of_the_body_itself_cancels_the_task_only(clean: None) -> None:
    async def broken() -> None:
        raise asyncio.CancelledError("mine")

    async with AsyncPool(1) as pool:
        task = await pool.submit(broken)
        with pytest.raises(asyncio.CancelledError, match="mine"):
            await task
        assert task.cancelled()
        assert await pool.run(Body(), 1) == 1


@everything_async
async def test_an_asyncio_task_cancelled_behind_the_pools_back_is_booked(clean: None) -> None:
    body = Body()
    async with AsyncPool(2, name="mill") as pool:
        for passes in range(4):
            task = await pool.submit(body, 10)
            await spin(passes)
            for each in asyncio.all_tasks():
                if each.get_name() == "mill":
                    each.cancel()
            if passes:
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await task
    assert_at_rest(pool)


@everything_async
async def test_a_waiter_that_is_cancelled_with_room_in_hand_takes_it_back(clean: None) -> None:
    body = Body()
    async with AsyncPool(1, max_queued=0) as pool:
        first = await pool.submit(body, 3)
        submitters = [asyncio.ensure_future(pool.submit(body)) for _ in range(3)]
        await spin(1)
        pool.resize(2)  # which hands a place to the first submitter, and it has not run yet
        assert pool.statistics().waiting_submitters == 2
        submitters[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitters[0]
        assert await (await submitters[1]) == 4
        assert await (await submitters[2]) == 4
        assert await first == 3
    assert body.inside == 0
    assert_at_rest(pool)


@everything_async
async def test_many_threads_may_cancel_tokens_at_once(clean: None) -> None:
    async with AsyncPool(5) as pool:
        tokens = [CancelToken() for _ in range(40)]
        tasks = [await pool.options(cancel=token).submit(asyncio.sleep, 3600) for token in tokens]
        await spin()
        threads = [threading.Thread(target=token.cancel) for token in tokens]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(HANG):
            await asyncio.wait(tasks)
        for thread in threads:
            thread.join()
        assert all(task.cancelled() for task in tasks)
    assert_at_rest(pool)


# -- storms -----------------------------------------------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 5)),
    st.tuples(st.just("keyed"), st.integers(0, 3)),
    st.tuples(st.just("timed"), st.integers(0, 5)),
    st.tuples(st.just("priority"), st.integers(0, 2)),
    st.tuples(st.just("small"), st.integers(0, 4)),
    st.tuples(st.just("token"), st.integers(0, 4)),
    st.tuples(st.just("fail"), st.integers(0, 3)),
    st.tuples(st.just("nest"), st.integers(0, 2)),
    st.tuples(st.just("map"), st.integers(0, 12)),
    st.tuples(st.just("lazy"), st.integers(0, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 60)),
    st.tuples(st.just("cancel token"), st.just(0)),
    st.tuples(st.just("resize"), st.integers(1, 5)),
    st.tuples(st.just("resize small"), st.integers(1, 3)),
    st.tuples(st.just("pause"), st.just(0)),
    st.tuples(st.just("resume"), st.just(0)),
    st.tuples(st.just("purge"), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 8)),
)


class Storm:
    """Carries out actions and watches the promises."""

    def __init__(self, bound: int | None, order: Any) -> None:
        self.order = order
        self.pool = AsyncPool(3, max_queued=bound, order=order)
        self.small = self.pool.subpool(2)
        self.limit = 3
        self.small_limit = 2
        self.active: dict[str, int] = {"all": 0, "small": 0}
        self.keys: set[int] = set()
        self.ran: dict[int, int] = {}
        self.number = 0
        self.token = CancelToken()
        self.callers: list[asyncio.Task[Any]] = []
        self.numbers: list[int] = []
        self.outcomes: dict[int, str] = {}

    async def body(self, number: int, passes: int, where: str = "all", key: int | None = None) -> int:
        self.ran[number] = self.ran.get(number, 0) + 1
        self.active["all"] += 1
        if where == "small":
            self.active["small"] += 1
            assert self.active["small"] <= self.small_limit
        if key is not None:
            assert key not in self.keys, "two tasks of one key ran at once"
            self.keys.add(key)
        if where != "nested":  # which runs in its parent's place, and a parent is not counted here
            assert self.active["all"] <= self.limit, "something started beyond the limit"
        try:
            await spin(passes)
            return number
        finally:
            self.active["all"] -= 1
            if where == "small":
                self.active["small"] -= 1
            self.keys.discard(-1 if key is None else key)

    async def failing(self, number: int, passes: int) -> None:
        await self.body(number, passes)
        raise KeyError(number)

    async def nesting(self, number: int, passes: int) -> int:
        self.ran[number] = self.ran.get(number, 0) + 1
        self.number += 1
        inner = self.number
        await self.pool.run(self.body, inner, passes, "nested")
        return number

    async def call(self, number: int, fn: Callable[..., Awaitable[Any]], *args: Any) -> None:
        try:
            value = await fn(*args)
        except asyncio.CancelledError:
            self.outcomes[number] = "cancelled"
        except (KeyError, TaskTimeout):
            self.outcomes[number] = "failed"
        else:
            assert value == number or isinstance(value, list)
            self.outcomes[number] = "returned"

    def start(self, number: int, fn: Callable[..., Awaitable[Any]], *args: Any) -> None:
        self.numbers.append(number)
        self.callers.append(asyncio.ensure_future(self.call(number, fn, *args)))

    async def mapped(self, numbers: list[int], lazy: bool) -> list[int]:
        async def each(number: int) -> int:
            return await self.body(number, number % 4)

        results = self.pool.map(each, numbers, buffersize=2 if lazy else None)
        seen = [value async for value in results] if lazy else await results
        assert seen == numbers
        return seen

    async def act(self, action: str, value: int) -> None:
        self.number += 1
        number, pool = self.number, self.pool
        if action == "submit":
            self.start(number, pool.run, self.body, number, value)
        elif action == "keyed":
            self.start(number, pool.options(key=value).run, self.body, number, 3, "all", value)
        elif action == "timed":
            self.start(number, pool.options(timeout=0.0001 if value == 5 else 3600).run, self.body, number, value)
        elif action == "priority":
            options = pool.options(priority=value) if self.order == "priority" else pool.options()
            self.start(number, options.run, self.body, number, 2)
        elif action == "small":
            self.start(number, self.small.run, self.body, number, value, "small")
        elif action == "token":
            self.start(number, pool.options(cancel=self.token).run, self.body, number, value)
        elif action == "fail":
            self.start(number, pool.run, self.failing, number, value)
        elif action == "nest":
            self.start(number, pool.run, self.nesting, number, value)
        elif action in ("map", "lazy"):
            numbers = list(range(number * 1000, number * 1000 + value))
            self.start(number, self.mapped, numbers, action == "lazy")
        elif action == "cancel" and self.callers:
            self.callers[value % len(self.callers)].cancel()
        elif action == "cancel token":
            self.token.cancel()
            self.token = CancelToken()
        else:
            await self.manage(action, value)

    async def manage(self, action: str, value: int) -> None:
        pool = self.pool
        if action == "resize":
            pool.resize(value)
            if value < self.limit:
                await asyncio.sleep(0)  # before 3.12, what has its place takes its first step a pass later
            self.limit = value
        elif action == "resize small":
            self.small.resize(value)
            if value < self.small_limit:
                await asyncio.sleep(0)
            self.small_limit = value
        elif action == "pause":
            pool.pause()
        elif action == "resume":
            pool.resume()
        elif action == "purge":
            pool.purge()
        elif action == "step":
            await spin(value)

    async def end(self) -> None:
        self.pool.resume()
        async with asyncio.timeout(HANG):
            await asyncio.gather(*self.callers, return_exceptions=True)
            await self.pool.drain()
        for caller in self.callers:
            if not caller.cancelled() and caller.exception() is not None:
                raise caller.exception()  # type: ignore[misc]
        for caller, number in zip(self.callers, self.numbers, strict=True):
            assert caller.cancelled() or number in self.outcomes, "a call was lost"
        assert all(times == 1 for times in self.ran.values()), "something ran twice"
        assert self.active == {"all": 0, "small": 0}
        assert_at_rest(self.pool)
        assert_at_rest(self.small)
        self.pool.resize(self.small_limit + 1)
        await assert_every_place_is_free(self.small)
        await assert_every_place_is_free(self.pool)
        await self.pool.shutdown()


async def storm(actions: list[tuple[str, int]], bound: int | None, order: Any) -> None:
    async with nothing_left():
        weather = Storm(bound, order)
        for action, value in actions:
            await weather.act(action, value)
        await weather.end()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, max_size=60), st.sampled_from([None, 0, 2]), st.sampled_from(["fifo", "lifo", "priority"]))
def test_in_a_storm_nothing_is_lost_or_run_twice_and_the_limit_holds(
    actions: list[tuple[str, int]], bound: int | None, order: Any
) -> None:
    asyncio.run(storm(actions, bound, order))

"""`AsyncPool.map`: order, laziness, errors in their place, and stopping without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from millpond.errors import PoolClosed, TaskTimeout
from millpond.local.coroutines._pool import AsyncPool
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


async def spin(passes: int = 10) -> None:
    for _ in range(passes):
        await asyncio.sleep(0)


async def count_to(end: int | None = None) -> AsyncIterator[int]:
    for number in itertools.count() if end is None else range(end):
        yield number


class Work:
    """Doubles numbers after some passes of the loop; tells what is going on; fails and waits where told."""

    def __init__(self, *, passes: int = 0, fails_at: int | None = None, waits_from: int | None = None) -> None:
        self.passes = passes
        self.fails_at = fails_at
        self.waits_from = waits_from
        self.inside = 0
        self.most = 0
        self.begun: list[int] = []
        self.open = asyncio.Event()

    async def __call__(self, number: int) -> int:
        self.begun.append(number)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await spin(self.passes)
            if number == self.fails_at:
                raise KeyError(number)
            if self.waits_from is not None and number >= self.waits_from:
                await self.open.wait()
            return 2 * number
        finally:
            self.inside -= 1


SHAPES: dict[str, Callable[[AsyncPool, Work, int], Any]] = {
    "all at once": lambda pool, work, n: pool.map(work, range(n)),
    "as they come": lambda pool, work, n: pool.map(work, range(n), ordered=False),
    "with a buffer": lambda pool, work, n: pool.map(work, range(n), buffersize=4),
    "with a buffer, as they come": lambda pool, work, n: pool.map(work, range(n), buffersize=4, ordered=False),
    "from an async source": lambda pool, work, n: pool.map(work, count_to(n)),
    "from an async source, as they come": lambda pool, work, n: pool.map(work, count_to(n), ordered=False),
    "a task each": lambda pool, work, n: pool.options().map(work, range(n)),
    "in a subpool": lambda pool, work, n: pool.subpool(3).map(work, range(n)),
}
each_shape = pytest.mark.parametrize("shape", SHAPES)


@each_shape
@pytest.mark.parametrize("passes", [0, 1, 3])
async def test_every_item_is_called_once_and_every_result_comes(shape: str, passes: int) -> None:
    work = Work(passes=passes)
    async with AsyncPool(5) as pool:
        results = [each async for each in SHAPES[shape](pool, work, 50)]
        if "come" not in shape:
            assert results == [2 * each for each in range(50)]
        assert sorted(results) == [2 * each for each in range(50)]
        assert sorted(work.begun) == list(range(50))
        assert work.most <= 5
        now = pool.statistics()
        assert (now.completed, now.running, now.queued, now.cancelled) == (50, 0, 0, 0)
        assert await SHAPES[shape](pool, work, 0) == []


@each_shape
async def test_awaiting_a_map_gives_all_results_as_a_list(shape: str) -> None:
    async with AsyncPool(5) as pool:
        results = await SHAPES[shape](pool, Work(passes=1), 30)
        assert sorted(results) == [2 * each for each in range(30)]
        some = SHAPES[shape](pool, Work(passes=1), 10)
        first = await anext(some)
        assert sorted([first, *await some]) == [2 * each for each in range(10)]


@each_shape
async def test_an_error_comes_in_its_place_and_cancels_the_rest(shape: str) -> None:
    work = Work(passes=1, fails_at=7, waits_from=8)
    async with AsyncPool(3) as pool:
        results = []
        with pytest.raises(KeyError, match="7"):
            async for each in SHAPES[shape](pool, work, 1000):
                results.append(each)  # noqa: PERF401  (what came before the error counts)
        if "come" not in shape:
            assert results == [2 * each for each in range(7)]
        assert work.inside == 0
        assert len(work.begun) < 100
        now = pool.statistics()
        assert now.running == now.queued == 0 and now.failed == 1
        assert await pool.run(work, 1) == 2


@each_shape
async def test_awaiting_a_map_that_fails_raises_and_cancels_the_rest(shape: str) -> None:
    work = Work(passes=1, fails_at=7, waits_from=8)
    async with AsyncPool(3) as pool:
        with pytest.raises(KeyError, match="7"):
            await SHAPES[shape](pool, work, 1000)
        assert work.inside == 0 and len(work.begun) < 100
        assert pool.statistics().running == pool.statistics().queued == 0


@each_shape
async def test_closing_a_map_cancels_the_rest_and_leaves_nothing_running(shape: str) -> None:
    work = Work(waits_from=5)
    async with AsyncPool(3) as pool:
        results = SHAPES[shape](pool, work, 1000)
        async with contextlib.aclosing(results):
            for _ in range(5):
                await anext(results)
            await auntil(lambda: work.inside == 3)
        assert work.inside == 0
        now = pool.statistics()
        assert now.running == now.queued == 0 and now.submitted == now.completed + now.cancelled
        with pytest.raises(StopAsyncIteration):
            await anext(results)
        await results.aclose()


@each_shape
async def test_breaking_out_of_a_map_stops_it(shape: str) -> None:
    work = Work(waits_from=3)
    async with AsyncPool(3) as pool:
        async for _ in SHAPES[shape](pool, work, 1000):
            break
        await auntil(lambda: pool.statistics().running == 0)
        assert work.inside == 0
        assert pool.statistics().queued == 0


@each_shape
async def test_cancelling_the_reader_cancels_the_map(shape: str) -> None:
    work = Work(waits_from=5)

    async def read() -> None:
        async for _ in SHAPES[shape](pool, work, 1000):
            pass

    async with AsyncPool(3) as pool:
        reader = asyncio.ensure_future(read())
        await auntil(lambda: work.inside == 3)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert work.inside == 0
        assert pool.statistics().running == pool.statistics().queued == 0


@each_shape
async def test_leaving_the_pool_by_an_error_ends_its_maps(shape: str) -> None:
    work = Work(waits_from=1)
    with pytest.raises(ZeroDivisionError):
        async with AsyncPool(3) as pool:
            results = SHAPES[shape](pool, work, 1000)
            await anext(results)
            await auntil(lambda: work.inside == 3)
            _ = 1 / 0
    assert work.inside == 0
    with pytest.raises((asyncio.CancelledError, PoolClosed)):
        async for _ in results:
            pass


async def test_a_plain_source_is_read_at_once_and_everything_runs_even_unread() -> None:
    read = []

    def source() -> Iterator[int]:
        for number in range(20):
            read.append(number)
            yield number

    work = Work()
    async with AsyncPool(3) as pool:
        pool.map(work, source())
        assert read == list(range(20))
    assert sorted(work.begun) == list(range(20))


async def test_a_buffer_bounds_how_far_the_source_is_read_ahead() -> None:
    read = []

    def source() -> Iterator[int]:
        for number in itertools.count():
            read.append(number)
            yield number

    async def async_source() -> AsyncIterator[int]:
        for number in itertools.count():
            read.append(number)
            yield number

    async with AsyncPool(2) as pool:
        for each in (source(), async_source()):
            read.clear()
            async with contextlib.aclosing(pool.map(Work(), each, buffersize=5)) as results:
                for taken in range(20):
                    await spin()
                    assert len(read) <= 5 + taken + 1
                    assert await anext(results) == 2 * taken
        read.clear()
        async with contextlib.aclosing(pool.map(Work(), async_source())) as results:
            await anext(results)
            await spin(50)
            assert 4 <= len(read) <= 6  # twice the limit


async def test_a_slow_async_source_does_not_hold_back_results() -> None:
    more = asyncio.Event()

    async def source() -> AsyncIterator[int]:
        yield 1
        await more.wait()
        yield 2

    async with AsyncPool(2) as pool:
        results = pool.map(Work(), source())
        assert await anext(results) == 2
        more.set()
        assert [each async for each in results] == [4]


async def test_an_async_source_is_always_read_by_the_same_task() -> None:
    readers = set()

    async def source() -> AsyncIterator[int]:
        for number in range(10):
            async with asyncio.timeout(HANG):  # breaks when it is left in another task
                readers.add(asyncio.current_task())
                yield number

    async with AsyncPool(2) as pool:
        assert len(await pool.map(Work(passes=1), source())) == 10
    assert len(readers) == 1


async def test_an_async_generator_is_closed_with_the_map_in_the_task_that_read_it() -> None:
    ended = []

    async def source() -> AsyncIterator[int]:
        reader = asyncio.current_task()
        try:
            for number in itertools.count():
                yield number
        finally:
            await asyncio.sleep(0)
            ended.append(asyncio.current_task() is reader)

    async with AsyncPool(2) as pool:
        async with contextlib.aclosing(pool.map(Work(), source())) as results:
            await anext(results)
        assert ended == [True]


async def test_an_error_of_the_source_comes_after_the_results_of_what_it_gave() -> None:
    def source() -> Iterator[int]:
        yield from range(3)
        raise OSError("source")

    async def async_source() -> AsyncIterator[int]:
        for number in source():
            yield number

    async with AsyncPool(2) as pool:
        with pytest.raises(OSError, match="source"):
            pool.map(Work(), source())
        for each in (source(), async_source()):
            seen = []
            with pytest.raises(OSError, match="source"):
                async for value in pool.map(Work(passes=2), each, buffersize=10):
                    seen.append(value)  # noqa: PERF401  (what came before the error counts)
            assert seen == [0, 2, 4]


async def test_several_sources_are_zipped_also_mixed() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    async with AsyncPool(2) as pool:
        assert await pool.map(add, [1, 2, 3], [10, 20]) == [11, 22]
        assert await pool.map(add, count_to(), [10, 20]) == [10, 21]
        assert await pool.map(add, [10, 20], count_to(), buffersize=1) == [10, 21]


async def test_a_plain_function_is_mapped_in_threads() -> None:
    def where(number: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        return number

    async with AsyncPool(3) as pool:
        assert await pool.map(where, range(20)) == list(range(20))
        assert [each async for each in pool.map(where, count_to(20))] == list(range(20))


async def test_a_lazy_map_that_is_never_read_does_not_hold_up_the_end_of_the_pool() -> None:
    async with AsyncPool(2) as pool:
        unread = pool.map(Work(), count_to(), buffersize=3)
        half = pool.map(Work(), itertools.count(), buffersize=3)
        assert await anext(half) == 0
    with pytest.raises(PoolClosed):
        async for _ in half:
            pass
    with pytest.raises(PoolClosed):
        async for _ in unread:
            pass


async def test_a_lazy_map_that_is_dropped_unread_reads_no_more() -> None:
    work = Work()
    async with AsyncPool(2) as pool:
        pool.map(work, count_to(), buffersize=3)
        await spin()
        assert len(work.begun) <= 3
        assert not [task for task in asyncio.all_tasks() if "map" in task.get_name()]


async def test_pause_and_resize_take_hold_between_items() -> None:
    work = Work(waits_from=0)
    async with AsyncPool(4) as pool:
        results = pool.map(work, range(20))
        await auntil(lambda: work.inside == 4)
        pool.pause()
        work.open.set()
        await auntil(lambda: work.inside == 0)
        await spin()
        assert len(work.begun) == 4
        assert pool.statistics().queued == 16 and pool.statistics().completed == 4
        work.open.clear()
        pool.resize(2)
        pool.resume()
        await auntil(lambda: work.inside == 2)
        await spin()
        assert work.inside == 2
        pool.resize(6)
        await auntil(lambda: work.inside == 6)
        pool.resize(1)
        work.open.set()
        while len(work.begun) <= 12:
            await asyncio.sleep(0)
        work.open.clear()
        await spin(50)
        assert work.inside <= 1
        work.open.set()
        assert await results == [2 * each for each in range(20)]


async def test_purge_drops_the_items_that_have_not_started() -> None:
    work = Work(waits_from=0)
    async with AsyncPool(2) as pool:
        results = pool.map(work, range(10))
        await auntil(lambda: work.inside == 2)
        assert pool.purge() == 8
        work.open.set()
        seen = []
        with pytest.raises(asyncio.CancelledError, match="purged"):
            async for each in results:
                seen.append(each)  # noqa: PERF401  (what came before the error counts)
        assert seen == [0, 2]
        assert pool.statistics().cancelled == 8 and pool.statistics().completed == 2


async def test_a_task_submitted_before_the_end_of_a_map_waits_its_turn() -> None:
    order: list[Any] = []

    async def note(value: Any) -> None:
        order.append(value)
        await asyncio.sleep(0)

    async with AsyncPool(2) as pool:
        results = pool.map(note, range(6))
        await pool.submit(note, "after")
        await results
    assert order == [0, 1, 2, 3, 4, 5, "after"]


async def test_an_urgent_task_comes_before_the_rest_of_a_map() -> None:
    order: list[Any] = []

    async def note(value: Any) -> None:
        order.append(value)
        if value == 1:
            await pool.options(priority=1).submit(note, "urgent")
        await asyncio.sleep(0)

    async with AsyncPool(1, order="priority") as pool:
        await pool.map(note, range(50))
    assert order.index("urgent") <= 3


async def test_a_map_of_a_task_each_takes_options() -> None:
    async with AsyncPool(2) as pool:
        with pytest.raises(TaskTimeout):
            await pool.options(timeout=0.01).map(asyncio.sleep, [0, 3600])
        keyed = Work(passes=2)
        assert await pool.options(key="k").map(keyed, range(5)) == [0, 2, 4, 6, 8]
        assert keyed.most == 1 and keyed.begun == [0, 1, 2, 3, 4]


async def test_one_reader_at_a_time() -> None:
    work = Work(waits_from=0)
    async with AsyncPool(2) as pool:
        for buffersize in (None, 2):
            results = pool.map(work, range(3), buffersize=buffersize)
            reader = asyncio.ensure_future(anext(results))
            await spin()
            with pytest.raises(RuntimeError, match="one reader at a time"):
                await anext(results)
            with pytest.raises(RuntimeError, match="one reader at a time"):
                await results
            work.open.set()
            assert await reader == 0
            assert [each async for each in results] == [2, 4]
            work.open.clear()


async def test_an_item_that_cancels_its_own_asyncio_task_ends_the_map() -> None:
    async def cancel_myself(number: int) -> int:
        if number == 3:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return number

    async with AsyncPool(1) as pool:
        with pytest.raises(asyncio.CancelledError):
            await pool.map(cancel_myself, range(100))
        assert pool.statistics().running == pool.statistics().queued == 0


async def test_an_item_that_refuses_to_be_cancelled_is_waited_for() -> None:
    stubborn = asyncio.Event()
    begun = asyncio.Event()

    async def refuse(_: int) -> None:
        begun.set()
        while not stubborn.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await stubborn.wait()

    async with AsyncPool(1) as pool:
        results = pool.map(refuse, range(10))
        await begun.wait()
        closing = asyncio.ensure_future(results.aclose())
        await spin()
        assert not closing.done()
        stubborn.set()
        await closing
        assert pool.statistics().running == 0


async def test_progress_shows_a_bar_and_changes_nothing() -> None:
    async with AsyncPool(2) as pool:
        assert await pool.map(Work(), range(5), progress=True) == [0, 2, 4, 6, 8]
        assert [each async for each in pool.map(Work(), count_to(3), progress=True)] == [0, 2, 4]
        async with contextlib.aclosing(pool.map(Work(), range(5), progress=True)) as results:
            assert await anext(results) == 0


async def test_progress_calls_a_function_with_how_many_results_were_taken() -> None:
    calls: list[tuple[int, int | None]] = []
    async with AsyncPool(2) as pool:
        for take in (pool.map, pool.options().map):
            calls.clear()
            assert await take(Work(), range(3), progress=lambda *each: calls.append(each)) == [0, 2, 4]
            assert calls == [(1, 3), (2, 3), (3, 3)]
        calls.clear()
        async for _ in pool.map(Work(), count_to(2), progress=lambda *each: calls.append(each)):
            assert len(calls) == calls[-1][0]
        assert calls == [(1, None), (2, None)]


async def test_what_a_progress_function_raises_ends_the_map() -> None:
    def fail_at(number: int) -> Callable[[int, int | None], None]:
        def progress(done: int, total: int | None) -> None:
            if done == number:
                raise KeyError(number)

        return progress

    async with AsyncPool(2) as pool:
        for number in (1, 3):
            results = pool.map(Work(), range(5), progress=fail_at(number))
            with pytest.raises(KeyError):
                await results
            assert [each async for each in results] == []


async def test_bad_arguments_are_refused() -> None:
    async with AsyncPool(1) as pool:
        with pytest.raises(TypeError, match="progress must be callable"):
            pool.map(Work(), [1], progress=3)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="buffersize"):
            pool.map(Work(), [1], buffersize=0)
        with pytest.raises(TypeError):
            pool.map(Work(), 3)  # type: ignore[call-overload]

"""The three kinds of local pools behind one set of verbs, so that a promise is written once and tried on each.

`ThreadPool` and `ProcessPool` have these verbs already. An `AsyncPool` gets them from a loop in a thread: its verbs are
called there, and what is awaited is waited for here. Functions are given as plain functions; an `AsyncPool` gets their
coroutine twins (`pool_calls.in_a_loop`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, Protocol

from millpond import AsyncPool, ProcessPool, Statistics, ThreadPool
from pool_calls import in_a_loop
from waiting import HANG

KINDS = ("threads", "processes", "asyncio")


class Handle(Protocol):
    """What a submit returns."""

    def result(self, timeout: float | None = None) -> Any: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def cancel(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def running(self) -> bool: ...


@contextmanager
def local_pool(kind: str, max_workers: int = 2, **options: Any) -> Iterator[Any]:
    """Make a pool of a kind, and end it; without waiting when the test has failed, since it may never end."""
    pool: Any
    if kind == "asyncio":
        with loop_in_a_thread() as loop, _left(LoopPool(loop, _made(loop, max_workers, options))) as pool:
            yield pool
    else:
        with _left((ThreadPool if kind == "threads" else ProcessPool)(max_workers, **options)) as pool:
            yield pool


@contextmanager
def _left(pool: Any) -> Iterator[Any]:
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    assert pool.shutdown(timeout=HANG), f"{pool!r} did not end"


def _made(loop: Loop, max_workers: int, options: dict[str, Any]) -> AsyncPool:
    options.pop("idle_timeout", None)  # there are no workers that could be idle
    options.pop("min_workers", None)

    async def make() -> AsyncPool:
        return AsyncPool(max_workers, **options)

    return loop.call(make())  # type: ignore[no-any-return]


class Loop:
    """An event loop that runs in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine there, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * HANG)

    def do(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a plain function there, and return its result."""

        async def call() -> Any:
            return fn(*args, **kwargs)

        return self.call(call())


@contextmanager
def loop_in_a_thread() -> Iterator[Loop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop", daemon=True)
    thread.start()
    try:
        yield Loop(loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANG)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


class LoopVerbs:
    """The submitting verbs of an `AsyncPool`, called from another thread."""

    def __init__(self, loop: Loop, pool: Any) -> None:
        self._loop = loop
        self.pool = pool

    def submit(self, fn: Any, *args: Any) -> LoopHandle:
        return LoopHandle(self._loop, self._loop.call(self.pool.submit(in_a_loop(fn), *args)))

    def try_submit(self, fn: Any, *args: Any) -> LoopHandle | None:
        task = self._loop.do(self.pool.try_submit, in_a_loop(fn), *args)
        return None if task is None else LoopHandle(self._loop, task)

    def submit_many(self, fn: Any, arguments: Iterable[Any]) -> list[LoopHandle]:
        tasks = self._loop.call(self.pool.submit_many(in_a_loop(fn), arguments))
        return [LoopHandle(self._loop, task) for task in tasks]

    def go(self, fn: Any, *args: Any) -> None:
        self._loop.call(self.pool.go(in_a_loop(fn), *args))

    def map(self, fn: Any, *iterables: Iterable[Any], **options: Any) -> LoopMap:
        return LoopMap(self._loop, self._loop.do(self.pool.map, in_a_loop(fn), *iterables, **options))


class LoopPool(LoopVerbs):
    """An `AsyncPool` (or a subpool of one), used from another thread."""

    def options(self, **options: Any) -> LoopVerbs:
        return LoopVerbs(self._loop, self.pool.options(**options))

    def subpool(self, max_workers: int) -> LoopPool:
        return LoopPool(self._loop, self.pool.subpool(max_workers))

    @contextmanager
    def group(self) -> Iterator[LoopVerbs]:
        group = self.pool.group()
        self._loop.call(group.__aenter__())
        try:
            yield LoopVerbs(self._loop, group)
        except BaseException as error:
            self._loop.call(group.__aexit__(type(error), error, None))
            raise
        self._loop.call(group.__aexit__(None, None, None))

    def pause(self) -> None:
        self._loop.do(self.pool.pause)

    def resume(self) -> None:
        self._loop.do(self.pool.resume)

    def resize(self, max_workers: int) -> None:
        self._loop.do(self.pool.resize, max_workers)

    def purge(self) -> int:
        return self._loop.do(self.pool.purge)  # type: ignore[no-any-return]

    def drain(self, timeout: float | None = None) -> bool:
        return self._loop.call(self.pool.drain(timeout))  # type: ignore[no-any-return]

    def restart(self) -> None:
        self._loop.call(self.pool.restart())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, timeout: float | None = None) -> bool:
        return self._loop.call(  # type: ignore[no-any-return]
            self.pool.shutdown(wait, cancel_futures=cancel_futures, timeout=timeout)
        )

    def statistics(self) -> Statistics:
        return self._loop.do(self.pool.statistics)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return repr(self.pool)


class LoopHandle:
    """A task of an `AsyncPool`, seen from another thread; it raises what a `concurrent.futures.Future` would."""

    def __init__(self, loop: Loop, task: Any) -> None:
        self._loop = loop
        self._task = task

    def result(self, timeout: float | None = None) -> Any:
        async def end() -> Any:
            await asyncio.wait([self._task], timeout=timeout)
            if not self._task.done():
                raise TimeoutError
            return self._task.result()

        return self._loop.call(end())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            self.result(timeout)
        except CancelledError:
            raise
        except BaseException as error:
            if not self.done():
                raise
            return error
        return None

    def cancel(self) -> bool:
        return self._loop.do(self._task.cancel)  # type: ignore[no-any-return]

    def cancelled(self) -> bool:
        return self._loop.do(self._task.cancelled)  # type: ignore[no-any-return]

    def done(self) -> bool:
        return self._loop.do(self._task.done)  # type: ignore[no-any-return]

    def running(self) -> bool:
        return self._loop.do(self._task.running)  # type: ignore[no-any-return]


class LoopMap(Iterator[Any]):
    """A map of an `AsyncPool`, read from another thread."""

    def __init__(self, loop: Loop, results: Any) -> None:
        self._loop = loop
        self._results = results

    def __next__(self) -> Any:
        async def step() -> Any:  # StopAsyncIteration may not leave a coroutine
            async for value in self._results:
                return (value,)
            return ()

        value = self._loop.call(step())
        if not value:
            raise StopIteration
        return value[0]

    def close(self) -> None:
        self._loop.call(self._results.aclose())

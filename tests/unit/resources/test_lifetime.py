"""From open to close: watching, forks, pickles, and what is left behind (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import sys
import threading
import traceback
import tracemalloc
import warnings
import weakref
from typing import Any

import pytest
from faces import eventually, url_of

from millpond.errors import PoolClosed
from millpond.resources import AsyncResourcePool, ResourcePool
from waiting import HANG, until

asynchronous = pytest.mark.asyncio


# -- watching ---------------------------------------------------------------------------------------------------------


def test_a_thread_watches_until_the_pool_is_closed(url):
    pool, other = ResourcePool("p", url), ResourcePool("p", url)
    seen: list[str] = []
    started = threading.Event()

    def watch() -> None:
        for event in pool.watch():
            seen.append(event.name)
            started.set()

    thread = threading.Thread(target=watch)
    thread.start()
    until(lambda: pool._streams)
    other.add("a")
    with other.acquire(reason="r"):
        pass
    until(lambda: seen == ["added", "granted", "released"])
    pool.close()
    thread.join(HANG)
    assert not thread.is_alive()
    other.close()


@asynchronous
async def test_a_task_watches_until_the_pool_is_closed(url):
    pool, other = AsyncResourcePool("p", url), AsyncResourcePool("p", url)
    seen: list[str] = []

    async def watch() -> None:
        async for event in pool.watch():
            seen.append(event.name)  # noqa: PERF401

    task = asyncio.ensure_future(watch())
    await eventually(lambda: pool._streams)
    await other.add("a")
    async with other.acquire():
        pass
    await eventually(lambda: seen == ["added", "granted", "released"])
    await pool.close()
    await asyncio.wait_for(task, HANG)
    await other.close()


def test_a_watch_that_is_closed_early_stops_listening(url):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        events = pool.watch()
        adder = threading.Timer(0.05, pool.add, ("b",))
        adder.start()
        assert next(events).data["resource"] == "b"
        adder.join()
        events.close()  # type: ignore[attr-defined]
        assert not pool._streams
        pool.add("c")


@asynchronous
async def test_a_cancelled_watch_stops_listening(url):
    async with AsyncResourcePool("p", url) as pool:

        async def watch() -> None:
            async with contextlib.aclosing(pool.watch()) as events:  # type: ignore[type-var]
                async for _ in events:
                    pass

        task = asyncio.ensure_future(watch())
        await eventually(lambda: pool._streams)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not pool._streams


def test_events_name_those_who_held_before_the_watch_began(url):
    with ResourcePool("p", url, holder="ada") as pool:
        pool.add("a")
        grant = pool.acquire()
        events = pool.watch()
        releaser = threading.Timer(0.05, grant.release)
        releaser.start()
        event = next(events)
        releaser.join()
        assert (event.name, event.data["holder"], event.data["resources"]) == ("released", "ada", ["a"])
        events.close()  # type: ignore[attr-defined]


def test_a_closed_pool_cannot_be_watched(url):
    pool = ResourcePool("p", url)
    pool.close()
    with pytest.raises(PoolClosed):
        next(pool.watch())


# -- forks ------------------------------------------------------------------------------------------------------------


def in_child(work) -> str:
    """Run something in a forked child and return what it says."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a pool has threads, and here a child is forked all the same
        pid = os.fork()
    if pid == 0:
        try:
            try:
                said = str(work())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
                if isinstance(error, AssertionError):
                    said += traceback.format_exc()
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def test_a_memory_pool_cannot_be_used_in_a_forked_child(tmp_path):
    with ResourcePool("p", url_of("memory", tmp_path)) as pool:
        pool.add("a")
        admin = pool.admin
        for work in (lambda: pool.acquire(), lambda: pool.holders(), lambda: pool.admin, lambda: pool.add("b")):
            said = in_child(work)
            assert said.startswith("RuntimeError: pool 'p' lives in the memory of process"), said
            assert "use a sqlite:/// URL to share it" in said
        assert in_child(lambda: admin.cordon("a")).startswith("RuntimeError: this is of pool 'p' in process")
        assert in_child(pool.close) == "None"
        with pool.acquire():
            pass


def test_a_grant_cannot_be_used_in_a_forked_child_and_stays_the_parents(url):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        with pool.acquire() as grant:
            for work in (
                grant.release,
                grant.renew,
                grant.transfer,
                grant.labels,
                lambda: grant.__exit__(None, None, None),
            ):
                said = in_child(work)
                assert said.startswith(f"RuntimeError: grant {grant.token} of a in pool 'p' belongs to process"), said
                assert "pass it on with transfer() and adopt()" in said
            grant.check()
            assert [one.token for one in pool.holders()] == [grant.token]


def test_an_exception_of_a_forked_child_leaves_the_block_of_the_parent_as_it_is(url):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        with pool.acquire() as grant:
            problem = KeyError("mine")
            assert in_child(lambda: str(grant.__exit__(KeyError, problem, None))) == "None"
            grant.check()


def test_a_sqlite_pool_begins_anew_in_a_forked_child(tmp_path):
    with ResourcePool("p", url_of("sqlite", tmp_path)) as pool:
        pool.add("a")
        pool.add("b")
        with pool.acquire(name="a") as grant:

            def child() -> str:
                assert pool.try_acquire(name="a") is None
                mine = pool.acquire(name="b")
                pids = sorted(one.pid for one in pool.holders())
                assert pids == sorted((os.getpid(), os.getppid())), pids
                assert mine.request_id.split("-")[0] != grant.request_id.split("-")[0]
                return "fine"

            assert in_child(child) == "fine"
            until(lambda: len(pool.holders()) == 1)  # the child is dead, and what it held is free
            grant.check()


def test_the_end_of_a_child_that_closed_the_pool_releases_nothing_of_the_parents(tmp_path):
    with ResourcePool("p", url_of("sqlite", tmp_path)) as pool:
        pool.add("a")
        with pool.acquire() as grant:

            def child() -> str:
                pool.statistics()
                pool.close()
                return "closed"

            assert in_child(child) == "closed"
            grant.check()
            assert [one.token for one in pool.holders()] == [grant.token]


# -- pickles ----------------------------------------------------------------------------------------------------------


def rank(candidates):
    return candidates


def test_a_sqlite_pool_can_be_sent_to_another_process(tmp_path):
    with ResourcePool("p", url_of("sqlite", tmp_path), holder="me", placement="lru", suspect_after=9) as pool:
        pool.add("a")
        with pickle.loads(pickle.dumps(pool)) as again:
            assert (again.name, again.url, again._holder, again._policy) == ("p", pool.url, "me", "lru")
            assert again._suspect_after == 9
            with again.acquire():
                assert len(pool.holders()) == 1
    with (
        pytest.raises(TypeError, match="lives in the memory of process .* cannot be sent to another one: use a sqlite"),
        ResourcePool("p", url_of("memory", tmp_path)) as pool,
    ):
        pickle.dumps(pool)


def test_a_grant_cannot_be_pickled_and_says_what_to_do(url):
    with ResourcePool("p", url) as pool:
        pool.add("a")
        with pool.acquire() as grant, pytest.raises(TypeError, match=r"send the token that transfer\(\) returns"):
            pickle.dumps(grant)


# -- nothing is left behind -------------------------------------------------------------------------------------------


def our_threads() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("millpond-sqlite", "millpond-timers"))
    ]


def test_no_thread_outlives_the_pools(url):
    before = our_threads()
    with ResourcePool("p", url, suspect_after=60) as pool:
        pool.add("a")
        with pool.acquire(lease=60):
            pass
    until(lambda: our_threads() == before)


def test_an_alarm_that_comes_after_the_close_opens_nothing_again(tmp_path):
    """The alarm for calls that are stuck is set for seconds ahead, and a quick program has closed its pool by then."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")

    def files_open_there() -> int:
        with os.scandir("/proc/self/fd") as entries:
            return sum(str(tmp_path) in os.readlink(entry.path) for entry in entries if entry.is_symlink())

    with ResourcePool("p", url_of("sqlite", tmp_path)) as pool:
        engine: Any = pool._engine
        pool.add("a")
    assert files_open_there() == 0
    engine._check_stuck()
    assert files_open_there() == 0


def test_opening_and_closing_leaves_no_descriptor_open(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    url = url_of("sqlite", tmp_path)

    def once() -> None:
        with ResourcePool("p", url) as pool:
            pool.add("a", exist_ok=True)
            with pool.acquire():
                pass

    for _ in range(3):
        once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(60):
        once()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert not os.listdir(str(tmp_path) + "/" + next(name for name in os.listdir(tmp_path) if name.endswith("-bells")))


def test_threads_that_open_and_close_the_same_pool_do_not_close_each_others(url):
    with ResourcePool("p", url) as pool:
        pool.add("a", capacity=100)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(15):
                with ResourcePool("p", url) as pool:
                    pool.add("a", capacity=100, exist_ok=True)
                    with pool.acquire(timeout=HANG):
                        pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_grants(url):
    with ResourcePool("p", url) as pool:
        pool.add("a")

        def run(count: int) -> None:
            for _ in range(count):
                with pool.acquire():
                    pass

        run(4000)  # the history fills
        gc.collect()
        tracemalloc.start()
        try:
            run(1000)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            run(8000)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 1_000_000, f"{grown} bytes more after 8000 grants"
        assert not pool._own._requests


def test_a_pool_keeps_no_closed_event_loop(url):
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        async with AsyncResourcePool("p", url) as pool:
            await pool.add("a", exist_ok=True)
            async with pool.acquire():
                pass

    for _ in range(3):
        asyncio.run(main())
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3


@asynchronous
async def test_a_closed_pool_leaves_the_event_loop_its_descriptors(tmp_path):
    """Whatever gets the number of a descriptor that the pool had listened to is heard."""
    pool = AsyncResourcePool("p", url_of("sqlite", tmp_path))
    await pool.add("a")
    async with pool.acquire():
        bell = pool._engine._sessions.own.bell.fileno()  # type: ignore[attr-defined]
    await pool.close()
    reader, writer = os.pipe()
    os.dup2(reader, bell)
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(bell, heard.set)
    try:
        os.write(writer, b"!")
        await asyncio.wait_for(heard.wait(), HANG)
    finally:
        loop.remove_reader(bell)
        for one in {reader, writer, bell}:
            os.close(one)


def test_one_async_pool_serves_two_event_loops(url):
    pool = AsyncResourcePool("p", url)
    order: list[str] = []
    held = threading.Event()

    async def first() -> None:
        await pool.add("a")
        async with pool.acquire():
            held.set()
            await eventually(pool.waiters)
            order.append("first")

    async def second() -> None:
        async with pool.acquire():
            order.append("second")

    def run_second() -> None:
        held.wait(HANG)
        asyncio.run(second())

    thread = threading.Thread(target=run_second)
    thread.start()
    asyncio.run(first())
    thread.join(HANG)
    assert order == ["first", "second"]
    asyncio.run(pool.close())


def test_a_program_that_ends_with_a_grant_in_its_hands_ends_quietly(url, tmp_path):
    import subprocess

    script = (
        "import sys, warnings; warnings.simplefilter('always')\n"
        "from millpond.resources import ResourcePool\n"
        f"pool = ResourcePool('p', {url!r}); pool.add('a', exist_ok=True)\n"
        "grant = pool.acquire(lease=3600)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG)
    assert (done.returncode, done.stderr) == (0, "")

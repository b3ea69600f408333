"""What is over is not kept: timers, watchers that nobody reads, entries that nobody will read."""

from __future__ import annotations

import asyncio
import gc

import pytest

from millpond import AcquireTimeout, AsyncResourcePool, PoolError, ResourcePool
from millpond.resources import _async_bridge, _bridge, _timers
from millpond.resources.engines.memory import MemoryEngine
from waiting import auntil, until


def watchers(pool: ResourcePool | AsyncResourcePool) -> int:
    return len(pool._engine._pools[pool.name].watchers)  # type: ignore[attr-defined]


def test_appointments_of_grants_that_are_over_do_not_stay():
    with ResourcePool("p", "memory:kept", suspect_after=86400.0) as pool:
        pool.add("a")
        for _ in range(2000):
            pool.acquire(lease=3600.0).release()
        assert len(_timers._timer_thread.heap) < 500


def test_an_appointment_survives_the_tidying_of_others():
    called: list[int] = []
    keep = [_timers.call_later(0.3, lambda: called.append(1)) for _ in range(3)]
    for _ in range(10 * _timers.MANY):
        _timers.call_later(3600.0, lambda: called.append(2)).cancel()
    until(lambda: called == [1, 1, 1])
    assert all(one.call is None for one in keep)


def test_a_watch_that_is_never_iterated_ends_with_its_iterator():
    with ResourcePool("p", "memory:kept") as pool:
        before = watchers(pool)
        events = pool.watch()
        assert watchers(pool) == before + 1
        del events
        gc.collect()
        until(lambda: watchers(pool) == before)


def test_a_watch_that_is_closed_ends_at_once_and_once():
    with ResourcePool("p", "memory:kept") as pool:
        before = watchers(pool)
        events = pool.watch()
        pool.add("a")
        assert next(events).name == "added"
        events.close()  # type: ignore[attr-defined]
        assert watchers(pool) == before
        other = pool.watch()
        del events
        gc.collect()
        assert watchers(pool) == before + 1
        del other


def test_a_watch_of_a_loop_that_is_never_iterated_ends_with_its_iterator():
    async def main() -> None:
        async with AsyncResourcePool("p", "memory:kept") as pool:
            before = watchers(pool)
            events = pool.watch()
            assert watchers(pool) == before + 1
            del events
            gc.collect()
            await auntil(lambda: watchers(pool) == before)

    asyncio.run(main())


def test_who_reads_too_slowly_gets_what_is_kept_and_then_an_error():
    stream: _bridge.Stream[int] = _bridge.Stream(limit=3)
    for number in range(5):
        stream.put(number)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(PoolError, match="read too slowly: more than 3 changes"):
        next(stream)
    assert not stream._values


def test_a_loop_that_reads_too_slowly_gets_what_is_kept_and_then_an_error():
    async def main() -> None:
        stream: _async_bridge.AsyncStream[int] = _async_bridge.AsyncStream(limit=3)
        for number in range(5):
            stream.put(number)
        assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(PoolError, match="read too slowly: more than 3 changes"):
            await anext(stream)

    asyncio.run(main())


def test_an_engine_that_is_dear_to_ask_is_asked_rarely_how_waiters_stand(monkeypatch):
    monkeypatch.setattr(MemoryEngine, "audit_every", 3600.0, raising=False)
    audits: list[float] = []
    later = _timers.call_later
    monkeypatch.setattr(_timers, "call_later", lambda delay, call: (audits.append(delay), later(delay, call))[1])
    with ResourcePool("p", "memory:rarely") as pool:
        pool.add("a")
        with pool.acquire(), pytest.raises(AcquireTimeout):
            pool.acquire(timeout=0.01)
    assert audits == [3600.0]

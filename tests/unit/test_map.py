"""`map`: the standard meaning, and lazy, unordered, in chunks."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond import CancelToken, ThreadPool
from millpond.local._map import Items, Results
from millpond.local.threads import _map as thread_map
from millpond.local.threads._map import Slicer
from waiting import HANG, freed, never, until


@pytest.fixture
def pool():
    with ThreadPool(4) as pool:
        yield pool


# -- the parts ----------------------------------------------------------------------------------------------


def slicer_of(items: list[int], chunksize: int | None) -> tuple[Items, Slicer]:
    source = Items()
    source.add(items)
    return source, Slicer(source, chunksize)


def drain(slicer: Slicer, sharers: int = 1) -> list[int]:
    """Run every slice and return the values in order of their numbers."""
    seen: dict[int, int] = {}
    while (piece := slicer.cut(sharers)) is not None:
        assert piece.run(int, is_bare=True) is None
        seen |= dict(enumerate(piece.values, piece.start))
        slicer.learn(piece.size, 0.0)
    return [seen[number] for number in sorted(seen)]


@given(st.lists(st.lists(st.integers())), st.none() | st.integers(1, 5), st.integers(1, 4))
def test_a_source_gives_every_item_once_and_in_order(feeds, chunk, workers):
    items, slicer = slicer_of([], chunk)
    for feed in feeds:
        items.add(feed)
    assert drain(slicer, workers) == list(itertools.chain.from_iterable(feeds))
    assert slicer.cut(1) is None
    assert len(items) == 0


@given(st.integers(0, 20), st.integers(0, 20))
def test_a_slice_that_is_stopped_gives_back_what_has_not_started(size, ran):
    items, slicer = slicer_of(list(range(size)), size + 1)
    piece = slicer.cut(1)
    if piece is None:
        return

    def call(item: int) -> int:
        if item == ran:
            items.give_back(piece.end, piece.stop())
        return item

    assert piece.run(call, is_bare=True) is None
    assert [*piece.values, *drain(slicer)] == list(range(size))


def test_slices_grow_while_they_are_quick_and_shrink_when_they_are_slow():
    _, slicer = slicer_of(list(range(10_000)), None)
    sizes = []
    for _ in range(8):
        piece = slicer.cut(1)
        assert piece is not None
        sizes.append(piece.size)
        slicer.learn(piece.size, 0.0)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128]
    for _ in range(100):
        slicer.learn(128, 128.0)
    piece = slicer.cut(1)
    assert piece is not None
    assert piece.size == 1, "slow for a while, not just once: that may be the interpreter's lock"


def test_a_slice_leaves_something_for_the_others_near_the_end():
    _, slicer = slicer_of(list(range(100)), None)
    slicer.learn(1000, 0.0)
    piece = slicer.cut(4)
    assert piece is not None
    assert piece.size == 100 // 8


@given(st.lists(st.integers(), min_size=1), st.data())
def test_items_given_back_come_next_and_in_order(items, data):
    source = Items()
    source.add(items)
    first, taken = source.cut(data.draw(st.integers(1, len(items))))
    number = data.draw(st.integers(0, len(taken)))
    kept, back = taken[number:], taken[:number]  # in reverse: the first items are the last of the list
    if back:
        source.give_back(first + len(taken), back)
    rest = []
    while (piece := source.cut(data.draw(st.integers(1, 5))))[1]:
        assert piece[0] == len(kept) + len(rest)
        rest += piece[1][::-1]
    assert kept[::-1] + rest == items


@given(st.permutations(range(6)))
def test_results_come_in_order_whatever_the_order_of_publication(order):
    results: Results[int] = Results(ordered=True)
    for start in order:
        results.publish(start * 2, [start * 2, start * 2 + 1], None)
    idle: Any = SimpleNamespace(help_out=lambda: False, lend_thread=nullcontext)
    values = [results.next(None, idle)[0] for _ in order]
    assert list(itertools.chain.from_iterable(values)) == list(range(12))


# -- in a pool -----------------------------------------------------------------------------------------------


def test_results_are_in_order(pool):
    assert list(pool.map(lambda x: x * x, range(5000))) == [x * x for x in range(5000)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers()), st.none() | st.integers(1, 7), st.none() | st.integers(1, 7))
def test_map_is_the_builtin_map(items, chunksize, buffersize):
    with ThreadPool(3) as pool:
        assert list(pool.map(str, items, chunksize=chunksize, buffersize=buffersize)) == list(map(str, items))
        unordered = pool.map(str, items, chunksize=chunksize, buffersize=buffersize, ordered=False)
        assert sorted(unordered) == sorted(map(str, items))


def test_a_map_that_is_being_made_is_not_found_by_those_who_look_at_the_pool(pool, monkeypatch):
    """It was, before it was whole: `statistics()` in another thread then failed. A race, without the GIL a common one."""
    looks = []

    def look_and_make(*args: Any) -> Slicer:
        looks.append((pool.statistics().queued, pool.purge()))
        return Slicer(*args)

    monkeypatch.setattr(thread_map, "Slicer", look_and_make)
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
    assert looks == [(0, 0)]


def test_several_iterables_end_with_the_shortest(pool):
    assert list(pool.map(pow, [1, 2, 3], itertools.count(1))) == [1, 4, 27]
    assert list(pool.map(pow, [1, 2, 3], [2, 2])) == [1, 4]


def test_nothing_to_map_gives_nothing(pool):
    assert list(pool.map(abs, [])) == []
    assert list(pool.map(abs, [], buffersize=2)) == []


def test_the_source_is_read_at_once_in_the_callers_thread(pool):
    read_by = []

    def source():
        for n in range(10):
            read_by.append(threading.get_ident())
            yield n

    results = pool.map(abs, source())
    assert read_by == [threading.get_ident()] * 10
    assert list(results) == list(range(10))


def test_everything_runs_even_when_nobody_takes_the_results(pool):
    ran = []
    pool.map(ran.append, range(100))
    assert pool.drain(HANG)
    assert sorted(ran) == list(range(100))


def test_an_error_comes_in_its_place_and_stops_the_rest():
    ran, looked = [], threading.Event()

    def call(n: int) -> int:
        if n == 3:
            raise LookupError(n)
        ran.append(n)
        if n == 10:
            looked.wait(HANG)
        return n

    with ThreadPool(1) as pool:
        results = pool.map(call, range(100), chunksize=1)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LookupError):
            next(results)
        looked.set()
        pool.drain(HANG)
        assert max(ran) <= 10
        assert pool.statistics().failed == 1
        assert pool.statistics().cancelled > 0


def test_items_after_an_error_run_as_long_as_nobody_looks(pool):
    ran = []

    def call(n: int) -> None:
        ran.append(n)
        raise ValueError(n)

    results = pool.map(call, range(50))
    assert pool.drain(HANG)
    assert sorted(ran) == list(range(50))
    with pytest.raises(ValueError, match="^0$"):
        next(results)


def test_stop_iteration_in_the_function_is_an_error_and_loses_nothing(pool):
    results = pool.map(lambda n: next(iter([])) if n == 2 else n, range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(results)


def test_the_traceback_of_an_error_starts_in_the_mapped_function(pool):
    def broken(n: int) -> float:
        return 1 / n

    with pytest.raises(ZeroDivisionError) as caught:
        list(pool.map(broken, [0]))
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "broken"
    assert "call_each" not in names


def test_closing_the_iterator_cancels_what_has_not_started():
    ran, closed = [], threading.Event()

    def call(n: int) -> None:
        ran.append(n)
        if n == 5:
            closed.wait(HANG)

    with ThreadPool(1) as pool:
        results = pool.map(call, range(100), chunksize=1)
        next(results)
        results.close()  # type: ignore[attr-defined]
        closed.set()
        assert pool.drain(HANG)
    assert max(ran) <= 5


def test_a_timeout_counts_from_the_call(monkeypatch):
    go_on = threading.Event()
    with ThreadPool(1) as pool:
        results = pool.map(lambda n: n and go_on.wait(HANG), [0, 1], timeout=3600, chunksize=1)
        assert next(results) == 0
        later = time.monotonic() + 3600
        with monkeypatch.context() as patch, pytest.raises(TimeoutError, match="1 results were missing 3600 s after"):
            patch.setattr(time, "monotonic", lambda: later)
            next(results)
        go_on.set()


@pytest.mark.parametrize("ordered", [True, False])
def test_a_lazy_map_takes_an_endless_source_and_never_reads_far_ahead(pool, ordered):
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield read

    results = pool.map(abs, endless(), buffersize=10, ordered=ordered)
    assert read == 10
    for taken in range(1, 500):
        next(results)
        assert read - taken <= 10
    results.close()  # type: ignore[attr-defined]


def test_a_lazy_map_runs_in_parallel(pool):
    barrier = threading.Barrier(4)
    assert sorted(pool.map(lambda _: barrier.wait(HANG), range(8), buffersize=4, chunksize=1)) == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]


def test_slow_items_are_spread_over_all_workers(pool):
    barrier = threading.Barrier(4)
    assert sorted(pool.map(lambda _: barrier.wait(HANG), range(4))) == [0, 1, 2, 3]


def test_an_unordered_map_yields_what_is_ready(pool):
    go_on = threading.Event()

    def call(n: int) -> int:
        if n == 0:
            go_on.wait(HANG)
        return n

    results = pool.map(call, range(4), ordered=False, chunksize=1)
    assert sorted(next(results) for _ in range(3)) == [1, 2, 3]
    go_on.set()
    assert next(results) == 0


def test_an_error_in_the_source_reaches_the_consumer(pool):
    def source():
        yield 1
        raise LookupError("source")

    with pytest.raises(LookupError, match="source"):
        pool.map(abs, source())
    lazy = pool.map(abs, source(), buffersize=1)
    assert next(lazy) == 1
    with pytest.raises(LookupError, match="source"):
        next(lazy)


def test_results_are_not_kept_alive_by_the_iterator(pool):
    import weakref

    class Thing:
        pass

    for thing in pool.map(lambda _: Thing(), range(10)):
        ref = weakref.ref(thing)
        del thing
        assert freed(ref)


def test_purge_ends_a_map():
    from concurrent.futures import CancelledError

    with ThreadPool(1) as pool:
        pool.pause()
        results = pool.map(abs, range(10))
        pool.purge()
        with pytest.raises(CancelledError, match="purged or shut down"):
            next(results)
        pool.resume()


def test_a_lazy_map_goes_on_after_a_purge_that_found_none_of_its_items():
    has_begun, go_on = threading.Event(), threading.Event()

    def call(n: int) -> int:
        if n == 0:
            has_begun.set()
            go_on.wait(HANG)
        return n

    with ThreadPool(1) as pool:
        results = pool.map(call, range(3), buffersize=1)
        assert has_begun.wait(HANG)
        pool.pause()  # so that the place of the map stays in the queue
        go_on.set()
        until(lambda: not pool.statistics().running)
        pool.purge()
        pool.resume()
        assert list(results) == [0, 1, 2]


def test_a_lazy_map_that_has_read_its_source_gives_its_results_after_shutdown():
    with ThreadPool(2) as pool:
        results = pool.map(abs, range(3), buffersize=3)
        assert pool.drain(HANG)
    assert list(results) == [0, 1, 2]


def test_pause_holds_a_map_between_slices():
    ran, is_there, go_on = [], threading.Event(), threading.Event()

    def call(n: int) -> None:
        ran.append(n)
        if n == 5:
            is_there.set()
            go_on.wait(HANG)

    with ThreadPool(1) as pool:
        pool.map(call, range(20), chunksize=1)
        assert is_there.wait(HANG)
        pool.pause()
        go_on.set()
        until(lambda: not pool.statistics().running)
        never(lambda: len(ran) > 6, seconds=0.02)
        pool.resume()
        assert pool.drain(HANG)
    assert len(ran) == 20


def test_a_map_grows_with_the_pool():
    with ThreadPool(1) as pool:
        results = pool.map(lambda _: (time.sleep(0.002), threading.get_ident())[1], range(1_000_000), chunksize=1)
        first = next(results)
        pool.resize(4)
        assert any(thread != first for thread in results)  # it hangs when none comes
        results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{"chunksize": 1}, {"buffersize": 3}, {}])
def test_a_map_whose_items_block_grows_with_the_pool(options):
    """The second item waits for the third, so nothing ends before another worker takes that."""
    both = threading.Barrier(2)
    with ThreadPool(1) as pool:
        results = pool.map(lambda number: number and both.wait(HANG) + 1, range(3), **options)
        assert next(results) == 0
        until(lambda: both.n_waiting == 1)
        pool.resize(4)
        assert sorted(results) == [1, 2]


def test_two_maps_share_the_pool(pool):
    one, other = pool.map(abs, range(1000)), pool.map(abs, range(1000))
    assert list(zip(one, other, strict=True)) == [(n, n) for n in range(1000)]


def test_map_with_options_has_a_task_for_each_item():
    token = CancelToken()
    with ThreadPool(2, order="priority") as pool:
        assert list(pool.options(cancel=token).map(pow, [2, 3], [2, 2])) == [4, 9]
        assert list(itertools.islice(pool.options(timeout=3600).map(abs, itertools.count(), buffersize=3), 5)) == [
            0,
            1,
            2,
            3,
            4,
        ]
        workers = set(pool.options(key="k").map(lambda _: threading.get_ident(), range(20)))
        assert len(workers) == 1
        assert list(pool.options(priority=3).map(abs, [-1])) == [1]


def test_progress_shows_a_bar_on_a_terminal_and_nothing_elsewhere(capsys, pool, monkeypatch):
    assert list(pool.map(abs, range(10), progress=True)) == list(range(10))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert list(pool.map(abs, range(10), progress=True)) == list(range(10))
    assert "10/10" in capsys.readouterr().err

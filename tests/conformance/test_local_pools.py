"""What every local pool promises, tried on each kind: threads, processes, coroutines.

Tasks keep a journal of their own (`pool_calls.note`, `hold`), and what a pool says is compared with that. What differs
by nature is in one table, `NATURES`, and nowhere else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local_pools import KINDS, local_pool
from millpond import CancelToken, Event, PoolClosed, PoolFull, Statistics, TaskTimeout
from pool_calls import Gate, Journal, fail, fail_at, hold, is_quick, note, same, worker
from waiting import HANG, becomes, never, until


@dataclass(frozen=True)
class Nature:
    """What a kind of pool can and cannot do."""

    cancels_running: bool
    """A running task can be cancelled (a coroutine can; a function cannot be stopped)."""
    has_workers: bool
    """There are workers that start and stop, stay when idle, and own keys (an `AsyncPool` has places only)."""
    sends_ahead: bool
    """Quick calls are sent to a worker before it has ended the last: they run, though nobody wants them any more."""
    maps_like_the_standard: bool
    """A map whose results nobody began to read runs to its end, closed or not, as in the standard library."""
    has_subpools: bool
    can_be_forked: bool


NATURES = {
    "threads": Nature(
        cancels_running=False,
        has_workers=True,
        sends_ahead=False,
        maps_like_the_standard=True,
        has_subpools=True,
        can_be_forked=True,
    ),
    "processes": Nature(
        cancels_running=False,
        has_workers=True,
        sends_ahead=True,
        maps_like_the_standard=True,
        has_subpools=False,
        can_be_forked=True,
    ),
    "asyncio": Nature(
        cancels_running=True,
        has_workers=False,
        sends_ahead=False,
        maps_like_the_standard=False,
        has_subpools=True,
        can_be_forked=False,
    ),
}

WORKERS, QUEUED = 2, 2
WORDS = ("block", "raise", "drop", "drop_oldest", "caller_runs")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def nature(kind: str) -> Nature:
    return NATURES[kind]


@pytest.fixture
def make(kind: str) -> Iterator[Callable[..., Any]]:
    """Makes pools of this kind, which end with the test."""
    with ExitStack() as stack:
        yield lambda max_workers=WORKERS, **options: stack.enter_context(local_pool(kind, max_workers, **options))


@pytest.fixture(scope="module")
def processes() -> Iterator[Any]:
    with local_pool("processes", min_workers=WORKERS, idle_timeout=None) as pool:
        yield pool


@pytest.fixture
def pool(kind: str, request: pytest.FixtureRequest, make: Callable[..., Any]) -> Any:
    """A plain pool of this kind: processes are slow to start, so theirs serves the whole module."""
    return request.getfixturevalue("processes") if kind == "processes" else make()


@pytest.fixture
def gates(make: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[[], Gate]]:
    """Makes gates, which are opened before the pools end."""
    made: list[Gate] = []

    def gate() -> Gate:
        made.append(Gate(tmp_path, f"gate-{len(made)}"))
        return made[-1]

    yield gate
    for each in made:
        each.open()


@pytest.fixture
def gate(gates: Callable[[], Gate]) -> Gate:
    return gates()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


def held(pool: Any, gate: Gate, number: int = WORKERS) -> list[Any]:
    """Hold `number` workers of a pool in a gate."""
    before = gate.began()
    tasks = [pool.submit(hold, gate.path, each) for each in range(number)]
    gate.wait_for(before + number)
    return tasks


def at_rest(pool: Any) -> Statistics:
    """Return the counts of a pool in which nothing is in motion any more."""
    assert pool.drain(HANG)
    until(lambda: not pool.statistics().running)
    return pool.statistics()  # type: ignore[no-any-return]


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_a_task_returns_what_its_function_returns(pool):
    assert pool.submit(same, 5).result(HANG) == 5
    assert [task.result(HANG) for task in pool.submit_many(same, [(n,) for n in range(50)])] == list(range(50))
    assert pool.try_submit(same, 6).result(HANG) == 6
    assert pool.options(key="k", timeout=HANG).submit(same, 7).result(HANG) == 7


def test_a_task_raises_what_its_function_raises(pool):
    task = pool.submit(fail, "as it is")
    with pytest.raises(ValueError, match="^as it is$"):
        task.result(HANG)
    assert isinstance(task.exception(HANG), ValueError)
    assert task.done() and not task.cancelled()


def test_a_task_that_is_cancelled_before_it_starts_never_runs(make, journal):
    pool = make()
    pool.pause()
    first, second = (pool.submit(note, journal.path, n) for n in range(2))
    assert first.cancel() is True
    assert first.cancelled() and first.done()
    with pytest.raises(CancelledError):
        first.result(HANG)
    pool.resume()
    assert second.result(HANG) == 1
    assert journal.of("begin") == ["1"]
    assert at_rest(pool).cancelled == 1


def test_only_a_coroutine_can_be_cancelled_while_it_runs(pool, nature, gate):
    (task,) = held(pool, gate, 1)
    assert task.running()
    assert task.cancel() is nature.cancels_running
    gate.open()
    if nature.cancels_running:
        with pytest.raises(CancelledError):
            task.result(HANG)
        assert gate.journal.of("end") == []
    else:
        assert task.result(HANG) == 0


def test_a_task_that_has_ended_cannot_be_cancelled(pool):
    task = pool.submit(same, 5)
    assert task.result(HANG) == 5
    assert task.cancel() is False
    assert task.result(0) == 5


# -- counts and events -------------------------------------------------------------------------------------------------


def test_the_counts_agree_with_what_the_tasks_wrote_down(make, gate, journal):
    pool = make()
    tasks = held(pool, gate)
    for number in range(30):
        source = pool.options(key=number % 3) if number % 4 == 0 else pool
        tasks.append(source.submit(note, journal.path, number, "bad" if number % 5 == 0 else ""))
    cancelled = sum(task.cancel() for task in tasks[5::7])
    assert cancelled == len(tasks[5::7])
    now = pool.statistics()
    assert (now.running, now.queued, now.submitted) == (WORKERS, 30 - cancelled, len(tasks))
    gate.open()
    now = at_rest(pool)
    assert now.completed == gate.began() + len(journal.of("begin"))
    assert now.failed == len(journal.of("fail"))
    assert now.cancelled == cancelled == sum(task.cancelled() for task in tasks)
    assert now.submitted == len(tasks) == now.completed + now.cancelled
    assert (now.queued, now.running, now.rejected) == (0, 0, 0)


def test_every_task_is_told_of_as_an_event(make, nature, gate, journal):
    events: list[Event] = []
    pool = make(on_event=events.append)
    tasks = held(pool, gate)
    tasks += [pool.submit(note, journal.path, number, "bad" if number == 3 else "") for number in range(10)]
    assert tasks[-1].cancel()
    gate.open()
    at_rest(pool)
    pool.shutdown()
    becomes(lambda: [event.name for event in events].count("pool_closed"), 1)
    becomes(lambda: [event.name for event in events].count("task_finished"), WORKERS + 8)
    names = Counter(event.name for event in events)
    assert names["task_started"] == WORKERS + 9 == gate.began() + len(journal.of("begin"))
    assert names["task_failed"] == 1 == len(journal.of("fail"))
    assert names["task_cancelled"] == 1
    assert names["pool_closed"] == 1
    assert {event.pool for event in events} == {pool.statistics().name}
    (failure,) = (event for event in events if event.name == "task_failed")
    assert isinstance(failure.data["error"], ValueError)


def test_the_event_of_a_start_says_how_long_the_task_has_waited(make, gate):
    events: list[Event] = []
    pool = make(1, on_event=events.append)
    held(pool, gate, 1)
    late = pool.submit(same, 5)
    never(late.done)
    gate.open()
    assert late.result(HANG) == 5
    becomes(lambda: [event.name for event in events].count("task_started"), 2)
    first, second = (event.data["waited"] for event in events if event.name == "task_started")
    assert first >= 0
    assert second >= 0.1, "it waited while `never` looked"


def test_workers_come_and_go_in_the_events(make, nature):
    events: list[str] = []
    pool = make(on_event=lambda event: events.append(event.name))
    pool.submit(same).result(HANG)
    pool.shutdown()
    if nature.has_workers:
        until(lambda: events.count("worker_stopped") == events.count("worker_started") > 0)
    else:
        assert "worker_started" not in events


@pytest.mark.parametrize("cancel_futures", [False, True])
def test_a_pool_says_once_that_it_is_closed(make, gate, cancel_futures):
    events: list[str] = []
    pool = make(on_event=lambda event: events.append(event.name))
    held(pool, gate)
    queued = [pool.submit(hold, gate.path) for _ in range(3)]
    pool.shutdown(wait=False, cancel_futures=cancel_futures)
    assert [task.cancelled() for task in queued] == [cancel_futures] * 3
    with pytest.raises(PoolClosed):
        pool.submit(same)
    gate.open()
    assert pool.shutdown(timeout=HANG) is True
    assert pool.shutdown(cancel_futures=cancel_futures) is True
    until(lambda: events.count("task_cancelled") >= 3 * cancel_futures)
    becomes(lambda: events.count("pool_closed"), 1)
    assert pool.statistics().state == "closed"


# -- purge and drain ---------------------------------------------------------------------------------------------------


def test_purge_cancels_what_has_not_started_and_nothing_else(make, gate):
    pool = make()
    running = held(pool, gate)
    queued = [pool.submit(hold, gate.path) for _ in range(5)]
    queued += [pool.options(key="k").submit(hold, gate.path) for _ in range(2)]
    assert pool.purge() == 7
    assert all(task.cancelled() for task in queued)
    assert pool.purge() == 0
    assert (pool.statistics().queued, pool.statistics().cancelled) == (0, 7)
    gate.open()
    assert [task.result(HANG) for task in running] == [0, 1]
    assert at_rest(pool).completed == 2 == gate.began()
    assert pool.options(key="k").submit(same, 5).result(HANG) == 5


def test_drain_waits_for_everything_and_leaves_the_pool_open(make, gate):
    pool = make()
    assert pool.drain() is True
    tasks = [*held(pool, gate), *(pool.submit(same, n) for n in range(5))]
    assert pool.drain(0.01) is False
    gate.open()
    assert pool.drain(HANG) is True
    assert all(task.done() for task in tasks)
    assert pool.submit(same, 5).result(HANG) == 5


@pytest.mark.parametrize("verb", ["drain", "shutdown"])
@pytest.mark.parametrize(
    ("timeout", "error"), [("x", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)]
)
def test_a_time_out_that_is_none_is_refused(pool, verb, timeout, error):
    with pytest.raises(error, match="timeout must be"):
        getattr(pool, verb)(timeout=timeout)
    assert pool.submit(same, 5).result(HANG) == 5, "and nothing was changed"


# -- bounds ------------------------------------------------------------------------------------------------------------


def room(pool: Any, gate: Gate) -> int:
    """Count the tasks that an idle pool takes in before it is full."""
    number = 0
    while number < 100 and pool.try_submit(hold, gate.path, number) is not None:
        number += 1
    gate.open()
    at_rest(pool)
    return number


@pytest.mark.parametrize("word", WORDS)
def test_a_full_pool_does_what_its_word_says(make, gates, word):
    pool, gate = make(max_queued=QUEUED, when_full=word), gates()
    running = held(pool, gate)
    queued = [pool.submit(hold, gate.path, number) for number in (2, 3)]
    outcome: list[Any] = []
    other = threading.Thread(target=lambda: outcome.append(_outcome(pool, gate)), daemon=True)
    if word == "raise":
        with pytest.raises(PoolFull):
            pool.submit(same, 4)
    elif word == "drop":
        assert pool.submit(same, 4).cancelled()
    elif word == "drop_oldest":
        queued.append(pool.submit(hold, gate.path, 4))
        assert [task.cancelled() for task in queued] == [True, False, False]
    elif word == "caller_runs":
        assert pool.submit(same, 4).result(0) == 4
    else:
        other.start()
        becomes(lambda: pool.statistics().waiting_submitters, 1)
        never(lambda: outcome)
    assert gate.began() == WORKERS, "nothing more was started"
    gate.open()
    if word == "block":
        other.join(HANG)
        assert outcome == [4]
    assert [task.result(HANG) for task in running] == [0, 1]
    assert [task.result(HANG) for task in queued if not task.cancelled()] == {"drop_oldest": [3, 4]}.get(word, [2, 3])
    now = at_rest(pool)
    assert now.rejected == (word in ("raise", "drop", "drop_oldest"))
    assert now.cancelled == (word in ("drop", "drop_oldest"))
    assert now.waiting_submitters == 0
    assert room(pool, gates()) == WORKERS + QUEUED


def _outcome(pool: Any, gate: Gate) -> Any:
    try:
        return pool.submit(hold, gate.path, 4).result(HANG)
    except BaseException as error:
        return error


def test_a_task_that_is_turned_away_is_told_of_as_an_event(make, gate):
    events: list[str] = []
    pool = make(max_queued=0, when_full="raise", on_event=lambda event: events.append(event.name))
    held(pool, gate)
    for _ in range(3):
        with pytest.raises(PoolFull):
            pool.submit(same)
    assert pool.try_submit(same) is None
    becomes(lambda: events.count("task_rejected"), 4)
    assert pool.statistics().rejected == 4


def test_no_more_tasks_than_the_bound_are_in_a_pool_however_many_submit(make, gates):
    pool, gate = make(max_queued=QUEUED), gates()
    outcomes: list[Any] = []
    threads = [threading.Thread(target=lambda: outcomes.append(_outcome(pool, gate)), daemon=True) for _ in range(9)]
    for thread in threads:
        thread.start()
    becomes(lambda: pool.statistics().waiting_submitters, 9 - WORKERS - QUEUED)
    gate.wait_for(WORKERS)
    now = pool.statistics()
    assert (now.running, now.queued) == (WORKERS, QUEUED)
    assert pool.try_submit(same) is None
    gate.open()
    for thread in threads:
        thread.join(HANG)
    assert outcomes == [4] * 9
    assert at_rest(pool).completed == 9
    assert room(pool, gates()) == WORKERS + QUEUED


def _failures(pool: Any, gate: Gate) -> None:
    for _ in range(20):
        assert pool.submit(fail).exception(HANG)


def _cancellations(pool: Any, gate: Gate) -> None:
    for _ in range(10):
        pool.pause()
        tasks = [task for _ in range(QUEUED) if (task := pool.try_submit(same)) is not None]
        assert tasks and all(task.cancel() for task in tasks)
        pool.resume()


def _purges(pool: Any, gate: Gate) -> None:
    for _ in range(5):
        pool.pause()
        assert pool.try_submit(same) and pool.options(key="k").try_submit(same)
        assert pool.purge() == 2
        pool.resume()


def _tokens(pool: Any, gate: Gate) -> None:
    spent = CancelToken()
    spent.cancel()
    for _ in range(10):
        assert pool.options(cancel=spent).submit(same).cancelled()


def _maps(pool: Any, gate: Gate) -> None:
    assert list(pool.map(same, range(50))) == list(range(50))
    assert list(pool.map(same, range(50), buffersize=3)) == list(range(50))
    with pytest.raises(ValueError, match="bad 3"):
        list(pool.map(fail_at, range(20), [3] * 20))


def _keys(pool: Any, gate: Gate) -> None:
    for number in range(30):
        assert pool.options(key=number % 3).submit(same, number).result(HANG) == number


def _subpools(pool: Any, gate: Gate) -> None:
    if not hasattr(pool, "subpool"):
        return
    part = pool.subpool(1)
    for number in range(30):
        assert part.submit(same, number).result(HANG) == number
    assert list(part.map(same, range(50))) == list(range(50))


def _time_outs(pool: Any, gate: Gate) -> None:
    with pytest.raises(TaskTimeout):
        pool.options(timeout=0.02).submit(hold, gate.path).result(HANG)


def _caller_runs(pool: Any, gate: Gate) -> None:
    held(pool, gate)
    queued = [pool.submit(same, number) for number in range(QUEUED)]
    for number in range(10):
        assert pool.submit(same, number).result(0) == number
        assert pool.submit(fail).exception(0)
    gate.open()
    assert [task.result(HANG) for task in queued] == list(range(QUEUED))


DISTURBANCES = [
    _failures, _cancellations, _purges, _tokens, _maps, _keys, _subpools, _time_outs, _caller_runs
]  # fmt: skip


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda each: each.__name__[1:])
def test_the_bound_is_afterwards_what_it_was_at_first(make, gates, disturb):
    pool = make(max_queued=QUEUED, when_full="caller_runs")
    assert room(pool, gates()) == WORKERS + QUEUED
    gate = gates()
    disturb(pool, gate)
    gate.open()
    at_rest(pool)
    assert room(pool, gates()) == WORKERS + QUEUED
    assert room(pool, gates()) == WORKERS + QUEUED


# -- keys --------------------------------------------------------------------------------------------------------------


def test_the_tasks_of_a_key_run_one_at_a_time_in_order_in_one_worker(make, nature, journal):
    pool = make(3)
    tasks = [pool.options(key=f"k{n % 4}").submit(note, journal.path, f"{n % 4}.{n // 4}") for n in range(80)]
    assert all(task.result(HANG) for task in tasks)
    for key in range(4):
        lines = [line for line in journal.lines() if line[1].startswith(f"{key}.")]
        wanted = [[verb, f"{key}.{step}"] for step in range(20) for verb in ("begin", "end")]
        assert [line[:2] for line in lines] == wanted
        assert len({line[2] for line in lines}) == 1


def test_a_cancelled_task_of_a_key_holds_up_none_of_the_others(make, gate, journal):
    pool = make()
    first = pool.options(key="k").submit(hold, gate.path)
    gate.wait_for(1)
    tasks = [pool.options(key="k").submit(note, journal.path, number) for number in range(6)]
    assert tasks[0].cancel() and tasks[3].cancel() and tasks[5].cancel()
    assert pool.submit(same, 5).result(HANG) == 5, "tasks without the key pass"
    assert journal.lines() == []
    gate.open()
    assert first.result(HANG) is None
    assert [tasks[number].result(HANG) for number in (1, 2, 4)] == [1, 2, 4]
    assert journal.of("begin") == ["1", "2", "4"]
    assert at_rest(pool).cancelled == 3
    assert pool.options(key="k").submit(same, 6).result(HANG) == 6


def test_the_order_of_a_key_holds_on_a_full_pool_whose_callers_are_to_run_tasks(make, gate):
    pool = make(1, max_queued=0, when_full="caller_runs")
    held(pool, gate, 1)
    tasks = [pool.options(key="k").submit(same, number) for number in range(3)]
    gate.open()
    assert [task.result(HANG) for task in tasks] == [0, 1, 2]
    at_rest(pool)
    assert pool.options(key="k").submit(same, 5).result(HANG) == 5
    assert at_rest(pool).completed == 5


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_group_waits_for_all_of_its_tasks(pool, gate):
    with pool.group() as group:
        tasks = [group.submit(hold, gate.path, number) for number in range(5)]
        gate.open()
    assert all(task.done() for task in tasks)
    assert [task.result(0) for task in tasks] == list(range(5))


def test_the_first_error_of_a_group_cancels_what_has_not_started(make, gate):
    pool = make(1)
    (blocker,) = held(pool, gate, 1)
    with pytest.raises(ValueError, match="bad"), pool.group() as group:
        first = group.submit(fail)
        rest = [group.submit(hold, gate.path) for _ in range(5)]
        gate.open()
        until(first.done)
        until(lambda: all(task.done() for task in rest))
        assert all(task.cancelled() for task in rest)
        assert group.submit(same).cancelled(), "and takes no more"
    assert blocker.result(HANG) == 0
    assert gate.began() == 1
    assert at_rest(pool).failed == 1


def test_an_error_in_the_block_of_a_group_cancels_what_has_not_started(make, gate):
    pool = make(1)
    held(pool, gate, 1)
    with pytest.raises(KeyError), pool.group() as group:
        rest = [group.submit(hold, gate.path) for _ in range(5)]
        raise KeyError("mine")
    assert all(task.cancelled() for task in rest)
    assert at_rest_after(pool, gate).cancelled == 5


def at_rest_after(pool: Any, gate: Gate) -> Statistics:
    gate.open()
    return at_rest(pool)


# -- maps --------------------------------------------------------------------------------------------------------------


def test_a_map_gives_its_results_in_order(pool):
    assert list(pool.map(same, range(500))) == list(range(500))
    assert list(pool.map(max, range(10), range(5, 15))) == list(range(5, 15))
    assert list(pool.map(same, [])) == []
    assert list(pool.options(timeout=HANG).map(same, range(20))) == list(range(20))


def test_an_unordered_map_gives_what_is_ready(pool, gate):
    results = pool.map(is_quick, range(10), [0] * 10, [gate.path] * 10, ordered=False, **_one_by_one(pool))
    quick = [next(results) for _ in range(9)]
    assert sorted(quick) == list(range(1, 10))
    gate.open()
    assert list(results) == [0]


def _one_by_one(pool: Any) -> dict[str, int]:
    """Give each item a journey of its own, where items travel in chunks."""
    return {} if pool.statistics().kind == "asyncio" else {"chunksize": 1}


def test_a_lazy_map_reads_no_further_ahead_than_it_was_told(pool):
    read: list[int] = []

    def source() -> Iterator[int]:
        for number in range(1_000_000):
            read.append(number)
            yield number

    results = pool.map(same, source(), buffersize=5)
    assert len(read) <= 5
    assert [next(results) for _ in range(20)] == list(range(20))
    assert len(read) <= 20 + 5
    results.close()
    assert pool.drain(HANG)
    assert len(read) <= 20 + 5


def test_an_error_in_the_middle_of_a_map_comes_in_its_place_and_ends_it(pool):
    before = at_rest(pool)
    results = pool.map(fail_at, range(100), [30] * 100)
    assert [next(results) for _ in range(30)] == list(range(30))
    with pytest.raises(ValueError, match="bad 30"):
        next(results)
    assert list(results) == []
    now = at_rest(pool)
    assert now.failed - before.failed == 1
    assert now.completed - before.completed + now.cancelled - before.cancelled == 100
    assert pool.submit(same, 5).result(HANG) == 5


@pytest.mark.parametrize("taken", [0, 1])
def test_a_map_that_is_closed_early_starts_nothing_more(make, nature, gates, taken):
    pool, opened, gate = make(), gates(), gates()
    opened.open()
    paths = [opened.path] * taken + [gate.path] * (50 - taken)
    results = pool.map(hold, paths, range(50), **_one_by_one(pool))
    assert [next(results) for _ in range(taken)] == list(range(taken))
    gate.wait_for(WORKERS)
    results.close()
    gate.open()
    now = at_rest(pool)
    if nature.maps_like_the_standard and not taken:
        assert gate.began() == 50
    else:
        assert gate.began() < 50 if nature.sends_ahead else gate.began() == WORKERS
    assert now.completed + now.cancelled == 50
    assert now.queued == 0


def test_a_map_tells_its_progress_to_a_callable(pool):
    told: list[tuple[int, int | None]] = []
    assert list(pool.map(same, range(50), progress=lambda done, total: told.append((done, total)))) == list(range(50))
    assert told[-1] == (50, 50)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {total for _, total in told} == {50}
    told.clear()
    endless = (number for number in range(5))
    assert len(list(pool.map(same, endless, progress=lambda done, total: told.append((done, total))))) == 5
    assert [done for done, _ in told] == [1, 2, 3, 4, 5]


def test_the_items_of_a_map_are_counted_as_tasks(make, gate):
    pool = make()
    held(pool, gate)
    results = pool.map(same, range(100))
    assert pool.statistics().queued == 100
    gate.open()
    assert list(results) == list(range(100))
    now = at_rest(pool)
    assert now.completed == 102 == now.submitted
    assert (now.queued, now.cancelled, now.failed) == (0, 0, 0)


def test_a_map_that_is_purged_says_that_it_was_cancelled(make, gate):
    pool = make()
    held(pool, gate)
    results = pool.map(same, range(100))
    assert pool.purge() == 100
    with pytest.raises(CancelledError):
        next(results)
    gate.open()
    now = at_rest(pool)
    assert (now.completed, now.cancelled) == (2, 100)


def test_what_a_map_starts_it_ends_in_the_events_too(make):
    events: Counter[str] = Counter()
    pool = make(on_event=lambda event: events.update([event.name]))
    assert list(pool.map(same, range(50))) == list(range(50))
    with pytest.raises(ValueError, match="bad 3"):
        list(pool.map(fail_at, range(10), [3] * 10))
    at_rest(pool)
    pool.shutdown()
    until(lambda: events["pool_closed"])
    until(lambda: events["task_started"] == events["task_finished"] + events["task_failed"])


# -- subpools ----------------------------------------------------------------------------------------------------------


def test_a_subpool_runs_at_most_its_share(make, nature, gate):
    if not nature.has_subpools:
        assert not hasattr(make(1), "subpool")
        return
    pool = make(4)
    part = pool.subpool(2)
    tasks = [part.submit(hold, gate.path, number) for number in range(6)]
    gate.wait_for(2)
    assert pool.submit(same, 5).result(HANG) == 5, "the rest of the parent is free"
    never(lambda: gate.began() > 2)
    now = part.statistics()
    assert (now.running, now.queued, now.max_workers) == (2, 4, 2)
    assert tasks[-1].cancel() and tasks[-1].cancelled()
    assert part.purge() == 3
    gate.open()
    assert [task.result(HANG) for task in tasks[:2]] == [0, 1]
    now = at_rest(part)
    assert (now.completed, now.cancelled, now.queued, now.running) == (2, 4, 0, 0)
    assert at_rest(pool).running == 0


def test_a_parent_waits_for_the_tasks_of_its_subpools(make, nature, gate):
    if not nature.has_subpools:
        return
    pool = make(2)
    part = pool.subpool(1)
    tasks = [part.submit(hold, gate.path, number) for number in range(3)]
    assert pool.drain(0.01) is False
    gate.open()
    assert pool.drain(HANG) is True
    assert [task.done() for task in tasks] == [True] * 3


# -- fork --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pool_can_be_used_in_a_forked_child(kind, nature):
    if not nature.can_be_forked:
        return
    script = f"""
        import os, sys, time, warnings
        warnings.simplefilter("ignore")
        from millpond import PoolClosed, ProcessPool, ThreadPool

        def works(pool):
            key = [pool.options(key="k").submit(int, n).result(50) for n in range(3)]
            bound = [pool.submit(abs, -n).result(50) for n in range(20)]
            return key == [0, 1, 2] and bound == list(range(20)) and list(pool.map(abs, range(20))) == list(range(20))

        if __name__ == "__main__":
            pool = {"ThreadPool" if kind == "threads" else "ProcessPool"}(1, max_queued=3)
            assert works(pool)
            slow = pool.submit(time.sleep, 1)
            queued = [pool.submit(abs, -1) for _ in range(3)]  # full: these are the parent's to run
            child = os.fork()
            if not child:
                try:
                    ends = [type(task.exception(50)) is PoolClosed for task in [slow, *queued]]
                    good = all(ends) and works(pool) and pool.shutdown(timeout=50)
                except BaseException as error:
                    print(repr(error), file=sys.stderr)
                    good = False
                os._exit(0 if good else 3)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert [task.result(50) for task in queued] == [1, 1, 1]
            assert works(pool) and pool.shutdown(timeout=50)
            sys.exit(status)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=HANG, check=False)
    assert done.returncode == 0


# -- managing ----------------------------------------------------------------------------------------------------------


def test_a_pool_that_was_shut_down_can_be_opened_again(make, nature):
    pool = make(3, min_workers=2, idle_timeout=None)
    assert pool.submit(same, 5).result(HANG) == 5
    assert pool.shutdown() is True
    with pytest.raises(PoolClosed):
        pool.submit(same)
    pool.restart()
    assert pool.statistics().state == "open"
    if nature.has_workers:
        until(lambda: pool.statistics().workers >= 2)
    assert pool.submit(same, 6).result(HANG) == 6
    assert list(pool.map(same, range(5))) == list(range(5))
    assert pool.options(key="k").submit(same, 7).result(HANG) == 7
    assert at_rest(pool).completed == 8


def test_a_paused_pool_starts_nothing_until_it_is_resumed(make, journal):
    pool = make(1)
    pool.submit(same).result(HANG)
    pool.pause()
    tasks = [pool.submit(note, journal.path, number) for number in range(5)]
    keyed = pool.options(key="k").submit(note, journal.path, 5)
    results = pool.map(note, [journal.path] * 3, [6, 7, 8])
    never(lambda: journal.lines())
    assert pool.statistics().state == "paused" and pool.statistics().queued == 9
    pool.resume()
    assert [task.result(HANG) for task in [*tasks, keyed]] == list(range(6))
    assert list(results) == [6, 7, 8]
    assert pool.statistics().state == "open"
    assert [each for each in journal.of("begin") if int(each) < 5] == list("01234"), "in the order of their submits"


def test_a_paused_pool_that_is_shut_down_runs_what_is_queued(make):
    pool = make(1)
    pool.pause()
    tasks = [pool.submit(same, number) for number in range(3)]
    assert pool.shutdown(timeout=HANG) is True
    assert [task.result(0) for task in tasks] == [0, 1, 2]


def test_a_pool_that_is_resized_runs_as_many_tasks_at_once(make, gates):
    pool = make(1)
    gate = gates()
    tasks = [pool.submit(hold, gate.path, number) for number in range(3)]
    gate.wait_for(1)
    pool.resize(3)
    gate.wait_for(3)
    assert pool.statistics().max_workers == 3
    pool.resize(1)
    gate.open()
    assert [task.result(HANG) for task in tasks] == [0, 1, 2]
    at_rest(pool)
    gate = gates()
    tasks = [pool.submit(hold, gate.path, number) for number in range(3)]
    gate.wait_for(1)
    never(lambda: gate.began() > 1)
    gate.open()
    assert [task.result(HANG) for task in tasks] == [0, 1, 2]


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_a_size_that_is_none_is_refused(pool, number):
    with pytest.raises((TypeError, ValueError), match="max_workers must be"):
        pool.resize(number)
    assert pool.statistics().max_workers == WORKERS


# -- options -----------------------------------------------------------------------------------------------------------


def test_a_task_past_its_time_limit_ends_and_leaves_the_pool_usable(make, gate):
    pool = make(1)
    late = pool.options(timeout=0.05).submit(hold, gate.path)
    assert isinstance(late.exception(HANG), TaskTimeout)
    assert not late.cancelled()
    assert pool.submit(same, 5).result(HANG) == 5
    assert pool.options(timeout=HANG).submit(same, 6).result(HANG) == 6
    gate.open()
    now = at_rest(pool)
    assert (now.failed, now.completed) == (1, 3)


def test_a_time_limit_counts_from_the_start_of_its_task(make, gate):
    pool = make(1)
    held(pool, gate, 1)
    task = pool.options(timeout=5).submit(same, 5)
    assert not task.done()
    gate.open()
    assert task.result(HANG) == 5


def test_a_token_cancels_its_tasks_that_have_not_started(make, gate):
    pool, token = make(1), CancelToken()
    held(pool, gate, 1)
    mine = [pool.options(cancel=token, key=key).submit(hold, gate.path) for key in (None, "k", None, "k")]
    others = [pool.submit(same, number) for number in range(3)]
    token.cancel()
    until(lambda: all(task.cancelled() for task in mine))
    assert pool.options(cancel=token).submit(same).cancelled()
    gate.open()
    assert [task.result(HANG) for task in others] == [0, 1, 2]
    now = at_rest(pool)
    assert (now.cancelled, now.completed) == (5, 4)
    assert gate.began() == 1


# -- the queueing delay ------------------------------------------------------------------------------------------------


def test_a_pool_knows_how_long_tasks_wait(make, gate):
    pool = make(1)
    pool.submit(worker).result(HANG)
    assert pool.statistics().queueing_delay in (None, 0.0) or pool.statistics().queueing_delay < 1
    held(pool, gate, 1)
    for _ in range(5):
        pool.submit(same)
    until(lambda: (pool.statistics().queueing_delay or 0) > 0.05)
    gate.open()
    at_rest(pool)
    until(lambda: (pool.statistics().queueing_delay or 0) < 0.05, "an idle pool has no delay")

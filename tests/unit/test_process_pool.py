"""`ProcessPool`: every verb."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millpond import (
    AsyncPool,
    Block,
    CancelToken,
    Event,
    PoolClosed,
    PoolFull,
    Priority,
    ProcessPool,
    Task,
    ThreadPool,
    as_completed,
    wait,
)
from millpond.local.processes import _dispatch
from waiting import HANG, becomes, never, until

sys.path.insert(0, str(Path(__file__).parent))
import process_calls as calls


@pytest.fixture(autouse=True)
def leaves_no_process_behind() -> Iterator[None]:
    yield
    gc.collect()
    left = [child for child in multiprocessing.active_children() if (child.join(HANG), child.is_alive())[1]]
    assert not left


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(2) as pool:
        yield pool


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[calls.Gate]:
    gate = calls.Gate(tmp_path)
    yield gate
    gate.open()


def held(pool: ProcessPool, gate: calls.Gate, value: Any = None) -> Task[Any]:
    """Occupy a worker until the gate is opened."""
    task = pool.submit(calls.hold, gate.path, value)
    gate.wait()
    return task


# -- submitting --------------------------------------------------------------------------------------------------------


def test_it_is_an_executor_and_its_tasks_are_futures(pool):
    task = pool.submit(calls.square, 7)
    assert isinstance(pool, concurrent.futures.Executor)
    assert isinstance(task, concurrent.futures.Future)
    assert task.result(HANG) == 49


def test_tasks_run_in_other_processes(pool):
    assert pool.submit(calls.pid).result(HANG) != os.getpid()


def test_arguments_and_keywords_reach_the_function(pool):
    assert pool.submit(calls.add, 1, 2, scale=10).result(HANG) == 30


def test_many_quick_tasks_come_back_in_their_place(pool):
    tasks = [pool.submit(calls.square, x) for x in range(20_000)]
    assert [task.result(HANG) for task in tasks] == [x * x for x in range(20_000)]


def test_tasks_of_many_functions_can_be_mixed(pool):
    kinds = [(calls.square, (3,), 9), (calls.add, (3, 4), 7), (calls.same, ("x",), "x"), (calls.noop, (), None)]
    tasks = [(pool.submit(fn, *args), want) for _ in range(500) for fn, args, want in kinds]
    assert all(task.result(HANG) == want for task, want in tasks)


def test_a_callable_object_a_method_and_a_partial_can_be_submitted(pool):
    adder = calls.Adder(5)
    tasks = [pool.submit(adder, 1), pool.submit(adder.add, 2), pool.submit(partial(calls.add, 3), 4)]
    assert [task.result(HANG) for task in tasks] == [6, 7, 7]


def test_equal_callables_are_not_mistaken_for_one_another(pool):
    class_of = [calls.Adder(number) for number in (1, 2, 3)] * 100
    tasks = [pool.submit(adder, 0) for adder in class_of]
    assert [task.result(HANG) for task in tasks] == [1, 2, 3] * 100


def test_values_of_every_kind_come_back(pool):
    values = [None, True, 1, 1 << 100, 1.5, "é", b"x", (1, "a"), [1, [2]], {"a": {1, 2}}, range(3), Ellipsis]
    tasks = [pool.submit(calls.same, value) for value in values * 50]
    assert [task.result(HANG) for task in tasks] == values * 50


def test_an_error_keeps_its_type_its_notes_and_its_remote_traceback(pool):
    error = pool.submit(calls.fail_with_note).exception(HANG)
    assert type(error) is ValueError and str(error) == "bad"
    assert error.__notes__ == ["look here"]
    assert "in fail_with_note" in str(error.__cause__)
    assert "processes/_child" not in str(error.__cause__)


def test_errors_among_many_quick_tasks_stay_where_they_belong(pool):
    tasks = [pool.submit(calls.fail_at, x % 100, 42) for x in range(5_000)]
    bad = [x for x, task in enumerate(tasks) if task.exception(HANG) is not None]
    assert bad == list(range(42, 5_000, 100))


def test_sys_exit_in_a_task_is_its_error_and_ends_no_worker():
    with ProcessPool(1) as pool:
        before = pool.submit(calls.pid).result(HANG)
        error = pool.submit(calls.exit_politely).exception(HANG)
        assert isinstance(error, SystemExit) and error.code == 7
        assert pool.submit(calls.pid).result(HANG) == before


def test_a_cancelled_error_raised_by_a_task_is_its_error_not_its_state(pool):
    task = pool.submit(calls.cancelled_error)
    assert isinstance(task.exception(HANG), concurrent.futures.CancelledError)
    assert not task.cancelled()


def test_submit_refuses_what_is_not_callable(pool):
    with pytest.raises(TypeError, match="fn must be callable"):
        pool.submit(42)  # type: ignore[arg-type]


def test_submit_many_keeps_the_order(pool):
    tasks = pool.submit_many(calls.add, [(x, 1) for x in range(100)])
    assert [task.result(HANG) for task in tasks] == list(range(1, 101))


def test_go_runs_and_reports_its_error_as_an_event(tmp_path):
    events: list[Event] = []
    with ProcessPool(1, on_event=events.append) as pool:
        pool.go(calls.write_line, str(tmp_path / "out"), "here")
        pool.go(calls.fail, "lost?")
        assert pool.drain(HANG)
    assert (tmp_path / "out").read_text() == "here\n"
    assert any(event.name == "task_failed" and "lost?" in str(event.data["error"]) for event in events)


def test_waiting_for_many_works_with_ours_and_with_the_standard_functions(pool):
    tasks = {pool.submit(calls.square, x) for x in range(50)}
    assert wait(tasks, HANG).not_done == set()
    assert set(as_completed({pool.submit(calls.square, x) for x in range(50)}, HANG))
    more = {pool.submit(calls.square, x) for x in range(50)}
    assert concurrent.futures.wait(more, HANG).not_done == set()
    assert len(list(concurrent.futures.as_completed([pool.submit(calls.square, 1)], HANG))) == 1


def test_run_is_awaited_in_asyncio(pool):
    async def use() -> list[int]:
        direct = await asyncio.get_running_loop().run_in_executor(pool, calls.square, 3)
        return [direct, *await asyncio.gather(*(pool.run(calls.square, x) for x in range(200)))]

    assert asyncio.run(use()) == [9, *(x * x for x in range(200))]


def test_a_group_cancels_the_rest_at_the_first_error(gate):
    with ProcessPool(1) as pool:
        first = held(pool, gate)
        with pytest.raises(ValueError, match="bad"), pool.group() as group:
            group.submit(calls.fail)
            rest = [group.submit(calls.square, x) for x in range(10)]
            gate.open()
        assert first.result(HANG) is None
        assert all(task.done() for task in rest)
        assert any(task.cancelled() for task in rest)


def after_pause(pool: ProcessPool, callback: Any) -> None:
    """Add a callback to a task before it ends, so that the pool calls it."""
    pool.pause()
    pool.submit(calls.square, 4).add_done_callback(callback)
    pool.resume()


def test_a_callback_may_wait_for_tasks_of_its_own_pool_in_every_way(pool):
    seen: list[Any] = []
    done = threading.Event()

    def callback(task: Task[Any]) -> None:
        try:
            seen.append(task.result())
            seen.append(pool.submit(calls.square, 3).result(HANG))
            first = wait([pool.submit(calls.square, 2)], timeout=HANG, return_when=concurrent.futures.FIRST_COMPLETED)
            seen.append(first.done.pop().result())
            seen.extend(each.result() for each in as_completed([pool.submit(calls.square, 5)]))
            seen.extend(pool.map(calls.square, [6, 7]))
        finally:
            done.set()

    after_pause(pool, callback)
    assert done.wait(HANG)
    assert seen == [16, 9, 4, 25, 36, 49]


def test_a_slow_callback_holds_up_no_task_and_callbacks_keep_their_order():
    go_on, seen = threading.Event(), []
    with ProcessPool(1, name="mill") as pool:
        pool.pause()
        tasks = [pool.submit(calls.square, x) for x in range(5)]
        tasks[0].add_done_callback(lambda _: go_on.wait(HANG))
        for x, task in enumerate(tasks):
            task.add_done_callback(lambda _, x=x: seen.append((x, threading.current_thread().name)))  # type: ignore[misc]
        pool.resume()
        assert [task.result(HANG) for task in tasks] == [0, 1, 4, 9, 16]
        assert pool.submit(calls.square, 9).result(HANG) == 81
        assert not seen and not pool.drain(0.01)
        go_on.set()
        assert pool.drain(HANG)
    assert seen == [(x, "mill-callbacks") for x in range(5)]


def test_draining_in_a_callback_is_refused_and_shutting_down_is_not():
    pool = ProcessPool(1)
    errors: list[Any] = []

    def callback(_: Task[Any]) -> None:
        try:
            pool.drain()
        except RuntimeError as error:
            errors.append(str(error))
        errors.append(pool.shutdown())

    after_pause(pool, callback)
    assert pool.shutdown(timeout=HANG)
    assert errors[1] is True and "would wait for itself" in errors[0]


def test_a_map_sends_no_events_of_tasks_and_a_task_tells_how_long_it_waited():
    events: list[Event] = []
    with ProcessPool(1, on_event=events.append) as pool:
        assert list(pool.map(calls.square, range(100))) == [x * x for x in range(100)]
        assert pool.submit(calls.square, 2).result(HANG) == 4
    tasks = [event for event in events if event.name.startswith("task_")]
    assert [event.name for event in tasks] == ["task_started", "task_finished"]
    assert 0 <= tasks[0].data["waited"] < 20


def test_the_tasks_of_a_batch_are_reported_one_by_one_under_their_names_though_an_observer_raises(caplog, monkeypatch):
    monkeypatch.setattr(_dispatch, "RECALL_AFTER", HANG)  # on a busy machine some would be sent again, in another order
    events: list[Event] = []

    def observe(event: Event) -> None:
        events.append(event)
        if event.data.get("function") == "square":
            raise ValueError("bad observer")

    with ProcessPool(1, on_event=observe) as pool:
        for fn in (calls.square, calls.same):
            assert pool.submit(fn, 2).result(HANG) is not None  # its run time is known now
        pool.pause()
        tasks = [pool.submit(fn, x) for x in range(50) for fn in (calls.square, calls.same)]
        broken = pool.submit(calls.same, threading.Lock())
        pool.resume()
        assert [task.result(HANG) for task in tasks] == [y for x in range(50) for y in (x * x, x)]
        assert isinstance(broken.exception(HANG), pickle.PicklingError)
        assert pool.drain(HANG)
    for name in ("task_started", "task_finished"):
        assert [event.data["function"] for event in events if event.name == name] == ["square", "same"] * 51
    assert all(event.data["waited"] >= 0 for event in events if event.name == "task_started")
    assert sum(event.name == "task_failed" for event in events) == 1


def test_every_task_of_a_batch_gives_back_its_place_in_a_bounded_pool_before_its_result_is_seen():
    token = CancelToken()
    with ProcessPool(1, max_queued=200, when_full="raise") as pool:
        for number in range(4):
            tasks = [pool.submit(calls.square, x) for x in range(150)]
            tasks += [pool.options(key=x).submit(calls.square, x) for x in range(25)]
            tasks += [pool.options(cancel=token).submit(calls.square, x) for x in range(25)]
            assert all(task.cancel() or task.result(HANG) >= 0 for task in tasks[::2] + tasks), number
        assert pool.drain(HANG)
        assert not pool._runner.records.admitted


def test_an_observer_that_raises_is_logged_and_harms_nobody(caplog):
    def observe(event: Event) -> None:
        raise ValueError("bad observer")

    with ProcessPool(1, on_event=observe) as pool:
        assert pool.submit(calls.square, 2).result(HANG) == 4
    assert "on_event raised" in caplog.text


def test_a_worker_that_is_too_old_when_it_is_ready_still_runs_one_task():
    with ProcessPool(1, max_worker_age=0.0) as pool:
        tasks = [pool.submit(calls.pid) for _ in range(3)]
        assert len({task.result(HANG) for task in tasks}) == 3


def test_draining_leaves_nothing_behind(pool):
    pool.submit(calls.noop).result(HANG)
    for _ in range(100):
        assert pool.drain(HANG)
    assert not pool._runner.drainers


def test_ctrl_c_in_a_task_that_the_caller_runs_is_the_callers(gate):
    with ProcessPool(1, max_queued=0, when_full="caller_runs") as pool:
        held(pool, gate)
        with pytest.raises(KeyboardInterrupt):
            pool.submit(signal.raise_signal, signal.SIGINT)
        gate.open()
        assert pool.drain(HANG)
        assert pool.statistics().failed == 1


def test_a_retried_task_and_item_leave_no_record_behind(tmp_path):
    with ProcessPool(1, retries=1) as pool:
        assert pool.submit(calls.die_once, str(tmp_path / "once")).result(HANG) == "second time"
        assert list(pool.map(calls.die_once, [str(tmp_path / "again")])) == ["second time"]
        assert pool.drain(HANG)
        assert not pool._runner.records.tries


def test_a_coroutine_function_is_refused(pool):
    async def nothing() -> None: ...

    with pytest.raises(TypeError, match="coroutine function"):
        pool.submit(nothing)


def test_statistics_measure_how_long_tasks_wait(gate):
    with ProcessPool(1) as pool:
        held(pool, gate)
        waiting = pool.submit(calls.noop)
        assert pool.statistics().queueing_delay is not None
        gate.open()
        waiting.result(HANG)
        assert pool.drain(HANG)
        assert pool.statistics().queueing_delay == 0.0


def test_a_callback_that_exits_harms_nobody(pool):
    done = threading.Event()
    task = pool.submit(calls.square, 4)
    task.add_done_callback(lambda _: (done.set(), sys.exit(1)))
    assert done.wait(HANG)
    assert pool.submit(calls.square, 5).result(HANG) == 25


# -- options -----------------------------------------------------------------------------------------------------------


def test_higher_priorities_run_first(tmp_path, gate):
    out = tmp_path / "out"
    with ProcessPool(1, order="priority") as pool:
        held(pool, gate)
        for number in (1, 5, 3, 5):
            pool.options(priority=number).submit(calls.write_line, str(out), number)
        gate.open()
        pool.drain(HANG)
    assert out.read_text().split() == ["5", "5", "3", "1"]


def test_lanes_and_lifo_keep_their_order(tmp_path):
    for order, want in ((Priority(levels=3), ["2", "1", "0"]), ("lifo", ["2", "1", "0"])):
        gate, out = calls.Gate(tmp_path), tmp_path / f"{order}"
        with ProcessPool(1, order=order) as pool:  # type: ignore[arg-type]
            held(pool, gate)
            for number in (0, 1, 2):
                chosen = pool if order == "lifo" else pool.options(priority=number)
                chosen.submit(calls.write_line, str(out), number)
            gate.open()
            pool.drain(HANG)
        assert out.read_text().split() == want


def test_tasks_of_a_key_run_in_one_process_in_order(tmp_path):
    out = tmp_path / "out"
    with ProcessPool(3) as pool:
        pids: dict[int, set[int]] = {key: set() for key in range(5)}
        tasks = []
        for number in range(200):
            keyed = pool.options(key=number % 5)
            tasks.append((number % 5, keyed.submit(calls.pid)))
            keyed.submit(calls.write_line, str(out), f"{number % 5}:{number}")
        for key, task in tasks:
            pids[key].add(task.result(HANG))
        pool.drain(HANG)
    assert all(len(of_key) == 1 for of_key in pids.values())
    lines = [tuple(map(int, line.split(":"))) for line in out.read_text().split()]
    for key in range(5):
        assert [number for of, number in lines if of == key] == list(range(key, 200, 5))


def test_a_key_and_plain_tasks_share_the_workers(pool):
    keyed = [pool.options(key="k").submit(calls.square, x) for x in range(100)]
    plain = [pool.submit(calls.square, x) for x in range(100)]
    assert [task.result(HANG) for task in keyed + plain] == [x * x for x in range(100)] * 2


def test_a_cancelled_token_cancels_what_is_in_line(gate):
    with ProcessPool(1) as pool:
        held(pool, gate)
        token = CancelToken()
        tasks = [pool.options(cancel=token).submit(calls.square, x) for x in range(5)]
        token.cancel()
        assert all(task.cancelled() for task in tasks)
        assert pool.options(cancel=token).submit(calls.noop).cancelled()
        gate.open()
        assert pool.submit(calls.square, 2).result(HANG) == 4


def test_cancel_takes_a_task_out_of_line_but_not_out_of_a_worker(gate):
    with ProcessPool(1) as pool:
        running = held(pool, gate)
        waiting = [pool.submit(calls.square, x) for x in range(3)]
        assert not running.cancel() and running.running()
        assert waiting[1].cancel() and waiting[1].cancelled()
        gate.open()
        assert [waiting[0].result(HANG), waiting[2].result(HANG)] == [0, 4]
        assert pool.statistics().cancelled == 1


def test_ten_thousand_cancelled_tasks_are_swept_out_of_the_line(gate):
    with ProcessPool(1) as pool:
        held(pool, gate)
        tasks = [pool.submit(calls.noop) for _ in range(10_000)]
        assert all(task.cancel() for task in tasks)
        assert pool.statistics().queued == 0
        gate.open()
        assert pool.submit(calls.square, 2).result(HANG) == 4


# -- map ---------------------------------------------------------------------------------------------------------------


def test_map_yields_in_order_and_unordered(pool):
    assert list(pool.map(calls.square, range(5_000))) == [x * x for x in range(5_000)]
    assert sorted(pool.map(calls.square, range(500), ordered=False)) == [x * x for x in range(500)]
    assert list(pool.map(calls.square, [])) == []


def test_map_takes_several_iterables_and_stops_at_the_shortest(pool):
    assert list(pool.map(calls.add, range(5), itertools.count(10))) == [10, 12, 14, 16, 18]


def test_map_with_a_fixed_chunksize_and_with_progress(pool, capsys):
    assert list(pool.map(calls.square, range(100), chunksize=7, progress=True)) == [x * x for x in range(100)]


def test_map_raises_an_error_in_its_place_and_cancels_the_rest(pool, tmp_path):
    go_on = tmp_path / "go-on"
    results = pool.map(partial(calls.fail_at_or_wait, bad=30, last=500, path=str(go_on)), range(10_000))
    taken = list(itertools.islice(results, 30))
    with pytest.raises(ValueError, match="bad 30"):
        next(results)
    assert taken == list(range(30))
    go_on.touch()
    assert pool.drain(HANG)
    assert pool.statistics().completed < 5_000


def test_map_over_an_endless_source_reads_only_so_far_ahead(pool):
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        for read in itertools.count():
            yield read

    results = pool.map(calls.square, source(), buffersize=10)
    assert list(itertools.islice(results, 500)) == [x * x for x in range(500)]
    assert read < 530
    results.close()
    assert pool.drain(HANG)


def test_map_times_out(pool, gate):
    results = pool.map(calls.hold, [gate.path], timeout=0.05)
    gate.wait()
    with pytest.raises(TimeoutError, match="1 results were missing"):
        next(results)
    gate.open()


def test_map_with_options_makes_a_task_of_each(pool):
    assert list(pool.options(key="k").map(calls.square, range(10))) == [x * x for x in range(10)]


def test_a_pool_with_the_remains_of_a_map_in_line_ends_at_once():
    pool = ProcessPool(1, idle_timeout=None)
    pool.submit(calls.noop).result(HANG)
    pool.pause()
    results = pool.map(calls.square, range(100), timeout=0.01)
    with pytest.raises(TimeoutError):
        next(results)
    assert pool.shutdown(timeout=HANG)


def test_purge_ends_a_map(gate):
    with ProcessPool(1) as pool:
        held(pool, gate)
        results = pool.map(calls.square, range(1000))
        assert pool.purge() == 1000
        gate.open()
        with pytest.raises(concurrent.futures.CancelledError):
            next(results)


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_full_pool_raises_drops_and_drops_the_oldest(tmp_path):
    for policy in ("raise", "drop", "drop_oldest"):
        gate = calls.Gate(tmp_path)
        with ProcessPool(1, max_queued=1, when_full=policy) as pool:  # type: ignore[arg-type]
            held(pool, gate)
            waiting = pool.submit(calls.square, 2)
            assert pool.try_submit(calls.square, 3) is None
            if policy == "raise":
                with pytest.raises(PoolFull, match="is full"):
                    pool.submit(calls.square, 3)
            else:
                late = pool.submit(calls.square, 3)
                assert (late if policy == "drop" else waiting).cancelled()
            gate.open()
            pool.drain(HANG)


def test_a_full_pool_lets_the_caller_run_or_asks_a_callable(gate):
    asked = []

    def policy(statistics: Any, task: Any) -> Any:
        asked.append(statistics.queued)
        return "caller_runs"

    with ProcessPool(1, max_queued=0, when_full=policy) as pool:
        held(pool, gate)
        assert pool.submit(calls.pid).result(HANG) == os.getpid()
        assert asked == [0]
        gate.open()


def test_a_blocked_submitter_goes_on_when_there_is_room(gate):
    with ProcessPool(1, max_queued=0) as pool:
        held(pool, gate)
        results: list[int] = []
        blocked = threading.Thread(target=lambda: results.append(pool.submit(calls.square, 5).result(HANG)))
        blocked.start()
        until(lambda: pool.statistics().waiting_submitters)
        gate.open()
        blocked.join(HANG)
        assert results == [25]


def test_blocking_is_bounded_in_time_and_in_number(gate):
    with ProcessPool(1, max_queued=0, when_full=Block(timeout=0.01)) as pool:
        held(pool, gate)
        with pytest.raises(PoolFull, match=r"no room came within 0\.01 s"):
            pool.submit(calls.noop)
        gate.open()


def test_a_bounded_pool_takes_many_more_tasks_than_it_holds():
    with ProcessPool(2, max_queued=5) as pool:
        tasks = [pool.submit(calls.square, x) for x in range(2_000)]
        assert [task.result(HANG) for task in tasks] == [x * x for x in range(2_000)]


def test_a_callback_that_submits_to_its_full_pool_does_not_block_it():
    with ProcessPool(1, max_queued=0) as pool:
        more: list[Task[int]] = []
        done = threading.Event()

        def again(task: Task[int]) -> None:
            more.append(pool.submit(calls.square, 3))
            more.append(pool.submit(calls.square, 4))
            done.set()

        pool.submit(calls.square, 2).add_done_callback(again)
        assert done.wait(HANG)
        assert [task.result(HANG) for task in more] == [9, 16]


# -- managing ----------------------------------------------------------------------------------------------------------


def test_a_paused_pool_starts_nothing_until_it_is_resumed(pool, tmp_path):
    pool.submit(calls.noop).result(HANG)
    pool.pause()
    task = pool.submit(calls.write_line, str(tmp_path / "out"), 1)
    assert not pool.drain(0.05)
    assert pool.statistics().state == "paused" and not (tmp_path / "out").exists()
    pool.resume()
    assert task.result(HANG) == 1


def test_a_task_that_is_brought_back_from_a_worker_is_reported_as_started_once(gate):
    events: list[Event] = []
    with ProcessPool(1, on_event=events.append) as pool:
        for fn, arguments in ((calls.square, (1,)), (calls.hold, (os.devnull,))):
            pool.submit(fn, *arguments).result(HANG)
            until(lambda: pool._runner.run_times.of(fn))  # noqa: B023
            pool._runner.run_times.of(fn).seconds = 1e-6  # type: ignore[union-attr]  # quick, so far: the next are batched
        pool.pause()
        tasks = [pool.submit(calls.hold, gate.path), *(pool.submit(calls.square, number) for number in range(19))]
        pool.resume()
        gate.wait()
        until(lambda: [event.name for event in events].count("task_started") > 2 + 2)  # some were sent in advance
        pool.pause()
        becomes(lambda: len(pool._runner.backlog.queue), 19)
        gate.open()
        pool.resume()
        assert [task.result(HANG) for task in tasks[1:]] == [number * number for number in range(19)]
    names = [event.name for event in events]
    assert names.count("task_started") == names.count("task_finished") == 2 + 20


def test_pausing_brings_back_what_was_sent_in_advance(tmp_path, gate, monkeypatch):
    monkeypatch.setattr(_dispatch, "RECALL_AFTER", 3600.0)  # no other reason to bring anything back
    out = tmp_path / "out"
    with ProcessPool(1) as pool:
        for fn, arguments in ((calls.write_line, (str(out), 0)), (calls.hold, (os.devnull,))):
            pool.submit(fn, *arguments).result(HANG)
            until(lambda: pool._runner.run_times.of(fn))  # noqa: B023
            pool._runner.run_times.of(fn).seconds = 1e-6  # type: ignore[union-attr]  # quick, so far: the next are batched
        pool.pause()
        tasks = [pool.submit(calls.hold, gate.path)]
        tasks += [pool.submit(calls.write_line, str(out), number) for number in range(1, 20)]
        pool.resume()
        gate.wait()
        pool.pause()
        before = len(out.read_text().split())
        becomes(lambda: len(pool._runner.backlog.queue), 19)
        gate.open()
        assert tasks[0].result(HANG) is None
        assert not pool.drain(0.1)
        assert len(out.read_text().split()) == before
        pool.resume()
        assert [task.result(HANG) for task in tasks[1:]] == list(range(1, 20))


def test_purge_cancels_what_waits(gate):
    with ProcessPool(1) as pool:
        running = held(pool, gate)
        waiting = [pool.submit(calls.noop) for _ in range(7)] + [pool.options(key=1).submit(calls.noop)]
        assert pool.purge() == 8
        assert all(task.cancelled() for task in waiting)
        gate.open()
        assert running.result(HANG) is None


def test_resizing_up_starts_workers_and_down_lets_them_leave(tmp_path):
    gates = [calls.Gate(tmp_path) for _ in range(3)]
    with ProcessPool(1) as pool:
        tasks = [pool.submit(calls.hold, gate.path) for gate in gates]
        gates[0].wait()
        assert pool.statistics().workers == 1
        pool.resize(3)
        gates[1].wait()
        gates[2].wait()
        assert pool.statistics().workers == 3
        pool.resize(1)
        for gate in gates:
            gate.open()
        assert [task.result(HANG) for task in tasks] == [None] * 3
        assert pool.submit(calls.square, 3).result(HANG) == 9
        becomes(lambda: pool.statistics().workers, 1)


def test_statistics_repr_and_picture_tell_what_is_going_on(gate):
    with ProcessPool(2, name="mill") as pool:
        held(pool, gate)
        pool.submit(calls.fail).exception(HANG)
        until(lambda: pool.statistics().failed)  # which is counted when the task has its error already
        now = pool.statistics()
        assert (now.kind, now.running, now.completed, now.failed, now.submitted) == ("processes", 1, 1, 1, 2)
        assert repr(pool).startswith("<ProcessPool 'mill' 1/2 busy, 0 queued, 1 done")
        assert "ProcessPool mill" in pool._repr_html_()
        gate.open()
    assert "closed" in repr(pool)


def test_workers_start_on_demand_and_leave_when_idle(gate):
    with ProcessPool(2, idle_timeout=0.05) as pool:
        assert pool.statistics().workers == 0
        held(pool, gate)
        (child,) = pool._processes.values()
        gate.open()
        child.join(HANG)
        assert not child.is_alive()
        assert pool.submit(calls.pid).result(HANG) != child.pid


def test_min_workers_are_started_at_once_and_stay(tmp_path):
    out = tmp_path / "pids"
    with ProcessPool(2, min_workers=2, idle_timeout=0.01, initializer=calls.write_pid, initargs=(str(out),)) as pool:
        gates = [calls.Gate(tmp_path) for _ in range(2)]
        tasks = [pool.submit(calls.hold, gate.path) for gate in gates]
        for gate in gates:
            gate.wait()
        for gate in gates:
            gate.open()
        wait(tasks, HANG)
        never(lambda: pool.statistics().workers != 2)
        pool.submit(calls.noop).result(HANG)
    assert len(out.read_text().split()) == 2


def test_initializer_and_finalizer_run_in_each_worker(tmp_path):
    out = tmp_path / "left"
    with ProcessPool(
        1, initializer=calls.remember, initargs=(42,), finalizer=partial(calls.write_pid, str(out))
    ) as pool:
        assert pool.submit(calls.recall).result(HANG) == 42
        worker = pool.submit(calls.pid).result(HANG)
    assert out.read_text() == f"{worker}\n"


def test_events_tell_of_workers_and_tasks():
    events: list[Event] = []
    with ProcessPool(1, name="mill", on_event=events.append) as pool:
        pool.submit(calls.square, 2).result(HANG)
        pool.submit(calls.fail).exception(HANG)
    names = [event.name for event in events]
    assert names[:5] == ["worker_started", "task_started", "task_finished", "task_started", "task_failed"]
    assert sorted(names[5:]) == ["pool_closed", "worker_stopped"]  # told by two threads
    assert {event.pool for event in events} == {"mill"} and events[2].data["function"] == "square"


def test_shutdown_finishes_or_cancels_what_waits(tmp_path):
    pool = ProcessPool(1)
    task = pool.submit(calls.square, 4)
    assert pool.shutdown() is True
    assert task.result(0) == 16
    with pytest.raises(PoolClosed, match="takes no more tasks"):
        pool.submit(calls.noop)
    with pytest.raises(PoolClosed):
        list(pool.map(calls.square, [1]))

    gate = calls.Gate(tmp_path)
    pool = ProcessPool(1)
    running = held(pool, gate)
    waiting = pool.submit(calls.noop)
    assert pool.shutdown(cancel_futures=True, timeout=0.01) is False
    assert waiting.cancelled() and not running.done()
    gate.open()
    assert pool.shutdown() is True
    assert running.result(0) is None


def test_a_closed_pool_can_be_restarted(pool):
    assert pool.submit(calls.square, 2).result(HANG) == 4
    pool.shutdown()
    pool.restart()
    assert pool.submit(calls.square, 3).result(HANG) == 9


def test_shutdown_of_an_unused_pool_starts_nothing():
    before = set(threading.enumerate())
    assert ProcessPool(2).shutdown() is True
    assert set(threading.enumerate()) <= before


def test_kill_ends_everything_now(gate):
    pool = ProcessPool(1)
    running = held(pool, gate)
    waiting = pool.submit(calls.noop)
    pool.kill()
    assert pool.shutdown(timeout=HANG)
    assert waiting.cancelled() and running.exception(0) is not None


def test_a_dropped_pool_finishes_its_work_and_ends():
    pool = ProcessPool(1)
    task = pool.submit(calls.square, 4)
    runner = weakref.ref(pool._runner)
    thread = pool._runner.io.running.thread  # type: ignore[union-attr]
    del pool
    gc.collect()
    assert task.result(HANG) == 16
    thread.join(HANG)
    del task
    gc.collect()
    assert not thread.is_alive() and runner() is None


def test_a_pool_is_not_sent_to_another_process(pool):
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(pool)


@pytest.mark.parametrize("method", ["forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_task_may_use_a_process_pool_of_its_own(method):
    with ProcessPool(1, start_method=method) as pool:
        assert pool.submit(calls.nested, 10).result(HANG) == sum(x * x for x in range(10))


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_every_start_method_works(method):
    with ProcessPool(2, start_method=method) as pool:
        assert list(pool.map(calls.square, range(100))) == [x * x for x in range(100)]


def test_bad_arguments_get_one_clear_error_each():
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"max_workers": 0}, ValueError, "max_workers must be at least 1"),
        ({"max_workers": "2"}, TypeError, "max_workers must be a whole number"),
        ({"max_workers": 1, "min_workers": 2}, ValueError, "must not be above"),
        ({"max_queued": -1}, ValueError, "max_queued"),
        ({"when_full": "wait"}, ValueError, "when_full must be one of"),
        ({"order": "random"}, ValueError, "order must be"),
        ({"idle_timeout": -1}, ValueError, "idle_timeout"),
        ({"start_method": "clone"}, ValueError, "start_method must be one of"),
        ({"initializer": 3}, TypeError, "initializer must be callable"),
        ({"finalizer": 3}, TypeError, "finalizer must be callable"),
        ({"max_tasks_per_worker": 0}, ValueError, "max_tasks_per_worker"),
        ({"max_worker_age": "old"}, TypeError, "max_worker_age"),
        ({"max_worker_memory": 0}, ValueError, "max_worker_memory"),
        ({"retries": -1}, ValueError, "retries"),
        ({"on_event": 1}, TypeError, "on_event must be callable"),
    ]
    for arguments, kind, message in bad:
        with pytest.raises(kind, match=message):
            ProcessPool(**arguments)
    with ProcessPool(1) as pool, pytest.raises(ValueError, match="has no meaning"):
        pool.options(priority=1)


def test_an_exception_that_cannot_be_changed_harms_nobody():
    with ProcessPool(1) as processes, ThreadPool(1) as threads:
        with pytest.raises(calls.Frozen):
            threads.submit(calls.raise_frozen).result(HANG)
        with pytest.raises(RuntimeError, match="Frozen"):  # it cannot be loaded from a pickle either
            processes.submit(calls.raise_frozen).result(HANG)
        assert processes.submit(calls.square, 3).result(HANG) == 9

    async def main() -> None:
        async with AsyncPool(1) as pool:
            with pytest.raises(calls.Frozen):
                await pool.run(calls.raise_frozen_later)

    asyncio.run(main())

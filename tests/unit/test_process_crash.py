"""`ProcessPool` when workers die, hang or wear out: only the task that was running pays."""

from __future__ import annotations

import contextlib
import gc
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millpond import CancelToken, Event, ProcessPool, Task, TaskTimeout, WorkerDied, wait
from waiting import HANG, becomes, until

sys.path.insert(0, str(Path(__file__).parent))
import process_calls as calls


@pytest.fixture(autouse=True)
def leaves_no_process_behind() -> Iterator[None]:
    yield
    gc.collect()
    left = [child for child in multiprocessing.active_children() if (child.join(HANG), child.is_alive())[1]]
    assert not left


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[calls.Gate]:
    gate = calls.Gate(tmp_path)
    yield gate
    gate.open()


def warm_up(pool: ProcessPool, *functions: Any) -> None:
    """Run these functions until the pool has learned that they are quick."""
    for _ in range(3):
        wait([pool.submit(fn) for fn in functions], HANG)


# -- death -------------------------------------------------------------------------------------------------------------


def test_a_crash_fails_its_own_task_and_the_pool_lives():
    events: list[Event] = []
    with ProcessPool(1, name="mill", on_event=events.append) as pool:
        before = pool.submit(calls.pid).result(HANG)
        error = pool.submit(calls.die).exception(HANG)
        assert isinstance(error, WorkerDied)
        assert f"worker process {before} of pool 'mill' died while it ran die (exit code 3)" in str(error)
        assert pool.submit(calls.pid).result(HANG) != before
    assert [event.data["exit_code"] for event in events if event.name == "worker_lost"] == [3]


def test_a_killed_worker_is_named_by_its_signal(gate):
    with ProcessPool(1) as pool:
        task = pool.submit(calls.hold, gate.path)
        gate.wait()
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
        with pytest.raises(WorkerDied, match="killed by SIGKILL"):
            task.result(HANG)


def test_one_exit_among_a_thousand_quick_tasks_fails_exactly_one():
    with ProcessPool(2) as pool:
        for bad in (0, 1, 500, 998, 999):
            tasks = [pool.submit(calls.die_at, x, bad) for x in range(1_000)]
            failed = [x for x, task in enumerate(tasks) if task.exception(HANG) is not None]
            assert failed == [bad]
            assert [task.result(0) for x, task in enumerate(tasks) if x != bad] == [x for x in range(1_000) if x != bad]


def test_kills_at_random_points_lose_nothing_and_repeat_nothing(tmp_path):
    out, number = tmp_path / "out", 20_000
    generator = random.Random(seed := random.randrange(1 << 30))
    print("seed", seed)
    with ProcessPool(2) as pool:
        tasks = [pool.submit(calls.write_line, str(out), x) for x in range(number)]
        kills = 0
        while not all(task.done() for task in tasks[-50:]) and kills < 40:
            time.sleep(generator.uniform(0.001, 0.03))
            # Those that are ready: killed at their start ten times in a row, they would rightly break the pool.
            victims = [worker.process.pid for worker in list(pool._runner.workers.all) if worker.is_ready]
            if victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(generator.choice(victims), signal.SIGKILL)
                kills += 1
        wait(tasks, HANG)
    failed = {x for x, task in enumerate(tasks) if task.exception(0) is not None}
    assert all(isinstance(tasks[x].exception(0), WorkerDied) for x in failed)
    assert len(failed) <= kills
    assert [tasks[x].result(0) for x in range(number) if x not in failed] == [
        x for x in range(number) if x not in failed
    ]
    ran = Counter(map(int, out.read_text().split()))
    assert not [x for x, times in ran.items() if times > 1]
    assert set(range(number)) - set(ran) <= failed


def test_results_that_need_a_pickle_survive_a_crash_too():
    with ProcessPool(1) as pool:
        warm_up(pool, partial(calls.same, ()), partial(calls.die_at, 0, 1))
        tasks: list[Task[Any]] = [pool.submit(calls.same, {"x": [x]}) for x in range(50)]
        tasks += [pool.submit(calls.fail_at, 1, 1), pool.submit(calls.die), pool.submit(calls.same, "after")]
        assert [task.result(HANG) for task in tasks[:50]] == [{"x": [x]} for x in range(50)]
        assert isinstance(tasks[50].exception(HANG), ValueError)
        assert isinstance(tasks[51].exception(HANG), WorkerDied)
        assert tasks[52].result(HANG) == "after"


def test_a_task_is_tried_again_as_often_as_the_policy_says(tmp_path):
    with ProcessPool(1, retries=1) as pool:
        assert pool.submit(calls.die_once, str(tmp_path / "once")).result(HANG) == "second time"
        assert isinstance(pool.submit(calls.die).exception(HANG), WorkerDied)
        assert list(pool.map(calls.die_once, [str(tmp_path / f"{x}") for x in range(3)])) == ["second time"] * 3


def test_a_crash_in_a_map_is_raised_in_its_place():
    with ProcessPool(2) as pool:
        results = pool.map(partial(calls.die_at, bad=3_000), range(5_000))
        assert list(itertools.islice(results, 3_000)) == list(range(3_000))
        with pytest.raises(WorkerDied):
            next(results)


def test_an_idle_worker_that_is_killed_is_replaced():
    with ProcessPool(1) as pool:
        first = pool.submit(calls.pid).result(HANG)
        os.kill(first, signal.SIGKILL)
        assert pool.submit(calls.pid).result(HANG) != first


def test_a_key_stays_in_order_through_a_crash(tmp_path):
    out = tmp_path / "out"
    with ProcessPool(2) as pool:
        keyed = pool.options(key="k")
        before = [keyed.submit(calls.write_line, str(out), x) for x in range(50)]
        crash = keyed.submit(calls.die)
        after = [keyed.submit(calls.write_line, str(out), x) for x in range(50, 100)]
        assert [task.result(HANG) for task in before + after] == list(range(100))
        assert isinstance(crash.exception(HANG), WorkerDied)
    assert out.read_text().split() == [str(x) for x in range(100)]


# -- large payloads and stopped workers --------------------------------------------------------------------------------


def test_fifty_megabytes_travel_both_ways_on_all_workers_at_once():
    data = os.urandom(1 << 20) * 50
    with ProcessPool(3) as pool:
        tasks = [pool.submit(calls.same, data) for _ in range(6)]
        assert all(task.result(HANG) == data for task in tasks)
        assert pool.submit(calls.size, data).result(HANG) == len(data)


def test_large_results_among_quick_tasks_come_back_whole():
    with ProcessPool(2) as pool:
        tasks = [pool.submit(calls.blow_up, b"x", 200_000 if x % 10 == 0 else 1) for x in range(500)]
        assert [len(task.result(HANG)) for task in tasks] == [200_000 if x % 10 == 0 else 1 for x in range(500)]


def test_a_stopped_worker_holds_up_nobody_else():
    data = b"x" * (4 << 20)
    with ProcessPool(2) as pool:
        wait([pool.submit(calls.noop) for _ in range(2_000)], HANG)
        victim = pool.options(key="v").submit(calls.pid).result(HANG)
        os.kill(victim, signal.SIGSTOP)
        try:
            stuck = pool.options(key="v").submit(calls.size, data)  # more than its socket takes
            tasks = [pool.submit(calls.square, x) for x in range(2_000)]
            assert [task.result(HANG) for task in tasks] == [x * x for x in range(2_000)]
            assert not stuck.done()
        finally:
            os.kill(victim, signal.SIGCONT)
        assert stuck.result(HANG) == len(data)


def test_a_task_sent_to_a_stopped_worker_goes_to_another_that_is_idle(gate):
    with ProcessPool(2) as pool:
        busy = pool.submit(calls.hold, gate.path)
        gate.wait()
        (worker,) = pool._processes
        idle = pool.submit(calls.pid).result(HANG)
        assert idle != worker
        os.kill(idle, signal.SIGSTOP)
        try:
            task = pool.submit(calls.pid)
            assert not wait([task], 0.1).done
            gate.open()
            assert busy.result(HANG) is None
            assert task.result(HANG) == worker
        finally:
            os.kill(idle, signal.SIGCONT)


# -- time-outs and tokens ----------------------------------------------------------------------------------------------


def test_a_timeout_ends_the_one_process_and_no_other_task(gate, tmp_path):
    other = calls.Gate(tmp_path)
    with ProcessPool(2) as pool:
        neighbour = pool.submit(calls.hold, other.path, "fine")
        other.wait()
        idle = pool.submit(calls.pid).result(HANG)
        late = pool.options(timeout=0.05).submit(calls.hold, gate.path)
        with pytest.raises(TaskTimeout, match=r"hold ran longer than its timeout of 0\.05 s"):
            late.result(HANG)
        assert pool.submit(calls.square, 3).result(HANG) == 9
        other.open()
        assert neighbour.result(HANG) == "fine"
    with pytest.raises(ProcessLookupError):
        os.kill(idle, 0)


def test_time_counts_from_the_start_of_the_task_not_from_its_submit(gate, monkeypatch):
    with ProcessPool(1) as pool:
        pool.submit(calls.hold, gate.path)
        gate.wait()
        task = pool.options(timeout=3600).submit(calls.square, 3)
        later = time.monotonic() + 7200
        monkeypatch.setattr(time, "monotonic", lambda: later)  # two hours pass while it waits
        gate.open()
        assert task.result(HANG) == 9


def test_quick_tasks_with_a_timeout_end_well():
    with ProcessPool(2) as pool:
        tasks = [pool.options(timeout=3600).submit(calls.square, x) for x in range(200)]
        assert [task.result(HANG) for task in tasks] == [x * x for x in range(200)]


def test_a_token_ends_the_process_of_a_running_task(gate):
    token = CancelToken()
    with ProcessPool(1) as pool:
        task = pool.options(cancel=token).submit(calls.hold, gate.path)
        gate.wait()
        victim = next(iter(pool._processes.values()))
        token.cancel()
        wait([task], HANG)
        assert task.cancelled()
        victim.join(HANG)
        assert pool.submit(calls.square, 3).result(HANG) == 9
        assert pool.statistics().cancelled == 1
        assert pool.options(cancel=CancelToken()).submit(calls.square, 4).result(HANG) == 16


# -- head of line ------------------------------------------------------------------------------------------------------


def test_a_slow_task_in_the_middle_of_quick_ones_does_not_hold_up_the_rest(gate):
    with ProcessPool(2) as pool:
        wait([pool.submit(calls.hold, os.devnull, x) for x in range(5_000)], HANG)  # learnt: this function is quick
        tasks = [pool.submit(calls.hold, gate.path if x == 2_000 else os.devnull, x) for x in range(5_000)]
        gate.wait()
        rest = [task for x, task in enumerate(tasks) if x != 2_000]
        assert not wait(rest, HANG).not_done
        assert not tasks[2_000].done()
        gate.open()
        assert [task.result(HANG) for task in tasks] == list(range(5_000))


def test_the_same_with_a_single_worker_brings_back_what_had_ended(gate):
    with ProcessPool(1) as pool:
        wait([pool.submit(calls.hold, os.devnull, x) for x in range(2_000)], HANG)
        pool.pause()
        tasks = [pool.submit(calls.hold, gate.path if x == 100 else os.devnull, x) for x in range(400)]
        pool.resume()
        gate.wait()
        assert not wait(tasks[:100], HANG).not_done  # they stood in the journal
        becomes(lambda: sum(task.cancel() for task in tasks[101:]), 299)  # in line again, where they can be cancelled
        gate.open()
        assert tasks[100].result(HANG) == 100


def test_recalled_tasks_run_exactly_once(tmp_path):
    out = tmp_path / "out"
    gates = [calls.Gate(tmp_path) for _ in range(6)]
    with ProcessPool(2) as pool:
        wait([pool.submit(calls.write_line, str(out), -1) for _ in range(500)], HANG)
        wait([pool.submit(calls.hold, os.devnull) for _ in range(500)], HANG)
        tasks = []
        for x in range(6_000):
            if x % 1_000 == 500:
                pool.submit(calls.hold, gates[x // 1_000].path)
            tasks.append(pool.submit(calls.write_line, str(out), x))
        while gates:  # in the order in which they are held: what both workers gave back may have changed places
            for gate in until(lambda: list(filter(calls.Gate.has_come, gates)), "a task at a gate"):
                time.sleep(0.03)  # long enough for the pool to think it stuck
                gate.open()
                gates.remove(gate)
        assert [task.result(HANG) for task in tasks] == list(range(6_000))
    lines = [line for line in map(int, out.read_text().split()) if line >= 0]
    assert sorted(lines) == list(range(6_000))


# -- wear --------------------------------------------------------------------------------------------------------------


def test_a_worker_is_replaced_after_exactly_so_many_tasks():
    with ProcessPool(1, max_tasks_per_worker=7) as pool:
        per_worker = Counter(task.result(HANG) for task in [pool.submit(calls.pid) for _ in range(70)])
        assert set(per_worker.values()) == {7} and len(per_worker) == 10
    with ProcessPool(2, max_tasks_per_worker=7) as pool:
        counted = Counter(pool.map(calls.pid, range(100)))
        assert max(counted.values()) == 7 and sum(counted.values()) == 100


def test_a_worker_is_replaced_when_it_is_old():
    with ProcessPool(1, max_worker_age=3600) as pool:
        first = pool.submit(calls.pid).result(HANG)
        assert pool.submit(calls.pid).result(HANG) == first
        (worker,) = pool._runner.workers.all
        assert worker.ready_at is not None
        worker.ready_at -= 3600
        assert pool.submit(calls.pid).result(HANG) != first
        assert pool.statistics().failed == 0


def test_a_worker_is_replaced_when_it_has_grown_too_large():
    with ProcessPool(1, max_worker_memory=200 << 20) as pool:
        first = pool.submit(calls.pid).result(HANG)
        assert pool.submit(calls.pid).result(HANG) == first
        assert pool.submit(calls.grow, 300 << 20).result(HANG) == first
        assert pool.submit(calls.pid).result(HANG) != first

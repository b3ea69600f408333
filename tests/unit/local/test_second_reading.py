"""What a second hostile reading of the rebuilt pools found: recycling, subpools, keys, contexts, time limits, exit."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millpond import (
    AsyncPool,
    Block,
    CancelToken,
    Event,
    PoolFull,
    ProcessPool,
    TaskTimeout,
    ThreadPool,
    as_completed,
    current_token,
    wait,
)
from millpond.local.processes import _workers
from millpond.local.processes._worker import ProcessWorker
from millpond.local.threads._map import ThreadMap
from waiting import HANG, becomes, until


class Gauge:
    """A task that knows how many of its kind ran at once."""

    def __init__(self) -> None:
        self.most = self._now = 0
        self._lock = threading.Lock()

    def __call__(self, seconds: float = 0.01) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(seconds)
        with self._lock:
            self._now -= 1


# -- workers that are replaced ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("queues", ["shared", "dedicated"])
def test_workers_that_are_used_up_leave_nothing_undone_in_a_closed_pool(workers, queues):
    with ThreadPool(workers, max_tasks_per_worker=3, queues=queues) as pool:
        tasks = [pool.submit(abs, -number) for number in range(200)]
    assert [task.result(0) for task in tasks] == list(range(200))
    assert pool.statistics().largest <= workers


def test_a_map_goes_on_when_its_pool_was_closed_and_its_workers_are_used_up():
    pool = ThreadPool(2, max_tasks_per_worker=5)
    results = pool.map(abs, range(300), chunksize=1)
    pool.shutdown(wait=False)
    assert list(results) == list(range(300))
    pool.shutdown()


def test_a_used_up_worker_goes_on_when_no_other_can_be_started(monkeypatch):
    gate = threading.Event()
    pool = ThreadPool(1, max_tasks_per_worker=1)
    first, rest = pool.submit(gate.wait), [pool.submit(abs, -number) for number in range(5)]
    until(lambda: pool.statistics().running)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.shutdown(wait=False)
    gate.set()
    assert first.result(HANG) and [task.result(HANG) for task in rest] == list(range(5))


# -- subpools ---------------------------------------------------------------------------------------------------------


def by_result(pool: Any, call: Callable[..., Any]) -> None:
    pool.submit(call).result()


def by_result_with_timeout(pool: Any, call: Callable[..., Any]) -> None:
    pool.submit(call).result(HANG)


def by_wait(pool: Any, call: Callable[..., Any]) -> None:
    wait([pool.submit(call)])


def by_as_completed(pool: Any, call: Callable[..., Any]) -> None:
    list(as_completed([pool.submit(call)]))


def by_group(pool: Any, call: Callable[..., Any]) -> None:
    with pool.group() as group:
        group.submit(call)


def by_map(pool: Any, call: Callable[..., Any]) -> None:
    list(pool.map(call, [0.01] * 3))


WAYS = [by_result, by_result_with_timeout, by_wait, by_as_completed, by_group, by_map]


@pytest.mark.parametrize("way", WAYS)
def test_tasks_of_the_parent_that_wait_for_a_subpool_keep_to_its_bound(way):
    gauge = Gauge()
    with ThreadPool(6) as pool:
        part = pool.subpool(1)
        tasks = [pool.submit(way, part, gauge) for _ in range(5)]
        assert not [task for task in tasks if task.exception(HANG)]
    assert gauge.most == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_parent_whose_only_thread_waits_for_its_subpool_does_not_hang(way):
    with ThreadPool(1) as pool:
        part = pool.subpool(1)
        assert pool.submit(way, part, Gauge()).exception(HANG) is None


def test_a_map_whose_place_goes_back_to_the_queue_late_does_not_wait_for_the_only_thread(monkeypatch):
    """Its consumer, in that thread, has the outcome of a slice before the slice's place is in the queue again."""
    run_slice, slices = ThreadMap._run_slice, []

    def slowly(run: ThreadMap[Any], worker: Any) -> bool:
        has_run = run_slice(run, worker)
        slices.append(has_run)
        if len(slices) == 1:
            until(lambda: run.results._consumer._is_asleep)  # again, for the next outcome
        return has_run

    monkeypatch.setattr(ThreadMap, "_run_slice", slowly)
    with ThreadPool(1) as pool:
        part = pool.subpool(1)  # each item lasts longer than a turn of its worker
        task = pool.submit(lambda: list(part.map(time.sleep, [0.02] * 3, chunksize=1)))
        assert task.result(HANG) == [None] * 3


def test_the_consumer_of_a_subpools_map_starts_no_thread_for_each_outcome():
    started: list[None] = []
    with ThreadPool(2, initializer=lambda: started.append(None)) as pool:
        part = pool.subpool(2)
        task = pool.submit(lambda: list(part.map(time.sleep, [0.001] * 100, chunksize=1)))
        assert task.result(HANG) == [None] * 100
    assert len(started) < 50


def test_whoever_waits_does_not_run_tasks_of_a_paused_pool():
    with ThreadPool(2) as pool:
        part = pool.subpool(1)
        part.pause()
        task = part.submit(abs, -3)
        waiter = pool.submit(lambda: task.result())
        until(lambda: pool.statistics().running == 1)
        time.sleep(0.05)  # nothing is to happen
        assert not task.done()
        part.resume()
        assert waiter.result(HANG) == 3


def test_the_shutdown_of_a_pool_runs_what_its_subpools_subpools_have_queued():
    pool = ThreadPool(1)
    below = pool.subpool(1).subpool(1)
    tasks = [below.submit(time.sleep, 0.002) for _ in range(20)]
    pool.shutdown()
    assert not [task for task in tasks if task.cancelled()]


def test_a_subpool_is_resized_quietly_after_its_parent_was_shut_down():
    gate = threading.Event()
    pool = ThreadPool(1)
    part = pool.subpool(1)
    first, rest = part.submit(gate.wait), [part.submit(abs, -number) for number in range(9)]
    until(lambda: pool.statistics().running)
    pool.shutdown(wait=False)
    part.resize(4)
    gate.set()
    assert first.result(HANG) and [task.result(HANG) for task in rest] == list(range(9))


def test_a_subpool_made_inside_a_task_can_be_waited_for_there():
    def use() -> int:
        with pool.subpool(1) as part:
            task = part.submit(abs, -3)
        return task.result(0)

    with ThreadPool(1) as pool:
        assert pool.submit(use).result(HANG) == 3


def test_cancelling_what_a_pool_has_queued_reaches_its_subpools():
    gate = threading.Event()
    pool = ThreadPool(1)
    part = pool.subpool(1)
    running, *rest = [part.submit(gate.wait), *(part.submit(abs, -1) for _ in range(10))]
    until(lambda: pool.statistics().running)
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(task.cancelled() for task in rest)
    gate.set()
    assert running.result(HANG)


@pytest.mark.parametrize("left", ["pool", "part"])
def test_a_task_of_a_subpool_sees_that_its_pool_or_the_parent_was_left(left, caplog):
    caplog.set_level(logging.CRITICAL, "millpond")
    begun, seen = threading.Event(), []

    def run() -> None:
        begun.set()
        seen.append(current_token().wait(HANG))

    pool = ThreadPool(1)
    part = pool.subpool(1)
    with pytest.raises(KeyboardInterrupt), {"pool": pool, "part": part}[left]:
        part.submit(run)
        assert begun.wait(HANG)
        raise KeyboardInterrupt
    becomes(lambda: seen, [True])
    pool.shutdown()


def test_a_turn_that_has_not_come_is_nobodys_running_task():
    with ThreadPool(1) as pool:
        part = pool.subpool(1)
        pool.pause()
        part.submit(abs, -1)
        now, above = part.statistics(), pool.statistics()
        assert (now.submitted, now.queued, now.running) == (1, 1, 0)
        assert (above.submitted, above.queued, above.running) == (0, 0, 0)
        pool.resume()


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["result", "wait", "submit"])
def test_the_order_of_a_key_holds_whoever_waits_for_its_tasks(inside):
    log: list[tuple[str, int]] = []
    gate = threading.Event()

    def step(number: int) -> None:
        log.append(("start", number))
        if number == 1:
            gate.wait(HANG)
        log.append(("end", number))

    def waiter() -> None:
        if inside == "submit":
            keyed.submit(step, 3).result(HANG)
        elif inside == "wait":
            wait([second])
        else:
            second.result()

    with ThreadPool(3, max_queued=0 if inside == "submit" else None) as pool:
        keyed = pool.options(key="k")
        keyed.submit(step, 1)
        until(lambda: log)
        second = keyed.submit(step, 2)
        third = pool.submit(waiter)
        time.sleep(0.05)  # nothing is to happen
        assert log == [("start", 1)]
        gate.set()
        third.result(HANG)
    numbers = [1, 2, 3] if inside == "submit" else [1, 2]
    assert log == [(what, number) for number in numbers for what in ("start", "end")]


def test_a_task_may_wait_for_one_that_only_its_own_worker_can_run():
    def outer() -> int:
        return keyed.submit(abs, -5).result()

    with ThreadPool(1) as pool:
        keyed = pool.options(key="k")
        assert keyed.submit(outer).result(HANG) == 5


def test_keys_whose_worker_cannot_be_started_go_to_one_that_is_there(monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL, "millpond")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ThreadPool(4) as pool:
        pool.submit(abs, -1).result(HANG)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            tasks = [pool.options(key=key).submit(abs, -key) for key in range(8)]
            assert [task.result(HANG) for task in tasks] == list(range(8))


def test_after_a_pool_has_shrunk_a_new_task_of_a_key_waits_for_the_one_that_runs():
    gauge = Gauge()
    with ThreadPool(4) as pool:
        first = pool.options(key="a").submit(gauge, 0.1)
        until(lambda: pool.statistics().running)
        pool.resize(1)
        second = pool.options(key="b").submit(gauge, 0.0)
        assert wait([first, second], timeout=HANG).not_done == set()
    assert gauge.most == 1


# -- contexts and tokens ----------------------------------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def set_and_tell(value: str) -> str:
    before = variable.get()
    variable.set(value)
    return before


def test_a_task_that_runs_inside_another_shares_no_context_with_it():
    def outer() -> tuple[str, str]:
        variable.set("outer")
        return before.result(), variable.get()

    with ThreadPool(1) as pool:
        pool.pause()
        task = pool.submit(outer)
        before = pool.submit(set_and_tell, "inner")
        pool.resume()
        assert task.result(HANG) == ("unset", "outer")


def test_what_a_caller_runs_itself_changes_nothing_of_its_context():
    held = threading.Event()
    with ThreadPool(1, max_queued=0, when_full="caller_runs") as pool:
        pool.submit(held.wait)
        pool.submit(set_and_tell, "task")
        assert variable.get() == "unset"
        held.set()


def test_tasks_of_a_subpool_do_not_see_what_others_have_set():
    with ThreadPool(1) as pool:
        part = pool.subpool(1)
        pool.pause()
        tasks = [part.submit(set_and_tell, str(number)) for number in range(5)]
        pool.resume()
        assert [task.result(HANG) for task in tasks] == ["unset"] * 5


def test_a_task_that_runs_inside_another_has_not_its_token():
    token = CancelToken()

    def outer() -> bool:
        return current_token() is token and inner.result() is not token

    with ThreadPool(1) as pool:
        pool.pause()
        task = pool.options(cancel=token).submit(outer)
        inner = pool.submit(current_token)
        pool.resume()
        assert task.result(HANG)


# -- time limits ------------------------------------------------------------------------------------------------------


def test_a_time_limit_ends_its_task_whatever_on_cancel_raises(caplog):
    caplog.set_level(logging.CRITICAL, "millpond")
    called, gate = [], threading.Event()

    def run() -> None:
        current_token().on_cancel(lambda: 1 / 0)
        current_token().on_cancel(lambda: called.append(1))
        gate.wait(HANG)

    with ThreadPool(1) as pool:
        assert isinstance(pool.options(timeout=0.05).submit(run).exception(HANG), TaskTimeout)
        becomes(lambda: called, [1])
        gate.set()


def test_a_time_limit_ends_its_task_when_nobody_can_take_its_workers_place(caplog):
    caplog.set_level(logging.CRITICAL, "millpond")
    begun, gate = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        gate.wait(HANG)

    pool = ThreadPool(1)
    task = pool.subpool(1).options(timeout=0.1).submit(run)
    until(lambda: begun.is_set() or task.done())  # its time may be up by now, and its worker's place taken
    pool.shutdown(wait=False)
    assert isinstance(task.exception(HANG), TaskTimeout)
    gate.set()


def test_a_task_past_its_time_limit_is_told_as_failed_once():
    events: list[Event] = []
    gate = threading.Event()
    with ThreadPool(1, on_event=events.append) as pool:
        pool.options(timeout=0.05).go(gate.wait)
        until(lambda: [event for event in events if event.name == "task_failed"])
        gate.set()
        assert pool.drain(HANG)
    (failed,) = [event for event in events if event.name in ("task_failed", "task_finished")]
    assert isinstance(failed.data["error"], TaskTimeout) and failed.data["function"].endswith("wait")


@pytest.mark.parametrize("make", [lambda: ThreadPool(1), lambda: ProcessPool(1)], ids=["threads", "processes"])
def test_a_time_limit_may_be_any_number(make):
    with make() as pool:
        assert pool.options(timeout=10**400).submit(abs, -3).result(HANG) == 3
        assert pool.options(timeout=1e12).submit(abs, -3).result(HANG) == 3
        assert pool.drain(1e12)
        assert pool.shutdown(timeout=1e12)
    Block(timeout=1e12)


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_an_open_pool_is_restarted_at_once():
    with ThreadPool(1) as pool:
        pool.submit(abs, -1).result(HANG)
        pool.restart()
        assert pool.submit(abs, -1).result(HANG) == 1


def test_the_tasks_that_a_broken_pool_failed_are_counted(caplog):
    caplog.set_level(logging.CRITICAL + 1, "millpond")
    gate = threading.Event()

    def fail() -> None:
        gate.wait(HANG)
        raise ValueError

    pool = ThreadPool(1, initializer=fail)
    tasks = [pool.submit(abs, -1) for _ in range(5)]
    gate.set()
    assert all(task.exception(HANG) for task in tasks)
    becomes(lambda: pool.statistics().running, 0)  # its worker may still be leaving
    now = pool.statistics()
    assert (now.submitted, now.completed, now.failed) == (5, 5, 5)


def test_a_pool_whose_caller_runs_a_task_is_not_idle():
    held, inside, drained = threading.Event(), threading.Event(), []
    with ThreadPool(1, max_queued=0, when_full="caller_runs") as pool:
        pool.submit(held.wait)
        caller = threading.Thread(target=lambda: pool.submit(lambda: (held.set(), inside.wait(HANG))))
        caller.start()
        assert held.wait(HANG)
        drainer = threading.Thread(target=lambda: drained.append(pool.drain(HANG)))
        drainer.start()
        time.sleep(0.05)  # nothing is to happen
        assert not drained
        inside.set()
        becomes(lambda: drained, [True])
        caller.join(HANG)


def test_an_observer_is_never_called_under_the_lock_of_the_pool():
    held: list[bool] = []

    def look() -> None:
        held.append(not pool._runner.lock.acquire(timeout=HANG / 2))  # it is held for moments by others
        if not held[0]:
            pool._runner.lock.release()

    def observe(event: Event) -> None:
        if event.name == "task_rejected":
            other = threading.Thread(target=look)
            other.start()
            other.join(HANG)

    gate = threading.Event()
    pool = ThreadPool(1, max_queued=0, when_full=Block(max_waiting=0), on_event=observe)
    pool.submit(gate.wait)
    with pytest.raises(PoolFull):
        pool.submit(abs, -1)
    gate.set()
    pool.shutdown()
    assert held == [False]


def test_an_observer_that_exits_ends_no_worker(caplog):
    caplog.set_level(logging.CRITICAL, "millpond")

    def observe(event: Event) -> None:
        raise SystemExit(3)

    with ThreadPool(1, on_event=observe) as pool:
        assert pool.submit(abs, -3).result(HANG) == 3


AT_EXIT = {
    "keys of a paused pool": (
        "pool.submit(abs, 1).result(); pool.options(key=0).submit(abs, 1).result(); pool.pause()\n"
        "for key in range(4): pool.options(key=key).submit(print, 'ran')"
    ),
    "keys that a task submits": (
        "def task():\n"
        "    time.sleep(0.2)\n"
        "    for key in range(4): pool.options(key=key).submit(print, 'ran')\n"
        "pool.submit(task)"
    ),
    "tasks that wait for tasks": (
        "pool = ThreadPool(1)\n"
        "def deep(n): return n == 0 or pool.submit(deep, n - 1).result()\n"
        "def task(): time.sleep(0.2); deep(60); print('ran\\n' * 4, end='')\n"
        "pool.submit(task)"
    ),
    "workers that are used up": (
        "pool = ThreadPool(1, max_tasks_per_worker=1)\nfor _ in range(4): pool.submit(lambda: (time.sleep(0.05), print('ran')))"
    ),
}


@pytest.mark.parametrize("what", AT_EXIT)
def test_the_end_of_the_interpreter_finishes(what, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(f"import time\nfrom millpond import ThreadPool\npool = ThreadPool(4)\n{AT_EXIT[what]}\n")
    paths = os.pathsep.join([str(Path(sys.modules["millpond"].__file__ or "").parents[1]), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert (done.returncode, done.stdout.count("ran"), done.stderr) == (0, 4, "")


@pytest.mark.parametrize("way", ["run", "submit", "group", "map", "lazy map"])
@pytest.mark.parametrize("workers", [1, 6])
def test_coroutines_that_wait_for_a_subpool_keep_to_its_bound_and_do_not_hang(way, workers):
    most = now = 0

    async def gauge(_: object = None) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    async def use(part: Any) -> None:
        if way == "run":
            await part.run(gauge)
        elif way == "submit":
            await (await part.submit(gauge))
        elif way == "group":
            async with part.group() as group:
                await group.submit(gauge)
        elif way == "map":
            await part.map(gauge, range(3))
        else:
            async for _ in part.map(gauge, range(3), buffersize=2):
                pass

    async def main() -> None:
        async with AsyncPool(workers) as pool:
            part = pool.subpool(1)
            async with asyncio.timeout(HANG):
                await asyncio.gather(*[await pool.submit(use, part) for _ in range(5)])
            assert (pool.statistics().running, part.statistics().running) == (0, 0)

    asyncio.run(main())
    assert most == 1


def test_a_group_of_coroutines_takes_nothing_after_its_end():
    async def main() -> None:
        async with AsyncPool(1) as pool:
            async with pool.group() as group:
                await group.submit(asyncio.sleep, 0)
            with pytest.raises(RuntimeError, match="ended"):
                await group.submit(asyncio.sleep, 0)

    asyncio.run(main())


def test_a_process_that_was_started_just_when_the_main_script_lost_its_name_is_started_again(monkeypatch):
    """The interpreter takes `__main__.__file__` away when it ends, and a worker that looks then finds no functions."""
    answers = [False, True]
    made: list[int] = []

    class Counted(ProcessWorker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self.process.pid)

    monkeypatch.setattr(_workers, "restore_main_file", lambda: bool(answers) and answers.pop(0))
    monkeypatch.setattr(_workers, "ProcessWorker", Counted)
    with ProcessPool(1) as pool:
        assert pool.submit(os.getpid).result(HANG) == made[1]
    assert len(made) == 2

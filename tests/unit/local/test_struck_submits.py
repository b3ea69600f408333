"""A signal handler that raises inside a submit, at each moment of it: the pool loses no task, no worker and no place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from alarms import Alarm, alarm_at
from millpond import PoolFull, Priority, ProcessPool, ThreadPool
from pool_calls import ended
from waiting import HANG, becomes

Make = Callable[[], Any]

THREADS: dict[str, Make] = {
    "plain": lambda: ThreadPool(2),
    "bounded": lambda: ThreadPool(2, max_queued=2),
    "heap": lambda: ThreadPool(2, order="priority"),
    "lanes": lambda: ThreadPool(2, order=Priority(levels=3), max_queued=2),
    "dedicated": lambda: ThreadPool(2, queues="dedicated"),
    "observed": lambda: ThreadPool(2, on_event=lambda event: None),
    "proactive": lambda: ThreadPool(2, sizing="proactive"),
}
PROCESSES: dict[str, Make] = {
    "processes": lambda: ProcessPool(1),
    "bounded processes": lambda: ProcessPool(1, max_queued=2),
    "observed processes": lambda: ProcessPool(1, on_event=lambda event: None),
}


VERBS: dict[str, Callable[..., object]] = {
    "submit": lambda pool, fn, *args: pool.submit(fn, *args),
    "try_submit": lambda pool, fn, *args: pool.try_submit(fn, *args),
    "go": lambda pool, fn, *args: pool.go(fn, *args),
    "submit_many": lambda pool, fn, *args: pool.submit_many(fn, [args]),
    "with a key": lambda pool, fn, *args: pool.options(key="k").submit(fn, *args),
    "with another key": lambda pool, fn, *args: pool.options(key=args[0]).submit(fn, *args),
    "with a time limit": lambda pool, fn, *args: pool.options(timeout=HANG).submit(fn, *args),
}


def is_struck(moment: int, submit: Callable[..., object], *args: object) -> bool:
    """Submit, and send a signal at a moment of it; return whether there was such a moment."""
    try:
        with alarm_at(moment):
            submit(*args)
    except Alarm:
        return True
    return False


def check_whole(pool: Any, workers: int, moment: int) -> None:
    """Nothing is left in the queue, the counts are right, and every worker can be had at once."""
    assert pool.drain(HANG), (moment, pool)
    now = pool.statistics()
    assert (now.queued, now.running) == (0, 0), (moment, now)
    together = threading.Barrier(workers)
    for task in [pool.submit(together.wait, HANG) for _ in range(workers)]:
        task.result(HANG)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", THREADS)
def test_threads_that_sleep_are_found_by_whatever_is_queued(kind, verb):
    ran: list[int] = []
    with ended(THREADS[kind]()) as pool:
        pool.options(key="k").submit(int).result(HANG)
        check_whole(pool, 2, 0)
        becomes(lambda: pool.statistics().idle, 2)
        moment = 1
        while is_struck(moment, VERBS[verb], pool, ran.append, moment):
            check_whole(pool, 2, moment)
            becomes(lambda: pool.statistics().idle, 2)
            moment += 1
        assert moment > 3
        check_whole(pool, 2, moment)
        assert ran[-1] == moment and len(set(ran)) == len(ran)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", THREADS)
def test_threads_that_start_meanwhile_are_counted_and_run_what_is_queued(kind, verb):
    ran: list[int] = []
    moment, is_over = 0, False
    while not is_over:
        moment += 1
        with ended(THREADS[kind]()) as pool:
            is_over = not is_struck(moment, VERBS[verb], pool, ran.append, moment)
            check_whole(pool, 2, moment)
    assert moment > 10
    assert ran[-1] == moment and len(set(ran)) == len(ran)


@pytest.mark.parametrize("verb", VERBS)
def test_a_subpool_takes_its_turns(verb):
    ran: list[int] = []
    with ended(ThreadPool(2)) as parent, ended(parent.subpool(1)) as pool:
        moment = 1
        while is_struck(moment, VERBS[verb], pool, ran.append, moment):
            check_whole(pool, 1, moment)
            check_whole(parent, 2, moment)
            moment += 1
        assert moment > 10
        check_whole(pool, 1, moment)
        assert ran[-1] == moment and len(set(ran)) == len(ran)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", PROCESSES)
def test_a_process_pool_that_sleeps_is_woken(kind, verb):
    with ended(PROCESSES[kind]()) as pool:
        pool.submit(abs, -1).result(HANG)
        moment, is_over = 0, False
        while not is_over:
            moment += 1
            assert pool.drain(HANG), (moment, pool)
            becomes(lambda: pool._runner.io.is_waiting, True)
            is_over = not is_struck(moment, VERBS[verb], pool, abs, moment)
            assert pool.submit(abs, moment).result(HANG) == moment
            assert pool.drain(HANG), (moment, pool)
            assert pool.statistics().queued == 0
        assert moment > 3


def test_a_process_pool_starts_once():
    moment, is_over = 0, False
    while not is_over:
        moment += 1
        with ended(ProcessPool(1)) as pool:
            is_over = not is_struck(moment, VERBS["submit"], pool, abs, moment)
            pool.pause()  # no process is needed for this
            task = pool.submit(abs, 1)
            assert pool.purge() >= 1 and task.cancelled(), moment
    assert moment > 5  # on Python 3.12 its thread is there from the beginning


def test_a_task_that_a_worker_has_in_its_hands_is_taken_back(monkeypatch):
    """Its submit is struck after a worker took its entry from the queue, before it took its function."""
    popped, go_on = threading.Event(), threading.Event()
    with ended(ThreadPool(1, max_queued=0, when_full="raise")) as pool:
        pool.submit(int).result(HANG)
        becomes(lambda: pool.statistics().idle, 1)
        runner = pool._runner
        (worker,) = runner.workers.all
        take, queue_plain = worker.take, runner.placement.queue_plain

        def take_slowly() -> Any:
            task = take()
            popped.set()
            go_on.wait(HANG)
            return task

        def struck(task: Any) -> None:
            queue_plain(task)
            popped.wait(HANG)
            raise Alarm

        worker.take = take_slowly
        monkeypatch.setattr(runner.placement, "queue_plain", struck)
        ran: list[int] = []
        with pytest.raises(Alarm):
            pool.submit(ran.append, 1)
        worker.take = take
        monkeypatch.undo()
        go_on.set()
        assert pool.drain(HANG)
        assert ran == [] and pool.statistics().queued == 0
        assert pool.submit(abs, -1).result(HANG) == 1


@pytest.mark.parametrize("when_full", ["block", "drop", "caller_runs", "raise"])
def test_a_full_pool_goes_on_after_a_submit_that_was_struck(when_full):
    """Also what other threads wait for."""
    with ended(ThreadPool(1, max_queued=0, when_full=when_full)) as pool:
        moment, is_over = 0, False
        while not is_over:
            moment += 1
            gate = threading.Event()
            pool.submit(gate.wait, HANG)
            becomes(lambda: pool.statistics().running, 1)
            other = threading.Thread(target=pool.submit, args=(abs, -1)) if when_full == "block" else None
            if other is not None:
                other.start()
                becomes(lambda: pool.statistics().waiting_submitters, 1)
                threading.Timer(0.01, gate.set).start()
            try:
                with alarm_at(moment):
                    pool.submit(gate.set)
            except Alarm:
                pass
            except PoolFull:
                is_over = True
            else:
                is_over = True
            gate.set()
            if other is not None:
                other.join(HANG)
                assert not other.is_alive(), moment
            assert pool.drain(HANG), (moment, pool)
            becomes(lambda: pool.statistics().running, 0)
        assert moment > 10


@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool])
def test_a_task_that_is_dropped_for_a_submit_that_was_struck_ends(kind):
    with ended(kind(1, max_queued=1, when_full="drop_oldest")) as pool:
        pool.pause()
        moment = 0
        while True:
            moment += 1
            oldest = pool.submit(int)
            if not is_struck(moment, pool.submit, int):
                break
            pool.purge()
            assert oldest.cancelled(), moment
        assert moment > 10 and oldest.cancelled()


@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool])
def test_a_submit_that_is_refused_does_not_walk_the_queue(kind, monkeypatch):
    with ended(kind(1, max_queued=1, when_full="raise")) as pool:
        pool.pause()
        pool.submit(int)
        walks: list[object] = []
        monkeypatch.setattr(pool._runner.backlog, "withdraw", lambda tasks: walks.append(tasks) or [])
        with pytest.raises(PoolFull):
            pool.submit(int)
        with pytest.raises(PoolFull):
            pool.options(key="k").submit(int)
        assert walks == []
        monkeypatch.undo()

"""Pools that are closed, opened again, forked, or set to odd times."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from concurrent.futures.thread import BrokenThreadPool

import pytest

from millpond import ProcessPool, ThreadPool
from pool_calls import ended, fail_at, same, worker
from waiting import HANG, becomes, until


@pytest.mark.parametrize("cancel_futures", [False, True])
@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool])
def test_a_pool_says_once_that_it_is_closed(kind, cancel_futures):
    seen: list[str] = []
    pool = kind(1, on_event=lambda event: seen.append(event.name))
    pool.shutdown(cancel_futures=cancel_futures)
    pool.shutdown()
    becomes(lambda: seen.count("pool_closed"), 1)


@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool])
def test_what_a_map_starts_it_ends_in_the_events_too(kind):
    seen: Counter[str] = Counter()
    with kind(2, on_event=lambda event: seen.update([event.name])) as pool:
        assert list(pool.map(same, range(100))) == list(range(100))
        with pytest.raises(ValueError, match="bad 3"):
            list(pool.map(fail_at, range(10), [3] * 10))
        pool.drain(HANG)
    until(lambda: seen["pool_closed"])
    until(lambda: seen["task_started"] == seen["task_finished"] + seen["task_failed"], str(seen))


@pytest.mark.parametrize("options", [{"min_workers": 3}, {"sizing": "fixed"}])
def test_a_pool_that_is_opened_again_has_its_workers_again(options):
    with ThreadPool(3, **options) as pool:
        becomes(lambda: pool.statistics().workers, 3)
        pool.shutdown()
        assert pool.statistics().workers == 0
        pool.restart()
        until(lambda: pool.statistics().workers == 3, "three workers")


def test_waiting_for_a_process_pool_to_be_idle_costs_no_memory():
    with ProcessPool(1) as pool:
        pool.submit(same).result(HANG)
        growth = []
        for _ in range(3):
            before = sys.getallocatedblocks()
            for _ in range(1000):
                assert pool.drain(HANG)
            growth.append(sys.getallocatedblocks() - before)
        assert min(growth) < 500


@pytest.mark.parametrize("kind", [ThreadPool, ProcessPool])
def test_an_idle_time_out_of_centuries_is_no_time_out(kind):
    with ended(kind(1, idle_timeout=1e10)) as pool:
        for number in range(3):
            assert pool.submit(same, number).result(HANG) == number
            until(lambda: pool.statistics().idle == 1)


def test_a_worker_that_is_too_old_when_it_is_ready_still_runs_a_task():
    started: list[str] = []
    with ended(ProcessPool(1, max_worker_age=0.001, on_event=lambda event: started.append(event.name))) as pool:
        workers = [pool.submit(worker).result(HANG) for _ in range(4)]
        assert len(workers) == 4
        assert started.count("worker_started") <= 5, "each worker ran at least one task"
    assert len(set(workers)) > 1, "and an old one was replaced"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_pool_that_was_growing_at_a_fork_grows_in_the_child():
    script = """
        import os, sys, threading, warnings
        warnings.simplefilter("ignore")
        from millpond import ThreadPool

        def second_task_runs(pool):
            held = threading.Event()
            pool.submit(held.wait)
            second = pool.submit(int)  # a lazy pool starts another worker for it only when nothing has ended for a while
            try:
                return second.result(50) == 0
            except TimeoutError:
                return False
            finally:
                held.set()

        pool = ThreadPool(4, sizing="lazy")
        held = threading.Event()
        for _ in range(3):
            pool.submit(held.wait)  # so that it looks at its size again and again
        child = os.fork()
        if not child:
            os._exit(0 if second_task_runs(pool) else 3)
        status = os.waitpid(child, 0)[1]
        held.set()
        pool.shutdown()
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=HANG, check=False)
    assert done.returncode == 0


def test_who_waits_until_a_pool_is_idle_is_woken_when_its_initializer_fails():
    def fail() -> None:
        until(lambda: pool._runner.drainers)
        raise ValueError("no database")

    pool = ThreadPool(1, initializer=fail)
    task = pool.submit(int)
    drainer = threading.Thread(target=pool.drain, daemon=True)  # the exit of a program waits in the same way
    drainer.start()
    drainer.join(HANG)
    assert not drainer.is_alive()
    assert isinstance(task.exception(HANG), BrokenThreadPool)

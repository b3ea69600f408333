"""The verbs of `ThreadPool` that the standard pool does not have."""

from __future__ import annotations

import contextvars
import logging
import subprocess
import sys
import threading
import time

import pytest

from millpond import PoolClosed, Task, ThreadPool
from millpond.local.threads import _worker
from waiting import HANG, until


def hold(pool: ThreadPool, number: int = 1) -> threading.Event:
    """Keep `number` workers busy until the returned event is set."""
    go_on = threading.Event()
    running = threading.Barrier(number + 1)

    def stay() -> None:
        running.wait(HANG)
        go_on.wait(HANG)

    for _ in range(number):
        pool.submit(stay)
    running.wait(HANG)
    return go_on


# -- go, submit_many ---------------------------------------------------------------------------------------


def test_go_runs_the_call():
    done = threading.Event()
    with ThreadPool(1) as pool:
        pool.go(done.set)
        assert done.wait(HANG)


def test_an_error_in_go_is_logged_with_its_traceback(caplog):
    def bad_one() -> None:
        raise LookupError("nobody sees me")

    with caplog.at_level(logging.ERROR, "millpond"), ThreadPool(1, name="p") as pool:
        pool.go(bad_one)
        pool.drain(HANG)
    (record,) = caplog.records
    assert "bad_one" in record.getMessage()
    assert "'p'" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)


def test_an_error_in_go_reaches_on_event():
    events = []
    with ThreadPool(1, on_event=events.append) as pool:
        pool.go(lambda: 1 / 0)
    failures = [event for event in events if event.name == "task_failed"]
    assert len(failures) == 1
    assert isinstance(failures[0].data["error"], ZeroDivisionError)


def test_submit_many_returns_the_tasks_in_order():
    with ThreadPool(4) as pool:
        tasks = pool.submit_many(pow, [(n, 2) for n in range(100)])
        assert [task.result(HANG) for task in tasks] == [n * n for n in range(100)]


def test_submit_many_uses_all_workers():
    barrier = threading.Barrier(4)
    with ThreadPool(4) as pool:
        for task in pool.submit_many(barrier.wait, [(HANG,)] * 4):
            task.result(HANG)


# -- pause, purge, drain, restart, shutdown -------------------------------------------------------------------


def test_a_paused_pool_starts_nothing_and_a_resumed_one_starts_all():
    ran = []
    with ThreadPool(2) as pool:
        pool.submit(int).result(HANG)
        pool.pause()
        tasks = [pool.submit(ran.append, n) for n in range(10)]
        assert pool.statistics().state == "paused"
        with pytest.raises(TimeoutError):
            tasks[0].result(0.05)
        assert ran == []
        assert pool.statistics().queued == 10
        pool.resume()
        assert pool.drain(HANG)
        assert sorted(ran) == list(range(10))


def test_a_paused_pool_lets_running_tasks_end():
    with ThreadPool(1) as pool:
        go_on = hold(pool)
        queued = pool.submit(lambda: "queued")
        pool.pause()
        go_on.set()
        until(lambda: not pool.statistics().running)
        assert not queued.done()
        pool.resume()
        assert queued.result(HANG) == "queued"


def test_shutdown_of_a_paused_pool_finishes_what_is_queued():
    pool = ThreadPool(2)
    pool.pause()
    task = pool.submit(lambda: "done")
    pool.shutdown()
    assert task.result(0) == "done"


def test_purge_cancels_what_has_not_started():
    with ThreadPool(1) as pool:
        go_on = hold(pool)
        tasks = [pool.submit(int) for _ in range(5)]
        assert tasks[0].cancel()
        assert pool.purge() == 4
        assert all(task.cancelled() for task in tasks)
        go_on.set()
        assert pool.drain(HANG)
        assert pool.statistics().cancelled == 5


def test_drain_waits_for_everything_and_leaves_the_pool_open():
    with ThreadPool(4) as pool:
        tasks = [pool.submit(time.sleep, 0.01) for _ in range(20)]
        assert pool.drain(HANG)
        assert all(task.done() for task in tasks)
        assert pool.submit(lambda: 1).result(HANG) == 1


def test_drain_gives_up_after_its_timeout():
    with ThreadPool(1) as pool:
        go_on = hold(pool)
        assert pool.drain(0.02) is False
        go_on.set()
        assert pool.drain(HANG) is True


def test_drain_inside_a_task_of_the_same_pool_is_refused():
    with ThreadPool(1) as pool:
        error = pool.submit(pool.drain).exception(HANG)
        assert isinstance(error, RuntimeError)
        assert "would wait for itself" in str(error)


def test_a_pool_can_be_restarted_after_shutdown():
    pool = ThreadPool(2)
    pool.submit(int).result(HANG)
    pool.shutdown()
    with pytest.raises(PoolClosed):
        pool.submit(int)
    pool.restart()
    with pool:
        assert pool.submit(lambda: "again").result(HANG) == "again"


def test_a_pool_that_was_paused_is_not_paused_after_a_restart():
    pool = ThreadPool(1)
    pool.shutdown()
    pool.pause()
    pool.restart()
    with pool:
        assert pool.submit(lambda: 1).result(HANG) == 1


def test_errors_of_go_reach_stderr_in_a_program_without_logging():
    code = "from millpond import ThreadPool\nwith ThreadPool(1) as p: p.go(lambda: 1 / 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert "ZeroDivisionError" in done.stderr


def test_shutdown_with_a_timeout_tells_whether_it_was_enough():
    pool = ThreadPool(1)
    go_on = hold(pool)
    assert pool.shutdown(timeout=0.02) is False
    go_on.set()
    assert pool.shutdown(timeout=HANG) is True


def test_pool_closed_is_a_runtime_error_that_says_what_to_do():
    pool = ThreadPool(1, name="mill")
    pool.shutdown()
    for submit in (pool.submit, pool.try_submit, pool.go):
        with pytest.raises(RuntimeError, match=r"pool 'mill' is shut down .* restart\(\)") as caught:
            submit(int)
        assert isinstance(caught.value, PoolClosed)
    with pytest.raises(PoolClosed):
        pool.submit_many(int, [(1,)])
    with pytest.raises(PoolClosed):
        pool.map(int, [1])
    with pytest.raises(PoolClosed):
        pool.options(timeout=1).submit(int)


# -- waiting inside tasks -----------------------------------------------------------------------------------


def nest(pool: ThreadPool, depth: int) -> int:
    return 0 if depth == 0 else 1 + pool.submit(nest, pool, depth - 1).result()


@pytest.mark.parametrize("depth", [1, 100, 300])
def test_tasks_that_wait_for_tasks_do_not_deadlock_on_one_worker(depth):
    with ThreadPool(1) as pool:
        assert pool.submit(nest, pool, depth).result(HANG) == depth
        assert pool.drain(HANG)


def test_deeply_nested_waits_borrow_threads_and_give_them_back():
    with ThreadPool(1) as pool:
        pool.submit(nest, pool, 3 * _worker.DEEPEST).result(HANG)
        assert pool.statistics().largest > 1
        pool.drain(HANG)
        until(lambda: pool.statistics().workers <= 1)


def test_a_worker_that_waits_for_many_runs_them_itself():
    import millpond

    def parent(pool: ThreadPool) -> list[int]:
        tasks: list[Task[int]] = [pool.submit(pow, n, 2) for n in range(20)]
        done, not_done = millpond.wait(tasks, timeout=HANG)
        assert not not_done
        first = millpond.wait([pool.submit(pow, 2, 2)], timeout=10, return_when="FIRST_COMPLETED")
        assert len(first.done) == 1
        return sorted(task.result() for task in millpond.as_completed(tasks, timeout=HANG))

    with ThreadPool(1) as pool:
        assert pool.submit(parent, pool).result(HANG) == [n * n for n in range(20)]


def test_a_map_inside_a_task_does_not_deadlock_on_one_worker():
    with ThreadPool(1) as pool:
        assert pool.submit(lambda: list(pool.map(abs, range(-50, 0)))).result(HANG) == list(range(50, 0, -1))
        assert pool.submit(lambda: sum(pool.map(abs, range(-50, 0), buffersize=3))).result(HANG) == 1275


def test_waiting_for_a_task_of_another_pool_does_not_run_it_here():
    with ThreadPool(1) as one, ThreadPool(1) as other:
        name = one.submit(lambda: other.submit(lambda: threading.current_thread().name).result(HANG)).result(HANG)
        assert name.startswith(other.name)


# -- context ---------------------------------------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.fixture
def variable_set():
    token = variable.set("from the submitter")
    yield
    variable.reset(token)


@pytest.mark.parametrize("submit", ["submit", "submit_many", "map", "options", "go", "subpool"])
def test_context_variables_reach_the_task(variable_set, submit):
    seen = []

    def look(*_: object) -> None:
        seen.append(variable.get())

    with ThreadPool(2) as pool:
        if submit == "submit":
            pool.submit(look)
        elif submit == "submit_many":
            pool.submit_many(look, [()])
        elif submit == "map":
            list(pool.map(look, [1]))
        elif submit == "options":
            pool.options(timeout=3600).submit(look)
        elif submit == "go":
            pool.go(look)
        else:
            pool.subpool(1).submit(look)
        pool.drain(HANG)
    assert seen == ["from the submitter"]


def test_what_a_task_sets_reaches_neither_its_submitter_nor_the_next_task():
    with ThreadPool(1) as pool:
        pool.submit(variable.set, "leak").result(HANG)
        assert variable.get() == "unset"
        assert pool.submit(variable.get).result(HANG) == "unset"


def test_what_a_task_sets_reaches_nobody_when_the_submitter_has_a_context_either(variable_set):
    with ThreadPool(1) as pool:
        pool.submit(variable.set, "leak").result(HANG)
        assert pool.submit(variable.get).result(HANG) == "from the submitter"


def test_without_context_the_tasks_of_a_worker_share_its_own(variable_set):
    with ThreadPool(1, context=None, initializer=variable.set, initargs=("by the initializer",)) as pool:
        assert pool.submit(variable.get).result(HANG) == "by the initializer"


# -- workers ------------------------------------------------------------------------------------------------------


def test_the_finalizer_runs_in_each_worker_that_leaves():
    started, left = set(), set()
    with ThreadPool(
        3,
        initializer=lambda: started.add(threading.get_ident()),
        finalizer=lambda: left.add(threading.get_ident()),
    ) as pool:
        hold(pool, 3).set()
    assert len(started) == 3
    assert left == started


def test_a_raising_finalizer_is_logged(caplog):
    with ThreadPool(1, finalizer=lambda: 1 / 0) as pool:  # type: ignore[arg-type, return-value]
        pool.submit(int).result(HANG)
    assert "finalizer" in caplog.text


def test_workers_are_replaced_after_their_number_of_tasks():
    with ThreadPool(1, max_tasks_per_worker=3) as pool:
        threads = [pool.submit(threading.current_thread).result(HANG) for _ in range(9)]
    runs = [threads.count(thread) for thread in dict.fromkeys(threads)]
    assert runs == [3, 3, 3]


def test_workers_are_replaced_in_a_map_too():
    with ThreadPool(2, max_tasks_per_worker=5) as pool:
        names = list(pool.map(lambda _: threading.current_thread().name, range(50), chunksize=1))
    assert max(names.count(name) for name in names) <= 5


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_no_exception_kills_a_worker(error):
    def fail() -> None:
        raise error

    with ThreadPool(1) as pool:
        thread = pool.submit(threading.current_thread).result(HANG)
        assert type(pool.submit(fail).exception(HANG)) is error
        assert pool.submit(threading.current_thread).result(HANG) is thread


def test_events_tell_the_story():
    events = []
    with ThreadPool(1, name="told", on_event=events.append) as pool:
        pool.submit(int).result(HANG)
        pool.submit(lambda: 1 / 0).exception(HANG)
        pool.pause()
        pool.submit(int).cancel()
    names = [event.name for event in events]
    for name in ("worker_started", "task_started", "task_finished", "task_failed", "task_cancelled", "pool_closed"):
        assert name in names
    assert names[-1] == "worker_stopped"
    assert all(event.pool == "told" for event in events)
    finished = next(event for event in events if event.name == "task_finished")
    assert finished.data["function"] == "int"
    assert finished.data["seconds"] >= 0


def test_an_observer_that_raises_harms_nobody(caplog):
    def bad_observer(_: object) -> None:
        raise RuntimeError("observer")

    with ThreadPool(1, on_event=bad_observer) as pool:
        assert pool.submit(lambda: 1).result(HANG) == 1
    assert "on_event raised" in caplog.text


def test_statistics_add_up():
    with ThreadPool(2, name="counted") as pool:
        go_on = hold(pool, 2)
        cancelled = [pool.submit(int) for _ in range(3)]
        queued = [pool.submit(lambda: 1 / 0) for _ in range(4)]
        for each in cancelled:
            each.cancel()
        now = pool.statistics()
        assert (now.workers, now.idle, now.running, now.queued, now.cancelled) == (2, 0, 2, 4, 3)
        assert now.submitted == 9
        go_on.set()
        for task in queued:
            task.exception(HANG)
        pool.drain(HANG)
        now = pool.statistics()
        assert (now.completed, now.failed, now.cancelled, now.queued, now.running) == (6, 4, 3, 0, 0)
        assert (now.name, now.kind, now.state, now.submitted, now.largest) == ("counted", "threads", "open", 9, 2)


def test_the_items_of_a_map_are_counted():
    with ThreadPool(2) as pool:
        list(pool.map(abs, range(1000)))
        pool.drain(HANG)
        assert pool.statistics().completed == 1000
        assert pool.statistics().submitted == 1000


def test_repr_and_html_say_what_is_going_on():
    with ThreadPool(2, name="<thumbs>") as pool:
        go_on = hold(pool)
        pool.submit(int)
        pool.pause()
        pool.submit(int)
        assert repr(pool).startswith("<ThreadPool '<thumbs>' ")
        assert "queued" in repr(pool)
        assert "paused" in repr(pool)
        html = pool._repr_html_()
        assert "&lt;thumbs&gt;" in html
        assert "<svg" in html
        assert "workers busy" in html
        pool.resume()
        go_on.set()


def test_a_subclass_may_override_submit():
    class Counting(ThreadPool):
        submitted = 0

        def submit(self, fn, /, *args, **kwargs):
            self.submitted += 1
            return super().submit(fn, *args, **kwargs)

    with Counting(1) as pool:
        assert pool.submit(pow, 2, 3).result(HANG) == 8
        assert pool.submitted == 1


def test_what_people_read_of_the_standard_pool_although_it_is_private():
    with ThreadPool(1) as pool:
        go_on = hold(pool)
        pool.submit(int)
        assert pool._work_queue.qsize() == 1 and len(pool._threads) == 1 and not pool._shutdown
        go_on.set()
    assert pool._work_queue.qsize() == 0 and pool._shutdown


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch, caplog):
    with ThreadPool(4) as pool:
        go_on = hold(pool)

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        task = pool.submit(lambda: "later")
        monkeypatch.undo()
        assert "could not start another thread" in caplog.text
        go_on.set()
        assert task.result(HANG) == "later"


@pytest.mark.parametrize("max_queued", [None, 0])
@pytest.mark.parametrize("key", [None, "k"])
def test_the_first_thread_that_cannot_be_started_is_an_error(monkeypatch, max_queued, key):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with ThreadPool(1, max_queued=max_queued) as pool:
        submit = pool.submit if key is None else pool.options(key=key).submit
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                submit(int)
        assert pool.statistics().queued == 0
        task = pool.try_submit(lambda: 1)
        assert task is not None and task.result(HANG) == 1, "its place is free again"


def test_memory_of_a_pending_task_is_small():
    with ThreadPool(1) as pool:
        go_on = hold(pool)
        task = pool.submit(int)
        size = sys.getsizeof(task)
        go_on.set()
    assert size <= 120

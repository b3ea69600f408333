"""A task ends once, in one way: it runs, or it is cancelled, whoever else reaches for it at that moment.

The tests that sweep strike at every line that the pool's own thread executes, from another thread, as a busy machine
might: so a window of a single line between "nobody has cancelled it" and "now it is mine" is found for certain.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from alarms import Alarm, alarm_at
from millpond import CancelToken, ProcessPool, Task, ThreadPool
from pool_calls import Gate, Journal, ended, note, opened_at_the_end, same
from waiting import HANG, becomes, until

KINDS: list[type[ThreadPool] | type[ProcessPool]] = [ThreadPool, ProcessPool]

# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_task_whose_token_was_cancelled_before_leaves_no_trace_in_the_counts():
    spent = CancelToken()
    spent.cancel()
    pool = ThreadPool(1, idle_timeout=0.01)
    assert all(pool.options(cancel=spent).submit(int).cancelled() for _ in range(3))
    pool.pause()
    tasks = [pool.submit(same, number) for number in range(3)]
    assert pool.statistics().queued == 3
    assert pool.drain(0.05) is False
    until(lambda: pool.statistics().workers == 0)
    assert pool.shutdown(timeout=HANG) is True
    assert [task.done() for task in tasks] == [True] * 3
    assert [task.result(0) for task in tasks] == [0, 1, 2]
    assert pool.statistics().cancelled == 3


@pytest.mark.parametrize("key", [None, "k"])
def test_a_token_lets_go_of_a_submitter_that_waits_for_room(key, tmp_path):
    token = CancelToken()
    outcome: list[Any] = []
    with (
        ended(ThreadPool(1, max_queued=0)) as pool,
        ended(ThreadPool(1)) as other,
        opened_at_the_end(Gate(tmp_path)) as gate,
    ):
        pool.submit(_wait, gate)
        other.pause()
        siblings = [other.options(cancel=token).submit(int) for _ in range(10)]

        def submit() -> None:
            try:
                outcome.append(pool.options(key=key, cancel=token).submit(int).cancelled())
            except BaseException as error:
                outcome.append(error)

        submitter = threading.Thread(target=submit, daemon=True)
        submitter.start()
        until(lambda: pool.statistics().waiting_submitters == 1)
        token.cancel()
        assert all(task.cancelled() for task in siblings)
        submitter.join(HANG)
        assert outcome == [True]
        assert pool.statistics().waiting_submitters == 0
        gate.open()
        assert pool.options(key=key).submit(same, 5).result(HANG) == 5


def _wait(gate: Gate) -> None:
    until(lambda: gate.is_open())


# -- two that reach for one task ---------------------------------------------------------------------------------------


def test_a_task_that_a_worker_helps_with_while_the_pool_is_purged_runs_or_is_cancelled():
    ran: list[int] = []
    tasks: list[Task[Any]] = []
    purging, helped = threading.Event(), threading.Event()

    def parent() -> None:
        purging.wait(HANG)
        for task in reversed(tasks):
            _end_of(task)
        helped.set()

    with ended(ThreadPool(1)) as pool:
        top = pool.submit(parent)
        until(top.running)
        tasks += [pool.submit(ran.append, number) for number in range(3)]
        tasks[0].add_done_callback(lambda _: (purging.set(), helped.wait(0.3)))  # in the midst of purge()
        assert pool.purge() == 3
        top.result(HANG)
        assert [number for number, task in enumerate(tasks) if task.cancelled() and number in ran] == []
        assert all(task.cancelled() for task in tasks)
        assert pool.statistics().cancelled == 3


def _end_of(task: Task[Any]) -> None:
    with suppress(CancelledError):
        task.result(None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_task_that_is_cancelled_while_the_pool_is_purged_is_cancelled_once(kind, key):
    events = []
    with ended(kind(1, on_event=lambda event: events.append(event.name))) as pool:
        pool.pause()
        first, second = (pool.options(key=key).submit(int) for _ in range(2))
        first.add_done_callback(lambda _: second.cancel())  # in the midst of purge()
        second.add_done_callback(lambda _: first.cancel())
        assert pool.purge() == 2
        assert pool.statistics().cancelled == 2
        assert pool.statistics().queued == 0
        becomes(lambda: events.count("task_cancelled"), 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_a_task_that_its_own_cancelling_cancels_again_is_cancelled_once(kind, key, verb):
    seen: list[str] = []
    again: list[Any] = []

    def watch(event: Any) -> None:
        seen.append(event.name)
        if event.name == "task_cancelled" and len(again) < 5:
            again.append(task.cancel())

    with ended(kind(1, on_event=watch)) as pool:
        pool.pause()
        task = pool.options(key=key).submit(int)
        assert task.cancel() if verb == "cancel" else pool.purge() == 1
        assert pool.statistics().cancelled == 1
        becomes(lambda: seen.count("task_cancelled"), 1)
        becomes(lambda: len(again), 1)
        assert pool.statistics().cancelled == 1
        assert task.cancelled()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [None, "k"])
def test_a_task_that_several_threads_cancel_is_cancelled_once(kind, key, switching_often):
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def cancel_all() -> None:
        start.wait()
        try:
            for task in tasks:
                task.cancel()
        except BaseException as error:
            errors.append(error)

    with ended(kind(1)) as pool:
        pool.pause()
        source = pool.options(key=key)
        tasks = [source.submit(int) for _ in range(3000)]
        threads = [threading.Thread(target=cancel_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert pool.statistics().cancelled == 3000
        assert pool.statistics().queued == 0
        assert all(task.cancelled() for task in tasks)


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# -- sweeps ------------------------------------------------------------------------------------------------------------


class Striker:
    """Calls a function, in a thread of its own, when the pool's threads reach their n-th line of millpond's code."""

    def __init__(self) -> None:
        self.answer: object = None
        self._call: Callable[[], object] = int
        self._left = 0
        self._lock = threading.Lock()
        self._struck = threading.Event()
        self._is_out = False

    def aim(self, line: int, call: Callable[[], object]) -> None:
        with self._lock:
            self.answer, self._call, self._struck, self._is_out = None, call, threading.Event(), False
            self._left = line

    def trace(self, frame: Any, kind: str, _: Any) -> Any:
        is_ours = "/millpond/" in frame.f_code.co_filename and threading.current_thread().name != "striker"
        return self._count if is_ours else None

    def _count(self, frame: Any, kind: str, _: Any) -> Any:
        if kind == "line" and self._left:
            with self._lock:
                self._left -= self._left > 0
                is_now = not self._left and not self._is_out
                self._is_out = self._is_out or is_now
                struck = self._struck
            if is_now:
                threading.Thread(target=self._strike, args=(struck,), name="striker").start()
                struck.wait(0.05)  # no longer: this thread may hold the lock that the striker wants
        return self._count

    def _strike(self, struck: threading.Event) -> None:
        self.answer = self._call()
        struck.set()

    def rest(self) -> bool:
        """End the strike; return whether there was one."""
        with self._lock:
            self._left = 0
            is_out = self._is_out
        return is_out and self._struck.wait(HANG)


@contextmanager
def traced(striker: Striker) -> Iterator[None]:
    """Trace the threads that start in here."""
    before = threading.gettrace()
    threading.settrace(striker.trace)
    try:
        yield
    finally:
        threading.settrace(before)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_a_task_that_is_cancelled_at_any_line_of_its_pool_is_cancelled_or_runs(kind, verb, tmp_path):
    journal, striker, said = Journal(tmp_path / "journal"), Striker(), {}
    tasks: list[Task[Any]] = []
    with traced(striker), ended(kind(1, idle_timeout=None)) as pool:
        pool.submit(same).result(HANG)
        while True:
            number = len(tasks)
            pool.drain(HANG)
            pool.pause()
            task = pool.submit(note, journal.path, number)
            tasks.append(task)
            striker.aim(number + 1, task.cancel if verb == "cancel" else pool.purge)
            pool.resume()
            until(task.done)
            if not striker.rest():
                break
            said[number] = bool(striker.answer)
    assert len(tasks) > 5
    ran = [int(each) for each in journal.of("begin")]
    assert ran == [number for number, task in enumerate(tasks) if not task.cancelled()]
    assert {number: task.cancelled() for number, task in enumerate(tasks) if number in said} == said
    assert pool.statistics().cancelled == sum(said.values())


@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_a_task_that_is_cancelled_at_any_line_of_a_helping_worker_is_cancelled_or_runs(verb):
    striker, ran, said = Striker(), [], {}
    tasks: list[Task[Any]] = []

    def parent(number: int) -> None:
        task = pool.submit(ran.append, number)
        tasks.append(task)
        striker.aim(number + 1, task.cancel if verb == "cancel" else pool.purge)
        _end_of(task)

    with traced(striker), ended(ThreadPool(1, idle_timeout=None)) as pool:
        pool.submit(same).result(HANG)
        for number in range(1000):
            pool.submit(parent, number).result(HANG)
            if not striker.rest():
                break
            said[number] = bool(striker.answer)
    assert len(tasks) > 5
    assert ran == [number for number, task in enumerate(tasks) if not task.cancelled()]
    assert {number: task.cancelled() for number, task in enumerate(tasks) if number in said} == said
    assert pool.statistics().cancelled == sum(said.values())


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"timeout": 60.0}], ids=str)
@pytest.mark.parametrize("verb", ["submit", "try_submit", "go"])
def test_a_submit_that_a_signal_interrupts_costs_no_place(kind, options, verb):
    """As do Ctrl-C and alarms, at every moment at which Python runs their handlers."""
    with ended(kind(1, max_queued=3, when_full="raise")) as pool:
        pool.pause()  # so that the bound is 3, and what is queued stays
        submit = getattr(pool.options(**options) if options else pool, verb)
        moments = 0
        while True:
            moments += 1
            try:
                with alarm_at(moments):
                    submit(int)
            except Alarm:
                pool.purge()
                assert [pool.try_submit(int) is not None for _ in range(4)] == [True, True, True, False], moments
                assert pool.purge() == 3
            else:
                break  # later than the submit took
        assert moments > 10

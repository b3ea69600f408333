"""A `Task` does what the documentation of `concurrent.futures.Future`, `wait` and `as_completed` says.

Tests with `kind` run with the standard pool too, and tests with `make` with the standard future: that shows that they
ask for what the standard does. `twin` is the standard `wait` or `as_completed`, and then ours.
"""

from __future__ import annotations

import concurrent.futures as standard
import contextlib
import gc
import logging
import pickle
import sys
import threading
import traceback
import tracemalloc
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
)
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond import Task, ThreadPool
from waiting import HANG, until


@pytest.fixture(params=[ThreadPoolExecutor, ThreadPool], ids=["standard", "millpond"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[Future, Task], ids=["standard", "millpond"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[standard, millpond], ids=["standard wait", "millpond wait"])
def twin(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def hostile_switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that is set at the end of the test, so that no failure leaves a task waiting for it."""
    event = threading.Event()
    yield event
    event.set()


def start_and_wait(started: threading.Event, gate: threading.Event) -> bool:
    started.set()
    return gate.wait(HANG)


def in_threads(number: int, function: Callable[[int], object]) -> None:
    """Call `function(i)` in `number` threads that start together; raise the first error."""
    barrier = threading.Barrier(number)
    errors: list[BaseException] = []

    def call(index: int) -> None:
        barrier.wait(HANG)
        try:
            function(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def returned(make: Callable[[], Future[Any]], value: Any = None) -> Future[Any]:
    future = make()
    future.set_running_or_notify_cancel()
    future.set_result(value)
    return future


def raised(make: Callable[[], Future[Any]], error: BaseException | None = None) -> Future[Any]:
    future = make()
    future.set_running_or_notify_cancel()
    future.set_exception(error or ValueError("raised"))
    return future


def cancelled(make: Callable[[], Future[Any]]) -> Future[Any]:
    future = make()
    future.cancel()
    future.set_running_or_notify_cancel()
    return future


def running(make: Callable[[], Future[Any]]) -> Future[Any]:
    future = make()
    future.set_running_or_notify_cancel()
    return future


# -- a future that no pool made ---------------------------------------------------------------------------------------


def test_a_task_is_a_standard_future():
    assert issubclass(Task, Future)
    assert isinstance(Task(), Future)
    assert standard.Future[int] is not None
    assert Task[int].__origin__ is Task  # type: ignore[attr-defined]
    assert isinstance(Task[int](), Task)


def test_a_new_future_is_pending(make):
    future = make()
    assert (future.done(), future.running(), future.cancelled()) == (False, False, False)
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    with pytest.raises(TimeoutError):
        future.result(timeout=-1)


def test_a_future_marked_as_running_runs_and_cannot_be_cancelled(make):
    future = make()
    assert future.set_running_or_notify_cancel() is True
    assert (future.done(), future.running(), future.cancelled()) == (False, True, False)
    assert future.cancel() is False
    assert future.running()


def test_a_future_can_be_given_a_result(make):
    future = running(make)
    future.set_result(5)
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert future.result() == 5
    assert future.exception() is None
    assert future.cancel() is False


def test_a_pending_future_can_be_given_a_result_without_running_first(make):
    future = make()
    future.set_result(5)
    assert future.result() == 5 and future.done() and not future.running()


def test_a_future_can_be_given_an_error(make):
    error = ValueError("raised")
    future = raised(make, error)
    assert future.done() and not future.cancelled()
    assert future.exception() is error
    with pytest.raises(ValueError, match="raised") as caught:
        future.result()
    assert caught.value is error


def test_a_future_that_is_given_no_error_as_its_error_has_returned_none(make):
    future = make()
    future.set_exception(None)
    assert future.done() and future.exception() is None
    assert future.result() is None


def test_a_future_can_be_cancelled(make):
    future = make()
    assert future.cancel() is True
    assert (future.done(), future.running(), future.cancelled()) == (True, False, True)
    assert future.cancel() is True
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(CancelledError):
        future.exception()


def test_marking_a_cancelled_future_as_running_says_no(make):
    future = make()
    future.cancel()
    assert future.set_running_or_notify_cancel() is False
    assert future.cancelled()


@pytest.mark.parametrize("end", [running, returned, raised])
def test_marking_a_future_as_running_that_is_not_pending_raises_runtime_error(make, end, caplog):
    with pytest.raises(RuntimeError):
        end(make).set_running_or_notify_cancel()


@pytest.mark.parametrize("end", [returned, raised, cancelled])
def test_a_future_ends_only_once(make, end):
    future = end(make)
    with pytest.raises(InvalidStateError):
        future.set_result(1)
    with pytest.raises(InvalidStateError):
        future.set_exception(KeyError())


def test_of_many_that_set_a_result_at_once_exactly_one_succeeds(make, hostile_switching):
    for _ in range(300):
        future = make()
        winners: list[int] = []

        def end(index: int, future: Any = future, winners: list[int] = winners) -> None:
            try:
                future.set_result(index)
            except InvalidStateError:
                return
            winners.append(index)

        in_threads(3, end)
        assert winners == [future.result()]


def test_a_future_is_either_cancelled_or_has_a_result_when_both_are_tried_at_once(make, hostile_switching):
    for _ in range(300):
        future = make()
        won: list[str] = []

        def end(index: int, future: Any = future, won: list[str] = won) -> None:
            if index:
                if future.cancel():
                    won.append("cancel")
                return
            try:
                future.set_result("result")
            except InvalidStateError:
                return
            won.append("result")

        in_threads(2, end)
        assert won == (["cancel"] if future.cancelled() else ["result"])


def test_repr_tells_the_state(make):
    cases = [(make(), "pending"), (running(make), "running"), (cancelled(make), "cancelled")]
    cases += [(returned(make, 1), "returned int"), (raised(make), "raised ValueError")]
    for future, words in cases:
        assert repr(future).startswith(f"<{make.__name__} at 0x") and words in repr(future)


def test_a_future_cannot_be_pickled(make):
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(make())


def test_a_task_of_a_pool_cannot_be_pickled(kind):
    with kind(1) as pool, pytest.raises(TypeError, match="pickle"):
        pickle.dumps(pool.submit(int))


def test_waiting_for_a_future_that_nobody_ends_can_be_ended_by_another_thread(make):
    for end, see in [(lambda f: f.set_result(3), 3), (lambda f: f.set_exception(KeyError("k")), KeyError)]:
        future = make()
        thread = threading.Thread(target=end, args=(future,))
        thread.start()
        if see == 3:
            assert future.result(HANG) == 3
        else:
            assert isinstance(future.exception(HANG), KeyError)
        thread.join()


def test_cancelling_wakes_those_who_wait(make):
    future = make()
    outcomes: list[str] = []

    def act(index: int) -> None:
        if index == 0:
            future.cancel()
            return
        try:
            future.result(HANG)
        except CancelledError:
            outcomes.append("cancelled")

    in_threads(4, act)
    assert outcomes == ["cancelled"] * 3


# -- states of a task in a pool ---------------------------------------------------------------------------------------


def test_a_task_goes_from_pending_to_running_to_done(kind, gate):
    started = threading.Event()
    with kind(1) as pool:
        first = pool.submit(start_and_wait, started, gate)
        second = pool.submit(abs, -1)
        assert started.wait(HANG)
        assert (first.running(), first.done(), first.cancel()) == (True, False, False)
        assert (second.running(), second.done()) == (False, False)
        gate.set()
        assert second.result(HANG) == 1
        assert (first.running(), first.done(), first.cancel(), first.cancelled()) == (False, True, False, False)


def test_a_queued_task_that_is_cancelled_never_runs(kind, gate):
    ran: list[int] = []
    with kind(1) as pool:
        pool.submit(gate.wait, HANG)
        tasks = [pool.submit(ran.append, number) for number in range(10)]
        assert [task.cancel() for task in tasks[::2]] == [True] * 5
        assert [task.cancel() for task in tasks[::2]] == [True] * 5
        gate.set()
    assert ran == [1, 3, 5, 7, 9]
    assert [task.cancelled() for task in tasks] == [True, False] * 5


def test_a_task_that_is_cancelled_by_many_while_it_starts_ran_or_is_cancelled(kind, hostile_switching):
    with kind(2) as pool:
        for _ in range(300):
            ran: list[int] = []
            calls: list[object] = []
            task = pool.submit(ran.append, 1)
            task.add_done_callback(calls.append)
            answers: list[bool] = []
            in_threads(2, lambda _: answers.append(task.cancel()))  # noqa: B023
            standard.wait([task], HANG)
            until(lambda: len(calls) == 1)  # noqa: B023
            if task.cancelled():
                assert ran == [] and answers == [True, True]
            else:
                assert ran == [1] and answers == [False, False]


def test_our_statistics_count_a_task_once_that_two_threads_cancel(hostile_switching, gate):
    with ThreadPool(1) as pool:
        pool.submit(gate.wait, HANG)
        for _ in range(300):
            task = pool.submit(int)
            in_threads(2, lambda _: task.cancel())  # noqa: B023
        assert pool.statistics().cancelled == 300
        gate.set()


def test_result_and_exception_time_out_while_the_task_goes_on(kind, gate):
    with kind(1) as pool:
        task = pool.submit(gate.wait, HANG)
        for timeout in (0, 0.01, -5):
            with pytest.raises(TimeoutError):
                task.result(timeout)
            with pytest.raises(TimeoutError):
                task.exception(timeout=timeout)
        with pytest.raises(standard.TimeoutError):
            task.result(0)
        gate.set()
        assert task.result(HANG) is True


def test_many_can_wait_for_the_same_task(kind, gate, hostile_switching):
    with kind(1) as pool:
        task = pool.submit(gate.wait, HANG)
        got: list[bool] = []

        def look(index: int) -> None:
            if index == 0:
                gate.set()
            got.append(task.result(HANG))

        in_threads(8, look)
    assert got == [True] * 8


# -- errors -----------------------------------------------------------------------------------------------------------


def fails(error: BaseException) -> None:
    raise error


def test_the_error_of_a_task_is_the_very_object_that_was_raised(kind):
    cause = KeyError("cause")
    error = ValueError("with a cause")
    error.__cause__ = cause
    error.add_note("a note")
    with kind(1) as pool:
        task = pool.submit(fails, error)
        with pytest.raises(ValueError, match="with a cause") as caught:
            task.result(HANG)
        assert caught.value is error is task.exception()
        assert caught.value.__cause__ is cause
        assert caught.value.__notes__ == ["a note"]


def test_an_error_raised_while_handling_another_keeps_its_context(kind):
    def handle() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904

    with kind(1) as pool:
        error = pool.submit(handle).exception(HANG)
        assert isinstance(error, ValueError) and isinstance(error.__context__, KeyError)


def frames_below_result(call: Callable[[], object]) -> list[str]:
    """Return the names of the functions in the traceback of what `call` raises, after the innermost `result`."""
    try:
        call()
    except BaseException as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        last = max(index for index, name in enumerate(names) if name in ("result", "_consume"))
        return names[last + 1 :]
    raise AssertionError("nothing was raised")


def test_the_traceback_goes_from_result_straight_to_the_users_function():
    with ThreadPool(1) as pool:
        plain = pool.submit(fails, ValueError())
        keywords = pool.submit(fails, error=ValueError())
        limited = pool.options(timeout=HANG).submit(fails, ValueError())
        keyed = pool.options(key="k").submit(fails, ValueError())
        helped = pool.submit(lambda: frames_below_result(pool.submit(fails, ValueError()).result))
        for task in (plain, keywords, limited, keyed):
            assert frames_below_result(task.result) == ["fails"]
        assert helped.result(HANG) == ["fails"]
        assert frames_below_result(lambda: list(pool.map(fails, [ValueError()]))) == ["fails"]
    with ThreadPool(1, on_event=lambda event: None) as pool:
        assert frames_below_result(pool.submit(fails, ValueError()).result) == ["fails"]
    with ThreadPool(1, context=None, max_queued=1) as pool:
        assert frames_below_result(pool.submit(fails, ValueError()).result) == ["fails"]


def test_the_traceback_of_an_error_that_nobody_raised_again_starts_in_the_users_function():
    with ThreadPool(1) as pool:
        error = pool.submit(fails, ValueError()).exception(HANG)
    assert error is not None
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["fails"]


def test_a_call_with_wrong_arguments_has_no_frame_of_ours_in_its_traceback():
    with ThreadPool(1) as pool:
        error = pool.submit(fails).exception(HANG)  # type: ignore[call-arg]
        assert isinstance(error, TypeError)
        assert traceback.extract_tb(error.__traceback__) == []


# -- callbacks --------------------------------------------------------------------------------------------------------


def test_callbacks_are_called_with_the_future_in_the_order_they_were_added(kind, gate):
    calls: list[tuple[int, object]] = []
    with kind(1) as pool:
        task = pool.submit(gate.wait, HANG)
        for number in range(20):
            task.add_done_callback(lambda future, number=number: calls.append((number, future)))
        gate.set()
    assert calls == [(number, task) for number in range(20)]


def test_a_callback_added_twice_is_called_twice(make):
    future = make()
    calls: list[object] = []
    future.add_done_callback(calls.append)
    future.add_done_callback(calls.append)
    future.set_result(1)
    assert calls == [future, future]


def test_a_callback_runs_in_the_thread_that_ends_the_task_and_a_late_one_at_once_in_the_callers(kind, gate):
    names: list[str] = []
    with kind(1, thread_name_prefix="mill") as pool:
        task = pool.submit(gate.wait, HANG)
        task.add_done_callback(lambda _: names.append(threading.current_thread().name))
        gate.set()
        task.result(HANG)
        until(lambda: names)
        task.add_done_callback(lambda _: names.append(threading.current_thread().name))
    assert names == ["mill_0", threading.current_thread().name]


def test_a_callback_sees_the_task_as_done(kind, gate):
    saw: list[object] = []
    with kind(1) as pool:
        for outcome in (lambda: gate.wait(HANG), lambda: gate.wait(HANG) and 1 / 0):
            task = pool.submit(outcome)
            task.add_done_callback(lambda future: saw.append((future.done(), future.running(), future.exception())))
        gate.set()
    assert saw[0] == (True, False, None)
    assert isinstance(saw[1][2], ZeroDivisionError)  # type: ignore[index]


def test_a_cancelled_task_calls_its_callbacks_in_the_thread_that_cancels(kind, gate):
    calls: list[tuple[bool, int]] = []
    with kind(1) as pool:
        pool.submit(gate.wait, HANG)
        task = pool.submit(abs, 1)
        task.add_done_callback(lambda future: calls.append((future.cancelled(), threading.get_ident())))
        task.cancel()
        assert calls == [(True, threading.get_ident())]
        task.cancel()
        gate.set()
    assert len(calls) == 1


@pytest.mark.parametrize("late", [False, True])
def test_a_callback_that_raises_is_logged_and_the_others_are_called(make, caplog, late):
    calls: list[object] = []
    future = make()
    if late:
        future.set_result(1)
    with caplog.at_level(logging.ERROR, "concurrent.futures"):
        future.add_done_callback(lambda _: 1 / 0)
        future.add_done_callback(calls.append)
        if not late:
            future.set_result(1)
    assert calls == [future]
    assert [record.name for record in caplog.records] == ["concurrent.futures"]
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_added_while_the_task_ends_is_called_exactly_once(kind, hostile_switching):
    with kind(2) as pool:
        for _ in range(300):
            calls: list[int] = []
            task = pool.submit(int)

            def add(index: int, task: Future[int] = task, calls: list[int] = calls) -> None:
                for number in range(5):
                    task.add_done_callback(partial(lambda number, _: calls.append(number), index * 5 + number))

            in_threads(2, add)
            task.result(HANG)
            until(lambda: len(calls) == 10)  # noqa: B023
            assert sorted(calls) == list(range(10))


def test_a_callback_can_submit_and_wait_for_another_task(kind):
    got: list[int] = []
    with kind(2) as pool:
        task = pool.submit(int)
        task.add_done_callback(lambda _: got.append(pool.submit(abs, -3).result(HANG)))
        until(lambda: got)
    assert got == [3]


def test_a_callback_added_by_a_callback_is_called(make):
    future = make()
    calls: list[str] = []
    future.add_done_callback(lambda f: f.add_done_callback(lambda _: calls.append("inner")))
    future.set_result(1)
    assert calls == ["inner"]


# -- wait -------------------------------------------------------------------------------------------------------------


def test_wait_for_all(twin, kind):
    with kind(2) as pool:
        tasks = [pool.submit(abs, number) for number in range(20)]
        done, not_done = twin.wait(tasks, timeout=HANG)
        assert (done, not_done) == (set(tasks), set())
        named = twin.wait(tasks)
        assert named.done == set(tasks) and named.not_done == set()


def test_wait_for_all_counts_failed_and_cancelled_ones(twin, make):
    futures = [returned(make), raised(make), cancelled(make)]
    assert twin.wait(futures, timeout=HANG) == (set(futures), set())


def test_wait_for_nothing_returns_at_once(twin):
    for return_when in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        assert twin.wait([], return_when=return_when) == (set(), set())


def test_wait_takes_any_iterable_with_duplicates(twin, make):
    future = returned(make)
    assert twin.wait(iter([future, future]), HANG, ALL_COMPLETED) == ({future}, set())


@pytest.mark.parametrize("return_when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
@pytest.mark.parametrize("timeout", [0, 0.01, -1])
def test_wait_gives_up_at_its_timeout(twin, make, return_when, timeout):
    futures = {make(), running(make)}
    assert twin.wait(futures, timeout=timeout, return_when=return_when) == (set(), futures)


def test_wait_for_all_at_its_timeout_tells_which_are_done(twin, make):
    done, pending = returned(make), make()
    assert twin.wait([done, pending], timeout=0.01) == ({done}, {pending})


def test_wait_for_the_first(twin, kind, gate):
    with kind(2) as pool:
        slow, quick = pool.submit(gate.wait, HANG), pool.submit(abs, 1)
        assert twin.wait([slow, quick], HANG, FIRST_COMPLETED) == ({quick}, {slow})
        assert twin.wait([slow, quick], HANG, FIRST_COMPLETED) == ({quick}, {slow})
        gate.set()


def test_wait_for_the_first_error_goes_past_results_and_cancellations(twin, make):
    fine, failing, late, gone = make(), make(), make(), make()

    def end(index: int) -> None:
        if index:
            assert twin.wait([fine, failing, late, gone], HANG, FIRST_EXCEPTION).not_done == {late}
            return
        gone.cancel()
        gone.set_running_or_notify_cancel()
        fine.set_result(1)
        failing.set_exception(ValueError())

    in_threads(2, end)


def test_wait_for_the_first_error_returns_at_once_when_there_is_one(twin, make):
    failed, pending = raised(make), make()
    assert twin.wait([failed, pending], HANG, FIRST_EXCEPTION) == ({failed}, {pending})


def test_wait_for_the_first_error_waits_for_all_when_there_is_none(twin, kind):
    with kind(2) as pool:
        tasks = {pool.submit(abs, number) for number in range(10)}
        assert twin.wait(tasks, HANG, FIRST_EXCEPTION) == (tasks, set())


def test_wait_refuses_a_wrong_return_when(twin, make):
    with pytest.raises(ValueError, match="return"):
        twin.wait([make()], timeout=1, return_when="WHENEVER")


def test_wait_takes_futures_of_several_kinds(twin):
    with ThreadPool(1) as ours, ThreadPoolExecutor(1) as theirs:
        futures = {pool.submit(abs, number) for pool in (ours, theirs) for number in range(10)}
        assert twin.wait(futures, HANG) == (futures, set())
        gate = threading.Event()
        slow = {ours.submit(gate.wait, HANG), theirs.submit(gate.wait, HANG)}
        assert twin.wait(slow | {theirs.submit(int)}, 0.05).not_done >= slow
        gate.set()
        assert twin.wait(slow, HANG).not_done == set()


def test_several_threads_wait_for_the_same_tasks_in_every_way(twin, kind, hostile_switching):
    for _ in range(30):
        gate = threading.Event()
        with kind(2) as pool:
            tasks = {pool.submit(gate.wait, HANG) for _ in range(10)}

            def look(index: int, tasks: set[Future[bool]] = tasks, gate: threading.Event = gate) -> None:
                if index == 0:
                    gate.set()
                elif index == 1:
                    assert twin.wait(tasks, HANG).done == tasks
                elif index == 2:
                    assert twin.wait(tasks, HANG, FIRST_COMPLETED).done
                elif index == 3:
                    assert set(twin.as_completed(tasks, HANG)) == tasks
                else:
                    assert all(task.result(HANG) for task in tasks)

            in_threads(5, look)


class Padded(Future[Any]):
    """A standard future as large as a task, so that both lie among one another in memory."""

    __slots__ = ("a", "b", "c", "d", "e", "f", "g")


def test_threads_that_wait_for_our_and_standard_futures_in_different_orders_do_not_deadlock():
    """`concurrent.futures.wait` takes the futures' locks in the order of their ids, so no two may share a lock."""
    several: list[Future[Any]] = sorted((kind() for _ in range(200) for kind in (Task, Padded)), key=id)
    tasks = [future for future in several if isinstance(future, Task)]
    low, high = tasks[0], tasks[-1]
    middle = next(future for future in several[several.index(low) : several.index(high)] if type(future) is Padded)
    first_wants_middle, second_has_middle = threading.Event(), threading.Event()
    deadlocks: list[str] = []

    class Slow:
        """Makes the unlucky moment certain: each thread has its first lock before it asks for its second."""

        def __init__(self) -> None:
            self._lock = threading.RLock()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

        def acquire(self) -> bool:
            if threading.current_thread().name != "first":
                self._lock.acquire()
                second_has_middle.set()
                first_wants_middle.wait(HANG)
            else:
                first_wants_middle.set()
                second_has_middle.wait(HANG)
                if not deadlocks and not self._lock.acquire(timeout=HANG / 2):
                    deadlocks.append("the other thread waits for a lock that this one has")
            return True

        def release(self) -> None:
            if threading.current_thread().name != "first" or not deadlocks:
                self._lock.release()

    middle._condition = Slow()  # type: ignore[assignment]
    threads = [
        threading.Thread(target=standard.wait, args=([low, middle], 0), name="first", daemon=True),
        threading.Thread(target=standard.wait, args=([middle, high], 0), name="second", daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    assert deadlocks == []


def test_a_task_that_ends_between_two_looks_of_the_standard_library_confuses_nobody():
    """One thread is about to watch the task when it ends; another has seen it done and takes its waiter off."""
    for look in (standard.wait, lambda fs: list(standard.as_completed(fs))):
        task: Task[int] = Task()
        other: Future[int] = Future()
        about_to_look, may_look = threading.Event(), threading.Event()
        ordinary = Task._look

        def late(task: Task[int] = task, ordinary: Any = ordinary, a: Any = about_to_look, b: Any = may_look) -> Any:
            a.set()
            b.wait(HANG)
            return ordinary(task)

        task._look = late  # type: ignore[method-assign]
        slow = threading.Thread(target=lambda task=task: task._condition)
        slow.start()
        assert about_to_look.wait(HANG)
        task.set_result(1)
        errors: list[BaseException] = []

        def watch(look: Any = look, task: Any = task, other: Any = other, errors: Any = errors) -> None:
            try:
                look([task, other])
            except BaseException as error:
                errors.append(error)

        watcher = threading.Thread(target=watch)
        watcher.start()
        until(lambda: other._waiters)  # noqa: B023
        may_look.set()
        slow.join(HANG)
        other.set_result(2)
        watcher.join(HANG)
        assert not watcher.is_alive()
        assert errors == []


def test_waiting_again_and_again_leaves_nothing_on_the_futures(twin, make):
    future = make()

    def ask(times: int) -> None:
        for _ in range(times):
            twin.wait([future], 0, FIRST_COMPLETED)
            try:
                next(twin.as_completed([future], 0))
            except TimeoutError:
                continue

    ask(50)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ask(1000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000


# -- as_completed -----------------------------------------------------------------------------------------------------


def test_as_completed_yields_every_future_once(twin, kind):
    with kind(3) as pool:
        tasks = [pool.submit(abs, number) for number in range(100)]
        got = list(twin.as_completed(tasks + tasks, timeout=HANG))
        assert len(got) == 100 and set(got) == set(tasks)


def test_as_completed_of_nothing_yields_nothing(twin):
    assert list(twin.as_completed([])) == []
    assert list(twin.as_completed([], timeout=0)) == []


def test_as_completed_yields_in_the_order_of_completion(twin, make):
    first, *rest = futures = [make() for _ in range(10)]
    first.set_result(0)
    completed = twin.as_completed(futures, timeout=HANG)
    assert next(completed) is first
    order = rest[::2] + rest[1::2]
    for future in order:
        future.set_result(1)
    assert list(completed) == order


def test_as_completed_yields_cancelled_and_failed_ones_too(twin, make):
    futures = {cancelled(make), raised(make), returned(make)}
    assert set(twin.as_completed(futures, timeout=0)) == futures


def test_as_completed_yields_what_is_done_before_it_times_out(twin, make):
    done, pending = returned(make), make()
    for timeout in (0, 0.01):
        completed = twin.as_completed([done, pending, done], timeout=timeout)
        assert next(completed) is done
        with pytest.raises(TimeoutError, match=r"1 \(of 2\) futures unfinished"):
            next(completed)


def test_as_completed_takes_futures_of_several_kinds(twin):
    with ThreadPool(2) as ours, ThreadPoolExecutor(2) as theirs:
        futures = {pool.submit(abs, number) for pool in (ours, theirs) for number in range(50)}
        assert set(twin.as_completed(futures, HANG)) == futures


def test_as_completed_drops_what_it_has_yielded(twin, make):
    """From CPython's own tests."""
    futures = [make() for _ in range(8)] + [cancelled(make), returned(make, 42)]
    seen = 0
    completed = twin.as_completed(futures, timeout=0)
    with pytest.raises(TimeoutError):
        for future in completed:
            futures.remove(future)
            ref = weakref.ref(future)
            del future
            gc.collect()
            assert ref() is None
            seen += 1
    assert seen == 2


def test_as_completed_drops_what_it_has_yielded_while_others_are_pending(twin, make):
    futures = [make() for _ in range(3)]
    futures[0].set_result(object())
    completed = twin.as_completed(futures, timeout=HANG)
    next(completed)
    futures[1].set_result(object())
    future = next(completed)
    ref = weakref.ref(future)
    del future, futures[1]
    gc.collect()
    assert ref() is None


def test_as_completed_is_quick_with_thousands(twin):
    with ThreadPool(4) as pool:
        tasks = [pool.submit(int) for _ in range(5000)]
        assert sum(1 for _ in twin.as_completed(tasks, HANG)) == 5000


def test_as_completed_under_contention_loses_none(twin, kind, hostile_switching):
    with kind(3) as pool:
        for _ in range(50):
            tasks = {pool.submit(int) for _ in range(20)}
            assert set(twin.as_completed(tasks, HANG)) == tasks


def test_a_wait_with_a_timeout_inside_a_task_keeps_to_it(twin, kind, gate):
    """The inner tasks end only when the outer one goes on: the wait is bounded, so that is no deadlock."""
    with kind(1) as pool:

        def outer() -> str:
            inner = [pool.submit(gate.wait, HANG) for _ in range(2)]
            done = twin.wait(inner, timeout=0.05).done
            done |= twin.wait(inner, 0.05, FIRST_COMPLETED).done
            with contextlib.suppress(TimeoutError):
                done |= set(twin.as_completed(inner, timeout=0.05))
            return "done" if done else "timed out"

        task = pool.submit(outer)
        try:
            assert task.result(HANG) == "timed out"
        finally:
            gate.set()


# -- the twins give the same answers ----------------------------------------------------------------------------------

STATES: dict[str, Callable[[Any], Future[Any]]] = {
    "pending": lambda make: make(),
    "running": running,
    "returned": returned,
    "raised": raised,
    "cancelled": cancelled,
}
CONDITIONS = [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION]

states = st.lists(st.tuples(st.sampled_from(sorted(STATES)), st.sampled_from([Future, Task])), max_size=8)


def numbered(futures: list[Future[Any]], some: Iterable[Future[Any]]) -> list[int]:
    return sorted(futures.index(future) for future in some)


@given(states=states, return_when=st.sampled_from(CONDITIONS), repeat=st.booleans())
@settings(max_examples=300, deadline=None)
def test_our_wait_gives_the_standard_answer(states, return_when, repeat):
    answers = []
    for twin in (standard, millpond):
        futures = [STATES[state](make) for state, make in states]
        done, not_done = twin.wait(futures * (1 + repeat), 0, return_when)
        answers.append((numbered(futures, done), numbered(futures, not_done)))
    assert answers[0] == answers[1]


@given(states=states, repeat=st.booleans())
@settings(max_examples=300, deadline=None)
def test_our_as_completed_gives_the_standard_answer(states, repeat):
    answers = []
    for twin in (standard, millpond):
        futures = [STATES[state](make) for state, make in states]
        got: list[Future[Any]] = []
        message = ""
        try:
            for future in twin.as_completed(futures * (1 + repeat), timeout=0):
                got.append(future)  # noqa: PERF402
        except TimeoutError as error:
            message = str(error)
        answers.append((numbered(futures, got), message))
    assert answers[0] == answers[1]


@given(
    kinds=st.lists(st.sampled_from([Future, Task]), min_size=1, max_size=6),
    ends=st.data(),
    return_when=st.sampled_from(CONDITIONS),
)
@settings(max_examples=60, deadline=None)
def test_our_wait_gives_the_standard_answer_for_futures_that_end_meanwhile(kinds, ends, return_when):
    """They end one by one in another thread, up to the one that must end the wait and no further."""
    order = ends.draw(st.permutations(range(len(kinds))))
    outcomes = ends.draw(st.lists(st.sampled_from(["returned", "raised", "cancelled"]), min_size=6, max_size=6))
    if return_when == FIRST_COMPLETED:
        order = order[:1]
    elif return_when == FIRST_EXCEPTION:
        failing = [place for place, number in enumerate(order) if outcomes[number] == "raised"]
        order = order[: failing[0] + 1] if failing else order
    answers = []
    for twin in (standard, millpond):
        futures = [make() for make in kinds]

        def end(futures: list[Future[Any]] = futures) -> None:
            for number in order:
                STATES[outcomes[number]](lambda number=number: futures[number])

        thread = threading.Thread(target=end)
        thread.start()
        done, not_done = twin.wait(futures, HANG, return_when)
        thread.join(HANG)
        answers.append((numbered(futures, done), numbered(futures, not_done)))
    assert answers[0] == answers[1] == (sorted(order), sorted(set(range(len(kinds))) - set(order)))


@given(kinds=st.lists(st.sampled_from([Future, Task]), min_size=1, max_size=6), ends=st.data())
@settings(max_examples=100, deadline=None)
def test_our_as_completed_yields_in_the_standard_order_what_ends_meanwhile(kinds, ends):
    order = ends.draw(st.permutations(range(len(kinds))))
    outcomes = ends.draw(st.lists(st.sampled_from(["returned", "raised", "cancelled"]), min_size=6, max_size=6))
    answers = []
    for twin in (standard, millpond):
        futures = [make() for make in kinds]
        STATES[outcomes[order[0]]](lambda futures=futures: futures[order[0]])
        completed = twin.as_completed(futures, HANG)
        got = [futures.index(next(completed))]
        for number in order[1:]:
            STATES[outcomes[number]](lambda futures=futures, number=number: futures[number])
        got.extend(futures.index(future) for future in completed)
        answers.append(got)
    assert answers[0] == answers[1] == list(order)

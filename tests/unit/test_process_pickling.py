"""What cannot be pickled: an error that names it and says what to do, for that task only."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond import ProcessPool
from millpond.local.processes._pickling import Encoder
from waiting import HANG

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
def without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)


def test_a_lambda_is_sent_by_value_when_cloudpickle_is_there(pool):
    number = 5
    tasks = [pool.submit(lambda x: x + number, x) for x in range(100)]
    assert [task.result(HANG) for task in tasks] == [x + 5 for x in range(100)]
    assert list(pool.map(lambda x: x * number, range(100))) == [x * 5 for x in range(100)]


def test_a_function_sent_by_value_is_the_same_object_at_its_next_call(pool):
    seen: list[int] = []

    def note() -> int:
        seen.append(1)
        return len(seen)

    with ProcessPool(1) as single:
        assert [single.submit(note).result(HANG) for _ in range(5)] == [1, 2, 3, 4, 5]


def test_without_cloudpickle_the_error_names_the_function_and_says_what_to_do(pool, without_cloudpickle):
    def local() -> None: ...

    error = pool.submit(local).exception(HANG)
    assert isinstance(error, pickle.PicklingError)
    assert "<locals>.local (in " in str(error) and "define it at module level" in str(error)
    assert 'pip install "millpond[pickle]"' in str(error)
    assert error.__cause__ is not None
    assert pool.submit(calls.square, 2).result(HANG) == 4


def test_an_argument_that_cannot_be_pickled_is_named(pool):
    error = pool.submit(calls.add, 1, threading.Lock()).exception(HANG)
    assert isinstance(error, pickle.PicklingError)
    assert "argument 2 of add, a lock, cannot be sent" in str(error)


def test_only_the_culprit_of_a_batch_fails(pool, without_cloudpickle):
    for _ in range(3):
        pool.submit(calls.same, 1).result(HANG)
    arguments = [threading.Lock() if x == 77 else x for x in range(200)]
    tasks = [pool.submit(calls.same, argument) for argument in arguments]
    bad = [x for x, task in enumerate(tasks) if task.exception(HANG) is not None]
    assert bad == [77]
    assert [task.result(0) for x, task in enumerate(tasks) if x != 77] == [x for x in range(200) if x != 77]


def test_the_culprit_among_the_items_of_a_map_is_raised_in_its_place(pool):
    items: list[Any] = [*range(50), threading.Lock(), *range(50)]
    results = pool.map(calls.same, items, chunksize=10)
    assert [next(results) for _ in range(50)] == list(range(50))
    with pytest.raises(pickle.PicklingError, match="argument 1 of same"):
        next(results)


def test_an_argument_that_the_worker_cannot_load_fails_its_own_task_only(pool):
    for _ in range(3):
        pool.submit(calls.same, 1).result(HANG)
    tasks = [pool.submit(calls.same, calls.Grumpy() if x == 30 else x) for x in range(100)]
    error = tasks[30].exception(HANG)
    assert isinstance(error, pickle.UnpicklingError) and "same could not be loaded in the worker process" in str(error)
    assert [task.result(HANG) for x, task in enumerate(tasks) if x != 30] == [x for x in range(100) if x != 30]


def test_a_result_that_cannot_be_pickled_fails_its_own_task_only(pool):
    tasks = [pool.submit(threading.Lock), pool.submit(calls.square, 2)]
    error = tasks[0].exception(HANG)
    assert isinstance(error, pickle.PicklingError)
    assert "the result of" in str(error) and "a lock, cannot be pickled" in str(error)
    assert tasks[1].result(HANG) == 4


def test_a_lambda_can_be_returned_when_cloudpickle_is_there(pool):
    assert pool.submit(calls.make_function).result(HANG)() is None


def test_a_result_that_cannot_be_loaded_here_fails_its_own_task_only(pool):
    tasks = [pool.submit(calls.make_grumpy), pool.submit(calls.square, 2)]
    error = tasks[0].exception(HANG)
    assert isinstance(error, pickle.UnpicklingError)
    assert "what make_grumpy returned cannot be loaded here: not here" in str(error)
    assert tasks[1].result(HANG) == 4


def test_an_exception_that_cannot_be_loaded_is_told_in_words(pool):
    error = pool.submit(calls.raise_unloadable).exception(HANG)
    assert isinstance(error, RuntimeError)
    assert "the task raised Unloadable: 1 2" in str(error) and "__reduce__" in str(error)
    assert "in raise_unloadable" in str(error.__cause__)


def test_an_initializer_that_cannot_be_pickled_is_refused_at_once(without_cloudpickle):
    with pytest.raises(pickle.PicklingError, match="define it at module level"):
        ProcessPool(1, initializer=lambda: None)
    with pytest.raises(pickle.PicklingError, match="argument 1 of remember, a lock"):
        ProcessPool(1, initializer=calls.remember, initargs=(threading.Lock(),))


def test_an_initializer_may_be_a_lambda_when_cloudpickle_is_there():
    with ProcessPool(1, initializer=lambda value: calls.remember(value), initargs=(3,)) as pool:
        assert pool.submit(calls.recall).result(HANG) == 3


def test_a_picklable_function_in_the_batch_of_a_lambda_still_travels_by_name():
    encoder = Encoder()
    nameless = lambda: None  # noqa: E731
    body, errors = encoder.encode([calls.noop, nameless], [(), ()])
    functions, _, _ = pickle.loads(body)
    assert functions[0] is calls.noop and functions[1] is not nameless and not errors


@pytest.mark.parametrize("odd", [calls.raise_mute, calls.raise_exit])
def test_what_users_objects_raise_while_they_are_pickled_or_loaded_harms_no_other_task(odd):
    with ProcessPool(1) as pool:
        good = [pool.submit(calls.square, x) for x in range(20)]
        sent = pool.submit(calls.same, calls.RunsWhenPickled(odd))
        returned = pool.submit(calls.RunsWhenLoaded, odd)
        good += [pool.submit(calls.square, x) for x in range(20)]
        assert isinstance(sent.exception(HANG), pickle.PicklingError)
        assert isinstance(returned.exception(HANG), pickle.UnpicklingError)
        assert [task.result(HANG) for task in good] == [x * x for x in range(20)] * 2


def test_an_error_without_words_costs_no_worker():
    with ProcessPool(1) as pool:
        before = pool.submit(calls.pid).result(HANG)
        error = pool.submit(calls.raise_mute).exception(HANG)
        assert isinstance(error, RuntimeError) and "the task raised Mute" in str(error)
        assert isinstance(pool.submit(calls.Nameless()).exception(HANG), ValueError)
        assert pool.submit(calls.pid).result(HANG) == before


def test_a_pool_whose_initializer_raises_an_error_without_words_says_so():
    with ProcessPool(1, initializer=calls.raise_mute) as pool:
        error = pool.submit(calls.noop).exception(HANG)
        assert "the initializer of pool" in str(error)

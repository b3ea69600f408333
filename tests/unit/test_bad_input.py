"""Wrong types and values: one clear error each, at the door."""

from __future__ import annotations

from typing import Any

import pytest

from millpond import CancelToken, ThreadPool

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"max_workers": 0}, ValueError, "max_workers must be at least 1, not 0"),
    ({"max_workers": -1}, ValueError, "max_workers must be at least 1, not -1"),
    ({"max_workers": 2.5}, TypeError, "max_workers must be a whole number, not 2.5"),
    ({"max_workers": "4"}, TypeError, "max_workers must be a whole number, not '4'"),
    ({"max_workers": True}, TypeError, "max_workers must be a whole number, not True"),
    ({"max_workers": 2, "min_workers": 3}, ValueError, "min_workers (3) must not be above max_workers (2)"),
    ({"min_workers": -1}, ValueError, "min_workers must be at least 0"),
    ({"max_queued": -1}, ValueError, "max_queued must be at least 0"),
    ({"max_queued": 1.5}, TypeError, "max_queued must be a whole number"),
    ({"order": "random"}, ValueError, "order must be 'fifo', 'lifo', 'priority'"),
    ({"queues": "many"}, ValueError, "queues must be 'shared' or 'dedicated', not 'many'"),
    ({"context": "none"}, ValueError, "context must be 'copy' or None, not 'none'"),
    ({"idle_timeout": -1}, ValueError, "idle_timeout must be 0 or more seconds"),
    ({"idle_timeout": "soon"}, TypeError, "idle_timeout must be a number of seconds"),
    ({"initializer": 3}, TypeError, "initializer must be callable, not 3"),
    ({"finalizer": "x"}, TypeError, "finalizer must be callable, not 'x'"),
    ({"on_event": []}, TypeError, "on_event must be callable, not []"),
    ({"max_tasks_per_worker": 0}, ValueError, "max_tasks_per_worker must be at least 1"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), WRONG)
def test_a_wrong_argument_of_the_pool_is_named(arguments, kind, message):
    with pytest.raises(kind) as caught:
        ThreadPool(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("verb", ["submit", "try_submit", "go", "map"])
def test_what_is_not_callable_is_refused_by_name(verb):
    with ThreadPool(1) as pool, pytest.raises(TypeError, match="fn must be callable, not 42; pass the function itself"):
        getattr(pool, verb)(42, [])


def test_submit_needs_a_function():
    with ThreadPool(1) as pool, pytest.raises(TypeError):
        pool.submit()  # type: ignore[call-arg]


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timeout": 0}, ValueError, "timeout must be above 0 seconds, not 0"),
    ({"timeout": -1}, ValueError, "timeout must be above 0"),
    ({"timeout": "1"}, TypeError, "timeout must be a number of seconds, not '1'"),
    ({"cancel": object}, TypeError, "cancel must be a CancelToken"),
    ({"key": []}, TypeError, "key must be hashable, not []"),
    ({"priority": 1}, ValueError, "make the pool with order='priority'"),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), OPTIONS)
def test_a_wrong_option_is_named(arguments, kind, message):
    with ThreadPool(1) as pool, pytest.raises(kind) as caught:
        pool.options(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"buffersize": 0}, ValueError, "buffersize must be at least 1"),
        ({"chunksize": 0}, ValueError, "chunksize must be at least 1"),
        ({"timeout": "1"}, TypeError, "timeout must be a number of seconds"),
    ],
)
def test_a_wrong_argument_of_map_is_named(arguments, kind, message):
    with ThreadPool(1) as pool, pytest.raises(kind, match=message):
        pool.map(abs, [1], **arguments)


def test_resize_and_subpool_check_their_number():
    with ThreadPool(1) as pool:
        with pytest.raises(ValueError, match="max_workers must be at least 1"):
            pool.resize(0)
        with pytest.raises(TypeError, match="whole number"):
            pool.subpool("2")  # type: ignore[arg-type]


def test_a_token_checks_its_timeout():
    with pytest.raises(ValueError, match="timeout must be 0 or more"):
        CancelToken(timeout=-1)


def test_wait_names_the_words_it_knows():
    import millpond

    with pytest.raises(ValueError, match="FIRST_COMPLETED"):
        millpond.wait([], return_when="SOME")

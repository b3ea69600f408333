"""Whatever is given to what a pool does by itself and to its operators: a clear error, and nothing is stored."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from millpond.errors import PoolError
from millpond.keyed import KeyedPool, Retry


class Text(str):
    __slots__ = ()


class Number(int):
    pass


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**64, 10**400, 1.5, math.nan, math.inf, -math.inf, "", "a", Text("a"), Number(3), "\ud800",
    "x" * 5000, b"a", [], ["a"], [None], {}, {"a": 1}, object(), len, lambda: None,
]  # fmt: skip
_names = (f"j{number}" for number in itertools.count())
Call = Callable[[KeyedPool, Any], Any]


def _configure(name: str) -> Call:
    return lambda pool, value: pool.admin.configure(**{name: value})


def _watch(pool: KeyedPool) -> Any:
    return pool.resident(name=next(_names))(lambda me: None)


def _result(pool: KeyedPool, timeout: Any) -> Any:
    receipt = pool.declare_job("x").dispatch("k")
    assert receipt.cancel()
    with contextlib.suppress(TimeoutError):  # it has ended, and 0 seconds are not enough to hear of it
        return receipt.result(timeout)


def _made(name: str) -> Call:
    return lambda pool, value: KeyedPool(**{"name": "p", "url": pool.url, name: value}).close()


SETTINGS = ("lease", "drain", "payload_limit", "max_jobs", "max_per_key", "max_dead", "max_losses")
CALLS: dict[str, Call] = {
    "cron": lambda pool, value: pool.cron(value, name=next(_names))(lambda job: None),
    "cron(tz=)": lambda pool, value: pool.cron("* * * * *", tz=value, name=next(_names))(lambda job: None),
    "every": lambda pool, value: pool.every(value, name=next(_names))(lambda job: None),
    "every(keys=)": lambda pool, value: pool.every(60, keys=value, name=next(_names))(lambda job: None),
    "every(missed=)": lambda pool, value: pool.every(60, missed=value, name=next(_names))(lambda job: None),
    "every(name=)": lambda pool, value: pool.every(60, name=value)(lambda job: None),
    "every()(handler)": lambda pool, value: pool.every(60, name=next(_names))(value),
    "controller": lambda pool, value: pool.controller(value, name=next(_names))(lambda me: {}),
    "controller(every=)": lambda pool, value: pool.controller(_watch(pool), every=value, name=next(_names))(
        lambda me: {}
    ),
    "controller()(function)": lambda pool, value: pool.controller(_watch(pool), name=next(_names))(value),
    "controller(name=)": lambda pool, value: pool.controller(_watch(pool), name=value)(lambda me: {}),
    "worker(stall=)": lambda pool, value: pool.worker(stall=value, grace=0).__enter__().close(),
    "worker(grace=)": lambda pool, value: pool.worker(grace=value).__enter__().close(),
    "dispatch_many(ids=)": lambda pool, value: pool.declare_job("x").dispatch_many([("k", 1)], ids=value),
    "dispatch_many(ids=[])": lambda pool, value: pool.declare_job("x").dispatch_many([("k", 1)], ids=[value]),
    "replay": lambda pool, value: pool.admin.replay([value]),
    "result(timeout=)": lambda pool, value: _result(pool, value),
    "stop(timeout=)": lambda pool, value: _watch(pool).stop("k", timeout=value),
    "reconcile": lambda pool, value: pool.reconcile(_watch(pool), value),
    "reconcile({})": lambda pool, value: pool.reconcile(_watch(pool), {"k": value}),
    "key": lambda pool, value: pool.declare_job("x").dispatch(value),
    "key of a resident": lambda pool, value: _watch(pool).start(value),
    "pause": lambda pool, value: pool.admin.pause(value),
    "options(delay=)": lambda pool, value: pool.declare_job("x").options(delay=value),
    "options(at=)": lambda pool, value: pool.declare_job("x").options(at=value),
    "options(id=)": lambda pool, value: pool.declare_job("x").options(id=value),
    "job(backoff=)": lambda pool, value: pool.job(name=next(_names), backoff=value)(lambda job: None),
    "job(timeout=)": lambda pool, value: pool.job(name=next(_names), timeout=value)(lambda job: None),
    "job(keep_result=)": lambda pool, value: pool.job(name=next(_names), keep_result=value)(lambda job: None),
    "job(max_attempts=)": lambda pool, value: pool.job(name=next(_names), max_attempts=value)(lambda job: None),
    "Retry": lambda pool, value: Retry(value),
    **{
        f"KeyedPool({name}=)": _made(name)
        for name in ("lease", "drain", "slots", "placement", "max_jobs", "name", "url")
    },
    "discard": lambda pool, value: pool.admin.discard([value]),
    **{f"configure({name}=)": _configure(name) for name in SETTINGS},
}
PYTHONS_OWN = ("not supported between", "object has no attribute")


@pytest.mark.parametrize("name", CALLS)
def test_odd_values_are_refused_in_words_and_harm_nothing(pool: KeyedPool, name: str):
    for value in ODD:
        try:
            CALLS[name](pool, value)
        except (PoolError, TypeError, ValueError) as refusal:
            words = str(refusal)
            unclear = not words or (any(each in words for each in PYTHONS_OWN) and name != "cron")
            if unclear:
                raise AssertionError(f"{name} with {value!r} says only {words!r}") from refusal
    pool.admin.configure(payload_limit=1 << 20, max_jobs=0, max_per_key=0, max_losses=3)
    echo = pool.job(name="echo")(lambda job, value: value)
    echo.dispatch("k", 1)
    assert pool.statistics().jobs >= 1 and pool.keys()

"""Whatever is given to a resource pool: it is refused with an error that guides, or what is written can be read.

One wrong type in a row made a SQLite file, and every pool in it, unreadable for ever.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import math
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from millpond import ResourcePool
from millpond.errors import PoolError


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Word(enum.StrEnum):
    GPU = "gpu"


class Size(enum.IntEnum):
    ONE = 1


class Odd:
    def __str__(self) -> str:
        return "odd"


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 42, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**40, -(2**63),
    0.0, 1.0, 0.5, -1.5, 1e308, math.inf, -math.inf, math.nan,
    "", " ", "a", "gpu-0", "tenant", "#1", "*", "@gpu-0", "a=b", "a in (b c)", '"', "\x00", "a\nb", "\ud800", "é" * 2000, "x" * 5000,
    b"", b"gpu-0", bytearray(b"x"), memoryview(b"x"),
    Text("gpu-0"), Text("tenant"), Text(""), Number(1), Number(-3), Word.GPU, Size.ONE,
    (), ("a",), ("gpu-0", "b"), [], ["a"], [["a"]], [None], {}, {"a": "b"}, {"a": True}, {"a": False}, {"a": None}, {"a": 1.5},
    {1: 2}, {"": ""}, {"a": ["b", 1]}, {Text("k"): Text("v")}, {"k": Number(7)}, {"\ud800": "x"}, {"x": "\ud800"},
    set(), {"a"}, frozenset({"a"}), range(3), iter(["a"]), object(), Odd(), Odd, len, lambda: None,
    decimal.Decimal("1.5"), fractions.Fraction(1, 3), 1j, datetime.datetime.now(datetime.UTC), datetime.timedelta(seconds=1),
    pathlib.Path("gpu-0"), NotImplemented, ...,
]  # fmt: skip

Call = Callable[[ResourcePool, Any], Any]


def _acquire(**fixed: Any) -> Callable[[str], Call]:
    def with_argument(name: str) -> Call:
        def call(pool: ResourcePool, value: Any) -> Any:
            with pool.acquire(**{"timeout": 0, **fixed, name: value}):
                pass

        return call

    return with_argument


def _token(pool: ResourcePool) -> int:
    return pool.holders()[0].token


CALLS: dict[str, Call] = {
    **{f"acquire({name}=)": _acquire()(name) for name in ("name", "count", "units", "timeout", "lease", "priority")},
    **{f"acquire({name}=)": _acquire()(name) for name in ("group", "request_id", "reason", "wait_for_capacity")},
    "acquire(selector)": lambda pool, value: pool.acquire(value, timeout=0).release(),
    "acquire_all": lambda pool, value: pool.acquire_all(value, timeout=0).release(),
    "acquire_all([])": lambda pool, value: pool.acquire_all([value], timeout=0).release(),
    "try_acquire": lambda pool, value: pool.try_acquire(value, group=value, reason=value),
    "adopt": lambda pool, value: pool.adopt(value),
    "adopt(reason=)": lambda pool, value: pool.adopt(1, reason=value, lease=value),
    "add": lambda pool, value: pool.add(value),
    "add(labels=)": lambda pool, value: pool.add("more", labels=value, exist_ok=True),
    "add(capacity=)": lambda pool, value: pool.add("more", capacity=value, exist_ok=True),
    "add(exist_ok=)": lambda pool, value: pool.add("gpu-0", exist_ok=value),
    "remove": lambda pool, value: pool.admin.remove(value, reason=value),
    "relabel": lambda pool, value: pool.admin.relabel(value, {"a": "b"}),
    "relabel(labels)": lambda pool, value: pool.admin.relabel("gpu-0", value),
    "resize": lambda pool, value: pool.admin.resize(value, 1),
    "resize(capacity)": lambda pool, value: pool.admin.resize("gpu-1", value),
    "cordon": lambda pool, value: pool.admin.cordon(value),
    "cordon(reason=)": lambda pool, value: pool.admin.cordon("gpu-1", reason=value),
    "uncordon": lambda pool, value: pool.admin.uncordon(value),
    "uncordon(reason=)": lambda pool, value: pool.admin.uncordon("gpu-1", reason=value),
    "quarantine": lambda pool, value: pool.admin.quarantine("gpu-2", reason=value),
    "drain": lambda pool, value: pool.admin.drain(value, timeout=0),
    "release": lambda pool, value: pool.admin.release(value, token=1, reason="x"),
    "release(token=)": lambda pool, value: pool.admin.release("gpu-0", token=value, reason=value),
    "withdraw": lambda pool, value: pool.admin.withdraw(value, reason="x"),
    "steal": lambda pool, value: pool.admin.steal(value, token=value, reason=value),
    "keep": lambda pool, value: pool.admin.keep("held", token=_token(pool), holder=value, reason="x"),
    "keep(reason=)": lambda pool, value: pool.admin.keep("held", token=_token(pool), holder="ann", reason=value),
    "reserve": lambda pool, value: pool.admin.reserve(value, holder="ann", reason="x"),
    "reserve(holder=)": lambda pool, value: pool.admin.reserve("gpu-2", holder=value, reason="x"),
    "pause": lambda pool, value: (pool.admin.pause(reason=value), pool.admin.resume(reason="x")),
    "resume": lambda pool, value: pool.admin.resume(reason=value),
    "configure(patience=)": lambda pool, value: pool.admin.configure(patience=value),
    "configure(ageing=)": lambda pool, value: pool.admin.configure(ageing=value),
    "configure(claim_within=)": lambda pool, value: pool.admin.configure(claim_within=value),
    "configure(lock_delay=)": lambda pool, value: pool.admin.configure(lock_delay=0 if value == 1e308 else value),
    "configure(retention=)": lambda pool, value: pool.admin.configure(retention=value, reason=value),
    "group": lambda pool, value: pool.admin.group(value),
    "group(weight=)": lambda pool, value: pool.admin.group("tenant", weight=value),
    "group(quota=)": lambda pool, value: pool.admin.group("tenant", quota=value),
    "group(reason=)": lambda pool, value: pool.admin.group("tenant", reason=value),
    "history": lambda pool, value: pool.admin.history(value),
    "history(limit=)": lambda pool, value: pool.admin.history(limit=value),
    "explain": lambda pool, value: pool.admin.explain(value),
    "delete_pool": lambda pool, value: pool.admin.delete_pool(force=value),
}


def odd(pool: ResourcePool, call: Call, value: Any) -> None:
    """Call with an odd value: what it raises is an error of ours, or says in Python's own words what is wrong."""
    try:
        call(pool, value)
    except (PoolError, TypeError, ValueError) as refusal:
        words = str(refusal)
        if not words:
            raise AssertionError(f"an error that says nothing for {value!r}") from refusal


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_nothing_that_is_given_makes_a_pool_unreadable(store: str, name: str, tmp_path: pathlib.Path):
    url = "memory:" if store == "memory" else f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool("neighbour", url) as neighbour, ResourcePool("odd", url) as pool:
        neighbour.add("n-0")
        for number in range(3):
            pool.add(f"gpu-{number}", exist_ok=True)
        pool.add("held", capacity=1)
        held = pool.acquire(name="held")
        for value in ODD:
            odd(pool, CALLS[name], value)
        with neighbour.acquire(timeout=5):
            pass
        reading(pool)
        if store == "sqlite":
            with ResourcePool("odd", url, holder="another") as again, ResourcePool("neighbour", url) as beside:
                reading(again)
                reading(beside)
        with contextlib.suppress(PoolError):
            held.release()


def reading(pool: ResourcePool) -> None:
    """Read everything that the pool has written, and use it."""
    for question in (pool.resources, pool.holders, pool.waiters, pool.statistics, pool.admin.history):
        question()
    pool.add("last", exist_ok=True)
    pool.admin.resume(reason="test")
    pool.admin.uncordon("last")
    pool.admin.resize("last", 1)
    pool.acquire(name="last", timeout=5).release()


def test_what_was_written_is_of_plain_types(tmp_path: pathlib.Path):
    url = f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool(Text("odd"), url, holder=Text("ann")) as pool:
        pool.add(Text("gpu"), labels={Text("k"): Text("v"), "n": Number(7)}, capacity=Number(2))
        pool.admin.group(Text("tenant"), weight=Number(2), quota=Size.ONE, reason=Text("why"))
        grant = pool.acquire(
            {"k": Text("v")}, units=Number(1), priority=Size.ONE, group=Text("tenant"), reason=Text("r")
        )
        (holder,) = pool.holders()
        assert type(pool.name) is str and type(holder.reason) is str
        (resource,) = pool.resources()
        assert type(resource.name) is str and {type(one) for one in resource.labels.values()} == {str}
        grant.release()


@pytest.mark.parametrize("value", [1, 0, "", "yes", None, [], 1.0])
def test_a_flag_is_true_or_false(value: Any):
    with ResourcePool("odd") as pool:
        pool.add("gpu")
        with pytest.raises(TypeError, match="wait_for_capacity must be True or False"):
            pool.acquire(wait_for_capacity=value)
        with pytest.raises(TypeError, match="exist_ok must be True or False"):
            pool.add("gpu", exist_ok=value)
        with pytest.raises(TypeError, match="force must be True or False"):
            pool.admin.delete_pool(force=value)

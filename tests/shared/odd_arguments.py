"""Odd values for every argument of a resource pool, and what calls with them must leave behind.

`PLAIN` has every public method with every argument and a plain value for it. A test compares it with the signatures, so
a new argument cannot be forgotten. `check` gives each value in the place of one argument, and looks after each that all
that was written can be read.
"""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import fractions
import inspect
import math
import pathlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from millpond.errors import PoolError
from millpond.resources import Grant, ResourcePool
from millpond.resources._engine import Question
from millpond.resources._rules.records import Settings
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.wire import freeze, pack, thaw, unpack


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
FEW: list[Any] = [
    None, True, 1, -1, 2**53 + 1, 0.5, math.inf, "", "a", "\ud800", b"x", Text("gpu-0"), Size.ONE, ["a"], {"a": True}, {"k": Number(7)},
    object(),
]  # fmt: skip
"""For stores to which a call is dear: one value of each kind."""


@dataclass(frozen=True)
class Fresh:
    """A plain value that must be made anew for each call."""

    make: Callable[[Any], Any]


def _lent(pool: Any) -> Any:
    return pool.acquire(name="spare", timeout=0)


TOKEN = Fresh(lambda pool: keep(_lent(pool)).token)
PASSED_ON = Fresh(lambda pool: _lent(pool).transfer())
WAITER = Fresh(lambda pool: pool.admin.reserve("held", holder="ann", reason="x"))
ASKING: dict[str, Any] = {"timeout": 0, "lease": 60, "priority": 1, "group": "g", "request_id": None, "reason": "x", "wait_for_capacity": False}  # fmt: skip
CHOICE: dict[str, Any] = {"selector": None, "name": None, "count": 1, "units": 1}

PLAIN: dict[str, dict[str, Any]] = {
    "__init__": {"name": "more", "url": Fresh(lambda pool: pool.url), "holder": "ann", "placement": "first", "on_lost": "ignore", "suspect_after": 9.0, "on_event": None},
    "acquire": {**CHOICE, **ASKING},
    "acquire_all": {"selectors": ["*", "*"], **ASKING},
    "try_acquire": {**CHOICE, **{key: ASKING[key] for key in ("lease", "priority", "group", "request_id", "reason")}},
    "adopt": {"token": PASSED_ON, "lease": 60, "reason": "x"},
    "add": {"name": "more", "labels": {"a": "b"}, "capacity": 1, "exist_ok": True},
    "admin.on_behalf_of": {"who": "ann"},
    "admin.remove": {"resource": "gpu-1", "reason": "x"},
    "admin.relabel": {"resource": "gpu-1", "labels": {"a": "c"}, "reason": "x"},
    "admin.resize": {"resource": "gpu-1", "capacity": 2, "reason": "x"},
    "admin.cordon": {"resource": "gpu-1", "reason": "x"},
    "admin.uncordon": {"resource": "gpu-1", "reason": "x"},
    "admin.quarantine": {"resource": "gpu-1", "reason": "x"},
    "admin.drain": {"resource": "gpu-1", "reason": "x", "timeout": 0},
    "admin.release": {"resource": "spare", "token": TOKEN, "reason": "x"},
    "admin.withdraw": {"request_id": WAITER, "reason": "x"},
    "admin.steal": {"resource": "spare", "token": TOKEN, "reason": "x", "lease": 60},
    "admin.keep": {"resource": "spare", "token": TOKEN, "holder": "ann", "reason": "x", "lease": 60},
    "admin.reserve": {"resource": "gpu-1", "holder": "ann", "reason": "x", "lease": 60},
    "admin.pause": {"reason": "x"},
    "admin.resume": {"reason": "x"},
    "admin.configure": {"patience": 1, "ageing": 1, "claim_within": 1, "lock_delay": 0, "retention": 1, "free_after": 1, "reason": "x"},
    "admin.group": {"name": "tenant", "weight": 1, "quota": 9, "reason": "x"},
    "admin.history": {"resource": "gpu-0", "limit": 9, "acts": False},
    "admin.explain": {"name": "gpu-0"},
    "admin.delete_pool": {"force": True},
}  # fmt: skip
ARGUMENTS = [(method, argument) for method, plain in PLAIN.items() for argument in plain]
CAPACITIES = {"gpu-0": 1, "gpu-1": 1, "gpu-2": 1, "held": 1, "spare": 1000}
_kept: list[Any] = []  # grants that a call is about, so that nobody takes them for dropped


def keep(grant: Any) -> Any:
    _kept.append(grant)
    return grant


def methods(pool: type, admin: type) -> dict[str, list[str]]:
    """Return the public methods that take arguments, with the names of those."""
    found = {"__init__": _names(pool.__init__)}  # type: ignore[misc]
    for prefix, kind in (("", pool), ("admin.", admin)):
        public = {name: one for name, one in vars(kind).items() if not name.startswith("_") and inspect.isfunction(one)}
        found |= {prefix + name: names for name, one in public.items() if (names := _names(one))}
    return found


def _names(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def prepare(pool: Any) -> None:
    """Bring a pool to how each call finds it."""
    paused, settings, found = pool._bridge.ask(Look())
    if paused:
        pool.admin.resume()
    if settings != Settings():
        plain = {name: getattr(Settings(), name) / 1e6 for name in ("patience", "ageing", "retention", "free_after")}
        pool.admin.configure(**plain, claim_within=Settings().claim / 1e6, lock_delay=0)
    for name, capacity in CAPACITIES.items():
        state, size = found.get(name, ("", 0))
        if state != "active":
            pool.add(name, capacity=capacity, exist_ok=True)
            pool.admin.uncordon(name)
        if size != capacity:
            pool.admin.resize(name, capacity)
    if not found.get("held", ("", 0))[1]:
        keep(pool.acquire(name="held", timeout=0))


class Look(Question[tuple[bool, Settings, dict[str, tuple[str, int]]]], frozen=True):
    """What calls may have changed: whether the pool is paused, its settings, state and capacity of each resource."""

    def answer(self, replica: Replica, now: int) -> tuple[bool, Settings, dict[str, tuple[str, int]]]:
        state = replica.state
        found = {one.name: (one.state, one.capacity) for one in state.resources.values()}
        return state.settings.paused, state.settings, found


class Readable(Question[None], frozen=True):
    """Whether what the engine has in hand can be written, and read again by everybody: else it raises an error."""

    def answer(self, replica: Replica, now: int) -> None:
        thaw(freeze(replica.state))
        unpack(pack(list(replica.history)))


def call(pool: Any, method: str, argument: str, value: Any) -> None:
    """Call with an odd value for one argument, and give back what came of it."""
    chosen = {name: value if name == argument else plain for name, plain in PLAIN[method].items()}
    arguments = {name: one.make(pool) if isinstance(one, Fresh) else one for name, one in chosen.items()}
    if method == "__init__":
        with type(pool)(**arguments) as more:
            more.add("gpu", exist_ok=True)
            more.acquire(timeout=0).release()
        return
    target = pool
    for name in method.split("."):
        target = getattr(target, name)
    first = next(iter(inspect.signature(target).parameters.values()))
    positional = [arguments.pop(first.name)] if first.kind is first.POSITIONAL_ONLY else []
    result = target(*positional, **arguments)
    if hasattr(result, "on_behalf_of"):
        result.pause(reason="x")
    elif hasattr(result, "release"):
        result.release()


def says_something(refusal: Exception, value: Any) -> None:
    if not str(refusal):
        raise AssertionError(f"an error that says nothing for {value!r}") from refusal


def check(pool: Any, method: str, argument: str, values: Iterable[Any], readable: Callable[[], object]) -> None:
    """Give each value: it is refused with words, or all that was written can be read."""
    for value in values:
        prepare(pool)
        try:
            call(pool, method, argument, value)
        except (PoolError, TypeError, ValueError) as refusal:
            says_something(refusal, value)
        try:
            pool._bridge.ask(Readable())
            readable()
        except Exception as error:
            raise AssertionError(f"{method}({argument}={value!r}) made the pool unreadable: {error!r}") from error
    _kept.clear()


class Awaited:
    """An asynchronous pool (or its admin, or a grant) whose calls are awaited for one who cannot."""

    def __init__(self, inner: Any, runner: asyncio.Runner) -> None:
        self._inner, self._runner = inner, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("admin", "_bridge"):
            return Awaited(found, self._runner)
        if not inspect.isroutine(found):
            return found

        async def done(*args: Any, **options: Any) -> Any:
            result = found(*args, **options)
            return await result if inspect.isawaitable(result) else result

        def called(*args: Any, **options: Any) -> Any:
            result = self._runner.run(done(*args, **options))
            return Awaited(result, self._runner) if hasattr(result, "release") else result

        called.__signature__ = inspect.signature(found)  # type: ignore[attr-defined]
        return called


def use(pool: ResourcePool) -> None:
    """Read everything that a pool has written, and use it."""
    for question in (pool.resources, pool.holders, pool.waiters, pool.statistics, pool.admin.history):
        question()
    pool.admin.resume(reason="test")
    pool.add("last", exist_ok=True)
    pool.admin.uncordon("last")
    pool.admin.resize("last", 1)
    grant: Grant = pool.acquire(name="last", timeout=60)
    grant.release()

"""What a user's code may raise at worst: exceptions that cannot be printed, named or traced, and cancellations of oneself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from waiting import HANG


class Weird(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Mute(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]

    __repr__ = __str__


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


class RaisesItself(Exception):
    def __str__(self) -> str:
        raise self

    __repr__ = __str__


class Text(str):
    def __format__(self, how: str) -> str:
        raise SystemExit(1)


class Dressed(Exception):
    def __str__(self) -> str:
        return Text("dressed")

    __repr__ = __str__


class Secretive(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Secretive):
    pass


class NoTrace(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise ValueError("no trace")

    __cause__ = __context__ = __notes__ = __traceback__  # type: ignore[assignment]

    def with_traceback(self, trace: Any) -> Any:
        raise ValueError("nor another")


class Base(BaseException):
    pass


HOSTILE: list[Callable[[], BaseException]] = [
    Weird,
    Mute,
    Exits,
    RaisesItself,
    Dressed,
    Nameless,
    NoTrace,
    lambda: ValueError(RaisesItself()),
    lambda: KeyError(Mute()),
    Base,
    KeyboardInterrupt,
    lambda: type("LastBase", (Base,), {"__str__": RaisesItself.__str__, "__repr__": RaisesItself.__repr__})(),
    lambda: type("LastStop", (StopIteration,), {"__str__": Exits.__str__, "__repr__": Exits.__repr__})(),
]


async def cancel_at_once(_: object = None) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(HANG)


async def cancel_twice(_: object = None) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    task.cancel()
    await asyncio.sleep(HANG)


async def cancel_by_a_child(_: object = None) -> None:
    parent = asyncio.current_task()
    assert parent is not None

    async def child() -> None:
        parent.cancel()

    await asyncio.gather(child(), asyncio.sleep(HANG))


async def cancel_by_a_timer(_: object = None) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(0.01, task.cancel)
    await asyncio.sleep(HANG)


SUICIDES: list[Callable[[object], Awaitable[None]]] = [
    cancel_at_once,
    cancel_twice,
    cancel_by_a_child,
    cancel_by_a_timer,
]
"""How a coroutine may cancel the task in which it runs."""

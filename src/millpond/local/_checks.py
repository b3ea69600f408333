"""Bad input gets one clear error, at the door."""

from __future__ import annotations

import inspect
import math
import os
import threading
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any


def check_callable(value: Any, name: str = "fn") -> None:
    if not callable(value):
        hint = "; pass the function itself and its arguments after it: submit(f, x)" if name == "fn" else ""
        raise TypeError(f"{name} must be callable, not {value!r}{hint}")


def check_function(fn: Any) -> None:
    """Refuse what cannot be called, and a coroutine function, whose call would only make a coroutine."""
    kind = type(fn)  # most are of a kind that can be told at once
    if kind is BuiltinFunctionType or kind is type:
        return
    plain = fn.__func__ if kind is MethodType else fn
    if type(plain) is FunctionType and not plain.__code__.co_flags & inspect.CO_COROUTINE:
        return
    check_callable(fn)
    if not inspect.iscoroutinefunction(fn):
        return
    name = getattr(fn, "__qualname__", repr(fn))
    raise TypeError(
        f"{name} is a coroutine function, which a worker would call and never await; run it in an AsyncPool, or submit "
        "a plain function that calls asyncio.run"
    )


def check_word(name: str, value: Any, words: tuple[Any, ...]) -> None:
    if value not in words:
        raise ValueError(f"{name} must be {' or '.join(map(repr, words))}, not {value!r}")


def check_optional_count(name: str, value: Any, least: int) -> None:
    if value is not None:
        check_count(name, value, least)


def default_size() -> int:
    """Return how many workers the standard library would take."""
    count = getattr(os, "process_cpu_count", os.cpu_count)  # from 3.13 on, as many as this process may use
    return min(32, (count() or 1) + 4)


def check_count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def check_seconds(name: str, value: Any) -> float | None:
    """Refuse what is not a number of seconds, or None; shorten what no lock can wait for (300 years) to what it can."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds or None, not {value!r}")
    if not value >= 0 or value == math.inf:
        raise ValueError(f"{name} must be 0 or more seconds (None for no limit), not {value!r}")
    return float(min(value, threading.TIMEOUT_MAX))

"""What a pool knows of a job or resident by name: its handler, how its arguments travel, what happens when it fails."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millpond.keyed.rules.checks import check_seconds
from millpond.keyed.rules.records import SECOND
from millpond.keyed.shared.arguments import AnyShape, Shape, decoder, result_type, shape_of


@dataclass(frozen=True, slots=True)
class Policy:
    """What happens when a job fails."""

    max_attempts: int = 1
    backoff: float = 1.0
    """Seconds before the second attempt; twice as long before each further one, with some jitter."""
    backoff_limit: float = 300.0
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    timeout: float | None = None
    keep_result: float = 60.0
    """Seconds for which the outcome is kept for whoever holds the receipt; 0: it is not kept at all."""

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            raise ValueError(f"max_attempts must be a whole number from 1, not {self.max_attempts!r}")
        for name in ("backoff", "backoff_limit", "keep_result"):
            object.__setattr__(self, name, check_seconds(getattr(self, name), name))
        wanted: Any = self.retry_on  # whatever the caller gave
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise TypeError(f"retry_on is an exception type, or a tuple of them, not {self.retry_on!r}")
        object.__setattr__(self, "retry_on", kinds)
        if self.timeout is not None:
            object.__setattr__(self, "timeout", check_seconds(self.timeout, "timeout", most=math.inf))
            if not self.timeout:
                raise ValueError("timeout must be more than 0 seconds, not 0")

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after so many failures."""
        longest = min(self.backoff_limit, self.backoff * 2.0 ** min(failures - 1, 60))
        return longest * random.uniform(0.75, 1.0)


@dataclass(slots=True)
class Definition:
    """A job or a resident by name. `function` is missing where only its name is known."""

    name: str
    function: Callable[..., Any] | None
    shape: Shape | AnyShape
    policy: Policy
    is_resident: bool = False
    is_async: bool = False
    keep: int = 0
    decode_result: Callable[[bytes], Any] = field(default=lambda data: data)


def define(
    function: Callable[..., Any] | None, name: str | None, policy: Policy, *, resident: bool = False
) -> Definition:
    """Make the definition of a handler, or of a job that is only known by name."""
    if name is None:
        name = getattr(function, "__qualname__", "").rpartition(".")[2]
    if not name or not isinstance(name, str) or ":" in name or "<" in name or not name.isprintable():
        raise ValueError(f"a job needs a name without ':' that others can call it by, not {name!r}; give name=")
    if function is None:
        return Definition(name, None, AnyShape(), policy, resident, keep=_keep(policy), decode_result=_decoder(Any))
    if not callable(function):
        raise TypeError(f"a handler is a function or a coroutine function, not {function!r}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"job {name!r}: a handler returns its result, it does not yield")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    if policy.timeout is not None and not is_async:
        raise ValueError(f"job {name!r}: timeout= needs a coroutine, since a plain function cannot be stopped")
    return Definition(
        name,
        function,
        shape_of(name, function),
        policy,
        resident,
        is_async,
        0 if resident else _keep(policy),
        _decoder(result_type(function)),
    )


def _keep(policy: Policy) -> int:
    return round(policy.keep_result * SECOND)


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return decoder(kind)

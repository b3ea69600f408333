"""What happens in a pool, as records: one seam for logs, metrics, tests and pictures.

A pool that was given `on_event=` calls it with one `Event` for each thing that happens, in the thread where it
happens. Without `on_event` no record is made. An observer that raises is logged and otherwise ignored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

logger = logging.getLogger("millpond")
# No NullHandler: in a program that has not configured logging, warnings and errors reach stderr by Python's handler of
# last resort. What `go()` raised must not vanish.


@dataclass(slots=True)  # not frozen: that would cost half a microsecond for each
class Event:
    """Something that happened: its `name`, in which `pool`, when (wall clock), and what belongs to it."""

    name: str
    """What happened."""
    pool: str
    """The name of the pool."""
    time: float = field(default_factory=time.time)
    """When, by the wall clock."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What belongs to it, by name."""


_now = time.time

Observer: TypeAlias = Callable[[Event], object]


def emit(on_event: Observer | None, name: str, pool: str, **data: Any) -> None:
    """Call `on_event` with a new event, if there is one to call; what it raises is logged."""
    if on_event is not None:
        report(on_event, name, pool, data)


def report(on_event: Observer, name: str, pool: str, data: Mapping[str, Any]) -> None:
    """Call `on_event` with a new event, as `emit` does, for the events of single tasks: quicker without keywords."""
    try:
        on_event(Event(name, pool, _now(), data))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is not an observer's to end a thread of the pool, or a task of it
        log(logging.ERROR, "on_event raised", error, event=name, pool=pool)


def log(level: int, text: str, error: BaseException | None, /, **about: Any) -> None:
    """Log something with the traceback of its cause; without, if that cannot be had."""
    if logger.isEnabledFor(level):
        try:
            logger.log(level, "%s", text, exc_info=error, extra={"millpond": about})
        except BaseException as trouble:  # the exceptions of users say what they like, or nothing
            if isinstance(trouble, KeyboardInterrupt):
                raise
            logger.log(level, "%s (its cause cannot be shown)", text, extra={"millpond": about})

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


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: its `name`, in which `pool`, when (wall clock), and what belongs to it."""

    name: str
    pool: str
    time: float = field(default_factory=time.time)
    data: Mapping[str, Any] = field(default_factory=dict)


Observer: TypeAlias = Callable[[Event], object]


def emit(on_event: Observer | None, name: str, pool: str, **data: Any) -> None:
    """Call `on_event` with a new event, if there is one to call; what it raises is logged."""
    if on_event is None:
        return
    try:
        on_event(Event(name, pool, data=data))
    except Exception:
        logger.exception("on_event raised", extra={"millpond": {"event": name, "pool": pool}})

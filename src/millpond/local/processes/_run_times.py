"""How long a call of each function takes, and how large it is on its way: learnt from the answers of workers.

Batches are formed by these estimates. They are kept by the name of a function, not by its identity, so that each new
`partial` or bound method of it is known already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_NAMES = 1024  # then all are forgotten: a program that makes functions for ever must not fill memory


@dataclass(slots=True)
class RunTime:
    """The run time of one function in seconds, and the size of one call in bytes."""

    seconds: float
    size: int = 0

    def limit(self, number: int, most: int) -> int:
        """Return how many calls of at most `number` make a batch of `most` bytes."""
        return min(number, max(1, most // self.size)) if self.size else number

    def learn(self, seconds: float) -> None:
        """Jump to a slower measurement, move half-way to a quicker one."""
        self.seconds = seconds if seconds > self.seconds else (self.seconds + seconds) / 2


class RunTimes:
    def __init__(self) -> None:
        self._known: dict[str, RunTime] = {}

    def of(self, fn: Any) -> RunTime | None:
        return self._known.get(_name(fn))

    def learn(self, fns: Sequence[Any], number: int, seconds: float) -> None:
        if not number:
            return
        each = seconds / number
        for fn in fns if len(fns) < 4 else {id(fn): fn for fn in fns}.values():
            name = _name(fn)
            known = self._known.get(name)
            if known is None:
                if len(self._known) >= MOST_NAMES:
                    self._known.clear()
                self._known[name] = known = RunTime(each)
            known.learn(each)

    def learn_size(self, fn: Any, size: int) -> None:
        known = self._known.get(_name(fn))
        if known is not None:
            known.size = size


def _name(fn: Any) -> str:
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__

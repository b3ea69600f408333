"""What begins anew in a forked child, which has neither the threads of its parent nor what they had locked."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewed(Protocol):
    """Something with a lock."""

    def begin_anew(self) -> None:
        """Begin in a forked child."""


_known: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_in_child(thing: Renewed) -> None:
    """Call `begin_anew` in every child that is forked from now on."""
    _known.add(thing)


def _renew() -> None:
    for thing in list(_known):
        thing.begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

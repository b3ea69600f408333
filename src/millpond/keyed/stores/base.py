"""The seam between a keyed pool and where it lives.

A store keeps one pool and carries out its verbs, each atomically and exactly as `rules.Rules` does: that is the
specification, and `millpond_conformance.check_store` compares. It adds a clock that all its users share, durability,
and hints. Its methods block, may be called from any thread, and raise `EngineUnavailable` when the store cannot be
reached (then it is unknown whether the verb took effect), `EngineError` when it cannot ever, and `PoolGone` when the
store has no such pool any more: who gets it opens the pool again.

What may be sent again after an `EngineUnavailable`, because twice is as good as once, its command says (`may_repeat`);
every question may.

Hints are hints. `listen` calls back when there *may* be something: for a worker something to take, a signal, or a
change of members; for a producer an outcome. A hint may be lost or come in vain, so everybody also looks by itself,
once a second. A hint may also carry a job that was handed over (`rules.takes`); `work` brings it again until it was
heard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.questions import A, Question
from millpond.keyed.rules.records import (
    Settings,
    Signal,
)


class PoolGone(EngineError):
    """The store has no such pool (any more): it lost its data, or the pool was dropped. Open it again."""


class NothingChanged(EngineUnavailable):
    """The store could not do it, and has surely done nothing: so whoever asked is told at once."""


class Opened(NamedTuple):
    """A pool as it was found or made."""

    settings: Settings
    incarnation: str


class OuterHeart(Protocol):
    """What keeps up a worker's membership while its own thread cannot."""

    def join(self, worker: str) -> None:
        """Keep up this membership from now on."""

    def beat(self) -> None:
        """Give a sign of life."""

    def renewed_at(self) -> float:
        """Return when a renewal was last sent from there, on `elapsed()`; 0.0 for never."""

    def give_up(self, worker: str) -> None:
        """Note that a membership is over, as far as its worker is concerned."""

    def close(self) -> None:
        """End it: the worker leaves."""


class Subscription(Protocol):
    """Somebody who is told hints."""

    def close(self) -> None:
        """Unsubscribe."""


class Store(Protocol):
    """One pool, where it lives."""

    url: str
    is_shared: bool
    """Whether other processes can see it."""
    proves_death: bool
    hands_over: bool
    """Whether its hints can carry a job."""
    skew: int
    """Microseconds that are added to its clock; for tests of what time does."""

    def open(self, settings: Settings) -> Opened:
        """Make the pool with these settings, or find it with those that it was made with."""

    def time_at(self, moment: int) -> int:
        """Return what the clock of the store will show at a time of day, as this machine knows it now."""

    def do(self, command: Command[A]) -> A:
        """Carry out a command, in one step."""

    def ask(self, question: Question[A]) -> A:
        """Answer a question, from one snapshot."""

    def outer_heart(self, lease: float, stall: float, *, renews: bool) -> OuterHeart | None:
        """Return what keeps up a membership beside its worker's own thread; None: none is needed."""

    def listen(
        self, name: str, heard: Callable[[], None], handed: Callable[[int, Signal], None] | None = None
    ) -> Subscription:
        """Call `heard` whenever there may be news for that worker or producer; it must not block for long.

        `handed` is called instead with a job that was handed over, and the number of the signal before it.
        """

    def drop(self) -> None:
        """Forget the pool, with all that it knows."""

    def close(self) -> None:
        """Close the connection; the pool stays."""

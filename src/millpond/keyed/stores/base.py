"""The seam between a keyed pool and where it lives.

A store keeps one pool and carries out its verbs, each atomically and exactly as `rules.Rules` does: that is the
specification, and `millpond_conformance.check_store` compares. It adds a clock that all its users share, durability,
and hints. Its methods block, may be called from any thread, and raise `EngineUnavailable` when the store cannot be
reached (then it is unknown whether the verb took effect), `EngineError` when it cannot ever, and `PoolGone` when the
store has no such pool any more: who gets it opens the pool again.

What may be sent again after an `EngineUnavailable`, because twice is as good as once: `dispatch` with the same batch,
`work` with the same call (a take that was lost is given back by `claim` with `known`), `renew`, `claim`, `give`,
`leave`, `ask`; `apply` as its command allows (a `Notify` may then arrive twice).

Hints are hints. `listen` calls back when there *may* be something: for a worker something to take, a signal, or a
change of members; for a producer an outcome. A hint may be lost or come in vain, so everybody also looks by itself,
once a second. A hint may also carry a job that was handed over (`rules.takes`); `work` brings it again until it was
heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.rules.commands import Command
from millpond.keyed.rules.questions import A, Question
from millpond.keyed.rules.records import (
    Batch,
    Claimed,
    Joiner,
    Moves,
    Order,
    PoolState,
    Report,
    Settings,
    Signal,
    Verdicts,
    Work,
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
    """A worker's heart outside its interpreter."""

    def join(self, worker: str) -> None:
        """Keep up this membership from now on."""

    def beat(self) -> None:
        """Give a sign of life."""

    def renewed_at(self) -> float:
        """Return when a renewal was last sent from there, on `elapsed()`; 0.0 for never."""

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

    # producers
    def time_at(self, moment: int) -> int:
        """Return what the clock of the store will show at a time of day, as this machine knows it now."""

    def dispatch(self, batch: Batch, orders: Sequence[Order]) -> Verdicts: ...
    def apply(self, command: Command) -> str: ...

    # workers
    def join(self, joiner: Joiner) -> PoolState: ...
    def renew(self, worker: str, *, leaving: bool = False, version: int = 0) -> PoolState | None: ...
    def leave(self, worker: str) -> None: ...
    def outer_heart(self, lease: float, stall: float, *, renews: bool) -> OuterHeart | None:
        """Return what keeps up a membership from outside this process, and tells of its end; None: none is needed."""

    def give(self, worker: str, moves: Moves, why: str) -> int: ...
    def claim(
        self,
        worker: str,
        slots: Sequence[int],
        dead: Mapping[str, int],
        known: Iterable[int] | None = None,
        call: int = 0,
        heard: int = 0,
    ) -> Claimed: ...
    def work(
        self,
        worker: str,
        call: int,
        settles: Sequence[Report],
        want: int,
        per: int,
        want_residents: int = 0,
        heard: int = 0,
        spare: int = 0,
    ) -> Work: ...

    # looking in
    def ask(self, question: Question[A]) -> A: ...

    # hints, end
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

"""How many workers should there be? Pure functions of a snapshot.

A sizing rule takes a `Snapshot` and returns the number of workers it wants; the pool clamps that between
`min_workers` and `max_workers` and only ever grows by it (idle workers leave by `idle_timeout` or a `Reaper`).
It is asked on slow edges only: when a task comes in and nobody rests, and on a tick. Any callable of this shape
is a rule.

| word         | wants                                                                               |
|--------------|-------------------------------------------------------------------------------------|
| `fixed`      | all of them, always                                                                 |
| `eager`      | one more whenever nobody rests (the default, as the standard library does)          |
| `balanced`   | as many as keep the expected wait under 50 ms                                       |
| `lazy`       | one more only when ten tasks wait per worker                                        |
| `proactive`  | arrival rate x run time (Little's law) with 20 % to spare, before the tasks come in |

Rates cost the hot path nothing: the pool derives them on its tick from the counts it has anyway
(run time = busy workers / throughput, the utilisation law). A rule that holds back could hold back for ever
when the running tasks wait for the queued ones, so `starved` adds a worker to any of them when tasks wait and
nothing has ended for half a second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal, TypeAlias

TARGET_WAIT = 0.05
"""`balanced` adds workers while a new task would wait longer than this, in seconds."""
PATIENCE = 10
"""`lazy` lets this many tasks wait per worker."""
HEADROOM = 1.2
"""`proactive` keeps this much more than the expected load."""
STARVED_AFTER = 0.5
"""Tasks wait and none has ended for this long, in seconds: a worker is added."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a sizing rule may look at."""

    workers: int
    """Workers alive now."""
    idle: int
    """Those of them without a task."""
    queued: int
    """Tasks that wait."""
    min_workers: int
    """The fewest workers there may be."""
    max_workers: int
    """The most workers there may be."""
    arrival_rate: float = 0.0
    """Tasks coming in per second, smoothed; 0.0 when not known yet."""
    run_time: float = 0.0
    """Seconds that a task runs, smoothed; 0.0 when not known yet."""
    stalled_for: float = 0.0
    """Seconds since a task last ended while others wait."""


Sizing: TypeAlias = Callable[[Snapshot], int]
SizingWord: TypeAlias = Literal["fixed", "eager", "balanced", "lazy", "proactive"]


def fixed(now: Snapshot) -> int:
    """Want every worker, always."""
    return now.max_workers


def eager(now: Snapshot) -> int:
    """Want one more whenever tasks wait and nobody rests."""
    return now.workers + 1 if now.queued and not now.idle else now.workers


def balanced(now: Snapshot) -> int:
    """Want as many as keep the expected wait of a new task under `TARGET_WAIT`."""
    if now.idle or not now.queued:
        return now.workers
    if not now.run_time:  # nothing has ended yet: let a second one wait for each worker at the most
        return now.workers + 1 if now.queued > now.workers else now.workers
    if now.queued * now.run_time / max(1, now.workers) <= TARGET_WAIT:
        return now.workers
    return max(now.workers + 1, ceil(now.queued * now.run_time / TARGET_WAIT))


def lazy(now: Snapshot) -> int:
    """Want one more only when `PATIENCE` tasks wait per worker."""
    if now.idle or now.queued <= PATIENCE * now.workers:
        return now.workers
    return now.workers + 1


def proactive(now: Snapshot) -> int:
    """Want what the load will need, by Little's law: arrival rate times run time, and some to spare."""
    if not (now.arrival_rate and now.run_time):
        return eager(now)
    return max(ceil(now.arrival_rate * now.run_time * HEADROOM), min(eager(now), now.workers + 1))


def starved(now: Snapshot) -> bool:
    """Return whether tasks wait and nothing moves, so that one more worker is due whatever the rule says."""
    return bool(now.queued) and not now.idle and now.stalled_for >= STARVED_AFTER


def clamp(want: int, now: Snapshot) -> int:
    """Keep `want` between the bounds of the pool; a pool with work has a worker."""
    low = max(now.min_workers, 1 if now.queued else 0)
    return max(low, min(want, now.max_workers))


RULES: dict[str, Sizing] = {rule.__name__: rule for rule in (fixed, eager, balanced, lazy, proactive)}


def sizing_rule(sizing: SizingWord | Sizing) -> Sizing:
    """Return the rule of this word, or the callable itself."""
    if isinstance(sizing, str) and sizing in RULES:
        return RULES[sizing]
    if callable(sizing):
        return sizing
    words = ", ".join(map(repr, RULES))
    raise ValueError(f"sizing must be one of {words}, or a callable of a Snapshot, not {sizing!r}")


@dataclass(frozen=True, slots=True)
class Reaper:
    """Scale down on a beat instead of one by one: every `period` seconds the workers that were idle throughout leave.

    For `idle_timeout=Reaper(period=30.0)`; a burst that comes back within the period finds all its workers.
    """

    period: float = 30.0
    """Seconds between two rounds."""

    def __post_init__(self) -> None:
        if not self.period > 0:
            raise ValueError(f"period must be above 0 seconds, not {self.period!r}")


def surplus(fewest_idle: int, now: Snapshot) -> int:
    """Return how many workers a reaper sends home: those idle through the whole period, down to the minimum."""
    return max(0, min(fewest_idle, now.workers - now.min_workers))

"""How long things wait and run, counted as they happen: an observer for pools of all kinds.

Prometheus_client has histograms of its own; this one is for the hot path: no lock of somebody else that a fork could
leave locked, no look-up by label names. What is counted is what this process saw since
it began; `rate()` and `histogram_quantile()` over all processes are right all the same.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from millpond._events import Event, Observer
from millpond.metrics._client import Metric
from millpond.metrics._families import BUCKETS, Readings, Series, Spread, families
from millpond.metrics._forked import renew_in_child

MOST: Final = 500
"""Series of a metric; beyond that all go to pool and job `other`."""


class Histograms:
    """Give it to pools as `on_event=`, and to a `Collector` or a registry.

    One may serve many pools. `buckets` are upper bounds in seconds. `then` is an observer that gets every event too.
    """

    def __init__(self, *, buckets: Sequence[float] = BUCKETS, then: Observer | None = None) -> None:
        self._bounds = _checked(buckets)
        if then is not None and not callable(then):
            raise TypeError(f"then= is a function of an event, not {then!r}")
        self._then = then
        self._spreads: dict[Series, Spread] = {}
        self._lock = threading.Lock()
        renew_in_child(self)

    def __call__(self, event: Event) -> None:
        """Count an event, if it tells how long something took."""
        observe = _OBSERVED.get(event.name)
        if observe is not None:
            observe(self, event)
        if self._then is not None:
            self._then(event)

    def observe(self, name: str, labels: tuple[str, ...], seconds: float) -> None:
        """Count a value."""
        if not seconds >= 0:  # a clock that was set back, or no number
            seconds = 0.0
        with self._lock:
            spread = self._spreads.get((name, labels))
            if spread is None:
                spread = self._new(name, labels)
            spread.counts[bisect_left(self._bounds, seconds)] += 1
            spread.sum += seconds

    def _new(self, name: str, labels: tuple[str, ...]) -> Spread:
        """Return the counts of a series that is new; beyond so many all share one."""
        if sum(each == name for each, _ in self._spreads) >= MOST:
            labels = ("other", *labels[1:2], *("other" for _ in labels[2:]))
        return self._spreads.setdefault((name, labels), Spread([0] * (len(self._bounds) + 1)))

    def read(self) -> Readings:
        """Return what was counted."""
        readings = Readings()
        with self._lock:
            for series, spread in self._spreads.items():
                readings.add_spread(series, self._bounds, spread)
        return readings

    def collect(self) -> Iterator[Metric]:
        """Return the metrics, for a registry that has no `Collector`."""
        return (each for each in families(self.read()) if each.type == "histogram")

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values, for a registry."""
        return (each for each in families(Readings()) if each.type == "histogram")

    def begin_anew(self) -> None:
        """Begin in a forked child: it counts what it does itself, and the lock may be held by nobody."""
        self._lock = threading.Lock()
        self._spreads = {}


def _checked(buckets: Any) -> tuple[float, ...]:
    if not isinstance(buckets, list | tuple) or not all(
        isinstance(each, int | float) and not isinstance(each, bool) and 0 < each < float("inf") for each in buckets
    ):
        raise TypeError(f"buckets are upper bounds in seconds, such as (0.1, 1, 10), not {buckets!r}")
    bounds = tuple(float(each) for each in buckets)
    if not bounds or list(bounds) != sorted(set(bounds)):
        raise ValueError(f"buckets grow, and there is at least one: not {buckets!r}")
    return bounds


def _task_started(self: Histograms, event: Event) -> None:
    self.observe("millpond_job_wait_seconds", (event.pool, "local", ""), event.data.get("waited", 0.0))


def _task_ended(outcome: str) -> Callable[[Histograms, Event], None]:
    def ended(self: Histograms, event: Event) -> None:
        error = event.data.get("error")
        how = "timeout" if isinstance(error, TimeoutError) else outcome
        self.observe("millpond_job_run_seconds", (event.pool, "local", "", how), event.data.get("seconds", 0.0))

    return ended


def _job_started(self: Histograms, event: Event) -> None:
    if event.data["attempt"] == 1:
        self.observe("millpond_job_wait_seconds", (event.pool, "keyed", event.data["job"]), event.data["waited"])


def _job_ran(self: Histograms, event: Event) -> None:
    labels = event.pool, "keyed", event.data["job"], event.data["outcome"]
    self.observe("millpond_job_run_seconds", labels, event.data["seconds"])


def _acquired(self: Histograms, event: Event) -> None:
    outcome = event.data.get("outcome", "ok")
    self.observe("millpond_acquire_wait_seconds", (event.pool, "resources", outcome), event.data["waited"])


def _released(self: Histograms, event: Event) -> None:
    if "held" in event.data:
        self.observe("millpond_hold_seconds", (event.pool, "resources"), event.data["held"])


_OBSERVED: Final[dict[str, Callable[[Histograms, Event], None]]] = {
    "task_started": _task_started,
    "task_finished": _task_ended("ok"),
    "task_failed": _task_ended("error"),
    "job_started": _job_started,
    "job_ran": _job_ran,
    "acquired": _acquired,
    "acquire_failed": _acquired,
    "released": _released,
}

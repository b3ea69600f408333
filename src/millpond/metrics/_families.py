"""Every metric: its name, type, labels and meaning. The table of docs/how-to/metrics.md is compared with this one.

Labels are bounded: names of pools, kinds, states, outcomes and names of jobs, never a key, an id, a resource or a
worker. `kind` is `local`, `keyed` or `resources`. No label is called `job` or `instance`: those are Prometheus' own,
and it would rename ours.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from millpond._version import __version__
from millpond.metrics._client import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

Type = Literal["counter", "gauge", "histogram", "info"]


class Family(NamedTuple):
    """A metric."""

    type: Type
    labels: tuple[str, ...]
    meaning: str


_POOL = ("pool", "kind")

FAMILIES: Final[dict[str, Family]] = {
    "millpond_queue_oldest_age_seconds": Family(
        "gauge", _POOL, "How long the oldest job, task or request has waited that could run now: scale by this"
    ),
    "millpond_up": Family("gauge", _POOL, "Whether the pool could be read: 0 when its store is away"),
    "millpond_queue_depth": Family("gauge", _POOL, "Jobs or tasks that wait"),
    "millpond_running": Family("gauge", _POOL, "Tasks or keys that run"),
    "millpond_pool_limit": Family("gauge", _POOL, "How many can run at once: workers, places of workers, or units"),
    "millpond_pool_paused": Family("gauge", _POOL, "Whether the pool is paused"),
    "millpond_pool_closed": Family("gauge", _POOL, "Whether the pool was shut down, or is broken"),
    "millpond_workers": Family(
        "gauge", (*_POOL, "state"), "Workers: idle or busy; of keyed pools active, draining or lost"
    ),
    "millpond_jobs_submitted_total": Family("counter", _POOL, "Jobs dispatched, or tasks submitted"),
    "millpond_jobs_finished_total": Family(
        "counter", (*_POOL, "outcome"), "Jobs or tasks that ended: ok, error, cancelled or rejected"
    ),
    "millpond_jobs_delayed": Family("gauge", _POOL, "Jobs that enter their key later"),
    "millpond_dead_letters": Family("gauge", _POOL, "Jobs that failed for good and wait for somebody to look"),
    "millpond_job_retries_total": Family("counter", _POOL, "Jobs that failed and are tried again"),
    "millpond_keys": Family("gauge", (*_POOL, "state"), "Keys that have jobs: ready or running"),
    "millpond_residents": Family("gauge", _POOL, "Residents"),
    "millpond_slot_moves_total": Family("counter", _POOL, "Slots that changed hands, with their keys"),
    "millpond_keys_recovered_total": Family("counter", _POOL, "Keys that ran on a worker that was lost"),
    "millpond_resources": Family(
        "gauge", (*_POOL, "state"), "Resources: free, held, or not lent (cordoned, quarantined, ...)"
    ),
    "millpond_units": Family("gauge", (*_POOL, "state"), "Units of resources: free or held"),
    "millpond_waiters": Family("gauge", _POOL, "Requests that wait for a resource"),
    "millpond_holders": Family("gauge", _POOL, "Grants that are held"),
    "millpond_suspects": Family("gauge", _POOL, "Grants whose holder may be gone"),
    "millpond_hold_oldest_age_seconds": Family("gauge", _POOL, "How long the oldest grant is held"),
    "millpond_grants_total": Family("counter", _POOL, "Grants that were made"),
    "millpond_job_wait_seconds": Family(
        "histogram", (*_POOL, "job_name"), "How long a job or task waited until it ran for the first time"
    ),
    "millpond_job_run_seconds": Family(
        "histogram", (*_POOL, "job_name", "outcome"), "How long a run took: ok, error, timeout, retry or stopped"
    ),
    "millpond_acquire_wait_seconds": Family(
        "histogram", (*_POOL, "outcome"), "How long a request waited: ok, timeout, busy, cancelled or error"
    ),
    "millpond_hold_seconds": Family("histogram", _POOL, "How long a grant was held"),
    "millpond_build_info": Family("info", ("version", "python"), "The library and the Python that tell this"),
}

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Of the text: the one that every Prometheus takes."""

BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of histograms, in seconds."""

Series = tuple[str, tuple[str, ...]]
"""A metric and the values of its labels."""


@dataclass(slots=True)
class Spread:
    """How values are spread: how many fell into each bucket, and their sum."""

    counts: list[int]
    sum: float = 0.0


@dataclass(slots=True)
class Readings:
    """Values by metric and labels. What is told twice adds up: Prometheus takes no series twice."""

    values: dict[Series, float] = field(default_factory=dict)
    spreads: dict[Series, tuple[tuple[float, ...], Spread]] = field(default_factory=dict)

    def add(self, name: str, labels: tuple[str, ...], value: float) -> None:
        """Add a value to a series."""
        series = name, tuple(map(_plain, labels))
        self.values[series] = _joined(name, self.values.get(series), value)

    def add_spread(self, series: Series, bounds: tuple[float, ...], spread: Spread) -> None:
        """Add a spread to a series; two with other buckets cannot be added, so the first one stays."""
        name, labels = series[0], tuple(map(_plain, series[1]))
        known, mine = self.spreads.setdefault((name, labels), (bounds, Spread([0] * len(spread.counts))))
        if known == bounds:
            mine.counts[:] = [one + other for one, other in zip(mine.counts, spread.counts, strict=True)]
            mine.sum += spread.sum

    def merge(self, other: Readings) -> None:
        """Add all values of another one."""
        for (name, labels), value in other.values.items():
            self.add(name, labels, value)
        for series, (bounds, spread) in other.spreads.items():
            self.add_spread(series, bounds, spread)


def _plain(label: object) -> str:
    """Return a label that can be written: the name of a local pool may be anything."""
    return str(label).encode(errors="backslashreplace").decode()


def _joined(name: str, known: float | None, value: float) -> float:
    """Return one value for two pools of the same name: ages do not add up, and one that is down is seen."""
    if known is None:
        return value
    if name == "millpond_up":
        return min(known, value)
    if name.endswith(("_age_seconds", "_paused", "_closed")):
        return max(known, value)
    return known + value


def families(readings: Readings) -> Iterator[Metric]:
    """Return metrics as prometheus_client wants them, in the order of the table."""
    grouped: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    everything: Iterable[tuple[Series, Any]] = (*readings.values.items(), *readings.spreads.items())
    for (name, labels), value in everything:
        grouped.setdefault(name, []).append((labels, value))
    for name, (kind, labels, meaning) in FAMILIES.items():
        found: Metric
        if kind == "info":
            found = InfoMetricFamily(name.removesuffix("_info"), meaning)
            found.add_metric([], {"version": __version__, "python": platform.python_version()})
        elif kind == "histogram":
            found = HistogramMetricFamily(name, meaning, labels=labels)
            for values, (bounds, spread) in sorted(grouped.get(name, ())):
                found.add_metric(values, _buckets(bounds, spread.counts), spread.sum)
        else:
            found = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, meaning, labels=labels)
            for values, value in sorted(grouped.get(name, ())):
                found.add_metric(values, value)
        yield found


def _buckets(bounds: tuple[float, ...], counts: list[int]) -> list[tuple[str, float]]:
    """Return how many values are at or below each bound."""
    total, found = 0, []
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
    return found

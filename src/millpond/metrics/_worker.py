"""What `/metrics` of a worker says: its pool, how long its jobs wait and run here, and what the program measures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from millpond import KeyedPool
from millpond._events import Observer
from millpond.metrics._client import REGISTRY, CollectorRegistry, Metric, generate_latest
from millpond.metrics._collector import Collector
from millpond.metrics._families import CONTENT_TYPE
from millpond.metrics._histograms import Histograms


class WorkerMetrics:
    """The metrics of a worker. Its jobs are measured from the first scrape on: before that nobody wants to know."""

    def __init__(self, name: str, url: str, measure: Callable[[Observer], object]) -> None:
        histograms = Histograms()
        self._pool = KeyedPool(name, url, create=False)
        self._collector = Collector(self._pool, histograms)
        self._lock = threading.Lock()
        measure(histograms)

    def render(self) -> tuple[bytes, str]:
        """Return the text and its content type; one scrape at a time, so that many do not burden the store."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Both(self._collector))
        with self._lock:
            return generate_latest(registry), CONTENT_TYPE

    def close(self) -> None:
        """Close the connection to the store."""
        self._collector.close()
        self._pool.close()


class _Both:
    """Ours, and what the program has registered with prometheus_client, its own pools among it; each series once."""

    def __init__(self, ours: Collector) -> None:
        self._ours = ours

    def collect(self) -> Iterator[Metric]:
        found = {each.name: each for each in self._ours.collect()}
        for each in REGISTRY.collect():
            mine = found.setdefault(each.name, each)
            if mine is not each and mine.type == each.type:
                told = {(one.name, *sorted(one.labels.items())) for one in mine.samples}
                mine.samples += [one for one in each.samples if (one.name, *sorted(one.labels.items())) not in told]
        yield from found.values()

"""Pools of this process, read when somebody scrapes: no cost for a task or a job.

A scrape never raises: a pool that cannot be read is told by `millpond_up` 0, one that was closed or dropped is told no
more. Pools that live at the same place are not asked in vain one after the other: the first that cannot be reached
speaks for them.

The counts of local pools are put together while tasks move, so one may be a little less than the last time; since
Prometheus takes that for a restart, and adds everything once more, the larger one is kept. When one of two pools of the
same name goes, what it had counted stays in their sum, for the same reason.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from millpond import (
    AsyncKeyedPool,
    AsyncPool,
    AsyncResourcePool,
    AsyncSubPool,
    KeyedPool,
    ProcessPool,
    ResourcePool,
    SubPool,
    ThreadPool,
)
from millpond._events import logger
from millpond.errors import EngineUnavailable, NotFound, PoolClosed
from millpond.metrics._client import Metric
from millpond.metrics._families import Readings, Series, families
from millpond.metrics._forked import renew_in_child
from millpond.metrics._histograms import Histograms
from millpond.metrics._readings import KEYED, RESOURCES, read_keyed, read_local, read_resources

_LOCAL: Final = (ThreadPool, ProcessPool, SubPool, AsyncPool, AsyncSubPool)
_STORED: Final = (KeyedPool, AsyncKeyedPool, ResourcePool, AsyncResourcePool)


class _Local:
    """A local pool, and what it had counted when it was last read."""

    def __init__(self, pool: Any) -> None:
        self.pool = weakref.ref(pool)
        self.name: str = pool.name
        self.counted: dict[Series, float] = {}

    def read(self) -> Readings | None:
        pool = self.pool()
        if pool is None:
            return None
        readings = Readings()
        read_local(pool.statistics(), readings)
        return readings

    def keep(self, readings: Readings) -> None:
        """Keep each count at least as high as it was."""
        for series, value in readings.values.items():
            if series[0].endswith("_total"):
                readings.values[series] = self.counted[series] = max(value, self.counted.get(series, 0.0))


class _Stored:
    """A pool that lives in a store. It is read by a synchronous face; an asynchronous pool gets one beside it."""

    def __init__(self, pool: Any) -> None:
        self.pool = weakref.ref(pool)
        self.name: str = pool.name
        self.url: str = pool.url
        self.kind = KEYED if isinstance(pool, KeyedPool | AsyncKeyedPool) else RESOURCES
        self._twin: KeyedPool | ResourcePool | None = None
        self._lock = threading.Lock()

    def read(self) -> Readings | None:
        face = self._face()
        if face is None:
            return None
        readings = Readings()
        if isinstance(face, KeyedPool):
            read_keyed(face, readings)
        else:
            read_resources(face, readings)
        return readings

    def _face(self) -> KeyedPool | ResourcePool | None:
        pool = self.pool()
        if pool is None:
            self.close()
            return None
        if isinstance(pool, KeyedPool | ResourcePool):
            return pool
        with self._lock:
            if self._twin is None:
                name, url = self.name, self.url
                self._twin = KeyedPool(name, url, create=False) if self.kind == KEYED else ResourcePool(name, url)
            return self._twin

    def begin_anew(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            twin, self._twin = self._twin, None
        if twin is not None:
            twin.close()


class Collector:
    """Collects the metrics of pools for a registry of prometheus_client: `REGISTRY.register(Collector(pool, ...))`.

    It takes pools of every kind, and `Histograms`. Pools are not kept alive. A registry takes one collector: `add` more
    pools to it. `close` lets go of what was opened to read asynchronous pools.
    """

    def __init__(self, *sources: Any) -> None:
        self._lock = threading.Lock()
        self._local: list[_Local] = []
        self._stored: list[_Stored] = []
        self._histograms: list[Histograms] = []
        self._past: dict[Series, float] = {}
        """What pools had counted that are gone, while there is another one of the same name."""
        self.add(*sources)
        renew_in_child(self)

    def add(self, *sources: Any) -> None:
        """Collect these as well: pools of any kind, or `Histograms`."""
        made = [_made(source) for source in sources]
        with self._lock:
            for each in made:
                kept: list[Any] = _list_of(self, each)
                if isinstance(each, Histograms):
                    known = each in kept
                else:
                    known = any(other.pool() is each.pool() for other in kept)
                if not known:
                    kept.append(each)

    def remove(self, pool: Any) -> None:
        """Remove this one: it is not collected any more."""
        with self._lock:
            gone = [each for each in self._stored if each.pool() is pool]
            self._local = [each for each in self._local if each.pool() is not pool]
            self._stored = [each for each in self._stored if each.pool() is not pool]
            self._histograms = [each for each in self._histograms if each is not pool]
        for each in gone:
            each.close()

    def close(self) -> None:
        """Collect nothing more."""
        with self._lock:
            stored, self._stored, self._local, self._histograms = self._stored, [], [], []
        for each in stored:
            each.close()

    def collect(self) -> Iterator[Metric]:
        """Read everything, and return it as metrics."""
        return families(self.read())

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values: to register is not to read."""
        return families(Readings())

    def read(self) -> Readings:
        """Read everything."""
        with self._lock:
            local, stored, histograms = list(self._local), list(self._stored), list(self._histograms)
        readings = Readings()
        self._read_local(local, readings)
        away: set[str] = set()
        told: set[tuple[str, str, str]] = set()
        for each in stored:  # several handles of one pool are one pool
            about = each.name, each.kind, each.url
            if about not in told and read_stored(each.read, about[:2], each.url, away, readings):
                told.add(about)
        for measured in histograms:
            readings.merge(measured.read())
        return readings

    def _read_local(self, pools: list[_Local], readings: Readings) -> None:
        found = [(each, each.read()) for each in pools]
        with self._lock:
            alive = {labels[0] for _, read in found if read is not None for _, labels in read.values}
            for each, read in found:
                if read is not None:
                    each.keep(read)
                    readings.merge(read)
                elif each in self._local:  # it is gone: nobody else has noticed yet
                    self._local.remove(each)
                    for series, value in each.counted.items():
                        self._past[series] = self._past.get(series, 0.0) + value
            self._past = {series: value for series, value in self._past.items() if series[1][0] in alive}
            for (name, labels), value in self._past.items():
                readings.add(name, labels, value)

    def begin_anew(self) -> None:
        """Begin in a forked child, where a lock may be held by nobody."""
        self._lock = threading.Lock()
        for each in self._stored:
            each.begin_anew()


def _made(source: Any) -> _Local | _Stored | Histograms:
    if isinstance(source, Histograms):
        return source
    if isinstance(source, _STORED):
        return _Stored(source)
    if isinstance(source, _LOCAL):
        return _Local(source)
    raise TypeError(f"a Collector takes pools and Histograms, not {source!r}")


def _list_of(collector: Collector, made: _Local | _Stored | Histograms) -> list[Any]:
    if isinstance(made, Histograms):
        return collector._histograms
    return collector._local if isinstance(made, _Local) else collector._stored


def read_stored(
    read: Callable[[], Readings | None], labels: tuple[str, str], url: str, away: set[str], readings: Readings
) -> bool:
    """Read a pool that lives in a store; False: there is no such pool any more.

    `away` has the places that could not be reached, and gets this one if so.
    """
    if url not in away:
        try:
            found = read()
        except (NotFound, PoolClosed):
            return False
        except EngineUnavailable as error:
            logger.debug("pool %r cannot be read for metrics: %s", labels[0], error)
            away.add(url)
        except Exception:  # whatever it is, the other pools can be read
            logger.exception("pool %r cannot be read for metrics", labels[0])
        else:
            if found is not None:
                readings.merge(found)
            return found is not None
    readings.add("millpond_up", labels, 0)
    return True

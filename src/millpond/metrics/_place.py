"""All pools of a place, as text for Prometheus."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self

from millpond import KeyedPool, ResourcePool, keyed, resources
from millpond._clock import elapsed
from millpond._events import logger
from millpond._sqlite._file_watch import FileWatch
from millpond._urls import shown
from millpond.errors import EngineUnavailable, PoolError
from millpond.metrics._client import CollectorRegistry, Metric, generate_latest
from millpond.metrics._collector import read_stored
from millpond.metrics._families import CONTENT_TYPE, Readings, families
from millpond.metrics._forked import renew_in_child
from millpond.metrics._readings import KEYED, RESOURCES, read_keyed, read_resources

NAMES_EVERY: Final = 60.0
"""Seconds after which new pools are looked for: that is the dear part, on a server with many keys."""


def render(url: str) -> tuple[bytes, str]:
    """Return the metrics of all keyed and resource pools at a URL, and their content type.

    They come from the store, so all who ask get the same; a file that is not there is not made. A place that cannot be
    reached is told by `millpond_up` 0 without a pool; a URL at which no pool can live is a ValueError. Who serves this
    again and again keeps a `Place`.
    """
    with Place(url) as place:
        return place.render()


class Place:
    """All pools of a place, which stay open from one scrape to the next. Any thread may ask; one is served at a time.

    Pools that are new are seen after a minute at most.
    """

    def __init__(self, url: str) -> None:
        if not isinstance(url, str):
            raise TypeError(f"a URL is a string such as 'redis://localhost', not {url!r}")
        self.url = url
        self._lock = threading.Lock()
        self._parts: list[_Part] = [
            _Part(KEYED, url, keyed.pools, lambda name: KeyedPool(name, url, create=False), read_keyed),
            _Part(RESOURCES, url, resources.pools, lambda name: ResourcePool(name, url), read_resources),
        ]
        self._file = FileWatch(url, self._let_go)
        self._named_at: float | None = None
        self._is_closed = False
        renew_in_child(self)

    def render(self) -> tuple[bytes, str]:
        """Return the metrics as text, and their content type."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Given(self.read()))
        return generate_latest(registry), CONTENT_TYPE

    def read(self) -> Readings:
        """Read all pools."""
        readings = Readings()
        away: set[str] = set()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the place {shown(self.url)} was closed here")
            try:
                if not self._file.is_there():
                    return readings
            except EngineUnavailable:
                for part in self._parts:
                    part.tell_away(readings)
                return readings
            self._find(away, readings)
            for part in self._parts:
                part.read(away, readings)
            if away:
                self._named_at = None
        return readings

    def _find(self, away: set[str], readings: Readings) -> None:
        """Look for new pools, if that has not been done for a while."""
        if self._named_at is not None and elapsed() - self._named_at < NAMES_EVERY:
            return
        refused: list[ValueError] = []
        for part in list(self._parts):
            try:
                part.find(away, readings)
            except ValueError as error:  # pools of this kind do not live at such a place
                refused.append(error)
                self._parts.remove(part)
        if not self._parts:
            raise refused[0]
        self._named_at = elapsed()

    def close(self) -> None:
        """Close the pools."""
        with self._lock:
            self._is_closed = True
            self._let_go()

    def _let_go(self) -> None:
        self._named_at = None
        for part in self._parts:
            part.close()

    def begin_anew(self) -> None:
        """Begin in a forked child, where a lock may be held by nobody."""
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Part:
    """The pools of one kind at a place."""

    def __init__(
        self,
        kind: str,
        url: str,
        names: Callable[[str], list[str]],
        make: Callable[[str], Any],
        read: Callable[[Any, Readings], None],
    ) -> None:
        self._kind, self._url, self._names, self._make, self._read = kind, url, names, make, read
        self._pools: dict[str, Any] = {}

    def find(self, away: set[str], readings: Readings) -> None:
        """Open the pools that are new, and close those that are gone."""
        if self._url in away:  # as another kind has found out
            return
        try:
            names = self._names(self._url)
            for name in set(self._pools) - set(names):
                self._let_go(name)
            for name in names:
                if name not in self._pools:
                    self._pools[name] = self._make(name)
        except (ValueError, ModuleNotFoundError):  # no such place, or a package is missing: that will not change
            raise
        except EngineUnavailable as error:
            logger.debug("the pools at %s cannot be read for metrics: %s", shown(self._url), error)
            away.add(self._url)
        except Exception as error:  # what the packages of servers raise
            logger.warning("the pools at %s cannot be read for metrics: %s", shown(self._url), error)
            away.add(self._url)
        if self._url in away and not self._pools:
            self.tell_away(readings)

    def tell_away(self, readings: Readings) -> None:
        """Report that the place cannot be reached; there may be no pool to name."""
        readings.add("millpond_up", ("", self._kind), 0)

    def read(self, away: set[str], readings: Readings) -> None:
        """Read all pools; those that were dropped are told no more."""
        for name, pool in list(self._pools.items()):
            if not read_stored(partial(self._one, pool), (name, self._kind), self._url, away, readings):
                self._let_go(name)

    def _one(self, pool: Any) -> Readings:
        readings = Readings()
        self._read(pool, readings)
        return readings

    def _let_go(self, name: str) -> None:
        with contextlib.suppress(PoolError):
            self._pools.pop(name).close()

    def close(self) -> None:
        """Close the pools."""
        for name in list(self._pools):
            self._let_go(name)


class _Given:
    """A collector of what was read."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> list[Metric]:
        return list(families(self._readings))

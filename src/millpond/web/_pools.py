"""The pools of a place, open: found by name, kept open between two looks, left alone when their store is gone.

The identity of a database file is checked at each look.
What several tabs ask at the same moment is asked of the store once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from millpond import keyed, resources
from millpond._clock import elapsed
from millpond._sqlite._file_watch import FileWatch
from millpond._urls import shown
from millpond.errors import EngineUnavailable, NotFound, PoolError
from millpond.keyed import KeyedPool
from millpond.resources import ResourcePool

T = TypeVar("T")
P = TypeVar("P", KeyedPool, ResourcePool)
FRESH = 0.9
"""Seconds for which an answer that tabs share counts as new."""
NAMES_FRESH = 5.0
"""The same, of the names of all pools."""
PATIENCE = 4.0
"""Seconds for which one waits for what another one asks already."""


class OpenPools:
    """All pools at a URL. Every method may block, and may be called from any thread."""

    def __init__(self, url: Any) -> None:
        if not isinstance(url, str) or ":" not in url:
            raise TypeError(f"say where the pools live by a URL such as 'sqlite:///pools.db', not {url!r}")
        self.url = url
        self._lock = threading.Lock()
        self._keyed: dict[str, KeyedPool] = {}
        self._resources: dict[str, ResourcePool] = {}
        self._file = FileWatch(url, self.close)
        self._shared: dict[Hashable, _Shared] = {}
        self._took = 0.0
        """Seconds that finding all names took: it is done the less often, the longer that takes."""

    @property
    def shown(self) -> str:
        """The URL, without a password."""
        return shown(self.url)

    def names(self, newer_than: float = NAMES_FRESH) -> tuple[list[str], list[str]]:
        """Return the names of the resource pools and of the keyed pools; to find them, a server looks at all it has."""
        return self.once("names", self._names, max(newer_than, 20 * self._took))

    def _names(self) -> tuple[list[str], list[str]]:
        if not self._file.is_there():
            return [], []
        began = elapsed()
        refused = []
        found: list[list[str]] = []
        for list_pools in (resources.pools, keyed.pools):
            try:
                found.append(list_pools(self.url))
            except ValueError as error:  # pools of this kind cannot live there
                found.append([])
                refused.append(error)
        if len(refused) == 2:
            raise refused[0]
        self._took = elapsed() - began
        opened: list[dict[str, Any]] = [self._resources, self._keyed]
        for known, names in zip(opened, found, strict=True):
            for name in set(known) - set(names):
                self._forget(known, name)
        return found[0], found[1]

    def keyed(self, name: str) -> KeyedPool:
        """Return a keyed pool that is there."""
        return self._open(self._keyed, "keyed", name, lambda: KeyedPool(name, self.url, create=False))

    def resources(self, name: str) -> ResourcePool:
        """Return a resource pool that is there."""
        return self._open(self._resources, "resources", name, lambda: ResourcePool(name, self.url))

    def _open(self, known: dict[str, P], kind: str, name: str, make: Callable[[], P]) -> P:
        self._file.is_there()
        self.names()  # which forgets those that are gone
        with self._lock:
            if name in known:
                return known[name]
        self.kind(name, kind)
        with self._lock:
            if name not in known:
                known[name] = make()
            return known[name]

    def kind(self, name: str, wanted: str | None) -> str:
        """Return whether a pool is `keyed` or one of `resources`; `wanted` tells two of one name apart."""
        if wanted not in (None, "keyed", "resources"):
            raise ValueError(f"kind is 'keyed' or 'resources', not {wanted!r}")
        kinds = self._kinds(name, NAMES_FRESH, wanted) or self._kinds(name, FRESH, wanted)  # it may be new
        if not kinds:
            kind = {"keyed": "keyed pool", "resources": "resource pool"}.get(wanted or "", "pool")
            raise NotFound(f"there is no {kind} {name!r} at {self.shown}")
        if len(kinds) > 1:
            raise ValueError(f"there are two pools {name!r}: say kind=keyed or kind=resources")
        return kinds[0]

    def _kinds(self, name: str, newer_than: float, wanted: str | None) -> list[str]:
        lent, with_keys = self.names(newer_than)
        known = {"keyed": with_keys, "resources": lent}
        return [kind for kind, names in known.items() if name in names and wanted in (None, kind)]

    def once(self, what: Hashable, ask: Callable[[], T], newer_than: float = FRESH) -> T:
        """Return a recent answer, or ask; those who want the same meanwhile wait for that answer."""
        with self._lock:
            if len(self._shared) > 1000:  # names that somebody made up
                self._shared.clear()
            shared = self._shared.setdefault(what, _Shared())
        return shared.get(ask, newer_than)

    def close(self) -> None:
        """Close all pools."""
        with self._lock:
            pools: list[Any] = [*self._keyed.values(), *self._resources.values()]
            self._keyed, self._resources, self._shared = {}, {}, {}
        for pool in pools:
            with contextlib.suppress(PoolError):
                pool.close()

    def _forget(self, known: dict[str, Any], name: str) -> None:
        with self._lock:
            pool = known.pop(name, None)
        if pool is not None:
            with contextlib.suppress(PoolError):
                pool.close()


class _Shared:
    """An answer that several ask for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._answer: Any = None

    def get(self, ask: Callable[[], T], newer_than: float) -> T:
        if not self._lock.acquire(timeout=PATIENCE):
            raise EngineUnavailable("the store does not answer")
        try:
            if elapsed() - self._at > newer_than:
                self._answer = ask()
                self._at = elapsed()
            answer: T = self._answer
            return answer
        finally:
            self._lock.release()

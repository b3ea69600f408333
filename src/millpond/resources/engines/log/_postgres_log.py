"""Logs in PostgreSQL: five tables for all pools, and one function per verb, so that each verb is one statement.

No session locks, no prepared statements, nothing that outlives a transaction: pgbouncer in transaction mode is fine.
LISTEN is used where it works, which is tried; else the companion looks often while it expects something.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, Final

import psycopg
from psycopg import errors

from millpond._clock import elapsed
from millpond.errors import EngineError, EngineUnavailable
from millpond.resources._rules.replica import HISTORY
from millpond.resources.engines.log._log import (
    FORMAT,
    GATE,
    Appended,
    Orphan,
    Synced,
    Witness,
    decode_witness,
    encode,
)
from millpond.resources.engines.log._postgres_url import read_postgres
from millpond.resources.engines.log._watchdog import Watchdog

OLDEST: Final = 130_000
CALL: Final = 5
"""Seconds after which a call is given up."""
TRY: Final = 1.0
"""Seconds for which the own notification is waited for: one that does not come shows that LISTEN does not work."""
_CHANNEL: Final = "millpond_resources"
AGAIN: Final = 600.0
"""Seconds after which LISTEN is tried again where it did not work."""
_LONGEST: Final = 7000
"""Bytes of hints in one notification; with more, everybody looks."""


def _short(pool: str) -> str:
    return hashlib.md5(pool.encode(), usedforsecurity=False).hexdigest()


def schema() -> str:
    """Return the SQL that makes the tables and functions."""
    return (files(__package__) / "sql" / "postgres.sql").read_text()


class PostgresLog:
    """All pools of one database."""

    def __init__(self, url: str) -> None:
        self._url, self._name, _ = read_postgres(url)
        self._pools: dict[str, str] = {}  # by what notifications call them: names can be longer than those
        self._listen_at = 0.0
        self._connection: psycopg.Connection[Any] | None = None
        self._ears: psycopg.Connection[Any] | None = None
        self._names: set[str] = set()
        self._has_missed = True
        self._watchdog = Watchdog()

    def check(self) -> None:
        """Refuse a server that is too old or read-only; make what is missing."""
        version, is_replica = self._call("SELECT current_setting('server_version_num')::int, pg_is_in_recovery()")[0]
        if version < OLDEST:
            raise EngineError(
                f"postgresql at {self._name} is version {version // 10_000}; resource pools need 13 or newer"
            )
        if is_replica:
            raise EngineError(f"postgresql at {self._name} is a read-only replica; give the URL of the primary")
        missing = (
            "SELECT to_regproc('millpond_resource_drop') IS NULL OR EXISTS (SELECT 1 FROM unnest(%s::text[]) AS name "
            "WHERE to_regclass('millpond_resource_' || name) IS NULL)"
        )
        if self._call(missing, (["pool", "item", "parcel", "session", "companion"],))[0][0]:
            self._create()

    def _create(self) -> None:
        try:
            self._call("SELECT pg_advisory_xact_lock(7173826251)", script=schema())
        except EngineError as error:
            if isinstance(error.__cause__, errors.InsufficientPrivilege):
                raise EngineError(
                    f"the user of the URL may not create the tables of resource pools in postgresql at {self._name} "
                    f"({error.__cause__.diag.message_primary}): let an owner run `millpond schema | psql …`, or "
                    "grant CREATE"
                ) from error
            raise

    def sync(self, pool: str, me: str, seq: int, tip: bytes, posts: Sequence[bytes], *, wants_gate: bool) -> Synced:
        """Post parcels, take the gate if it is wanted and free, and return what is new."""
        self._pools[_short(pool)] = pool
        row = self._call(
            "SELECT * FROM millpond_resource_sync(%s, %s, %s, %s, %s, %s, %s, %s::bytea[])",
            (pool, me, wants_gate, GATE, seq, tip, FORMAT, list(posts)),
        )[0]
        found, now, epoch, last, mark, base, snapshot, seqs, tips, bodies, ids, inbox = row
        if found != FORMAT:
            raise EngineError(
                f"pool {pool!r} in postgresql at {self._name} has format {found}, and this millpond reads "
                f"format {FORMAT}; use the version of millpond that wrote it, or drop the pool"
            )
        items = list(zip(seqs or (), tips or (), bodies or (), strict=True))
        return Synced(now, epoch, last, mark, items, snapshot, base, list(zip(ids or (), inbox or (), strict=True)))

    def append(
        self,
        pool: str,
        epoch: int,
        previous: bytes,
        item: tuple[int, bytes, bytes] | None,
        taken: Sequence[int],
        snapshot: bytes | None,
        hints: Iterable[str],
    ) -> Appended:
        """Append an item, if the gate is still ours."""
        words = "".join(f"\nto:{one}" for one in hints)
        if len(words) > _LONGEST:
            words = "\n*"
        done, now, ids, inbox = self._call(
            "SELECT * FROM millpond_resource_append(%s, %s, %s, %s, %s, %s, %s::bigint[], %s::bytea, %s, %s)",
            (pool, epoch, previous, *(item or (0, b"", b"")), list(taken), snapshot, HISTORY, words),
        )[0]
        return Appended(done, now, list(zip(ids or (), inbox or (), strict=True)))

    def leave(self, pool: str, epoch: int) -> None:
        """Give up the gate, if it is still ours."""
        self._call("UPDATE millpond_resource_pool SET decider = '' WHERE name = %s AND epoch = %s", (pool, epoch))

    def beat(self, pool: str, me: str, lost_after: int) -> list[Orphan]:
        """Note that this companion lives; tell of those that have long been silent."""
        found = self._call("SELECT * FROM millpond_resource_beat(%s, %s, %s)", (pool, me, lost_after))
        return [Orphan(one, decode_witness(witness), silence / 1e6, beat) for one, witness, silence, beat in found]

    def register(self, pool: str, me: str, session: str, witness: Witness) -> None:
        """Note who watches over a session, and that this companion lives."""
        self._call(
            "WITH beat AS (INSERT INTO millpond_resource_companion VALUES (%(pool)s, %(me)s, millpond_resource_now()) "
            "ON CONFLICT (pool, companion) DO UPDATE SET beat = excluded.beat) "
            "INSERT INTO millpond_resource_session VALUES (%(pool)s, %(session)s, %(me)s, %(witness)s) "
            "ON CONFLICT (pool, session) DO UPDATE SET companion = excluded.companion, witness = excluded.witness",
            {"pool": pool, "me": me, "session": session, "witness": encode(witness)},
        )

    def unregister(self, pool: str, sessions: Sequence[str]) -> None:
        """Forget sessions that are over."""
        self._call(
            "WITH gone AS (DELETE FROM millpond_resource_session WHERE pool = %(pool)s AND session = ANY (%(over)s)) "
            "DELETE FROM millpond_resource_companion WHERE pool = %(pool)s AND NOT EXISTS (SELECT 1 FROM "
            "millpond_resource_session WHERE pool = %(pool)s AND session <> ALL (%(over)s))",
            {"pool": pool, "over": list(sessions)},
        )

    def sessions(self, pool: str) -> dict[str, Witness]:
        """Return all sessions of a pool."""
        found = self._call("SELECT session, witness FROM millpond_resource_session WHERE pool = %s", (pool,))
        return {session: decode_witness(witness) for session, witness in found}

    def pools(self) -> list[str]:
        """Return the names of all pools."""
        return [row[0] for row in self._call("SELECT name FROM millpond_resource_pool WHERE seq > 0 ORDER BY name")]

    def drop(self, pool: str) -> None:
        """Delete a pool."""
        self._call("SELECT millpond_resource_drop(%s)", (pool,))

    # --- hints -------------------------------------------------------------------------------------------------

    def subscribe(self, names: Iterable[str]) -> None:
        """Listen for hints to these names; where that does not work, try again after a while only."""
        parts = (name.partition(":") for name in names)
        self._names = {f"all:{_short(what)}" if kind == "all" else f"{kind}:{what}" for kind, _, what in parts}
        if self._ears is None and elapsed() >= self._listen_at:
            self._listen_at = elapsed() + AGAIN
            ears = self._connect()
            try:
                ears.execute(f"LISTEN {_CHANNEL}")
                self._call(f"SELECT pg_notify('{_CHANNEL}', %s)", (f"\nto:{id(self)}",))
                works = bool(select.select([ears], [], [], TRY)[0]) and any(True for _ in ears.notifies(timeout=0))
            except BaseException as error:
                ears.close()
                if isinstance(error, psycopg.Error):
                    raise self._explained(error) from error
                raise
            if not works:  # somebody stands between us and the server
                with contextlib.suppress(psycopg.Error):
                    ears.execute("UNLISTEN *")  # lest notifications come to whoever has that session next
                ears.close()
                return
            self._listen_at = 0.0
            self._ears, self._has_missed = ears, True

    def fileno(self) -> int:
        """Return the descriptor of the listening connection."""
        return -1 if self._ears is None else self._ears.fileno()

    def hints(self) -> set[str] | None:
        """Return the pools that hints to us were about."""
        ears = self._ears
        if ears is None:
            return None
        try:
            found = [note.payload.split("\n") for note in ears.notifies(timeout=0)]
        except psycopg.Error:
            self._ears = None
            ears.close()
            return None
        if self._has_missed:
            self._has_missed = False
            return None
        ours = {short for short, *names in found if "*" in names or not self._names.isdisjoint(names)}
        return {self._pools[short] for short in ours & self._pools.keys()}

    # --- the connection ----------------------------------------------------------------------------------------

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=CALL,
                application_name="millpond",
                keepalives_idle=10,
                tcp_user_timeout=CALL * 1000,
            )
        except psycopg.Error as error:
            raise self._explained(error, is_sent=False) from error

    def _call(self, sql: str, args: Any = None, *, script: str = "") -> list[tuple[Any, ...]]:
        """Run one statement; with a script, run that in the same transaction after it."""
        connection = self._connection
        if connection is not None and connection.closed:
            connection = None
        try:
            if connection is None:
                connection = self._connection = self._connect()
            self._watchdog.expect(connection.fileno(), CALL)
            if script:
                with connection.transaction():
                    connection.execute(sql)
                    connection.execute(script)
                return []
            with connection.cursor(binary=True) as cursor:
                cursor.execute(sql, args)
                return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
                self._drop()
            raise self._explained(error) from error
        except BaseException:  # a signal: the answer that comes next would be that of this call
            self._drop()
            raise
        finally:
            self._watchdog.forget()

    def _explained(self, error: psycopg.Error, *, is_sent: bool = True) -> EngineError:
        """Return an error of ours: what happened, and what to do."""
        where, text = f"postgresql at {self._name}", " ".join(str(error).split())
        if isinstance(
            error, errors.InvalidPassword | errors.InvalidAuthorizationSpecification | errors.InvalidCatalogName
        ):
            return EngineError(f"{where} refused to let us in: {text}; check user, password and database of the URL")
        if not is_sent and ("authentication failed" in text or "does not exist" in text):
            return EngineError(f"{where} refused to let us in: {text}; check user, password and database of the URL")
        if isinstance(error, errors.InsufficientPrivilege):
            return EngineError(f"{where} forbids something that a pool needs: {text}; grant the user of the URL more")
        if isinstance(error, errors.UndefinedTable | errors.UndefinedFunction):
            return EngineUnavailable(f"{where} has lost the tables of resource pools: {text}")
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            fate = "whether the call took effect is unknown" if is_sent else "nothing was sent"
            return EngineUnavailable(
                f"{where} cannot be reached ({text}): {fate}; check that it runs and the URL is right"
            )
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return EngineUnavailable(f"{where} is read-only now; wait for the failover, or give the URL of the primary")
        if isinstance(error, psycopg.DataError) and "NUL" in text:
            return EngineError(f"{where} keeps no text with a NUL character: give the pool another name")
        return EngineError(f"{where} refused a call: {text}; this looks like a bug of millpond, please report it")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def close(self) -> None:
        """Close the connections."""
        self._watchdog.close()
        self._drop()
        if self._ears is not None:
            self._ears.close()

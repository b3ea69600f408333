"""A SQLite file that many processes of one machine share, with no server.

Rules:

- Every write, checkpoint, open and close happens behind the `Gate` of the file. Reads do not.
- A transaction is short, and `writing()` knows its outcome: when it raises, `Transaction.committed` says whether the
  changes were made (a Ctrl-C can come just after the commit), and no error of SQLite leaves that open.
- WAL, so that readers never wait; checkpoints are ours (`checkpoint_if_large`), since SQLite's own would come at any
  commit. Never `mmap_size`.
- **No connection crosses a fork.** An inherited connection must not be used; but neither can a new one in the child be
  trusted beside it: SQLite keeps its locks per process and file in memory, takes those of the parent for its own, and
  then asks the kernel for none (seen in `/proc/locks`: a "fresh" connection in a child held no lock at all). So the
  parent closes its connections before each `os.fork()` and both open them again when they need them. A connection
  that cannot be closed, because the fork happens inside a transaction, is left alone in the child, for ever, and the
  child refuses to open that file. (`subprocess` is no danger: its child only calls `exec`.)
- A `Database` lives until `close()`, or to the end of the process; dropping it would close it outside of the gate.
- A file that was deleted or replaced while in use is refused: two files of one name are two truths.

`meta` holds the format number of the file. `MIGRATIONS[n - 1]` brings format n to n + 1; all that are needed run in one
transaction. A file of a newer format than this code knows is not touched.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sqlite3
import threading
import time
from typing import TYPE_CHECKING, Literal

from millpond._events import logger
from millpond._sqlite._files import OWNER_ONLY, make_database
from millpond._sqlite._gate import Gate
from millpond._sqlite._trouble import check_place, damaged, translate, translate_os_error
from millpond._version import __version__
from millpond.errors import EngineError, EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MIGRATIONS: tuple[Callable[[sqlite3.Connection], object], ...] = ()
"""Each brings the file from its place's number (1, 2, …) to the next. It finds only the tables of the parts in use."""

WAL_LIMIT = 4 << 20
"""Bytes of the '-wal' file from which on a checkpoint is due."""

APPLICATION_ID = 0x4D496C6C
"""In the file's header, so that no other program's database is taken for one of ours ("MIll")."""

_OWN_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS session (number INTEGER PRIMARY KEY AUTOINCREMENT, passport TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS session_pool (session INTEGER, pool INTEGER, PRIMARY KEY (session, pool)) WITHOUT ROWID;
"""

LOOK = 0.1
"""Seconds between two looks whether the path still names our file (5 us each, which a transaction would feel)."""

STUCK = 30.0
"""Seconds to wait for the gate at an opening, or a write that nobody else has queued, before it is given up."""

NOTICE = 1.0
"""Seconds after which the log says who is in the way."""

_PATIENCE = 5.0
"""Seconds to wait for the gate at a close, before the connection is left to the end of the process."""

_FORK_PATIENCE = 1.0


class FileReplaced(EngineError):
    """The file was deleted or replaced while in use."""


class Transaction:
    """What `writing()` and `reading()` give: SQL, and afterwards the outcome."""

    __slots__ = ("committed", "execute", "executemany")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.committed: bool | None = None
        """None while it runs; then whether its changes were made. Definite, also after an exception."""


class Database:
    """The connection of this process to the file at `path`, for all its threads, one at a time.

    `tables` are SQL scripts that create what is missing (`CREATE TABLE IF NOT EXISTS …`); `mode` are the permissions of
    a file that is made. Raises `EngineError` when the
    file cannot be used, in words. Only `synchronous="FULL"` survives power loss without losing the last transactions;
    a crash of the process loses nothing either way.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tables: Iterable[str] = (),
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        migrations: Sequence[Callable[[sqlite3.Connection], object]] = MIGRATIONS,
        busy_timeout: float = 5.0,
        mode: int = OWNER_ONLY,
    ) -> None:
        if synchronous not in ("NORMAL", "FULL"):
            raise ValueError(f"synchronous must be 'NORMAL' or 'FULL', not {synchronous!r}")
        if os.fspath(path) in ("", ":memory:"):
            raise ValueError(f"a shared database needs a file, not {os.fspath(path)!r}; use the memory engine instead")
        self.path = os.path.realpath(path)
        """With links resolved, as SQLite does it: the files beside it are found by this name."""
        check_place(self.path)
        try:
            make_database(self.path, mode)
        except OSError as error:
            raise translate_os_error(error, self.path) from error
        self._tables = (_OWN_TABLES, *tables)
        self._synchronous = synchronous
        self._migrations = tuple(migrations)
        self._busy_timeout = busy_timeout
        self._use = threading.RLock()  # taken inside the gate, or alone; the gate is never awaited with it
        self._connection: sqlite3.Connection | None = None
        self._key = (0, 0)
        self._opened = 0
        self._seen = 0.0  # when the path was last seen to name our file
        self._wal_left = 0  # what the last checkpoint had to leave, because of a reader
        self._is_closed = False
        self._is_inside_for_fork = False
        self.gate = Gate(self.path)
        try:
            self._open()
        except BaseException:
            self._is_closed = True
            self.gate.close()
            raise
        _state.databases.add(self)

    # -- use ----------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """Run the body in one transaction behind the gate (entered here, unless this thread is inside).

        Raise `EngineUnavailable`, which says who is in the way, when the gate does not open for `STUCK` seconds.
        Commits at the end; rolls back on any exception, Ctrl-C included. An error of SQLite leaves as `EngineError`,
        with its sqlite3 exception as the cause.
        """
        with self._inside(), self._using() as connection:
            if _is_open(connection):
                raise RuntimeError(f"a transaction on {self.path!r} is open in this thread; end it before writing()")
            if time.monotonic() - self._seen > LOOK:
                self._refuse_replaced_file()
            transaction = Transaction(connection)
            is_ending = False
            pid = os.getpid()
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield transaction
                is_ending = True
                _refuse_child(pid, self.path)
                connection.execute("COMMIT")
                transaction.committed = True
            except BaseException as error:
                if pid != os.getpid():
                    raise  # in a forked child: the transaction is the parent's
                if _is_open(connection):
                    _roll_back(connection)
                    transaction.committed = False
                else:  # either nothing was begun, SQLite rolled back itself, or a signal came just after the commit
                    transaction.committed = is_ending and not isinstance(error, sqlite3.Error)
                if isinstance(error, sqlite3.Error):
                    self._raise(error)
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Run the body on one unchanging view of the database, without the gate. Not inside `writing()`."""
        with self._using() as connection:
            if _is_open(connection):
                raise RuntimeError(f"a transaction on {self.path!r} is open in this thread; use that to read")
            transaction = Transaction(connection)
            pid = os.getpid()
            try:
                connection.execute("BEGIN")
                yield transaction
            except sqlite3.Error as error:
                self._raise(error)
                raise
            finally:
                if pid == os.getpid() and _is_open(connection):
                    _roll_back(connection)
                transaction.committed = False

    @contextlib.contextmanager
    def glancing(self) -> Iterator[Transaction]:
        """Run single statements that read, each on the view of its moment: `reading()` without its cost."""
        with self._using() as connection:
            if _is_open(connection):
                raise RuntimeError(f"a transaction on {self.path!r} is open in this thread; use that to read")
            try:
                yield Transaction(connection)
            except sqlite3.Error as error:
                self._raise(error)
                raise

    def data_version(self) -> tuple[int, int]:
        """Return what changes when *another* connection has committed something (or this one was opened anew)."""
        with self._using() as connection:
            try:
                return self._opened, connection.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                self._raise(error)
                raise

    def checkpoint_if_large(self, limit: int = WAL_LIMIT, *, is_urgent: bool = False) -> bool:
        """Move the '-wal' file into the database when it has grown past `limit` bytes; tell whether it is empty now.

        To be called after a write. A reader on an old view makes it do less, never fail or wait; then the next
        attempt comes when the file has grown by `limit` again.
        """
        size = self._wal_size()
        if size < limit or is_urgent:
            self._wal_left = 0
        if size < self._wal_left + limit:
            return False
        with self._inside(), self._using() as connection:
            try:
                # Behind the gate only readers could keep us waiting, and must not.
                connection.execute("PRAGMA busy_timeout = 0")
                try:
                    _, frames, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    if frames == moved:
                        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    connection.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout * 1000)}")
            except sqlite3.Error as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    self._raise(error)
        self._wal_left = self._wal_size()
        return self._wal_left == 0

    def check_format(self) -> None:
        """Raise `EngineError` when a newer Millpond has migrated the file since it was opened."""
        with self.reading() as transaction:
            self._read_format(transaction)

    def close(self) -> None:
        """Close, behind the gate: the last one of all processes moves the WAL into the database and deletes it.

        When the gate does not open for a while (a stopped process), the connection is left to the end of this process,
        which loses nothing. A second call does nothing.
        """
        self._close(_PATIENCE)

    def __repr__(self) -> str:
        return f"<Database {self.path!r}{' closed' if self._is_closed else ''}>"

    # -- open and close -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        if self.gate.is_inside:
            yield
            return
        try:
            self._enter()
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self.gate.is_inside:
            self.gate.leave()

    def _enter(self) -> None:
        """Enter the gate, or say who is inside."""
        if self.gate.try_enter():
            return
        since = time.monotonic()
        if self.gate.enter_within(min(NOTICE, STUCK)):
            return
        obstacle = self.gate.obstacle(time.monotonic() - since)
        logger.warning("%s is waited for: %s", self.path, obstacle, extra={"millpond": {"path": self.path}})
        if not self.gate.enter_within(STUCK - NOTICE):
            raise EngineUnavailable(
                f"{self.path!r} cannot be used now: {self.gate.obstacle(time.monotonic() - since)}; nothing was changed"
            )

    @contextlib.contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        while True:
            with self._use:
                if self._connection is not None:
                    yield self._connection
                    return
            self._open()

    def _open(self) -> None:
        """Connect, if there is no connection: at first, and again after a fork."""
        with self._inside(), self._use:
            if self._is_closed:
                raise RuntimeError(f"{self.path!r} was closed; open it again")
            if self._connection is None:
                if self._opened:
                    self._refuse_replaced_file()
                self._connection = self._connect()
                self._opened += 1

    def _connect(self) -> sqlite3.Connection:
        try:
            found = os.stat(self.path)
            if (found.st_dev, found.st_ino) in _state.crossed:
                raise EngineError(
                    f"cannot open {self.path!r} in process {os.getpid()}: it was forked inside a transaction on "
                    "that file, or while its gate was blocked; fork outside of it, or start processes by spawn"
                )
        except FileNotFoundError:
            pass
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(
                self.path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
            )
            self._prepare(connection)
            found = os.stat(self.path)
            self._key = (found.st_dev, found.st_ino)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                self._raise(error)
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Look first, so that a file that is not ours is left as it is; then set up."""
        before = self._read_format(connection)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise EngineError(
                f"the file system of {self.path!r} cannot share memory between processes (SQLite refused WAL and "
                f"stayed at {mode!r}); use a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
        known = len(self._migrations) + 1
        connection.execute("BEGIN IMMEDIATE")
        try:
            for number in range(before or known, known):
                self._migrations[number - 1](connection)
            for script in self._tables:
                for statement in statements(script):
                    connection.execute(statement)
            if before != known:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                values = [("format", known), ("version", __version__)]
                connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
            connection.execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise

    def _read_format(self, connection: sqlite3.Connection | Transaction) -> int | None:
        """Return the format number of the file, None when it is empty; raise when it is not ours or too new."""
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION_ID:
            if application or connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise EngineError(f"{self.path!r} is the database of another program; give Millpond a file of its own")
            return None
        row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        found = row[0] if row else None
        known = len(self._migrations) + 1
        if type(found) is not int or found < 1:
            raise damaged(self.path, f"its format is {found!r}")
        if found > known:
            raise EngineError(
                f"{self.path!r} was written by a newer Millpond (format {found}, this one knows up to {known}): "
                "upgrade millpond"
            )
        return found

    def _close(self, patience: float) -> None:
        if self._is_closed:
            return
        entered, is_deleted = self._enter_to_close(patience)
        try:
            with self._use:
                self._is_closed = True
                connection, self._connection = self._connection, None
                if connection is not None:
                    if self.gate.is_inside or is_deleted:
                        connection.close()
                    else:
                        _keep_for_ever(connection)
        finally:
            if entered:
                self.gate.leave()
        _state.databases.discard(self)
        if not self.gate.is_inside:
            self.gate.close()

    def _enter_to_close(self, patience: float) -> tuple[bool, bool]:
        """Enter the gate unless inside; tell whether that was done, and whether there is no file left to protect."""
        try:
            return not self.gate.is_inside and self.gate.enter_within(patience), False
        except EngineError:
            return False, not os.path.exists(self.path)

    def is_replaced(self) -> bool:
        """Return whether the path names another file by now, or none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._key

    def _refuse_replaced_file(self) -> None:
        if self.is_replaced():
            raise FileReplaced(
                f"{self.path!r} was {'replaced' if os.path.exists(self.path) else 'deleted'} while in use; nothing can "
                "be saved in it any more: close this pool and open it again"
            )
        self._seen = time.monotonic()

    def _wal_size(self) -> int:
        try:
            return os.stat(self.path + "-wal").st_size
        except OSError:
            return 0

    def _raise(self, error: sqlite3.Error) -> None:
        """Raise what a person can read; a mistake of the calling code is let through as it is."""
        if not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError):
            raise translate(error, self.path) from error

    # -- fork ---------------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Close the connection and keep everybody, here and elsewhere, out until `_after_fork()`."""
        self._is_inside_for_fork, is_deleted = self._enter_to_close(_FORK_PATIENCE)
        if self._use.acquire(timeout=_FORK_PATIENCE):
            connection = self._connection
            if connection is not None and (self.gate.is_inside or is_deleted) and not _is_open(connection):
                self._connection = None
                connection.close()

    def _after_fork(self) -> None:
        """Go on in the parent: open again at once, so that nobody has to wait for the gate with another lock held."""
        try:
            if self._connection is None and self._is_inside_for_fork and not self._is_closed:
                with contextlib.suppress(EngineError):  # whoever needs it next will hear why
                    self._open()
        finally:
            with contextlib.suppress(RuntimeError):  # another thread kept us from taking it
                self._use.release()
            if self._is_inside_for_fork:
                self._is_inside_for_fork = False
                self.gate.leave()

    def _in_child(self) -> None:
        self._use = threading.RLock()
        connection, self._connection = self._connection, None
        if connection is not None:
            _state.crossed.add(self._key)
            _keep_for_ever(connection)


class _State:
    """The databases of this process, and the files that it must not open because it was forked inside of them."""

    def __init__(self) -> None:
        self.databases: set[Database] = set()
        self.crossed: set[tuple[int, int]] = set()

    def before_fork(self) -> None:
        for database in list(self.databases):
            database._before_fork()

    def after_fork(self) -> None:
        for database in list(self.databases):
            database._after_fork()

    def in_child(self) -> None:
        for database in list(self.databases):
            database._in_child()

    def at_exit(self) -> None:
        for database in list(self.databases):
            database._close(_FORK_PATIENCE)


_state = _State()
os.register_at_fork(before=_state.before_fork, after_in_parent=_state.after_fork, after_in_child=_state.in_child)
atexit.register(_state.at_exit)


def statements(script: str) -> Iterator[str]:
    """Split a script, since `executescript()` would commit first."""
    statement = ""
    for piece in script.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            if statement.strip() != ";":
                yield statement.strip()
            statement = ""


def _is_open(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction


def _roll_back(connection: sqlite3.Connection) -> None:
    if _is_open(connection):
        with contextlib.suppress(sqlite3.Error):  # it has then rolled back already
            connection.execute("ROLLBACK")


def _refuse_child(pid: int, path: str) -> None:
    if pid != os.getpid():
        raise RuntimeError(f"a transaction on {path!r} was begun before a fork: only the parent can end it")


def _keep_for_ever(connection: sqlite3.Connection) -> None:
    """See that the interpreter never closes it, not even when it ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

"""The database: transactions and their outcome, checkpoints, format, trouble and fork."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from pathlib import Path

import pytest

from millpond._sqlite import Database, LiveFile, Passport, Verdict, _database, enrol, enrolled, strike, verdict
from millpond._sqlite._database import statements
from millpond.errors import EngineError, EngineUnavailable

sys.path.insert(0, str(Path(__file__).parent))
import sqlite_programs as programs

start = programs.start

TABLE = "CREATE TABLE IF NOT EXISTS t (a INTEGER UNIQUE, b)"


@pytest.fixture
def database(tmp_path):
    made = Database(tmp_path / "p.db", tables=[TABLE])
    yield made
    made.close()


@pytest.fixture
def patient(tmp_path):
    """One that would wait an hour for what SQLite calls busy, so that a wait shows as a hang."""
    made = Database(tmp_path / "p.db", tables=[TABLE], busy_timeout=3600)
    yield made
    made.close()


def rows(database: Database) -> list[int]:
    with database.reading() as transaction:
        return [row[0] for row in transaction.execute("SELECT a FROM t ORDER BY a")]


# -- transactions ------------------------------------------------------------------------------------------------------


def test_what_is_written_is_there_for_others(database):
    with database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (?)", (1,))
        assert transaction.committed is None
    assert transaction.committed is True
    other = Database(database.path)
    assert rows(other) == [1]
    other.close()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_any_exception_rolls_back_and_gets_through(database, error):
    with pytest.raises(error), database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
        raise error
    assert transaction.committed is False
    assert rows(database) == []
    assert database.gate.try_enter()
    database.gate.leave()


def test_an_interrupt_just_after_the_commit_says_that_it_was_made(database, monkeypatch):
    class Interrupted:
        """A connection on which a signal arrives with the end of COMMIT."""

        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            return getattr(self.real, name)

        def execute(self, sql, *args):
            result = self.real.execute(sql, *args)
            if sql == "COMMIT":
                raise KeyboardInterrupt
            return result

    real = database._connection
    database._connection = Interrupted(real)
    with pytest.raises(KeyboardInterrupt), database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
    database._connection = real
    assert transaction.committed is True
    assert rows(database) == [1]


def test_a_commit_that_fails_is_rolled_back_and_says_so(database):
    with database.writing() as transaction:
        transaction.execute("PRAGMA foreign_keys")
        transaction.execute("CREATE TABLE child (a REFERENCES t(a) DEFERRABLE INITIALLY DEFERRED)")
    with database._using() as connection:
        connection.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError), database.writing() as transaction:
        transaction.execute("INSERT INTO child VALUES (77)")  # fails at COMMIT only
    assert transaction.committed is False
    with database.reading() as reader:
        assert reader.execute("SELECT count(*) FROM child").fetchone() == (0,)


def test_a_mistake_of_the_caller_is_not_dressed_up(database):
    with database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError), database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
    with pytest.raises(sqlite3.ProgrammingError), database.reading() as reader:
        reader.execute("SELECT ?", ())
    with pytest.raises(EngineError, match="no such table"), database.reading() as reader:
        reader.execute("SELECT * FROM nowhere")


def test_a_writer_inside_the_gate_does_not_enter_again(database):
    with database.gate:
        with database.writing() as transaction:
            transaction.execute("INSERT INTO t (a) VALUES (1)")
        assert database.gate.is_inside
    assert not database.gate.is_inside


def test_transactions_do_not_nest(database):
    with database.writing():
        with pytest.raises(RuntimeError, match="is open in this thread"), database.writing():
            pass
        with pytest.raises(RuntimeError, match="is open in this thread"), database.reading():
            pass
    with database.reading(), pytest.raises(RuntimeError, match="is open in this thread"), database.writing():
        pass


def test_a_reader_in_another_thread_never_sees_half_a_transaction(database):
    seen: list[list[int]] = []
    with database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
        thread = threading.Thread(target=lambda: seen.append(rows(database)))
        thread.start()
        thread.join(0.05)
        transaction.execute("INSERT INTO t (a) VALUES (2)")
    thread.join()
    assert seen == [[1, 2]]


def test_a_view_does_not_change_while_it_is_read(database):
    other = Database(database.path)
    with database.reading() as reader:
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with other.writing() as transaction:
            transaction.execute("INSERT INTO t (a) VALUES (1)")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert rows(database) == [1]
    other.close()


def test_the_data_version_changes_when_another_connection_wrote(database):
    other = Database(database.path)
    before = database.data_version()
    with database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
    assert database.data_version() == before
    with other.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (2)")
    assert database.data_version() != before
    other.close()


def test_the_settings_are_as_promised(tmp_path):
    for synchronous, number in (("NORMAL", 1), ("FULL", 2)):
        database = Database(tmp_path / "p.db", synchronous=synchronous)  # type: ignore[arg-type]
        with database._using() as connection:
            found = {
                name: connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "mmap_size", "busy_timeout")
            }
        assert found == {
            "journal_mode": "wal", "synchronous": number, "wal_autocheckpoint": 0, "mmap_size": 0, "busy_timeout": 5000,
        }  # fmt: skip
        database.close()
    with pytest.raises(ValueError, match="'OFF'"):
        Database(tmp_path / "p.db", synchronous="OFF")  # type: ignore[arg-type]


def test_a_database_reached_by_a_link_is_the_same_one(database, tmp_path):
    os.symlink(database.path, tmp_path / "link.db")
    other = Database(tmp_path / "link.db")
    assert other.path == database.path
    with other.gate:
        assert database.gate.is_inside
    other.close()
    assert not (tmp_path / "link.db-gate").exists()


# -- checkpoints and close ---------------------------------------------------------------------------------------------


def fill(database: Database, count: int = 20) -> None:
    with database.writing() as transaction:
        transaction.executemany("INSERT INTO t (b) VALUES (zeroblob(4000))", [()] * count)


def test_a_large_wal_is_moved_into_the_database(database):
    fill(database)
    assert not database.checkpoint_if_large()
    assert os.path.getsize(database.path + "-wal") > 80_000
    assert database.checkpoint_if_large(limit=50_000)
    assert os.path.getsize(database.path + "-wal") == 0
    assert not database.checkpoint_if_large(limit=50_000)


def test_a_long_reader_delays_a_checkpoint_and_neither_fails_nor_stalls_it(patient):
    other = Database(patient.path)
    with other.reading() as reader:
        reader.execute("SELECT count(*) FROM t").fetchone()
        fill(patient)
        assert not patient.checkpoint_if_large(limit=50_000)
        calls = []
        with patient._using() as connection:
            connection.set_trace_callback(calls.append)
        assert not patient.checkpoint_if_large(limit=50_000)
        assert calls == []  # it has not grown since: no second attempt
        fill(patient)
        assert not patient.checkpoint_if_large(limit=50_000)
        assert any("wal_checkpoint" in call for call in calls)
    fill(patient)
    assert patient.checkpoint_if_large(limit=50_000)
    with patient._using() as connection:
        assert connection.execute("PRAGMA busy_timeout").fetchone() == (3_600_000,)
    other.close()


def test_a_reader_of_the_latest_view_does_not_stall_a_checkpoint(patient):
    """Everything can be moved then, but the WAL not emptied: that must not be waited for."""
    other = Database(patient.path)
    fill(patient)
    with other.reading() as reader:
        reader.execute("SELECT count(*) FROM t").fetchone()
        assert not patient.checkpoint_if_large(limit=50_000)
    fill(patient, 60)  # the file was used again from its start, and now grows
    assert patient.checkpoint_if_large(limit=50_000)
    other.close()


def test_a_database_whose_folder_was_deleted_can_be_closed_and_forked(tmp_path, start):
    program = start(
        """
        import shutil
        os.mkdir(sys.argv[1])
        databases = [Database(sys.argv[1] + "/p.db"), Database(sys.argv[1] + "/q.db")]
        shutil.rmtree(sys.argv[1])
        databases[0].close()
        if os.fork() == 0:
            say("child")
            os._exit(0)
        os.wait()
        say("parent")
        """,
        tmp_path / "folder",
    )
    assert program.line() == "child"
    assert program.line() == "parent"
    assert program.end() == 0


def test_the_last_close_removes_the_wal_and_happens_behind_the_gate(database, start, monkeypatch):
    monkeypatch.setattr(_database, "_PATIENCE", 3600)
    program = start(
        "gate = Gate(sys.argv[1]); gate.enter(); say('inside'); hear(); gate.leave(); hear()", database.path
    )
    program.line()
    thread = threading.Thread(target=database.close)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and os.path.exists(database.path + "-wal")
    program.tell()
    thread.join()
    assert not os.path.exists(database.path + "-wal")
    database.close()
    with pytest.raises(RuntimeError, match="was closed"), database.writing():
        pass
    with pytest.raises(RuntimeError, match="was closed"):
        database.data_version()


def test_a_close_does_not_wait_for_ever_for_a_stopped_process(tmp_path, start, monkeypatch):
    monkeypatch.setattr(_database, "_PATIENCE", 0.05)
    database = Database(tmp_path / "p.db")
    program = start("gate = Gate(sys.argv[1]); gate.enter(); say('inside'); hear()", database.path)
    program.line()
    program.stop()
    database.close()


def test_an_exit_without_close_closes(tmp_path, start):
    program = start("database = Database(sys.argv[1]); say(os.path.exists(sys.argv[1] + '-wal'))", tmp_path / "p.db")
    assert program.line() == "True"
    assert program.end() == 0
    assert not (tmp_path / "p.db-wal").exists()


def test_descriptors_are_given_back(tmp_path):
    Database(tmp_path / "p.db").close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        database = Database(tmp_path / "p.db")
        live = LiveFile(database.path)
        enrol(database, live)
        live.close()
        database.close()
    assert len(os.listdir("/proc/self/fd")) == before


# -- format and tables -------------------------------------------------------------------------------------------------


def test_a_new_file_has_the_format_and_the_version(database):
    with database.reading() as reader:
        meta = dict(reader.execute("SELECT key, value FROM meta"))
    assert meta["format"] == 1 and meta["version"].count(".") == 2


def test_parts_bring_their_tables_one_after_the_other(database):
    other = Database(database.path, tables=["CREATE TABLE IF NOT EXISTS u (a); CREATE INDEX IF NOT EXISTS ui ON u (a)"])
    with other.reading() as reader:
        names = {row[0] for row in reader.execute("SELECT name FROM sqlite_master")}
    assert {"meta", "session", "t", "u", "ui"} <= names
    other.close()


def test_a_script_is_split_at_its_statements():
    script = "CREATE TABLE a (b DEFAULT ';');  -- one; two\nCREATE TRIGGER c AFTER INSERT ON a BEGIN SELECT 1; SELECT 2; END;\n"
    assert [text.split()[0:2] for text in statements(script)] == [["CREATE", "TABLE"], ["--", "one;"]]
    assert list(statements("SELECT 1")) == ["SELECT 1;"]


def test_a_newer_format_is_refused_and_left_alone(tmp_path):
    def nothing(connection):
        pass

    Database(tmp_path / "p.db", migrations=[nothing, nothing]).close()
    with pytest.raises(
        EngineError,
        match=r"p\.db' was written by a newer Millpond \(format 3, this one knows up to 1\): upgrade millpond",
    ):
        Database(tmp_path / "p.db")


def test_a_migration_under_ones_feet_is_noticed(database):
    database.check_format()
    Database(database.path, migrations=[lambda connection: None]).close()
    with pytest.raises(EngineError, match="format 2, this one knows up to 1"):
        database.check_format()


def migrate_1(connection):
    connection.execute("ALTER TABLE t ADD COLUMN c DEFAULT 'one'")


def migrate_2(connection):
    connection.execute("UPDATE t SET c = c || ', two'")


def test_migrations_run_in_order_from_where_the_file_is(database):
    with database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
    database.close()
    for _ in range(2):  # the second time there is nothing to do
        migrated = Database(database.path, migrations=[migrate_1, migrate_2])
        with migrated.reading() as reader:
            assert reader.execute("SELECT c FROM t").fetchone() == ("one, two",)
            assert reader.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == (3,)
        migrated.close()


def test_migrations_succeed_or_fail_together(database):
    database.close()

    def fail(connection):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Database(database.path, migrations=[migrate_1, fail])
    again = Database(database.path)
    with again.reading() as reader:
        assert len(reader.execute("PRAGMA table_info(t)").fetchall()) == 2
        assert reader.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == (1,)
    again.close()


def test_a_new_file_needs_no_migration(tmp_path):
    database = Database(tmp_path / "p.db", migrations=[migrate_1])
    with database.reading() as reader:
        assert reader.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == (2,)
    database.close()


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "p.db").write_text("Dear diary, " * 100)
    with pytest.raises(EngineError, match=r"p\.db' is not a SQLite database"):
        Database(tmp_path / "p.db")
    assert (tmp_path / "p.db").read_text().startswith("Dear diary")


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path):
    foreign = sqlite3.connect(tmp_path / "p.db")
    foreign.execute("CREATE TABLE meta (key, value)")
    foreign.commit()
    foreign.close()
    content = (tmp_path / "p.db").read_bytes()
    with pytest.raises(EngineError, match="database of another program; give Millpond a file of its own"):
        Database(tmp_path / "p.db")
    assert (tmp_path / "p.db").read_bytes() == content


def test_a_damaged_database_is_told(database):
    fill(database, 50)
    database.close()
    with open(database.path, "r+b") as file:
        for page in range(1, 40):
            file.seek(4096 * page)
            file.write(os.urandom(2048))
    with pytest.raises(EngineError, match=r"p\.db' is damaged"):
        broken = Database(database.path, tables=[TABLE])
        try:
            with broken.reading() as reader:
                reader.execute("SELECT * FROM t").fetchall()
        finally:
            broken.close()


@pytest.mark.parametrize("value", ["'x'", "NULL", "x'00ff'", "0", "1.5"])
def test_a_format_that_makes_no_sense_is_told(database, value):
    with database.writing() as writer:
        writer.execute(f"UPDATE meta SET value = {value} WHERE key = 'format'")
    with pytest.raises(EngineError, match=r"p\.db' is damaged \(its format is "):
        Database(database.path, tables=[TABLE])


def test_a_file_that_lost_its_format_is_told(database):
    with database.writing() as writer:
        writer.execute("DELETE FROM meta")
    with pytest.raises(EngineError, match=r"p\.db' is damaged \(its format is None\)"):
        Database(database.path, tables=[TABLE])


def test_a_full_disk_is_told_and_nothing_is_changed(database):
    with database._using() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(EngineUnavailable, match="no space left .* free some"), database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (1)")
        transaction.executemany("INSERT INTO t (b) VALUES (zeroblob(4000))", [()] * 20)
    assert transaction.committed is False
    assert rows(database) == []
    with database.writing() as transaction:
        transaction.execute("INSERT INTO t (a) VALUES (2)")
    assert rows(database) == [2]


def test_a_disk_that_refuses_to_write_is_told_and_nothing_is_changed(tmp_path, start):
    """A limit on file sizes makes the WAL fail in the middle of a real commit."""
    program = start(
        """
        import resource
        from millpond.errors import EngineUnavailable
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        database = Database(sys.argv[1], tables=["CREATE TABLE IF NOT EXISTS t (a)"])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            with database.writing() as transaction:
                transaction.executemany("INSERT INTO t VALUES (zeroblob(4000))", [()] * 50)
        except EngineUnavailable as error:
            say(transaction.committed, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with database.writing() as transaction:
            transaction.execute("INSERT INTO t VALUES (1)")
            say(transaction.execute("SELECT count(*) FROM t").fetchone()[0])
        """,
        tmp_path / "p.db",
    )
    answer = program.line()
    assert answer.startswith("False ") and ("check the disk" in answer or "no space" in answer), answer
    assert program.line() == "1"


def test_a_foreign_program_with_a_transaction_is_told(tmp_path):
    database = Database(tmp_path / "p.db", busy_timeout=0.05)
    foreign = sqlite3.connect(tmp_path / "p.db", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with (
        pytest.raises(EngineUnavailable, match=r"p\.db' is locked by another program"),
        database.writing() as transaction,
    ):
        pass
    assert database.gate.try_enter()
    database.gate.leave()
    foreign.execute("ROLLBACK")
    with database.writing() as transaction:
        pass
    assert transaction.committed is True
    foreign.close()
    database.close()


def test_a_file_that_was_deleted_or_replaced_is_refused(database):
    os.unlink(database.path)
    with pytest.raises(EngineError, match="was deleted while in use"), database.writing():
        pass
    Path(database.path).write_text("")
    with pytest.raises(EngineError, match="was replaced while in use"), database.writing():
        pass


def test_a_file_system_without_shared_memory_is_told(tmp_path, monkeypatch):
    real = sqlite3.connect

    class NoWal(sqlite3.Connection):
        def execute(self, sql, *args):
            return super().execute(sql.replace("journal_mode = WAL", "journal_mode"), *args)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, factory=NoWal, **k))
    with pytest.raises(EngineError, match="cannot share memory between processes .* 'delete'"):
        Database(tmp_path / "p.db")


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_sessions_are_numbered_once_and_for_all(database):
    live = LiveFile(database.path)
    first = enrol(database, live)
    second = enrol(database, live)
    with database.writing() as transaction:
        assert set(enrolled(transaction)) == {first, second}
        strike(transaction, second)
    live.unlock(second)
    assert enrol(database, live) == second + 1
    with database.reading() as reader:
        passport = Passport.decode(enrolled(reader)[first])
    assert passport == Passport.of_this_process(live)
    assert verdict(passport, first, live) is Verdict.ALIVE
    live.close()


def test_a_session_that_could_not_be_committed_leaves_no_lock(database, monkeypatch):
    live = LiveFile(database.path)
    honest = LiveFile.lock

    def interrupted(self, number):
        honest(self, number)
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveFile, "lock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        enrol(database, live)
    assert not live._numbers
    live.close()


# -- fork --------------------------------------------------------------------------------------------------------------

LOCKS = """
def locks(path, pid):
    inodes = {os.stat(path + end).st_ino for end in ("", "-shm")}
    with open("/proc/locks") as file:
        fields = [line.split() for line in file]
    return sum(int(f[4]) == pid and int(f[5].split(":")[2]) in inodes for f in fields if f[1] == "POSIX")
"""


def test_after_a_fork_both_go_on_each_with_locks_of_its_own(tmp_path, start):
    """Beside an inherited connection, SQLite in the child would ask the kernel for no lock at all."""
    program = start(
        LOCKS
        + """
database = Database(sys.argv[1], tables=["CREATE TABLE IF NOT EXISTS t (a)"])
def add(word):
    with database.writing() as transaction:
        transaction.execute("INSERT INTO t VALUES (?)", (word,))
add("before")
version = database.data_version()
pid = os.fork()
if pid == 0:
    add("child")
    say("child", locks(sys.argv[1], os.getpid()))
    sys.exit()
os.waitpid(pid, 0)
add("parent")
say("parent", locks(sys.argv[1], os.getpid()), database.data_version() != version)
with database.reading() as reader:
    say(*[row[0] for row in reader.execute("SELECT a FROM t")])
        """,
        tmp_path / "p.db",
    )
    child, parent = program.line().split(), program.line().split()
    assert child[0] == "child" and int(child[1]) >= 1
    assert parent[0] == "parent" and int(parent[1]) >= 1 and parent[2] == "True"
    assert program.line() == "before child parent"
    assert program.end() == 0


def test_a_child_forked_inside_a_transaction_cannot_end_it_nor_open_the_file(tmp_path, start):
    program = start(
        """
        from millpond.errors import EngineError
        database = Database(sys.argv[1], tables=["CREATE TABLE IF NOT EXISTS t (a)"])
        pid = 0
        try:
            with database.writing() as transaction:
                transaction.execute("INSERT INTO t VALUES (1)")
                pid = os.fork()
        except RuntimeError as error:
            say(error)
        if pid == 0:
            for act in (database.data_version, lambda: Database(sys.argv[1])):
                try:
                    act()
                    say("no error")
                except EngineError as error:
                    say(error)
            sys.exit()
        os.waitpid(pid, 0)
        with database.reading() as reader:
            say("parent", transaction.committed, reader.execute("SELECT count(*) FROM t").fetchone()[0])
        """,
        tmp_path / "p.db",
    )
    assert "begun before a fork: only the parent can end it" in program.line()
    assert "it was forked inside a transaction" in program.line()
    assert "it was forked inside a transaction" in program.line()
    assert program.line() == "parent True 1"
    assert program.end() == 0


def test_a_fork_waits_for_the_transactions_of_other_threads(tmp_path, start):
    program = start(
        """
        import warnings; warnings.simplefilter("ignore")
        from millpond._sqlite import _database
        _database._FORK_PATIENCE = 3600
        database = Database(sys.argv[1], tables=["CREATE TABLE IF NOT EXISTS t (a)"])
        enough = threading.Event()
        def write():
            while not enough.is_set():
                with database.writing() as transaction:
                    transaction.execute("INSERT INTO t VALUES (1)")
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                with database.writing() as transaction:
                    transaction.execute("INSERT INTO t VALUES (2)")
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        enough.set()
        thread.join()
        with database.reading() as reader:
            say(reader.execute("SELECT count(*) FROM t WHERE a = 2").fetchone()[0])
        """,
        tmp_path / "p.db",
    )
    assert program.line() == "20"
    assert program.end() == 0

"""A pool that cannot be read harms no other pool of its file; and who buries a process reads only what it used."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import sys
from pathlib import Path

import pytest

from millpond import EngineError, ResourcePool
from millpond.resources._rules.commands import Tick
from millpond.resources.engines.sqlite import SqliteEngine
from waiting import HANG, until

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "sqlite"))
import sqlite_programs as programs

start = programs.start

HOLDER = """
from millpond import ResourcePool
pools = [ResourcePool(name, "sqlite:///" + sys.argv[1]) for name in sys.argv[2:]]
grants = [pool.acquire() for pool in pools]
say("held")
hear()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pools.db"


def opened(file: Path, name: str) -> ResourcePool:
    pool = ResourcePool(name, f"sqlite:///{file}")
    pool.add("a", exist_ok=True)
    return pool


def engine_of(pool: ResourcePool) -> SqliteEngine:
    engine = pool._engine
    assert isinstance(engine, SqliteEngine)
    return engine


def spoil(file: Path, pool: str, what: str) -> None:
    """Write what no version of the library can read. With the library's own gate, since others use the file."""
    script = {
        "image": "UPDATE resource_pool SET image = x'c1c1' WHERE name = ?",
        "log": "UPDATE resource_log SET body = x'c1c1' WHERE row / (1 << 40) = (SELECT id FROM resource_pool WHERE name = ?)",
        "change": "UPDATE resource_log SET body = x'9193010091a178' "
        "WHERE row / (1 << 40) = (SELECT id FROM resource_pool WHERE name = ?)",
        "base": "UPDATE resource_pool SET base = 'x' WHERE name = ?",
        "all rows": "DELETE FROM resource_log WHERE row / (1 << 40) = (SELECT id FROM resource_pool WHERE name = ?)",
    }[what]
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute(script, (pool,))
    connection.close()


@pytest.mark.parametrize("what", ["image", "log", "change", "base"])
def test_a_pool_that_cannot_be_read_harms_no_other_and_can_be_deleted(file, what, start, caplog):
    caplog.set_level(logging.WARNING, "millpond")
    opened(file, "one").close()
    with opened(file, "two") as two:
        program = start(HOLDER, file, "one", "two")
        program.line()
        spoil(file, "one", what)
        program.kill()  # it held something in both
        two.acquire(timeout=HANG).release()
        with ResourcePool("one", f"sqlite:///{file}") as one:
            with pytest.raises(EngineError, match=r"pool 'one' cannot be read.*delete_pool\(force=True\)"):
                one.acquire(timeout=HANG)
            with pytest.raises(EngineError, match="cannot be read"):
                one.holders()
            two.acquire(timeout=HANG).release()
            one.admin.delete_pool(force=True)
            one.add("b")
            assert one.acquire(timeout=HANG).resource == "b"
            two.acquire(timeout=HANG).release()
    until(lambda: "what a dead process held in pool 'one' is left as it is" in caplog.text)


def test_a_session_that_cannot_be_read_harms_nobody_and_keeps_what_it_holds(file, start):
    opened(file, "one").close()
    program = start(HOLDER, file, "one")
    program.line()
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE session SET passport = 'junk'")
    with opened(file, "two") as two, ResourcePool("one", f"sqlite:///{file}") as one:
        two.acquire(timeout=HANG).release()
        program.kill()
        with two.acquire():  # batches go on, and nobody buries what nobody can judge
            [holder] = one.holders()
        one.admin.release("a", token=holder.token, reason="it is gone")
        one.acquire(timeout=HANG).release()


def test_a_bad_pool_in_the_same_batch_fails_alone(file):
    with opened(file, "one") as one, opened(file, "two") as two:
        spoil(file, "one", "image")
        spoil(file, "one", "all rows")
        engine = engine_of(two)
        answers: dict[str, object] = {}
        with engine._use:  # both are queued before either is carried out
            engine.apply("one", Tick(), lambda answer: answers.__setitem__("one", answer), block=False)
            engine.apply("two", Tick(), lambda answer: answers.__setitem__("two", answer), block=False)
        until(lambda: len(answers) == 2)
        assert isinstance(answers["one"], EngineError)
        assert not isinstance(answers["two"], Exception)
        one.admin.delete_pool(force=True)


def test_burying_a_process_reads_only_the_pools_that_it_used(file, start):
    names = [f"pool {number}" for number in range(30)]
    for name in names:
        opened(file, name).close()
    program = start(HOLDER, file, names[3], names[7])
    program.line()
    with opened(file, names[3]) as pool:
        known = engine_of(pool)._replicas.pools
        program.kill()
        pool.acquire(timeout=HANG).release()
        assert set(known) == {names[3], names[7]}
    with opened(file, names[7]) as pool:
        pool.acquire(timeout=HANG).release()


def test_a_session_of_an_older_version_is_looked_for_everywhere(file, start):
    for name in ("one", "two"):
        opened(file, name).close()
    program = start(HOLDER, file, "one")
    program.line()
    with opened(file, "two") as two:
        with engine_of(two)._database.writing() as transaction:
            transaction.execute("DELETE FROM session_pool")  # it noted nothing
        program.kill()
        until(lambda: "one" in engine_of(two)._replicas.pools)
    with opened(file, "one") as one:
        one.acquire(timeout=HANG).release()


def test_leaving_reads_no_pool_that_was_not_used(file):
    for number in range(10):
        opened(file, f"pool {number}").close()
    pool = opened(file, "mine")
    engine = engine_of(pool)
    pool.close()
    assert set(engine._replicas.pools) == {"mine"}

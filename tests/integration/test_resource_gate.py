"""A process that is stopped inside the gate of a SQLite file: the others are told who it is, and nobody waits for ever."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond import AcquireTimeout, EngineUnavailable, ResourcePool
from millpond._sqlite import _database
from millpond.errors import EngineError
from millpond.resources._rules.commands import Reply, Tick
from millpond.resources.engines.sqlite import _engine, _queue
from waiting import HANG, until

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "sqlite"))
import sqlite_programs as programs

start = programs.start

INSIDE = "gate = Gate(sys.argv[1]); gate.enter(); say('inside'); hear()"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pools.db"


@pytest.fixture
def pool(file: Path) -> Iterator[ResourcePool]:
    with ResourcePool("boards", f"sqlite:///{file}") as made:
        made.add("a")
        made.add("b")
        yield made


@pytest.fixture
def block(file: Path, start: programs.Starter) -> Callable[[], programs.Program]:
    """Stop a process inside the gate."""

    def stop() -> programs.Program:
        program = start(INSIDE, file)
        assert program.line() == "inside"
        program.stop()
        return program

    return stop


def test_a_call_that_cannot_begin_tells_who_is_in_the_way(pool, block):
    program = block()
    with pytest.raises(AcquireTimeout, match=rf"process {program.pid} \(.*stopped\), for .* s or longer"):
        pool.acquire(name="a", timeout=0.1)
    program.kill()
    pool.acquire(name="a", timeout=HANG).release()
    assert not pool.waiters()


def test_who_waits_in_line_comes_back_when_its_time_is_over(pool, block, monkeypatch):
    monkeypatch.setattr(_queue, "STUCK", 10 * HANG)  # who waits for the engine's own limit hangs
    with pool.acquire(name="a"):
        failed: list[BaseException] = []

        def wait() -> None:
            try:
                pool.acquire(name="a", timeout=1.0)
            except AcquireTimeout as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: pool.waiters() or failed)
        program = block()
        thread.join(HANG)
        assert not thread.is_alive() and len(failed) == 1
        program.kill()
        until(lambda: not pool.waiters())


def test_the_log_says_who_is_in_the_way(pool, block, caplog, monkeypatch):
    monkeypatch.setattr(_engine, "NOTICE", 0.01)
    caplog.set_level(logging.WARNING, "millpond")
    program = block()
    with pytest.raises(AcquireTimeout):
        pool.acquire(name="a", timeout=0.3)
    until(lambda: f"process {program.pid} " in caplog.text)
    program.kill()


def test_a_lease_ends_for_its_holder_and_then_for_everybody(file, block):
    lost = threading.Event()
    with ResourcePool("boards", f"sqlite:///{file}", on_lost=lambda grant: lost.set()) as pool:
        pool.add("a")
        grant = pool.acquire(name="a", lease=0.5)
        program = block()
        assert lost.wait(HANG)
        assert not grant.is_held
        program.kill()
        pool.acquire(name="a", timeout=HANG).release()


def test_opening_a_file_ends_with_an_error_that_tells_who_is_in_the_way(file, pool, block, start, monkeypatch):
    program = block()
    monkeypatch.setattr(_database, "STUCK", 0.1)
    monkeypatch.setattr(_database, "NOTICE", 0.05)
    with pytest.raises(EngineUnavailable, match=rf"process {program.pid} "):
        _database.Database(file)
    program.kill()


def test_a_file_that_does_not_open_holds_up_no_other_file(tmp_path, file, pool, block, start):
    """In one process: the second file opens while the first one is still waited for."""
    program = block()
    opener = start(
        "from millpond import ResourcePool\n"
        "first = threading.Thread(target=lambda: ResourcePool('boards', 'sqlite:///' + sys.argv[1]), daemon=True)\n"
        "first.start()\n"
        "from millpond.resources.engines.sqlite import files\n"
        "while not files.opening: time.sleep(0.001)\n"
        "ResourcePool('boards', 'sqlite:///' + sys.argv[2]).close()\n"
        "say('open', first.is_alive())",
        file,
        tmp_path / "other.db",
    )
    assert opener.line() == "open True"
    program.kill()


def test_deleting_a_pool_ends_with_an_error_that_tells_who_is_in_the_way(pool, block, monkeypatch):
    program = block()
    monkeypatch.setattr(_engine, "STUCK", 0.1)
    with pytest.raises(EngineUnavailable, match=rf"process {program.pid} "):
        pool._engine.drop("boards")
    program.kill()


def test_trouble_with_housekeeping_fails_no_call(pool, monkeypatch):
    answers: list[object] = []

    def fail() -> None:
        pool._engine.apply("boards", Tick(), answers.append, block=False)  # a call that waits at that moment
        raise EngineError("no checkpoint today")

    monkeypatch.setattr(pool._engine._database, "checkpoint_if_large", fail)
    monkeypatch.setattr(_engine, "CHECKPOINT", 0)
    pool._engine._wakeups.wake()
    until(lambda: bool(answers))
    assert isinstance(answers[0], Reply)

"""What was accepted by its byte is not taken away when its offer would lapse, nor when the live file is deleted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millpond import ResourcePool
from millpond._sqlite._url import Place
from millpond.resources._questions import PoolCopy, WholePool
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import HELD, Holder, Settings, Want
from millpond.resources._rules.wire import thaw
from millpond.resources.engines.sqlite._engine import SqliteEngine
from waiting import HANG, until


@pytest.fixture
def engine(tmp_path: Path):
    made = SqliteEngine("sqlite:///x", Place(str(tmp_path / "pools.db")))
    yield made
    made.shut_down()


def run(engine: SqliteEngine, command: do.Command) -> do.Reply:
    answers: list[do.Reply | Exception] = []
    engine.apply("lab", command, answers.append, block=True)
    until(lambda: answers)
    [answer] = answers
    assert isinstance(answer, do.Reply)
    return answer


def test_offers_that_end_together_are_all_spared_whatever_their_order(engine, monkeypatch):
    """The one that was asked for first is offered last: deciding its claim must not let the other lapse."""
    run(engine, do.Configure(Settings(claim=50_000)))
    tokens = {}
    for name in ("a", "b"):
        run(engine, do.Add(name, {}))
        tokens[name] = run(engine, do.Acquire(f"first {name}", "77", 0, Holder(), (Want(f"@{name}"),))).token
        run(engine, do.Acquire(f"then {name}", "78", 0, Holder(), (Want(f"@{name}"),)))
    monkeypatch.setattr(engine._accepted, "is_accepted", lambda token: True)
    run(engine, do.Release("77", tokens["b"]))
    run(engine, do.Release("77", tokens["a"]))
    time.sleep(0.08)
    run(engine, do.Tick())
    found: list[PoolCopy | Exception] = []
    engine.ask("lab", WholePool(), found.append, block=True)
    [pool] = found
    assert isinstance(pool, PoolCopy)
    requests = thaw(pool.image).requests
    assert {each: one.state for each, one in requests.items()} == {"then a": HELD, "then b": HELD}


def test_a_deleted_live_file_is_mended_and_frees_nothing(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'pools.db'}"
    live = tmp_path / "pools.db-live"
    code = f"from millpond import ResourcePool; print(ResourcePool('lab', {url!r}).try_acquire())"
    with ResourcePool("lab", url) as pool:
        pool.add("a")
        with pool.acquire():
            os.unlink(live)
            for _ in range(2):  # before and after it is mended
                other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
                assert (other.stdout, other.stderr) == ("None\n", "")
                until(live.exists)

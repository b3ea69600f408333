"""Every engine of resource pools is put to the conformance suite (`conformance/`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import log_stores
from millpond._sqlite._url import parse
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder, Want
from millpond.resources.engines.log import LogEngine
from millpond.resources.engines.memory import MemoryEngine
from millpond.resources.engines.sqlite import SqliteEngine
from millpond.testing import FakeClock
from millpond_conformance import ENGINE_CHECKS, Bench, check_engine

_worlds = itertools.count(1)


def _memory(folder: Path) -> Bench:
    world = f"memory:conformance-{next(_worlds)}"
    return Bench(lambda: MemoryEngine(world), url=world)


def _sqlite(folder: Path, options: str = "") -> Bench:
    url = f"sqlite:///{folder}/{next(_worlds)}.db{options}"
    return Bench(lambda: SqliteEngine(url, parse(url)), lambda: SqliteEngine(url, parse(url)), url=url)


def _full(folder: Path) -> Bench:
    return _sqlite(folder, "?synchronous=FULL")


BENCHES: dict[str, Callable[[Path], Bench]] = {"memory": _memory, "sqlite-normal": _sqlite, "sqlite-full": _full}


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_temporal_keeps_the_contract(check, pools):
    from millpond.resources.engines.temporal import (
        _url as temporal_url,
    )  # not everywhere to be had: not on free threads
    from millpond.resources.engines.temporal._engine import TemporalEngine

    url = f"{pools.url()}?prefix=conformance-{next(_worlds)}:"
    bench = Bench(lambda: TemporalEngine(url, temporal_url.parse(url)), lambda: TemporalEngine(url, temporal_url.parse(url)), url=url)  # fmt: skip
    try:
        check(bench)
    finally:
        bench.close()


@pytest.fixture(scope="module", params=["redis", "valkey", "cluster", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store between machines: one server of each kind for all checks."""
    with log_stores.running(request.param) as url:
        yield url


@pytest.mark.parametrize("machines", [("here", "here"), ("here", "there")], ids=["one-machine", "two-machines"])
@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_an_engine_between_machines_keeps_the_contract(check, store, machines):
    """Two companions with other names of their machine are two machines, as far as the engine can know."""
    first, second = (log_stores.of_machine(store, machine) for machine in machines)
    with closing(LogEngine(first)) as engine:
        for pool in engine.pools():
            engine.drop(pool)
    bench = Bench(lambda: LogEngine(first, machines[0]), lambda: LogEngine(second, machines[1]), url=first)
    try:
        check(bench)
    finally:
        bench.close()


@pytest.mark.parametrize("engine", BENCHES)
@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_an_engine_keeps_the_contract(check, engine, tmp_path):
    bench = BENCHES[engine](tmp_path)
    try:
        check(bench)
    finally:
        bench.close()


def test_the_suite_covers_every_verb_and_promise():
    names = [check.__name__ for check in ENGINE_CHECKS]
    assert len(names) == len(set(names)) > 25
    for wanted in ("verb_apply", "verb_ask", "verb_pools", "verb_close", "g1_", "g2_", "g3_", "g4_", "g6_", "g7_", "g8_", "g9_", "face_"):  # fmt: skip
        assert any(name.startswith(wanted) for name in names), wanted


class Barging(MemoryEngine):
    """An engine with a fault: a newcomer overtakes everybody who waits."""

    def apply(self, pool, command, done, *, block):
        if isinstance(command, do.Acquire) and not command.wait:
            command = do.Acquire(command.id, command.session, 0, command.holder, command.wants, 9, sure=True)
        return super().apply(pool, command, done, block=block)


class Silent(MemoryEngine):
    """An engine with a fault: its watchers hear after the answer."""

    def watch(self, pool, watcher, *, own=False):
        late: list[object] = []

        def hear(entries):
            late.append(entries)
            if len(late) > 1:
                watcher(late.pop(0))

        return super().watch(pool, hear, own=own)


@pytest.mark.parametrize("engine", [Barging, Silent])
def test_the_suite_finds_a_fault(engine, monkeypatch):
    from millpond_conformance import _engines

    monkeypatch.setattr(_engines, "PATIENCE", 0.3)
    with pytest.raises(AssertionError):
        check_engine(lambda: Bench(lambda: engine(f"memory:faulty-{next(_worlds)}")))


def test_a_fake_clock_moves_when_it_is_told():
    clock = FakeClock()
    engine = MemoryEngine("memory:fake", clock)
    replies: list[do.Reply | Exception] = []
    engine.apply("p", do.Add("a", {}), replies.append, block=True)
    engine.apply("p", do.Acquire("r", "1", 0, Holder(), (Want(),), lease=60_000_000), replies.append, block=True)
    seen: list[object] = []
    engine.watch("p", seen.extend)
    clock.advance(59.9)
    engine.tick()
    assert not seen
    clock.advance(0.1)
    engine.tick()
    assert len(seen) == 1
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(-1)
    engine.close()

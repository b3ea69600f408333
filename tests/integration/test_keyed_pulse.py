"""The twelve experiments that showed what Pulse 1.6.5, the pool that keyed pools descend from, does under fault.

Each is done to ours, with Pulse's result beside what ours must do. Where Pulse's experiment has a job that is started
and stopped, ours has a resident. Leases are short where the experiment allows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "chaos"))

from keyed_storm import Storm

from millpond import KeyedPool, PoolFull
from millpond.keyed import Job, KeyedResident, Resident
from millpond.testing._redis import RedisServer, find_redis_server, redis_server

pytestmark = pytest.mark.timeout(60)
AOF = ("--appendonly", "yes", "--appendfsync", "always")


def need_redis() -> None:
    if find_redis_server() is None:
        problem = "no redis-server here: keyed pools on Redis are not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    need_redis()
    with redis_server() as server:
        yield server


@pytest.fixture(params=["redis", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/pools.db"
    return str(request.getfixturevalue("server").url)


class Diary:
    """What began and ended when, on which node."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, float]] = []
        self._running: dict[str, str] = {}
        self._lock = threading.Lock()
        self.overlaps: list[str] = []

    def begin(self, key: str, node: str) -> None:
        with self._lock:
            if key in self._running:
                self.overlaps.append(f"{key} begins on {node} while it runs on {self._running[key]}")
            self._running[key] = node
            self.lines.append(("begin", key, node, time.monotonic()))

    def end(self, key: str, node: str) -> None:
        with self._lock:
            if self._running.get(key) == node:
                del self._running[key]
            self.lines.append(("end", key, node, time.monotonic()))

    def starts(self, node: str = "") -> Counter[str]:
        return Counter(key for what, key, at, _ in list(self.lines) if what == "begin" and node in ("", at))

    def where(self) -> dict[str, str]:
        """Return which node runs each key."""
        with self._lock:
            return dict(self._running)

    def held_by(self, node: str) -> set[str]:
        return {key for key, at in self.where().items() if at == node}


class Node:
    """A program with a worker, as it would be on a machine of its own."""

    def __init__(self, url: str, pool: str, name: str, diary: Diary, *, farewell: float = 0.0, **settings: Any) -> None:
        self.name = name
        self.pool = KeyedPool(pool, url, slots=256, **settings)
        self.heard: list[int] = []
        diaries = diary

        @self.pool.job
        async def note(job: Job, number: int) -> int:
            diaries.begin(job.key, name)
            self.heard.append(number)
            diaries.end(job.key, name)
            return number

        @self.pool.job
        def block(job: Job, seconds: float) -> None:
            diaries.begin(job.key, name)
            time.sleep(seconds)
            diaries.end(job.key, name)

        @self.pool.job
        async def hog(job: Job, seconds: float) -> None:
            """Hold up the whole event loop, as a handler must not."""
            diaries.begin(job.key, name)
            time.sleep(seconds)  # noqa: ASYNC251
            diaries.end(job.key, name)

        @self.pool.resident
        async def stay(resident: Resident) -> None:
            diaries.begin(resident.key, name)
            try:
                async for message in resident:
                    self.heard.append(message)
            finally:
                await asyncio.sleep(farewell)
                diaries.end(resident.key, name)

        self.note, self.block, self.hog = note, block, hog
        self.stay: KeyedResident[[]] = stay
        self._worker = self.pool.worker(concurrency=50)

    def __enter__(self) -> Node:
        self._worker.__enter__()
        return self

    def owned(self, keys: list[str]) -> set[str]:
        """Return those of the keys whose slots this node owns."""
        slots, mine = self.pool.slots(), self._worker.id
        return {key for key in keys if slots[self.pool._home.slot(key)].owner == mine}

    def leave(self) -> None:
        self._worker.close()

    def __exit__(self, *error: object) -> None:
        self._worker.close()
        self.pool.close()


def until(happens: Callable[[], bool], timeout: float = 10.0) -> float:
    """Wait for something; return the seconds that it took."""
    began = time.monotonic()
    while not happens():
        assert time.monotonic() < began + timeout, "it does not happen"
        time.sleep(0.005)
    return time.monotonic() - began


def fresh() -> str:
    """Return the name of a pool that nobody has."""
    return f"pulse-{secrets.token_hex(4)}"


# --- 1: dispatch -------------------------------------------------------------------------------------------------------


def test_1_every_dispatch_starts_once_and_none_stalls(url: str):
    """1,500 dispatches one after another, each waited for.

    Pulse: 1,505 starts, 5 of them on a key that ran already; 9 stalls of 0.9 s and more; 4 false errors.
    Ours: 1,500 starts, no stall, no error.
    """
    diary = Diary()
    with Node(url, fresh(), "a", diary, lease=5.0) as node:
        node.note.dispatch("warm", 0).result(timeout=10)
        slowest = 0.0
        for number in range(1500):
            began = time.monotonic()
            assert node.note.dispatch(f"key-{number}", number).result(timeout=10) == number
            slowest = max(slowest, time.monotonic() - began)
    assert diary.starts().total() == 1501
    assert set(diary.starts().values()) == {1}
    assert not diary.overlaps
    assert slowest < 0.9, "Pulse's ackGrace, less a tenth"


# --- 2: joining --------------------------------------------------------------------------------------------------------


def test_2_a_joiner_gets_its_share_each_time(url: str):
    """Worker A has 40 keys; B joins from another node; 19 rounds.

    Pulse: 0 keys moved in 19 of 19 rounds, after 40 s too.
    Ours: about 20 of 40 in each (within four standard deviations), never a key on both; measured 16 to 27 keys, which ran
    on B 0.2 s after it had joined at the latest.
    """
    diary, pool = Diary(), fresh()
    keys = [f"key-{number}" for number in range(40)]
    moved, took = [], []
    with Node(url, pool, "a", diary, lease=1.0) as first:
        for key in keys:
            first.stay.start(key)
        until(lambda: len(diary.where()) == 40)
        for number in range(19):
            name = f"b{number}"
            with Node(url, pool, name, diary) as second:
                began = time.monotonic()
                until(lambda: 8 <= len(diary.held_by(name)) == len(second.owned(keys)), 4.0)  # noqa: B023
                took.append(time.monotonic() - began)
                moved.append(len(diary.held_by(name)))
            until(lambda: set(diary.where().values()) == {"a"} and len(diary.where()) == 40)
    print(f"moved {moved}, in {min(took):.2f}-{max(took):.2f} s")
    assert all(8 <= count <= 32 for count in moved), moved
    assert not diary.overlaps


# --- 3: leaving --------------------------------------------------------------------------------------------------------


def test_3_a_graceful_leave_overlaps_nothing(url: str):
    """66 keys on two workers, each takes 300 ms to stop; one worker leaves.

    Pulse: 33 of 33 keys started elsewhere while they were still held.
    Ours: none; measured: each starts within 0.05 s after it has ended.
    """
    diary, pool = Diary(), fresh()
    with (
        Node(url, pool, "a", diary, lease=1.0, farewell=0.3) as first,
        Node(url, pool, "b", diary, farewell=0.3) as other,
    ):
        for number in range(66):
            first.stay.start(f"key-{number}")
        until(lambda: len(diary.where()) == 66 and 10 < Counter(diary.where().values())["a"] < 56)
        held = diary.held_by("a")
        first.leave()
        until(lambda: set(diary.where().values()) == {"b"} and len(diary.where()) == 66)
        ended = {key: at for what, key, node, at in diary.lines if what == "end" and node == "a"}
        began = {key: at for what, key, node, at in diary.lines if what == "begin" and node == "b"}
        other.leave()
    assert not diary.overlaps
    gaps = [began[key] - ended[key] for key in held]
    print(f"{len(held)} keys moved; the gap was {max(gaps):.3f} s at most")
    assert max(gaps) < 1.0


# --- 4, 5: death and its appearance ------------------------------------------------------------------------------------


def test_4_the_keys_of_a_killed_node_run_elsewhere_within_ten_seconds_on_defaults(server: RedisServer, tmp_path: Path):
    """SIGKILL one of three nodes, default settings.

    Pulse: 32.5 s (30 to 60 by design). Ours: at most 10 s, by a lease of 5; measured 4.4 to 5.7 s.
    """
    with Storm(tmp_path, f"{server.url}?prefix=four:", 4, workers=3, producers=0, residents=30, lease=None) as storm:
        storm.start()
        storm.gather(3)
        until(storm.residents_run)
        time.sleep(0.5)
        storm.kill(storm.workers[0])
        storm.size = 2
        time.sleep(3.0)
        storm.settle()
        late = storm.check().failovers()
    print(f"{len(late)} keys ran elsewhere after {late[0]:.2f}-{late[-1]:.2f} s")
    assert late and late[-1] < 10.0


def test_5_a_node_that_stood_still_past_its_lease_stops_its_keys_and_comes_back(server: RedisServer, tmp_path: Path):
    """SIGSTOP a node for longer than its lease, then SIGCONT.

    Pulse: ran all its 13 keys in parallel for the whole 75 s watched, and was never a worker again.
    Ours: stops them within a second (the checker sees to it; measured 0.004 s), and works again under a new id.
    """
    with Storm(tmp_path, f"{server.url}?prefix=five:", 5, workers=3, producers=0, residents=30) as storm:
        storm.start()
        storm.gather(3)
        until(storm.residents_run)
        victim = storm.workers[0]
        storm.freeze(victim, 2.5)
        time.sleep(2.5)
        until(lambda: storm.has_happened("joined", victim.pid, 2), 5.0)
        until(lambda: storm.has_happened("S", victim.pid, 11), 5.0)
        storm.settle()
        checker = storm.check()
    assert checker.excused, "others had taken over"
    ((_, woke),) = checker.processes[victim.pid].stops
    stopped = [run.ended - woke for run in checker.runs if run.pid == victim.pid and run.began < woke]
    print(f"{len(stopped)} keys stopped {max(stopped):.3f} s after it woke, at most")


# --- 6, 7: admission and order -----------------------------------------------------------------------------------------


def test_6_what_is_over_the_limit_is_refused_aloud(url: str):
    """A limit of 1,000; 4,000 dispatches from 32 callers.

    Pulse: 0 errors, 1,576 of 4,000 lost in silence. Ours: what is accepted is handled, the rest raises `PoolFull`.
    """
    diary, pool = Diary(), fresh()
    with Node(url, pool, "a", diary, lease=5.0, max_jobs=1000) as node:
        node.pool.admin.pause()  # a consumer that does not keep up

        def send(caller: int) -> tuple[int, int]:
            accepted = refused = 0
            for number in range(125):
                try:
                    node.note.dispatch(f"key-{caller}-{number}", number)
                    accepted += 1
                except PoolFull:
                    refused += 1
            return accepted, refused

        with ThreadPoolExecutor(32) as callers:
            accepted, refused = (sum(each) for each in zip(*callers.map(send, range(32)), strict=True))
        assert (accepted, refused) == (1000, 3000)
        node.pool.admin.resume()
        until(lambda: diary.starts().total() == 1000)
        until(lambda: node.pool.statistics().jobs == 0)
    assert set(diary.starts().values()) == {1}


def test_7_what_is_sent_to_one_key_comes_in_order(url: str):
    """1,000 numbered messages to one key, three nodes.

    Pulse: 4 out of order. Ours: none, as jobs and as messages to a resident.
    """
    diary, pool = Diary(), fresh()
    with contextlib.ExitStack() as ends:
        nodes = [ends.enter_context(Node(url, pool, name, diary, lease=5.0)) for name in "abc"]
        until(lambda: all(worker.slots for worker in nodes[0].pool.workers()))
        receipts = [nodes[number % 3].note.dispatch("one", number) for number in range(1000)]
        receipts[-1].result(timeout=20)
        (heard,) = [node.heard for node in nodes if node.heard]
        assert heard == list(range(1000))
        heard.clear()
        nodes[0].stay.start("two")
        for number in range(1000):
            nodes[number % 3].stay.notify("two", number)
        until(lambda: sum(len(node.heard) for node in nodes) >= 1000)
        (heard,) = [node.heard for node in nodes if node.heard]
        assert heard == list(range(1000))
    assert not diary.overlaps


# --- 8, 9, 10: the server restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lease", "away"),
    [
        pytest.param((), 1.0, 0.2, id="8-without-its-data"),
        pytest.param((), 0.5, 1.5, id="8-without-its-data-past-the-lease"),
        pytest.param(AOF, 5.0, 1.5, id="9-with-AOF-within-the-lease"),
        pytest.param(AOF, 0.5, 1.5, id="10-with-AOF-past-the-lease"),
    ],
)
def test_8_9_10_a_pool_works_again_when_redis_is_back(options: tuple[str, ...], lease: float, away: float):
    """Redis is killed and restarted, without its data or with; away for less than the lease or for more.

    Pulse: recovers in one of the four cases (AOF, within the lease: 2.6 s). It never does without data, nor when the
    outage was longer than the lease, since the node takes its own worker for dead.
    Ours: the next dispatch is done within 5 s in all of them (measured 0.1 to 0.4 s), and with AOF what was accepted
    before is done too.
    """
    need_redis()
    diary = Diary()
    with redis_server(*options) as server, Node(server.url, fresh(), "a", diary, lease=lease) as node:
        assert node.note.dispatch("before", 1).result(timeout=10) == 1
        node.pool.admin.pause()
        node.note.dispatch("kept", 2)
        server.kill()
        time.sleep(away)
        server.restart()
        back = time.monotonic()
        took = None
        if options:
            until(lambda: _resume(node), 5.0)
            until(lambda: diary.starts()["kept"] == 1, 5.0)
        assert node.note.dispatch("after", 3).result(timeout=10) == 3
        took = time.monotonic() - back
        assert took < 5.0
        print(f"works again {took:.2f} s after the server is back")
        until(lambda: len(node.pool.workers()) == 1, 5.0)
    assert diary.starts()["before"] == 1
    assert not diary.overlaps


def _resume(node: Node) -> bool:
    from millpond.errors import EngineUnavailable

    try:
        node.pool.admin.resume()
    except EngineUnavailable:
        return False
    return True


# --- 11, 12: slow handlers, other pools --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["block", "hog"])
def test_11_a_slow_start_is_no_second_start_and_holds_up_nobody(url: str, how: str):
    """Handlers that block for longer than the time-out after which others would take over, on 4 keys.

    Pulse: 3 of 4 keys started twice; 3 of 4 dispatches were told that they timed out, behind the first.
    Ours: each starts once, though one blocks the very event loop; where it does not, another key is not held up.
    """
    diary, pool = Diary(), fresh()
    seconds = 1.5 if how == "block" else 0.8
    with Node(url, pool, "a", diary, lease=0.5) as node, Node(url, pool, "b", diary):
        until(lambda: all(worker.slots for worker in node.pool.workers()))
        receipts = [getattr(node, how).dispatch(f"key-{number}", seconds) for number in range(4)]
        if how == "block":
            began = time.monotonic()
            node.note.dispatch("other", 1).result(timeout=10)
            assert time.monotonic() - began < 1.0
        for receipt in receipts:
            receipt.result(timeout=20)
        time.sleep(0.7)
    assert set(diary.starts().values()) == {1}
    assert not diary.overlaps


def test_12_other_pools_on_the_same_server_delay_nothing(server: RedisServer, tmp_path: Path):
    """As 11, and a node dies, with other idle pools on the same Redis.

    Pulse: the keys of the dead were mostly not claimed any more (2 of 3 runs), since the pools share one lease key.
    Ours: they run elsewhere after the same time, alone (measured 1.0 s) or beside four other pools (1.2 s).
    """
    took = {}
    for others in (0, 4):
        with contextlib.ExitStack() as ends:
            for number in range(others):
                ends.enter_context(Node(server.url, fresh(), f"other-{number}", Diary(), lease=1.0))
            folder = tmp_path / str(others)
            folder.mkdir()
            address = f"{server.url}?prefix=twelve{others}:"
            storm = ends.enter_context(Storm(folder, address, 12, workers=2, producers=0, residents=20))
            storm.start()
            storm.gather(2)
            until(storm.residents_run)
            storm.size = 1
            storm.kill(storm.workers[0])
            until(storm.residents_run)
            storm.size = 2
            storm.settle()
            late = storm.check().failovers()
            took[others] = late[-1]
    print(f"fail-over {took[0]:.2f} s alone, {took[4]:.2f} s beside four pools")
    assert took[4] < took[0] + 1.0

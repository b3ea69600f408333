"""Keyed pools between real processes: signals, deaths, forks, strict workers, and what their callers notice."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from millpond.errors import JobFailed
from millpond.keyed import Job, KeyedPool
from waiting import HANG, becomes, never, until

pytestmark = pytest.mark.timeout(300)
_names = itertools.count(1)

PRELUDE = """
import asyncio, contextlib, os, signal, sys, threading, time
from dataclasses import dataclass
from millpond.errors import *
from millpond.keyed import *
url, name, path = sys.argv[1:4]
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def hear():
    return sys.stdin.readline().strip()
events = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
may_end, HANG = path + "-may-end", 60
def note(*words):
    os.write(events, (f"{time.monotonic()} {os.getpid()} " + " ".join(map(str, words)) + "\\n").encode())
@contextlib.contextmanager
def run(key, what=""):
    note("begin", key, what)
    try:
        yield
    finally:
        note("end", key, what)
pool = KeyedPool(name, url)

class Away:
    def __init__(self, inner): self.inner, self.is_away = inner, False
    def __getattr__(self, name):
        value = getattr(self.inner, name)
        if not callable(value) or name in ("close", "listen"): return value
        def call(*args, **kwargs):
            if self.is_away: raise EngineUnavailable("away")
            return value(*args, **kwargs)
        return call

def can_be_away(pool):
    pool._connection.open()
    pool._connection._store = store = Away(pool._connection._store)
    threading.Thread(target=lambda: (hear(), setattr(store, "is_away", True), say("away")), daemon=True).start()

@dataclass
class Point:
    x: int
    y: int = 0

@pool.job
async def do(job: Job, number: int, pause: float = 0.0) -> int:
    with run(job.key, number):
        await asyncio.sleep(pause)
        return number

@pool.job
async def wait(job: Job, number: int) -> int:
    with run(job.key, number):
        while not os.path.exists(may_end): await asyncio.sleep(0.002)
        return number

@pool.job
def plain(job: Job, number: int) -> int:
    with run(job.key, number):
        return number

@pool.job
def wait_plain(job: Job, number: int) -> int:
    with run(job.key, number):
        while not os.path.exists(may_end) and not job.lost: time.sleep(0.002)
        return number

@pool.job
def stubborn(job: Job) -> int:
    with run(job.key):
        while not os.path.exists(may_end): time.sleep(0.002)
        return job.attempt

@pool.job
def double(job: Job, point: Point, factor: int = 2) -> Point:
    return Point(point.x * factor, point.y * factor)

@pool.job
def die(job: Job) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@pool.resident
async def stay(resident: Resident) -> None:
    with run("r-" + resident.key):
        async for message in resident:
            note("got", "r-" + resident.key, message)
"""


class Child:
    """A program that has the jobs above."""

    def __init__(self, script: str, url: str, name: str, path: Path) -> None:
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), url, name, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, word: str = "") -> None:
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Return the exit code, once it has ended."""
        return self.process.wait(HANG)

    def stop(self) -> None:
        """SIGSTOP, and return when it has stopped."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)


class Lab:
    """A pool, programs that use it, and what they noted."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.name = f"lab{next(_names)}-{os.getpid()}"
        self.path = path
        self.pools: list[KeyedPool] = []
        self.children: list[Child] = []

    def pool(self, **options: Any) -> KeyedPool:
        pool = KeyedPool(self.name, self.url, **options)
        self.pools.append(pool)
        pool.statistics()
        return pool

    def child(self, script: str = "pool.run()") -> Child:
        child = Child(script, self.url, self.name, self.path)
        self.children.append(child)
        return child

    def let_end(self) -> None:
        """End the jobs that wait for it."""
        Path(f"{self.path}-may-end").touch()

    def events(self) -> list[tuple[float, int, list[str]]]:
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text().splitlines():
            when, pid, *words = line.split(" ")
            found.append((float(when), int(pid), words))
        return found

    def running(self) -> dict[str, set[int]]:
        """Return who runs what now, among processes that live."""
        living = {each.pid for each in self.children if each.process.poll() is None}
        now: dict[str, set[int]] = defaultdict(set)
        for _, pid, (what, key, *_) in self.events():
            if pid in living:
                now[key].add(pid) if what == "begin" else now[key].discard(pid) if what == "end" else None
        return {key: pids for key, pids in now.items() if pids}

    def begun(self, key: str) -> list[str]:
        return [words[2] for _, _, words in self.events() if words[:2] == ["begin", key]]

    def assert_no_overlap(self, dead: dict[int, float] | None = None) -> None:
        """What a dead process ran ended with it."""
        now: dict[str, dict[int, float]] = defaultdict(dict)
        for when, pid, (what, key, *_) in sorted(self.events(), key=lambda each: each[0]):
            for other in list(now[key]):
                if dead is not None and dead.get(other, when + 1) <= when:
                    del now[key][other]
            if what == "begin":
                assert not now[key], f"{key} runs in {list(now[key])} and {pid}"
                now[key][pid] = when
            elif what == "end":
                now[key].pop(pid, None)

    def close(self) -> None:
        for child in self.children:
            child.process.kill()
            child.process.communicate()
        for pool in self.pools:
            with contextlib.suppress(Exception):
                pool.admin.drop(force=True)
            pool.close()


@pytest.fixture(params=["sqlite", "redis"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    url = f"sqlite:///{tmp_path}/pools.db" if request.param == "sqlite" else request.getfixturevalue("redis_url")
    made = Lab(url, tmp_path / "events")
    yield made
    made.close()


def joined(pool: KeyedPool, workers: int) -> bool:
    found = pool.workers()
    return len(found) == workers and all(each.slots for each in found) and all(each.owner for each in pool.slots())


def is_leaving(pool: KeyedPool) -> bool:
    return any(each.is_leaving for each in pool.workers())


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_worker_end_what_it_runs_and_leave(lab: Lab, number: int):
    pool = lab.pool(lease=HANG)
    leaver = lab.child("pool.run(grace=3600)\nsay('left')")
    until(lambda: joined(pool, 1))
    receipts = [pool.declare_job("wait").dispatch("a", 1), pool.declare_job("wait_plain").dispatch("b", 2)]
    behind = [pool.declare_job("do").dispatch("a", 3), pool.declare_job("plain").dispatch("b", 4)]
    until(lambda: set(lab.running()) == {"a", "b"})
    leaver.send(number)
    until(lambda: is_leaving(pool))
    lab.let_end()
    assert leaver.end() == 0 and leaver.line() == "left"
    assert [each.result(HANG) for each in receipts] == [1, 2]
    assert [each.status() for each in behind] == ["waiting", "waiting"]
    assert pool.workers() == [] and pool.statistics().recovered_total == 0
    lab.child()
    assert [each.result(HANG) for each in behind] == [3, 4]
    lab.assert_no_overlap()


def test_a_signal_hands_over_at_once_what_was_not_begun(lab: Lab):
    pool = lab.pool(lease=HANG)
    leaver, stayer = lab.child("pool.run(concurrency=1, grace=3600)"), lab.child()
    until(lambda: joined(pool, 2))
    plain = pool.declare_job("plain")
    keys = [f"k{number}" for number in range(40)]
    held = next(key for key in keys if worker_pid(pool, key) == leaver.pid)
    running = pool.declare_job("wait_plain").dispatch(held, 0)
    until(lambda: held in lab.running())
    rest = [plain.dispatch(key, 1) for key in keys if key != held]
    leaver.send(signal.SIGTERM)
    for each in rest:
        each.result(HANG)
    after = plain.dispatch(held, 2)
    assert lab.running() == {held: {leaver.pid}}, "nothing waited for it"
    lab.let_end()
    assert running.result(HANG) == 0 and after.result(HANG) == 2
    assert leaver.end() == 0 and stayer.process.poll() is None
    lab.assert_no_overlap()
    assert pool.statistics().recovered_total == 0


def worker_pid(pool: KeyedPool, key: str) -> int:
    owner = pool.owner(key).owner
    return next(int(each.label.rpartition(":")[2]) for each in pool.workers() if each.id == owner)


@pytest.mark.parametrize(("colour", "code"), [("wait", 0), ("stubborn", -signal.SIGINT)])
def test_a_second_signal_ends_a_worker_now(lab: Lab, colour: str, code: int):
    pool = lab.pool(lease=HANG)
    leaver = lab.child("pool.run(grace=3600)")
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job(colour).dispatch("k", *([1] if colour == "wait" else []))
    until(lambda: "k" in lab.running())
    leaver.send(signal.SIGTERM)
    until(lambda: is_leaving(pool))
    assert leaver.process.poll() is None
    leaver.send(signal.SIGINT)
    assert leaver.end() == code
    assert receipt.status() in ("waiting", "running")
    assert bool(pool.workers()) == (code < 0), "one that was killed could not say goodbye"


def test_ctrl_c_ends_a_block_with_a_worker(lab: Lab):
    pool = lab.pool(lease=HANG)
    leaver = lab.child(
        """
        try:
            with pool.worker(grace=3600) as worker:
                worker.wait()
        except KeyboardInterrupt:
            say("interrupted")
        """
    )
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job("wait").dispatch("k", 1)
    until(lambda: "k" in lab.running())
    leaver.send(signal.SIGINT)
    until(lambda: is_leaving(pool))
    lab.let_end()
    assert leaver.line() == "interrupted"
    assert leaver.end() == 0
    assert receipt.result(HANG) == 1
    assert pool.workers() == []


def test_ctrl_c_ends_a_block_that_has_not_begun_yet(lab: Lab):
    """The worker has joined, and runs a job, before the thread that waits for it hears so."""
    pool = lab.pool(lease=HANG)
    leaver = lab.child(
        """
        from millpond.keyed.client.bridge import Working
        start = Working._start
        async def slowly(self):
            worker = await start(self)
            while not os.path.exists(may_end + "-start"):
                await asyncio.sleep(0.01)
            return worker
        Working._start = slowly
        try:
            with pool.worker(grace=3600):
                say("begun")
        except KeyboardInterrupt:
            say("interrupted")
        """
    )
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job("wait").dispatch("k", 1)
    until(lambda: "k" in lab.running())
    leaver.send(signal.SIGINT)
    Path(f"{lab.path}-may-end-start").touch()
    until(lambda: is_leaving(pool))
    lab.let_end()
    assert leaver.line() in ("interrupted", "begun")
    assert leaver.end() == 0
    assert receipt.result(HANG) == 1
    assert pool.workers() == []


def test_a_signal_while_the_store_is_away_still_ends_the_worker(lab: Lab):
    pool = lab.pool(lease=0.6)
    leaver = lab.child(
        """
        can_be_away(pool)
        pool.run(grace=1)
        """
    )
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job("wait").dispatch("k", 1)
    until(lambda: "k" in lab.running())
    leaver.say()
    assert leaver.line() == "away"
    leaver.send(signal.SIGTERM)
    assert leaver.end() == 0
    assert receipt.status() in ("waiting", "running")


# --- deaths ----------------------------------------------------------------------------------------------------------


def test_what_a_killed_worker_ran_runs_elsewhere(lab: Lab):
    pool = lab.pool(lease=3.0)
    first, second = lab.child(), lab.child()
    until(lambda: joined(pool, 2))
    do, wait, stay = pool.declare_job("do"), pool.declare_job("wait"), pool.declare_resident("stay")
    keys = [f"k{number}" for number in range(12)]
    for key in keys:
        stay.start(key)
        (wait if worker_pid(pool, key) == first.pid else do).dispatch(key, 0)
    rest = [do.dispatch(key, number) for key in keys for number in (1, 2)]
    held = {f"{lane}{key}" for key in keys if worker_pid(pool, key) == first.pid for lane in ("", "r-")}
    until(lambda: {key for key, pids in lab.running().items() if first.pid in pids} >= held)
    until(lambda: sum(key.startswith("r-") for key in lab.running()) == 12)
    assert held
    died = time.monotonic()
    first.send(signal.SIGKILL)
    first.end()
    lab.let_end()
    for each in rest:
        each.result(HANG)
    until(lambda: all(lab.running().get(f"r-{key}") == {second.pid} for key in keys))
    lab.assert_no_overlap({first.pid: died})
    for key in keys:
        assert list(dict.fromkeys(lab.begun(key))) == ["0", "1", "2"]
    assert pool.statistics().dead == 0
    assert {each.why for each in pool.slots()} & {"died"}


@pytest.mark.parametrize("lab", ["sqlite"], indirect=True)
def test_where_the_kernel_tells_of_a_death_nobody_waits_for_a_heartbeat(lab: Lab):
    """The lease is ten minutes, so the next heartbeat is far away."""
    pool = lab.pool(lease=600)
    first, second = lab.child(), lab.child()
    until(lambda: joined(pool, 2))
    (survivor,) = (each.id for each in pool.workers() if each.label.endswith(f":{second.pid}"))
    first.send(signal.SIGKILL)
    until(lambda: {each.owner for each in pool.slots()} == {survivor})
    assert [each.id for each in pool.workers()] == [survivor]


def test_a_job_that_kills_its_workers_is_a_dead_letter_and_the_key_goes_on(lab: Lab):
    pool = lab.pool(slots=4, lease=1.5, max_losses=2)
    receipt = pool.declare_job("die").dispatch("k")
    behind = pool.declare_job("do").dispatch("k", 7)
    for _ in range(2):
        assert lab.child().end() == -signal.SIGKILL
    lab.child()
    with pytest.raises(JobFailed, match="killed its worker") as caught:
        receipt.result(HANG)
    assert caught.value.status == "lost"
    assert behind.result(HANG) == 7
    assert "died 2 times" in pool.admin.dead_letters("k")[0].reason


def test_a_worker_that_was_stopped_past_its_lease_is_silent_and_comes_back(lab: Lab):
    pool = lab.pool(lease=0.6)
    first, second = lab.child(), lab.child()
    until(lambda: joined(pool, 2))
    do = pool.declare_job("do")
    keys = [f"k{number}" for number in range(12)]
    receipts = [do.dispatch(key, number, pause=0.05) for number in range(10) for key in keys]
    until(lambda: any(first.pid in pids for pids in lab.running().values()))
    woke = outlast(first, lambda: all(each.status() == "done" for each in receipts))
    until(lambda: joined(pool, 2))
    for each in [do.dispatch(key, 99) for key in keys]:
        each.result(HANG)
    for key in keys:
        assert list(dict.fromkeys(lab.begun(key))) == [*map(str, range(10)), "99"]
    begins = [(when, words) for when, pid, words in lab.events() if pid == first.pid and words[0] == "begin"]
    stale = [words for when, words in begins if when > woke and words[2] != "99"]
    assert len(stale) <= 1, "but for what it was about to begin"
    assert second.process.poll() is None and pool.statistics().dead == 0


def outlast(child: Child, happens: Callable[[], bool]) -> float:
    """Stop a program until something has happened without it; return when it went on."""
    patience = 5.0
    while True:
        child.stop()
        with contextlib.suppress(AssertionError):
            until(happens, timeout=patience)
            patience = HANG
        woke = time.monotonic()
        child.send(signal.SIGCONT)
        if patience == HANG:
            return woke
        patience += 5.0  # who is stopped within a transaction holds up a SQLite file for all: strike again


STRICT = 6.0
"""A lease that is waited for, and that a worker on a busy machine, which would die of it, keeps until then."""


def test_a_strict_worker_dies_when_its_lease_does(lab: Lab):
    pool = lab.pool(lease=STRICT)
    strict = lab.child(
        """
        can_be_away(pool)
        pool.run(strict=True)
        """
    )
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job("stubborn").dispatch("k")
    until(lambda: "k" in lab.running())
    strict.say()
    assert strict.line() == "away"
    assert strict.end() == -signal.SIGALRM
    lab.let_end()
    lab.child()
    assert receipt.result(HANG) == 2


def test_of_two_strict_workers_in_one_process_each_counts(lab: Lab):
    pool = lab.pool(lease=STRICT)
    strict = lab.child(
        """
        other = KeyedPool(name + "-other", "memory:", lease=5.8, slots=4)
        can_be_away(pool)
        with other.worker(strict=True), pool.worker(strict=True):
            time.sleep(3600)
        """
    )
    until(lambda: joined(pool, 1))
    strict.say()
    assert strict.line() == "away"
    assert strict.end() == -signal.SIGALRM


def test_a_strict_worker_that_was_stopped_past_its_lease_dies_when_it_goes_on(lab: Lab):
    pool = lab.pool(lease=STRICT)
    strict = lab.child("pool.run(strict=True)")
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job("wait_plain").dispatch("k", 1)
    until(lambda: "k" in lab.running())
    strict.stop()
    until(lambda: all(each.lease_left < 0 for each in pool.workers()))
    strict.send(signal.SIGCONT)
    assert strict.end() == -signal.SIGALRM
    assert not [words for _, pid, words in lab.events() if pid == strict.pid and words[0] == "end"]
    lab.let_end()
    lab.child()
    assert receipt.result(HANG) == 1


def test_a_strict_worker_that_leaves_lives_on_and_one_with_a_handler_is_refused(lab: Lab):
    lab.pool(lease=HANG)
    child = lab.child(
        """
        with pool.worker(strict=True):
            do.dispatch("k", 1).result(HANG)
            say("alarm", signal.getitimer(signal.ITIMER_REAL)[0] > 0)
        say("alarm", signal.getitimer(signal.ITIMER_REAL)[0] > 0)
        signal.signal(signal.SIGALRM, lambda *args: None)
        try:
            with pool.worker(strict=True):
                pass
        except ValueError as error:
            say("refused", "SIGALRM" in str(error))
        """
    )
    assert [child.line() for _ in range(3)] == ["alarm True", "alarm False", "refused True"]
    assert child.end() == 0


def test_a_strict_worker_dies_rather_than_let_a_function_outlive_its_lease_on_leaving(lab: Lab):
    pool = lab.pool(lease=STRICT, drain=HANG)
    strict = lab.child("pool.run(strict=True, grace=0.2)")
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job("stubborn").dispatch("k")
    until(lambda: "k" in lab.running())
    lab.child()
    until(lambda: len(pool.workers()) == 2)
    strict.send(signal.SIGTERM)
    until(lambda: is_leaving(pool) or strict.process.poll() is not None)
    # either it is waited for, or the process dies before anybody else begins
    never(lambda: len(lab.begun("k")) > 1 and strict.process.poll() is None, "another began", STRICT + 1)
    lab.let_end()
    receipt.result(HANG)
    if strict.end() == 0:
        lab.assert_no_overlap()


# --- producers -------------------------------------------------------------------------------------------------------


def test_another_program_dispatches_by_position_and_by_name(lab: Lab):
    pool = lab.pool(lease=HANG)
    lab.child()

    @dataclasses.dataclass
    class Point:
        x: int
        y: int

    double = pool.declare_job("double")
    assert double.dispatch("k", Point(1, 2)).result(HANG) == {"x": 2, "y": 4}
    assert double.dispatch("k", {"x": 1, "y": 1}, 3).result(HANG) == {"x": 3, "y": 3}
    assert double.dispatch("k", point={"x": 1, "y": 1}, factor=0).result(HANG) == {"x": 0, "y": 0}
    for wrong in ((), (1,), ({"x": "a"},)):
        with pytest.raises(JobFailed, match="do not fit|expected|Expected|missing|required"):
            double.dispatch("k", *wrong).result(HANG)
    assert len(pool.admin.dead_letters("k")) == 3


def test_a_job_of_a_newer_version_waits_for_a_worker_that_knows_it_and_order_holds(lab: Lab):
    pool = lab.pool(slots=4, lease=HANG)
    lab.child()
    until(lambda: joined(pool, 1))
    do, new = pool.declare_job("do"), pool.declare_job("new")
    receipts = [do.dispatch("k", 0), new.dispatch("k", 1), do.dispatch("k", 2), new.dispatch("k", 3)]
    assert receipts[0].result(HANG) == 0
    until(lambda: [each.state for each in pool.keys()] == ["parked"])  # noqa: SIM118
    assert do.dispatch("other", 1).result(HANG) == 1
    lab.child(
        """
        @pool.job
        async def new(job: Job, number: int) -> int:
            with run(job.key, number):
                return number
        pool.run()
        """
    )
    assert [each.result(HANG) for each in receipts] == [0, 1, 2, 3]
    assert lab.begun("k") == ["0", "1", "2", "3"]
    lab.assert_no_overlap()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_a_producer_of_its_own(lab: Lab):
    """Fork while other threads dispatch: nothing is dispatched twice, nothing hangs."""
    pool = lab.pool(lease=HANG)
    lab.child()
    until(lambda: joined(pool, 1))
    script = """
    import warnings
    warnings.simplefilter("ignore")
    stop = threading.Event()
    sent = [0]
    def produce():
        while not stop.is_set() and sent[0] < 2000:
            do.dispatch("parent", sent[0])
            sent[0] += 1
            time.sleep(0.0005)
    do.dispatch("warm", 0).result(HANG)
    thread = threading.Thread(target=produce)
    thread.start()
    children = []
    for number in range(6):
        time.sleep(0.02)
        child = os.fork()
        if child == 0:
            signal.alarm(HANG)
            found = [do.dispatch(f"child{number}", each).result(HANG) for each in range(5)]
            os._exit(0 if found == list(range(5)) else 1)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    thread.join()
    last = do.dispatch("parent", sent[0])
    last.result(HANG)
    say(codes, sent[0] + 1)
    pool.close()
    """
    producer = lab.child(script)
    answer = producer.line()
    assert answer.startswith("[0, 0, 0, 0, 0, 0]"), answer
    many = int(answer.split()[-1])
    assert lab.begun("parent") == [str(number) for number in range(many)]
    for number in range(6):
        assert lab.begun(f"child{number}") == [str(each) for each in range(5)]
    assert producer.end() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_a_worker_of_its_own(lab: Lab):
    pool = lab.pool(lease=HANG)
    parent = lab.child(
        """
        import warnings
        warnings.simplefilter("ignore")
        with pool.worker():
            do.dispatch("warm", 0).result(HANG)
            child = os.fork()
            if child == 0:
                pool.run()
                os._exit(0)
            say(child)
            hear()
            os.kill(child, signal.SIGTERM)
            say("child", os.waitpid(child, 0)[1])
        say("left")
        """
    )
    int(parent.line())
    until(lambda: joined(pool, 2))
    do = pool.declare_job("do")
    for each in [do.dispatch(f"k{number}", number) for number in range(40)]:
        each.result(HANG)
    assert len({pid for _, pid, words in lab.events() if words[1].startswith("k")}) == 2
    parent.say()
    assert parent.line() == "child 0" and parent.line() == "left" and parent.end() == 0
    assert pool.workers() == []
    lab.assert_no_overlap()


def test_a_producer_that_is_killed_leaves_its_jobs(lab: Lab):
    pool = lab.pool(lease=HANG)
    producer = lab.child(
        """
        number = 0
        while True:
            do.dispatch("k", number)
            say(number)
            number += 1
        """
    )
    seen = [int(producer.line()) for _ in range(50)]
    producer.send(signal.SIGKILL)
    producer.end()
    rest = producer.process.stdout.read().split() if producer.process.stdout else []
    last = int(rest[-1]) if rest else seen[-1]
    lab.child()
    becomes(lambda: pool.statistics().jobs, 0)
    begun = [int(each) for each in lab.begun("k")]
    assert begun in (list(range(last + 1)), list(range(last + 2)))


# --- many ------------------------------------------------------------------------------------------------------------


def test_a_rolling_restart_loses_nothing_and_never_runs_a_resident_twice(lab: Lab):
    pool = lab.pool(lease=HANG)
    workers = [lab.child() for _ in range(3)]
    until(lambda: joined(pool, 3))
    do, stay = pool.declare_job("do", keep_result=0), pool.declare_resident("stay")
    keys = [f"k{number}" for number in range(10)]
    for key in keys:
        stay.start(key)
    stop = threading.Event()
    sent = [0]

    def produce() -> None:
        while not stop.is_set():
            for key in keys:
                do.dispatch(key, sent[0], pause=0.001)
                stay.notify(key, sent[0])
            sent[0] += 1
            time.sleep(0.01)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for index in range(3):
            workers[index].send(signal.SIGTERM)
            assert workers[index].end() == 0
            workers[index] = lab.child()
            until(lambda: joined(pool, 3))
    finally:
        stop.set()
        thread.join()
    becomes(lambda: pool.statistics().jobs, 0)
    numbers = [str(number) for number in range(sent[0])]

    def got(key: str) -> list[str]:
        return [words[2] for _, _, words in lab.events() if words[:2] == ["got", f"r-{key}"]]

    until(lambda: all(got(key)[-1:] == numbers[-1:] for key in keys))
    lab.assert_no_overlap()
    for key in keys:
        assert lab.begun(key) == numbers
        assert [number for number, _ in itertools.groupby(got(key))] == numbers
    assert pool.statistics().recovered_total == 0
    until(lambda: len([key for key in lab.running() if key.startswith("r-")]) == 10)


def test_a_worker_in_this_process_and_one_in_another_share_the_keys(lab: Lab):
    pool = lab.pool(lease=HANG)

    @pool.job
    async def do(job: Job, number: int, pause: float = 0.0) -> int:
        return -number

    lab.child()
    with pool.worker():
        until(lambda: joined(pool, 2))
        found = [each.result(HANG) for each in [do.dispatch(f"k{number}", number) for number in range(1, 60)]]
        assert min(found) < 0 < max(found)
    until(lambda: joined(pool, 1))
    assert do.dispatch("k1", 1).result(HANG) == 1


def test_two_signals_end_a_worker_whose_store_never_answered():
    """It has nothing that could be told to stop, and ends all the same."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = (
            "import logging, os, signal, threading\n"
            "from millpond import KeyedPool\n"
            f"pool = KeyedPool('p', 'redis://127.0.0.1:{silent.getsockname()[1]}/0')\n"
            "pool.job(lambda job: None, name='f')\n"
            "def strike():\n"
            "    input()\n"
            "    os.kill(os.getpid(), signal.SIGTERM)\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "threading.Thread(target=strike, daemon=True).start()\n"
            "pool.run()\n"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        connection, _ = silent.accept()  # it asks, and will never hear
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        _, errors = child.communicate(timeout=HANG)
        connection.close()
    assert "AttributeError" not in errors and "Traceback" not in errors
    assert "hurries" in errors and child.returncode == -signal.SIGINT


# -- a heart outside the interpreter ----------------------------------------------------------------------------------


def pids(pool: KeyedPool) -> list[int]:
    """Return the processes of the workers.

    Not their ids: one that stood still asks the store for a moment before it stops what runs, and on a busy machine that
    may be too short. Then it joins anew, and what it ran has run once all the same.
    """
    return sorted(int(each.label.rpartition(":")[2]) for each in pool.workers())


HOLD = """
@pool.job(max_attempts=1)
def hold(job: Job, seconds: float) -> int:
    note('hold', job.attempt)
    until, times = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        sum(range(10**8)); times += 1
    return times
sys.setswitchinterval(1000)
"""
"""A program with a job that holds the GIL."""


@pytest.mark.parametrize("lab", ["redis"], indirect=True)
def test_a_killed_worker_is_known_to_be_dead_at_once(lab: Lab):
    """The lease is ten minutes: nobody waits for it."""
    pool = lab.pool(lease=600)
    first = lab.child()
    until(lambda: joined(pool, 1))  # it has claimed what it owns: its heart knows whose death to tell
    second = lab.child()
    until(lambda: joined(pool, 2))
    (survivor,) = (each.id for each in pool.workers() if each.label.endswith(f":{second.pid}"))
    first.send(signal.SIGKILL)
    until(lambda: {each.owner for each in pool.slots()} == {survivor})
    assert [each.id for each in pool.workers()] == [survivor]


def test_a_function_that_holds_the_gil_past_the_lease_runs_once(lab: Lab):
    pool = lab.pool(lease=5.0)
    holder, other = lab.child(HOLD + "pool.run()"), lab.child(HOLD + "pool.run()")
    until(lambda: joined(pool, 2))
    assert pool.declare_job("hold").dispatch("k", 15.0).result(HANG) >= 1
    until(lambda: pids(pool) == sorted([holder.pid, other.pid]))
    assert [words for _, _, words in lab.events() if words[0] == "hold"] == [["hold", "1"]]
    assert holder.process.poll() is None and other.process.poll() is None


@pytest.mark.parametrize("lab", ["redis"], indirect=True)
@pytest.mark.parametrize(
    "trouble",
    [
        "import tempfile; os.memfd_create = None; del os.memfd_create; tempfile.tempdir = '/nowhere'",
        "sys.frozen = True",
        "sys.executable = None",
        "sys.executable = '/nowhere/python'",
        "sys.executable = '/bin/false'",
        "from millpond.keyed.stores.redis import _outer_heart; _outer_heart.PROGRAM = '/nowhere.py'",
        "os.close(0)",
    ],
)
def test_a_worker_lives_without_a_heart_outside_its_process(lab: Lab, trouble: str):
    pool = lab.pool(lease=6.0)
    child = lab.child(f"{trouble}\npool.run()")
    until(lambda: joined(pool, 1))
    (before,) = pool.workers()
    assert pool.declare_job("do").dispatch("k", 1).result(HANG) == 1
    looks = [before]

    def is_renewed() -> bool:
        looks.extend(pool.workers())
        return looks[-1].lease_left > looks[-2].lease_left

    until(is_renewed, "it renews by itself")
    assert {each.id for each in looks} == {before.id}
    child.send(signal.SIGTERM)
    assert child.end() == 0


def heart_of(child: Child) -> psutil.Process:
    """Return the heart of a worker, which is started when the worker is a member already."""
    (heart,) = until(psutil.Process(child.pid).children, "its heart lives")
    return heart


@pytest.mark.parametrize("lab", ["redis"], indirect=True)
def test_a_heart_that_was_killed_is_replaced_and_does_its_work(lab: Lab):
    pool = lab.pool(lease=3.0)
    first, second = lab.child(), lab.child()
    until(lambda: joined(pool, 2))
    heart = heart_of(first)
    heart.kill()
    until(
        lambda: [one.pid for one in psutil.Process(first.pid).children() if one.is_running()] not in ([], [heart.pid])
    )
    first.send(signal.SIGKILL)
    until(lambda: [each.label.rpartition(":")[2] for each in pool.workers()] == [str(second.pid)])


@pytest.mark.parametrize("lab", ["redis"], indirect=True)
def test_a_process_that_became_another_program_is_no_worker(lab: Lab):
    """Its pid lives on and computes, but its lease ends, and nobody is left who would keep it."""
    pool = lab.pool(lease=1.0)
    child = lab.child(
        """
        worker = pool.worker()
        worker.__enter__()
        hear()
        os.execv(sys.executable, [sys.executable, "-c", "while True: pass"])
        """
    )
    until(lambda: joined(pool, 1))
    heart = heart_of(child)
    child.say()
    until(lambda: heart.status() == psutil.STATUS_ZOMBIE, "its heart has ended")
    until(lambda: all(each.lease_left < 0 for each in pool.workers()))
    child.send(signal.SIGKILL)


def test_two_workers_of_one_process_that_hold_the_gil_keep_their_leases(lab: Lab):
    pool = lab.pool(lease=5.0)
    both = "with pool.worker(), pool.worker():\n    hear()\n"
    holder, other = lab.child(HOLD + both), lab.child(HOLD + "pool.run()")
    until(lambda: joined(pool, 3))
    keys = [f"k{number}" for number in range(50)]
    mine = next(key for key in keys if worker_pid(pool, key) == holder.pid)
    assert pool.declare_job("hold").dispatch(mine, 15.0).result(HANG) >= 1
    until(lambda: pids(pool) == sorted([holder.pid, holder.pid, other.pid]))
    assert [words for _, _, words in lab.events() if words[0] == "hold"] == [["hold", "1"]]
    holder.say()
    assert holder.end() == 0 and other.process.poll() is None


def test_a_strict_worker_has_its_whole_lease(lab: Lab):
    """It is ended when its lease is over, not when it is to stop what runs: there is a fifth of it in between."""
    pool = lab.pool(lease=15.0)  # a fifth of which is enough for a busy machine
    child = lab.child(
        """
        can_be_away(pool)
        with pool.worker(strict=True) as worker:
            worker.wait(HANG)
        """
    )
    until(lambda: joined(pool, 1))
    receipt = pool.declare_job("wait").dispatch("k", 1)
    until(lambda: "k" in lab.running())
    child.say()
    assert child.line() == "away"
    assert child.end() == -signal.SIGALRM
    began, ended = (at for at, _, words in lab.events() if words[0] in ("begin", "end") and words[1] == "k")
    assert ended > began, "the handler was stopped before the process was ended"
    assert receipt.status() in ("waiting", "running")

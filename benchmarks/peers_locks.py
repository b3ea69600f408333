"""The rivals of resource pools, and what all of them have to do. Not a benchmark itself: `resources_*.py` ask with it.

A `Peer` is one waiter: `acquire()` waits for one of the locks and says which it got, `release()` gives it back; both
may be coroutines, then the waiters of a process are tasks of one event loop, else they are threads. What the waiters
of a process share (a client, a pool) is made by `connect`, and where it all lives (a folder, a server) by `place`, once
for all processes. To let another kind take part, subclass `Peer` in any file and hand the class to a workload:

    uncontended   one waiter, one lock: microseconds per acquire + release
    contended     8 processes, one lock, held for 1 ms: grants per process and how evenly, waits, hand-over
    crowd         4 processes of 25 waiters each, 10 locks, not held at all: the same, and grants per second

Processes are separate interpreters. Each says when it is ready; then all begin at the same instant of the monotonic
clock, which the processes of a machine share. They note four things of each grant: which lock, when asked for, when
got, when given back. All figures, also that no lock was ever held twice, come from those notes.

A mutex has no "any of these ten": its waiter picks one at random and stays with it, as programs do. A pool gives
whichever is free first. That difference is part of what is measured, and has to be said beside the numbers.

usage: python benchmarks/peers_locks.py [--seconds S] [PEER ...]     (tries the peers, prints a line of JSON for each)
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import inspect
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from harness import Skip

HERE = Path(__file__).parent
HEAD_START = 0.1
"""Seconds from the word to the beginning, for every process to have heard it."""
FOR_EVER = 120.0
"""Seconds that no waiter waits; for peers that must be given a limit."""


class Peer:
    """One waiter at locks 0 to `locks` - 1."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @contextmanager
    def place(cls, locks: int) -> Iterator[str]:
        """Yield where the locks are: a folder that every process can use."""
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
            yield folder

    @classmethod
    def connect(cls, place: str) -> Any:
        """Return what all waiters of this process share; may be a coroutine."""
        return place

    @classmethod
    def disconnect(cls, shared: Any) -> Any:
        """End what `connect` made; may be a coroutine."""

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Return what was measured, by name."""
        found = {}
        for package in cls.packages:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                found[package] = "missing"
        return found

    @classmethod
    def require(cls) -> None:
        """Raise `Skip` if something that it needs is not installed."""
        missing = [package for package, found in cls.versions().items() if found == "missing"]
        if missing:
            raise Skip(f"{', '.join(missing)} not installed")

    def __init__(self, shared: Any, locks: int, seed: int) -> None:
        self.dice = random.Random(seed)
        self.locks = [self.make(shared, number) for number in range(locks)]
        self.held = 0

    def make(self, shared: Any, number: int) -> Any:
        """Return this waiter's own handle of one lock."""
        raise NotImplementedError

    def pick(self) -> Any:
        self.held = self.dice.randrange(len(self.locks)) if len(self.locks) > 1 else 0
        return self.locks[self.held]

    def acquire(self) -> Any:
        self.pick().acquire()
        return self.held

    def release(self) -> Any:
        self.locks[self.held].release()


class Flock(Peer):
    """The kernel alone: what a lock between processes costs at least."""

    name = "flock(2)"

    def make(self, shared: str, number: int) -> int:
        return os.open(f"{shared}/{number}.lock", os.O_RDWR | os.O_CREAT)

    def acquire(self) -> int:
        fcntl.flock(self.pick(), fcntl.LOCK_EX)
        return self.held

    def release(self) -> None:
        fcntl.flock(self.locks[self.held], fcntl.LOCK_UN)


class FileLock(Peer):
    """filelock as it comes: tries again every 50 ms."""

    name = "filelock"
    packages = ("filelock",)

    def make(self, shared: str, number: int) -> Any:
        import filelock

        return filelock.FileLock(f"{shared}/{number}.lock")


class Portalocker(Peer):
    """portalocker, which tries again every 250 ms; its limit of 5 s is raised, for it raises an error then."""

    name = "portalocker"
    packages = ("portalocker",)

    def make(self, shared: str, number: int) -> Any:
        import portalocker

        return portalocker.Lock(f"{shared}/{number}.lock", timeout=FOR_EVER)


class RedisLock(Peer):
    """redis-py's Lock as it comes: tries again every 100 ms, one connection for each thread that needs one."""

    name = "redis-py Lock"
    packages = ("redis", "hiredis")
    sleep: ClassVar[float] = 0.1

    @classmethod
    @contextmanager
    def place(cls, locks: int) -> Iterator[str]:
        from millpond.testing._redis import redis_server

        with redis_server() as server:
            yield server.url

    @classmethod
    def versions(cls) -> dict[str, str]:
        from millpond.testing._redis import find_redis_server

        said = subprocess.run(
            [str(find_redis_server()), "--version"], capture_output=True, text=True, timeout=20
        ).stdout
        return {**super().versions(), "server": said.split(" sha=")[0].strip()}

    @classmethod
    def connect(cls, place: str) -> Any:
        import redis

        return redis.Redis.from_url(place)

    @classmethod
    def disconnect(cls, shared: Any) -> Any:
        shared.close()

    def make(self, shared: Any, number: int) -> Any:
        return shared.lock(f"lock-{number}", sleep=self.sleep)


class RedisLockQuick(RedisLock):
    """The same, told to try again every 10 ms."""

    name = "redis-py Lock, sleep 0.01"
    sleep = 0.01


class AsyncRedisLock(RedisLock):
    """redis-py's Lock for asyncio, as it comes."""

    name = "redis-py asyncio Lock"

    @classmethod
    def connect(cls, place: str) -> Any:
        import redis.asyncio

        return redis.asyncio.Redis.from_url(place)

    @classmethod
    async def disconnect(cls, shared: Any) -> None:
        await shared.aclose()

    async def acquire(self) -> int:
        await self.pick().acquire()
        return self.held

    async def release(self) -> None:
        await self.locks[self.held].release()


class AsyncRedisLockQuick(AsyncRedisLock):
    """The same, told to try again every 10 ms."""

    name = "redis-py asyncio Lock, sleep 0.01"
    sleep = 0.01


PEERS: list[type[Peer]] = [
    Flock,
    FileLock,
    Portalocker,
    RedisLock,
    RedisLockQuick,
    AsyncRedisLock,
    AsyncRedisLockQuick,
]


# --- workloads --------------------------------------------------------------------------------------------------------


def uncontended(peer: type[Peer], *, number: int = 3000) -> dict[str, Any]:
    """Acquire and release one lock that nobody else wants."""
    with peer.place(1) as place:
        (took,) = _in_processes(peer, place, 1, {"do": "alone", "number": number})
    mean = statistics.fmean(took)
    return {
        **_about(peer, "uncontended", number=number),
        "us_mean": round(mean * 1e6, 2),
        "us_p50": round(statistics.median(took) * 1e6, 2),
        "us_p99": round(_quantile(took, 0.99) * 1e6, 2),
        "per_s": round(1 / mean),
    }


def contended(peer: type[Peer], *, processes: int = 8, seconds: float = 4.0, hold: float = 0.001) -> dict[str, Any]:
    """Run many processes that want one lock, and hold it for a moment."""
    return _storm(peer, "contended", processes=processes, waiters=1, locks=1, seconds=seconds, hold=hold)


def crowd(
    peer: type[Peer],
    *,
    processes: int = 4,
    waiters: int = 25,
    locks: int = 10,
    seconds: float = 4.0,
    hold: float = 0.0,
) -> dict[str, Any]:
    """Run many waiters of a few processes that want one of some locks, and give it back at once."""
    return _storm(peer, "crowd", processes=processes, waiters=waiters, locks=locks, seconds=seconds, hold=hold)


def _storm(peer: type[Peer], workload: str, **params: Any) -> dict[str, Any]:
    with peer.place(params["locks"]) as place:
        notes = _in_processes(peer, place, params["processes"], {"do": "storm", **params})
    end = params["seconds"]
    by_process = [sum(got <= end for waiter in process for _, _, got, _ in waiter) for process in notes]
    by_waiter = [sum(got <= end for _, _, got, _ in waiter) for process in notes for waiter in process]
    grants = sorted((each for process in notes for waiter in process for each in waiter), key=lambda each: each[2])
    waits = [got - asked for _, asked, got, _ in grants]
    handovers, overlaps = _handovers(grants)
    return {
        **_about(peer, workload, **params),
        "grants_per_s": round(sum(by_process) / end, 1),
        "per_process": sorted(by_process),
        "per_waiter": [min(by_waiter), max(by_waiter)],
        "ratio_processes": _ratio(by_process),
        "ratio_waiters": _ratio(by_waiter),
        "wait_ms": _summary(waits),
        "handover_ms": _summary(handovers),
        "overlaps": overlaps,
    }


def _handovers(grants: list[Any]) -> tuple[list[float], int]:
    """Return the seconds from giving a lock back to another waiter having it, where one waited; and double grants."""
    seconds, overlaps = [], 0
    last: dict[Any, float] = {}
    for lock, asked, got, left in grants:
        free = last.get(lock)
        if free is not None:
            if got < free:
                overlaps += 1
            elif asked < free:
                seconds.append(got - free)
        last[lock] = left
    return seconds, overlaps


def _ratio(counts: list[int]) -> float:
    """Return the most over the fewest; who got nothing counts as one."""
    return round(max(counts) / max(1, min(counts)), 3)


def _summary(seconds: list[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    figures = {"p50": _quantile(seconds, 0.5), "p99": _quantile(seconds, 0.99), "max": max(seconds)}
    return {name: round(value * 1e3, 3) for name, value in figures.items()}


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _about(peer: type[Peer], workload: str, **params: Any) -> dict[str, Any]:
    return {"workload": workload, "peer": peer.name, "params": params, "versions": peer.versions()}


# --- processes --------------------------------------------------------------------------------------------------------


def _in_processes(peer: type[Peer], place: str, number: int, work: dict[str, Any]) -> list[Any]:
    """Run processes that do the same at the same time, and return what each of them noted."""
    file = str(Path(inspect.getfile(peer)).resolve())
    children = []
    try:
        for index in range(number):
            task = {**work, "file": file, "peer": peer.__name__, "place": place, "index": index}
            command = [sys.executable, str(HERE / "peers_locks.py"), "--child", json.dumps(task)]
            children.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
        for child in children:
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise RuntimeError(f"{peer.name} did not get ready:\n{child.communicate(timeout=10)[1]}")
        start = f"{time.monotonic() + HEAD_START}\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write(start)
            child.stdin.flush()
        return [json.loads(text) for text in _outputs(peer, children, work.get("seconds", 0) + FOR_EVER)]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()


def _outputs(peer: type[Peer], children: list[subprocess.Popen[str]], limit: float) -> list[str]:
    """Read all of them at once, lest one waits for its pipe to be emptied while it holds a lock."""
    outputs: list[tuple[str, str]] = [("", "")] * len(children)

    def read(index: int) -> None:
        outputs[index] = children[index].communicate(timeout=limit)

    readers = [threading.Thread(target=read, args=(index,)) for index in range(len(children))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for child, (_, error) in zip(children, outputs, strict=True):
        if child.returncode:
            raise RuntimeError(f"{peer.name} failed ({child.returncode}):\n{error}")
    return [output for output, _ in outputs]


def _child(task: dict[str, Any]) -> None:
    peer = _load(task["file"], task["peer"])
    is_async = inspect.iscoroutinefunction(peer.acquire)
    if is_async:
        notes = asyncio.run(_async_child(peer, task))
    else:
        shared = peer.connect(task["place"])
        waiters = _waiters(peer, shared, task)
        start = _wait_for_the_word()
        notes = _alone(waiters[0], task) if task["do"] == "alone" else _threads(waiters, start, task)
        peer.disconnect(shared)
    json.dump(notes, sys.stdout)


def _load(file: str, name: str) -> type[Peer]:
    if Path(file) == Path(__file__).resolve():
        return globals()[name]
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[Path(file).stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _waiters(peer: type[Peer], shared: Any, task: dict[str, Any]) -> list[Any]:
    number = task.get("waiters", 1)
    return [peer(shared, task.get("locks", 1), task["index"] * 1000 + each) for each in range(number)]


def _wait_for_the_word() -> float:
    print("ready", flush=True)
    return float(sys.stdin.readline())


def _alone(waiter: Any, task: dict[str, Any]) -> list[float]:
    clock, acquire, release = time.perf_counter, waiter.acquire, waiter.release
    took = []
    for turn in range(task["number"] + 50):
        began = clock()
        acquire()
        release()
        if turn >= 50:  # warm by then
            took.append(clock() - began)
    return took


def _threads(waiters: list[Any], start: float, task: dict[str, Any]) -> list[list[Any]]:
    notes: list[list[Any]] = [[] for _ in waiters]
    failed: list[BaseException] = []

    def work(waiter: Any, note: list[Any]) -> None:
        clock, hold, end = time.monotonic, task["hold"], start + task["seconds"]
        time.sleep(max(0.0, start - clock()))
        try:
            while (asked := clock()) < end:
                lock = waiter.acquire()
                got = clock()
                if hold:
                    time.sleep(hold)
                left = clock()
                waiter.release()
                note.append((lock, asked - start, got - start, left - start))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(waiters, notes, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return notes


async def _async_child(peer: type[Peer], task: dict[str, Any]) -> list[Any]:
    shared = peer.connect(task["place"])
    if inspect.isawaitable(shared):
        shared = await shared
    waiters = _waiters(peer, shared, task)
    start = await asyncio.to_thread(_wait_for_the_word)
    if task["do"] == "alone":
        notes: list[Any] = await _async_alone(waiters[0], task)
    else:
        notes = await asyncio.gather(*(_async_work(waiter, start, task) for waiter in waiters))
    ending = peer.disconnect(shared)
    if inspect.isawaitable(ending):
        await ending
    return notes


async def _async_alone(waiter: Any, task: dict[str, Any]) -> list[float]:
    clock, acquire, release = time.perf_counter, waiter.acquire, waiter.release
    took = []
    for turn in range(task["number"] + 50):
        began = clock()
        await acquire()
        await release()
        if turn >= 50:
            took.append(clock() - began)
    return took


async def _async_work(waiter: Any, start: float, task: dict[str, Any]) -> list[Any]:
    clock, hold, end = time.monotonic, task["hold"], start + task["seconds"]
    note = []
    await asyncio.sleep(max(0.0, start - clock()))
    while (asked := clock()) < end:
        lock = await waiter.acquire()
        got = clock()
        if hold:
            await asyncio.sleep(hold)
        left = clock()
        await waiter.release()
        note.append((lock, asked - start, got - start, left - start))
    return note


# --- to try it --------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    seconds = 4.0
    if arguments[:1] == ["--seconds"]:
        seconds, arguments = float(arguments[1]), arguments[2:]
    peers = [peer for peer in PEERS if not arguments or peer.__name__ in arguments]
    for peer, workload in itertools.product(peers, (uncontended, contended, crowd)):
        result = uncontended(peer) if workload is uncontended else workload(peer, seconds=seconds)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.modules["peers_locks"] = sys.modules["__main__"]
    if sys.argv[1:2] == ["--child"]:
        _child(json.loads(sys.argv[2]))
    else:
        main(sys.argv[1:])

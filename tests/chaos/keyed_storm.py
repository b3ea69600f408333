"""A pool, its workers and producers as real processes, and what befalls them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import psutil
from keyed_checker import Checker
from keyed_log import Log

from millpond import KeyedPool
from millpond.errors import EngineUnavailable
from waiting import HANG, until

HERE = Path(__file__).parent
POOL = "storm"
LEASE = 1.0
ALL = -1
T = TypeVar("T")


def seed() -> int:
    """Return a seed, and print it; `CHAOS_SEED` repeats one."""
    chosen = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 30))
    print(f"CHAOS_SEED={chosen}")
    return chosen


class Storm:
    """`url_of(name)` gives each process its way to the store, so that a proxy may stand in it."""

    def __init__(
        self,
        folder: Path,
        url: str,
        seed: int,
        *,
        workers: int = 5,
        producers: int = 2,
        rate: float = 400,
        keys: int = 150,
        residents: int = 6,
        lease: float | None = LEASE,
        grace: float = 2 * HANG,
        concurrency: int = 20,
        pool: dict[str, Any] | None = None,
        url_of: Callable[[str], str] | None = None,
        shared_fate: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.path = folder / "events"
        self.log = Log(self.path)
        self.settings: dict[str, Any] = {"max_losses": 1000, **(pool or {})}
        if lease is not None:
            self.settings["lease"] = lease
        self.lease = 5.0 if lease is None else lease
        self.url_of = url_of or (lambda name: url)
        self.size, self.producer_count, self.rate, self.keys = workers, producers, rate, keys
        self.worker_options = {"concurrency": concurrency, "grace": grace}
        self.shared_fate = shared_fate
        self.pool = KeyedPool(POOL, url, **self.settings)
        self.residents = [self.pool.declare_resident(name) for name in ("stay", "abide")]
        self.resident_count = residents
        self.jobs = {name: self.pool.declare_job(name, keep_result=0) for name in ("flow", "call")}
        self.numbers: dict[str, int] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.leaving: list[subprocess.Popen[bytes]] = []
        self.producers: dict[str, subprocess.Popen[bytes]] = {}
        self.names: dict[int, str] = {}
        """Of every process that there was."""
        self.timers: list[threading.Timer] = []
        self.frozen: set[int] = set()
        self.kills = 0
        """Of processes that had begun: had run or dispatched something."""
        self.notes = 0
        self._numbers = itertools.count()
        self._read = 0
        self._seen: Counter[tuple[str, int]] = Counter()
        self._fates: list[str] = []
        """The lines of the log that tell where residents run."""
        self.complaints = open(folder / "complaints", "ab")

    # -- people -------------------------------------------------------------------------------------------------------

    def start(self) -> Storm:
        for index in range(self.resident_count):
            self.start_resident(f"resident-{index}")
        for _ in range(self.size):
            self.join()
        self.fill()
        return self

    def join(self) -> subprocess.Popen[bytes]:
        options = {"pool": self.settings, "worker": self.worker_options, "seed": self.random.randrange(1 << 30)}
        worker = self._spawn("keyed_worker.py", f"worker-{next(self._numbers)}", options)
        self.workers.append(worker)
        return worker

    def fill(self) -> None:
        """Replace those who are gone."""
        while len(self.workers) < self.size:
            self.join()
        for index in range(self.producer_count):
            name = f"p{index}"
            if name not in self.producers:
                options = {
                    "name": name,
                    "keys": self.keys // self.producer_count,
                    "threads": 2,
                    "rate": self.rate / self.producer_count,
                    "seed": self.random.randrange(1 << 30),
                    "pool": self.settings,
                }
                self.producers[name] = self._spawn("keyed_producer.py", name, options)

    def _spawn(self, program: str, name: str, options: dict[str, Any]) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / program), self.url_of(name), str(self.path), json.dumps(options)]
        process = subprocess.Popen(command, stderr=self.complaints)
        while process.pid in self.names:  # the number of one that is gone: the log could not tell them apart
            process.kill()
            process.wait()
            process = subprocess.Popen(command, stderr=self.complaints)
        self.names[process.pid] = name
        return process

    def start_resident(self, key: str) -> None:
        self.insist(lambda: self._resident(key).start(key))
        self.log.write("+", key)

    def stop_resident(self, key: str) -> None:
        self.insist(lambda: self._resident(key).stop(key))
        self.log.write("-", key)

    def insist(self, call: Callable[[], T]) -> T:
        """Do something that may be done twice, again and again while the store does not answer."""
        deadline = time.monotonic() + HANG
        while True:
            try:
                return call()
            except EngineUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def notify(self) -> None:
        """Send a message to a resident."""
        key = f"resident-{self.random.randrange(self.resident_count)}"
        self.notes += 1
        try:
            self._resident(key).notify(key, self.notes)
        except EngineUnavailable:
            return  # whether it will be heard is unknown
        self.log.write("N", key, self.notes)

    def dispatch(self, job: str, key: str, seconds: float) -> int:
        """Dispatch the next job of a key that no producer has; return its number."""
        self.numbers[key] = number = self.numbers.get(key, 0) + 1
        self.log.write("D", key, number)
        self.jobs[job].dispatch(key, number, seconds)
        self.log.write("A", key, number)
        return number

    def _resident(self, key: str) -> Any:
        return self.residents[int(key.rpartition("-")[2]) % 2]

    # -- fates --------------------------------------------------------------------------------------------------------

    def kill(self, victim: subprocess.Popen[bytes], *, machine: bool = False) -> None:
        """End a process with no time to say anything; with `machine` also the heart beside it, which would tell."""
        hearts = psutil.Process(victim.pid).children() if machine else []
        self.kills += self.count("S", victim.pid) + self.count("A", victim.pid) > 0
        now = time.monotonic()  # a store that can prove death is quicker than we are to hear of it
        for heart in hearts:
            heart.kill()
        victim.kill()
        victim.wait()
        self.log.write("K", pid=victim.pid, at=now)
        self.log.write("G", pid=victim.pid)
        for crowd in (self.workers, self.leaving):
            if victim in crowd:
                crowd.remove(victim)
        for name, producer in list(self.producers.items()):
            if producer is victim:
                del self.producers[name]

    def freeze(self, victim: subprocess.Popen[bytes], seconds: float | None = None) -> None:
        """Stop a process for a while, or until `thaw`. One that stands still already is left alone."""
        if victim.pid in self.frozen:
            return
        self.frozen.add(victim.pid)
        now = time.monotonic()
        victim.send_signal(signal.SIGSTOP)
        until(lambda: _states(victim.pid) <= set("TZX"), "it stands still")
        self.log.write("P", pid=victim.pid)
        self.log.write("I", f"{now:.6f}", pid=victim.pid)
        if seconds is not None:
            timer = threading.Timer(seconds, self.thaw, [victim])
            timer.start()
            self.timers.append(timer)

    def outlast(self) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
        """Stop a worker until others have taken over its residents; return it, and them with the tokens that it has."""
        patience = 3 * self.lease if self.shared_fate else HANG
        while True:
            victim = self.holder()
            self.freeze(victim)
            held = self.held_by(victim)
            others = [one for one in self.workers if one is not victim]
            with contextlib.suppress(AssertionError) if self.shared_fate else contextlib.nullcontext():
                until(lambda: held and self.have_all(others, held), timeout=patience)  # noqa: B023
                return victim, held
            self.thaw(victim)  # who is stopped within a transaction holds up a SQLite file for all: strike again
            patience *= 2

    def thaw(self, victim: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if victim.poll() is None:
            self.log.write("C", pid=victim.pid, at=now)
            victim.send_signal(signal.SIGCONT)
        self.frozen.discard(victim.pid)

    def dismiss(self, worker: subprocess.Popen[bytes]) -> None:
        """Ask a worker to leave."""
        self.log.write("T", pid=worker.pid)
        worker.terminate()
        self.workers.remove(worker)
        self.leaving.append(worker)

    def reap(self, timeout: float = 0.0) -> None:
        """See how those ended who were asked to leave."""
        deadline = time.monotonic() + timeout
        for worker in list(self.leaving):
            try:
                code = worker.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
            self.log.write("X", code, pid=worker.pid)
            self.leaving.remove(worker)

    def _listen(self) -> None:
        """Take note of what was written to the log since."""
        with open(self.path, "rb") as file:
            file.seek(self._read)
            new = file.read()
        end = new.rfind(b"\n") + 1
        self._read += end
        for line in new[:end].decode().splitlines():
            words = line.split()
            for word in {words[0], words[-1]}:
                self._seen[word, int(words[2])] += 1
                self._seen[word, ALL] += 1
            if words[0] in "+-KX" or (words[0] in "SE" and words[3] == "r"):
                self._fates.append(line)

    def count(self, what: str, pid: int = ALL) -> int:
        """Return how many lines with this first or last word stand in the log, of a process or of all."""
        self._listen()
        return self._seen[what, pid]

    def members(self) -> set[int]:
        """Return the workers that have joined, are not gone and do not stand still."""
        self._listen()
        return {one.pid for one in self.workers if self._seen["joined", one.pid] and _state(one.pid) != "T"}

    def gather(self, count: int) -> None:
        """Wait until so many workers are members: where cores are few it takes long to start a process."""
        try:
            until(lambda: len(self.members()) >= count)
        except AssertionError:
            raise AssertionError(f"{len(self.members())} of {count} workers joined: {self.said()}") from None

    def at_work(self) -> list[subprocess.Popen[bytes]]:
        """Return the workers that have run something and do not stand still."""
        members = self.members()
        return [one for one in self.workers if one.pid in members and self._seen["S", one.pid]]

    def held_by(self, worker: subprocess.Popen[bytes]) -> dict[str, int]:
        """Return the residents that run on a worker, with their tokens."""
        self._listen()
        runs = Checker(self._fates, lease=self.lease).runs
        return {run.key: run.token for run in runs if run.pid == worker.pid and run.ended == inf}

    def have_all(self, workers: Iterable[subprocess.Popen[bytes]], residents: Iterable[str]) -> bool:
        """Return whether these residents run on these workers."""
        return set(residents) <= set().union(*map(self.held_by, workers))

    def holder(self, count: int = 1) -> subprocess.Popen[bytes]:
        """Wait for a worker that runs so many residents while all of them run, and return it."""

        def find() -> subprocess.Popen[bytes] | None:
            if not self.residents_run():
                return None
            return next((one for one in self.workers if len(self.held_by(one)) >= count), None)

        found = until(find, f"a worker runs {count} residents")
        assert found is not None
        return found

    def said(self) -> str:
        """Return the last words of the processes to people."""
        self.complaints.flush()
        return (self.folder / "complaints").read_text()[-3000:]

    def strike(self) -> None:
        """Do one thing to somebody."""
        self.fill()
        self.reap()
        until(lambda: len(self.at_work()) >= self.size // 2, "half of the workers are at work")
        dice = self.random.random()
        worker = self.random.choice(self.workers)
        if dice < 0.55:
            self.kill(worker)
        elif dice < 0.62:
            self.kill(self.random.choice(list(self.producers.values())))
        elif dice < 0.76:
            self.freeze(worker, self.lease * self.random.choice([0.2, 1.5, 2.0, 2.5]))
        elif dice < 0.82:
            self.dismiss(worker)
        elif dice < 0.86:
            for _ in range(2):
                self.join()
            if len(self.workers) > self.size + 3:
                for one in self.random.sample(self.workers, 2):
                    self.dismiss(one)
        elif dice < 0.90:
            key = f"resident-{self.random.randrange(self.resident_count)}"
            self.stop_resident(key)
            self.start_resident(key)
        else:
            self.notify()

    # -- the end ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End the storm: wait until everything is done, and everybody has gone."""
        self._calm()
        for producer in self.producers.values():
            self.log.write("T", pid=producer.pid)
            producer.terminate()
        for producer in self.producers.values():
            code = producer.wait(HANG)
            self.log.write("X", code, pid=producer.pid)
        self.producers.clear()
        while len(self.workers) < min(2, self.size):
            self.join()
        self.drained = self._comes(lambda: not self.insist(self.pool.statistics).jobs)
        self.statistics = self.pool.statistics()
        self.stuck = self.pool.keys()[:10]
        self.homeless = [] if self._comes(self.residents_run) else self._where_residents_run()
        for worker in list(self.workers):
            self.dismiss(worker)
        self.reap(HANG)

    def _comes(self, question: Callable[[], bool]) -> bool:
        try:
            return until(question)
        except AssertionError:
            return False

    def _calm(self) -> None:
        for timer in self.timers:
            timer.cancel()
        for process in [*self.workers, *self.leaving, *self.producers.values()]:
            if _state(process.pid) == "T":
                self.thaw(process)
        self.fill()

    def residents_run(self) -> bool:
        """Whether each resident that is wanted runs in one process that lives."""
        return not self._where_residents_run()

    def _where_residents_run(self) -> list[str]:
        """Return what is wrong with it."""
        self._listen()
        alive = {worker.pid for worker in self.workers if worker.poll() is None}
        checker = Checker(self._fates, lease=self.lease)
        return checker.faults + checker.check_residents(alive, 0.0)

    def check(self, **allowed: Any) -> Checker:
        """Judge what happened."""
        dead = [(letter.key, letter.arguments[0]) for letter in self.pool.admin.dead_letters()]
        checker = Checker(self.path.read_text().splitlines(), lease=self.lease, shared_fate=self.shared_fate, **allowed)
        checker.check(dead)
        print(checker.summary())
        print(f"recovered {self.statistics.recovered_total} keys, moved {self.statistics.moved_total} slots")
        faults = checker.faults + self.homeless
        if not self.drained:
            faults.append(f"not drained: {self.statistics}, {self.stuck}")
        faults += [f"worker {one.pid} does not leave" for one in self.leaving]
        for pid, process in checker.processes.items():
            if process.code not in (None, 0) and (process.code != -signal.SIGTERM or pid in checker.heard_of):
                faults.append(f"process {pid} ended with {process.code}")
        if faults:
            raise AssertionError(f"{len(faults)} faults, at first:\n" + "\n".join(faults[:12]) + f"\n{self.said()}")
        assert "Traceback" not in self.said(), self.said()
        return checker

    def close(self) -> None:
        """Leave nobody behind, whatever happened."""
        for timer in self.timers:
            timer.cancel()
            timer.join()
        for process in [*self.workers, *self.leaving, *self.producers.values()]:
            process.kill()
            process.wait()
        self.pool.close()
        self.log.close()
        self.complaints.close()

    def __enter__(self) -> Storm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _state(pid: int, task: str = "") -> str:
    """Return what a process does, or a thread of it: R, S, T (stands still), Z, ...; X: it is gone."""
    try:
        return Path(f"/proc/{pid}/{task}stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _states(pid: int) -> set[str]:
    """Return what the threads of a process do."""
    try:
        return {_state(pid, f"task/{thread}/") for thread in os.listdir(f"/proc/{pid}/task")}
    except FileNotFoundError:
        return {"X"}

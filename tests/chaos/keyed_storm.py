"""A pool, its workers and producers as real processes, and what befalls them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from keyed_checker import Checker
from keyed_log import Log

from millpond import KeyedPool
from millpond.errors import EngineUnavailable

HERE = Path(__file__).parent
POOL = "storm"
LEASE = 1.0
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
        grace: float = 10.0,
        concurrency: int = 20,
        pool: dict[str, Any] | None = None,
        url_of: Callable[[str], str] | None = None,
        shared_fate: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.path = folder / "events"
        self.log = Log(self.path)
        self.settings: dict[str, Any] = {"slots": 64, "max_losses": 1000, **(pool or {})}
        if lease is not None:
            self.settings["lease"] = lease
        self.lease = 5.0 if lease is None else lease
        self.url_of = url_of or (lambda name: url)
        self.size, self.producer_count, self.rate, self.keys = workers, producers, rate, keys
        self.worker_options = {"concurrency": concurrency, "grace": grace}
        self.shared_fate = shared_fate
        self.patience = grace - 2.0
        """Seconds to leave in; handlers take less, unless their worker is stopped meanwhile."""
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
        self.kills = 0
        self.notes = 0
        self._read = 0
        self._joined: set[int] = set()
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
        worker = self._spawn("keyed_worker.py", f"worker-{len(self.workers)}", options)
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
        self.names[process.pid] = name
        return process

    def start_resident(self, key: str) -> None:
        self.insist(lambda: self._resident(key).start(key))
        self.log.write("+", key)

    def stop_resident(self, key: str) -> None:
        self.insist(lambda: self._resident(key).stop(key))
        self.log.write("-", key)

    def insist(self, call: Callable[[], T], timeout: float = 10.0) -> T:
        """Do something that may be done twice, again and again while the store does not answer."""
        deadline = time.monotonic() + timeout
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

    def kill(self, victim: subprocess.Popen[bytes]) -> None:
        """End a process with no time to say anything."""
        now = time.monotonic()  # a store that can prove death is quicker than we are to hear of it
        victim.kill()
        victim.wait()
        self.log.write("K", pid=victim.pid, at=now)
        for crowd in (self.workers, self.leaving):
            if victim in crowd:
                crowd.remove(victim)
        for name, producer in list(self.producers.items()):
            if producer is victim:
                del self.producers[name]
        self.kills += 1

    def freeze(self, victim: subprocess.Popen[bytes], seconds: float) -> None:
        """Let a process stand still for a while."""
        victim.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 1
        while _state(victim.pid) not in "TZX" and time.monotonic() < deadline:
            time.sleep(0.001)
        self.log.write("P", pid=victim.pid)
        timer = threading.Timer(seconds, self.thaw, [victim])
        timer.start()
        self.timers.append(timer)

    def thaw(self, victim: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if victim.poll() is None:
            self.log.write("C", pid=victim.pid, at=now)
            victim.send_signal(signal.SIGCONT)

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

    def members(self) -> set[int]:
        """Return the workers that have joined, are not gone and do not stand still."""
        with open(self.path, "rb") as file:
            file.seek(self._read)
            new = file.read()
        end = new.rfind(b"\n") + 1
        self._read += end
        for line in new[:end].splitlines():
            if line[:1] == b"W" and line.endswith(b" joined"):
                self._joined.add(int(line.split()[2]))
        return {one.pid for one in self.workers if one.pid in self._joined and _state(one.pid) != "T"}

    def gather(self, count: int, timeout: float = 20.0) -> None:
        """Wait until so many workers are members: where cores are few it takes long to start a process."""
        if not self.wait(lambda: len(self.members()) >= count, timeout):
            raise AssertionError(f"{len(self.members())} of {count} workers joined in {timeout} s: {self.said()}")

    def said(self) -> str:
        """Return the last words of the processes to people."""
        self.complaints.flush()
        return (self.folder / "complaints").read_text()[-3000:]

    def has_happened(self, what: str, pid: int, count: int = 1) -> bool:
        """Tell whether a line of this kind stands in the log so often, of this process."""
        lines = (line.split() for line in self.path.read_text().splitlines())
        return sum(words[2] == str(pid) and what in (words[0], words[-1]) for words in lines) >= count

    def strike(self) -> None:
        """Do one thing to somebody."""
        self.fill()
        self.reap()
        self.gather(self.size // 2)
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

    def settle(self, timeout: float = 20.0) -> None:
        """Let the storm end, everything be done, and everybody go home."""
        self._calm()
        for producer in self.producers.values():
            self.log.write("T", pid=producer.pid)
            producer.terminate()
        for producer in self.producers.values():
            code = producer.wait(30)
            self.log.write("X", code, pid=producer.pid)
        self.producers.clear()
        while len(self.workers) < min(2, self.size):
            self.join()
        self.drained = self.wait(lambda: not self.insist(self.pool.statistics).jobs, timeout)
        self.statistics = self.pool.statistics()
        self.stuck = self.pool.keys()[:10]
        self.settled = self.wait(self.residents_run, timeout / 2)
        self.alive = {worker.pid for worker in self.workers if worker.poll() is None}
        self.snapshot = self.path.read_text()
        for worker in list(self.workers):
            self.dismiss(worker)
        self.reap(15.0)

    def _calm(self) -> None:
        for timer in self.timers:
            timer.cancel()
        for process in [*self.workers, *self.leaving, *self.producers.values()]:
            if _state(process.pid) == "T":
                self.thaw(process)
        self.fill()

    def residents_run(self) -> bool:
        """Whether each resident that is wanted runs in one process that lives."""
        alive = {worker.pid for worker in self.workers}
        checker = Checker(self.path.read_text().splitlines(), lease=self.lease)
        return not checker.faults and not checker.check_residents(alive, 0.0)

    def wait(self, happens: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not happens():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def check(self, **allowed: Any) -> Checker:
        """Judge what happened."""
        dead = [(letter.key, letter.arguments[0]) for letter in self.pool.admin.dead_letters()]
        checker = Checker(self.path.read_text().splitlines(), lease=self.lease, shared_fate=self.shared_fate, **allowed)
        checker.check(dead)
        print(checker.summary())
        print(f"recovered {self.statistics.recovered_total} keys, moved {self.statistics.moved_total} slots")
        snapshot = Checker(self.snapshot.splitlines(), lease=self.lease)
        snapshot.check_residents(self.alive, 0.0)
        faults = checker.faults + snapshot.faults
        if not self.drained:
            faults.append(f"not drained: {self.statistics}, {self.stuck}")
        faults += [f"worker {one.pid} does not leave" for one in self.leaving]
        for pid, process in checker.processes.items():
            if process.code not in (None, 0) and (process.code != -signal.SIGTERM or pid in checker.heard_of):
                faults.append(f"process {pid} ended with {process.code}")
        for pid, process in checker.processes.items():
            if process.gone - process.told > self.patience and process.killed == inf:
                faults.append(f"process {pid} took {process.gone - process.told:.1f} s to leave")
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


def _state(pid: int) -> str:
    """Return what a process does: R, S, T (stands still), Z, ...; X: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"

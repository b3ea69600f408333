"""Real processes, killed, stopped, forked and interrupted at random, on one SQLite file.

What must hold is checked three ways: by the kernel (every holder locks a device file, `resource_worker.py`), from the
event log (capacity, tokens, order, by a model that knows nothing of the rules' code), and at the end (nothing held,
nobody waiting, the file sound). Seeds are printed; `CHAOS_SEED` repeats one.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from millpond import NotFound, ResourcePool
from millpond.resources import _changes as to
from millpond.resources._records import Request
from millpond.resources._wire import Entry

WORKER = Path(__file__).with_name("resource_worker.py")
SHARED = "shared"


class Witness:
    """Follows the event log and knows nothing but what the words mean."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.grants = 0
        self.deaths = 0
        self.lapses = 0
        self._token = 0
        self._capacity: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._requests: dict[str, Request] = {}
        self._shares: dict[str, tuple[tuple[str, int], ...]] = {}
        self._away: set[str] = set()

    def hear(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            for change in entry.changes:
                self._hear(change)

    def _hear(self, change: to.AnyChange) -> None:
        if isinstance(change, to.Added):
            self._capacity[change.resource.name] = change.resource.capacity
        elif isinstance(change, to.Resized):
            self._capacity[change.name] = change.capacity
        elif isinstance(change, to.Asked):
            self._requests[change.request.id] = change.request.__copy__()  # type: ignore[attr-defined]
            if change.request.shares:
                self._grant(change.request.id, change.request.token, change.request.shares)
        elif isinstance(change, to.Offered | to.Held):
            self._check_order(change.id)
            self._grant(change.id, change.token, change.shares)
        elif isinstance(change, to.Adopted):
            self._check_token(change.token)
        elif isinstance(change, to.Left):
            self.lapses += 1
            self._free(change.id)
            self._away.add(change.id)
        elif isinstance(change, to.Returned):
            self._away.discard(change.id)
        elif isinstance(change, to.Ended):
            self.deaths += change.how == "died"
            self._free(change.id)
            self._requests.pop(change.id, None)
            self._away.discard(change.id)

    def _grant(self, request: str, token: int, shares: tuple[tuple[str, int], ...]) -> None:
        self.grants += 1
        self._check_token(token)
        self._shares[request] = shares
        for name, units in shares:
            self._used[name] = self._used.get(name, 0) + units
            if self._used[name] > self._capacity.get(name, 0):
                self.faults.append(f"{name}: {self._used[name]} of {self._capacity.get(name)} units given to {request}")

    def _check_token(self, token: int) -> None:
        if token <= self._token:
            self.faults.append(f"token {token} after {self._token}")
        self._token = token

    def _free(self, request: str) -> None:
        for name, units in self._shares.pop(request, ()):
            self._used[name] -= units

    def _check_order(self, request: str) -> None:
        """First come first served, among those who want the same."""
        mine = self._requests[request]
        for other in self._requests.values():
            waits = other.id not in self._shares and other.id not in self._away
            same = (other.wants, other.group, other.priority) == (mine.wants, mine.group, mine.priority)
            if waits and same and other.seq < mine.seq:
                self.faults.append(f"{request} ({mine.seq}) was served before {other.id} ({other.seq})")


class Chaos:
    """A pool, its processes, and what befalls them."""

    def __init__(self, folder: Path, seed: int, processes: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.database = folder / "pools.db"
        self.url = f"sqlite:///{self.database}"
        self.pool = ResourcePool("chaos", self.url)
        self.witness = Witness()
        self.pool._engine.watch("chaos", self.witness.hear)
        self.pool.admin.configure(patience=0.05, claim_within=0.2)
        for number in range(3):
            self.pool.add(f"disk-{number}", labels={"kind": "disk", "speed": "fast" if number else "slow"})
        self.pool.add(SHARED, capacity=3)
        self.size = processes
        self.workers: list[subprocess.Popen[bytes]] = []
        self.kills = 0

    def start(self) -> None:
        seed = str(self.random.randrange(1 << 30))
        command = [sys.executable, str(WORKER), self.url, str(self.folder), seed]
        self.workers.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    def strike(self) -> None:
        """Do one thing to somebody."""
        while len(self.workers) < self.size:
            self.start()
        victim = self.random.choice(self.workers)
        dice = self.random.random()
        if dice < 0.6:
            victim.kill()
            victim.wait()
            self.workers.remove(victim)
            self.kills += 1
        elif dice < 0.8:
            victim.send_signal(signal.SIGSTOP)  # perhaps inside the gate, so that all the others stand still
            threading.Timer(self.random.random() * 0.4, victim.send_signal, [signal.SIGCONT]).start()
        else:
            self.churn()

    def churn(self) -> None:
        """Change the set of resources under their feet."""
        name = f"disk-{self.random.randrange(3)}"
        admin = self.pool.admin
        change = self.random.randrange(6)
        try:
            if change == 0:
                admin.cordon(name, reason="chaos")
            elif change == 1:
                admin.remove(name, reason="chaos")
            elif change == 2:
                admin.relabel(name, {"kind": "disk", "speed": self.random.choice(["fast", "slow"])})
            elif change == 3:
                admin.resize(SHARED, self.random.randint(2, 4))
            else:
                admin.uncordon(name)
        except NotFound:
            self.pool.add(name, labels={"kind": "disk", "speed": "fast"}, exist_ok=True)

    def settle(self) -> None:
        """Let everybody go home, half of them by force, and see that nothing is left."""
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
        for number, worker in enumerate(self.workers):
            worker.kill() if number % 2 else worker.terminate()
        for worker in self.workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        deadline = time.monotonic() + 5
        while (self.pool.holders() or self.pool.waiters() or self.sessions() > 1) and time.monotonic() < deadline:
            time.sleep(0.01)

    def sessions(self) -> int:
        connection = sqlite3.connect(self.database)
        try:
            return int(connection.execute("SELECT count(*) FROM session").fetchone()[0])
        finally:
            connection.close()

    def check(self) -> None:
        violations = self.folder / "violations"
        assert not violations.exists(), violations.read_text()
        assert not self.witness.faults, self.witness.faults[:5]
        assert self.pool.holders() == []
        assert self.pool.waiters() == []
        statistics = self.pool.statistics()
        assert statistics.free_units == statistics.units
        assert statistics.grants_total == self.witness.grants, "the witness heard every grant once"
        self.pool.close()
        with sqlite3.connect(self.database) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("SELECT count(*) FROM session").fetchone() == (0,)
        connection.close()


def rage(folder: Path, *, processes: int, kills: int, pause: float) -> Chaos:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 30))
    print(f"CHAOS_SEED={seed}")
    chaos = Chaos(folder, seed, processes)
    try:
        while chaos.kills < kills:
            chaos.strike()
            time.sleep(chaos.random.random() * pause)
    finally:
        chaos.settle()
    chaos.check()
    witness = chaos.witness
    print(f"{chaos.kills} kills, {witness.grants} grants, {witness.deaths} freed by death, {witness.lapses} away")
    return chaos


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_forty_kills_among_stops_forks_and_churn_break_no_promise(tmp_path: Path) -> None:
    chaos = rage(tmp_path, processes=6, kills=40, pause=0.15)
    assert chaos.witness.grants > 200
    assert chaos.witness.deaths > 0


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_thousand_kills_of_thirty_two_processes_break_no_promise(tmp_path: Path) -> None:
    chaos = rage(tmp_path, processes=32, kills=1000, pause=0.15)
    assert chaos.witness.grants > 5000

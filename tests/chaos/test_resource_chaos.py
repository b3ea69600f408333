"""Real processes, killed, stopped, forked and interrupted at random, on one SQLite file, and between machines.

What must hold is checked three ways: by the kernel (every holder locks a device file, `resource_worker.py`), from the
event log (capacity, tokens, order, by a model that knows nothing of the rules' code), and at the end (nothing held,
nobody waiting, the file sound). Seeds are printed; `CHAOS_SEED` repeats one, and `CHAOS_KILLS` sizes the long storms.

The storm goes by what the workers have done, not by the clock: it strikes only those who have used a grant since they
were started, and goes on until enough of them were killed while they held something or waited for it, and, on SQLite, enough
stood still while they used it. `mutants` shows that it can fail.

Between machines the companions are killed and stopped as well, the one that decides among them. Machines are names in the
URL: as far as the engine can know, they are several.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import log_stores
from log_stores import of_machine
from millpond import NotFound, ResourcePool
from millpond.resources._engine import Engine
from millpond.resources._questions import PoolCopy, WholePool
from millpond.resources._rules import changes as to
from millpond.resources._rules.records import AWAY, Request
from millpond.resources._rules.wire import Entry, thaw
from millpond.resources.engines.log import LogEngine
from millpond.resources.engines.log._stores import open_log
from waiting import becomes, until

sys.path.insert(0, str(Path(__file__).parent))
import resource_worker
from resource_worker import SHARED, begun, still

POOL = "chaos"
HOME = "home"
MACHINES = (HOME, "north", "south")
"""The first is that of the test, whose companion nobody kills: it must hear everything."""
CLAIM_WITHIN = 0.2
KILLS = int(os.environ.get("CHAOS_KILLS") or 1000)
"""Kills in a long storm."""


class Witness:
    """Follows the event log and knows nothing but what the words mean."""

    def __init__(self, engine: Engine) -> None:
        self.faults: list[str] = []
        self.grants = 0
        self.lapses = 0
        self.served: set[str] = set()
        """Workers that were given something."""
        self.bereaved: set[str] = set()
        """Workers that died while they held something or waited for it."""
        self._token = 0
        self._capacity: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self._requests: dict[str, Request] = {}
        self._shares: dict[str, tuple[tuple[str, int], ...]] = {}
        self._away: set[str] = set()
        self._engine = engine
        self._is_blind = False
        self.gaps = 0
        engine.watch(POOL, self.hear)

    def hear(self, entries: Sequence[Entry]) -> None:
        """Follow; no entries: some may have been missed, as when a store did not answer for long."""
        if not entries and not self._is_blind:
            self._is_blind = True
            self.gaps += 1
            self._engine.ask(POOL, WholePool(), self._look, block=False)
        for entry in () if self._is_blind else entries:
            for change in entry.changes:
                self._hear(change)

    def _look(self, pool: PoolCopy | Exception) -> None:
        """Begin anew from how the pool stands: what comes after this answer has happened after it."""
        if isinstance(pool, Exception):
            self._engine.ask(POOL, WholePool(), self._look, block=False)
            return
        self._is_blind = False
        state = thaw(pool.image)
        self._token, self.grants = state.token, state.grants
        self._capacity = {one.name: one.capacity for one in state.resources.values()}
        self._used = {one.name: one.used for one in state.resources.values()}
        self._requests = dict(state.requests)
        self._shares = {one.id: one.shares for one in state.requests.values() if one.shares}
        self._away = {one.id for one in state.requests.values() if one.state == AWAY}
        self.served.update(one.holder.id for one in state.requests.values())

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
            self._free(change.id)
            request = self._requests.pop(change.id, None)
            if request is not None and change.how == "died":
                self.bereaved.add(request.holder.id)
            self._away.discard(change.id)

    def _grant(self, request: str, token: int, shares: tuple[tuple[str, int], ...]) -> None:
        self.grants += 1
        self.served.add(self._requests[request].holder.id)
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


@dataclass(frozen=True)
class Victim:
    """A worker, as the storm sees it."""

    name: str
    pid: int
    nursery: Nursery


class Nursery:
    """Forks workers, and waits for their end."""

    def __init__(self, url: str, folder: Path) -> None:
        command = [sys.executable, resource_worker.__file__, url, str(folder)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def start(self, name: str, seed: int) -> Victim:
        return Victim(name, self._ask(f"{name} {seed}"), self)

    def wait(self, victim: Victim) -> None:
        self._ask(f"wait {victim.pid}")

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # and what may be left of its children
        self._process.communicate()

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Chaos:
    """A pool, its processes, and what befalls them."""

    def __init__(self, folder: Path, seed: int, processes: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.pool = ResourcePool("chaos", self.urls()[0])
        self.witness = Witness(self.pool._engine)
        self.pool.admin.configure(patience=0.05, claim_within=CLAIM_WITHIN)
        for number in range(3):
            self.pool.add(f"disk-{number}", labels={"kind": "disk", "speed": "fast" if number else "slow"})
        self.pool.add(SHARED, capacity=3)
        self.nurseries = [Nursery(url, folder) for url in self.urls()]
        self.size = processes
        self.workers: list[Victim] = []
        self.started = 0
        self.stops = 0
        self.stood_still = 0
        """How many times one stopped itself while it used a grant, and for longer than an offer waits to be claimed."""
        self._is_over = threading.Event()
        self._waker = threading.Thread(target=self.wake)
        self._waker.start()
        self.killed: list[str] = []

    def urls(self) -> list[str]:
        """Return where the pool is, as each machine has it."""
        return [f"sqlite:///{self.folder / 'pools.db'}"]

    def start(self) -> None:
        self.started += 1
        nursery = self.nurseries[self.started % len(self.nurseries)]
        self.workers.append(nursery.start(f"worker-{self.started}", self.random.randrange(1 << 30)))

    def strike(self) -> None:
        """Do one thing to somebody who has begun."""
        self.check_oracle()
        while len(self.workers) < self.size:
            self.start()
        victim = self.random.choice(until(self.those_who_go_on, "that a worker uses a grant"))
        dice = self.random.random()
        if dice < 0.6:
            os.kill(victim.pid, signal.SIGKILL)
            victim.nursery.wait(victim)
            self.workers.remove(victim)
            self.killed.append(victim.name)
        elif dice < 0.8:
            os.kill(victim.pid, signal.SIGSTOP)  # perhaps inside the gate, so that all the others stand still
            threading.Timer(self.random.random() * 0.4, self.go_on, [victim]).start()
            self.stops += 1
        else:
            self.churn()

    def go_on(self, victim: Victim) -> None:
        with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
            os.kill(victim.pid, signal.SIGCONT)

    def wake(self) -> None:
        """Let those go on that have stood still by themselves for longer than an offer waits to be claimed."""
        since: dict[str, float] = {}
        while not self._is_over.wait(0.02):
            for victim in list(self.workers):
                if not still(self.folder, victim.name).exists():
                    since.pop(victim.name, None)
                elif time.monotonic() > since.setdefault(victim.name, time.monotonic()) + 2 * CLAIM_WITHIN:
                    self.stood_still += 1
                    del since[victim.name]
                    self.go_on(victim)

    def those_who_go_on(self) -> list[Victim]:
        """Return the workers that have used a grant, without those that stand still by themselves."""
        those = [victim for victim in self.workers if begun(self.folder, victim.name).exists()]
        return [victim for victim in those if not still(self.folder, victim.name).exists()]

    def is_enough(self, kills: int) -> bool:
        """Return whether so many were killed, and enough of all else was done."""
        return self.are_enough_struck(kills) and self.stood_still >= kills // 4

    def are_enough_struck(self, kills: int) -> bool:
        return len(self.killed) >= kills and self.killed_in_the_act >= kills // 2 and self.stops >= kills // 8

    @property
    def killed_in_the_act(self) -> int:
        """How many were killed while they held something or waited for it."""
        return sum(name in self.witness.bereaved for name in self.killed)

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
        """End everybody, half of them by force, and wait until nothing is left."""
        for victim in self.workers:
            os.kill(victim.pid, signal.SIGCONT)
        for number, victim in enumerate(self.workers):
            os.kill(victim.pid, signal.SIGKILL if number % 2 else signal.SIGTERM)
        for victim in self.workers:
            victim.nursery.wait(victim)
        self.workers.clear()
        becomes(lambda: [*self.pool.holders(), *self.pool.waiters()], [])
        becomes(self.sessions, 1)

    def sessions(self) -> int:
        """Return how many sessions the place knows."""
        with contextlib.closing(sqlite3.connect(self.folder / "pools.db")) as connection:
            return int(connection.execute("SELECT count(*) FROM session").fetchone()[0])

    def close(self) -> None:
        """End what started the workers, and what wakes them."""
        self._is_over.set()
        self._waker.join()
        for nursery in self.nurseries:
            nursery.close()

    def check_oracle(self) -> None:
        assert not self.witness.faults, self.witness.faults[:5]
        violations = self.folder / "violations"
        assert not violations.exists(), violations.read_text()

    def check(self) -> None:
        self.check_oracle()
        assert self.pool.holders() == []
        assert self.pool.waiters() == []
        statistics = self.pool.statistics()
        assert statistics.free_units == statistics.units
        becomes(lambda: self.witness.grants, statistics.grants_total)  # it hears every grant once, if late
        assert not self.witness.faults, self.witness.faults[:5]
        self.pool.close()
        self.check_place()

    def check_place(self) -> None:
        with contextlib.closing(sqlite3.connect(self.folder / "pools.db")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert connection.execute("SELECT count(*) FROM session").fetchone() == (0,)


class ChaosBetweenMachines(Chaos):
    """The same on a store of several machines, whose companions are struck, too."""

    def __init__(self, store: str, folder: Path, seed: int, processes: int) -> None:
        self.store = store
        self.deposed = 0
        """How many companions were killed while they decided."""
        super().__init__(folder, seed, processes)
        self.inspectors = dict(zip(MACHINES, map(LogEngine, self.urls()), strict=True))

    def urls(self) -> list[str]:
        """Return the URL that each machine has."""
        return [of_machine(self.store, name) for name in MACHINES]

    def strike(self) -> None:
        super().strike()
        if self.random.random() < 0.25:
            self.strike_companion()

    def strike_companion(self) -> None:
        """Kill a companion, or let it stand still for longer than the gate waits; as often as not the one that decides.

        That of the test stands still until another one decides, if it does: else it would go on deciding to the end.
        """
        decider = until(self.decider, "that a companion decides")
        if decider == HOME:
            decider = self.unseat_home()
        machine = decider if self.random.random() < 0.5 else self.random.choice(MACHINES[1:])
        if self.random.random() < 0.5:
            self.signal(machine, signal.SIGKILL)
            self.deposed += machine == decider
        else:
            self.signal(machine, signal.SIGSTOP)
            threading.Timer(self.random.random(), self.signal, [machine, signal.SIGCONT]).start()

    def unseat_home(self) -> str:
        """Let the companion of the test stand still until another one decides; return whose that is."""

        def another() -> str:
            self.signal(HOME, signal.SIGSTOP)  # each time: one that stood still for too long was replaced
            return self.decider().replace(HOME, "")

        try:
            return until(another, "that another companion decides")
        finally:
            self.signal(HOME, signal.SIGCONT)

    def signal(self, machine: str, number: int) -> None:
        """Send a signal to the companion of a machine, if there is one."""
        found = self.inspectors[machine].companion
        with contextlib.suppress(ProcessLookupError):
            if found is not None:
                os.kill(found[0], number)

    def decider(self) -> str:
        """Return the machine whose companion decides; "" while nobody does, or it has just begun."""
        return log_stores.decider(self.store, POOL)

    def is_enough(self, kills: int) -> bool:
        """Return whether also enough of those that decided were killed."""
        return self.are_enough_struck(kills) and self.deposed >= kills // 20

    def sessions(self) -> int:
        found = open_log(self.store)
        try:
            return len(found.sessions("chaos"))
        finally:
            found.close()

    def close(self) -> None:
        super().close()
        for engine in self.inspectors.values():
            engine.close()

    def check_place(self) -> None:
        becomes(self.sessions, 0)


def rage(
    folder: Path, *, processes: int, kills: int, pause: float, make: Callable[[Path, int, int], Chaos] = Chaos
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 30))
    print(f"CHAOS_SEED={seed}")
    chaos = make(folder, seed, processes)
    witness = chaos.witness
    try:
        while not chaos.is_enough(kills):
            chaos.strike()
            time.sleep(chaos.random.random() * pause)  # a storm of many moods; nothing depends on it
        chaos.settle()
    finally:
        chaos.close()
    chaos.check()
    heard = witness.served >= set(chaos.killed)
    assert heard or witness.gaps, "whoever was killed had used a grant, so the witness heard of it"
    print(
        f"{len(chaos.killed)} kills, {chaos.killed_in_the_act} of them in the act, {chaos.stops} stops, "
        f"{chaos.stood_still} stood still, "
        f"{witness.grants} grants, {witness.lapses} away, {witness.gaps} gaps in what was heard"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_forty_kills_among_stops_forks_and_churn_break_no_promise(tmp_path: Path) -> None:
    rage(tmp_path, processes=6, kills=40, pause=0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_kills_of_processes_and_companions_of_three_machines_break_no_promise(kind: str, tmp_path: Path) -> None:
    with log_stores.running(kind) as url:
        rage(tmp_path, processes=6, kills=20, pause=0.1, make=partial(ChaosBetweenMachines, url))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["redis", "valkey", "cluster", "postgres"])
def test_a_thousand_kills_between_machines_break_no_promise(kind: str, tmp_path: Path) -> None:
    with log_stores.running(kind) as url:
        rage(tmp_path, processes=16, kills=KILLS, pause=0.15, make=partial(ChaosBetweenMachines, url))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_kills_of_thirty_two_processes_break_no_promise(tmp_path: Path) -> None:
    rage(tmp_path, processes=32, kills=KILLS, pause=0.15)

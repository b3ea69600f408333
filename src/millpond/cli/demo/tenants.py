"""The keyed pool of the demo: tenants as keys, workers as processes, and jobs that come all the time."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import deque
from typing import Final

from millpond import KeyedPool, PoolError
from millpond.cli.demo.children import Child, Children, Fact
from millpond.cli.demo.ledger import Failover, Ledger
from millpond.cli.demo.machine import POOL, SLOTS, declare
from millpond.cli.demo.story import Story, count, duration

WORKERS, MOST_WORKERS = 4, 8
KEYS: Final = tuple(f"tenant-{number:02}" for number in range(1, 25))
FEED: Final = 0.05
"""Seconds between two dispatches."""
BURST: Final = 60
"""Jobs of a burst."""
BOX_STAYS: Final = 3.0
"""Seconds for which a worker that is gone is still shown."""
OVERDUE: Final = 5.0
"""Seconds after which the store is asked about jobs of a killed worker that have not ended."""


class Tenants:
    """The workers and the keys."""

    def __init__(self, url: str, children: Children, story: Story) -> None:
        self.ledger = Ledger()
        self._url, self._children, self._story = url, children, story
        self._lock = threading.RLock()
        self._names = (f"w{number}" for number in itertools.count(1))
        self._workers: dict[str, Child] = {}
        self._states: dict[str, str] = {}
        self._gone: dict[str, float] = {}
        self._ids: dict[str, str] = {}
        self._numbers = dict.fromkeys(KEYS, 0)
        self._bursts: deque[str] = deque()
        self._told: set[int] = set()
        self._asked = 0.0
        self._dispatching = threading.Lock()
        self._is_over = threading.Event()
        self._pool = KeyedPool(POOL, url, slots=SLOTS)
        self._serve = declare(self._pool)
        for _ in range(WORKERS):
            self._start_worker()
        self._slots = {key: self._pool.owner(key).number for key in KEYS}
        self._feeder = threading.Thread(target=self._feed, name="feeds the demo", daemon=True)
        self._feeder.start()

    def close(self) -> None:
        """Dispatch nothing more, and let go of the pool."""
        self.stop_feeding()
        with contextlib.suppress(PoolError):
            self._pool.close()

    def stop_feeding(self) -> None:
        """Dispatch nothing more."""
        self._is_over.set()
        self._feeder.join()

    # --- what happens -----------------------------------------------------------------------------------------------

    def _hear(self, name: str, fact: Fact) -> None:
        with self._lock:
            what = fact["what"]
            if what == "began":
                self.ledger.begin(name, fact["key"], fact["number"], fact["at"])
            elif what == "ended":
                self.ledger.end(name, fact["key"], fact["number"])
            elif what == "joined":
                self._ids[fact["id"]] = name
                if self._states.get(name) == "starting":
                    self._states[name] = "working"
                    if int(name[1:]) > WORKERS:
                        self._story.say(f"{name} has joined, and keys move to it", "good")
            elif what == "left" and name in self._states:
                self._states[name] = "left"
                self._gone[name] = time.monotonic()

    def _feed(self) -> None:
        """Dispatch some jobs each time. One thread dispatches all of them, so the numbers of a key come in order."""
        chance = random.Random(7)
        while not self._is_over.wait(FEED):
            with self._dispatching:
                self._dispatch(chance)

    def _dispatch(self, chance: random.Random) -> None:
        with self._lock:
            calls = [
                (key, self._number(key), chance.uniform(0.1, 0.3))
                for key in KEYS
                if chance.random() < 0.18 and self.ledger.depth(key) < 6
            ]
            while self._bursts:
                key = self._bursts.popleft()
                calls += [(key, self._number(key), 0.02) for _ in range(BURST)]
        if calls:
            self._serve.dispatch_many(calls)

    def _number(self, key: str) -> int:
        number = self._numbers[key]
        self._numbers[key] += 1
        self.ledger.dispatch(key, number)
        return number

    # --- what you do ------------------------------------------------------------------------------------------------

    def kill(self) -> Failover | None:
        """Kill the worker that runs the most keys, with -9."""
        return self._end_one(is_killed=True)

    def drain(self) -> Failover | None:
        """Ask a worker to leave: it ends what it has begun, and hands over the rest."""
        return self._end_one(is_killed=False)

    def _end_one(self, *, is_killed: bool) -> Failover | None:
        owners = self.owners()
        with self._lock:
            name = self._busiest(owners)
            if name is None:
                self._story.say("no worker is there: press j to start one")
                return None
            keys = [key for key, owner in owners.items() if owner == name]
            child = self._workers[name]
            at = child.kill() if is_killed else child.terminate()
            self._states[name] = "killed" if is_killed else "leaving"
            if is_killed:
                self._gone[name] = at
            what = "killed with -9" if is_killed else "told to leave (SIGTERM)"
            self._story.say(f"{name} {what}; it owned {count(len(keys), 'key')}", "bad" if is_killed else "")
            return self.ledger.leave(name, keys, at, is_killed=is_killed)

    def join(self) -> None:
        """Start one more worker."""
        if len(self.states()) >= MOST_WORKERS:
            self._story.say(f"{MOST_WORKERS} workers are enough for a demo")
        else:
            self._story.say(f"{self._start_worker()} starts")

    def burst(self) -> None:
        """Dispatch many jobs of one tenant at once."""
        key = random.choice(KEYS)
        self._bursts.append(key)
        self._story.say(f"{key} dispatches {BURST} jobs at once; they wait in its own mailbox and hold up nobody")

    # --- looking ----------------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, str]:
        """Return the worker of each key, as the store says it; empty when it has none."""
        slots = self._pool.slots()
        with self._lock:
            found = {key: self._ids.get(slots[number].owner, "") for key, number in self._slots.items()}
            return {key: name if name in self._states else "" for key, name in found.items()}

    def states(self) -> dict[str, str]:
        """Return each worker and its state: `starting`, `working`, `leaving`, `killed`, `left`."""
        with self._lock:
            for name, at in list(self._gone.items()):
                if time.monotonic() - at > BOX_STAYS:
                    del self._gone[name]
                    self._states.pop(name, None)
            for name, child in self._workers.items():
                if self._states.get(name) in ("starting", "working") and not child.is_alive:
                    self._states[name], self._gone[name] = "killed", time.monotonic()  # not by us
            return dict(self._states)

    def jobs(self) -> tuple[frozenset[str], dict[str, int]]:
        """Return the keys of which a job runs, and how many jobs each key has."""
        with self._lock:
            return frozenset(self.ledger.running), {key: self.ledger.depth(key) for key in KEYS}

    @property
    def is_ready(self) -> bool:
        """Whether all first workers have joined and every key has one of them."""
        working = {name for name, state in self.states().items() if state == "working"}
        return len(working) >= WORKERS and set(self.owners().values()) == working

    @property
    def is_settled(self) -> bool:
        """Whether all is told about those that have ended."""
        return all(id(one) in self._told for one in self.ledger.failovers)

    def tell(self) -> None:
        """Report what followed from the end of a worker, once that is known."""
        with self._lock:
            waiting = [one for one in self.ledger.failovers if id(one) not in self._told]
            settled = [one for one in waiting if one.is_settled]
            for one in settled:
                self._told.add(id(one))
                self._story.say(sentence(one), "bad" if one.lost or one.disorder else "good")
        now = time.monotonic()
        if any(not one.is_settled and now - max(one.at, self._asked) > OVERDUE for one in waiting):
            self._asked = now
            self.compare()

    def compare(self) -> None:
        """Ask the store which jobs it knows: one that it does not know, and that has not ended, is lost."""
        with self._dispatching:  # so everything that we know of is there
            known = {(job.key, job.arguments["number"]) for job in self._pool.jobs(limit=10_000)}
            asked = time.monotonic()
            while self._children.heard_until < asked:  # what it does not know any more has ended: hear of that first
                time.sleep(0.005)
            with self._lock:
                self.ledger.compare(known)

    def _busiest(self, owners: dict[str, str]) -> str | None:
        running = [owners[key] for key in self.ledger.running]
        working = [name for name, state in self._states.items() if state == "working"]
        return max(working, key=lambda name: (running.count(name), list(owners.values()).count(name)), default=None)

    def _start_worker(self) -> str:
        with self._lock:
            name = next(self._names)
            self._states[name] = "starting"
        self._workers[name] = self._children.start(name, self._hear, "machine", self._url)
        return name


def sentence(one: Failover) -> str:
    """Say what followed from the end of a worker."""
    order = "order kept" if not one.disorder else f"{one.disorder} OUT OF ORDER"
    lost = f"{len(one.lost)} lost" if not one.lost else f"{len(one.lost)} LOST"
    keys = f"{count(len(one.keys), 'key')} moved in {duration(one.seconds)}"
    return f"{one.worker}: {keys}, {count(len(one.again), 'job')} re-run, {lost}, {order}"

"""What became of every job, counted from what the workers said. Pure: no clock, no process, no store.

A worker says "began" before it works on a job and "ended" after it, before the store hears of it. So a job that began
twice was run again, a job that never ended and that the store does not know is lost, and the first ends of the jobs of
a key tell whether its order was kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

Number = tuple[str, int]
"""A job: its key, and its number among the jobs of this key."""


@dataclass
class Failover:
    """What followed from the end of one worker."""

    worker: str
    at: float
    is_killed: bool
    keys: frozenset[str]
    """The keys that it owned."""
    busy: frozenset[str]
    """Those of them that had jobs, which ran or waited."""
    jobs: set[Number]
    """Those jobs, until they have ended."""
    moved: dict[str, float] = field(default_factory=dict)
    """When each busy key ran elsewhere for the first time: seconds after the end."""
    again: set[Number] = field(default_factory=set)
    """Jobs that this worker had begun and another one began again."""
    lost: set[Number] = field(default_factory=set)
    disorder: int = 0

    @property
    def has_moved(self) -> bool:
        """Whether every key that had jobs runs elsewhere."""
        return len(self.moved) == len(self.busy)

    @property
    def is_settled(self) -> bool:
        """Whether every job of these keys has ended, or is known to be lost."""
        return self.has_moved and not self.jobs

    @property
    def seconds(self) -> float:
        """How long it took until the last of the busy keys ran elsewhere."""
        return max(self.moved.values(), default=0.0)


class Ledger:
    """The books of the demo."""

    def __init__(self) -> None:
        self.dispatched = 0
        self.ended = 0
        self.again = 0
        """Jobs that began once more than needed."""
        self.disorder = 0
        """Jobs that ended before an earlier one of their key."""
        self.lost: set[Number] = set()
        self.failovers: list[Failover] = []
        self.open: dict[str, dict[int, str]] = {}
        """Jobs of each key that have not ended, with the worker that began them last, or nothing."""
        self.running: dict[str, tuple[str, int]] = {}
        """The worker and the number of the job that runs, for each key of which one runs."""
        self._expected: dict[str, int] = {}

    def dispatch(self, key: str, number: int) -> None:
        """Note that a job was put into its mailbox."""
        self.dispatched += 1
        self.open.setdefault(key, {})[number] = ""

    def begin(self, worker: str, key: str, number: int, at: float) -> None:
        """Note that a worker began a job."""
        waiting = self.open.get(key, {})
        before = waiting.get(number)
        is_again = before is None or before != ""  # it had ended but was not reported, or its worker was killed
        self.again += is_again
        if before is not None:
            waiting[number] = worker
        self.running[key] = (worker, number)
        for failover in self.failovers:
            if key in failover.keys and worker != failover.worker and at >= failover.at:
                if key in failover.busy:
                    failover.moved.setdefault(key, at - failover.at)
                if is_again and (before == failover.worker or before is None) and not failover.is_settled:
                    failover.again.add((key, number))

    def end(self, worker: str, key: str, number: int) -> None:
        """Note that a worker came to the end of a job."""
        if self.running.get(key) == (worker, number):
            del self.running[key]
        if self.open.get(key, {}).pop(number, None) is None:
            return  # it had ended before, and was run again since nobody heard of that
        self.ended += 1
        expected = self._expected.get(key, 0)
        self._expected[key] = max(expected, number + 1)
        is_early = number != expected
        self.disorder += is_early
        for failover in self.failovers:
            failover.jobs.discard((key, number))
            failover.disorder += is_early and key in failover.keys and not failover.is_settled

    def leave(self, worker: str, keys: Collection[str], at: float, *, is_killed: bool) -> Failover:
        """Note that a worker that owned these keys was killed, or was told to leave."""
        jobs = {(key, number) for key in keys for number in self.open.get(key, ())}
        busy = frozenset(key for key, _ in jobs)
        made = Failover(worker, at, is_killed, frozenset(keys), busy, jobs)
        self.failovers.append(made)
        if is_killed:
            self.running = {key: run for key, run in self.running.items() if run[0] != worker}
        return made

    def compare(self, known: Iterable[Number]) -> None:
        """Take the jobs that the store knows: what has not ended and is not among them is lost."""
        there = set(known)
        for key, waiting in self.open.items():
            for number in [number for number in waiting if (key, number) not in there]:
                del waiting[number]
                self.lost.add((key, number))
        for failover in self.failovers:
            failover.lost |= failover.jobs & self.lost
            failover.jobs -= self.lost

    def depth(self, key: str) -> int:
        """Return how many jobs of a key run or wait."""
        return len(self.open.get(key, ()))

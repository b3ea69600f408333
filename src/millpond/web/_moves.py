"""What happened to keys when workers came, went and died: read from the slots, completed by what was seen before.

The store keeps for each slot who owned it before, since when it is where it is, and why. That is the same for everybody
who looks. How many jobs were begun again, and whether all are accounted for, is the difference between the counters of
when a worker was last seen alive and of when all its slots had a new owner: that is known only if somebody looked.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

from millpond.keyed import KeyedStatistics, SlotView, WorkerView

KEPT = 50
"""Moves that are told, and workers that are remembered as they were last seen."""


def unaccounted(found: KeyedStatistics) -> int:
    """Return how many of all jobs ever dispatched neither wait nor run nor are done or dead.

    Those were cancelled, purged, replaced or discarded, by a command that is in the history.
    """
    return found.dispatched_total - found.done_total - found.dead - found.jobs - found.delayed


@dataclass
class Seen:
    """A worker as it was last seen alive, and the counters of the pool then."""

    label: str
    at: float
    sign_of_life: float
    recovered: int
    unaccounted: int


@dataclass
class Moves:
    """Remembers the workers of one pool."""

    lease: float
    seen: OrderedDict[str, Seen] = field(default_factory=OrderedDict)
    _settled: dict[str, tuple[int, int]] = field(default_factory=dict)

    def look(self, workers: list[WorkerView], slots: list[SlotView], found: KeyedStatistics) -> list[dict[str, Any]]:
        """Take note of who is there, and return what moved, the latest first."""
        now = time.time()
        for worker in workers:
            if worker.lease_left > 0:
                sign = now + worker.lease_left - self.lease
                self.seen[worker.id] = Seen(worker.label, now, sign, found.recovered_total, unaccounted(found))
                self.seen.move_to_end(worker.id)
        while len(self.seen) > max(KEPT, 2 * len(workers)):
            self._settled.pop(self.seen.popitem(last=False)[0], None)
        return self._told({worker.id for worker in workers}, slots, found)

    def _told(self, there: set[str], slots: list[SlotView], found: KeyedStatistics) -> list[dict[str, Any]]:
        groups: dict[tuple[str, str], list[SlotView]] = {}
        homeless = Counter(slot.owner for slot in slots if slot.owner and slot.owner not in there)
        for slot in slots:
            if slot.before and slot.owner:
                groups.setdefault((slot.before, slot.why), []).append(slot)
        told = [self._move(before, why, moved, found, homeless) for (before, why), moved in groups.items()]
        self._share(told)
        return sorted(told, key=lambda one: float(-one["until"]))[:KEPT]

    def _share(self, told: list[dict[str, Any]]) -> None:
        """Report what was begun again once, where several died together: the counters are those of the pool."""
        dead = [row for row in told if row["rerun"] is not None]
        for row in dead:
            mine = self.seen[row["worker"]]
            row["with"] = sorted(
                other["worker"]
                for other in dead
                if other is not row
                and mine.sign_of_life <= other["until"]
                and self.seen[other["worker"]].sign_of_life <= row["until"]
            )

    def _move(
        self, before: str, why: str, moved: list[SlotView], found: KeyedStatistics, homeless: Counter[str]
    ) -> dict[str, Any]:
        until = max(slot.since for slot in moved)
        row: dict[str, Any] = {
            "worker": before,
            "label": "",
            "why": why,
            "slots": len(moved),
            "to": dict(Counter(slot.owner for slot in moved).most_common(20)),
            "since": min(slot.since for slot in moved),
            "until": until,
            "took": None,
            "rerun": None,
            "unaccounted": None,
            "with": [],
        }
        seen = self.seen.get(before)
        if seen is not None:
            row["label"] = seen.label
            if why == "died" and until >= seen.sign_of_life:
                row["took"] = max(0.0, until - seen.sign_of_life)
                if not homeless[before]:
                    now = (found.recovered_total - seen.recovered, max(0, unaccounted(found) - seen.unaccounted))
                    row["rerun"], row["unaccounted"] = self._settled.setdefault(before, now)
        return row

"""The resource pool of the demo: three GPUs, and five processes that take turns with them."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Final

from millpond import Grant, PoolError, ResourcePool
from millpond.cli.demo.children import Child, Children, Fact
from millpond.cli.demo.renter import POOL
from millpond.cli.demo.story import Story, duration
from millpond.resources import HolderView, WaiterView

GPUS: Final = ("gpu-0", "gpu-1", "gpu-2")
PEOPLE: Final = ("ann", "bob", "cid", "dan", "eve")
AWAY: Final = 1.5
"""Seconds after which somebody who was killed is back, and after which you give back what you stole."""


@dataclass
class HandOver:
    """What became of the GPU of somebody who was killed."""

    resource: str
    victim: str
    token: int
    at: float
    heir: str = ""
    seconds: float = 0.0


class Cards:
    """The GPUs and those who use them."""

    def __init__(self, url: str, children: Children, story: Story) -> None:
        self.hand_overs: list[HandOver] = []
        self.grants = 0
        self.steals = 0
        self._url, self._children, self._story = url, children, story
        self._lock = threading.RLock()
        self._back: list[tuple[float, str]] = []
        self._stolen: list[tuple[float, Grant]] = []
        self._pool = ResourcePool(POOL, url, holder="you")
        for name in GPUS:
            self._pool.add(name)
        self._people: dict[str, Child] = {name: self._start(name) for name in PEOPLE}

    def close(self) -> None:
        """Close the pool."""
        with contextlib.suppress(PoolError):
            self._pool.close()

    def _start(self, name: str) -> Child:
        return self._children.start(name, self._hear, "renter", self._url, name)

    def _hear(self, name: str, fact: Fact) -> None:
        if fact["what"] == "robbed":
            self._story.say(f"{name} sees that {fact['resource']} is gone, and stops using it", "good")
        if fact["what"] != "holds":
            return
        with self._lock:
            self.grants += 1
            for one in self.hand_overs:
                if not one.heir and one.resource == fact["resource"] and fact["token"] > one.token:
                    one.heir, one.seconds = name, max(0.0, fact["at"] - one.at)
                    self._story.say(
                        f"{one.resource}: {name} was next in line, and has it {duration(one.seconds)} later", "good"
                    )

    # --- what you do ------------------------------------------------------------------------------------------------

    def kill_holder(self) -> HandOver | None:
        """Kill somebody who holds a GPU, with -9."""
        struck = {one.token for one in self.hand_overs}  # the pool may not know of the last one's death yet
        held = [one for one in self._held() if one.token not in struck]
        if not held:
            self._story.say("nobody holds a GPU just now: try again")
            return None
        victim = held[-1]  # the last to begin: it would have kept it for longest
        with self._lock:
            at = self._people[victim.id].kill()
            made = HandOver(victim.resources[0], victim.id, victim.token, at)
            self.hand_overs.append(made)
            self._back.append((at + AWAY, victim.id))
            self._story.say(f"{victim.id} killed with -9 while holding {made.resource}", "bad")
        return made

    def steal(self) -> Grant | None:
        """Take a GPU from its holder, as an operator does; it is given back in a moment."""
        held = self._held()
        if not held:
            self._story.say("nobody holds a GPU just now: try again")
            return None
        victim = held[-1]
        try:
            grant = self._pool.admin.steal(victim.resources[0], token=victim.token, reason="key s of the demo")
        except PoolError as error:  # it was given back meanwhile
            self._story.say(f"nothing was stolen: {error}")
            return None
        self.steals += 1
        self._stolen.append((time.monotonic() + AWAY, grant))
        self._story.say(f"you steal {grant.resource} from {victim.id}; your fencing token is higher")
        return grant

    def _held(self) -> list[HolderView]:
        return [one for one in self._pool.holders() if one.state == "held" and self._is_there(one.id)]

    def _is_there(self, name: str) -> bool:
        return name in self._people and self._people[name].is_alive

    # --- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> tuple[list[HolderView], list[WaiterView]]:
        """Return who holds what and who waits, as the pool says it."""
        return self._pool.holders(), self._pool.waiters()

    def people(self) -> dict[str, bool]:
        """Return everybody, and whether its process is alive."""
        return {name: child.is_alive for name, child in self._people.items()}

    @property
    def is_ready(self) -> bool:
        """Whether all GPUs are held, and somebody waits."""
        return len(self._held()) == len(GPUS) and bool(self._pool.waiters())

    @property
    def is_settled(self) -> bool:
        """Whether every GPU of somebody who was killed is somebody else's."""
        return all(one.heir for one in self.hand_overs)

    def tell(self) -> None:
        """Do what is due: give back, and start those again who were killed."""
        now = time.monotonic()
        for due, grant in [one for one in self._stolen if one[0] <= now]:
            self._stolen.remove((due, grant))
            grant.release()
            self._story.say(f"you give {grant.resource} back")
        for due, name in [one for one in self._back if one[0] <= now]:
            self._back.remove((due, name))
            self._people[name] = self._start(name)
            self._story.say(f"{name} is back, at the end of the line")

"""Finding jobs: through the mailboxes, the delayed jobs and the dead letters of a pool, some at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from millpond.keyed import views
from millpond.keyed.client.async_bridge import AsyncBridge
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.page import Page
from millpond.keyed.rules.records import KeyView
from millpond.keyed.views import JobView

STATES: Final = ("waiting", "running", "retry", "paused", "parked", "delayed", "dead")
KEYS: Final = 100
"""Keys that are looked at in one call."""
JOBS: Final = 20
"""Jobs of one key that are looked at in one call."""


class Wanted(NamedTuple):
    """Which jobs are looked for; what is None does not matter."""

    ids: frozenset[str] | None = None
    key: str | None = None
    name: str | None = None
    state: str | None = None

    def places(self) -> Sequence[str]:
        """Return where such jobs may be."""
        if self.state in ("delayed", "dead"):
            return (self.state,)
        return ("mailboxes",) if self.state is not None else ("mailboxes", "delayed", "dead")

    def may_have(self, view: KeyView) -> bool:
        """Return whether a mailbox may have such jobs."""
        if self.state == "running":
            return view.taken > 0
        return self.state not in ("retry", "paused", "parked") or view.state == self.state

    def fits(self, job: JobView) -> bool:
        """Return whether this is one of them."""
        return (
            (self.ids is None or job.id in self.ids)
            and (self.key is None or job.key == self.key)
            and (self.name is None or job.name == self.name)
            and (self.state is None or job.state == self.state)
        )


class Start(NamedTuple):
    """Where a page begins."""

    place: str
    after: str = ""
    mailbox: str = ""
    """The first mailbox to come, if it is still there: from which job on."""
    first: int = 0


class AsyncSearch:
    """Looks for jobs until it has enough."""

    def __init__(self, port: AsyncBridge, wanted: Wanted, limit: int) -> None:
        self._bridge = port
        self._wanted = wanted
        self._limit = limit
        self.found: list[JobView] = []

    async def run(self, start: Start | None) -> Start | None:
        """Look on; return where there is more, or nothing."""
        places = self._wanted.places()
        start = start or Start(places[0])
        if start.place not in places:
            raise ValueError("after= is the `next` of a page that was asked for in another way: ask as you did then")
        for place in places[places.index(start.place) :]:
            here = start if start.place == place else Start(place)
            if place == "mailboxes":
                more = await self._look_into_mailboxes(here)
            elif place == "delayed":
                more = await self._look_at_delayed(here)
            else:
                more = await self._look_at_dead(here)
            if more is not None:
                return more
        return None

    def _is_full(self, job: JobView) -> bool:
        """Keep a job that is wanted; return whether it is one too many."""
        if not self._wanted.fits(job):
            return False
        if len(self.found) == self._limit:
            return True
        self.found.append(job)
        return False

    async def _look_into_mailboxes(self, start: Start) -> Start | None:
        key = self._wanted.key
        after = start.after
        while True:
            if key is not None:
                one = await self._bridge.look(about.Key(*self._bridge.connection.address(key)))
                page = Page([] if one is None else [one])
            else:
                page = await self._bridge.look(about.Keys("j", after, KEYS, self._wanted.state == "running"))
            those = [(number, view) for number, view in enumerate(page) if self._wanted.may_have(view)]
            firsts = [start.first if view.mailbox == start.mailbox else 0 for _, view in those]
            spans = [(view.mailbox, first, JOBS) for (_, view), first in zip(those, firsts, strict=True)]
            heads = await self._bridge.look(about.Jobs(tuple(spans))) if spans else []
            for (number, view), first, jobs in zip(those, firsts, heads, strict=True):
                index = await self._look_into(view, first, jobs)
                if index is not None:
                    return Start("mailboxes", page.marks[number - 1] if number else after, view.mailbox, index)
            after = page.next
            if not after:
                return None

    async def _look_into(self, view: KeyView, first: int, jobs: list[bytes] | None) -> int | None:
        """Look at the jobs of a key, the first of which are known; return at which of them it was enough."""
        index = first
        while True:
            if jobs is None:
                (jobs,) = await self._bridge.look(about.Jobs(((view.mailbox, index, JOBS),)))
            for raw in jobs or ():
                if self._is_full(views.job(view, raw, index)):
                    return index
                index += 1
            if not jobs or len(jobs) < JOBS:
                return None
            jobs = None

    async def _look_at_delayed(self, start: Start) -> Start | None:
        after = start.after
        while True:
            page = await self._bridge.look(about.DelayedJobs(after, KEYS))
            for number, one in enumerate(page):
                if self._is_full(views.delayed_job(one)):
                    return Start("delayed", page.marks[number - 1] if number else after)
            after = page.next
            if not after:
                return None

    async def _look_at_dead(self, start: Start) -> Start | None:
        after = start.after
        while True:
            page = await self._bridge.look(about.DeadLetters(after, KEYS))
            for number, one in enumerate(page):
                if self._is_full(views.dead_job(views.dead_letter(one))):
                    return Start("dead", page.marks[number - 1] if number else after)
            after = page.next
            if not after:
                return None

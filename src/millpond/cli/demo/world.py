"""Everything that lives in the demo: two pools in one SQLite file, processes that use them, and three local pools."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from millpond import Statistics
from millpond.cli.demo.cards import Cards
from millpond.cli.demo.children import Children
from millpond.cli.demo.local import LocalPools
from millpond.cli.demo.story import Line, Story
from millpond.cli.demo.tenants import Tenants
from millpond.resources import HolderView, WaiterView


@dataclass(frozen=True)
class Sight:
    """All that is drawn, at a moment."""

    at: float
    """Seconds since the demo began."""
    workers: dict[str, str]
    """Name and state: `starting`, `working`, `leaving`, `killed`, `left`."""
    owners: dict[str, str]
    """The worker of each key, or nothing."""
    running: frozenset[str]
    """Keys of which a job runs."""
    depths: dict[str, int]
    """Jobs of each key that run or wait."""
    holders: list[HolderView]
    waiters: list[WaiterView]
    people: dict[str, bool]
    """Those who use GPUs, and whether each is alive."""
    local: list[tuple[Statistics, float]]
    """The local pools, each with its tasks per second."""
    dispatched: int
    ended: int
    again: int
    lost: int
    disorder: int
    lines: list[Line]


class World:
    """The pools and the processes."""

    def __init__(self) -> None:
        self.story = Story()
        folder = tempfile.mkdtemp(prefix="millpond-demo-")
        self._folder = Path(folder)
        self.url = f"sqlite:///{folder}/pools.db"
        self._children = Children(folder)
        try:
            self.tenants = Tenants(self.url, self._children, self.story)
            self.cards = Cards(self.url, self._children, self.story)
            self._local = LocalPools()
        except BaseException:
            self._children.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes, and remove the file."""
        self._local.close()
        self.tenants.close()
        self.cards.close()
        self._children.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def look(self) -> Sight:
        """Return how everything stands; what is due is done first."""
        self.cards.tell()
        self.tenants.tell()
        running, depths = self.tenants.jobs()
        holders, waiters = self.cards.look()
        books = self.tenants.ledger
        return Sight(
            time.monotonic() - self.story.began,
            self.tenants.states(),
            self.tenants.owners(),
            running,
            depths,
            holders,
            waiters,
            self.cards.people(),
            self._local.look(),
            books.dispatched,
            books.ended,
            books.again,
            len(books.lost),
            books.disorder,
            self.story.lines(),
        )

    @property
    def is_ready(self) -> bool:
        """Whether all processes work: all keys have a worker, all GPUs a holder."""
        return self.tenants.is_ready and self.cards.is_ready

    @property
    def is_settled(self) -> bool:
        """Whether what followed from each kill is known."""
        return self.tenants.is_settled and self.cards.is_settled

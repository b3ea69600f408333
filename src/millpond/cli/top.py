"""`millpond top`: all pools of a place on one live screen."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from millpond import keyed, resources
from millpond._clock import elapsed
from millpond._urls import shown
from millpond._words import duration
from millpond.cli import words
from millpond.cli.place import Place
from millpond.cli.report import write
from millpond.errors import NotFound, PoolError
from millpond.keyed import KeyedPool, KeyedStatistics, WorkerView
from millpond.resources import HolderView, PoolStatistics, ResourcePool, WaiterView

BAR = 30
FULL, EMPTY = "█", "·"
LINES = 6
"""Holders, waiters or workers that are shown of a pool."""
NAMES_EVERY = 5.0
"""Seconds after which new pools are looked for."""


@dataclass
class Lent:
    """A resource pool at a moment."""

    name: str
    statistics: PoolStatistics
    holders: list[HolderView]
    waiters: list[WaiterView]


@dataclass
class Keys:
    """A keyed pool at a moment."""

    name: str
    statistics: KeyedStatistics
    workers: list[WorkerView]
    rate: float
    """Jobs that ended in a second."""


class Sight:
    """Looks at all pools of a place, which stay open between two looks."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._named_at = -NAMES_EVERY
        self._lent: dict[str, ResourcePool] = {}
        self._keyed: dict[str, KeyedPool] = {}
        self._done: dict[str, tuple[float, int]] = {}

    def close(self) -> None:
        """Close the pools."""
        _follow(self._lent, [], ResourcePool)
        _follow(self._keyed, [], KeyedPool)
        self._named_at = -NAMES_EVERY

    def look(self) -> tuple[list[Lent], list[Keys]]:
        """Return how all pools stand."""
        if elapsed() - self._named_at >= NAMES_EVERY:
            self._find()
        keys = []
        for name, pool in list(self._keyed.items()):
            try:
                keys.append(self._count(pool))
            except NotFound:  # it was dropped; it is not for us to make it anew
                self._keyed.pop(name).close()
        return [self._look_at(pool) for pool in self._lent.values()], keys

    def _find(self) -> None:
        url = self._place.url
        if self._place.has_resources:
            _follow(self._lent, resources.pools(url), lambda name: ResourcePool(name, url))
        if self._place.has_keys:
            _follow(self._keyed, keyed.pools(url), lambda name: KeyedPool(name, url, create=False))
        self._named_at = elapsed()

    def _look_at(self, pool: ResourcePool) -> Lent:
        return Lent(pool.name, pool.statistics(), pool.holders(), pool.waiters())

    def _count(self, pool: KeyedPool) -> Keys:
        found, now = pool.statistics(), elapsed()
        before, done = self._done.get(pool.name, (now, found.done_total))
        self._done[pool.name] = (now, found.done_total)
        rate = (found.done_total - done) / (now - before) if now > before else 0.0
        return Keys(pool.name, found, pool.workers(), max(0.0, rate))


def _follow(known: dict[str, Any], names: list[str], make: Callable[[str], Any]) -> None:
    """Open the pools that are new, and close those that are gone."""
    for name in set(known) - set(names):
        with contextlib.suppress(PoolError):
            known.pop(name).close()
    for name in names:
        if name not in known:
            known[name] = make(name)


# --- drawing ----------------------------------------------------------------------------------------------------------


def bar(part: int, whole: int, style: str) -> Text:
    """Draw how much of something is in use; readable without colour."""
    whole = max(whole, 1)
    full = min(BAR, round(BAR * part / whole)) if part else 0
    drawn = Text(FULL * max(full, 1 if part else 0), style=style)
    drawn.append(EMPTY * (BAR - len(drawn)), style="dim")
    return drawn


def _title(kind: str, name: str) -> Text:
    title = Text(f"{kind} ")
    title.append(words.plain(name), style="bold")
    return title


def _lines(title: str, rows: Sequence[tuple[str, ...]], hidden: int) -> list[RenderableType]:
    if not rows:
        return []
    grid = Table.grid(padding=(0, 2))
    for number, row in enumerate(rows):
        grid.add_row(Text(title if not number else "", style="dim"), *[Text(words.plain(cell)) for cell in row])
    more: list[RenderableType] = [Text(f"and {hidden} more", style="dim")] if hidden > 0 else []
    return [grid, *more]


def draw_lent(one: Lent) -> Panel:
    """Draw a resource pool: how much is in use, who holds it, and who waits."""
    found = one.statistics
    used = found.units - found.free_units
    head = bar(used, found.units, "blue")
    head.append(f"  {used} of {found.units} units held, {found.waiting} wait", style="bold" if found.waiting else "")
    if found.oldest_wait:
        head.append(f", the first since {duration(found.oldest_wait)}")
    if found.suspects:
        head.append(f", {found.suspects} suspect", style="red")
    if found.paused:
        head.append(f", paused: {words.plain(found.paused)}", style="yellow")
    holders = [
        (", ".join(each.resources), words.person(each), duration(each.held_for), each.reason)
        for each in one.holders[:LINES]
    ]
    waiters = [
        (", ".join(each.selectors), words.person(each), duration(each.waiting_for), each.reason)
        for each in one.waiters[:LINES]
    ]
    rows = _lines("holds", holders, len(one.holders) - LINES) + _lines("waits", waiters, len(one.waiters) - LINES)
    return Panel(Group(head, *rows), title=_title("resources", one.name), title_align="left")


def draw_keys(one: Keys) -> Panel:
    """Draw a keyed pool: what runs and waits, and its workers."""
    found = one.statistics
    head = bar(found.keys_running, found.keys_running + found.keys_ready, "green")
    head.append(f"  {found.keys_running} keys run, {found.keys_ready} wait; {found.jobs} jobs, {one.rate:,.0f} done/s")
    if found.oldest_age:
        head.append(f", the oldest since {duration(found.oldest_age)}")
    if found.delayed:
        head.append(f", {found.delayed} delayed")
    if found.residents:
        head.append(f", {found.residents} residents")
    if found.dead:
        head.append(f", {found.dead} dead", style="red")
    if found.is_paused or found.is_shut:
        head.append(", shut down" if found.is_shut else ", paused", style="yellow")
    workers = []
    for each in one.workers[:LINES]:
        state = "leaves" if each.is_leaving else f"lease {each.lease_left:.0f} s" if each.lease_left > 0 else "silent"
        workers.append((each.label, f"{each.slots} slots", state, each.id))
    rows = _lines("worker", workers, len(one.workers) - LINES)
    if not one.workers:
        rows = [Text("no worker: nothing runs", style="yellow" if found.jobs else "dim")]
    return Panel(Group(head, *rows), title=_title("keyed", one.name), title_align="left")


def _head(place: Place) -> Text:
    return Text(f"{shown(place.url)}  {time.strftime('%H:%M:%S')}", style="dim")


def live_screen(place: Place, sight: Sight) -> RenderableType:
    """Draw everything; or say why there is nothing to see, and go on."""
    try:
        return screen(place, sight)
    except PoolError as error:
        sight.close()
        return Group(_head(place), Text(f"it does not answer: {words.plain(error)}", style="red"))


def screen(place: Place, sight: Sight) -> RenderableType:
    """Draw everything."""
    lent, keys = sight.look()
    head = _head(place)
    drawn: list[RenderableType] = [*map(draw_lent, lent), *map(draw_keys, keys)]
    return Group(head, *(drawn or [Text("there are no pools here")]))


def run(place: Place, every: float, frames: int | None) -> None:
    """Show it until Ctrl-C; once, where there is no terminal."""
    place.check()
    is_live = sys.stdout is not None and sys.stdout.isatty()
    frames = frames or (None if is_live else 1)
    sight = Sight(place)
    try:
        if not is_live:
            for number in range(frames or 1):
                if number:
                    time.sleep(every)
                drawn = Console(file=io.StringIO(), width=shutil.get_terminal_size((100, 24)).columns)
                drawn.print(screen(place, sight))
                write(drawn.file.getvalue().rstrip("\n"))  # type: ignore[attr-defined]
            return
        with Live(live_screen(place, sight), screen=True, auto_refresh=False) as live:
            shown_frames = 1
            while frames is None or shown_frames < frames:
                time.sleep(every)
                live.update(live_screen(place, sight), refresh=True)
                shown_frames += 1
    finally:
        sight.close()

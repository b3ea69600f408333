"""`millpond demo`: the scene on a screen, or in lines of text when there is none."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from millpond import Statistics
from millpond.cli.scene import Scene

SPARKS = " ▁▂▃▄▅▆▇█"
FRAMES_PER_SECOND = 8
PANEL = 50
TITLES = {"threads": "ThreadPool", "processes": "ProcessPool", "asyncio": "AsyncPool"}


class Rates:
    """How many tasks per second each pool has done lately."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        self.history: dict[str, deque[float]] = {}

    def note(self, now: Statistics) -> None:
        """Take in a snapshot."""
        moment = time.monotonic()
        before, completed = self._last.get(now.name, (moment - 1, now.completed))
        self._last[now.name] = (moment, now.completed)
        rate = (now.completed - completed) / max(1e-6, moment - before)
        self.history.setdefault(now.name, deque(maxlen=36)).append(rate)

    def sparkline(self, name: str) -> str:
        """Return the history as a line of little bars."""
        rates = self.history.get(name) or [0.0]
        top = max(max(rates), 1.0)
        return "".join(SPARKS[round(rate / top * (len(SPARKS) - 1))] for rate in rates)

    def now(self, name: str) -> float:
        """Return the rate over the last second or so."""
        recent = list(self.history.get(name, ()))[-FRAMES_PER_SECOND:]
        return sum(recent) / len(recent) if recent else 0.0


def gauge(part: int, alive: int, whole: int, width: int = 34) -> Text:
    """Draw busy, idle and absent workers as one bar."""
    whole = max(1, whole)
    busy = round(min(part, whole) / whole * width)
    idle = round(min(alive, whole) / whole * width) - busy
    bar = Text("█" * busy, style="blue")
    bar.append("█" * max(0, idle), style="bright_blue dim")
    bar.append("·" * (width - busy - max(0, idle)), style="dim")
    return bar


def panel(now: Statistics, rates: Rates) -> Panel:
    """Draw one pool."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", width=9)
    grid.add_column()
    grid.add_row("workers", gauge(now.running, now.workers, now.max_workers))
    grid.add_row("", f"{now.running} busy of {now.max_workers}")
    grid.add_row("queued", f"{now.queued:,}")
    grid.add_row("done", f"{now.completed:,}   {rates.now(now.name):,.0f}/s")
    grid.add_row("failed", Text(f"{now.failed:,}", style="red" if now.failed else ""))
    grid.add_row("", Text(rates.sparkline(now.name), style="green"))
    return Panel(grid, title=f"{TITLES[now.kind]} [b]{now.name}[/b]", border_style="blue", width=PANEL, height=9)


def picture(scene: Scene, rates: Rates) -> Group:
    """Draw everything."""
    panels = [panel(now, rates) for now in scene.statistics()]
    story = Text("\n".join(scene.story[-7:]), no_wrap=True, overflow="ellipsis")
    panels.append(Panel(story, title="what happens", border_style="dim", width=PANEL, height=9))
    grid = Table.grid()
    for left, right in itertools.zip_longest(panels[::2], panels[1::2], fillvalue=""):
        grid.add_row(left, right)
    return Group(grid)


def summary(scene: Scene) -> dict[str, object]:
    """Return what came of it all."""
    pools = {now.name: asdict(now) for now in scene.statistics()}
    whole = all(
        now.submitted == now.completed + now.cancelled and not now.queued and not now.running
        for now in scene.statistics()
        if now.kind != "asyncio"
    )
    return {"pools": pools, "workers_killed": scene.outcomes["killed"], "nothing_lost": whole}


def run(seconds: float, *, output: str, record: str | None) -> int:
    """Show the scene for so many seconds; return the exit code."""
    console = Console(stderr=output == "json")
    rates, scene = Rates(), Scene()
    try:
        with scene:
            if console.is_terminal:
                _live(console, scene, rates, seconds)
            else:
                _lines(console, scene, rates, seconds)
            if record is not None:
                _record(record, picture(scene, rates))
    except KeyboardInterrupt:
        console.print("left by Ctrl-C; what was running has been finished")
    outcome = summary(scene)
    if output == "json":
        json.dump(outcome, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _say(console, scene, outcome)
    return 0 if outcome["nothing_lost"] else 1


def _record(path: str, last: Group) -> None:
    """Save the last picture as SVG."""
    with open(os.devnull, "w") as nowhere:
        paper = Console(record=True, width=2 * PANEL, file=nowhere, force_terminal=True)
        paper.print(last)
        drawing = paper.export_svg(title="millpond demo")
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.S)  # it would fetch fonts from elsewhere
    Path(path).write_text(drawing, encoding="utf-8")


def _live(console: Console, scene: Scene, rates: Rates, seconds: float) -> None:
    until = time.monotonic() + seconds
    with Live(console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True) as live:
        while time.monotonic() < until:
            for now in scene.statistics():
                rates.note(now)
            hint = Text(f"{until - time.monotonic():3.0f} s left · Ctrl-C ends it", style="dim")
            live.update(Group(picture(scene, rates), hint))
            time.sleep(1 / FRAMES_PER_SECOND)


def _lines(console: Console, scene: Scene, rates: Rates, seconds: float) -> None:
    told = 0
    until = time.monotonic() + seconds
    next_line = time.monotonic() + 1
    while time.monotonic() < until:
        for now in scene.statistics():
            rates.note(now)
        if time.monotonic() >= next_line:
            next_line += 1
            for now in scene.statistics():
                console.print(
                    f"{TITLES[now.kind]:11} {now.name:11} {now.running:3} busy of {now.max_workers:3}, "
                    f"{now.queued:4} queued, {now.completed:6,} done, {rates.now(now.name):7,.0f}/s",
                    soft_wrap=True,
                )
            for line in scene.story[told:]:
                console.print(f"  {line}", style="dim", soft_wrap=True)
            told = len(scene.story)
        time.sleep(1 / FRAMES_PER_SECOND)


def _say(console: Console, scene: Scene, outcome: dict[str, object]) -> None:
    for now in scene.statistics():
        console.print(
            f"[b]{now.name}[/b]: {now.completed:,} tasks done, {now.failed} failed, {now.cancelled} cancelled, "
            f"at most {now.largest} workers"
        )
    killed = outcome["workers_killed"]
    verdict = "nothing lost" if outcome["nothing_lost"] else "SOMETHING WAS LOST"
    console.print(f"{killed} workers killed with -9, {verdict}", style="green" if outcome["nothing_lost"] else "red")

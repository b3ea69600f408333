"""Draws the demo in a terminal. Readable without colour: a key that runs is in brackets, one with a backlog has a +."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from millpond.cli.demo.cards import GPUS
from millpond.cli.demo.story import Line
from millpond.cli.demo.tenants import KEYS
from millpond.cli.demo.world import Sight
from millpond.cli.words import plain
from millpond.resources import HolderView, WaiterView

WIDE: Final = 100
"""Columns from which GPUs and local pools stand side by side."""
CELL: Final = 6
NAMES: Final = 20
"""Columns for the name and the state of a worker."""
BACKLOG: Final = 6
"""More jobs than this are a backlog."""
KINDS: Final = {"bad": "bold red", "good": "bold green", "": ""}
LOCAL: Final = {"threads": "ThreadPool", "processes": "ProcessPool", "asyncio": "AsyncPool"}
SHORT: Final = {"k": "kill worker", "g": "kill user"}
"""Shorter words for `HINTS`, in a terminal of 80 columns."""
HINTS: Final = (
    ("k", "kill -9 a worker"),
    ("g", "kill -9 a GPU user"),
    ("b", "burst"),
    ("j", "join"),
    ("d", "drain"),
    ("s", "steal"),
    ("?", "help"),
    ("q", "quit"),
)
HELP: Final = """\
k  kill the busiest worker with -9: the kernel says that it is gone, others take over its keys, in order
g  kill somebody who holds a GPU with -9: the next in line has it at once
b  let one tenant dispatch 60 jobs at once: they wait in its own mailbox, the other tenants do not
j  start one more worker: it gets its share of the keys, the others keep theirs
d  tell a worker to leave (graceful shutdown): it ends what it runs and hands over the rest
s  steal a GPU from its holder, as an operator may: the holder is told
q  quit (Ctrl-C too)

A row is a worker: a real process. A number is a key, here a tenant; its jobs run one at a time, in order.
[07] a job of it runs   07+ many wait   The figures are counted from what the processes report.
"""


def colour(key: str) -> str:
    """Return the colour of a key: neighbours differ."""
    number = KEYS.index(key)
    red, green, blue = colorsys.hls_to_rgb((number * 7 % len(KEYS)) / len(KEYS), 0.68, 0.75)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def cell(sight: Sight, key: str) -> Text:
    """Draw one key."""
    number, depth = key.rpartition("-")[2], sight.depths[key]
    more = "+" if depth > BACKLOG else ""
    drawn = Text()
    if key in sight.running:
        drawn.append(f"[{number}{more}]", style=f"bold black on {colour(key)}")
    else:
        drawn.append(f" {number}{more}", style=colour(key))
    drawn.append(" " * (CELL - len(drawn)))
    return drawn


def cells(sight: Sight, keys: Sequence[str], width: int) -> Text:
    """Draw the keys of one worker, in as many lines as they need."""
    drawn = Text()
    in_line = max(1, (width - NAMES) // CELL)
    for place, key in enumerate(keys):
        if place and place % in_line == 0:
            drawn.append("\n")
        drawn.append_text(cell(sight, key))
    return drawn


def workers(sight: Sight, width: int) -> Table:
    """Draw the workers, each with its keys."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=4)
    grid.add_column(width=NAMES - 7)
    grid.add_column()
    states = {"working": "", "killed": "bold red", "leaving": "yellow", "left": "dim", "starting": "dim"}
    for name, state in sight.workers.items():
        keys = [key for key, owner in sight.owners.items() if owner == name]
        shown = (
            f"{len(keys)} key{'s' * (len(keys) != 1)}"
            if state == "working"
            else "KILLED -9"
            if state == "killed"
            else state
        )
        grid.add_row(Text(name, style="bold"), Text(shown, style=states[state] or "dim"), cells(sight, keys, width))
    homeless = [key for key, owner in sight.owners.items() if not owner]
    if homeless and sight.workers:
        grid.add_row(Text("?"), Text("no owner yet", style="dim"), cells(sight, homeless, width))
    return grid


def gpus(holders: Sequence[HolderView], waiters: Sequence[WaiterView]) -> Table:
    """Draw the GPUs, their holders, and who waits."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=6)
    grid.add_column()
    by_resource = {one.resources[0]: one for one in holders if one.resources}
    for name in GPUS:
        one = by_resource.get(name)
        if one is None:
            grid.add_row(Text(name), Text("free", style="dim"))
        else:
            held = Text()
            held.append(f"{plain(one.id):4}", style="bold")
            held.append(f" {plain(one.reason)}, for {max(0.0, one.held_for):.1f} s", style="dim")
            grid.add_row(Text(name, style="bold"), held)
    line = " < ".join(plain(one.id) for one in waiters) or "nobody"
    grid.add_row(Text("queue", style="dim"), Text(line))
    return grid


def local(sight: Sight) -> Table:
    """Draw the local pools, each as a bar of busy workers."""
    grid = Table.grid(padding=(0, 1))
    for now, rate in sight.local:
        full = round(12 * min(1.0, now.running / max(1, now.max_workers)))
        bar = Text()
        bar.append("█" * full, style="cyan")
        bar.append("·" * (12 - full), style="dim")
        busy = f"{now.running:3} of {now.max_workers:3} busy"
        grid.add_row(Text(f"{LOCAL[now.kind]:11}"), bar, Text(busy), Text(f"{rate:6,.0f}/s", style="dim"))
    if not sight.local:
        grid.add_row(Text("starting", style="dim"))
    return grid


def local_in_a_line(sight: Sight) -> Text:
    """Draw the local pools where there is no room for bars."""
    drawn = Text(no_wrap=True, overflow="ellipsis")
    for now, rate in sight.local:
        drawn.append(f"{LOCAL[now.kind]} ", style="bold cyan")
        drawn.append(f"{now.running}/{now.max_workers} {rate:,.0f}/s   ", style="dim")
    return drawn


def helped(head: Text, width: int, height: int) -> Group:
    """Draw what the keys do, shorter where there is no room for more."""
    whole = Group(head, Text(), Text(HELP), hints(width))
    if _lines(whole, width) < height:
        return whole
    return Group(*[Text(f"{key}  {meaning}", no_wrap=True, overflow="ellipsis") for key, meaning in HINTS])


def title(text: str, explained: str) -> Text:
    """Draw the head of a part."""
    drawn = Text(no_wrap=True, overflow="ellipsis")
    drawn.append(text, style="bold cyan")
    drawn.append(f"  {explained}", style="dim")
    return drawn


def counters(sight: Sight) -> Text:
    """Draw what is counted."""
    drawn = Text()
    drawn.append(f"{sight.ended:,} jobs done", style="bold")
    drawn.append(f", {sight.again} re-run, ")
    drawn.append(f"{sight.lost} lost", style="bold red" if sight.lost else "bold green")
    drawn.append(", order kept" if not sight.disorder else f", {sight.disorder} OUT OF ORDER")
    return drawn


def told(lines: Sequence[Line], width: int, room: int) -> list[RenderableType]:
    """Draw the last lines of the story, as many as there is room for."""
    drawn: list[RenderableType] = []
    for line in reversed(lines):
        text = Text()
        text.append(f"{line.at:5.1f} s  ", style="dim")
        text.append(plain(line.text), style=KINDS[line.kind])
        room -= _lines(text, width)
        if room < 0 and drawn:
            break
        drawn.insert(0, text)
    return drawn


def hints(width: int) -> Text:
    """Draw which keys do what."""
    drawn = Text(no_wrap=False)
    is_wide = width > sum(len(f" {key}  {meaning}  ") for key, meaning in HINTS)
    for key, meaning in HINTS:
        drawn.append(f" {key} ", style="reverse")
        drawn.append(f" {meaning}  " if is_wide else f"{SHORT.get(key, meaning)} ", style="dim")
    return drawn


def picture(sight: Sight | None, width: int, height: int, note: str, *, is_helping: bool = False) -> Group:
    """Draw everything into a terminal of this size; before there is anything to see, say so."""
    head = Text()
    head.append("millpond demo", style="bold")
    head.append(f"  {note}", style="dim")
    if sight is None:
        return Group(head, Text("starting 4 workers and 5 users of GPUs, each a process of its own ..."))
    if is_helping:
        return helped(head, width, height)
    empty = Text()
    keyed: list[RenderableType] = [
        title("KeyedPool", "each tenant belongs to one worker; its jobs run in order"),
        workers(sight, width),
    ]
    lent: list[RenderableType] = [
        title("ResourcePool", "GPUs, first come first served"),
        gpus(sight.holders, sight.waiters),
    ]
    here: list[RenderableType] = [title("Local pools", "in this process"), local(sight)]
    drawn: list[RenderableType] = [head, empty, *keyed, counters(sight), empty]
    if width >= WIDE:
        side = Table.grid(padding=(0, 4))
        side.add_row(Group(*lent), Group(*here))
        drawn += [side, empty]
    else:
        drawn += [*lent, empty]
    foot = hints(width)
    used = _lines(Group(*drawn, foot), width)
    if used >= height:  # the terminal cuts off what is below: first of all which keys there are, and what happened last
        keys = Text("millpond demo  " + " ".join(key for key, _ in HINTS), style="bold", no_wrap=True)
        last = Text(plain(sight.lines[-1].text) if sight.lines else note, no_wrap=True, overflow="ellipsis")
        return Group(keys, last, workers(sight, width), counters(sight), gpus(sight.holders, sight.waiters))
    if width < WIDE and height - used >= len(sight.local) + 6:
        drawn += [*here, empty]
        used += len(sight.local) + 2
    elif width < WIDE and height - used >= 4:  # two lines of what happens are left
        drawn += [local_in_a_line(sight), empty]
        used += 2
    drawn += told(sight.lines, width, height - used)
    return Group(*drawn, foot)


def _lines(drawn: RenderableType, width: int) -> int:
    """Return how many lines something takes."""
    console = Console(width=width, height=1000, file=None, color_system=None)
    return len(console.render_lines(drawn, console.options))

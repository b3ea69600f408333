"""Writes a film as one animated SVG file: boxes for workers, coloured blocks for keys, people who take turns with GPUs.

The file needs nothing else: no script, no font, no other file, so it moves in an `<img>` of a README. It moves by CSS
keyframes; who asked for less motion, or has a viewer that knows none, sees the moment after the kill. Where things are,
and when, is what the film saw; only the flight of a block is slower than the move was.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import Final

from millpond.cli.demo.cards import GPUS, PEOPLE
from millpond.cli.demo.film import Film
from millpond.cli.demo.screen import colour
from millpond.cli.demo.tenants import KEYS
from millpond.cli.demo.world import Sight

WIDTH: Final = 880
LEFT, RIGHT = 24, 596
TOP: Final = 92
ROW: Final = 52
BOX: Final = 548
KEY_X: Final = 96
"""Where the keys of a worker begin, from the left of its box."""
FLIGHT: Final = 0.5
"""Seconds that a block takes from one worker to another."""
REST: Final = 2.0
"""Seconds for which the last sight stays."""
STORY: Final = 4
"""Lines of the story that are seen at once."""
PANEL, EDGE, INK, FAINT = "#0d1526", "#26344f", "#e6edf7", "#8494b2"
GOOD, BAD = "#4ade80", "#fb7185"

Track = list[tuple[float, str]]
"""What something looks like from when on: seconds, and CSS."""


class Sheet:
    """The rules of the animation."""

    def __init__(self, seconds: float, still: float) -> None:
        self.seconds = seconds
        self._still = still
        self._rules: list[str] = []

    def steps(self, track: Track) -> str:
        """Add what changes at once; return the style of an element that follows it."""
        changes = _changes(track)
        if len(changes) == 1:
            return changes[0][1]
        frames = [f"{self._percent(at)}{{{look}}}" for at, look in changes]
        frames.append(f"100%{{{changes[-1][1]}}}")
        return self._add(frames, "step-end", changes)

    def moves(self, track: Track) -> str:
        """Add what glides from place to place; return the style of an element that follows it."""
        changes = _changes(track)
        if len(changes) == 1:
            return changes[0][1]
        frames, landed = [f"0%{{{changes[0][1]}}}"], 0.0
        for (_, old), (at, new) in itertools.pairwise(changes):
            start = max(at, landed)
            landed = start + FLIGHT
            if landed >= self.seconds:
                break
            frames += [f"{self._percent(start)}{{{old}}}", f"{self._percent(landed)}{{{new}}}"]
            last = new
            if at == changes[-1][0]:
                frames.append(f"100%{{{last}}}")
        return self._add(frames, "ease-in-out", changes)

    def _add(self, frames: list[str], timing: str, changes: Track) -> str:
        name = f"a{len(self._rules)}"
        self._rules.append(f"@keyframes {name}{{{''.join(frames)}}}")
        still = [look for at, look in changes if at <= max(self._still, changes[0][0])][-1]
        return f"{still};animation:{name} {self.seconds:.4g}s {timing} infinite"

    def _percent(self, at: float) -> str:
        return f"{100 * at / self.seconds:.2f}".rstrip("0").rstrip(".") + "%"

    def text(self) -> str:
        """Return the style sheet."""
        return "".join(self._rules) + "@media (prefers-reduced-motion:reduce){*{animation:none!important}}"


def _changes(track: Track) -> Track:
    """Leave out what is as before."""
    kept: Track = []
    for at, look in track:
        if not kept or kept[-1][1] != look:
            kept.append((at, look))
    return kept


class Stage:
    """Where everything is, sight by sight."""

    def __init__(self, film: Film) -> None:
        first = film.sights[0].at
        self.sights = [(sight.at - first, sight) for sight in film.sights]
        self.workers = sorted({name for sight in film.sights for name in sight.workers}, key=lambda name: int(name[1:]))
        self.rows = self._rows()
        self.places = self._places()
        most = max((place + 1 for track in self.places.values() for _, _, place in track), default=1)
        self.pitch = min(38.0, (BOX - KEY_X - 12) / max(most, 1))

    def _rows(self) -> dict[str, int]:
        """Return the row of each worker: a new one takes that of one that is gone."""
        rows: dict[str, int] = {}
        for _, sight in self.sights:
            used = {rows[name] for name in sight.workers if name in rows}
            for name in sight.workers:
                if name not in rows:
                    rows[name] = next(row for row in range(len(self.workers)) if row not in used)
                    used.add(rows[name])
        return rows

    def _places(self) -> dict[str, list[tuple[float, str, int]]]:
        """Return which place of which worker each key has: it stays there until it moves."""
        taken: dict[str, dict[str, int]] = {name: {} for name in self.workers}
        found: dict[str, list[tuple[float, str, int]]] = {key: [] for key in KEYS}
        for at, sight in self.sights:
            for key in KEYS:
                owner = sight.owners[key]
                before = found[key][-1] if found[key] else None
                if not owner or (before is not None and before[1] == owner):
                    continue
                if before is not None:
                    taken[before[1]].pop(key, None)
                used = set(taken[owner].values())
                place = next(number for number in range(len(KEYS)) if number not in used)
                taken[owner][key] = place
                found[key].append((at, owner, place))
        return found

    def xy(self, owner: str, place: int) -> tuple[float, float]:
        """Return where a place of a worker is."""
        return LEFT + KEY_X + place * self.pitch, TOP + self.rows[owner] * ROW + 9


def move(x: float, y: float) -> str:
    """Return the CSS of a place."""
    return f"transform:translate({x:g}px,{y:g}px)"


def write(film: Film) -> str:
    """Return the file."""
    stage = Stage(film)
    sheet = Sheet(film.seconds + REST, _still(stage))
    rows = max(stage.rows.values()) + 1
    below = TOP + max(rows * ROW, 250) + 14
    parts = [
        *_workers(stage, sheet),
        *_keys(stage, sheet),
        *_gpus(stage, sheet),
        *_counters(stage, sheet, below),
        *_story(stage, sheet, below + 26),
    ]
    height = below + 26 + STORY * 24 + 18
    return "".join(_page(height, parts, sheet))


def _page(height: float, parts: Sequence[str], sheet: Sheet) -> list[str]:
    described = (
        "millpond demo: four workers own 24 keys. One is killed with -9 and its keys move to the others; three GPUs go "
        "to the next in line, also when their holder is killed."
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        f'role="img" aria-label="{escape(described)}">',
        f"<title>{escape(described)}</title>",
        "<style>text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"font-size:13px;fill:{INK}}}.f{{fill:{FAINT}}}.b{{font-weight:700}}.s{{font-size:12px}}"
        f".n{{font-size:12px;font-weight:700;fill:#0b1220;text-anchor:middle}}{sheet.text()}</style>",
        f'<rect width="{WIDTH}" height="{height:g}" rx="12" fill="#070c18"/>',
        f'<text x="{LEFT}" y="34" class="b" style="font-size:16px">millpond demo</text>',
        f'<text x="{WIDTH - LEFT}" y="34" class="f s" text-anchor="end">real processes, one SQLite file, no server'
        "</text>",
        f'<text x="{LEFT}" y="74" class="b">KeyedPool</text>',
        f'<text x="{LEFT + 84}" y="74" class="f s">each key has one owner; its jobs run one at a time, in order</text>',
        f'<text x="{RIGHT}" y="74" class="b">ResourcePool</text>',
        f'<text x="{RIGHT + 106}" y="74" class="f s">GPUs, in line</text>',
        *parts,
        "</svg>\n",
    ]


def _workers(stage: Stage, sheet: Sheet) -> list[str]:
    drawn = []
    words = {"starting": "starts", "working": "", "killed": "killed -9", "leaving": "leaves", "left": "left"}
    for name, row in stage.rows.items():
        y = TOP + row * ROW
        states = [(at, sight.workers.get(name, "")) for at, sight in stage.sights]
        edges = {"killed": f"stroke:{BAD};fill:#2a1020", "leaving": "stroke:#fbbf24"}
        box = sheet.steps([(at, edges.get(state, f"stroke:{EDGE};fill:{PANEL}")) for at, state in states])
        seen = sheet.steps([(at, f"opacity:{1 if state else 0}") for at, state in states])
        drawn += [
            f'<g style="{seen}"><rect x="{LEFT}" y="{y}" width="{BOX}" height="44" rx="8" stroke-width="1.5" '
            f'fill="{PANEL}" style="{box}"/>',
            f'<text x="{LEFT + 12}" y="{y + 20}" class="b">{name}</text>',
        ]
        for state, word in words.items():
            if word and any(state == one for _, one in states):
                told = sheet.steps([(at, f"opacity:{int(one == state)}") for at, one in states])
                fill = f' fill="{BAD}"' if state == "killed" else ""
                style = f"{told};fill:{BAD}" if state == "killed" else told
                drawn.append(f'<text x="{LEFT + 12}" y="{y + 36}" class="f s"{fill} style="{style}">{word}</text>')
        counts = [(at, sum(owner == name for owner in sight.owners.values())) for at, sight in stage.sights]
        for number in sorted({count for _, count in counts}):
            told = sheet.steps(
                [
                    (at, f"opacity:{int(count == number and state == 'working')}")
                    for (at, count), (_, state) in zip(counts, states, strict=True)
                ]
            )
            drawn.append(f'<text x="{LEFT + 12}" y="{y + 36}" class="f s" style="{told}">{number} keys</text>')
        drawn.append("</g>")
    return drawn


def _keys(stage: Stage, sheet: Sheet) -> list[str]:
    drawn = []
    size = stage.pitch - 6
    for key in KEYS:
        track = [(at, move(*stage.xy(owner, place))) for at, owner, place in stage.places[key]]
        if not track:
            continue
        lit = sheet.steps([(at, f"opacity:{1 if key in sight.running else 0.55}") for at, sight in stage.sights[::2]])
        drawn.append(
            f'<g style="{sheet.moves(track)}"><g style="{lit}"><rect width="{size:g}" height="26" rx="5" '
            f'fill="{colour(key)}"/><text x="{size / 2:g}" y="17.5" class="n">{key[-2:]}</text></g></g>'
        )
    return drawn


def _gpus(stage: Stage, sheet: Sheet) -> list[str]:
    width = WIDTH - LEFT - RIGHT
    drawn = []
    for row, name in enumerate(GPUS):
        y = TOP + row * ROW
        drawn += [
            f'<rect x="{RIGHT}" y="{y}" width="{width}" height="44" rx="8" fill="{PANEL}" stroke="{EDGE}" '
            'stroke-width="1.5"/>',
            f'<text x="{RIGHT + 12}" y="{y + 27}" class="b">{name}</text>',
        ]
    line = TOP + len(GPUS) * ROW + 24
    drawn.append(f'<text x="{RIGHT + 2}" y="{line}" class="f s">waiting, the next one first</text>')
    for name in PEOPLE:
        drawn.append(_person(stage, sheet, name, line))
    return drawn


def _person(stage: Stage, sheet: Sheet, name: str, line: float) -> str:
    spots: Track = []
    looks: Track = []
    fills: Track = []
    spot, last, was_dead = move(RIGHT, line + 12), "", False
    for at, sight in stage.sights:
        held = [one.resources[0] for one in sight.holders if one.id == name and one.resources]
        queue = [one.id for one in sight.waiters]
        is_dead = not sight.people.get(name, True)
        if held and not is_dead:
            spot = move(RIGHT + 84, TOP + GPUS.index(held[0]) * ROW + 9)
        elif name in queue and not is_dead:
            spot = move(RIGHT + queue.index(name) * 64, line + 12)
        elif is_dead and not was_dead and last:  # aside, so that the next one is seen
            spot = move(RIGHT + 146, TOP + GPUS.index(last) * ROW + 9)
        last, was_dead = held[0] if held else last if is_dead else "", is_dead
        spots.append((at, spot))
        looks.append((at, f"opacity:{1 if held or name in queue or is_dead else 0}"))
        fills.append((at, f"fill:{BAD if is_dead else GOOD if held else '#93a4c3'}"))
    dead = sheet.steps([(at, f"opacity:{int(not sight.people.get(name, True))}") for at, sight in stage.sights])
    return (
        f'<g style="{sheet.moves(spots)}"><g style="{sheet.steps(looks)}"><rect width="56" height="26" rx="13" '
        f'style="{sheet.steps(fills)}"/><text x="28" y="17.5" class="n">{name}</text>'
        f'<text x="61" y="17.5" class="s" style="{dead};fill:{BAD}">kill -9</text></g></g>'
    )


def _counters(stage: Stage, sheet: Sheet, y: float) -> list[str]:
    def words(sight: Sight) -> str:
        order = "order kept" if not sight.disorder else "ORDER BROKEN"
        return f"{sight.ended:,} jobs done   {sight.again} re-run   {sight.lost} lost   {order}"

    every = stage.sights[::5]
    return _texts(sheet, [(at, words(sight)) for at, sight in every], LEFT, y, "b")


def _story(stage: Stage, sheet: Sheet, y: float) -> list[str]:
    """Draw the last lines, the newest on top."""
    _, last = stage.sights[-1]
    first = stage.sights[0][1].at
    lines = last.lines
    drawn = []
    for number, line in enumerate(lines):
        track: Track = [(0.0, "opacity:0")]
        for later in range(STORY):
            if number + later < len(lines):
                at = max(0.0, lines[number + later].at - first)
                shift = 24 * later
                track.append((at, f"opacity:{1 if later == 0 else 0.6};transform:translateY({shift}px)"))
        if number + STORY < len(lines):
            track.append((max(0.0, lines[number + STORY].at - first), "opacity:0"))
        fill = {"good": GOOD, "bad": BAD}.get(line.kind, FAINT)
        style = sheet.steps(sorted(track, key=lambda one: one[0]))
        told = escape(line.text, quote=False)
        weight = ' class="b"' if line.kind else ""
        drawn.append(
            f'<text x="{LEFT}" y="{y + 14:g}"{weight} style="{style};fill:{fill};font-size:15px">{told}</text>'
        )
    return drawn


def _texts(sheet: Sheet, track: list[tuple[float, str]], x: float, y: float, kind: str) -> list[str]:
    """Draw a text that changes: one element for each."""
    changes = _changes(track)
    drawn = []
    for number, (at, text) in enumerate(changes):
        seen: Track = [(0.0, f"opacity:{int(at == 0)}"), (at, "opacity:1")]
        if number + 1 < len(changes):
            seen.append((changes[number + 1][0], "opacity:0"))
        style = sheet.steps(seen)
        drawn.append(f'<text x="{x}" y="{y:g}" class="{kind}" xml:space="preserve" style="{style}">{text}</text>')
    return drawn


def _still(stage: Stage) -> float:
    """Return the moment after the first kill was overcome."""
    first, (end, last) = stage.sights[0][1].at, stage.sights[-1]
    told = [line.at - first for line in last.lines if "moved in" in line.text]
    return (told[0] if told else end) + 0.3

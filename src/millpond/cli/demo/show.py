"""The command: the demo on a screen with keys, or in lines of text where there is no terminal."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from millpond._events import logger
from millpond.cli.demo import screen
from millpond.cli.demo.film import Film
from millpond.cli.demo.keyboard import Keyboard
from millpond.cli.demo.svg import write
from millpond.cli.demo.tenants import sentence
from millpond.cli.demo.world import Sight, World

FRAME: Final = 0.1
SETTLE: Final = 60.0
"""Seconds after which what must happen is taken for lost."""
LINES: Final = 8.0
"""Seconds for which it plays where there is no terminal."""
PLAN: Final = ((1.5, "k"), (4.5, "g"), (7.0, "j"), (10.5, "b"), (13.0, "d"), (16.0, "j"))
"""What is done, and when, while nobody presses a key: seconds after everything works."""
ROUND: Final = 19.0
"""Seconds after which the plan begins again."""


class Plan:
    """Presses keys until a person does. It strikes only when everything works, so a slow machine changes nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._began: float | None = None
        self._left = list(PLAN)
        self._round = 0.0
        self.is_on = True

    @property
    def has_killed(self) -> bool:
        """Whether a worker and a holder of a GPU were killed."""
        return bool(self._world.tenants.ledger.failovers and self._world.cards.hand_overs)

    @property
    def shown_for(self) -> float:
        """Return the seconds since everything works."""
        return time.monotonic() - self._began if self._began is not None else 0.0

    def due(self) -> str:
        """Return the key to press now, or nothing."""
        if not self.is_on:
            return ""
        if self._began is None:
            if not self._world.is_ready:
                return ""
            self._began = time.monotonic()
        if not self._left:
            self._left = list(PLAN)
            self._round += ROUND
        at, key = self._left[0]
        if (
            self.shown_for < self._round + at
            or not self._world.is_settled
            or (key == "g" and not self._world.cards.is_ready)
        ):
            return ""
        self._left.pop(0)
        return key


class Signalled(KeyboardInterrupt):
    """A signal has told the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = signal.Signals(number)


def actions(world: World) -> dict[str, Callable[[], object]]:
    """Return what each key does."""
    return {
        "k": world.tenants.kill,
        "d": world.tenants.drain,
        "j": world.tenants.join,
        "b": world.tenants.burst,
        "g": world.cards.kill_holder,
        "s": world.cards.steal,
    }


def run(seconds: float | None, *, output: str, record: str | None) -> int:
    """Show the demo; return the exit code: 0 if nothing was lost and all stayed in order."""
    console = Console(stderr=output == "json")
    film = Film() if record is not None else None
    try:
        with _quiet(), _ending_by_signal():
            play = _live if console.is_terminal else _lines
            outcome = play(console, seconds, film)
    except (KeyboardInterrupt, EOFError) as end:
        number = end.number if isinstance(end, Signalled) else signal.SIGINT
        by = "Ctrl-C" if number == signal.SIGINT else number.name
        console.print(f"left by {by}; all processes of the demo have ended")
        return 0 if console.is_terminal else 128 + number  # nothing was counted, so a script must not take it for good
    if film is not None and not film.sights:
        console.print("nothing was recorded: it ended before all processes had begun")
        return 1
    if film is not None and record is not None:
        Path(record).write_text(write(film), encoding="utf-8")
    if output == "json":
        json.dump(outcome, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        _say(console, outcome)
    return 0 if outcome["lost"] == 0 and outcome["order_kept"] else 1


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's log off the screen."""
    silent = logging.NullHandler()
    is_passed_on = logger.propagate
    logger.addHandler(silent)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = is_passed_on
        logger.removeHandler(silent)


@contextmanager
def _ending_by_signal() -> Iterator[None]:
    """Leave by SIGTERM and SIGHUP as by Ctrl-C: with the terminal as it was."""

    def leave(number: int, _: object) -> None:
        raise Signalled(number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _live(console: Console, seconds: float | None, film: Film | None) -> dict[str, Any]:
    note = "plays by itself until you press a key"
    until = time.monotonic() + seconds if seconds is not None else float("inf")

    def draw(sight: Sight | None, *, is_helping: bool = False) -> Any:
        return screen.picture(sight, console.width, console.height - 1, note, is_helping=is_helping)

    is_helping = False
    with Keyboard().listening() as keyboard, Live(draw(None), console=console, screen=True, auto_refresh=False) as live:
        live.refresh()
        with World() as world:
            plan, acts = Plan(world), actions(world)
            while time.monotonic() < until:
                sight = world.look()
                if film is not None and (film.sights or world.is_ready):
                    film.take(sight)
                live.update(draw(sight, is_helping=is_helping), refresh=True)
                pressed = keyboard.keys(FRAME)
                if pressed:
                    plan.is_on, note = False, f"from another terminal: millpond top --url {world.url}"
                for key in pressed.lower() or plan.due():
                    if key == "q":
                        until = 0.0
                    elif key == "?":
                        is_helping = not is_helping
                    elif key in acts:
                        is_helping = False
                        acts[key]()
            return summary(world)


def _lines(console: Console, seconds: float | None, film: Film | None) -> dict[str, Any]:
    """Play for some seconds with a kill, and until what followed from it is known; print what happens."""
    seconds = LINES if seconds is None else seconds
    told, next_line = 0, 0.0
    with World() as world:
        plan, acts = Plan(world), actions(world)
        deadline = time.monotonic() + seconds + SETTLE
        while time.monotonic() < deadline:
            sight = world.look()
            if film is not None and plan.shown_for:
                film.take(sight)
            for line in sight.lines[told:]:
                console.print(f"{line.at:6.1f} s  {line.text}", soft_wrap=True, markup=False, highlight=False)
            told = len(sight.lines)
            if sight.at >= next_line:
                next_line = sight.at + 2
                console.print(_line(sight), soft_wrap=True, markup=False, highlight=False)
            is_over = plan.shown_for >= seconds and plan.has_killed and world.is_settled
            if is_over:
                break
            for key in plan.due():
                acts[key]()
            time.sleep(FRAME)
        world.tenants.stop_feeding()
        while world.tenants.ledger.ended + len(world.tenants.ledger.lost) < world.tenants.ledger.dispatched:
            if time.monotonic() > deadline:
                break
            time.sleep(FRAME)
        world.tenants.compare()
        return summary(world)


def _line(sight: Sight) -> str:
    working = sum(state == "working" for state in sight.workers.values())
    held = ", ".join(f"{one.resources[0]} {one.id}" for one in sight.holders) or "no GPU held"
    local = ", ".join(f"{now.name} {rate:,.0f}/s" for now, rate in sight.local)
    return (
        f"{sight.at:6.1f} s  {working} workers, {len(sight.running)} of {len(sight.owners)} keys run, "
        f"{sight.ended:,} jobs done | {held}, {len(sight.waiters)} wait | {local}"
    )


def summary(world: World) -> dict[str, Any]:
    """Return what was counted."""
    books = world.tenants.ledger
    return {
        "jobs_dispatched": books.dispatched,
        "jobs_done": books.ended,
        "jobs_run_again": books.again,
        "lost": len(books.lost),
        "order_kept": not books.disorder,
        "workers_ended": [
            {
                "worker": one.worker,
                "killed": one.is_killed,
                "keys_moved": len(one.keys),
                "seconds": round(one.seconds, 4),
                "jobs_run_again": len(one.again),
                "lost": len(one.lost),
                "order_kept": not one.disorder,
                "sentence": sentence(one),
            }
            for one in books.failovers
            if one.is_settled
        ],
        "gpu_grants": world.cards.grants,
        "gpu_steals": world.cards.steals,
        "gpu_holders_killed": [
            {"resource": one.resource, "victim": one.victim, "next": one.heir, "seconds": round(one.seconds, 4)}
            for one in world.cards.hand_overs
        ],
        "local_pools": {now.name: {"kind": now.kind, "done": now.completed} for now, _ in world.look().local},
    }


def _say(console: Console, outcome: dict[str, Any]) -> None:
    said = [one["sentence"] for one in outcome["workers_ended"]]
    said += [
        f"{one['resource']}: {one['victim']} killed, {one['next']} had it {1000 * one['seconds']:.0f} ms later"
        for one in outcome["gpu_holders_killed"]
        if one["next"]
    ]
    order = "order kept" if outcome["order_kept"] else "ORDER BROKEN"
    said.append(
        f"{outcome['jobs_done']:,} of {outcome['jobs_dispatched']:,} jobs done, {outcome['jobs_run_again']} re-run, "
        f"{outcome['lost']} lost, {order}; {outcome['gpu_grants']} GPU grants"
    )
    for line in said:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

"""What the demo draws into terminals of several sizes."""

from __future__ import annotations

import pytest
from rich.console import Console

from millpond import ThreadPool
from millpond.cli.demo import screen
from millpond.cli.demo.story import Line
from millpond.cli.demo.tenants import KEYS
from millpond.cli.demo.world import Sight


@pytest.fixture
def sight():
    with ThreadPool(8) as pool:
        now = pool.statistics()
    return Sight(
        at=1.0,
        workers={"w1": "working", "w2": "working"},
        owners={key: "w2" if key == KEYS[0] else "w1" for key in KEYS},
        running=frozenset(KEYS[:3]),
        depths=dict.fromkeys(KEYS, 1),
        holders=[],
        waiters=[],
        people={"ann": True},
        local=[(now, 90.0), (now, 20.0), (now, 200.0)],
        dispatched=9,
        ended=9,
        again=0,
        lost=0,
        disorder=0,
        lines=[Line(1.0, "w3 killed with -9; it owned 11 keys", "bad"), Line(2.0, "the last line")],
    )


def drawn(sight: Sight, width: int, height: int, *, is_helping: bool = False) -> list[str]:
    console = Console(width=width, height=height, color_system=None)
    lines = console.render_lines(screen.picture(sight, width, height, "a note", is_helping=is_helping))
    return ["".join(part.text for part in line).rstrip() for line in lines]


@pytest.mark.parametrize(("width", "height"), [(80, 23), (80, 40), (110, 36), (200, 60)])
def test_it_fits_and_shows_keys_and_the_last_line(sight: Sight, width: int, height: int):
    shown = drawn(sight, width, height)
    assert len(shown) <= height
    text = "\n".join(shown)
    assert "the last line" in text and "w2   1 key " in text and "q" in text


@pytest.mark.parametrize(("width", "height"), [(80, 23), (80, 40), (110, 36)])
def test_local_pools_are_on_the_screen_of_a_usual_terminal_and_the_keys_in_one_line(
    sight: Sight, width: int, height: int
):
    shown = drawn(sight, width, height)
    assert sum(line.count("ThreadPool") for line in shown) == 3
    assert "kill" in shown[-1] and "quit" in shown[-1]


@pytest.mark.parametrize(("width", "height"), [(40, 10), (44, 16), (80, 23)])
def test_help_names_every_key(sight: Sight, width: int, height: int):
    shown = drawn(sight, width, height, is_helping=True)
    assert len(shown) <= height
    assert {line[0] for line in shown if line[1:3] == "  "} >= set("kgbjdsq")

"""The page of parity names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"\b((?:\w+/)?test_\w+)::(test_\w+)", (ROOT / "docs" / "parity.md").read_text())))


def test_the_page_names_many_tests():
    assert len(NAMED) > 40


ROWS = """
toy v1 | toy v2 | toy v3 | toy TODO | queue strategies | scale-up | scale-down | resize policies | rejection | pond | ants
gammazero | Java | concurrent.futures | pebble, loky, mpire | anyio | users' wishes | seed | Pulse | sample | beats it
beyond | one vocabulary, one tool | embedded and durable | proof of death | rules once | a picture | why | any language
tests share devices | order per key for free
"""


def test_every_row_is_on_the_page_with_a_test_or_says_that_it_is_missing():
    lines = re.findall(r"^\| (.+?) \|(.*)\|$", (ROOT / "docs" / "parity.md").read_text(), re.M)
    rows = {name for name, _ in lines}
    wanted = {name.strip() for name in re.split(r"[|\n]", ROWS) if name.strip()}
    assert wanted <= rows
    for name, rest in lines:
        assert name in ("from", "row") or "::test_" in rest or "**missing**" in rest, (name, rest)


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_named_on_the_page_exists(file, test):
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    assert re.search(rf"^(async )?def {test}\(", path.read_text(), re.M)

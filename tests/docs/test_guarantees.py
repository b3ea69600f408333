"""The page of guarantees: every promise is there, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"\[`\w+::(test_\w+)`\]\(https://\S+?/blob/main/(tests/\S+?\.py)\)", PAGE)))


def test_every_promise_is_on_the_page_with_a_test():
    sections = re.split(r"^### ", PAGE, flags=re.M)[1:]
    found = [section.split(":")[0] for section in sections]
    assert found == [f"K{n}" for n in range(1, 8)] + [f"G{n}" for n in range(1, 11)]
    for section in sections:
        assert "::test_" in section, section.splitlines()[0]


@pytest.mark.parametrize(("test", "path"), NAMED)
def test_a_test_named_on_the_page_exists(test: str, path: str):
    assert re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text(), re.M)

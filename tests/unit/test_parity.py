"""The page of parity names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"\b((?:\w+/)?test_\w+)::(test_\w+)", (ROOT / "docs" / "parity.md").read_text())))


def test_the_page_names_many_tests():
    assert len(NAMED) > 40


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_named_on_the_page_exists(file, test):
    (path,) = (ROOT / "tests").rglob(f"{file}.py")
    assert re.search(rf"^(async )?def {test}\(", path.read_text(), re.M)

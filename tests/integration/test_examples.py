"""Every example runs alone and prints what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

PRINTS = {
    "bounded_downloads": ["stopped: https://example.invalid/42 is gone", "1 failed"],
    "directory_sizes": ["3000 bytes, 30 folders deep"],
    "crash_proof": ["crashed: [3, 13, 23]", "the rest: 7848", "never ended was killed"],
    "crawler": ["200 pages", "at once"],
}


def test_every_example_is_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PRINTS)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_runs_and_prints_what_it_promises(name):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    for line in PRINTS[name]:
        assert line in done.stdout

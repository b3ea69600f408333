"""Every benchmark runs, with a hundredth of its work, so that none rots."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.skipif("MILLPOND_MATRIX" in os.environ, reason="once, on the main Python, is enough")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "file", sorted(path.stem for part in ("local", "resources") for path in BENCHMARKS.glob(f"{part}_*.py"))
)
def test_a_benchmark_runs(file):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), "--smoke", file], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("millpond") + done.stdout.count("defaults") > 0

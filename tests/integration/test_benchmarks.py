"""Every benchmark runs, with a hundredth of its work, so that none rots."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FILES = sorted(path.stem for part in ("local", "resources") for path in BENCHMARKS.glob(f"{part}_*.py"))
FILES += ["keyed_redis", "keyed_scale", "web_pages"]


def run(file: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--smoke", file]
    return subprocess.run(command, capture_output=True, text=True, timeout=800)


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """All of them, two at a time: a smoke run measures nothing."""
    with ThreadPoolExecutor(2, thread_name_prefix="smoke") as pool:
        yield {file: pool.submit(run, file) for file in FILES}


@pytest.mark.skipif("MILLPOND_MATRIX" in os.environ, reason="once, on the main Python, is enough")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES)
def test_a_benchmark_runs(file, runs):
    done = runs[file].result()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("millpond") + done.stdout.count("defaults") > 0

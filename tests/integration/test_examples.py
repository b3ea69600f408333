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
    "gpu_pool": [
        "ann has gpu-0\nbob has gpu-1\n",
        "in line: 1. cid for model=a100: gpu-0 is held by ann (training); gpu-1 is held by bob (training)\n",
        "in line: 2. dan for model=a100: 1 ahead of it; gpu-0 is held by ann",
        "ms later cid has gpu-0",
        "bob is done, and dan has gpu-1",
        "gpu-0 died: ann",
    ],
    "device_lab": [
        "with NFC: pixel-1; when that is taken, any Android: pixel-2",
        "bundle: 1 of pixel-1, 1 of iphone-1, 2 of bench-power",
        "nobody gets past the one who waits for all four",
        "ci waits for @bench-power (all units): bench-power is held by ci (soldering) and 3 of 4 units free",
        "calibration has all 4 outputs",
        "iphone-1 is quarantined (screen is cracked)",
        "ann holds pixel-1: test_login failed",
        "last in the history: revoked",
    ],
    "migration_lock": [
        "migrated from 0 to 2\n4 others found it done\n",
        "to 'schema' refused: token",
    ],
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

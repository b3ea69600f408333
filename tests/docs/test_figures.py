"""The figures of the README are those of the committed results of the benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_figures_of_the_readme_are_those_of_the_results():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "figures.py"), "--check"], check=False)
    assert done.returncode == 0, "run tools/figures.py"

"""Every Python block of the README and the docs runs, and prints what the block after it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"```(\w+)[^\n]*\n(.*?)```", re.S)


def snippets():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = FENCE.findall(page.read_text())
        for number, (language, code) in enumerate(blocks):
            if language == "python":
                after = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
                expected = after[1] if after[0] == "text" else None
                yield pytest.param(code, expected, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("code", "expected"), list(snippets()))
def test_a_snippet_runs_and_prints_what_it_says(code, expected, tmp_path):
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=50, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    if expected is not None:
        pattern = re.escape(expected.strip()).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, done.stdout.strip(), re.S), done.stdout

"""Every Python block of the README and the docs runs, and prints what the block after it says.

Blocks that speak of `localhost:7233` run against the tests' own Temporal server, with a worker that hosts pools.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ *```(\w+)[^\n]*\n(.*?)^ *```", re.S | re.M)
TEMPORAL = "localhost:7233"


def snippets():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = [(language, textwrap.dedent(code)) for language, code in FENCE.findall(page.read_text())]
        for number, (language, code) in enumerate(blocks):
            if language == "python":
                after = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
                expected = after[1] if after[0] == "text" else None
                yield pytest.param(code, expected, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize(("code", "expected"), list(snippets()))
def test_a_snippet_runs_and_prints_what_it_says(code, expected, tmp_path, request):
    is_on_temporal = TEMPORAL in code
    if is_on_temporal:
        code = code.replace(TEMPORAL, request.getfixturevalue("pools").address)
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    # a program with nothing but Temporal's SDK crashes one time in five on a busy machine, when the interpreter has ended
    assert done.returncode == 0 or (is_on_temporal and done.returncode in (-6, -11)), done.stderr
    if expected is not None:
        pattern = re.escape(expected.strip()).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, done.stdout.strip(), re.S), done.stdout

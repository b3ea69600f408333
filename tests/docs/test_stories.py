"""A story of two files: a block that begins with `# app.py` is that file, and what is typed after it answers as printed.

A command that ends with `&` runs beside those that follow, and is told to end after them.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import HANG

ROOT = Path(__file__).parents[2]
STORY = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```\n+```console\n(.*?)^```", re.S | re.M)


def stories() -> list[object]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        pytest.param(*found, id=f"{page.relative_to(ROOT)}-{found[0]}")
        for page in pages
        for found in STORY.findall(page.read_text())
    ]


def test_there_are_stories() -> None:
    assert stories()


@pytest.mark.parametrize(("name", "code", "typed"), stories())
def test_what_is_typed_after_a_file_answers_as_printed(name: str, code: str, typed: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(code)
    programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": programs, "NO_COLOR": "1"}
    environment.pop("MILLPOND_URL", None)
    beside = []
    try:
        for command, answer in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", typed, re.M):
            arguments = shlex.split(command, comments=True)
            if arguments[-1] == "&":
                beside.append(
                    subprocess.Popen(
                        arguments[:-1], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
                    )
                )
                continue
            done = subprocess.run(
                arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANG
            )
            assert done.returncode == 0, done.stderr
            assert re.fullmatch(re.escape(answer).replace(r"\.\.\.", ".*"), done.stdout, re.S), done.stdout
    finally:
        for one in beside:
            one.send_signal(signal.SIGTERM)
        for one in beside:
            one.wait(HANG)

"""What the page about the page says to type is typed here, and answers as printed. `...` stands for anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import HANG
from web_server import page

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "web-page.md"
ADDRESS = "http://127.0.0.1:8321"
TITLE = "## The JSON API"


def typed() -> list[tuple[str, str]]:
    """Return the commands of the section, each with what it prints."""
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text().partition(TITLE)[2], re.S)
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M)


def test_what_the_docs_say_to_type_answers_as_they_say(tmp_path: Path):
    if shutil.which("curl") is None:
        problem = "no curl here: what the docs say of the JSON API is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    (tmp_path / "millpond").write_text(f'#!/bin/sh\nexec {sys.executable} -m millpond "$@"\n')
    (tmp_path / "millpond").chmod(0o755)
    url = f"sqlite:///{tmp_path}/pools.db"
    environment = {**os.environ, "MILLPOND_URL": url, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    commands = typed()
    assert len(commands) > 8
    with page(url) as client:
        for command, expected in commands:
            said = command.replace(ADDRESS, client.base.rstrip("/"))
            done = subprocess.run(["sh", "-c", said], env=environment, capture_output=True, text=True, timeout=HANG)
            assert done.returncode == 0, (said, done.stderr)
            pattern = re.escape(expected.strip()).replace(r"\.\.\.", ".*")
            assert re.fullmatch(pattern, done.stdout.strip(), re.S), (said, done.stdout)

"""The `millpond` command, run as people run it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.cli import SECTIONS, main
from waiting import HANG

COMMAND = [sys.executable, "-c", "from millpond.cli import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=HANG)


def test_help_lists_the_commands():
    done = run("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout


def test_the_version_is_told():
    assert run("--version").stdout == "millpond, version 0.1.0\n"


def test_an_unknown_command_is_told_so():
    done = run("dance")
    assert done.returncode == 2
    assert "No such command 'dance'" in done.stderr


def test_every_command_is_listed_once_and_said_in_a_line():
    listed = [name for names in SECTIONS.values() for name in names.split()]
    assert sorted(listed) == sorted(main.commands)
    for name, command in main.commands.items():
        assert len(command.get_short_help_str(1000)) <= 68, name


def commands_of_the_docs() -> list[str]:
    """Return what the README and the docs say to type: in blocks, and whole commands within the text and tables."""
    root = Path(__file__).parents[2]
    found = []
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        text = page.read_text()
        for block in re.findall(r"```console\n(.*?)```", text, re.S):
            found += [line[2:].removesuffix(" &") for line in block.splitlines() if line.startswith("$ millpond")]
        inline = re.findall(r"`(millpond (?:\w+ )[^`]*)`", re.sub(r"```.*?```", "", text, flags=re.S))
        found += [
            re.sub(r"\s+", " ", line).rstrip("\\")
            for line in inline
            if "…" not in line and not line.endswith(("--", "--hold"))
        ]
    return sorted({line for line in found if line.split()[1] in main.commands})


@pytest.mark.parametrize("line", commands_of_the_docs())
def test_what_the_docs_say_to_type_can_be_typed(line: str):
    _, name, *arguments = shlex.split(line, comments=True)
    main.commands[name].make_context(name, arguments)  # raises where an option is not known

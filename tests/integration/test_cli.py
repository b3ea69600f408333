"""The `millpond` command, run as people run it."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
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


def test_the_demo_ends_by_itself_without_a_terminal_and_loses_nothing():
    done = run("demo", "--seconds", "3")
    assert done.returncode == 0, done.stderr
    for name in ("thumbnails", "primes", "fetches"):
        assert name in done.stdout
    assert "nothing lost" in done.stdout


def test_the_demo_speaks_json_and_records_a_picture(tmp_path):
    picture = tmp_path / "demo.svg"
    done = run("demo", "--seconds", "1", "-o", "json", "--record", str(picture))
    outcome = json.loads(done.stdout)
    assert outcome["nothing_lost"] is True
    assert set(outcome["pools"]) == {"thumbnails", "primes", "fetches"}
    assert picture.read_text().startswith("<svg")


def test_ctrl_c_leaves_the_demo_cleanly():
    leader, follower = pty.openpty()
    demo = subprocess.Popen([*COMMAND, "demo", "--seconds", "3600"], stdout=follower, stderr=follower, text=True)
    os.close(follower)
    shown = ""
    while "thumbnails" not in shown:
        shown += os.read(leader, 65536).decode(errors="replace")
    demo.send_signal(signal.SIGINT)
    while True:
        try:
            shown += os.read(leader, 65536).decode(errors="replace")
        except OSError:
            break
    assert demo.wait(HANG) == 0
    assert "left by Ctrl-C" in shown
    assert "Traceback" not in shown


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
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", page, re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ millpond")]


@pytest.mark.parametrize("line", commands_of_the_docs())
def test_what_the_docs_say_to_type_can_be_typed(line: str):
    _, name, *arguments = shlex.split(line, comments=True)
    main.commands[name].make_context(name, arguments)  # raises where an option is not known

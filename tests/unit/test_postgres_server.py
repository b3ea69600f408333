"""The server that tests of PostgreSQL start; what it serves is in the conformance suite."""

from __future__ import annotations

import subprocess
from pathlib import Path

from millpond.testing import _postgres

PROGRAM = """#!/bin/sh
case $0 in */unreachable/*) exit 1 ;; esac
cat "${0%/*}/../../../server.libs/libpq"  # as a wheel's programs look for their libraries
"""


def test_programs_of_a_wheel_are_copied_with_the_libraries_beside_it_where_nobody_cannot_reach_them(tmp_path: Path):
    programs = tmp_path / "unreachable" / "server" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    (programs / "postgres").write_text(PROGRAM)
    (programs / "postgres").chmod(0o755)
    libraries = tmp_path / "unreachable" / "server.libs"
    libraries.mkdir()
    (libraries / "libpq").write_text("it is here")
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    copy = _postgres._reachable(programs, folder)
    assert subprocess.run([copy / "postgres"], check=True, capture_output=True, text=True).stdout == "it is here"
    assert all(
        each.stat().st_mode & 0o005 == 0o005 for each in (folder, *copy.parents) if folder in (each, *each.parents)
    )

"""The witness of a program that uses pools on Temporal, without a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

PROGRAM = """
import gc
from millpond.resources.engines.temporal._witness import Witness

witness = Witness("temporal://127.0.0.1:1", "p:session")
witness.mention("boards")
print(witness.pid, flush=True)
witness.{ending}()
del witness
gc.collect()
input()
"""


def started(ending: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM.format(ending=ending)]
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    return program, int(program.stdout.readline())


def test_a_witness_that_is_left_behind_watches_on_and_nothing_is_warned_of():
    program, witness = started("leave_behind")
    watching = os.pidfd_open(witness)
    try:
        assert program.poll() is None
        os.kill(witness, 0)
    finally:
        signal.pidfd_send_signal(watching, signal.SIGKILL)  # before it tells a server that is not there
        os.close(watching)
    _, errors = program.communicate("\n", timeout=60)
    assert (program.returncode, errors) == (0, "")


def test_a_witness_that_was_told_goodbye_has_ended():
    program, witness = started("close")
    _, errors = program.communicate("\n", timeout=60)
    assert (program.returncode, errors) == (0, "")
    assert not os.path.exists(f"/proc/{witness}")

"""Run a command, and let random processes of its family stand still now and then, as a busy machine does.

usage: python tools/pauses.py [--every 1.5] [--length 2] COMMAND ...

    python tools/pauses.py .venv/bin/python -m pytest -q --timeout 900 tests/unit/keyed

A process that stands still costs nothing, so many such runs may go on side by side: they find in minutes what is seen
beside two hogs once in some whole runs. What is red because a lease was over, or because a process that a test had
stopped itself went on, is no fault; what stands still for ever is one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import threading
import time

import psutil


def go_on(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGCONT)


def pause_one(pid: int, length: float) -> bool:
    """Stop a process of the family for about so many seconds; return whether one was found that runs."""
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(pid)
        chosen = random.choice([first, *first.children(recursive=True)])
        if chosen.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            chosen.send_signal(signal.SIGSTOP)
            threading.Timer(length * random.uniform(0.5, 1.5), go_on, [chosen]).start()
            return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=float, default=1.5, help="seconds from one pause to the next, on average (1.5)")
    parser.add_argument("--length", type=float, default=2.0, help="seconds that a pause lasts, on average (2)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if not asked.command:
        parser.error("which command?")
    child = subprocess.Popen(asked.command)
    pauses = 0
    while child.poll() is None:
        time.sleep(random.uniform(0, 2 * asked.every))
        pauses += pause_one(child.pid, asked.length)
    print(f"{pauses} pauses")
    return child.returncode


if __name__ == "__main__":
    raise SystemExit(main())

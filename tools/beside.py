"""Run commands some at a time, show the output of each when it has ended, and fail if one of them does.

usage: python tools/beside.py AT_ONCE COMMAND ...   (each is one argument, a line for the shell; the longest first)

Most tests wait for a clock, a server or a process rather than for a core, so some lots of them side by side take little
more time than one. No test measures time: what does is a benchmark, and runs alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import IO


def main(at_once: int, waiting: list[str]) -> int:
    runs: list[tuple[str, subprocess.Popen[bytes], IO[str], float]] = []
    failed: list[str] = []
    while waiting or runs:
        while waiting and len(runs) < at_once:
            line = waiting.pop(0)
            output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (read when the command has ended)
            process = subprocess.Popen(line, shell=True, stdout=output, stderr=subprocess.STDOUT)
            runs.append((line, process, output, time.monotonic()))
        for run in list(runs):
            line, process, text, began = run
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
            if ended:
                process.returncode = os.waitstatus_to_exitcode(status)
                runs.remove(run)
                text.seek(0)
                took, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
                print(f"$ {line}\n{text.read()}({took:.0f} s, {cpu:.0f} s of CPU)", flush=True)
                failed += [line] if process.returncode else []
        time.sleep(0.05)
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), sys.argv[2:]))

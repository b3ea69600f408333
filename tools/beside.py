"""Run commands side by side, show the output of each when it has ended, and fail if one of them does.

usage: python tools/beside.py COMMAND ...        (each is one argument, a line for the shell)

Most tests wait for a clock, a server or a process rather than for a core, so two lots of them take little more time
than one. What measures time, or needs both cores, is run alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import IO


def main(lines: list[str]) -> int:
    runs: list[tuple[str, subprocess.Popen[bytes], IO[str]]] = []
    for line in lines:
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115  (read when the command has ended)
        runs.append((line, subprocess.Popen(line, shell=True, stdout=output, stderr=subprocess.STDOUT), output))
    began, failed = time.monotonic(), 0
    while runs:
        for run in list(runs):
            line, process, text = run
            code = process.poll()
            if code is None:
                continue
            runs.remove(run)
            text.seek(0)
            print(f"$ {line}\n{text.read()}({time.monotonic() - began:.0f} s)", flush=True)
            failed += code != 0
        time.sleep(0.1)
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

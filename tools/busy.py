"""Run a command some times, some at a time, beside processes that use up the cores, and count how often it fails.

usage: python tools/busy.py [--hogs 2] [--times 1] [--at-once 1] COMMAND ...

    python tools/busy.py make test
    python tools/busy.py --times 30 --at-once 3 .venv/bin/python -m pytest -q tests/chaos/test_resource_chaos.py

Shows the whole output of the runs that fail, the last line of those that do not, and how long each took.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass"


def run(command: list[str]) -> tuple[int, float, str]:
    """Run the command once; return its exit code, how long it took, and what it printed."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT).returncode
        output.seek(0)
        return code, time.monotonic() - began, output.read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hogs", type=int, default=2, help="processes that use up a core each (2)")
    parser.add_argument("--times", type=int, default=1, help="how often the command is run (1)")
    parser.add_argument("--at-once", type=int, default=1, help="how many runs share the machine (1)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if not asked.command:
        parser.error("which command?")
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(asked.hogs)]
    failed, longest = 0, 0.0
    try:
        with ThreadPoolExecutor(asked.at_once) as runs:
            for code, seconds, printed in runs.map(run, [asked.command] * asked.times):
                failed += code != 0
                longest = max(longest, seconds)
                last = (printed.strip() or "(no output)").splitlines()[-1]
                print(
                    f"{printed}\nexit {code} after {seconds:.0f} s" if code else f"{last} ({seconds:.0f} s)", flush=True
                )
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    print(f"{failed} of {asked.times} runs failed, the longest took {longest:.0f} s, beside {asked.hogs} hogs")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

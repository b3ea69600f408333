"""Run the tests on every other supported Python of this machine, each in an environment of its own, side by side.

On the newest, all of them; on those between, which the oldest and the newest enclose, the tests of local pools, where
Pythons differ most. With --all, all on each. On a free-threaded build (`python3.14t`), if one is found, the tests of
local pools and the storms of tests/stress, with the GIL off; with --all, those of keyed and resource pools too.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

SUPPORTED = ("3.11", "3.12", "3.13", "3.14", "3.15")
FREE_THREADED = ("3.15t", "3.14t")
"""Of these the first that is found. 3.13t was an experiment of CPython's, and is not supported."""
SPARED = ("unit/test_parity.py", "unit/resources/test_core_*", "unit/resources/test_odd_arguments.py", "unit/sqlite/*")
"""Tests of which one Python is enough: about servers or rules rather than Python."""
NEED_MORE = ("unit/resources/test_temporal_*", "unit/test_urls.py", "unit/keyed/test_models.py")
"""Tests that need packages which are not made for free-threaded builds, or were not when this was written."""
SECOND = ("unit/keyed", "unit/resources", "conformance")
"""The tests of the second of two lots, which take about as long as all others; the first is about local pools."""


def version_of(python: str) -> str | None:
    """Return the minor version that `python` really is, as "3.14" or "3.14t", or None when it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2] + getattr(sys, 'abiflags', '').strip('dmu'))"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def find(version: str) -> str | None:
    """Return an interpreter of this version: from PATH, or from a pyenv that keeps it out of PATH."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [shutil.which(f"python{version}")]
    number, threads = version.rstrip("t"), "t" if version.endswith("t") else ""
    candidates += sorted(glob.glob(f"{root}/versions/{number}.*{threads}/bin/python"), reverse=True)
    return next((each for each in candidates if each and version_of(each) == version), None)


def set_up(version: str, python: str) -> str:
    """Make the environment of one interpreter, if it is not there as the project wants it; return its folder."""
    folder = f".venv-{version}"
    stamp = f"{folder}/.installed"
    wanted = max(os.path.getmtime(each) for each in ("pyproject.toml", "conformance/pyproject.toml", "tools/venv.sh"))
    if not os.path.exists(stamp) or os.path.getmtime(stamp) < wanted:
        group = "free-threaded" if version.endswith("t") else "test"
        subprocess.run(["sh", "tools/venv.sh", python, folder, group], check=True)
        with open(stamp, "w"):
            pass
    return folder


def start(version: str, folder: str, *, everything: bool) -> list[tuple[str, subprocess.Popen[str], IO[str]]]:
    """Start the tests on one interpreter, in the background, in one or two lots."""
    lots = [["tests/unit", *(f"--ignore=tests/{part}" for part in SECOND)]]
    lots += [[f"tests/{part}" for part in SECOND]] if everything else []
    if version.endswith("t"):
        lots = [[*lot, *(f"--ignore-glob=tests/{part}" for part in NEED_MORE)] for lot in lots]
        lots[0].append("tests/stress")
    return [run(version, folder, lot) for lot in lots]


def run(version: str, folder: str, lot: list[str]) -> tuple[str, subprocess.Popen[str], IO[str]]:
    """Start a lot of tests."""
    command = [f"{folder}/bin/python", "-m", "pytest", "-q", "-m", "not soak and not slow", "-p", "no:cacheprovider"]
    # What one Python shows for all is spared the others: servers, storms, rules, docs.
    command += ["-k", "not redis and not valkey and not temporal and not between_machines", *lot]
    command += [f"--ignore-glob=tests/{part}" for part in SPARED]
    output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (read when the tests have ended)
    environment = {**os.environ, "MILLPOND_MATRIX": version, **({"PYTHON_GIL": "0"} if version.endswith("t") else {})}
    tests = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment)
    return version, tests, output


def main(everywhere: bool) -> int:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    others = {version: find(version) for version in SUPPORTED if version != here}
    found = {version: python for version, python in others.items() if python is not None}
    for version in others.keys() - found.keys():
        print(f"Python {version}: not installed here, skipped", flush=True)
    threaded = next(((version, python) for version in FREE_THREADED if (python := find(version))), None)
    if threaded is None:
        print(f"free-threaded Python ({' or '.join(FREE_THREADED)}): not installed here, skipped", flush=True)
    newest = list(found)[-1] if found else ""
    found.update([threaded] if threaded is not None else [])
    runs: list[tuple[str, subprocess.Popen[str], IO[str]]] = []
    failed: list[str] = []
    with ThreadPoolExecutor(1) as one:  # the tests of one begin while the next environment is made
        folders: dict[str, Future[str]] = {each: one.submit(set_up, each, python) for each, python in found.items()}
        for version, folder in folders.items():
            if (error := folder.exception()) is not None:
                print(f"Python {version}: no environment: {error}", file=sys.stderr)
                failed.append(version)
                continue
            runs += start(version, folder.result(), everything=everywhere or version == newest)
    for version, tests, output in runs:
        if tests.wait():
            failed.append(version)
        output.seek(0)
        print(f"Python {version}:\n{output.read()}", flush=True)
    if failed:
        print(f"failed on Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--all", action="store_true", help="run all tests on each, not only on the newest")
    raise SystemExit(main(everywhere=arguments.parse_args().all))

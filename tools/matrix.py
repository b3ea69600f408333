"""Run the tests on every other supported Python of this machine, each in an environment of its own."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys

SUPPORTED = ("3.11", "3.12", "3.13")


def version_of(python: str) -> str | None:
    """Return the minor version that `python` really is, or None when it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def find(version: str) -> str | None:
    """Return an interpreter of this version: from PATH, or from a pyenv that keeps it out of PATH."""
    root = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"), reverse=True)
    return next((each for each in candidates if each and version_of(each) == version), None)


def main() -> int:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    failed: list[str] = []
    for version in SUPPORTED:
        python = find(version)
        if version == here:
            continue
        if python is None:
            print(f"Python {version}: not installed here, skipped", flush=True)
            continue
        folder = f".venv-{version}"
        subprocess.run(["sh", "tools/venv.sh", python, folder, "test"], check=True)
        print(f"Python {version}:", flush=True)
        tests = subprocess.run(
            [f"{folder}/bin/python", "-m", "pytest", "-q", "-m", "not soak", "-p", "no:cacheprovider"]
        )
        if tests.returncode:
            failed.append(version)
    if failed:
        print(f"failed on Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

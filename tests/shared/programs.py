"""Programs that tests need and that are no wheels: `make test` puts them beside the Python of the tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest


def find(name: str) -> str:
    """Return the path of a program; skip on a laptop, fail where everything must be there."""
    beside = Path(sys.prefix) / "bin" / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        problem = f"no {name} here (`make test` fetches one, with tools/debian.sh): what needs it is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    return str(found)


def libraries() -> dict[str, str]:
    """Return the environment in which those programs find their libraries."""
    return {**os.environ, "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib" / "debian")}

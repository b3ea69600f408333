"""CPython's own tests of `ThreadPoolExecutor` pass on `ThreadPool`, but for a few that ask for other words than ours."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "shared" / "cpython_suite.py"

DIFFERENT = {
    "test_thread_names_default": "threads are called after the pool: ThreadPool-1_0",
    "test_max_workers_negative": "the same error in other words: must be at least 1",
    "test_submit_after_interpreter_shutdown": "the same error in other words: PoolClosed, a RuntimeError",
    "test_initializer": "the failure is logged by the logger of this library",
}
DIFFERENT_FROM_3_14 = {
    "test_map_buffersize_type_validation": "the same error in other words: must be a whole number",
    "test_map_buffersize_value_validation": "the same error in other words: must be at least 1",
}


def _has_own_tests() -> bool:
    """Return whether this Python came with its tests; Debian ships the package `test` without most of them."""
    try:
        return importlib.util.find_spec("test.test_concurrent_futures") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the tests that we run are those of Python 3.13")
@pytest.mark.skipif(not _has_own_tests(), reason="this Python came without its own tests")
def test_cpythons_own_tests_pass_but_for_a_few_about_words():
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True)
    outcome = json.loads(done.stdout.splitlines()[-1])
    different = DIFFERENT | (DIFFERENT_FROM_3_14 if sys.version_info >= (3, 14) else {})
    assert outcome["failed"].keys() == different.keys(), outcome["failed"]
    assert outcome["ran"] >= 45
    has_gil: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert outcome["skipped"] == (0 if has_gil else 1)  # CPython skips one of its own without the GIL

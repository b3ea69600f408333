"""CPython's own tests of `ThreadPoolExecutor` pass on `ThreadPool`, but for four that ask for other words than ours."""

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


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the tests that we run are those of Python 3.13")
@pytest.mark.skipif(importlib.util.find_spec("test") is None, reason="this Python came without its own tests")
def test_cpythons_own_tests_pass_but_for_four_about_words():
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True)
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["failed"].keys() == DIFFERENT.keys(), outcome["failed"]
    assert outcome["ran"] >= 45
    assert outcome["skipped"] == 0

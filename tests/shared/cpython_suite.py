"""Run CPython's own tests of `ThreadPoolExecutor` with `ThreadPool` in its place, and print as JSON what failed.

A program of its own: these tests replace a name in the standard library and count the threads of their process.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import os
import sys
import threading
import time
import types
import unittest
from collections.abc import Iterator
from typing import Any

import millpond
from millpond import ThreadPool

PACKAGE = "test.test_concurrent_futures"
PARTS = ("test_as_completed", "test_init", "test_shutdown", "test_thread_pool", "test_wait")


def thread_pool_tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from thread_pool_tests(each)
        elif "ThreadPool" in type(each).__name__:
            yield each


def use_ours_in_programs(module: Any) -> None:
    """Replace the standard pool by ours in the programs that a module of tests starts."""
    real, source = module.assert_python_ok, os.path.dirname(os.path.dirname(millpond.__file__))

    def assert_python_ok(option: str, code: str, *rest: str) -> Any:
        ours = f"import sys; sys.path.insert(0, {source!r}); from millpond import ThreadPool"
        code = code.replace("ThreadPoolExecutor", "ThreadPool")
        return real(option, code.replace("from concurrent.futures import ThreadPool", ours), *rest)

    module.assert_python_ok = assert_python_ok


def stretch_sleeps(mixin: Any, *modules: Any) -> None:
    """Make sleeps longer, at most up to the end of their test: who sleeps is to be asleep also after a slow machine's look."""
    over = threading.Event()
    shut_down = mixin.tearDown

    def tear_down(test: unittest.TestCase) -> None:
        over.set()
        shut_down(test)
        over.clear()

    def sleep(seconds: float) -> None:
        if seconds:
            over.wait(2 * seconds + 4)

    mixin.tearDown = tear_down
    for module in modules:
        module.time = types.SimpleNamespace(**{**vars(time), "sleep": sleep})


def _name(test: unittest.TestCase) -> str:
    """Return the name of a test, without what a subtest was given."""
    return test.id().split(" ")[0].rpartition(".")[2]


def main() -> None:
    concurrent.futures.ThreadPoolExecutor = ThreadPool  # type: ignore[misc]
    modules = [importlib.import_module(f"{PACKAGE}.{part}") for part in PARTS]
    use_ours_in_programs(modules[PARTS.index("test_shutdown")])
    sleepers = [importlib.import_module(f"{PACKAGE}.{part}") for part in ("executor", "test_as_completed", "test_wait")]
    stretch_sleeps(importlib.import_module(f"{PACKAGE}.util").ExecutorMixin, *sleepers)
    suites = map(unittest.defaultTestLoader.loadTestsFromModule, modules)
    tests = unittest.TestSuite(each for suite in suites for each in thread_pool_tests(suite))
    outcome = unittest.TextTestRunner(stream=sys.stderr).run(tests)
    failed = {_name(test): text for test, text in [*outcome.failures, *outcome.errors]}
    print("\n" + json.dumps({"ran": outcome.testsRun, "skipped": len(outcome.skipped), "failed": failed}))


if __name__ == "__main__":
    main()

"""Run CPython's own tests of `ThreadPoolExecutor` with `ThreadPool` in its place, and print as JSON what failed.

A program of its own: these tests replace a name in the standard library and count the threads of their process.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import os
import sys
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
    """Let the programs that a module of tests starts import our pool instead of the standard one."""
    real, source = module.assert_python_ok, os.path.dirname(os.path.dirname(millpond.__file__))

    def assert_python_ok(option: str, code: str, *rest: str) -> Any:
        ours = f"import sys; sys.path.insert(0, {source!r}); from millpond import ThreadPool"
        code = code.replace("ThreadPoolExecutor", "ThreadPool")
        return real(option, code.replace("from concurrent.futures import ThreadPool", ours), *rest)

    module.assert_python_ok = assert_python_ok


def _name(test: unittest.TestCase) -> str:
    """Return the name of a test, without what a subtest was given."""
    return test.id().split(" ")[0].rpartition(".")[2]


def main() -> None:
    concurrent.futures.ThreadPoolExecutor = ThreadPool  # type: ignore[misc]
    modules = [importlib.import_module(f"{PACKAGE}.{part}") for part in PARTS]
    use_ours_in_programs(modules[PARTS.index("test_shutdown")])
    suites = map(unittest.defaultTestLoader.loadTestsFromModule, modules)
    tests = unittest.TestSuite(each for suite in suites for each in thread_pool_tests(suite))
    outcome = unittest.TextTestRunner(stream=sys.stderr).run(tests)
    failed = {_name(test): text for test, text in [*outcome.failures, *outcome.errors]}
    print("\n" + json.dumps({"ran": outcome.testsRun, "skipped": len(outcome.skipped), "failed": failed}))


if __name__ == "__main__":
    main()

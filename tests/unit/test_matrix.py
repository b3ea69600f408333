"""`tools/matrix.py` spares free-threaded builds the tests that need packages which those cannot have."""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
OF_OURS = ("millpond.temporal", "millpond.resources.engines.temporal")
"""Modules of ours that need one of those packages as soon as they are imported."""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packages(group: list[Any]) -> set[str]:
    return {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in group if isinstance(each, str)}


def imported(path: Path) -> Iterator[str]:
    """What a file imports as soon as it is collected."""
    for each in ast.parse(path.read_text()).body:
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module is not None:
            yield each.module


def test_what_a_free_threaded_build_is_given_can_be_collected_there():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    missing = (packages(groups["test"]) - packages(groups["free-threaded"])) | set(OF_OURS)
    assert "temporalio" in missing
    spared = [f"tests/{part}" for part in load(ROOT / "tools" / "matrix.py").NEED_MORE]
    cannot = [
        (name, module)
        for folder in ("unit", "conformance", "stress")
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        if not any(fnmatch.fnmatch(name := str(path.relative_to(ROOT)), pattern) for pattern in spared)
        for module in imported(path)
        if any(module == each or module.startswith(f"{each}.") for each in missing)
    ]
    assert not cannot

"""Names that are loaded when they are first used.

`import millpond` stays quick and brings in no third-party package: a package's `__init__` lists its public names with
the module of each, and `lazy` turns the list into the module-level `__getattr__` and `__dir__` of PEP 562. Editors and
type checkers read the same names from the `if TYPE_CHECKING:` imports beside the list.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `package`, whose names live in the modules of `homes`."""

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names

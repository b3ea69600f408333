"""Names that are loaded when they are first used.

`import millpond` stays quick and brings in no third-party package: a package's `__init__` lists its public names with
the module of each, and `lazy` turns the list into the module-level `__getattr__` and `__dir__` of PEP 562. Editors and
type checkers read the same names from the `if TYPE_CHECKING:` imports beside the list. They must not see `__getattr__`:
it would make every name right, also a mistyped one.

A name may need a package that is not installed. It is left out of `dir()` then, since `help()` reads all that stands
there, and whoever asks for it is told what to install.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def lazy(
    package: str, homes: Mapping[str, str], needs: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `package`, whose names live in the modules of `homes`.

    `needs` has, for names that need one, the package that may be missing, and our extra that brings it.
    """

    def is_there(name: str) -> bool:
        return name not in needs or importlib.util.find_spec(needs[name][0]) is not None

    def find(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if not is_there(name):
            missing, extra = needs[name]
            raise ModuleNotFoundError(
                f'{package}.{name} needs the package {missing!r}: pip install "millpond[{extra}]"', name=missing
            )
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *filter(is_there, homes)})

    return find, names

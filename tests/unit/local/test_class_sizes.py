"""No class of the local pools grows too large to be read, as it runs: with the bases of ours that it has."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

import millpond.local
from millpond import ProcessPool, ThreadPool

MOST_METHODS = 30
MOST_LINES = 520
MOST_ATTRIBUTES = 29


def classes() -> Iterator[type[Any]]:
    for found in pkgutil.walk_packages(millpond.local.__path__, "millpond.local."):
        module = importlib.import_module(found.name)
        yield from (each for each in vars(module).values() if _is_from(each, module.__name__))


def _is_from(thing: object, module: str) -> bool:
    return inspect.isclass(thing) and thing.__module__ == module


def ours(kind: type[Any]) -> list[type[Any]]:
    return [each for each in kind.__mro__ if each.__module__.startswith("millpond.")]


def methods(kind: type[Any]) -> set[str]:
    """Return the names of functions and properties, but not of those that `dataclass` makes."""
    return {name for each in ours(kind) for name, value in vars(each).items() if _is_written(value)}


def _is_written(value: Any) -> bool:
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return isinstance(function, FunctionType) and function.__code__.co_filename != "<string>"


@pytest.mark.parametrize("kind", list(classes()), ids=lambda kind: kind.__qualname__)
def test_a_class_is_small_enough_to_be_read(kind: type[Any]):
    found = methods(kind)
    assert len(found) <= MOST_METHODS, sorted(found)
    assert sum(len(inspect.getsourcelines(each)[0]) for each in ours(kind)) <= MOST_LINES


def test_what_submit_looks_at_is_found_without_a_hash():
    """An object with more attributes than these keeps them in a dict, which makes `submit` a tenth slower."""
    with ThreadPool(1) as threads, ProcessPool(1) as processes:
        for runner in (threads._runner, threads.subpool(1)._runner, processes._runner):
            assert len(vars(runner)) <= MOST_ATTRIBUTES, sorted(vars(runner))


def test_inherited_methods_count_and_overridden_ones_count_once():
    class Parent:
        def one(self) -> None: ...

        @property
        def two(self) -> int:
            return 2

    class Child(Parent):
        def one(self) -> None: ...

    Parent.__module__ = Child.__module__ = "millpond.made_up"
    assert methods(Child) == {"one", "two"}

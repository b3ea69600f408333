"""How far a map is: a bar for `map(..., progress=True)`, by rich (loaded only when asked for), or a user's function."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Progress: TypeAlias = bool | Callable[[int, int | None], object]
"""True for a bar; or a function that is called with how many results have come, and of how many (None: not known)."""


def with_progress(results: Iterator[T], total: int | None, progress: Progress) -> Iterator[T]:
    """Yield from `results` and show how far it is, by a bar or by calling `progress(done, total)` after each result."""
    return _with_calls(results, total, progress) if callable(progress) else _with_bar(results, total)


def _with_calls(results: Iterator[T], total: int | None, progress: Callable[[int, int | None], object]) -> Iterator[T]:
    for done, result in enumerate(results, 1):
        progress(done, total)
        yield result


def _with_bar(results: Iterator[T], total: int | None) -> Iterator[T]:
    """Show a bar on the terminal or in the notebook; nothing when there is none."""
    rich = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (
        rich.SpinnerColumn(),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console, disable=not console.is_terminal and not console.is_jupyter) as bar:
        yield from bar.track(results, total=total, description="")

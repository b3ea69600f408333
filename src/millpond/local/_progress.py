"""A progress bar for `map(..., progress=True)`, by rich. Loaded only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def with_progress(results: Iterator[T], total: int | None) -> Iterator[T]:
    """Yield from `results` and show on the terminal (or in the notebook) how far it is; nothing when there is none."""
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

"""How far a map is: `map(..., progress=True)` shows a bar (by rich, loaded only then), a callable is called.

`progress(done, total)` is called in the thread of the consumer, each time a result is handed out; `total` is None when
the source does not tell its length. What it raises comes out of the map.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Progress: TypeAlias = bool | Callable[[int, int | None], object]


def with_progress(results: Iterator[T], total: int | None, progress: Progress) -> Iterator[T]:
    report = ProgressReport(total, progress)
    try:
        yield from report.each(results)
    finally:
        report.close()


class ProgressReport:
    """Counts results and reports each; has to be closed, for the bar."""

    INTERVAL = 0.05
    """Seconds between two updates of the bar: each costs some microseconds, and rich draws ten times a second."""

    def __init__(self, total: int | None, progress: Progress) -> None:
        self._done = 0
        self._total = total
        self._call = progress if callable(progress) else self._update
        self._bar: Any = None if callable(progress) else _start_bar(total)
        self._update_at = 0.0

    def each(self, results: Iterable[T]) -> Iterator[T]:
        for value in results:
            self._done += 1
            self._call(self._done, self._total)
            yield value

    def _update(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._update_at:
            self._update_at = now + self.INTERVAL
            self._bar.update(0, completed=done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.update(0, completed=self._done)
            self._bar.stop()


def _start_bar(total: int | None) -> Any:
    """Show a bar on the terminal or in the notebook; nothing where there is neither."""
    rich = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (
        rich.SpinnerColumn(),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    bar = rich.Progress(*columns, console=console, disable=not console.is_terminal and not console.is_jupyter)
    bar.add_task("", total=total)  # its number is 0
    bar.start()
    return bar

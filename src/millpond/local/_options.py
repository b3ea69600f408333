"""Options of single tasks: `pool.options(priority=, key=, timeout=, cancel=).submit(...)`.

They travel beside the call, never inside its keywords, so no function's own `timeout=` is stolen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from millpond.local._cancel import CancelToken
from millpond.local._task import OptionTask

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from millpond.local._task import Task

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What may be said of a single task."""

    priority: float | None = None
    key: Hashable | None = None
    timeout: float | None = None
    cancel: CancelToken | None = None

    def __post_init__(self) -> None:
        try:
            hash(self.key)
        except TypeError:
            raise TypeError(f"key must be hashable, not {self.key!r}") from None
        timeout = self.timeout
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
            raise TypeError(f"timeout must be a number of seconds, not {timeout!r}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout!r}")
        if self.cancel is not None and not isinstance(self.cancel, CancelToken):
            raise TypeError(f"cancel must be a CancelToken, not {self.cancel!r}")


NO_OPTIONS = Options()


def option_task(options: Options) -> OptionTask[Any]:
    """Make a task with options; the pool fills in the rest."""
    task: OptionTask[Any] = OptionTask.__new__(OptionTask)
    task.priority, task.key = options.priority or 0, options.key
    task.timeout, task.token = options.timeout, options.cancel
    task.link = task.queue = None
    return task


class Submits(Protocol):
    """A pool, as far as options need it."""

    def _submit(self, options: Options, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task[Any]: ...
    def _try_submit(self, options: Options, fn: Any, args: Any, kwargs: Any) -> Task[Any] | None: ...
    def _go(self, options: Options, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def _run(self, options: Options, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]: ...
    def _map_singly(
        self, options: Options, fn: Any, iterables: Any, timeout: Any, buffersize: Any
    ) -> Iterator[Any]: ...


class OptionedPool:
    """A pool seen through options: the submitting verbs, each with these options."""

    def __init__(self, pool: Submits, options: Options) -> None:
        self._pool = pool
        self._options = options

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
        """Like `Pool.submit`, with these options."""
        return self._pool._submit(self._options, fn, args, kwargs)

    def try_submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T] | None:
        """Like `Pool.try_submit`, with these options."""
        return self._pool._try_submit(self._options, fn, args, kwargs)

    def go(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Like `Pool.go`, with these options."""
        self._pool._go(self._options, fn, args, kwargs)

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Like `Pool.run`, with these options."""
        return self._pool._run(self._options, fn, args, kwargs)

    def submit_many(self, fn: Callable[..., T], arguments: Iterable[tuple[Any, ...]], /) -> list[Task[T]]:
        """Like `Pool.submit_many`, with these options."""
        return [self._pool._submit(self._options, fn, each, {}) for each in arguments]

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Like `Pool.map` in order, but with a task of its own for each item, since the options are each task's."""
        return self._pool._map_singly(self._options, fn, iterables, timeout, buffersize)

    def __repr__(self) -> str:
        return f"<{self._pool!r} with {self._options}>"

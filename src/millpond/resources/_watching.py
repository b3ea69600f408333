"""A watcher that is listened to by an iterator, and stops with it: also when nobody ever began to iterate."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from millpond._atomic import take_away
from millpond.resources import _timers


class Watching:
    """What was begun with `engine.watch`, until it is stopped, once."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop: Callable[[], None] | None = stop

    def stop(self) -> None:
        """Stop it. Doing so again does nothing."""
        stop = take_away(self, "_stop")
        if stop is not None:
            stop()

    def end_with(self, iterator: object) -> None:
        """Stop it when the iterator is gone.

        It is the garbage collector who tells, maybe from within an engine: so only a timer is made then.
        """
        weakref.finalize(iterator, self._stop_soon).atexit = False

    def _stop_soon(self) -> None:
        if self._stop is not None and not sys.is_finalizing():
            _timers.call_at(0.0, self.stop)

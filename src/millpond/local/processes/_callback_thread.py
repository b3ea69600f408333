"""The thread that runs users' code for the I/O thread of a process pool: done-callbacks and `on_event`, in their order.

The I/O thread must not run it: while a callback is slow, or waits for a task, no task of the pool would start or end.
The thread starts with the first call and ends with the pool. Where no thread can be started any more, as at the end of
the interpreter, the calls are made at once by whoever has them.

Calls are added under the lock and taken without it. The lock is asked only when there seem to be none left, so that
nobody adds one between that look and the note that all have been made.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from millpond._events import Event, Observer, logger
from millpond.local._watchers import here


class CallbackThread:
    def __init__(self, pool: str, on_event: Observer | None, when_idle: Callable[[], object]) -> None:
        self._pool = pool
        self._on_event: Any = on_event  # called only where there is one
        self._when_idle = when_idle
        self.reset()

    def reset(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._is_running = self._is_ending = False
        self.is_idle = True  # whether every call has been made

    @property
    def is_here(self) -> bool:
        return self._thread is threading.current_thread()

    def defer(self, call: Callable[[], object]) -> None:
        """Make a call soon, after those that were deferred before; any thread may ask for it."""
        with self._changed:
            self._calls.append(call)
            self.is_idle = False
            if self._is_running:
                self._changed.notify()
                return
            thread = threading.Thread(target=self._run, name=f"{self._pool}-callbacks", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                pass
            else:
                self._thread, self._is_running = thread, True
                return
        self._run_all()

    def observe(self, event: Event) -> None:
        """Call `on_event`: in this thread for what happens in the I/O thread.

        What others do (cancel, purge, close) is reported at once, unless that would overtake an earlier event.
        """
        if self.is_idle and getattr(here, "defer", None) is None:
            self._on_event(event)
        else:
            self.defer(partial(self._observe_each, [event]))

    def observe_many(self, name: str, data: Iterable[Mapping[str, Any]]) -> None:
        """Call `on_event` in this thread for many events that happen now; `data` is what belongs to each.

        One call for a whole batch of tasks: to hand over each event would cost more than all else that is done for it.
        """
        now = time.time()
        self.defer(partial(self._observe_each, (Event(name, self._pool, now, each) for each in data)))

    def _observe_each(self, events: Iterable[Event]) -> None:
        for event in events:
            try:
                self._on_event(event)
            except BaseException:  # also SystemExit: it is not this thread's to end (done-callbacks catch their own)
                logger.exception("on_event raised", extra={"millpond": {"event": event.name, "pool": self._pool}})

    def end(self) -> None:
        """End the thread when all calls have been made; a later call starts it again."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()

    def stay(self) -> None:
        """Keep the thread for later calls, since the pool was opened again."""
        self._is_ending = False

    def join(self, deadline: float | None) -> bool:
        return self._thread is None or join_thread(self._thread, deadline)

    def _run(self) -> None:
        while self._wait():
            self._run_all()

    def _wait(self) -> bool:
        with self._changed:
            while not self._calls:
                if self._is_ending:
                    self._is_running = False
                    return False
                self._changed.wait()
            return True

    def _run_all(self) -> None:
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                with self._changed:
                    if not self._calls:
                        self.is_idle = True
                        break
            else:
                call()
        self._when_idle()


def join_thread(thread: threading.Thread, deadline: float | None) -> bool:
    """Wait for a thread to end; False at the deadline. Inside the thread itself there is nothing to wait for."""
    if thread is threading.current_thread():
        return True
    thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    return not thread.is_alive()

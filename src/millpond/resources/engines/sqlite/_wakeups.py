"""What the engine's thread sleeps on: the bell, deaths of other processes, and wake-ups from within this one.

While an event loop uses the engine, it reads the bell itself: that saves a change of threads for all that it
hears. One loop at a time does, and the thread does again as soon as that loop is closed.

Locks. `wake` and `clear` take turns: who comes after `clear` wakes our thread again, and who came before it has queued
what our thread finds after `clear`. Else none is needed, and `unlisten` must not be called with any: it waits for the
event loop. `wake` may be called from anywhere; `listen_on` on the event loop in question; `wait`, `clear`, `listen` and
`check_loop` by the engine's thread, or before that begins. `close` is for when the thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import threading
from collections.abc import Callable

from millpond._sqlite import Session


class Wakeups:
    """How this process hears that there is something to do."""

    def __init__(self, session: Session) -> None:
        self._session = session  # has the bell and the watch over deaths, which may become others
        self.loop_that_listens: asyncio.AbstractEventLoop | None = None
        self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_woken = False
        self._waking = threading.RLock()  # reentrant: a signal's handler may wake our thread, too
        self._selector = selectors.DefaultSelector()
        self.listen()

    def listen(self) -> None:
        """Wait for the bell and for deaths, from now on for those that we have now."""
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakes[0], selectors.EVENT_READ)
        self._session.register(self._selector)

    def wake(self) -> None:
        """Wake our thread."""
        with self._waking:
            if not self._is_woken:
                self._is_woken = True
                with contextlib.suppress(OSError):
                    os.write(self._wakes[1], b"!")

    def wait(self, timeout: float | None) -> None:
        """Sleep until there is something to hear."""
        self._selector.select(timeout)

    def clear(self) -> None:
        """Forget what was heard. Look at what there is to do *after* this: what comes later is heard again."""
        with self._waking:
            if self._is_woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakes[0], 16)
                self._is_woken = False
        if self.loop_that_listens is None:
            self._session.bell.drain()

    def listen_on(self, loop: asyncio.AbstractEventLoop, heard: Callable[[], None]) -> None:
        """Add the bell to an event loop, which reads it itself: that saves a change of threads for all it hears."""
        if self.loop_that_listens is None or self.loop_that_listens.is_closed():
            with contextlib.suppress(NotImplementedError, ValueError, KeyError):
                loop.add_reader(self._session.bell.fileno(), heard)
                self.loop_that_listens = loop
                self._selector.unregister(self._session.bell)

    def check_loop(self) -> None:
        """Listen to the bell again if the event loop that did so is closed."""
        if self.loop_that_listens is not None and self.loop_that_listens.is_closed():
            self.loop_that_listens = None
            self.listen()

    def unlisten(self) -> None:
        """Remove the bell from the event loop that reads it: it would hear whatever has the bell's descriptor next."""
        loop, self.loop_that_listens = self.loop_that_listens, None
        if loop is None or loop.is_closed():
            return
        bell, gone = self._session.bell.fileno(), threading.Event()

        def leave() -> None:
            loop.remove_reader(bell)
            gone.set()

        if not loop.is_running() or asyncio._get_running_loop() is loop:
            leave()
            return
        with contextlib.suppress(RuntimeError):  # closed at this moment
            loop.call_soon_threadsafe(leave)
            gone.wait(1.0)

    def close(self) -> None:
        """Hear nothing any more."""
        self.unlisten()
        self._selector.close()
        with self._waking:
            self._is_woken = True  # for ever: the pipe's number may be another's soon
            for end in self._wakes:
                os.close(end)

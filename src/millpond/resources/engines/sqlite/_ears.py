"""What the engine's thread sleeps on: the bell, deaths of other processes, and nudges from within this one.

While an event loop uses the engine, it attends to the bell itself: that saves a change of threads for all that it
hears. One loop at a time does, and the thread does again as soon as that loop is closed.

Locks. `nudge` and `note` take turns: who nudges after `note` wakes our thread again, and who came before it has
brought what `note` is followed by a look at. Else none is needed, and `dismiss` must not be called with any: it waits for the event loop. `nudge` may be called
from anywhere; `attend` on the event loop in question; `wait`, `note`, `listen` and `look_after_attendant` by the
engine's thread, or before that begins. `close` is for when the thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import threading
from collections.abc import Callable

from millpond.resources.engines.sqlite._peers import Peers


class Ears:
    """How this process hears that there is something to do."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers  # has the bell and the watch over deaths, which may become others
        self.attendant: asyncio.AbstractEventLoop | None = None
        self._nudges = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_nudged = False
        self._nudging = threading.RLock()  # reentrant: a signal's handler may nudge, too
        self._selector = selectors.DefaultSelector()
        self.listen()

    def listen(self) -> None:
        """Wait for the bell and for deaths, from now on for those that we have now."""
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._peers.bell, selectors.EVENT_READ)
        self._selector.register(self._nudges[0], selectors.EVENT_READ)
        if self._peers.deaths.fileno() >= 0:
            self._selector.register(self._peers.deaths, selectors.EVENT_READ)

    def nudge(self) -> None:
        """Wake our thread."""
        with self._nudging:
            if not self._is_nudged:
                self._is_nudged = True
                with contextlib.suppress(OSError):
                    os.write(self._nudges[1], b"!")

    def wait(self, timeout: float | None) -> None:
        """Sleep until there is something to hear."""
        self._selector.select(timeout)

    def note(self) -> None:
        """Take note of what was heard. Look at what there is to do *after* this: what comes later is heard again."""
        with self._nudging:
            if self._is_nudged:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._nudges[0], 16)
                self._is_nudged = False
        if self.attendant is None:
            self._peers.bell.drain()

    def attend(self, loop: asyncio.AbstractEventLoop, heard: Callable[[], None]) -> None:
        """Let an event loop listen to the bell itself: that saves a change of threads for all that it hears."""
        if self.attendant is None or self.attendant.is_closed():
            with contextlib.suppress(NotImplementedError, ValueError, KeyError):
                loop.add_reader(self._peers.bell.fileno(), heard)
                self.attendant = loop
                self._selector.unregister(self._peers.bell)

    def look_after_attendant(self) -> None:
        """Listen to the bell again if the event loop that did so is closed."""
        if self.attendant is not None and self.attendant.is_closed():
            self.attendant = None
            self.listen()

    def dismiss(self) -> None:
        """Let no event loop listen any more: it would be deaf to whatever has the bell's descriptor next."""
        loop, self.attendant = self.attendant, None
        if loop is None or loop.is_closed():
            return
        bell, gone = self._peers.bell.fileno(), threading.Event()

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
        self.dismiss()
        self._selector.close()
        with self._nudging:
            self._is_nudged = True  # for ever: the pipe's number may be another's soon
            for end in self._nudges:
                os.close(end)

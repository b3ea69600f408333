"""Watches the processes of other sessions, so that a death is noticed when it happens.

Each process that can be seen has a pidfd, which becomes readable when it dies; they are gathered in one epoll, whose
descriptor an engine's thread adds to its selector. Everybody else (another container, an earlier boot, no pidfd on
this system or no descriptors left) is asked by `verdict()` now and then.

    watch = DeathWatch(live)
    selector.register(watch, selectors.EVENT_READ)        # when watch.fileno() is not -1
    watch.update({number: passport, ...})                 # whenever the sessions of the database have changed
    selector.select(watch.patience(eager=...))            # the engine's own time-outs permitting
    for number in watch.dead(): ...

Not for use by several threads at once. It reports a death once; what is reported is no longer watched.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING

from millpond._sqlite._liveness import CONFIRM, LiveFile, Passport, Verdict, verdict
from millpond._sqlite._process import is_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EAGER_POLL = 0.01
"""Seconds between two looks at those without a pidfd when somebody waits for what they hold."""

IDLE_POLL = 0.25
"""The same when nobody does."""


class DeathWatch:
    """Tells which of the given sessions have lost their process."""

    def __init__(self, live: LiveFile, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._live = live
        self._clock = clock
        self._pid = os.getpid()
        self._epoll = select.epoll() if hasattr(select, "epoll") and hasattr(os, "pidfd_open") else None
        self._sessions: dict[int, Passport] = {}
        self._pidfds: dict[tuple[int, int], int] = {}  # (pid, start) -> pidfd
        self._watched: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, start)
        self._polled: set[int] = set()
        self._freed_at: dict[int, float] = {}  # when its lock was first seen free
        self._found: set[int] = set()  # dead, and not yet told
        self._looked_at = -IDLE_POLL

    def fileno(self) -> int:
        """Return what becomes readable when a watched process dies; -1 where there is no such thing."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def update(self, sessions: Mapping[int, Passport]) -> None:
        """Watch exactly these from now on; one's own are left out."""
        for number in [n for n, passport in self._sessions.items() if sessions.get(n) != passport]:
            self._forget(number)  # it has gone, or has moved to another live file
        for number in sessions.keys() - self._sessions.keys():
            passport = sessions[number]
            if not passport.is_own:
                self._sessions[number] = passport
                self._begin(number, passport)
        used = {(passport.pid, passport.start) for passport in self._sessions.values()}
        for process in self._pidfds.keys() - used:
            self._drop(process)

    def dead(self, *, eager: bool = False) -> list[int]:
        """Return the sessions whose process is dead and that were not returned before; never wait.

        Those without a pidfd are looked at when their time has come (`patience()`), so call it then.
        """
        if self._epoll is not None:
            for fd, _ in self._epoll.poll(0):
                process = self._watched[fd]
                self._found.update(n for n, p in self._sessions.items() if (p.pid, p.start) == process)
        if self._polled and self._due_in(eager=eager) <= 0:
            self._looked_at = self._clock()
            for number in self._polled:
                self._look(number)
        found = sorted(self._found)
        for number in found:
            process = (self._sessions[number].pid, self._sessions[number].start)
            self._forget(number)
            if not any((p.pid, p.start) == process for p in self._sessions.values()):
                self._drop(process)
        return found

    def patience(self, *, eager: bool = False) -> float | None:
        """Return after how many seconds `dead()` wants to be called though nothing is readable; None for never."""
        if self._found:
            return 0.0
        return max(0.0, self._due_in(eager=eager)) if self._polled else None

    def close(self) -> None:
        """Stop watching. In a forked child the parent's watch goes on."""
        for process in list(self._pidfds):
            self._drop(process)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        self._sessions.clear()
        self._polled.clear()
        self._found.clear()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _begin(self, number: int, passport: Passport) -> None:
        process = (passport.pid, passport.start)
        if process in self._pidfds:
            return
        if self._epoll is None or not passport.is_visible:
            self._polled.add(number)
            return
        try:
            fd = os.pidfd_open(passport.pid)
        except ProcessLookupError:
            self._found.add(number)
            return
        except OSError:  # too many open files, or forbidden here
            self._polled.add(number)
            return
        # Only now does the start time prove that the descriptor is of that process and not of a later one.
        gone = is_gone(passport.pid, passport.start)
        if gone is False:
            self._pidfds[process] = fd
            self._watched[fd] = process
            self._epoll.register(fd, select.EPOLLIN)
            return
        os.close(fd)
        (self._found if gone else self._polled).add(number)

    def _look(self, number: int) -> None:
        now = self._clock()
        match verdict(self._sessions[number], number, self._live):
            case Verdict.DEAD:
                self._found.add(number)
            case Verdict.FREED:
                if now - self._freed_at.setdefault(number, now) >= CONFIRM:
                    self._found.add(number)
            case _:
                self._freed_at.pop(number, None)

    def _due_in(self, *, eager: bool) -> float:
        interval = EAGER_POLL if eager else CONFIRM if self._freed_at else IDLE_POLL
        return self._looked_at + interval - self._clock()

    def _forget(self, number: int) -> None:
        self._sessions.pop(number, None)
        self._polled.discard(number)
        self._found.discard(number)
        self._freed_at.pop(number, None)

    def _drop(self, process: tuple[int, int]) -> None:
        fd = self._pidfds.pop(process, None)
        if fd is None:
            return
        del self._watched[fd]
        if self._epoll is not None and self._pid == os.getpid():  # a child shares the epoll, and must not change it
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)
        os.close(fd)

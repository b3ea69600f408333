"""What a process has open of each file: one object per file and part, whoever asks, until its last user has left.

A file that does not open, or close, holds up nobody who wants another. One whose object is void (the file was replaced,
or a signal closed it) gets a new one, beside the old one that some may still have.

At the end of the process all are shut down. A forked child begins with none: those of the parent are kept there for
ever, untouched, since the garbage collector would close what is the parent's.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from millpond._sqlite._url import Place, Synchronous, parse


class Shared(Protocol):
    """What is shared by the users of a file in this process."""

    path: str
    synchronous: Synchronous
    is_void: bool
    """Whether it is of no use any more, so that another must be made."""

    def is_replaced(self) -> bool:
        """Return whether its path names another file by now: who opens that wants the new one."""

    def shut_down(self) -> None:
        """End it: nobody uses it any more."""


T = TypeVar("T", bound=Shared)


class _Opening:
    """The right to open a file, for one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Registry(Generic[T]):
    """The files that this process has open for one part; `make` opens one."""

    def __init__(self, make: Callable[[str, Place], T]) -> None:
        self._make = make
        self._past: list[T] = []
        self._begin()
        os.register_at_fork(after_in_child=self._forget_in_child)
        atexit.register(self._shut_down_all)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self.opening: WeakValueDictionary[str, _Opening] = WeakValueDictionary()
        self._open: dict[str, T] = {}
        self._users: dict[T, int] = {}

    def open(self, url: str) -> T:
        """Open the file that a URL names, or share what is open already; to be paired with one `give_back`."""
        place = parse(url)
        with self._lock:
            opening = self.opening.setdefault(place.path, _Opening())
        with opening.lock:
            found = self._find(place)
            if found is None:
                found = self._make(url, place)
                with self._lock:
                    self._open[place.path] = found
                    self._users[found] = 1
            return found

    def give_back(self, one: T) -> None:
        """Give up one use; the last one shuts it down. What is the parent's, after a fork, is left alone."""
        with self._lock:
            users = self._users.get(one, 0)
            if users != 1:
                if users:
                    self._users[one] = users - 1
                return
            del self._users[one]
            if self._open.get(one.path) is one:
                del self._open[one.path]
        one.shut_down()

    def _find(self, place: Place) -> T | None:
        with self._lock:
            found = self._open.get(place.path)
            if found is None or found.is_void or found.is_replaced():
                return None
            if found.synchronous != place.synchronous:
                raise ValueError(
                    f"{place.path!r} is open in this process with synchronous={found.synchronous}: use the same URL "
                    "for all"
                )
            self._users[found] += 1
            return found

    def _forget_in_child(self) -> None:
        self._past += self._users
        self._begin()

    def _shut_down_all(self) -> None:
        for one in list(self._users):
            one.shut_down()

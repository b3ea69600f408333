"""The files that this process has open for keyed pools: one `Home` each, whoever asks."""

from __future__ import annotations

import atexit
import os
import threading

from millpond import _fork
from millpond._sqlite._url import parse
from millpond.keyed.stores.sqlite._home import Home


class _Homes:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._homes: dict[str, Home] = {}
        self._past: list[Home] = []
        """The parent's, after a fork: never touched, not even by the garbage collector."""

    def open(self, url: str) -> Home:
        """Take note of one more user of a file."""
        place = parse(url)
        path = place.path
        with self._lock:
            home = self._homes.get(path)
            if home is not None and home.is_void:
                home = None
            if home is None:
                home = self._homes[path] = Home(place)
            elif home.synchronous != place.synchronous:
                raise ValueError(
                    f"{path!r} is open in this process with synchronous={home.synchronous}: use the same URL for all"
                )
            home.users += 1
            return home

    def close(self, home: Home) -> None:
        """Give up one use; the last one ends the session."""
        if home.pid != _fork.this.pid:
            return
        with self._lock:
            home.users -= 1
            if home.users > 0:
                return
            if self._homes.get(home.path) is home:
                del self._homes[home.path]
            home.close()

    def forget_in_child(self) -> None:
        """Begin anew after a fork: the sessions are the parent's."""
        self._past += self._homes.values()
        self._lock = threading.Lock()
        self._homes = {}

    def close_all(self) -> None:
        for home in list(self._homes.values()):
            home.close()


homes = _Homes()
os.register_at_fork(after_in_child=homes.forget_in_child)
atexit.register(homes.close_all)

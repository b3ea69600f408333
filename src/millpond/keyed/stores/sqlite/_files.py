"""The files that this process has open for keyed pools: one `SharedFile` each, whoever asks."""

from __future__ import annotations

import atexit
import os
import threading

from millpond import _fork
from millpond._sqlite._url import parse
from millpond.keyed.stores.sqlite._file import SharedFile


class _SharedFiles:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, SharedFile] = {}
        self._past: list[SharedFile] = []
        """The parent's, after a fork: never touched, not even by the garbage collector."""

    def open(self, url: str) -> SharedFile:
        """Take note of one more user of a file."""
        place = parse(url)
        path = place.path
        with self._lock:
            file = self._files.get(path)
            if file is not None and file.is_void:
                file = None
            if file is None:
                file = self._files[path] = SharedFile(place)
            elif file.synchronous != place.synchronous:
                raise ValueError(
                    f"{path!r} is open in this process with synchronous={file.synchronous}: use the same URL for all"
                )
            file.users += 1
            return file

    def close(self, file: SharedFile) -> None:
        """Give up one use; the last one ends the session."""
        if file.pid != _fork.this.pid:
            return
        with self._lock:
            file.users -= 1
            if file.users > 0:
                return
            if self._files.get(file.path) is file:
                del self._files[file.path]
            file.close()

    def forget_in_child(self) -> None:
        """Begin anew after a fork: the sessions are the parent's."""
        self._past += self._files.values()
        self._lock = threading.Lock()
        self._files = {}

    def close_all(self) -> None:
        for file in list(self._files.values()):
            file.close()


files = _SharedFiles()
os.register_at_fork(after_in_child=files.forget_in_child)
atexit.register(files.close_all)

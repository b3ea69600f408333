"""Whether a database file is there, and still the one that it was: for those who look, and must not make one.

A file that was deleted or replaced would still be read by whoever has it open.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from millpond._sqlite._url import parse
from millpond.errors import EngineUnavailable


class FileWatch:
    """The file of a `sqlite:` URL; other places are always there. `lost` is called when it is gone or another one."""

    def __init__(self, url: str, lost: Callable[[], None]) -> None:
        self._path = parse(url).path if url.startswith("sqlite:") else None
        self._lost = lost
        self._identity: tuple[int, int] | None = None

    def is_there(self) -> bool:
        """Return whether there is something to look at; raise `EngineUnavailable` when there was, and is no more."""
        if self._path is None:
            return True
        try:
            found = os.stat(self._path)
        except OSError as error:
            if self._identity is None and isinstance(error, FileNotFoundError):
                return False  # nobody has made it yet
            self._lost()
            raise EngineUnavailable(
                f"the file {self._path!r} is gone ({error.strerror}): is it moved or deleted?"
            ) from None
        identity = (found.st_dev, found.st_ino)
        if self._identity not in (None, identity):
            self._lost()  # another file has taken its place
        self._identity = identity
        return True

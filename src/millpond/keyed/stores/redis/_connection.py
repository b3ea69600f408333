"""A connection to the server, for one purpose and any thread. What its troubles mean, `millpond._redis` says.

A call that found the connection broken or the server slow may have run or not, so it is never sent again from here: the
connection is dropped and the caller is told.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from millpond._fork import this
from millpond._redis import Address, Client
from millpond.errors import EngineError
from millpond.keyed.stores.redis._scripts import script

ALWAYS: Final = -1.0
"""A call of ours may not be repeated: so it is looked every time whether the server has closed the connection."""


class Link:
    """One connection for one purpose. Calls go out in the order in which they are made, one after the other."""

    def __init__(self, address: Address, base: bytes) -> None:
        self._address, self._base = address, base
        self._begin_anew()

    def run(self, name: str, args: Sequence[str | bytes | int]) -> Any:
        """Run a script; its answer is what it is."""
        self._check_process()
        with self._lock:
            return self._client.run(script(name), (self._base,), args)

    def command(self, *args: str | bytes | int) -> Any:
        """Run a plain command."""
        self._check_process()
        with self._lock:
            return self._client.command(*args)

    def _check_process(self) -> None:
        if self._pid != this.pid:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """In a forked child: the socket is the parent's, and its lock may be held by a thread that is not here."""
        self._client = Client(self._address, recent=ALWAYS)
        self._lock = threading.Lock()
        self._pid = this.pid

    def close(self) -> None:
        if self._pid != this.pid:
            return
        with self._lock:
            self._client.close()


def forbidden(text: str, address: Address) -> EngineError:
    """Return an error of ours for what the user of the URL may not do."""
    return EngineError(
        f"redis at {address.name} forbids something that a pool needs: {text}; allow the user of the URL: "
        f"+@all -@dangerous +info ~{address.prefix}* &{address.prefix}*"
    )

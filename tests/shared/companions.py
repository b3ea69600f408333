"""Companions inside a test: in a thread, so that a test can choose their machine, boot and limits, and let them vanish."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millpond.resources.engines.log import _companion, _engine
from millpond.resources.engines.log._companion import Companion
from millpond.resources.engines.log._engine import LogEngine
from millpond.resources.engines.log._machine import witness_of_this_process
from millpond.resources.engines.log._stores import open_log
from waiting import HANG


class Machine:
    """A machine of the test: a companion, and the engines of the processes that it serves."""

    def __init__(self, url: str, folder: Path, name: str, boot: str = "") -> None:
        self.name = name
        self._engines: list[LogEngine] = []
        self._is_gone = False
        here = witness_of_this_process(name)
        self.here = msgspec.structs.replace(here, boot=boot or f"boot of {name}", namespace=f"of {name}")
        self._url = url
        self._path = str(folder / f"{name}-{self.here.boot.replace(' ', '-')}.socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(100)
        self.companion = Companion(open_log(url), self._listener, self.here)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError, Vanished):  # its sockets were closed under its feet
            self.companion.run()

    def engine(self, monkeypatch: pytest.MonkeyPatch) -> LogEngine:
        """Return the engine of a process of this machine."""

        def meet(url: str, here: object, *, is_mute: bool) -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            made.connect(self._path)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(_engine, "meet", meet)
            patch.setattr(_engine, "witness_of_this_process", lambda machine: self.here)
            engine = LogEngine(self._url, self.name)
        self._engines.append(engine)
        return engine

    def vanish(self) -> None:
        """End the companion from one moment to the next, as when power fails: nobody is told anything."""
        if self._is_gone:
            return
        self._is_gone = True
        for engine in self._engines:
            engine._is_closed = True  # its processes are gone, too
        self.companion._look_for_dead = _vanish  # type: ignore[method-assign]
        for engine in self._engines:
            engine._wake()
        self._thread.join(HANG)
        assert not self._thread.is_alive()
        for engine in self._engines:
            engine._thread.join(HANG)
            engine.let_go()
        for connection in self.companion._connections:
            connection.socket.close()
        for session in self.companion._sessions.values():
            session.process.close()
        self._listener.close()
        self.companion._selector.close()
        self.companion._log.close()


class Vanished(BaseException):
    """A companion is gone."""


def _vanish() -> None:
    raise Vanished


@contextlib.contextmanager
def quick(monkeypatch: pytest.MonkeyPatch, lost: float = 0.5) -> Iterator[None]:
    """Shorten the time after which a machine is missed."""
    monkeypatch.setattr(_companion, "LOST", lost)
    monkeypatch.setattr(_companion, "BEAT", 0.05)
    yield

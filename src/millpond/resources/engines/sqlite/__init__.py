"""`sqlite:///pools.db`: pools of all processes of this machine, in a file, with no server and no leader.

    _engine    SqliteEngine: the verbs; when a batch is made, and its news and answers given; its one thread
    _batch     Batch: one transaction: follow, bury, claim, decide, append
    _queue     CallQueue: commands and questions on their way, and their answers
    _accepted  AcceptedOffers: locks that were accepted by a byte, before they are claimed in the file
    _replicas  Replicas: the pools as this process knows them, and who wants to hear of them
    _wakeups   Wakeups: what the thread sleeps on, or an event loop in its place
    _sessions  Sessions: our session and those of the others; who has died
    _log       pools as rows: an image now and then, and every batch of entries since

An engine is made of these parts, and each knows only parts below it in this list. The locks are taken in `_engine`,
which tells their order; each part says which it expects to be held, or that it takes one itself.

How it works. Every process has a replica of each pool that it uses. To change one, it passes the gate of the file,
follows what others have written, decides its own commands on top, writes them as one row and commits: one transaction
for everything that is waiting at that moment. After the commit it rings the bells of the processes that were handed
something. A process that dies is noticed by the kernel's own word, and whoever notices buries it.

URL: `sqlite:///relative/path.db`, `sqlite:////absolute/path.db`; `?synchronous=FULL` survives power loss as well (the
default, NORMAL, survives the crash of any process). A file that is made is for its owner only; `?mode=660` makes it for
the group, too.
"""

from __future__ import annotations

import atexit
import os
import threading
from weakref import WeakValueDictionary

from millpond._sqlite._url import parse
from millpond.resources.engines.sqlite._engine import SqliteEngine

__all__ = ["SqliteEngine", "open"]


class _Opening:
    """The right to open a file, for one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class _Registry:
    """The engines that this process has open: one per file, whoever asks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.opening: WeakValueDictionary[str, _Opening] = WeakValueDictionary()
        self.engines: WeakValueDictionary[str, SqliteEngine] = WeakValueDictionary()  # one that is open has a thread

    def open(self, url: str) -> SqliteEngine:
        place = parse(url)
        path = place.path
        with self.lock:
            opening = self.opening.setdefault(path, _Opening())
        with opening.lock:  # one file that does not open holds up nobody who opens another
            engine = self.engines.get(path)
            if engine is not None and not engine.is_given_up and engine.synchronous != place.synchronous:
                raise ValueError(
                    f"{path!r} is open in this process with synchronous={engine.synchronous}: use the same URL for all"
                )
            if engine is None or not engine.retain():
                engine = self.engines[path] = SqliteEngine(url, place)
                engine.retain()
            return engine

    def forget_in_child(self) -> None:
        """Begin anew after a fork: the sessions are the parent's."""
        self.lock = threading.Lock()
        self.opening = WeakValueDictionary()
        self.engines = WeakValueDictionary()

    def close_all(self) -> None:
        for engine in list(self.engines.values()):
            engine.shut_down()


_registry = _Registry()
open = _registry.open  # noqa: A001
os.register_at_fork(after_in_child=_registry.forget_in_child)
atexit.register(_registry.close_all)

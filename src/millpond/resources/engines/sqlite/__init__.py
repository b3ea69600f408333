"""`sqlite:///pools.db`: pools of all processes of this machine, in a file, with no server and no leader.

    _engine    SqliteEngine: the verbs; when a batch is made, and its news and answers given; its one thread
    _batch     Batch: one transaction: follow, bury, claim, decide, append
    _queue     CallQueue: commands and questions on their way, and their answers
    _accepted  AcceptedOffers: locks that were accepted by a byte, before they are claimed in the file
    _replicas  Replicas: the pools as this process knows them, and who wants to hear of them
    _wakeups   Wakeups: what the thread sleeps on, or an event loop in its place
    _sessions  Sessions: what the news tell of sessions, and what ours has noted
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

from millpond._sqlite import Registry
from millpond.resources.engines.sqlite._engine import SqliteEngine

__all__ = ["SqliteEngine", "files", "open"]

files: Registry[SqliteEngine] = Registry(lambda url, place: SqliteEngine(url, place, files.give_back))
open = files.open  # noqa: A001

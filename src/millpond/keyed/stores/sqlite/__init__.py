"""`sqlite:///pools.db`: keyed pools of all processes of this machine, in a file, with no server and no leader.

    _store      SqliteStore: the verbs, each one transaction
    _files      the files that this process has open, one `SharedFile` each
    _file       SharedFile: connection and session of this process; its thread, which hears hints and buries the dead
    _writer       Writer: all writing of this process: threads that wait share a transaction
    _sessions   Sessions: whose process is dead, and how it is buried
    _witness    Witness: vouches for workers whose process computes without a sign of life
    _subscriptions       who listens here, and how others are called
    _reads      answers to questions, which change nothing
    _tables     SqlTables: a pool as the rules of `keyed.rules` want it, within one transaction
    _mailboxes  SqlMailboxes: its mailboxes and their jobs
    _pool       the one row of a pool
    _schema     the tables of the file

How it works. Each verb is one transaction behind the gate of the file: it reads the rows that it needs, follows the
rules, and writes what has changed. So whoever is killed leaves the state before or after a verb, never between, and all
processes see the same. Its cost does not grow with keys, backlog or slots: all is found by an index. (To cancel a job,
or to look for one of the same name, SQLite searches the jobs of that key.)

After the commit it rings the bells of the processes in which those listen for whom there is news. A process that dies
is noticed by the kernel's own word; its workers' slots can be claimed at once, with no lease to wait for.

URL: `sqlite:///relative/path.db`, `sqlite:////absolute/path.db`; `?synchronous=FULL` survives power loss as well (the
default, NORMAL, survives the crash of any process).

Rejected: the pool as a replica in each process that follows a log, as resource pools have it: with a backlog of jobs
every process would hold all of them in memory, and read all of them when it starts.
"""

from __future__ import annotations

from millpond.keyed.stores.sqlite._files import files
from millpond.keyed.stores.sqlite._store import SqliteStore

__all__ = ["SqliteStore", "files", "open", "pools"]


def pools(url: str) -> list[str]:
    """Return the pools of a file, by name."""
    file = files.open(url)
    try:
        return file.read(lambda file: [name for (name,) in file.execute("SELECT name FROM keyed_pool ORDER BY name")])
    finally:
        files.give_back(file)


def open(url: str, pool: str) -> SqliteStore:  # noqa: A001
    """Open a pool of the file that a URL names; its first user makes it (`SqliteStore.open`)."""
    return SqliteStore(url, pool)

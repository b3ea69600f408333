"""Plumbing for processes of one machine that share a SQLite file, with no server. It knows nothing of pools.

    Database     the file: transactions behind the gate, checkpoints, format, fork           _database
    Gate         the one gate for all writes, checkpoints, opens and closes                  _gate
    LiveFile     locks that say "alive" until the kernel drops them; Passport, verdict()     _liveness
    enrol()      sessions: rows in the database that are backed by such a lock               _sessions
    Session      ours, with all that belongs to it, and the watch over those of others       _session
    Registry     one object per file and process, whoever opens it                           _registry
    DeathWatch   notices the death of other processes when it happens                        _deathwatch
    Bell         wakes other processes                                                       _bell
    EngineClock  one clock for all of them                                                   _clock

Below these: `_lockfile` (one descriptor per process for record locks), `_process` (what the kernel tells about a
process), `_trouble` (errors in words, and where a database cannot be), `_url` (what a `sqlite:` URL says).

Files beside `pools.db`: `-wal` and `-shm` are SQLite's, `-gate`, `-live` and `-bells/` are made here. To move or
delete a database, stop its users and take them all.
"""

from millpond._sqlite._bell import Bell
from millpond._sqlite._clock import EngineClock
from millpond._sqlite._database import MIGRATIONS, Database, FileReplaced, Transaction
from millpond._sqlite._deathwatch import DeathWatch
from millpond._sqlite._gate import Gate
from millpond._sqlite._liveness import CONFIRM, LiveFile, Passport, Verdict, verdict
from millpond._sqlite._process import read_stat
from millpond._sqlite._registry import Registry
from millpond._sqlite._session import Rows, Session
from millpond._sqlite._sessions import enrol, enrolled, note_use, strike, used
from millpond._sqlite._trouble import DiskFull, translate

__all__ = [
    "CONFIRM",
    "MIGRATIONS",
    "Bell",
    "Database",
    "DeathWatch",
    "DiskFull",
    "EngineClock",
    "FileReplaced",
    "Gate",
    "LiveFile",
    "Passport",
    "Registry",
    "Rows",
    "Session",
    "Transaction",
    "Verdict",
    "enrol",
    "enrolled",
    "note_use",
    "read_stat",
    "strike",
    "translate",
    "used",
    "verdict",
]

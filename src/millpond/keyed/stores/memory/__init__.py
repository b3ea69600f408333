"""`memory:`: pools of this process, gone with it. The rules over dictionaries, behind a lock.

_store      MemoryStore: the verbs, hints, and the pools of this process by name
_reads      what looking in reads
_tables     MemoryTables: a pool
_mailboxes  its mailboxes, by where they stand
"""

from millpond.keyed.stores.memory._store import MemoryStore, open, pools  # noqa: A004
from millpond.keyed.stores.memory._tables import MemoryTables

__all__ = ["MemoryStore", "MemoryTables", "open", "pools"]

"""Which machine this is, and which boot of it: what makes a death provable after both process and witness are gone."""

from __future__ import annotations

import functools
import os
import socket
from contextlib import suppress

from millpond._sqlite._process import boot_id, namespace, own_start
from millpond.resources.engines.log._log import Witness


@functools.cache
def machine_id() -> str:
    """Return what stays the same over the boots of this machine and differs between machines; "" if nothing does.

    Containers often share the file of their host, or of their image: give them names of their own with `?machine=`.
    """
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError), open(path) as file:
            if found := file.read().strip():
                return found
    return ""


def witness_of_this_process(machine: str) -> Witness:
    """Return what tells this process from all others; the companion that watches it is filled in later.

    A name that was given to the machine is also what people see as its host.
    """
    host = machine or socket.gethostname()
    return Witness("", machine or machine_id(), boot_id(), namespace(), host, os.getpid(), own_start())

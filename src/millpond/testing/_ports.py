"""Ports for the servers of tests.

A server that is told a port binds it a moment after somebody chose it. The ports that a system hands out for port 0 are
also those of outgoing connections, of which a busy test run has thousands: in that moment one may take it. So a port is
drawn from below them, where only servers are. A node of a Redis cluster also needs the port 10,000 above its own.
"""

from __future__ import annotations

import random
import socket

__all__ = ["HOST", "free_port"]

HOST = "127.0.0.1"
_LOWEST, _HIGHEST = 15_000, 22_000
"""Systems hand out 32768 and above (Linux), or 49152 and above; also 10,000 higher these stay below that."""


def free_port() -> int:
    """Return a port of the loopback that nothing listens on now."""
    while True:
        port = random.SystemRandom().randrange(_LOWEST, _HIGHEST)
        try:
            socket.create_server((HOST, port)).close()
        except OSError:
            continue
        return port

"""Who does something, for those who will ask who it was."""

from __future__ import annotations

import getpass
import os
import socket


def user() -> str:
    """Return the user of this process."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):
        name = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return name.encode(errors="replace").decode()


def user_and_host() -> str:
    """Return the user and the host of this process."""
    return f"{user()}@{socket.gethostname()}".encode(errors="replace").decode()

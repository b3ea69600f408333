"""Who does something, for those who will ask who it was."""

from __future__ import annotations

import getpass
import os
import socket


def user_and_host() -> str:
    """Return the user and the host of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}".encode(errors="replace").decode()

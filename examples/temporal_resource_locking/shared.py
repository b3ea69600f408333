"""What worker and starter have in common: where the server is, and the names."""

from __future__ import annotations

import os
import sys

POOL = "accounts"
TASK_QUEUE = "bank"
ACCOUNTS = ("ann", "bob", "cid", "dan")


def address() -> str:
    """Return where Temporal is: the argument, else TEMPORAL_ADDRESS, else this machine."""
    return sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")

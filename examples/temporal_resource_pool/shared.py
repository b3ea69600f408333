"""What worker and starter have in common: where the server is, and how a line looks."""

from __future__ import annotations

import os
import sys
from datetime import datetime

POOL = "gpus"
TASK_QUEUE = "gpu-users"


def address() -> str:
    """Return where Temporal is: the argument, else TEMPORAL_ADDRESS, else this machine."""
    return sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")


def show(resource: str, user: str, what: str) -> None:
    """Print one line, with the time of day."""
    print(f"{datetime.now():%H:%M:%S.%f}  {resource:6} {user:4} {what}", flush=True)

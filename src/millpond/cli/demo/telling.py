"""How the child processes of the demo speak: a JSON object per line on stdout, with the time of the machine's clock."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time

FOLDER = "MILLPOND_DEMO_FOLDER"


def tell(what: str, **facts: object) -> None:
    """Write one line, whole."""
    line = json.dumps({"what": what, "at": time.monotonic(), **facts}) + "\n"
    with contextlib.suppress(OSError):  # the demo is gone, and so are we in a moment
        os.write(sys.stdout.fileno(), line.encode())


def end_with_parent() -> None:
    """End this process when its stdin ends, and remove the demo's folder: the demo may have been killed."""
    threading.Thread(target=_wait_for_the_end, name="waits for the demo's end", daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    folder = os.environ.get(FOLDER, "")
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)

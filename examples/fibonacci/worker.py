"""The worker: it runs what the producer dispatches. See the package's docstring."""

from __future__ import annotations

import os
import signal
import sys
import threading

from fibonacci.shared import pool


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))  # SIGTERM: end what runs, then leave
    timer.daemon = True
    timer.start()
    print("worker is ready", flush=True)
    pool.run()
    print("worker has left", flush=True)


if __name__ == "__main__":
    main()

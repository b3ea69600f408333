"""How long does `import millpond` take?"""

from __future__ import annotations

import subprocess
import sys

from harness import Question

CODE = "import time; began = time.perf_counter(); import {}; print((time.perf_counter() - began) * 1000)"


def importing(module: str) -> float:
    done = subprocess.run([sys.executable, "-c", CODE.format(module)], capture_output=True, text=True, check=True)
    return float(done.stdout)


QUESTIONS = [
    Question(
        key="import",
        title="Import the package in a fresh interpreter",
        sides={
            "millpond": lambda: importing("millpond"),
            "millpond, with ThreadPool": lambda: importing("millpond.local.threads._pool"),
            "concurrent.futures.thread": lambda: importing("concurrent.futures.thread"),
        },
        unit="ms",
        reference="concurrent.futures.thread",
        score="value",
        must=60.0,
    )
]

"""The program of one user of the demo's GPUs: it waits for one, uses it for a while, gives it back, and asks again.

`python -m millpond.cli.demo.renter URL NAME`. It ends when its stdin does.
"""

from __future__ import annotations

import random
import sys
import time

from millpond import Grant, LeaseLost, ResourcePool
from millpond.cli.demo.telling import end_with_parent, tell

POOL = "gpus"


def use(grant: Grant, seconds: float) -> None:
    """Use the GPU for so long, and stop when it is taken away."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        grant.check()
        time.sleep(0.02)


def main(url: str, name: str) -> None:
    """Ask for a GPU again and again."""
    end_with_parent()
    with ResourcePool(POOL, url, holder=name) as gpus:
        for turn in range(1_000_000):
            try:
                with gpus.acquire(reason=f"train v{turn + 1}") as grant:
                    tell("holds", resource=grant.resource, token=grant.token)
                    use(grant, random.uniform(1.0, 2.5))
                tell("released", resource=grant.resource, token=grant.token)
            except LeaseLost:
                tell("robbed", resource=grant.resource, token=grant.token)
            time.sleep(random.uniform(0.1, 0.5))


if __name__ == "__main__":
    main(*sys.argv[1:])

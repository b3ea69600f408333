"""What worker and producer have in common: the pool, and what its job takes and returns."""

from __future__ import annotations

import os

from millpond import Job, KeyedPool

pool = KeyedPool("fibonacci", os.environ.get("MILLPOND_URL", "sqlite:///fibonacci.db"))


@pool.job(keep_result=3600)
def fibonacci(job: Job, n: int) -> int:
    """Return the nth Fibonacci number. The jobs of one key come one after another, so the lines do not mix."""
    before, number = 0, 1
    for _ in range(n):
        before, number = number, before + number
    print(f"{job.key}: fib({n})={before}", flush=True)
    return before

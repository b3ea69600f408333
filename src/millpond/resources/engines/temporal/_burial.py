"""Telling the pools of a process that it has ended, from the process that was its witness."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from millpond.resources._rules import commands
from millpond.resources._rules.commands import Reply
from millpond.resources.engines.temporal._engine import open as open_engine

REASON = "its process has ended"
PATIENCE = 600.0
"""Seconds after which a server that does not answer is given up: then silence tells."""
PAUSE = 2.0


def tell(url: str, session: str, pools: Iterable[str]) -> None:
    """Report to the pools that the process of that session has ended, as soon as the server answers."""
    engine = open_engine(url)
    deadline = time.monotonic() + PATIENCE
    left = list(pools)
    while left and time.monotonic() < deadline:
        answers: dict[str, Reply | Exception] = {}
        over = threading.Semaphore(0)

        def done(answer: Reply | Exception, pool: str, answers: dict[str, Reply | Exception] = answers) -> None:
            answers[pool] = answer
            over.release()  # noqa: B023  (of this round)

        for pool in left:
            bury = commands.Bury(session, REASON)
            engine.apply(pool, bury, lambda answer, pool=pool: done(answer, pool), block=False)  # type: ignore[misc]
        for _ in left:
            over.acquire()
        left = [pool for pool in left if isinstance(answers[pool], Exception)]
        time.sleep(PAUSE if left else 0.0)
    engine.close()

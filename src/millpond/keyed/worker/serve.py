"""Work until a signal, or the shutdown of the pool, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineUnavailable
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.worker.health import check_health, telling
from millpond.keyed.worker.worker import Worker

LAST = 3.0
"""Seconds after the second signal until the process is killed: a plain function may not listen."""
SAME = 0.5
"""Seconds within which the same signal is one: a service manager tells a whole group, and who leads it passes it on."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def async_serve(connection: PoolConnection, options: dict[str, Any], health: str | None = None) -> None:
    """Work in the running loop. The first signal lets the worker leave, the second stops what runs, and kills soon."""
    where = check_health(health)
    worker = Worker(connection, **options)
    with _heeding(connection, worker):
        async with telling(connection, worker, where):
            if not await _begun(connection, worker):
                return
            try:
                await worker.stopped.wait()
            finally:
                await worker.close()
                await worker.departed()


async def _begun(connection: PoolConnection, worker: Worker) -> bool:
    """Join the pool, as soon as the store can be reached; False: it was told to end before that."""
    said = ""
    while not worker.stopped.is_set():
        try:
            await worker.start()
        except EngineUnavailable as error:
            if not said:
                said = str(error)
                logger.warning("a worker of pool %r cannot begin yet: %s", connection.name, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.stopped.wait(), 1.0)
        else:
            return True
    return False


def serve(connection: PoolConnection, options: dict[str, Any], health: str | None = None) -> None:
    """Work in a loop of its own."""
    asyncio.run(async_serve(connection, options, health))


@contextlib.contextmanager
def _heeding(connection: PoolConnection, worker: Worker) -> Iterator[None]:
    """Heed signals where that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    heard = 0
    first = (0, 0.0)

    def hear(number: int) -> None:
        nonlocal heard, first
        if heard == 1 and number == first[0] and elapsed() - first[1] < SAME:
            return
        heard += 1
        first = first if first[0] else (number, elapsed())
        if heard == 1:
            name, running = signal.Signals(number).name, worker.running
            text = "a worker of pool %r leaves after %s: it waits for %d that run; a second signal stops them"
            logger.info(text, connection.name, name, running)
            worker.stopped.set()
        elif heard == 2:
            logger.warning("a worker of pool %r hurries: what runs is told to stop now", connection.name)
            loop.call_later(LAST, die, number)
            worker.hurry()
        else:
            die(number)

    def die(number: int) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, hear, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

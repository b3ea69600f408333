"""Be a worker until told to end: by a signal, or by the shutdown of the pool."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from millpond._events import logger
from millpond.errors import EngineUnavailable
from millpond.keyed._home import Home
from millpond.keyed._worker import Worker

LAST = 3.0
"""Seconds after the second signal until the process is killed: a plain function may not listen."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def async_serve(home: Home, options: dict[str, Any]) -> None:
    """Work in the running loop. The first signal lets the worker leave, the second stops what runs, and kills soon."""
    worker = Worker(home, **options)
    with _heeding(home, worker):
        while not worker.stopped.is_set():
            try:
                await worker.start()
                break
            except EngineUnavailable as error:
                logger.warning("a worker of pool %r cannot begin yet: %s", home.name, error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(worker.stopped.wait(), 1.0)
        else:
            return
        try:
            await worker.stopped.wait()
        finally:
            await worker.close()
            await worker.departed()


def serve(home: Home, options: dict[str, Any]) -> None:
    """Work in a loop of its own."""
    asyncio.run(async_serve(home, options))


@contextlib.contextmanager
def _heeding(home: Home, worker: Worker) -> Iterator[None]:
    """Heed signals where that is possible: in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    heard = 0

    def hear(number: int) -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            worker.stopped.set()
        elif heard == 2:
            logger.warning("a worker of pool %r hurries: what runs is told to stop now", home.name)
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

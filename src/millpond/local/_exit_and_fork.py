"""The end of the interpreter, and fork: what every pool of threads or processes does then.

*Exit.* Worker threads are daemons, and this module waits for them in an `atexit` function, which runs after the
program's own non-daemon threads have ended. So queued work is finished, those threads can still submit until they
end (the standard pool refuses them: cpython #148280), and a pool that was left by Ctrl-C does not hold up the exit.
Tasks of one pool may use another one, so all pools stay open until nothing is queued in any of them.

*Fork.* A forked child has none of the parent's threads. Its pools start over with an empty queue; the parent's
tasks that the child inherited end with `PoolClosed`, so nobody waits for them for ever.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import Protocol


class Runner(Protocol):
    """What a pool shares with its workers, as far as exit and fork need it."""

    is_interrupted: bool
    """Whether nobody is to wait for it."""

    def can_finish(self) -> bool:
        """See that somebody works off what is queued; False when nobody can, which is logged."""

    def finish_queued(self) -> None:
        """Wait until everything queued has ended."""

    def is_idle(self) -> bool: ...
    def close(self) -> None: ...
    def join(self) -> object: ...
    def after_fork(self) -> None: ...


_lock = threading.Lock()
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


def register(runner: Runner) -> None:
    """Finish this runner's tasks at exit, and start it over after a fork."""
    with _lock:
        _runners.add(runner)


def every() -> list[Runner]:
    with _lock:
        return list(_runners)


def finish_queued() -> None:
    """Work off what is queued in every pool, and in those that the last tasks make; all stay open."""
    try:
        while busy := [each for each in every() if not each.is_interrupted and not each.is_idle()]:
            for each in busy:  # all before the first is waited for: their tasks may wait for one another
                each.is_interrupted = not each.can_finish()
            for each in busy:
                if not each.is_interrupted:
                    each.finish_queued()
    except BaseException:  # Ctrl-C: wait for nothing more
        for each in every():
            each.is_interrupted = True
        raise


def finish() -> None:
    """Finish what is queued in every pool, then end their workers."""
    finish_queued()
    left = [each for each in every() if not each.is_interrupted]
    for each in left:
        each.close()
    for each in left:
        each.join()


def finish_first() -> None:
    """Run `finish` before the `atexit` functions that were registered up to now."""
    atexit.unregister(finish)
    atexit.register(finish)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for each in every():
        each.after_fork()


finish_first()
if hasattr(threading, "_register_atexit"):  # children of multiprocessing run no `atexit` functions, only these
    threading._register_atexit(finish_queued)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""The end of the interpreter, and fork.

*Exit.* Worker threads are daemons, and this module waits for them in an `atexit` function, which runs after the
program's own non-daemon threads have ended. So queued work is finished, those threads can still submit until they
end (the standard pool refuses them: cpython #148280), and a pool that was left by Ctrl-C does not hold up the exit.

*Fork.* A forked child has none of the parent's threads. Its pools start over with an empty line; the parent's
tasks that the child inherited end with `PoolClosed`, so nobody waits for them for ever.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading

from millpond.local.threads._runner import crews


def _finish_queued() -> None:
    """Work off what is queued in every pool, and in those that the last tasks make; all stay open."""
    try:
        _work_off_all()
    except BaseException:  # Ctrl-C: wait for nothing more
        for crew in crews:
            crew.is_interrupted = True
        raise


def _work_off_all() -> None:
    while busy := [crew for crew in crews if not crew.is_interrupted and not crew.is_idle()]:
        for crew in busy:  # all before the first is waited for: their tasks may wait for one another
            with contextlib.suppress(RuntimeError):  # Python 3.12 lets no thread start from here on
                crew.resume()
                crew.catch_up()
        for crew in busy:
            if crew.waiting() and not crew.count:
                crew.work_off()
            else:
                crew.drain(None)


def _finish_work() -> None:
    """Finish what is queued in every pool, then end their threads."""
    _finish_queued()
    left = [crew for crew in crews if not crew.is_interrupted]
    for crew in left:
        crew.close()
    for crew in left:
        crew.join()


def _start_over() -> None:
    for crew in list(crews):
        crew.start_over()


def install() -> None:
    """Register all of it, once per process."""
    atexit.register(_finish_work)
    if hasattr(threading, "_register_atexit"):  # children of multiprocessing run no `atexit` functions, only these
        threading._register_atexit(_finish_queued)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_start_over)


install()

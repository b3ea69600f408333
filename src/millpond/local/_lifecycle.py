"""The end of the interpreter, and fork.

*Exit.* Worker threads are daemons, and this module waits for them in an `atexit` function, which runs after the
program's own non-daemon threads have ended. So queued work is finished, those threads can still submit until they
end (the standard pool refuses them: cpython #148280), and a pool that was left by Ctrl-C does not hold up the exit.

*Fork.* A forked child has none of the parent's threads. Its pools start over with an empty line; the parent's
tasks that the child inherited end with `PoolClosed`, so nobody waits for them for ever.
"""

from __future__ import annotations

import atexit
import os

from millpond._events import logger
from millpond.local._crew import Crew, crews


def _finish_work() -> None:
    """Finish what is queued in every pool, then end their threads."""
    open_crews = [crew for crew in crews if not crew.is_interrupted]
    while busy := [crew for crew in open_crews if not crew.is_idle()]:  # the last tasks of one may submit to another
        for crew in busy:
            if _can_work(crew):
                crew.drain(None)
            else:
                open_crews.remove(crew)
    for crew in open_crews:
        crew.close()
    for crew in open_crews:
        crew.join()


def _can_work(crew: Crew) -> bool:
    """See that somebody works off what is queued; False, and said aloud, when no thread can be started any more."""
    try:
        crew.resume()
        crew.catch_up()
    except RuntimeError as error:
        logger.error("pool %r leaves %d tasks undone at exit: %s", crew.name, crew.waiting(), error)
    return crew.count > 0 or not crew.waiting()


def _start_over() -> None:
    for crew in list(crews):
        crew.forget_threads()


def install() -> None:
    """Register both, once per process."""
    atexit.register(_finish_work)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_start_over)


install()

"""The end of the interpreter, Ctrl-C, and fork, for process pools.

*Exit.* Queued work is finished, as in the other pools: first the thread pools', whose tasks may use process pools, then
that of the process pools. Then multiprocessing waits for its children, so whatever is left (the wait was interrupted,
or the program was ended by Ctrl-C) is killed before that. A worker process that has pools of its own runs no `atexit`
functions, only multiprocessing's: there it is done at that point.

*Fork.* A forked child has none of the parent's threads, and the workers are the parent's. Its pools start over.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys

from millpond._events import logger
from millpond.local import _lifecycle
from millpond.local.processes._runner import ProcessCrew, process_crews

_tried_in: set[int] = set()


def finish_work() -> None:
    """Finish what is queued in every process pool, then end their workers; after Ctrl-C end them at once."""
    _tried_in.add(os.getpid())
    if was_interrupted():
        kill_the_rest()
        return
    crews = [crew for crew in process_crews if not crew.is_interrupted]
    while busy := [crew for crew in crews if not crew.is_idle()]:  # the last tasks of one may submit to another
        for crew in busy:
            if _can_work(crew):
                crew.drain(None)
            else:
                crews.remove(crew)
    for crew in crews:
        crew.close()
    for crew in crews:
        crew.join()


def _can_work(crew: ProcessCrew) -> bool:
    """See that somebody works off what is queued; False, and said aloud, when no thread can be started any more."""
    try:
        crew.resume()
        if crew.foreman is None:
            crew.rouse()
    except RuntimeError as error:
        logger.error("pool %r leaves %d tasks undone at exit: %s", crew.name, crew.waiting(), error)
        return False
    return True


def was_interrupted() -> bool:
    """Tell whether a script is ending because of Ctrl-C; in a console the last error may be long past."""
    return getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")


def kill_the_rest() -> None:
    """End every worker of every pool now."""
    for crew in list(process_crews):
        crew.kill()


def _before_multiprocessing_waits() -> None:
    try:
        if os.getpid() not in _tried_in:
            finish_work()
    finally:
        kill_the_rest()


def _start_over() -> None:
    for crew in list(process_crews):
        crew.forget_threads()
    _arm()


def _arm() -> None:
    multiprocessing.util.Finalize(None, _before_multiprocessing_waits, exitpriority=100)


def install() -> None:
    """Register all of it, once per process: the last one registered runs first."""
    _arm()
    multiprocessing.util.register_after_fork(_arm, lambda arm: arm())  # its own children forget what was armed before
    atexit.register(finish_work)
    atexit.unregister(_lifecycle._finish_work)
    atexit.register(_lifecycle._finish_work)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_start_over)


install()

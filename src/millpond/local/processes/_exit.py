"""The end of the interpreter, for process pools.

Queued work is finished, as in the other pools (`_exit_and_fork.py`). Then multiprocessing waits for its children, so
whatever is left (the wait was interrupted, or the program was ended by Ctrl-C) is killed before that. A worker process
that has pools of its own runs no `atexit` functions, only multiprocessing's: there all of it is done at that point.
"""

from __future__ import annotations

import multiprocessing.util
import os

from millpond.local import _exit_and_fork
from millpond.local.processes._runner import ProcessRunner


def _before_multiprocessing_waits() -> None:
    try:
        _exit_and_fork.finish()
    finally:
        for runner in _exit_and_fork.every():
            if isinstance(runner, ProcessRunner):
                runner.kill()


def _register() -> None:
    multiprocessing.util.Finalize(None, _before_multiprocessing_waits, exitpriority=100)


_register()
multiprocessing.util.register_after_fork(_register, lambda register: register())  # its children forget all of the above
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_register)
_exit_and_fork.finish_first()

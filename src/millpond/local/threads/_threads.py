"""The threads that are the workers of a pool."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from contextvars import Context

from millpond._events import emit, logger
from millpond.local._watchers import here
from millpond.local.threads._worker import Worker, work
from millpond.local.threads._workers import Workers


class Threads:
    """Starts a thread for each worker of a pool."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._numbers = itertools.count()

    def start(self, worker: Worker) -> None:
        """Start the thread of a worker; when the system refuses, the pool goes on with those that are there."""
        workers, name = self._workers, self._workers.runner.name
        thread = threading.Thread(
            target=_serve, args=(worker, workers), name=f"{name}_{next(self._numbers)}", daemon=True
        )
        if len(workers.threads) > 2 * workers.count + 16:
            workers.threads = {each for each in workers.threads if each.is_alive()}
        worker.thread = thread
        workers.threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:
            workers.threads.discard(thread)
            workers.remove(worker, is_replaced=False)
            if not workers.count:
                raise
            at_exit = "interpreter shutdown" in str(error)  # Python 3.12 lets none start then: nothing to warn of
            level = logging.DEBUG if at_exit else logging.WARNING
            logger.log(level, "pool %r could not start another thread: %s", name, error)

    def join(self, deadline: float | None) -> bool:
        workers = self._workers
        while True:
            with workers.runner.lock:
                threads = workers.threads - {threading.current_thread()}
            if not threads:
                return True
            for thread in threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    return False
            with workers.runner.lock:
                workers.threads -= threads


def _serve(worker: Worker, workers: Workers) -> None:
    runner, rules = workers.runner, workers.rules
    here.worker = worker
    if not _is_initialized(worker, workers):
        return
    emit(runner.on_event, "worker_started", runner.name)
    try:
        if rules.carries_context:
            again = True
            while again:
                context = Context()
                again = context.run(work, worker, context)
        else:
            work(worker, ())
    finally:
        workers.remove(worker)
        runner.drainers.wake()
        if rules.finalizer is not None and not sys.is_finalizing():
            try:
                rules.finalizer()
            except Exception:
                logger.exception("the finalizer of pool %r raised", runner.name)
        emit(runner.on_event, "worker_stopped", runner.name)
        here.worker = None


def _is_initialized(worker: Worker, workers: Workers) -> bool:
    runner, rules = workers.runner, workers.rules
    if rules.initializer is None:
        return True
    try:
        if rules.carries_context:  # what it sets must not reach tasks, which see their submitter's context
            Context().run(rules.initializer, *rules.initargs)
        else:
            rules.initializer(*rules.initargs)
    except BaseException as error:
        logger.critical("the initializer of pool %r raised", runner.name, exc_info=True)
        runner.mark_broken(f"the initializer of pool {runner.name!r} raised {error!r}, so no task can run")
        workers.remove(worker)
        runner.fail_queued()  # also what came in while this worker was still there
        runner.drainers.wake()
        return False
    return True

"""Where a task of a thread pool waits: in the shared queue, or in the queue of one worker.

Tasks with a key wait for the worker of their key; with `queues="dedicated"` plain tasks too wait for one worker each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from millpond._interrupts import shielded
from millpond.local._calls import hold
from millpond.local._task import OptionTask, Task
from millpond.local._worker_queues import WorkerQueue, WorkerQueues
from millpond.local.threads._worker import Runner
from millpond.local.threads._workers import Workers, wake_if_idle, worker_with


class Placement:
    """Queues the tasks of a pool and sees that somebody takes them."""

    def __init__(self, runner: Runner, workers: Workers, *, is_dedicated: bool) -> None:
        self._runner = runner
        self._workers = workers
        self._release = self.release_key  # made once: what every task with a key holds
        self.is_dedicated = is_dedicated  # plain tasks wait in queues of single workers
        if is_dedicated:
            self._use_worker_queues()

    def place(self, task: Task[Any]) -> None:
        if type(task) is OptionTask and task.key is not None:
            self._place_keyed(task)
        elif self.is_dedicated:
            self._place_dedicated(task)
        else:
            self.queue_plain(task)

    def queue_plain(self, task: Task[Any]) -> Task[Any]:
        try:
            self._runner.put(task)
            workers = self._workers
            if workers.idle:
                workers.wake(1, task)
            elif workers.count < workers.max_workers + workers.extra:
                workers.grow(task)
        except BaseException:
            self._runner.admission.step_out(task)
            raise
        return task

    def place_many(self, tasks: list[Task[Any]]) -> None:
        """Queue plain tasks and wake as many workers as there are."""
        if self.is_dedicated:
            for task in tasks:
                self._place_dedicated(task)
        elif tasks:
            try:
                self._runner.backlog.queue.extend(tasks)
                self._workers.wake(len(tasks), *tasks)
            except BaseException:
                self._runner.admission.step_out(*tasks)
                raise

    def _place_keyed(self, task: OptionTask[Any]) -> None:
        """Queue a task for the worker of its key; the first such task gives every worker a queue of its own."""
        workers, runner = self._workers, self._runner
        with runner.lock:
            queues = runner.backlog.worker_queues or shielded(self._use_worker_queues)
            hold(task, self._release)
            queue = queues.put(task)
            if queue.worker is None:
                if runner.is_paused:
                    return
                workers.start_for(task)  # it gets the queue of a key that waits for a worker
                adopter = shielded(partial(queues.adopt, queue))  # no thread is to be had
                if adopter is None:
                    return
                queue = adopter
            if queue.worker.lock in workers.idle:  # else it is awake, and looks here before it waits
                wake_if_idle(queue.worker.lock, workers.idle)

    def release_key(self, task: Task[Any]) -> None:
        queues = self._runner.backlog.worker_queues
        if queues is not None and type(task) is OptionTask and queues.note_ended(task):
            with self._runner.lock:
                queues.forget(task.key)

    def _place_dedicated(self, task: Task[Any]) -> None:
        workers, queues = self._workers, self._runner.backlog.worker_queues
        assert queues is not None
        with self._runner.lock:
            try:
                lock = workers.idle[-1]
            except IndexError:
                queues.shortest().shared.put(task)
                workers.grow(task)
            else:
                worker_with(lock, workers).queue.shared.put(task)
                if not wake_if_idle(lock, workers.idle):  # it has just taken another task: let others steal this one
                    workers.wake(1, task)

    def _use_worker_queues(self) -> WorkerQueues:
        """Give every worker a queue of its own (under the lock)."""
        backlog, workers = self._runner.backlog, self._workers
        make_shared = backlog.make_queue if self.is_dedicated else lambda: backlog.queue
        queues = WorkerQueues(workers.max_workers, make_shared, dedicated=self.is_dedicated)
        backlog.worker_queues = queues
        for worker in workers.all:
            workers.give_queue(worker)
        return queues

    def after_fork(self) -> None:
        if self._runner.backlog.worker_queues is not None:
            self._use_worker_queues()

    def resize(self, max_workers: int) -> None:
        queues = self._runner.backlog.worker_queues
        if queues is not None:
            for queue in queues.resize(max_workers, self._worth):
                self.hand_over(queue)

    def _worth(self, queue: WorkerQueue) -> tuple[int, bool]:
        """Return by how much a worker's queue is worth keeping when the pool shrinks: idle workers leave first."""
        return len(queue.keyed), queue.worker is not None and queue.worker.lock not in self._workers.idle

    def hand_over(self, queue: WorkerQueue) -> None:
        """Give the plain tasks of a queue that goes to the other workers."""
        while self.is_dedicated and len(queue.shared):
            try:
                self._place_dedicated(queue.shared.take())
            except IndexError:
                return

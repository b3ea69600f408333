"""Queues of single workers: for tasks with a key, and for `queues="dedicated"`.

A `WorkerQueue` belongs to a place for a worker, and outlives the thread or process that has the place. It has a *keyed*
queue (tasks with a key, for this worker only) and a *shared* one: the pool's, or with dedicated queues one of its own,
from which idle neighbours steal.

A key hashes to a worker's queue and all its tasks go there, so they run in that worker, in order, one at a time. While
a key has tasks its queue is remembered, so that a resize cannot send its next task elsewhere while one still runs here.

Everything is done under the runner's lock, except taking tasks and noting that one has ended, which are lock-free.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from millpond._atomic import FREE_THREADED, length_now
from millpond.local._queues import Fifo, Queue
from millpond.local._task import OptionTask, Task

MANY = 1000
"""Tasks of one key that have ended before their entries are cleared away."""


class WorkerQueue:
    """The queues of one worker."""

    __slots__ = ("_all", "_keyed_next", "is_leaving", "keyed", "shared", "worker")

    def __init__(self, queues: WorkerQueues, shared: Queue) -> None:
        self._all = queues
        self._keyed_next = True
        self.is_leaving = False  # the pool has shrunk below it: it stays for its keyed tasks only
        self.keyed = Fifo()
        self.shared = shared
        self.worker: Any = None

    def take(self) -> Task[Any]:
        """Take from the two queues in turn, then from a neighbour; IndexError when there is nothing."""
        self._keyed_next = not self._keyed_next
        first, second = (self.keyed, self.shared) if self._keyed_next else (self.shared, self.keyed)
        if first or FREE_THREADED:  # there through the lock of the queue, also in vain
            try:
                return first.take()
            except IndexError:
                pass
        try:
            return second.take()
        except IndexError:
            return self._all.steal()

    def has_work(self) -> bool:
        return bool(length_now(self.keyed)) or bool(length_now(self.shared))


class KeyTasks:
    """The tasks of one key that have not ended: their queue, how many were put there, and an entry for each that ended.

    They are put under the lock, and end without it.
    """

    __slots__ = ("ended", "number", "queue")

    def __init__(self, queue: WorkerQueue) -> None:
        self.queue = queue
        self.number = 0
        self.ended: list[None] = []

    def forget_ended(self) -> None:
        """Forget those that have ended when they are many (under the lock)."""
        if (many := len(self.ended)) > MANY:
            self.number -= many  # first: who looks in between takes the last task for ended, and asks under the lock
            del self.ended[:many]


class WorkerQueues:
    """The queues of all workers, and which key belongs to which."""

    def __init__(self, number: int, make_shared: Callable[[], Queue], *, dedicated: bool = False) -> None:
        self.dedicated = dedicated
        self._make_shared = make_shared
        self._normal = [self._make() for _ in range(number)]
        self._leaving: list[WorkerQueue] = []
        self._keys: dict[Hashable, KeyTasks] = {}  # those that have tasks
        self._turn = 0

    def _make(self) -> WorkerQueue:
        return WorkerQueue(self, self._make_shared())

    def all(self) -> list[WorkerQueue]:
        return self._normal + self._leaving

    def queues(self) -> list[Queue]:
        keyed: list[Queue] = [each.keyed for each in self.all()]
        return keyed + [each.shared for each in self.all()] if self.dedicated else keyed

    def put(self, task: OptionTask[Any]) -> WorkerQueue:
        """Add a task to the queue of its key's worker, and return that."""
        tasks = self._keys.get(task.key)
        if tasks is None:
            tasks = KeyTasks(self._normal[hash(task.key) % len(self._normal)])
            self._keys[task.key] = tasks
        else:
            tasks.forget_ended()
        tasks.number += 1  # from here until it is queued nothing is called, so no signal handler comes between
        task.queue = queue = tasks.queue
        queue.keyed.put(task)
        return queue

    def note_ended(self, task: OptionTask[Any]) -> bool:
        """Note that a task with a key has ended or was cancelled, once for each; return whether it was the last."""
        tasks = self._keys.get(task.key) if task.queue is not None else None
        if tasks is None:
            return False
        task.queue = None
        tasks.ended.append(None)
        return length_now(tasks.ended) >= tasks.number

    def forget(self, key: Hashable) -> None:
        """Forget a key whose last task has ended, unless another one came meanwhile (under the lock)."""
        tasks = self._keys.get(key)
        if tasks is not None and len(tasks.ended) >= tasks.number:
            del self._keys[key]
            self._let_go(tasks.queue)

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def free(self) -> WorkerQueue | None:
        """Return the queues of a place without a worker, with tasks if there are such; None when all have one."""
        free = [each for each in self.all() if each.worker is None]
        wanted = [each for each in free if each.keyed or (self.dedicated and len(each.shared))]
        normal = [each for each in free if not each.is_leaving]
        return wanted[0] if wanted else normal[0] if normal else None

    def make_extra(self) -> WorkerQueue:
        """Return queues for a worker beyond the number, which has only the shared tasks."""
        extra = self._make()
        extra.is_leaving = True
        return extra

    def assign(self, queue: WorkerQueue, worker: Any) -> None:
        """Give a place to a worker; the pool may have shrunk meanwhile."""
        queue.worker = worker
        if queue.is_leaving and queue not in self._leaving:
            self._leaving.append(queue)

    def leave(self, queue: WorkerQueue) -> None:
        queue.worker = None
        self._let_go(queue)

    def _let_go(self, queue: WorkerQueue) -> None:
        if queue in self._leaving and queue.worker is None and not queue.keyed:
            self._leaving.remove(queue)

    def has_orphans(self) -> bool:
        """Return whether a place without a worker has tasks of its own."""
        if not self._keys and not self.dedicated:
            return False
        return any(each.worker is None and (each.keyed or (self.dedicated and len(each.shared))) for each in self.all())

    def adopt(self, orphan: WorkerQueue) -> WorkerQueue | None:
        """Give the keys of a place that has no worker to one that has, and return that; None when nothing was given."""
        adopter = None
        if orphan.worker is None:
            adopter = next((each for each in self.all() if each.worker is not None), None)
        if adopter is not None:
            for tasks in self._keys.values():
                if tasks.queue is orphan:
                    tasks.queue = adopter
            while orphan.keyed:
                task: Any = orphan.keyed.take()
                if task.queue is orphan:
                    task.queue = adopter
                adopter.keyed.put(task)
        return adopter

    def resize(self, number: int, worth: Callable[[WorkerQueue], Any] | None = None) -> list[WorkerQueue]:
        """Change the number of places; return those that go. They stay while they have keyed tasks or a worker."""
        while len(self._normal) < number:
            queue = self._leaving.pop() if self._leaving else self._make()
            queue.is_leaving = False
            self._normal.append(queue)
        if worth is not None and len(self._normal) > number:
            self._normal.sort(key=worth, reverse=True)
        gone, self._normal = self._normal[number:], self._normal[:number]
        for queue in gone:
            queue.is_leaving = True
        self._leaving += [queue for queue in gone if queue.keyed or queue.worker is not None]
        return gone

    def shortest(self) -> WorkerQueue:
        """Return the place with the fewest shared tasks among those with a worker, equal ones in turn."""
        self._turn = (self._turn + 1) % len(self._normal)
        queues = self._normal[self._turn :] + self._normal[: self._turn]
        return min((each for each in queues if each.worker is not None), key=_length, default=queues[0])

    def steal(self) -> Task[Any]:
        """Take from the longest of the dedicated queues; IndexError when all are empty."""
        if self.dedicated:
            for queue in sorted(self.all(), key=_length, reverse=True):
                try:
                    return queue.shared.take()
                except IndexError:
                    continue
        raise IndexError("nothing to steal")


def _length(queue: WorkerQueue) -> int:
    return len(queue.shared)

"""The limiter under an `AsyncPool`: who runs now, and who waits.

Rules:

- A limiter has `limit` places. A task takes one when it starts and gives it back when it has ended; nothing else
  exists for it: there are no idle workers, so a pool at rest has no asyncio task and needs no closing to be forgotten.
- Everything starts in `pump`, a callback of the loop of which at most one is on its way. So nothing of a task runs
  inside `submit`, a burst of submits and ends costs one callback, and a task cancelled right after its submit never
  starts. A pump lasts about a millisecond at most, then lets the loop breathe. The one exception is `run`, whose caller
  does nothing but wait: with a place free and nobody in line, its call starts at once (3.12: 3.2 µs, not 9.7).
- Each task is run by an asyncio task of its own, in its own context. Where Python can (3.12), its first step is taken
  right in the pump (`eager_start`), so a coroutine that does not suspend never goes through the loop (measured: half
  the cost). Before 3.12, and where the loop has a task factory, the coroutine is *primed*: its first lines, which are
  ours, run by hand, so that a cancellation that comes before its first step is met by our code, which books the end;
  asyncio would throw it at a coroutine that never began, and the place would be lost.
- A task that left the line otherwise than by its turn stays there as a ghost and is skipped; many ghosts are swept.
- A sub-limiter stands below another one: a task that it gives a place goes in line there for a second one.

Rejected: worker coroutines for submitted calls. They share one asyncio task between calls, so whatever is keyed by
`current_task()` (scoped database sessions, re-entrant locks, cancel scopes) leaks from one call to the next. Only
`map` has them (`_async_eager.py`), where 0.15 µs against 4 µs per item is worth saying so.
"""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Protocol

from millpond._events import Observer, emit, logger
from millpond.errors import PoolClosed
from millpond.local._queues import Fifo
from millpond.local._statistics import Statistics
from millpond.local.coroutines._keys import Keys
from millpond.local.coroutines._task import ABORTED, DONE, IN_LINE, RUNNING, AsyncTask, cancel_future

if TYPE_CHECKING:
    from millpond.local._queues import Line
    from millpond.local.coroutines._eager_map import EagerRun
    from millpond.local.coroutines._lazy_map import LazyRun
    from millpond.local.coroutines._when_full import Room

EAGER = sys.version_info >= (3, 12)
STRETCH = 0.001
"""How long a pump may last, in seconds."""


class Entry(Protocol):
    """What can stand in line: a task, or a driver of a map."""

    _stage: int
    _home: Limiter
    _desk: Limiter | None
    _inner: Any
    _context: Context | None

    def _perform(self, is_primed: bool, /) -> Coroutine[Any, Any, None]:
        """Run it: the body of its asyncio task."""

    def _abort(self, error: BaseException, /) -> None:
        """End it: no asyncio task could be made for it."""


class Limiter:
    """A number of places and a line before them. Its counts hold for itself and all limiters below it."""

    def __init__(
        self,
        name: str,
        limit: int,
        make_line: Callable[[], Line],
        observer: Observer | None,
        parent: Limiter | None = None,
    ) -> None:
        self.name = name
        self.limit = limit
        self.observer = observer
        self.parent = parent
        self.chain: tuple[Limiter, ...] = (self,) if parent is None else (self, *parent.chain)  # up to the root
        self.root = self.chain[-1]
        self.children: weakref.WeakSet[Limiter] = weakref.WeakSet()
        self.loop: asyncio.AbstractEventLoop | None = None if parent is None else parent.loop
        self.context: Context = copy_context()
        self.make_line = make_line
        self.line: Any = make_line()
        self.is_fifo = isinstance(self.line, Fifo)
        self.keys = Keys()
        self.room: Room | None = None
        self.maps: set[EagerRun[Any]] = set()
        self.lazies: set[LazyRun[Any]] = set()
        self.inners: dict[asyncio.Task[None], Entry] = {}  # of the root: what runs, by its asyncio task
        self.starting: Entry | None = None  # of the root: what takes its first step right now
        self.is_paused = self.is_closed = False
        self.is_refusing = parent is not None and parent.is_refusing  # it is closed, or one above is
        self.held = 0  # places taken: by what runs and, below a parent, by what stands in line up there
        self.drivers = 0  # those of `running` that work for a map
        self.unfinished = 0  # tasks in line or running
        self.running = self.completed = self.failed = self.cancelled = self.rejected = self.largest = 0
        self._idlers: list[asyncio.Future[None]] = []
        self._ghosts = 0
        self._is_rung = False
        if parent is not None:
            parent.children.add(self)

    def bind(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Belong to `loop` from now on."""
        self.loop = loop
        self._is_rung = False
        for child in self.children:
            child.bind(loop)

    # -- coming in ------------------------------------------------------------------------------------------------

    def place(self, task: AsyncTask[Any]) -> None:
        """Put a new task in line, or in the mailbox of its key."""
        if self._enter(task) and (task.key is None or self.keys.add(task)):
            self.stand(task)

    def place_at_once(self, task: AsyncTask[Any]) -> None:
        """Start a new task right here if it is its turn, since its submitter does nothing but wait for it."""
        if (
            self.held < self.limit
            and not self.line
            and not self.is_paused
            and self.parent is None
            and self.starting is None  # else it would nest: a deep recursion of calls would be one of Python frames
            and task.key is None
        ):
            if self._enter(task):
                self.held += 1
                self.launch(task, None)
        else:
            self.place(task)

    def place_beside(self, task: AsyncTask[Any]) -> None:
        """Start a new task beside the limit: its submitter waits for it."""
        if self._enter(task) and (task.key is None or self.keys.add(task)):
            self.launch(task, self)

    def _enter(self, task: AsyncTask[Any]) -> bool:
        """Take a new task into the books; False when its token was cancelled already."""
        if task._remote is not None and task.done():
            self.count_cancelled()
            return False
        task._stage = IN_LINE
        task._desk = self
        for node in self.chain:
            node.unfinished += 1
        return True

    def stand(self, entry: Entry) -> None:
        """Put `entry` at the end of the line."""
        self.line.put(entry)
        if self.maps and not self.is_fifo:
            for each in self.maps:
                each.contest()
        if not self._is_rung and self.held < self.limit:
            self.ring()

    def ring(self) -> None:
        """See that a pump is on its way."""
        if not self._is_rung and self.loop is not None:
            self._is_rung = True
            self.loop.call_soon(self.pump, context=self.context)

    # -- starting -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Give places to those first in line."""
        self._is_rung = False
        until = 0.0
        started = 0
        while self.held < self.limit and not self.is_paused:
            try:
                entry = self.line.take()
            except IndexError:
                return
            if entry._stage != IN_LINE:
                self._ghosts -= 1
                continue
            if entry._home is not self and self._recall(entry):
                continue
            self.held += 1
            if self.parent is None:
                self.launch(entry, None)
            else:
                entry._desk = self.parent
                self.parent.stand(entry)
            started += 1
            if not started & 15:
                now = time.monotonic()
                if not until:
                    until = now + STRETCH
                elif now > until:
                    self.ring()
                    return

    def _recall(self, entry: Entry) -> bool:
        """Send an entry back to a limiter below that has shrunk or paused since it gave it a place."""
        below = entry._home.chain[: -len(self.chain)]
        for at, node in enumerate(below):
            if node.is_paused or node.held > node.limit:
                entry._desk = node
                node.line.put_back(entry)
                for each in below[at:]:
                    each.held -= 1
                return True
        return False

    def launch(self, entry: Entry, desk: Limiter | None) -> None:
        """Start `entry`, which holds a place of each limiter below `desk` (None for all of them)."""
        entry._stage = RUNNING
        entry._desk = desk
        for node in entry._home.chain:
            node.running += 1
            if node.running > node.largest:
                node.largest = node.running
        root = self.root
        before, root.starting = root.starting, entry
        try:
            inner = spawn(root.loop, entry, self.name)
        except BaseException as error:  # the loop's task factory raised
            entry._abort(error)
            return
        finally:
            root.starting = before
        if entry._stage == RUNNING:
            root.inners[inner] = entry
            was_cancelled, entry._inner = entry._inner, inner
            if was_cancelled:
                inner.cancel()

    def is_inside(self) -> bool:
        """Tell whether the code that asks is a task of this pool."""
        root = self.root
        return root.starting is not None or (bool(root.inners) and asyncio.current_task() in root.inners)

    def is_in(self, task: AsyncTask[Any]) -> bool:
        """Tell whether the code that asks is this very task."""
        return task is self.root.starting or (task._inner is not None and task._inner is asyncio.current_task())

    def help(self, task: AsyncTask[Any]) -> None:
        """Start a task in line beside the limit, since one that holds a place does nothing but wait for it."""
        desk = task._desk
        if task._stage == IN_LINE and desk is not None:
            desk._ghosts += 1
            self.launch(task, desk)

    # -- ending ---------------------------------------------------------------------------------------------------

    def end(self, task: AsyncTask[Any], value: Any) -> None:
        """Book a task that returned."""
        self.leave(task, completed=1)
        task.set_result(value)

    def end_failed(self, task: AsyncTask[Any], error: BaseException) -> None:
        """Book a task that raised."""
        self.leave(task, completed=1, failed=1)
        error = clean(error)
        task.set_exception(error)
        if task._is_loose:
            task.exception()  # it counts as retrieved
            if self.observer is None:
                logger.error("a task given to go() failed in pool %r", self.name, exc_info=error)
        pass_on(error)

    def end_cancelled(self, task: AsyncTask[Any], error: asyncio.CancelledError) -> None:
        """Book a running task that ended by cancellation."""
        self.leave(task, cancelled=1)
        emit(self.observer, "task_cancelled", self.name)
        cancel_future(task, error.args[0] if error.args else None)

    def withdraw(self, task: AsyncTask[Any]) -> None:
        """Book a task that was cancelled before it started."""
        if task._stage != IN_LINE:  # it is new, so it is in no book; its submitter may wait for room
            if self.room is not None:
                self.room.forget(task)
            return
        stood = self.keys.first(task) is task
        desk = task._desk
        self.leave(task, cancelled=1)
        task._call, task._args = None, ()
        if stood and desk is not None:
            desk.haunt()
        emit(self.observer, "task_cancelled", self.name)

    def leave(self, task: AsyncTask[Any], *, completed: int = 0, failed: int = 0, cancelled: int = 0) -> None:
        """Take a task out of the books and hand on what it held."""
        was_running = task._stage == RUNNING
        task._stage = DONE
        if task._inner is not None:
            self.root.inners.pop(task._inner, None)
            task._inner = None
        if task._remote is not None:
            task._remote.detach()
        if task.key is not None:
            successor = self.keys.remove(task)
            if successor is not None:
                self.stand(successor)
        desk = task._desk
        holds = True
        for node in self.chain:
            holds = holds and node is not desk
            if holds:
                node.held -= 1
                if not node._is_rung and node.line:
                    node.ring()
            if was_running:
                node.running -= 1
            node.unfinished -= 1
            node.completed += completed
            node.failed += failed
            node.cancelled += cancelled
            if node.room is not None or node._idlers:
                node.notice()

    def count_cancelled(self) -> None:
        """Book a task that was cancelled before it came into the books."""
        for node in self.chain:
            node.cancelled += 1
        emit(self.observer, "task_cancelled", self.name)

    def haunt(self) -> None:
        """Note that something in the line is no longer there; sweep the line when there is much of that."""
        self._ghosts += 1
        if self._ghosts > 64 and self._ghosts > len(self.line) // 2:
            alive = [entry for entry in self.line if entry._stage == IN_LINE]
            self.line = self.make_line()
            self.line.extend(alive)
            self._ghosts = 0

    # -- looking --------------------------------------------------------------------------------------------------

    def refusal(self) -> PoolClosed:
        """Return the error for a submit to a closed pool."""
        closed = next((node for node in self.chain if node.is_closed), self.root)
        return PoolClosed(
            f"pool {closed.name!r} is shut down and takes no more tasks; submit before that, or await restart()"
        )

    def waiting(self) -> list[AsyncTask[Any]]:
        """Return the tasks that have not started, here and below."""
        tasks = [entry for entry in self.line if isinstance(entry, AsyncTask) and entry._stage == IN_LINE]
        tasks.extend(self.keys.waiting())
        for child in self.children:
            tasks.extend(child.waiting())
        return tasks

    def is_idle(self) -> bool:
        """Tell whether nothing is in line or running."""
        return not self.unfinished and not self.maps

    async def rest(self) -> None:
        """Wait until nothing is in line or running."""
        while not self.is_idle():
            idler = asyncio.get_running_loop().create_future()
            self._idlers.append(idler)
            try:
                await idler
            finally:
                if idler in self._idlers:
                    self._idlers.remove(idler)

    def notice(self) -> None:
        """Tell those who wait for room or for rest that there may be some."""
        if self.room is not None and self.room.waiting:
            self.room.let_in()
        if self._idlers and self.is_idle():
            idlers, self._idlers = self._idlers, []
            for idler in idlers:
                if not idler.done():
                    idler.set_result(None)

    def statistics(self, kind: str) -> Statistics:
        """Return a snapshot of the counts."""
        queued = self.unfinished - (self.running - self.drivers) + sum(each.left() for each in self.maps)
        completed = self.completed + sum(each.completed() for each in self.maps)
        return Statistics(
            name=self.name,
            kind=kind,
            max_workers=self.limit,
            workers=self.running,
            idle=0,
            queued=queued,
            running=self.running,
            submitted=queued + self.running + completed + self.cancelled,
            completed=completed,
            failed=self.failed,
            cancelled=self.cancelled,
            rejected=self.rejected,
            waiting_submitters=0 if self.room is None else self.room.waiting,
            largest=self.largest,
            state="closed" if self.is_closed else "paused" if self.is_paused else "open",
        )

    # -- managing -------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Start nothing more."""
        self.is_paused = True
        for each in self.maps:
            each.halt = True

    def resume(self) -> None:
        """Start again."""
        self.is_paused = False
        self.ring()
        self.notice()

    def resize(self, limit: int) -> None:
        """Change the number of places; surplus ones go as their tasks end."""
        self.limit = limit
        for each in self.maps:
            each.halt = True
        self.ring()
        self.notice()

    def purge(self) -> int:
        """Cancel what has not started; return how many."""
        tasks = self.waiting()
        for task in reversed(tasks):  # backwards, so that no successor of a key is put in line first
            task.cancel()
        return len(tasks) + sum(each.drop_rest() for each in list(self.maps))

    def cancel_running(self) -> None:
        """Cancel what runs here and below."""
        for each in list(self.maps):
            each.stop()
        for entry in list(self.root.inners.values()):
            if isinstance(entry, AsyncTask) and self in entry._home.chain:
                entry.cancel()

    def close(self) -> None:
        """Take no more tasks, here and below; start again what is paused, so that it can end."""
        if not self.is_closed:
            self.is_closed = True
            emit(self.observer, "pool_closed", self.name)
        self._refuse()

    def _refuse(self) -> None:
        self.is_refusing = True
        if self.is_paused:
            self.resume()
        if self.room is not None:
            self.room.close()
        for lazy in list(self.lazies):
            lazy.cut(self.refusal())
        for child in self.children:
            child._refuse()

    def reopen(self) -> None:
        """Take tasks again."""
        self.is_closed = False
        self.is_refusing = self.parent is not None and self.parent.is_refusing
        for child in self.children:
            if not child.is_closed:
                child.reopen()


def spawn(loop: Any, entry: Entry, name: str) -> asyncio.Task[None]:
    """Make the asyncio task that runs `entry`; it may be done when this returns."""
    context = entry._context or Context()  # an empty one is not kept while the entry waits
    if loop.get_task_factory() is not None:
        body = entry._perform(True)
        body.send(None)
        try:
            task: asyncio.Task[None] = loop.create_task(body, name=name, context=context)
        except BaseException:
            entry._stage = ABORTED
            body.close()
            raise
        return task
    if EAGER:
        return asyncio.Task(  # type: ignore[call-arg]  # mypy is told to look with the eyes of 3.11
            entry._perform(False), loop=loop, name=name, context=context, eager_start=True
        )
    body = entry._perform(True)
    body.send(None)
    return asyncio.Task(body, loop=loop, name=name, context=context)


def clean(error: BaseException) -> BaseException:
    """Take our own frame off a user's error, and make it one that asyncio takes."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    if isinstance(error, StopIteration):
        return RuntimeError(f"task raised {error!r}")
    return error


def pass_on(error: BaseException) -> None:
    """Let Ctrl-C through to the loop: it is meant for the program, not only for the task that it hit."""
    if isinstance(error, KeyboardInterrupt):
        asyncio.get_running_loop().call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error

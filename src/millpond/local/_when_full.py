"""What to do with a task when a bounded pool is full.

`max_queued=n` means that at most n tasks wait while every worker is busy: a pool is full when it holds
`max_workers + n` tasks that have not ended. What happens then is `when_full`:

| policy          | what happens                                                                             |
|-----------------|------------------------------------------------------------------------------------------|
| `"block"`       | the submitter waits its turn (`Block(timeout=, max_waiting=)` bounds the wait and the waiters) |
| `"raise"`       | `PoolFull`                                                                               |
| `"drop"`        | the new task is cancelled                                                                |
| `"drop_oldest"` | the task that has waited longest is cancelled and the new one comes in                   |
| `"caller_runs"` | the submitter runs the task itself, which slows it down                                  |
| a callable      | gets the pool's statistics and the task, and returns one of these words or `"accept"`    |

A dropped task is a cancelled future. A worker that submits to its own full pool never blocks itself: where others
would wait, it runs the task. Whoever makes room queues the task of the first waiting submitter, so nobody is
overtaken. `await pool.run(...)` waits for room without holding up its event loop.

`Admission` counts the tasks that it has admitted and that have not left: each holds a place, which is given back when
its call ends, its time is up, or it is cancelled. The places of maps and subpools in the queue are not admitted, and
what a caller runs itself never comes in. A task that is counted gets a number, as its value until it has another one.
By that `drop_oldest` tells which of two queues has the older task, and a submit that a signal handler has interrupted
whether its place is counted: CPython runs no handler between these two stores.
"""

from __future__ import annotations

import _thread
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, Protocol, TypeAlias

from millpond._atomic import claim, length_now
from millpond._events import emit
from millpond._interrupts import shielded
from millpond.errors import PoolFull
from millpond.local._backlog import Backlog
from millpond.local._backlog import Host as BacklogHost
from millpond.local._calls import run_admitted
from millpond.local._checks import check_optional_count, check_seconds
from millpond.local._statistics import Statistics
from millpond.local._task import OptionTask, Task
from millpond.local._timer import timer
from millpond.local._watchers import CANCELLED, RAISED

Word: TypeAlias = Literal["block", "raise", "drop", "drop_oldest", "caller_runs"]
Verdict: TypeAlias = Literal["block", "raise", "drop", "drop_oldest", "caller_runs", "accept"]
WORDS = ("block", "raise", "drop", "drop_oldest", "caller_runs")


@dataclass(frozen=True, slots=True)
class Block:
    """Wait for room: at most `timeout` seconds, with at most `max_waiting` submitters; past either, `PoolFull`."""

    timeout: float | None = None
    """Seconds to wait, then `PoolFull`; None: for ever."""
    max_waiting: int | None = None
    """Callers that may wait at once, then `PoolFull`; None: any number."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", check_seconds("timeout", self.timeout))
        check_optional_count("max_waiting", self.max_waiting, 0)


Policy: TypeAlias = Callable[[Statistics, Task[Any]], Verdict]
WhenFull: TypeAlias = Word | Block | Policy


def check_when_full(when_full: WhenFull, max_queued: int | None = 0) -> None:
    """Refuse what is not a policy, and a policy that can never apply."""
    if not (
        when_full in WORDS or isinstance(when_full, Block) or (callable(when_full) and not isinstance(when_full, type))
    ):
        words = ", ".join(map(repr, WORDS))
        raise ValueError(f"when_full must be one of {words}, Block(...) or a callable, not {when_full!r}")
    if max_queued is None and when_full != "block":
        raise ValueError(
            f"when_full={when_full!r} has no meaning without a bound; say how many may wait by max_queued="
        )


class Host(BacklogHost, Protocol):
    """The runner of a pool, as far as admission needs it."""

    is_closed: bool
    owner: Any
    backlog: Backlog

    @property
    def max_workers(self) -> int: ...
    def workers_that_count(self) -> int: ...  # how many tasks may run besides those that wait
    def is_inside(self) -> bool: ...  # whether the calling thread is a worker of this pool
    def refusal(self) -> Exception: ...  # the error for a submit that the pool cannot take any more
    def place(self, task: Task[Any]) -> None: ...  # queue it and see that somebody takes it
    def hold_place(self, task: Task[Any], leave: Callable[[Any], None]) -> None: ...  # call that once, at its end
    def watch_token(self, task: OptionTask[Any]) -> None: ...  # cancel it with its token
    def run_here(self, task: Task[Any]) -> None: ...  # in the calling thread
    def statistics(self) -> Statistics: ...


COUNT_AT = 4096
"""So many tasks that have left are counted at the latest: each is an entry in a list until then."""


class Submitter:
    """A submitter that waits for room for its task; `error` is why it waited in vain."""

    __slots__ = ("error", "is_waiting", "lock", "task")

    def __init__(self, task: Task[Any]) -> None:
        self.task = task
        self.is_waiting = True
        self.error: Exception | None = None
        self.lock = _thread.allocate_lock()
        self.lock.acquire()


class Admission:
    """Decides which tasks come into a pool, and who waits for that. It owns the tasks that are not in yet."""

    is_forked = False

    def __init__(self, host: Host, max_queued: int | None, when_full: WhenFull) -> None:
        self._host = host
        self.max_queued = max_queued
        self.when_full = when_full
        self.run = partial(run_admitted, self.leave)  # what makes the calls of plain tasks: see `_calls.py`
        self.rejected = self.dropped = 0
        self._numbers = itertools.count()
        self._begin()

    def _begin(self) -> None:
        self._admitted = 0  # tasks that came in, less those whose leaving was counted
        self._left: list[None] = []  # an entry for each that has left since: no lock is needed to add one
        self._count_at = 0  # as long as fewer are admitted there is room, and few have left uncounted
        self._submitters: deque[Submitter] = deque()

    def reset(self) -> None:
        """Start over in a forked child: what waits is the parent's."""
        for submitter in self._submitters:
            submitter.task._owner = _FORKED
        self._begin()

    @property
    def waiting(self) -> int:
        return len(self._submitters)

    # -- coming in ----------------------------------------------------------------------------------------------------

    def admit(self, task: Task[Any], *, wait: bool = True) -> Task[Any]:
        """Queue a task by the rules of the pool, and return it (cancelled, when it was dropped).

        On a full pool whose policy is to block, this waits for room; with `wait=False` it returns at once, and the task
        is queued when there is room.
        """
        try:
            if not self._admit_if_room(task):
                self._apply_policy(task, wait=wait)
        except BaseException:
            self.step_out(task)
            raise
        return task

    def try_admit(self, task: Task[Any]) -> bool:
        """Queue a task if there is room; False when the pool is full."""
        try:
            is_in = self._admit_if_room(task)
        except BaseException:
            self.step_out(task)
            raise
        if not is_in:
            self._reject()
        return is_in

    def step_out(self, *tasks: Task[Any]) -> None:
        """Take tasks back whose submit was interrupted by a signal handler, unless they have begun.

        What a bounded pool has refused was never queued: nothing is looked for.
        """
        if queued := [task for task in tasks if self.max_queued is None or task.is_place or _is_counted(task)]:
            shielded(partial(self._step_out, queued))

    def _step_out(self, tasks: list[Task[Any]]) -> None:
        host = self._host
        counted = set(filter(_is_counted, tasks))
        for task in host.backlog.withdraw(tasks):
            if not host.forget(task) and task in counted:
                self.leave()
            task._settle(CANCELLED, task._value)  # a policy may have shown it to somebody
        host.has_left()

    def _admit_if_room(self, task: Task[Any]) -> bool:
        host = self._host
        if host.is_closed:
            raise host.refusal()
        if type(task) is OptionTask and task.token is not None and task.token.cancelled:
            host.backlog.cancel_new(task)
            return True
        if self.max_queued is None:
            host.place(task)
        elif self.enter(task):
            self._place_admitted(task)
        else:
            return False
        self._watch_token(task)
        return True

    def enter(self, task: Task[Any]) -> bool:
        """Atomically take a place for a task if there is one and nobody waits for it."""
        with self._host.lock:
            if self._submitters or (self._admitted >= self._count_at and not self._has_room()):
                return False
            task._value = next(self._numbers)  # `_count`, written out
            self._admitted += 1
            return True

    def _count(self, task: Task[Any]) -> None:
        """Count the place of a task (under the lock)."""
        task._value = next(self._numbers)
        self._admitted += 1

    def _has_room(self) -> bool:
        """Count those that have left; return whether one more task fits (under the lock)."""
        assert self.max_queued is not None
        number = length_now(self._left)  # through the lock of the list, as `leave` goes before it looks who waits
        del self._left[:number]
        self._admitted -= number
        self._count_at = min(self.max_queued, self._admitted + COUNT_AT)  # so many fit, whatever the number of workers
        return self._admitted < self._host.workers_that_count() + self.max_queued

    def _place_admitted(self, task: Task[Any]) -> None:
        host = self._host
        host.hold_place(task, self.leave)
        task._owner = host.owner  # only now: who finds it there may claim the task, which swaps `_fn`
        host.place(task)

    def _watch_token(self, task: Task[Any]) -> None:
        if type(task) is OptionTask and task.token is not None:
            self._host.watch_token(task)

    def leave(self, _: object = None) -> None:
        """Give back the place of a task that has ended or was cancelled."""
        self._left.append(None)
        if self._submitters:
            self.let_in()

    def leave_many(self, number: int) -> None:
        self._left.extend([None] * number)
        if self._submitters:
            self.let_in()

    # -- a full pool --------------------------------------------------------------------------------------------------

    def _apply_policy(self, task: Task[Any], *, wait: bool) -> None:
        host = self._host
        task._owner = self  # a policy may cancel the task that it is asked about, which is in no queue
        verdict = decide(self.when_full, host.statistics, task)
        task._owner = host.owner
        if task._status == CANCELLED:
            return
        if verdict == "block" and host.is_inside():
            verdict = "caller_runs"
        if verdict == "caller_runs" and type(task) is OptionTask and task.key is not None:
            verdict = "accept"  # it has to wait for the others of its key
        if verdict == "block":
            self._wait(task, self.when_full if isinstance(self.when_full, Block) else Block(), is_aside=not wait)
        elif verdict == "caller_runs":
            host.run_here(task)
        elif verdict == "raise":
            raise self._full("")
        elif verdict == "accept" or (verdict == "drop_oldest" and shielded(host.backlog.drop_oldest)):
            if verdict == "drop_oldest":
                self._reject()
            with host.lock:
                self._count(task)
            self._place_admitted(task)
            self._watch_token(task)
        else:
            self._reject()
            with host.lock:
                self.dropped += 1
            task._settle(CANCELLED, None)

    def _reject(self) -> None:
        """Count a task that was turned away, or was dropped for another one."""
        with self._host.lock:
            self.rejected += 1
        emit(self._host.on_event, "task_rejected", self._host.name)

    def _full(self, more: str) -> PoolFull:
        """Count a refusal and return its error."""
        self._reject()
        return PoolFull(
            f"pool {self._host.name!r} is full: {self._host.max_workers} workers and {self.max_queued} queued tasks"
            f"{more}; submit less, raise max_queued, or choose another when_full"
        )

    # -- waiting for room ---------------------------------------------------------------------------------------------

    def _wait(self, task: Task[Any], block: Block, *, is_aside: bool) -> None:
        """Wait until somebody has queued `task` for us, or leave it to them if we are an event loop."""
        me = Submitter(task)
        try:
            self._queue_up(me, block)
            self._watch_token(task)
            self.let_in()
            if not is_aside:
                me.lock.acquire(True, -1 if block.timeout is None else block.timeout)
            elif block.timeout is not None and me.is_waiting:
                timer.after(block.timeout, partial(self._expire, me, block.timeout), own_thread=True)
        except BaseException as error:  # Ctrl-C: leave, and take the task along if it has not started
            if self._step_back(me):
                _fail(task, error)
            else:
                task.cancel()
            raise
        if not is_aside:
            self._expire(me, block.timeout)
            if me.error is not None:
                raise me.error

    def _queue_up(self, me: Submitter, block: Block) -> None:
        with self._host.lock:
            is_crowded = block.max_waiting is not None and len(self._submitters) >= block.max_waiting
            if not is_crowded:
                me.task._owner = self
                self._submitters.append(me)
        if is_crowded:
            raise self._full(f", and {block.max_waiting} submitters wait already")

    def _expire(self, me: Submitter, timeout: float | None) -> None:
        if self._step_back(me):
            me.error = self._full(f", and no room came within {timeout} s")
            _fail(me.task, me.error)

    def _step_back(self, me: Submitter) -> bool:
        """Stop waiting; False when the task is queued, refused or cancelled by now."""
        with self._host.lock:
            if not me.is_waiting:
                return False
            me.is_waiting = False
            with suppress(ValueError):
                self._submitters.remove(me)
            return True

    def cancel_queued(self, task: Task[Any]) -> bool:
        """Atomically cancel a task that is not in yet; False when it is cancelled or refused by now."""
        with self._host.lock:
            if task._owner is not self:  # it came in just now
                return bool(task._owner.cancel_queued(task))
            me = next((each for each in self._submitters if each.task is task), None)
            if me is not None:
                self._step_back(me)
        is_cancelled: bool = self._host.backlog.cancel_new(task)
        if me is not None:
            me.lock.release()
        return is_cancelled

    def let_in(self) -> None:
        """Queue the tasks of waiting submitters while there is room; refuse them all when the pool is closed."""
        if self._submitters:
            shielded(self._let_in)

    def _let_in(self) -> None:
        host = self._host
        refused = []
        with host.lock:
            while self._submitters and (host.is_closed or self._has_room()):
                submitter = self._submitters.popleft()
                submitter.is_waiting = False
                if host.is_closed:
                    submitter.error = host.refusal()
                    refused.append(submitter)
                else:
                    self._count(submitter.task)
                    self._place_admitted(submitter.task)
                submitter.lock.release()
        for submitter in refused:
            _fail(submitter.task, submitter.error)


def _is_counted(task: Task[Any]) -> bool:
    return getattr(task, "_value", None) is not None


def decide(when_full: WhenFull, statistics: Callable[[], Statistics], task: Task[Any]) -> Verdict:
    """Return what is to become of a task that finds the pool full."""
    if isinstance(when_full, Block):
        return "block"
    if not callable(when_full):
        return when_full
    verdict = when_full(statistics(), task)
    if verdict not in (*WORDS, "accept"):
        raise ValueError(f"when_full returned {verdict!r}; it must return one of {(*WORDS, 'accept')}")
    return verdict


def _fail(task: Task[Any], error: BaseException | None) -> None:
    """End a task that waited for room, unless it was cancelled."""
    if claim(task) is not None:
        task._settle(RAISED, error)


# The owner of a task that waited for room in the parent of a forked child.
_FORKED = SimpleNamespace(is_forked=True, cancel_queued=lambda task: False)

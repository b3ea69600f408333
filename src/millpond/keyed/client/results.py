"""Outcomes for those who wait for them: one thread per pool object asks the store, for all of them together."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineError, NotFound
from millpond.keyed.rules import questions as about
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.stores.base import PoolGone, Subscription

PROGRESS = "progress"
"""What stands where the outcome of a job will be, while it runs."""
LOOK = 1.0
"""Seconds after which it looks by itself, since a hint may be lost."""
AT_ONCE = 500
DOUBTS = 16
"""Jobs of which it asks in one look whether they are still there: that makes the store search."""
SEARCHING = 0.02
"""The part of the time for which a store may be searching for them: a search takes long where a mailbox is deep."""
FETCHED = 8 << 20
"""Bytes of outcomes that are kept for those who will ask."""
LONGEST_DOUBT = 60
"""After so many looks, at the latest, it asks again about a job that was there."""


class _Wait:
    __slots__ = ("future", "is_doubtful", "mailbox", "patience", "progress", "since", "slot", "waiters", "watchers")

    def __init__(self, slot: int, mailbox: str) -> None:
        self.slot = slot
        self.mailbox = mailbox
        self.future: Future[tuple[str, bytes]] = Future()
        self.since = elapsed()
        self.is_doubtful = False
        self.patience = 1
        """Looks until it is asked whether the job is still there: twice as many each time that it is."""
        self.waiters = 0
        self.progress: tuple[str, bytes] | None = None
        """How far the job was when we last looked."""
        self.watchers: list[Callable[[bytes], object]] = []


class Results:
    """Who waits for what."""

    def __init__(self, connection: PoolConnection) -> None:
        self._connection = connection
        self._waits: dict[str, _Wait] = {}
        self._lock = threading.Lock()
        self._near: Sequence[str] = ()
        self._early: dict[str, tuple[str, bytes]] = {}
        """Outcomes that nobody has asked for yet."""
        self._early_size = 0
        self._searches = 0
        """How often the store may be asked to search in this look."""
        self._search_at = 0.0
        """When the store may be asked to search again."""
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._subscription: Subscription | None = None
        self._is_closed = False

    def expect(
        self,
        job: str,
        slot: int,
        mailbox: str,
        near: Sequence[str] = (),
        on_progress: Callable[[bytes], object] | None = None,
    ) -> Future[tuple[str, bytes]]:
        """Return a future of the outcome: its status and data. It fails with `NotFound` when none can come.

        `near` are jobs whose outcomes will be wanted soon: those that are there are fetched with it. `on_progress` is
        called with whatever the job tells of its progress meanwhile.
        """
        with self._lock:
            early = self._early.pop(job, None)
            if early is not None:
                self._early_size -= len(early[1])
                done: Future[tuple[str, bytes]] = Future()
                done.set_result(early)
                return done
            wait = self._waits.setdefault(job, _Wait(slot, mailbox))
            wait.waiters += 1
            if on_progress is not None:
                wait.watchers.append(on_progress)
                wait.progress = None  # so that the newcomer hears where it stands
            self._near = near
            if self._thread is None or not self._thread.is_alive():
                self._is_closed = False
                self._thread = threading.Thread(
                    target=self._live, name=f"millpond-{self._connection.name}-results", daemon=True
                )
                self._thread.start()
        self._bell.set()
        return wait.future

    def forget(
        self, job: str, future: Future[tuple[str, bytes]], watcher: Callable[[bytes], object] | None = None
    ) -> None:
        """Ask no more for a job when the last who waited for this future has given up."""
        with self._lock:
            wait = self._waits.get(job)
            if wait is not None and wait.future is future:
                wait.waiters -= 1
                if watcher in wait.watchers:
                    wait.watchers.remove(watcher)
                if not wait.waiters:
                    del self._waits[job]

    def close(self) -> None:
        """End the thread; whoever still waits is told so."""
        self._is_closed = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        with self._lock:
            waits = list(self._waits.values())
        for wait in waits:
            wait.future.cancel()

    def _live(self) -> None:
        while not self._is_closed:
            try:
                if self._subscription is None:
                    self._subscription = self._connection.store.listen(self._connection.producer, self._bell.set)
                self._look()
            except PoolGone:
                self._gone()
            except EngineError as error:
                logger.debug("outcomes cannot be had now: %s", error)
                self._bell.wait(0.2)
            except Exception:
                logger.exception("outcomes of pool %r cannot be had", self._connection.name)
                self._bell.wait(LOOK)
            with self._lock:
                is_idle = not self._waits
            self._bell.wait(None if is_idle else LOOK)
            self._bell.clear()
        if self._subscription is not None:
            self._subscription.close()

    def _look(self) -> None:
        with self._lock:
            ids = list(self._waits)
            waited = len(ids)
            while len(self._early) > 20 * AT_ONCE or self._early_size > FETCHED:
                self._early_size -= len(self._early.pop(next(iter(self._early)))[1])
            if waited < AT_ONCE:
                near = (job for job in self._near if job not in self._waits and job not in self._early)
                ids += itertools.islice(near, AT_ONCE - waited)
            self._near = ()
        self._searches = DOUBTS if elapsed() >= self._search_at else 0
        asked = 0
        while asked < waited:  # what is only near comes with those, or another time
            part = ids[asked : asked + AT_ONCE]
            outcomes = self._connection.store.ask(about.Outcomes(tuple(part)))
            for job, outcome in zip(part, outcomes, strict=False):
                self._got(job, outcome)
            asked += len(outcomes)

    def _got(self, job: str, outcome: tuple[str, bytes] | None) -> None:
        """Pass on what the store says of a job; None: nothing yet."""
        wait, now = self._waits.get(job), elapsed()
        if outcome is not None and outcome[0] == PROGRESS:
            if wait is not None:
                self._tell(wait, outcome)
        elif wait is None:
            if outcome is not None and job not in self._early:
                with self._lock:
                    self._early[job] = outcome
                    self._early_size += len(outcome[1])
        elif outcome is not None:
            self._end(job, wait, outcome)
        elif self._searches and now - wait.since > wait.patience * LOOK:
            self._doubt(job, wait)
            self._search_at = max(now, self._search_at) + (elapsed() - now) / SEARCHING
            self._searches = self._searches - 1 if self._search_at < now + LOOK else 0

    def is_here(self) -> bool:
        """Return whether this is the thread that brings outcomes, which must not wait for one."""
        return threading.current_thread() is self._thread

    def _tell(self, wait: _Wait, outcome: tuple[str, bytes]) -> None:
        """Call those who watch a job with how far it is, unless they know."""
        if outcome != wait.progress:
            wait.progress = outcome
            for watcher in list(wait.watchers):
                try:
                    watcher(outcome[1])
                except Exception:
                    logger.exception("on_progress raised")

    def _doubt(self, job: str, wait: _Wait) -> None:
        """Check whether a job that has waited long is still there: an outcome that has expired will not come again."""
        wait.since = elapsed()
        if self._connection.store.ask(about.Where(wait.slot, wait.mailbox, job)) not in ("gone", "dead"):
            wait.is_doubtful = False
            wait.patience = min(LONGEST_DOUBT, 2 * wait.patience)
        elif not wait.is_doubtful:
            wait.is_doubtful = True  # it may have ended between our two questions: ask once more
            wait.patience = 1
        else:
            self._fail(job, wait, f"job {job!r} has ended, and its outcome is kept no longer (see keep_result=)")

    def _gone(self) -> None:
        for job, wait in list(self._waits.items()):
            self._fail(job, wait, f"job {job!r} is gone: the store lost the pool with all its jobs")

    def _fail(self, job: str, wait: _Wait, message: str) -> None:
        with self._lock:
            self._waits.pop(job, None)
        with contextlib.suppress(InvalidStateError):
            wait.future.set_exception(NotFound(message))

    def _end(self, job: str, wait: _Wait, outcome: tuple[str, bytes]) -> None:
        with self._lock:
            self._waits.pop(job, None)
        with contextlib.suppress(InvalidStateError):
            wait.future.set_result(outcome)

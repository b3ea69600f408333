"""Keeps a worker a member: renews its lease from a thread of its own, and tells it to stop in time when it cannot.

A worker that renews but does not work would hold its keys for ever. So when every turn of its feed fails, though the
store answers the renewals, its lease is given up, and it joins again once a turn succeeds. A turn that takes long has
not failed: a slow store ends no lease.

Two threads, since a renewal may hang: one renews every third of a lease and, when the membership is over, joins again
under a new id; the other only watches the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from millpond._clock import elapsed
from millpond._events import logger
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.rules import commands as do
from millpond.keyed.rules.records import PoolState
from millpond.keyed.stores.base import OuterHeart, PoolGone, Store
from millpond.keyed.worker.membership import Membership

ANSWER = 0.5
"""Seconds for which the store is waited for after the process stood still, before what runs is stopped."""
STUCK = 10.0
"""Seconds for which a worker may fail to work before it gives up its lease; or two leases, if that is more."""
AGAIN = 0.2
"""Seconds after which a renewal that failed is tried again."""


class Heartbeat:
    """The heartbeats of one worker."""

    def __init__(
        self,
        pool: str,
        store: Store,
        lease: float,
        join: Callable[[], Membership],
        is_wanted: Callable[[], bool],
        beaten: Callable[[PoolState], None],
        lost: Callable[[Membership, str], None],
        is_stuck: Callable[[], bool],
        is_running: Callable[[Membership], bool],
        outer: OuterHeart | None = None,
    ) -> None:
        self.is_leaving = False
        self._store = store
        self._lease = lease
        self._join = join
        self._is_wanted = is_wanted
        self._beaten = beaten
        self._lost = lost
        self._is_stuck = is_stuck
        self._is_running = is_running
        self._stuck_since: float | None = None
        """Since when the store answers renewals, and the worker cannot work."""
        self._outer: OuterHeart = outer or _NoHeart()
        self._membership: Membership | None = None
        self._version = 0
        """Of the members, as the last heartbeat told them."""
        self._ended = threading.Event()
        self._wake = threading.Event()
        self._alarm = threading.Event()
        self._threads = [
            threading.Thread(target=self._renew, name=f"millpond-{pool}-heartbeat", daemon=True),
            threading.Thread(target=self._watch, name=f"millpond-{pool}-guard", daemon=True),
        ]

    def start(self, membership: Membership) -> None:
        """Keep up a membership."""
        self._membership = membership
        self._outer.join(membership.id)
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look now: a membership may be over."""
        self._wake.set()

    def give_up(self, membership: Membership) -> None:
        """Drop a membership that is over, and join anew."""
        self._outer.give_up(membership.id)
        self._wake.set()

    def end(self, *, wait: bool = True) -> None:
        """Renew no more."""
        self._ended.set()
        self._wake.set()
        self._alarm.set()
        for thread in self._threads if wait else ():
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(timeout=10)
        self._outer.close()

    def _renew(self) -> None:
        pause, said = self._period(), ""
        while not self._ended.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            if self._ended.is_set() or not self._is_wanted():
                return
            membership = self._membership
            pause = AGAIN
            try:
                if membership is not None and not membership.is_over:
                    pause = self._renew_once(membership)
                    said = ""
                elif self.is_leaving:
                    return
                else:
                    pause = self._join_again(membership)
            except PoolGone:
                if membership is not None:
                    self._lost(membership, "the store lost the pool")
            except EngineUnavailable:
                if membership is not None and not membership.is_over:
                    self._stuck_since = None  # the store is to blame
            except EngineError as error:
                if str(error) != said:
                    said = str(error)
                    logger.error("a heartbeat failed: %s", error)
            except Exception:
                logger.exception("a heartbeat failed")

    def _renew_once(self, membership: Membership) -> float:
        """Renew a membership; return after how many seconds to do so again."""
        sent = elapsed()
        beat = self._store.do(do.Renew(membership.id, self.is_leaving, self._version))
        if beat is None:
            self._lost(membership, "no member any more")
            self._wake.set()
        else:
            membership.extend(sent)
            self._version = beat.version
            self._alarm.set()
            self._outer.beat()
            self._beaten(beat)
            self._give_up_if_stuck(membership)
        return self._period()

    def _join_again(self, former: Membership | None) -> float:
        """Become a member anew, as soon as this worker can work; return after how many seconds to look again."""
        if former is not None and self._stuck_since is not None and self._is_stuck():
            if not self._is_running(former):
                self._store.do(do.Leave(former.id))  # so that nobody has to wait for the end of its lease
            return min(1.0, self._period())
        self._stuck_since = None
        self._membership = self._join()
        self._outer.join(self._membership.id)
        self._alarm.set()
        return self._period()

    def _give_up_if_stuck(self, membership: Membership) -> None:
        """After a renewal: end a membership under which nothing was done for long."""
        if not self._is_stuck():
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = elapsed()
        elif elapsed() - self._stuck_since >= max(STUCK, 2 * membership.lease):
            self._outer.join("")
            self._lost(membership, "it could not work")

    def _period(self) -> float:
        """Return after how many seconds to renew: by the lease of this membership, which may be new."""
        return (self._lease if self._membership is None else self._membership.lease) / 3

    def _watch(self) -> None:
        due = elapsed()
        while not self._ended.is_set():
            membership = self._membership
            if membership is None or membership.is_over:
                due = self._sleep(0.5)
                continue
            left = membership.left()
            if left <= 0:
                left = self._ask(membership, is_late=elapsed() - due > membership.lease / 10)
            if left <= 0:
                self._lost(membership, "lease")
                self._wake.set()
                due = elapsed()
            else:
                due = self._sleep(min(left, membership.lease / 4))

    def _sleep(self, seconds: float) -> float:
        """Wait until somebody calls, or for so long; return when that was to end."""
        due = elapsed() + seconds
        self._alarm.wait(seconds)
        self._alarm.clear()
        return due

    def _ask(self, membership: Membership, *, is_late: bool) -> float:
        """Check whether the lease was kept up from outside; return what is left of it.

        When this process stood still (`is_late`), nothing ran here meanwhile: so what runs is not stopped before the
        store was asked, which takes a moment.
        """
        membership.extend(self._outer.renewed_at())
        if is_late and membership.left() <= 0:
            self._wake.set()
            patience = membership.lasts() if membership.lasts() > 0 else min(ANSWER, membership.lease / 10)
            self._alarm.wait(patience)  # the other thread renews, or finds that it is over
        return membership.left()


class _NoHeart:
    """In the place of one where a store needs none."""

    def join(self, worker: str) -> None: ...
    def beat(self) -> None: ...
    def give_up(self, worker: str) -> None: ...
    def close(self) -> None: ...

    def renewed_at(self) -> float:
        return 0.0

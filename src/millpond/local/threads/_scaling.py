"""Carries out what the sizing rules say: samples the pool on a tick, starts workers, lets surplus ones leave.

Only pools whose rule needs it have one: an eager pool with an idle time-out has no tick. The tick stops while the
pool is idle and starts again with the next task that finds nobody to run it.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from millpond._events import logger
from millpond.local._sizing import RULES, Reaper, Sizing, Snapshot, clamp, starved, surplus
from millpond.local._timer import timer

if TYPE_CHECKING:
    from millpond.local.threads._workers import Workers

TICK = 0.05
SMOOTH = 0.3
"""Weight of the newest sample in the smoothed rates."""


class Scaling:
    """The sizing rule of a pool at work."""

    def __init__(self, workers: Workers, rule: Sizing, reaper: Reaper | None) -> None:
        self._workers = weakref.ref(workers)
        self._rule = rule
        self._is_users = rule not in RULES.values()
        self._reaper = reaper
        self._arrival_rate = self._run_time = 0.0
        self.reset()

    def reset(self) -> None:
        """Start without a tick, as in a forked child, whose timer has forgotten it."""
        self._is_ticking = False
        self._sampled_at = 0.0
        self._came_in = self._ended = 0
        self._stalled_for = 0.0
        self._fewest_idle = 0
        self._reap_at = 0.0

    def snapshot(self, workers: Workers) -> Snapshot:
        """Return what the rule may look at."""
        return Snapshot(
            workers=workers.count,
            idle=workers.idle_count(),
            queued=len(workers.runner.backlog),
            min_workers=workers.min_workers,
            max_workers=workers.max_workers + workers.extra,
            arrival_rate=self._arrival_rate,
            run_time=self._run_time,
            stalled_for=self._stalled_for,
        )

    def wants_more(self) -> bool:
        """Ask the rule, for a task that found no idle worker."""
        workers = self._workers()
        if workers is None:
            return False
        self._start_ticking(workers)
        now = self.snapshot(workers)
        try:
            want = self._rule(now)
        except Exception:
            logger.exception("the sizing of pool %r raised; a worker is started all the same", workers.runner.name)
            return True
        return workers.count < clamp(want, now)

    def _start_ticking(self, workers: Workers) -> None:
        if self._is_ticking:
            return
        self._is_ticking = True
        self._sampled_at = time.monotonic()
        self._ended = workers.ended()
        self._came_in = self._ended + len(workers.runner.backlog)
        self._stalled_for = 0.0
        if self._reaper is not None:
            self._reap_at = self._sampled_at + self._reaper.period
            self._fewest_idle = workers.idle_count()
        self._tick_again()

    def _tick_again(self) -> None:
        timer.after(TICK, self._tick, own_thread=self._is_users)

    def _tick(self) -> None:
        workers = self._workers()
        if workers is None:
            return
        lock = workers.runner.lock
        try:
            self._grow(workers, lock)
            self._reap(workers)
        except Exception:
            logger.exception("the sizing of pool %r raised; it is asked again", workers.runner.name)
        finally:
            with lock:
                self._is_ticking = not self._may_stop(workers)
                if self._is_ticking:
                    self._tick_again()

    def _grow(self, workers: Workers, lock: threading.RLock) -> None:
        """Start the workers that the rule wants; ask it without the lock, since it may be a user's."""
        with lock:
            self._sample(workers)
            now = self.snapshot(workers)
        want = now.workers + 1 if starved(now) else self._rule(now)
        with lock:
            runner = workers.runner
            missing = 0 if runner.is_closed or runner.is_paused else clamp(want, now) - workers.count
            for _ in range(missing):
                workers.start_one()
            if starved(now):
                self._stalled_for = 0.0

    def _may_stop(self, workers: Workers) -> bool:
        runner = workers.runner
        if runner.is_closed:
            return True
        is_idle = not len(runner.backlog) and len(workers.idle) >= workers.count
        return is_idle and (self._reaper is None or workers.count <= workers.min_workers)

    def _sample(self, workers: Workers) -> None:
        """Derive the rates from counts: arrivals, and run time = busy workers / throughput."""
        now = time.monotonic()
        seconds, self._sampled_at = max(1e-6, now - self._sampled_at), now
        backlog = workers.runner.backlog
        ended, busy = workers.ended(), workers.count - workers.idle_count()
        came_in = ended + backlog.cancelled + len(backlog) + busy
        arrivals, self._came_in = max(0, came_in - self._came_in), came_in
        endings, self._ended = ended - self._ended, ended
        self._arrival_rate += SMOOTH * (arrivals / seconds - self._arrival_rate)
        if endings > 0:
            run_time = busy * seconds / endings
            self._run_time = run_time if not self._run_time else self._run_time + SMOOTH * (run_time - self._run_time)
        self._stalled_for = 0.0 if endings > 0 or not len(backlog) else self._stalled_for + seconds

    def _reap(self, workers: Workers) -> None:
        """Let those leave who were idle throughout the reaper's period."""
        if self._reaper is None:
            return
        self._fewest_idle = min(self._fewest_idle, workers.idle_count())
        if time.monotonic() < self._reap_at:
            return
        workers.dismiss(surplus(self._fewest_idle, self.snapshot(workers)))
        self._reap_at = time.monotonic() + self._reaper.period
        self._fewest_idle = workers.idle_count()

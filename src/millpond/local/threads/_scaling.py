"""Carries out what the sizing rules say: samples the pool on a tick, starts workers, lets surplus ones leave.

Only pools whose rule needs it have one: an eager pool with an idle time-out has no tick. The tick stops while the
pool is idle and starts again with the next task that finds nobody to run it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial

from millpond._events import logger
from millpond._interrupts import shielded
from millpond.local._sizing import RULES, Reaper, Sizing, Snapshot, clamp, starved, surplus
from millpond.local._timer import timer
from millpond.local.threads._workers import Workers

TICK = 0.05
SMOOTH = 0.3
"""Weight of the newest sample in the smoothed rates."""


class Scaling:
    """The sizing rule of a pool at work."""

    def __init__(self, workers: Workers, rule: Sizing, reaper: Reaper | None) -> None:
        self._workers = workers
        self._rule = rule
        self._is_users = rule not in RULES.values()
        self._reaper = reaper
        self._arrival_rate = self._run_time = 0.0
        self.reset()

    def reset(self) -> None:
        """Start without a tick, as in a forked child, whose timer has forgotten it."""
        self._is_ticking = False
        self._came_in = self._ended = self._fewest_idle = 0
        self._sampled_at = self._stalled_for = self._reap_at = 0.0

    def _snapshot(self) -> Snapshot:
        workers = self._workers
        return Snapshot(
            workers=workers.count,
            idle=workers.counts.idle(),
            queued=len(workers.runner.backlog),
            min_workers=workers.min_workers,
            max_workers=workers.max_workers + workers.extra,
            arrival_rate=self._arrival_rate,
            run_time=self._run_time,
            stalled_for=self._stalled_for,
        )

    def wants_more(self) -> bool:
        """Ask the rule, for a task that found no idle worker."""
        workers = self._workers
        if not self._is_ticking:
            shielded(self._start_ticking)
        now = self._snapshot()
        try:
            want = self._rule(now)
        except Exception:
            logger.exception("the sizing of pool %r raised; a worker is started all the same", workers.runner.name)
            return True
        return workers.count < clamp(want, now)

    def _start_ticking(self) -> None:
        workers, self._is_ticking = self._workers, True
        self._sampled_at = time.monotonic()
        self._ended = workers.counts.ended()
        self._came_in = self._ended + len(workers.runner.backlog)
        self._stalled_for = 0.0
        if self._reaper is not None:
            self._reap_at = self._sampled_at + self._reaper.period
            self._fewest_idle = workers.counts.idle()
        self._tick_again()

    def _tick_again(self) -> None:
        timer.after(TICK, partial(_call_if_alive, weakref.WeakMethod(self._tick)), own_thread=self._is_users)

    def _tick(self) -> None:
        runner = self._workers.runner
        try:
            self._grow()
            self._reap()
        except Exception:
            logger.exception("the sizing of pool %r raised; it is asked again", runner.name)
        finally:
            with runner.lock:
                self._is_ticking = not self._may_stop()
                if self._is_ticking:
                    self._tick_again()

    def _grow(self) -> None:
        """Start the workers that the rule wants; ask it without the lock, since it may be a user's."""
        workers, runner = self._workers, self._workers.runner
        with runner.lock:
            self._sample()
            now = self._snapshot()
        want = now.workers + 1 if starved(now) else self._rule(now)
        with runner.lock:
            missing = 0 if runner.is_closed or runner.is_paused else clamp(want, now) - workers.count
            for _ in range(missing):
                workers.start_one()
            if starved(now):
                self._stalled_for = 0.0

    def _may_stop(self) -> bool:
        workers, runner = self._workers, self._workers.runner
        has_reaped = self._reaper is None or workers.count <= workers.min_workers
        return runner.is_closed or (runner.is_idle() and has_reaped)

    def _sample(self) -> None:
        """Derive the rates from counts: arrivals, and run time = busy workers / throughput."""
        workers, now = self._workers, time.monotonic()
        seconds, self._sampled_at = max(1e-6, now - self._sampled_at), now
        backlog = workers.runner.backlog
        ended, busy = workers.counts.ended(), workers.count - workers.counts.idle()
        came_in = ended + backlog.cancelled + len(backlog) + busy
        arrivals, self._came_in = max(0, came_in - self._came_in), came_in
        endings, self._ended = ended - self._ended, ended
        self._arrival_rate += SMOOTH * (arrivals / seconds - self._arrival_rate)
        if endings > 0:
            run_time = busy * seconds / endings
            self._run_time = run_time if not self._run_time else self._run_time + SMOOTH * (run_time - self._run_time)
        self._stalled_for = 0.0 if endings > 0 or not len(backlog) else self._stalled_for + seconds

    def _reap(self) -> None:
        """Dismiss those who were idle throughout the reaper's period."""
        workers = self._workers
        if self._reaper is None:
            return
        self._fewest_idle = min(self._fewest_idle, workers.counts.idle())
        if time.monotonic() < self._reap_at:
            return
        workers.dismiss(surplus(self._fewest_idle, self._snapshot()))
        self._reap_at = time.monotonic() + self._reaper.period
        self._fewest_idle = workers.counts.idle()


def _call_if_alive(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Call a method of an object that the timer is not to keep alive."""
    call = method()
    if call is not None:
        call()

"""Carries out what the sizing rules say: samples the crew on a tick, starts workers, sends surplus ones home.

Only pools whose rule needs it have one: an eager pool with an idle time-out has no tick. The tick stops while the
pool is at rest and starts again with the next task that finds nobody to run it.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from millpond.local._sizing import Reaper, Sizing, Snapshot, clamp, starved, surplus
from millpond.local._timer import timer

if TYPE_CHECKING:
    from millpond.local.threads._runner import Crew

TICK = 0.05
SMOOTH = 0.3
"""Weight of the newest sample in the smoothed rates."""


class Scaling:
    """The sizing rule of a crew at work."""

    def __init__(self, crew: Crew, rule: Sizing, reaper: Reaper | None) -> None:
        self._crew = weakref.ref(crew)
        self._rule = rule
        self._reaper = reaper
        self._is_ticking = False
        self._sampled_at = 0.0
        self._came_in = self._ended = 0
        self._arrival_rate = self._run_time = self._stalled_for = 0.0
        self._fewest_idle = 0
        self._reap_at = 0.0

    def snapshot(self, crew: Crew) -> Snapshot:
        """Return what the rule may look at."""
        return Snapshot(
            workers=crew.count,
            idle=crew.idle(),
            queued=crew.waiting(),
            min_workers=crew.floor,
            max_workers=crew.size + crew.extra,
            arrival_rate=self._arrival_rate,
            run_time=self._run_time,
            stalled_for=self._stalled_for,
        )

    def wants_more(self) -> bool:
        """Ask the rule, for a task that found nobody resting."""
        crew = self._crew()
        if crew is None:
            return False
        self._start_ticking(crew)
        now = self.snapshot(crew)
        return crew.count < clamp(self._rule(now), now)

    def _start_ticking(self, crew: Crew) -> None:
        if self._is_ticking:
            return
        self._is_ticking = True
        self._sampled_at = time.monotonic()
        self._ended = crew.ended()
        self._came_in = self._ended + crew.waiting()
        self._stalled_for = 0.0
        if self._reaper is not None:
            self._reap_at = self._sampled_at + self._reaper.period
            self._fewest_idle = crew.idle()
        timer.after(TICK, self._tick)

    def _tick(self) -> None:
        crew = self._crew()
        if crew is None:
            return
        with crew.lock:
            self._sample(crew)
            now = self.snapshot(crew)
            want = now.workers + 1 if starved(now) else self._rule(now)
            missing = 0 if crew.is_closed or crew.is_paused else clamp(want, now) - now.workers
            for _ in range(missing):
                crew.hire()
            if starved(now):
                self._stalled_for = 0.0
        self._reap(crew)
        with crew.lock:
            self._is_ticking = not (
                crew.is_closed or (crew.is_idle() and crew.count <= crew.floor) or self._may_rest(crew)
            )
            if self._is_ticking:
                timer.after(TICK, self._tick)

    def _may_rest(self, crew: Crew) -> bool:
        return self._reaper is None and crew.is_idle()

    def _sample(self, crew: Crew) -> None:
        """Derive the rates from counts: arrivals, and run time = busy workers / throughput."""
        now = time.monotonic()
        seconds, self._sampled_at = max(1e-6, now - self._sampled_at), now
        ended = crew.ended()
        came_in = ended + crew.cancelled + crew.waiting() + crew.count - crew.idle()
        arrivals, self._came_in = max(0, came_in - self._came_in), came_in
        endings, self._ended = ended - self._ended, ended
        self._arrival_rate += SMOOTH * (arrivals / seconds - self._arrival_rate)
        if endings:
            run_time = (crew.count - crew.idle()) * seconds / endings
            self._run_time = run_time if not self._run_time else self._run_time + SMOOTH * (run_time - self._run_time)
        self._stalled_for = 0.0 if endings or not crew.waiting() else self._stalled_for + seconds

    def _reap(self, crew: Crew) -> None:
        """Send home who was idle throughout the reaper's period."""
        if self._reaper is None:
            return
        self._fewest_idle = min(self._fewest_idle, crew.idle())
        if time.monotonic() < self._reap_at:
            return
        crew.send_home(surplus(self._fewest_idle, self.snapshot(crew)))
        self._reap_at = time.monotonic() + self._reaper.period
        self._fewest_idle = crew.idle()

"""How quick jobs are on a worker, and with it how many are taken at once."""

from __future__ import annotations

TINY = 0.0001
"""Jobs that take less, on average, share a task as long as none of them waits, and are taken ahead."""
AHEAD = 4
"""How many times `concurrency` of quick ones a worker holds."""
QUICK = 0.001
"""Jobs that take less, on average, are taken many at a time."""


class Pace:
    """The seconds that a job takes, on a moving average."""

    def __init__(self) -> None:
        self._average = 20 * QUICK  # not known yet: one at a time

    def note(self, seconds: float) -> None:
        """Note that a job took that long."""
        self._average += 0.2 * (seconds - self._average)

    @property
    def is_tiny(self) -> bool:
        """Whether a task for each job would cost more than the job."""
        return self._average < TINY

    def held(self, concurrency: int) -> int:
        """Return how many keys a worker may hold: as many as it runs at once, or more when they are quick.

        What is taken beyond that waits, so that the next lot is on its way while this one is run.
        """
        return AHEAD * concurrency if self.is_tiny else concurrency

    def per_key(self) -> int:
        """Return how many jobs of a key to take at once: many when they are quick, so that a take is worth it."""
        return 16 if self._average < QUICK else 4 if self._average < 10 * QUICK else 1

"""When a schedule is due, and which of the times that were missed still count. Pure: the time is given to it."""

from __future__ import annotations

import datetime
import itertools
import math
import zoneinfo
from collections.abc import Iterator
from typing import Literal, Protocol, get_args

from cronsim import CronSim, CronSimError

from millpond.keyed.rules.checks import check_seconds

Missed = Literal["once", "all", "skip"]
"""What becomes of times at which no worker was there."""
MISSED = get_args(Missed)

DAY = 86_400.0
LATE = 60.0
"""Seconds by which a time may be late and is not missed: a worker died, and another went on with its schedules."""
MOST = 1000
"""Times that are made up for at once."""


class Times(Protocol):
    """The times at which something is due, as seconds since the epoch."""

    tz: datetime.tzinfo

    def after(self, moment: float) -> float:
        """Return the first one after a moment; infinity when there is none."""

    def back(self, moment: float) -> Iterator[float]:
        """Return those up to a moment, the latest first."""


class Every:
    """Every so many seconds since the epoch: so all workers agree, whenever they were started."""

    tz: datetime.tzinfo = datetime.UTC

    def __init__(self, seconds: float) -> None:
        self._seconds = check_seconds(seconds, "the interval of every()", 0.01, 366 * DAY)

    def __repr__(self) -> str:
        return f"every {self._seconds:g} s"

    def after(self, moment: float) -> float:
        """Return the first time after a moment."""
        return next(due for due in self._around(moment, 1) if due > moment)

    def back(self, moment: float) -> Iterator[float]:
        """Return the times up to a moment, the latest first."""
        return (due for due in self._around(moment, -1) if due <= moment)

    def _around(self, moment: float, step: int) -> Iterator[float]:
        """Return the times from near a moment on: 1.9 / 0.01 is 190, but 190 * 0.01 is a bit more than 1.9."""
        count = math.floor(moment / self._seconds)
        return (number * self._seconds for number in itertools.count(count - step, step))


class Cron:
    """By a cron expression in a time zone, as Debian's cron would, on the days when clocks change too."""

    def __init__(self, expression: str, tz: str | datetime.tzinfo = "UTC") -> None:
        self.tz = tz if isinstance(tz, datetime.tzinfo) else _zone(tz)
        self._expression = expression
        try:
            CronSim(expression, datetime.datetime(2000, 1, 1, tzinfo=self.tz))
        except (CronSimError, AttributeError, TypeError) as error:
            raise ValueError(
                f"cron() takes 5 fields, minute hour day month weekday, such as '0 3 * * *', or 6 with seconds first, "
                f"not {expression!r}: {error}"
            ) from None

    def __repr__(self) -> str:
        return f"cron {' '.join(self._expression.split())!r} in {self.tz}"

    def after(self, moment: float) -> float:
        """Return the first time after a moment."""
        times = CronSim(self._expression, datetime.datetime.fromtimestamp(moment, self.tz))
        return float(next((due.timestamp() for due in times if due.timestamp() > moment), math.inf))

    def back(self, moment: float) -> Iterator[float]:
        """Return the times up to a moment, the latest first."""
        start = datetime.datetime.fromtimestamp(math.floor(moment) + 1, self.tz)  # it gives those before its start
        times = CronSim(self._expression, start, reverse=True)
        return (due.timestamp() for due in times if due.timestamp() <= moment)


def due_between(times: Times, since: float, now: float, missed: Missed) -> list[float]:
    """Return the times after `since` and up to `now` that are to be heeded now, the earliest first.

    `once`: the latest only. `all`: those of the last day. `skip`: the latest, unless it is long past.
    """
    if missed == "all":
        most, since = MOST, max(since, now - DAY)
    else:
        most, since = 1, since if missed == "once" else max(since, now - LATE)
    found = itertools.takewhile(lambda due: due > since, itertools.islice(times.back(now), most))
    return list(found)[::-1]


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"tz={name!r} is no time zone that this machine knows, such as 'Europe/Berlin' ({error}); where the system "
            "has no list of them, install tzdata"
        ) from None

"""One clock for all processes of the machine that share a database: whole microseconds, never going back.

It is driven by CLOCK_BOOTTIME, which nobody can set and which runs on while the machine sleeps, plus an offset that is
kept in the database, once per boot. So `now()` is near the wall clock at the moment the offset was made, and a wall
clock that is stepped afterwards changes nothing. After a reboot the clock goes on from the wall clock, or from the last
time on record should the wall clock be behind that.

Where there is no CLOCK_BOOTTIME (macOS) the monotonic clock does, which stands still in sleep; and where there is no
boot id, a time before the last on record gives the reboot away.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from millpond._sqlite._process import boot_id
from millpond._sqlite._trouble import damaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond._sqlite._database import Database, Transaction

RECORD_EVERY = 1_000_000
"""Microseconds after which `record()` writes again: so much of the past may be repeated after a reboot with a wall
clock that is behind."""


class Setting(NamedTuple):
    """What the database remembers of the clock."""

    boot: str
    offset: int
    last: int


def choose(kept: Setting | None, *, boot: str, ticks: int, wall: int) -> Setting:
    """Choose the offset: the one kept if it is of this boot, else one that begins at the later of wall and last."""
    if kept is None:
        return Setting(boot, wall - ticks, wall)
    if kept.boot == boot and ticks + kept.offset >= kept.last:
        return kept
    now = max(wall, kept.last + 1)
    return Setting(boot, now - ticks, now)


def boot_ticks() -> int:
    """Return the microseconds since boot, sleep included where the system can tell."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    return time.monotonic_ns() // 1000


def wall_ticks() -> int:
    """Return the microseconds since the epoch by the wall clock."""
    return time.time_ns() // 1000


class EngineClock:
    """The clock of a database. All processes of a boot that make one read the same time."""

    def __init__(
        self,
        database: Database,
        *,
        ticks: Callable[[], int] = boot_ticks,
        wall: Callable[[], int] = wall_ticks,
        boot: str | None = None,
    ) -> None:
        self._ticks = ticks
        with database.writing() as transaction:
            row = transaction.execute("SELECT value FROM meta WHERE key = 'clock'").fetchone()
            kept = None if row is None else _read(row[0], database.path)
            setting = choose(kept, boot=boot_id() if boot is None else boot, ticks=ticks(), wall=wall())
            self._setting = setting
            if setting != kept:
                self._write(transaction)
        self._offset = setting.offset

    def now(self) -> int:
        """Return the time in microseconds."""
        return self._ticks() + self._offset

    def record(self, transaction: Transaction) -> None:
        """Note the time in passing, in a transaction that writes anyway; does so once a second at most."""
        now = self.now()
        if now - self._setting.last >= RECORD_EVERY:
            self._setting = self._setting._replace(last=now)
            self._write(transaction)

    def _write(self, transaction: Transaction) -> None:
        transaction.execute("INSERT OR REPLACE INTO meta VALUES ('clock', ?)", (json.dumps(self._setting),))


def _read(text: object, path: str) -> Setting:
    """Read a record of the time; raise `EngineError` if there is none in it."""
    try:
        boot, *times = json.loads(text)  # type: ignore[arg-type]  # the file may have anything
        if type(boot) is str and [type(one) for one in times] == [int] * 2:
            return Setting(boot, *times)
    except (ValueError, TypeError):
        pass
    raise damaged(path, f"its clock is {text!r}")

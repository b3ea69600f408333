# Generated from admin.py by tools/twins.py: edit that file, then run `make format`.
"""Operators' verbs of a keyed pool."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeAlias

from millpond._person import user_and_host
from millpond.errors import NotFound
from millpond.keyed import views
from millpond.keyed.client import cursor
from millpond.keyed.client._sync.search import Search, Wanted
from millpond.keyed.client.bridge import Bridge
from millpond.keyed.rules import commands as do
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.checks import check_text
from millpond.keyed.rules.page import Page
from millpond.keyed.rules.records import KEPT_ACTS, SECOND, DeadLetter
from millpond.keyed.rules.settings import LIFTED, checked_settings, shown_setting
from millpond.keyed.views import ActView, DeadLetterView, JobView, PauseView

CHUNK = 500
LONGEST_REASON = 500
LONGEST_ID = 200
SEARCHES = 3
Letters: TypeAlias = Iterable[DeadLetterView | int | str]
"""Dead letters: as they are, by number, or by the id of their job."""


class KeyedAdmin:
    """What an operator may do to a pool. Nothing here is needed by programs that use it."""

    def __init__(self, port: Bridge) -> None:
        self._bridge = port

    def pause(self, key: str | None = None, *, reason: str = "", by: str = "") -> None:
        """Start nothing more of this key; without a key, nothing in the whole pool. Jobs that run go on.

        Residents of the key are stopped, and begin again when it is resumed. Say why, for those who will ask: see
        `paused`. `by`: who wants it; without it, the user and the host of this process.
        """
        slot, plain = self._slot_and_key(key)
        line = self._log("pause", plain, reason, by)
        command = do.Pause(slot, plain, line.by, line.reason)
        self._bridge.do(command)

    def _slot_and_key(self, key: str | None) -> tuple[int, str]:
        """Return the slot of a key and the key; of the whole pool, 0 and nothing."""
        self._bridge.open()
        return (
            (0, "")
            if key is None
            else (self._bridge.connection.address(key)[0], self._bridge.connection.checked_key(key))
        )

    def _log(self, what: str, about: str, reason: str, by: str) -> do.Log:
        """Keep a line of what is about to be done: nothing is done without one."""
        who = check_text(by, "by=", LONGEST_REASON, empty=True) or user_and_host()
        line = do.Log(who, what, about, check_text(reason, "a reason", LONGEST_REASON, empty=True))
        self._bridge.do(line)
        return line

    def note(self, what: str, about: str = "", *, reason: str = "", by: str = "") -> None:
        """Keep a line in the history of something that is done to the pool by other means."""
        self._bridge.open()
        plain = check_text(what, "what was done", LONGEST_REASON)
        self._log(plain, check_text(about, "about=", LONGEST_REASON, empty=True), reason, by)

    def history(self, limit: int = 100) -> list[ActView]:
        """Return what people did to the pool by these verbs, the latest last. The last 1000 are kept."""
        most = cursor.check_limit(limit)
        return [views.act(each) for each in self._bridge.look(about.Acts(KEPT_ACTS if most is None else most))]

    def resume(self, key: str | None = None, *, reason: str = "", by: str = "") -> None:
        """Undo `pause`; without a key also `shutdown`."""
        command = do.Resume(*self._slot_and_key(key))
        self._log("resume", command.key, reason, by)
        self._bridge.do(command)

    def paused(self, *, after: str = "", limit: int | None = None) -> Page[PauseView]:
        """Return the keys that are paused, who did that, since when, and why; the whole pool first, if it is."""
        start = cursor.read("paused", after) if after else ""
        page = self._bridge.look(about.Pauses(start, cursor.check_limit(limit)))
        return Page((views.pause(each) for each in page), cursor.written("paused", page.next))

    def purge(self, key: str, *, reason: str = "", by: str = "") -> int:
        """Delete the jobs of a key that have not begun, delayed ones included; return how many."""
        self._bridge.open()
        command = do.Purge(*self._bridge.connection.address(key))
        self._log("purge", self._bridge.connection.checked_key(key), reason, by)
        total = part = int(self._bridge.do(command))
        while part == command.most:
            part = int(self._bridge.do(command))
            total += part
        return total

    def retry(self, key: str, *more: str, reason: str = "", by: str = "") -> int:
        """Try the first job of each key again now, if it failed and waits for its next try; return how many did."""
        self._bridge.open()
        connection = self._bridge.connection
        commands = [do.Retry(*connection.address(each)) for each in (key, *more)]
        self._log("retry", _several([connection.checked_key(each) for each in (key, *more)]), reason, by)
        count = 0
        for command in commands:
            count += self._bridge.do(command) == "ready"
        return count

    def configure(
        self,
        *,
        lease: float | None = None,
        drain: float | None = None,
        payload_limit: int | None = None,
        max_jobs: int | None = None,
        max_per_key: int | None = None,
        max_dead: int | None = None,
        max_losses: int | None = None,
        reason: str = "",
        by: str = "",
    ) -> None:
        """Change settings of the pool; what is left out stays. 0 for `max_jobs`, `max_per_key`, `max_dead`: no limit.

        Limits hold at once, `payload_limit` in programs that open the pool from now on. `lease` and `drain` can only be
        changed while the pool has no workers: raise ValueError else. The number of slots cannot be changed.
        """
        wanted: dict[str, Any] = checked_settings(
            LIFTED,
            lease=lease,
            drain=drain,
            payload_limit=payload_limit,
            max_jobs=max_jobs,
            max_per_key=max_per_key,
            max_dead=max_dead,
            max_losses=max_losses,
        )
        self._bridge.open()
        connection = self._bridge.connection
        command = do.Configure(tuple(wanted.items()))
        if self._bridge.do(command) == "busy":
            raise ValueError(
                f"pool {connection.name!r} has workers, which go by the lease and drain that they joined with: "
                "end them first"
            )
        changes = [f"{name}={shown_setting(name, value)}" for name, value in wanted.items()]
        self._log("configure", ", ".join(changes), reason, by)
        connection.want(wanted)
        self._bridge.ask(connection.agree)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the pool, as `configure` and `KeyedPool` take them; None stands for no limit."""
        self._bridge.open()
        found = self._bridge.ask(self._bridge.connection.agree)._asdict()
        seconds = {name: found[name] / SECOND for name in ("lease", "drain")}
        limits = {name: found[name] or None for name in LIFTED}
        rest = {name: found[name] for name in ("payload_limit", "max_losses", "slots", "placement")}
        return {**seconds, **limits, **rest}

    def shutdown(self, *, reason: str = "", by: str = "") -> None:
        """End the whole pool: dispatches are refused, all workers drain and end. Jobs that wait are kept."""
        self._bridge.open()
        self._log("shutdown", "", reason, by)
        self._bridge.do(do.Shut())

    def dead_letters(
        self, key: str | None = None, *, after: str = "", limit: int | None = None, newest_first: bool = False
    ) -> Page[DeadLetterView]:
        """Return the jobs that will not be run any more: all of them, those of a key, or `limit`.

        The oldest come first, unless you say `newest_first`; say the same for all pages.
        """
        start = cursor.read("dead letters", after) if after else ""
        most = cursor.check_limit(limit)
        found: Page[DeadLetterView] = Page()
        while True:
            wanted = CHUNK if most is None else min(CHUNK, most - len(found))
            page = self._letters(key, start, wanted, newest_first=newest_first)
            found += map(views.dead_letter, page)
            start = page.next
            if not start or len(found) == most:
                found.next = cursor.written("dead letters", start)
                return found

    def _letters(
        self, key: str | None, start: str, limit: int = CHUNK, *, newest_first: bool = False
    ) -> Page[DeadLetter]:
        """Return some dead letters: the store picks those of the key."""
        self._bridge.open()
        plain = None if key is None else self._bridge.connection.checked_key(key)
        return self._bridge.look(about.DeadLetters(start, limit, newest_first, plain))

    def _letter_numbers(self, key: str | None, ids: Container[str] | None = None) -> dict[int, str]:
        """Return numbers and ids of dead letters: all, those of a key, or those of jobs with these ids."""
        found: dict[int, str] = {}
        start = ""
        while True:
            page = self._letters(key, start)
            for each in page:
                job = views.dead_letter(each).id
                if ids is None or job in ids:
                    found[each.number] = job
            start = page.next
            if not start:
                return found

    def cancel(self, jobs: Iterable[JobView | str], *, key: str | None = None, reason: str = "", by: str = "") -> int:
        """Cancel jobs, as they are or by id; return how many had not ended. One that runs is asked to stop.

        Give the `key` of ids, if they have the same: without it every job of the pool is looked at to find them.
        """
        if isinstance(jobs, str):
            raise TypeError(f"give a list of jobs or ids, not the text {jobs!r}")
        self._bridge.open()
        connection = self._bridge.connection
        found: set[tuple[str, str]] = set()
        unknown: set[str] = set()
        for each in jobs:
            if isinstance(each, JobView):
                found.add((each.id, each.key))
            elif not isinstance(each, str):
                raise TypeError(f"a job is given as it is or by its id, not {each!r}")
            elif key is not None:
                found.add((check_text(each, "an id", LONGEST_ID), connection.checked_key(key)))
            else:
                unknown.add(check_text(each, "an id", LONGEST_ID))
        for _ in range(SEARCHES if unknown else 0):  # while jobs before it end, one may be overlooked
            search = Search(self._bridge, Wanted(ids=frozenset(unknown)), sys.maxsize)
            search.run(None)
            found.update((job.id, job.key) for job in search.found)
            unknown -= {job.id for job in search.found}
            if not unknown:
                break
        if found:
            self._log("cancel", _several([job for job, _ in sorted(found)]), reason, by)
        count = 0
        for job, its_key in found:
            command = do.Cancel(*connection.address(its_key), job)
            count += self._bridge.do(command) != "gone"
        return count

    def replay(self, letters: Letters | None = None, *, key: str | None = None, reason: str = "", by: str = "") -> int:
        """Put dead letters back into the mailboxes of their keys: these, those of a key, or all; return how many."""
        numbers = self._chosen(letters, key)
        if numbers:
            self._log("replay", f"dead letters {_several([str(one) for one in numbers])}", reason, by)
        total = 0
        for start in range(0, len(numbers), CHUNK):
            part = do.Replay(tuple(numbers[start : start + CHUNK]))
            total += int(self._bridge.do(part))
        return total

    def discard(self, letters: Letters | None = None, *, key: str | None = None, reason: str = "", by: str = "") -> int:
        """Delete dead letters: these, those of a key, or all; return how many."""
        numbers = self._chosen(letters, key)
        if numbers:
            self._log("discard", f"dead letters {_several([str(one) for one in numbers])}", reason, by)
        total = 0
        for start in range(0, len(numbers), CHUNK):
            part = do.Drop(tuple(numbers[start : start + CHUNK]))
            total += int(self._bridge.do(part))
        return total

    def _chosen(self, letters: Letters | None, key: str | None) -> list[int]:
        """Return the numbers of dead letters that were given as they are, by number, or by the id of their job."""
        if letters is None:
            return list(self._letter_numbers(key))
        if key is not None:
            raise ValueError("give the letters or a key, not both")
        if isinstance(letters, str):
            raise TypeError(f"give a list of letters, numbers or ids, not the text {letters!r}")
        chosen = list(letters)
        for each in chosen:
            if isinstance(each, bool) or not isinstance(each, int | str | DeadLetterView):
                raise TypeError(
                    f"a dead letter is given as it is, by its number, or by the id of its job, not {each!r}"
                )
        ids = {each for each in chosen if isinstance(each, str)}
        named = self._letter_numbers(None, ids) if ids else {}
        unknown = ids - set(named.values())
        if unknown:
            raise NotFound(f"no dead letter has the id {min(unknown)!r}")
        numbers = {each if isinstance(each, int) else each.number for each in chosen if not isinstance(each, str)}
        return sorted(numbers.union(named))

    def drop(self, *, force: bool = False) -> None:
        """Delete the pool, with everything in it. Refused while it has workers or jobs, unless `force`."""
        if not force:
            counts = self._bridge.look(about.Counts())
            beat = self._bridge.look(about.Members())
            if counts.jobs or counts.delayed or counts.residents or counts.dead or beat.members:
                raise ValueError(
                    f"pool {self._bridge.connection.name!r} has {counts.jobs} jobs, {counts.delayed} delayed ones, "
                    f"{counts.residents} residents, {counts.dead} dead letters and {len(beat.members)} workers: "
                    "drop(force=True) forgets them"
                )
        self._bridge.ask(lambda store: store.drop())


def _several(names: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more

"""Runs one resident until it ends, is stopped, moves or fails, and reports which."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from millpond._clock import elapsed
from millpond._events import Observer, emit, log
from millpond._saying import shown
from millpond.errors import LeaseLost
from millpond.keyed.jobs import Job, Resident
from millpond.keyed.rules.envelope import came, opened
from millpond.keyed.rules.records import SECOND, Report, Signal
from millpond.keyed.shared.arguments import DoesNotFit
from millpond.keyed.shared.definition import Definition
from millpond.keyed.shared.notices import tell
from millpond.keyed.shared.outcome import bare
from millpond.keyed.worker.handlers import Caller
from millpond.keyed.worker.job_runner import words_of
from millpond.keyed.worker.membership import Membership
from millpond.keyed.worker.running_take import RunningTake

LONG_LIFE = 60.0
"""A resident that ran for so many seconds has not failed in a row."""


class ResidentRunner:
    """Runs residents, in the event loop."""

    def __init__(
        self,
        pool: str,
        definitions: Mapping[str, Definition],
        caller: Caller,
        hand_in: Callable[[Report], None],
        observer: Observer | None,
    ) -> None:
        self.pool = pool
        self.is_closing = False
        """Whether no more residents are begun."""
        self._definitions = definitions
        self._caller = caller
        self._hand_in = hand_in
        self._observer = observer

    async def run(self, membership: Membership, run: RunningTake) -> None:
        """Run a resident and report, come what may."""
        take = run.take
        raw = take.jobs[0]
        envelope = opened(raw)
        name, _, key = take.mailbox[2:].partition(":")
        report, has_started = run.report(), False
        began = elapsed()
        definition = self._definitions.get(name)
        try:
            if definition is None or definition.function is None or not definition.is_resident:
                report = run.report("park", reason=name.encode())
                return
            if run.is_moved or self.is_closing or not membership.may_begin() or run.lost.is_set:
                run.done += run.lost.reason == "stopped"
                return
            args, kwargs = definition.shape.decode(envelope.payload)
            job = Job(key, envelope.id, name, take.failures + 1, take.token, came(raw) / SECOND, self.pool, run.lost)
            messages = [*take.notes, *run.early]
            run.resident = resident = Resident(job, messages, lambda number: self._handled(run, number))
            emit(self._observer, "resident_started", self.pool, key=key, resident=name, token=take.token)
            has_started = True
            await self._caller.stay(definition, resident, args, kwargs)
            run.done += run.lost.reason in ("", "stopped")
        except DoesNotFit as error:
            report = run.report("to_dead_letters", reason=f"its arguments do not fit: {error}".encode(errors="replace"))
        except BaseException as error:
            if run.lost.is_set:
                run.done += run.lost.reason == "stopped"
                if not isinstance(error, (asyncio.CancelledError, LeaseLost)):
                    log(logging.INFO, f"resident {name!r} of key {key!r} failed while it was ending", error)
            else:
                failures = 1 if elapsed() - began > LONG_LIFE else take.failures + 1
                pause = definition.policy.pause(failures) if definition is not None else 1.0
                delay = round(pause * SECOND)
                report = run.report("retry", delay=delay, failures=failures, reason=words_of(error))
                about = {"key": key, "resident": name, "error": shown(error)}
                tell(self._observer, "resident_failed", self.pool, cause=bare(error), delay=pause, **about)
        finally:
            if has_started:
                emit(self._observer, "resident_ended", self.pool, key=key, resident=name, reason=run.lost.reason)
            self._hand_in(run.filled(report))

    def deliver(self, run: RunningTake, signal: Signal) -> None:
        """Give a resident a message, or keep it until the resident begins."""
        if run.resident is not None:
            run.resident.deliver(signal.note, signal.data)
        else:
            run.early.append((signal.note, signal.data))

    def _handled(self, run: RunningTake, number: int) -> None:
        """Report a message as handled, so that the store forgets it; from whatever thread."""
        run.notes = max(run.notes, number)
        self._hand_in(run.report("keep")._replace(notes=run.notes))

"""The SQLite engine of one process: calls go in, batches go through the gate, answers and news come out.

Whoever has a call to make queues it. A thread that may block (`block=True`) tries the gate itself, and if that stands
open it carries out everything that is queued; otherwise the engine's own thread does, which waits in line. So an
uncontended call costs one transaction and no switch of threads, and a contended one shares its transaction with all
others that wait.

The engine's thread sleeps until: its bell is rung (by another process, or by a caller here), a process dies, something
is due, or a second is over while somebody waits (a lost bell costs that second, no more).

Locks: the gate (between processes) and `_use` (replicas and queues of this process). Nobody waits for the gate with
`_use` held, and nobody waits for `_use` for long inside the gate. Watchers are called inside both; they may queue
calls, and must not wait for anything. The parts take neither unless they say so: here is where they are taken.

What is interrupted by Ctrl-C before its commit is rolled back, and the calls in it are queued again; the replica is
read anew. What was committed is told in any case.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from millpond._clock import elapsed
from millpond._events import logger
from millpond._interrupts import shielded
from millpond._sqlite import Database, EngineClock, FileReplaced, Transaction
from millpond._sqlite._url import Place
from millpond.errors import EngineError, EngineUnavailable, PoolClosed
from millpond.resources import _timers
from millpond.resources._engine import AUDIT, DONE, Question, Ticket, Watcher
from millpond.resources._rules.commands import Acquire, Command, Reply, Tick
from millpond.resources.engines.sqlite import _log
from millpond.resources.engines.sqlite._accepted import AcceptedOffers
from millpond.resources.engines.sqlite._batch import Batch
from millpond.resources.engines.sqlite._queue import STUCK, Call, CallQueue
from millpond.resources.engines.sqlite._replicas import Replicas
from millpond.resources.engines.sqlite._sessions import Sessions
from millpond.resources.engines.sqlite._wakeups import Wakeups

T = TypeVar("T")
SAFETY = 1.0
"""Seconds after which a process with waiters looks by itself."""
CURIOSITY = 0.05
"""The same when somebody watches everything."""
REST = 0.1
"""Seconds to wait after the file could not be written, before something that is due is tried again."""
CHECKPOINT = 50
"""Batches between two looks at the size of the write-ahead log."""
BRIEF = 0.005
"""Seconds for which the gate is kept while another thread of this process has the replicas."""
NOTICE = 1.0
"""Seconds after which the log says who is in the way of a call."""
FEW = 4
"""So many pools are followed each time; with more, SQLite is first asked whether anything has changed at all."""


class SqliteEngine:
    """All pools of one file, for this process."""

    is_shared = True
    audit_every = AUDIT

    def __init__(
        self, url: str, place: Place, give_back: Callable[[SqliteEngine], object] = lambda engine: engine.shut_down()
    ) -> None:
        self.url = url
        self.path = place.path
        self.synchronous = place.synchronous
        self.is_closed = False
        self.pid = os.getpid()
        self.is_void = False
        """The file was replaced, or this was closed: open another."""
        self._give_back = give_back
        self._use = threading.RLock()
        self._is_running = False
        self._is_at_gate = False
        self._batches = 0
        self._to_ring: set[int] = set()
        self._rest = 0.0
        self._wakes_at = 0  # when our thread will look by itself
        self._hurried: set[asyncio.AbstractEventLoop] = set()
        self._stuck_check: _timers.Timer | None = None
        self._is_stuck = False
        self._database = Database(place.path, tables=[_log.TABLES], synchronous=place.synchronous, mode=place.mode)
        self._gate = self._database.gate
        try:
            self._clock = EngineClock(self._database)
            self._sessions = Sessions(self._database)
        except BaseException:
            self._database.close()
            raise
        self._replicas = Replicas(self._database, self._sessions.notice)
        self._queue = CallQueue(self._use, self._obstacle)
        self._accepted = AcceptedOffers(self._sessions.own, self._clock)
        self._wakeups = Wakeups(self._sessions.own)
        self.holder = self._sessions.holder()
        self._meet()
        self._sessions.own.bell.ring(self._sessions.own.others())
        self._thread = threading.Thread(target=self._work, name="millpond-sqlite", daemon=True)
        self._thread.start()

    # --- the verbs ---------------------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The number of this process's session."""
        return self._sessions.session

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Queue a command; with `block`, carry out all that is queued if the gate stands open."""
        self._check_open()
        call = Call(self._queue, pool, command, done)
        if isinstance(command, Acquire) and command.chosen:
            shielded(self._look_for_deaths)
        self._queue.waiting.append(call)
        if self._is_running and self._owns_use():
            pass  # a watcher, called from within a batch: it goes with it
        elif block:
            shielded(self._hurry)
        else:
            self._hurry_soon()
        return call

    def ask(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Answer a question about the pool as the file has it now."""
        self._check_open()
        call = Call(self._queue, pool, question, done)
        if block or self._is_at_gate:  # our thread may stand there for long, and a question needs no gate
            shielded(lambda: self._answer(call))
        else:
            self._queue.questions.append(call)
            self._wakeups.wake()
        return DONE

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Notify of every entry of the pool from now on; with `own`, only what concerns this session need be prompt."""
        self._check_open()
        with self._use:
            self._replicas.glance([pool])
            here = self._replicas.pools[pool]
            here.watch(watcher, own=own)
        if not own:
            self._wakeups.wake()

        def stop() -> None:
            with self._use:
                here.unwatch(watcher, own=own)

        return stop

    def accept(self, pool: str, request: str, token: int, until: int) -> bool:
        """Take an offered lock by locking its byte."""
        return self._accepted.accept(pool, request, token, until)

    def pools(self) -> list[str]:
        """Return the names of all pools of the file."""
        self._check_open()
        with self._use, self._database.reading() as transaction:
            return _log.names(transaction)

    def drop(self, pool: str) -> None:
        """Delete a pool from the file."""
        self._check_open()
        since = elapsed()
        while not shielded(lambda: self._try_drop(pool)):
            if elapsed() - since > STUCK:
                raise EngineUnavailable(
                    f"pool {pool!r} on {self.url} cannot be deleted now: {self._gate.obstacle(elapsed() - since)}"
                )
            time.sleep(0.001)

    def _try_drop(self, pool: str) -> bool:
        if not self._gate.try_enter():
            return False
        try:
            with self._use, self._database.writing() as transaction:
                known = _log.find(transaction, pool)
                if known is not None:
                    _log.delete(transaction, known)
        finally:
            self._gate.leave()
        return True

    def _obstacle(self) -> str:
        """Return who is inside the gate while a call of this process waits; "" while none does."""
        waited = self._queue.waited()
        return self._gate.obstacle(waited) if waited and not self.is_closed else ""

    def close(self) -> None:
        """Give up one use; the last one ends the session."""
        self._give_back(self)

    def is_replaced(self) -> bool:
        """Return whether the path names another file by now, or none."""
        return self._database.is_replaced()

    def shut_down(self) -> None:
        """End the session: what this process holds is released."""
        if self.is_closed or os.getpid() != self.pid:
            return
        was_void, self.is_closed, self.is_void = self.is_void, True, True
        self._wakeups.wake()
        self._thread.join(5.0)
        if not was_void:
            self._sessions.own.end(self._say_goodbye)
        self._fail_all(PoolClosed(f"{self.url} was closed"))
        self._wakeups.close()
        self._sessions.own.close()
        self._database.close()

    # --- batches -----------------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        """Carry out all that is queued now if the gate stands open, else leave it to our thread."""
        if not self._try_batch():
            self._wakeups.wake()
            self._expect_answer()

    def _hurry_soon(self) -> None:
        """Do so at the end of this turn of the event loop, for all that came in it; else leave it to our thread."""
        loop = asyncio._get_running_loop()
        if loop is None or self.synchronous == "FULL":  # a turn of a loop is no place to wait for a disk
            self._wakeups.wake()
            self._expect_answer()
        elif loop not in self._hurried:
            if self._wakeups.loop_that_listens is not loop:
                self._wakeups.listen_on(loop, self._heard_bell)
            self._hurried.add(loop)
            loop.call_soon(self._hurry_now, loop)

    def _heard_bell(self) -> None:
        """Hear, on an event loop, that something was handed to this process."""
        self._sessions.own.bell.drain()
        if not self._use.acquire(blocking=False):
            self._wakeups.wake()
            return
        try:
            self._replicas.glance([pool.name for pool in self._replicas.watched()])
        finally:
            self._use.release()
        self._publish()

    def _hurry_now(self, loop: asyncio.AbstractEventLoop) -> None:
        self._hurried.discard(loop)
        if self._queue.waiting and not self.is_closed:
            shielded(self._hurry)

    def _try_batch(self) -> bool:
        """Carry out all that is queued, if the gate stands open."""
        if not self._replicas.is_alone:
            self._prepare(self._queue.pools())
        if not self._gate.try_enter() or not self._get_use():
            return False
        try:
            self._batch(())
        finally:
            self._use.release()
        return True

    def _get_use(self) -> bool:
        """Take `_use` inside the gate; else leave that: who computes an answer here must not hold up all the others."""
        try:
            if self._use.acquire(timeout=BRIEF):
                return True
        except BaseException:
            self._gate.leave()
            raise
        self._gate.leave()
        return False

    def _enter(self) -> None:
        """Wait for the gate, and have `_use` as well."""
        while True:
            self._gate.enter()
            if self._get_use():
                return
            with self._use:
                pass  # whoever had it is done

    def _prepare(self, names: list[str]) -> None:
        """Follow what others have done before we stand in their way: the less is left to do inside of the gate."""
        with self._use:
            self._replicas.glance(set(names))

    def _batch(self, also: Iterable[str]) -> None:
        """Carry out all that is queued, in one transaction, and make it known; `also` follow these pools.

        The gate is ours when it begins, and stands open again as soon as the transaction is over.
        """
        batch = self._new_batch()
        transaction: Transaction | None = None
        try:
            with self._use:
                self._is_running = True
                try:
                    with self._database.writing() as transaction:
                        batch.carry_out(transaction, also)
                except BaseException as error:
                    if transaction is None or not transaction.committed:
                        if self._undo(batch, error):
                            return
                        raise
                    self._done(batch)
                    raise
                finally:
                    self._is_running = False
                    self._gate.leave()
                self._done(batch)
                self._batches += 1
        finally:
            self._publish()

    def _new_batch(self) -> Batch:
        return Batch(self._replicas, self._queue, self._accepted, self._sessions, self._clock)

    def _done(self, batch: Batch) -> None:
        """Make known what was committed."""
        for name, entries in batch.made.items():
            pool = self._replicas.pools[name]
            pool.wrote(entries)
            due = pool.due()
            if due is not None and due < self._wakes_at:
                self._wakeups.wake()  # our thread means to sleep longer than that
        if self._accepted.offers:
            self._accepted.settle(self._replicas.pools)
        self._sessions.noted |= batch.noted
        self._queue.answers.extend(batch.taken)
        self._to_ring |= batch.concerned()

    def _undo(self, batch: Batch, error: BaseException) -> bool:
        """Forget what was not committed; return whether that is all there is to say.

        The calls of a broken engine fail, those of an interrupted one are queued again. So are those of a batch in
        which one is to blame: carried out one by one, that one fails alone.
        """
        self._replicas.forget()
        self.is_void = self.is_void or isinstance(error, FileReplaced)
        if isinstance(error, EngineError) or (isinstance(error, Exception) and not batch.taken):
            self._queue.fail(batch.taken, error)
            self._rest = REST
            return isinstance(error, EngineError)
        if isinstance(error, Exception) and len(batch.taken) == 1:
            self._queue.fail_one(batch.taken[0], error)
            return True
        if isinstance(error, Exception):
            self._queue.alone = len(batch.taken)
        self._queue.put_back(batch.taken)
        self._wakeups.wake()
        return isinstance(error, Exception)

    def _publish(self) -> None:
        """Publish what was committed, then give the answers. Outside the gate: who is woken takes the CPU or the GIL.

        Interrupted, whoever comes next goes on where this one stopped; what was told or answered twice is heard once.
        """
        try:
            with self._use:
                if self._to_ring:
                    self._sessions.own.bell.ring(self._to_ring)
                    self._to_ring = set()
                for pool in self._replicas.pools.values():
                    pool.tell()
                self._queue.give_answers()
                if self._sessions.met_stranger:
                    self._wakeups.wake()  # our thread must watch over its process from now on
        except BaseException:
            self._wakeups.wake()
            raise

    def _answer(self, call: Call) -> None:
        """Answer a question."""
        try:
            with self._use:
                self._replicas.glance([call.pool])
                pool = self._replicas.pools[call.pool]
                pool.tell()
                if pool.replica is None:
                    raise pool.trouble or EngineError(f"pool {call.pool!r} on {self.url} could not be read: try again")
                call.reply = call.command.answer(pool.replica, self._clock.now())  # type: ignore[union-attr]
        except Exception as error:
            call.reply = error
        call.done(call.reply)

    # --- deaths ------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Learn of all sessions, to watch over their processes."""
        with self._use:
            self._sessions.meet()

    def _look_for_deaths(self) -> None:
        """Look at once whether somebody died, before a request is judged by who has its id."""
        with self._use:
            self._sessions.meet()
            self._sessions.own.find_dead(eager=True)

    def _say_goodbye(self) -> None:
        """End all that is ours, and our session; the gate is ours."""
        with self._use:
            batch = self._new_batch()
            with self._database.writing() as transaction:
                batch.bury_only(transaction, {self._sessions.own.number})
            self._sessions.own.bell.ring(batch.concerned())

    def _begin_again(self) -> None:
        """Take a new session after somebody buried the old one by mistake, and mend a live file that was replaced."""
        with self._use:
            is_well = self._sessions.own.is_well()
        self._wakeups.check_loop()
        if is_well:
            return
        self._wakeups.unlisten()
        try:
            with self._gate, self._use:  # nobody may look at the old file meanwhile
                self._sessions.own.mend()
        finally:
            self._wakeups.listen()

    # --- the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Wait for something to do, and do it, until the engine is closed."""
        look = checked = 0
        while not self._is_over():
            try:
                self._wait(self._patience())
                if self._is_over():
                    return
                now = self._clock.now()
                self._turn(now)
                if self._batches - checked >= CHECKPOINT:  # here, since it waits for the disk
                    checked = self._batches
                    self._tidy(self._database.checkpoint_if_large)
                if now - look >= 1_000_000:
                    look = now
                    self._tidy(self._meet)
                    self._tidy(self._begin_again)
            except EngineError as error:
                logger.warning("the SQLite engine is in trouble", extra={"millpond": {"error": str(error)}})
                self._fail_all(error)
                self._rest = REST
            except Exception:
                if self._is_over():
                    return
                logger.exception("the SQLite engine failed")

    def _tidy(self, what: Callable[[], object]) -> None:
        """Do what nobody waits for: its trouble is nobody's, and it is done again soon."""
        try:
            what()
        except EngineError as error:
            logger.warning("the SQLite engine is in trouble", extra={"millpond": {"error": str(error)}})

    def _is_over(self) -> bool:
        return self.is_closed

    def _wait(self, timeout: float | None) -> None:
        if not self._queue.waiting and not self._queue.questions:
            self._wakeups.wait(timeout)
        self._wakeups.clear()

    def _turn(self, now: int) -> None:
        """Do what is to be done now."""
        with self._use:
            if self._sessions.met_stranger:
                self._sessions.meet()
            dead = self._sessions.own.find_dead(eager=True)
            pools = self._replicas.watched()
            for pool in pools:
                due = pool.due()
                if due is not None and due <= now:
                    self._queue.waiting.append(Call(self._queue, pool.name, Tick(), lambda reply: None))
            has_old_claims = self._accepted.has_old()
        changed = [pool.name for pool in pools] if len(pools) <= FEW or self._replicas.has_changed() else []
        if self._queue.answers:
            self._publish()  # somebody was interrupted
        if self._queue.waiting or dead or has_old_claims:
            self._prepare(changed)
            self._is_at_gate = True
            try:
                self._enter()
            finally:
                self._is_at_gate = False
            try:
                self._batch(changed)
            finally:
                self._use.release()
        elif changed:
            with self._use:
                self._replicas.glance(changed)
            self._publish()
        while self._queue.questions:
            self._answer(self._queue.questions.popleft())

    def _patience(self) -> float | None:
        """Return how long there is nothing to do unless somebody rings."""
        with self._use:
            pools = self._replicas.watched()
            limits = [SAFETY]
            if (
                self._accepted.offers
                or self._wakeups.loop_that_listens is not None
                or any(pool.curious for pool in pools)
            ):
                limits.append(CURIOSITY)
            now = self._clock.now()
            for pool in pools:
                due = pool.due()
                if due is not None:
                    limits.append(max(0.0, (due - now) / 1_000_000))
            deaths = self._sessions.own.patience(eager=True)
            if deaths is not None:
                limits.append(deaths)
            rest, self._rest = self._rest, 0.0
            patience = max(rest, min(limits))
            self._wakes_at = now + int(patience * 1_000_000)
        return patience

    # --- small things ------------------------------------------------------------------------------------------

    def _check_stuck(self) -> None:
        """Give up calls that could not begin for too long, and say who is in the way."""
        self._stuck_check = None
        if self.is_closed:
            return  # to look at the gate would open its file again, for good
        waited = self._queue.waited()
        is_stuck = waited > NOTICE and self._gate.blocker() is not None
        if is_stuck and not self._is_stuck:
            why = self._gate.obstacle(waited)
            logger.warning("%s cannot be written: %s", self.url, why, extra={"millpond": {"url": self.url, "why": why}})
        self._is_stuck = is_stuck
        if waited > STUCK:
            why = self._gate.obstacle(waited)
            self._queue.give_up_old(lambda: EngineUnavailable(f"{self.url} did not answer for {STUCK:g} s: {why}"))
            self._publish()
        self._expect_answer()

    def _expect_answer(self) -> None:
        if self._queue.waiting and self._stuck_check is None and not self.is_closed:
            self._stuck_check = _timers.call_later(NOTICE, self._check_stuck)

    def _owns_use(self) -> bool:
        return self._use._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _fail_all(self, error: Exception) -> None:
        self._queue.fail_all(error)
        self._publish()

    def _check_open(self) -> None:
        if self.is_closed:
            raise PoolClosed(f"{self.url} is closed in this process: open the pool again")

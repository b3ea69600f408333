"""The SQLite engine of one process: calls go in, batches go through the gate, answers and news come out.

Whoever has a call to make queues it. A thread that may block (`block=True`) tries the gate itself, and if that stands
open it carries out everything that is queued; otherwise the engine's own thread does, which waits in line. So an
uncontended call costs one transaction and no switch of threads, and a contended one shares its transaction with all
others that wait.

The engine's thread sleeps until: its bell is rung (by another process, or by a caller here), a process dies, something
is due, or a second is over while somebody waits (a lost bell costs that second, no more).

Locks, in this order: the gate (between processes), `_use` (replicas and queues of this process). Watchers are called
inside both; they may queue calls, and must not wait for anything.

*Claims.* A hand-off to a waiter of another process is an offer until it is claimed, and a claim is a commit. To spare
that, a lock is accepted by locking a byte of the live file that belongs to its token, which everybody can see at once
and which is gone with the process; the claim follows in some later batch, if the lock is still held by then. Whoever
would let an offer lapse looks at that byte first, inside the gate. The holder looks at the clock *after* it has locked
the byte: if the offer was not over then, whoever comes later sees the byte.

What is interrupted by Ctrl-C before its commit is rolled back, and the calls in it are queued again; the replica is
read anew. What was committed is told in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from millpond._clock import elapsed
from millpond._events import logger
from millpond._interrupts import shielded
from millpond._sqlite import (
    Bell,
    Database,
    DeathWatch,
    EngineClock,
    LiveFile,
    Passport,
    Transaction,
    enrol,
    enrolled,
    strike,
)
from millpond.errors import EngineError, EngineUnavailable, PoolClosed
from millpond.resources import _alarm
from millpond.resources import _changes as to
from millpond.resources._commands import Acquire, Adopt, Bury, Claim, Command, Pass, Reply, Tick
from millpond.resources._engine import DONE, Question, Ticket, Watcher
from millpond.resources._records import OFFERED, Holder
from millpond.resources._replica import Replica
from millpond.resources._wire import Entry
from millpond.resources.engines.sqlite import _log
from millpond.resources.engines.sqlite._url import Synchronous

T = TypeVar("T")
STUCK = 30.0
"""Seconds after which a call that could not begin is given up."""
SAFETY = 1.0
"""Seconds after which a process with waiters looks by itself."""
CURIOSITY = 0.05
"""The same when somebody watches everything."""
REST = 0.1
"""Seconds to wait after the file could not be written, before something that is due is tried again."""
CHECKPOINT = 50
"""Batches between two looks at the size of the write-ahead log."""
FEW = 4
"""So many pools are followed each time; with more, SQLite is first asked whether anything has changed at all."""
CLAIM = 0.05
"""Seconds after which an accepted lock that is still held is claimed in the file."""
CLAIMS = 1 << 60
"""The byte of the live file that stands for token 0."""
_QUIET = frozenset({"released", "withdrawn"})
"""Endings that concern nobody but the one who asked for them."""


class _Pool:
    """A pool as this process knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id: int | None = None
        self.base = 0
        self.replica: Replica | None = None
        self.heard: int | None = None  # the version up to which entries are told, or stand in `unheard`
        self.unheard: list[Entry] = []
        self.watchers: list[Watcher] = []
        self.curious = 0  # watchers who want to hear everything soon


class _Call:
    """A command on its way, or a question."""

    __slots__ = ("command", "done", "engine", "pool", "reply", "since")

    def __init__(
        self, engine: SqliteEngine, pool: str, command: Command | Question[Any], done: Callable[[Any], None]
    ) -> None:
        self.engine = engine
        self.pool = pool
        self.command = command
        self.done = done
        self.reply: Any = None
        self.since = elapsed()

    def cancel(self) -> bool:
        """Take it out of the queue, if it still stands there."""
        return self.engine._cancel(self)


class SqliteEngine:
    """All pools of one file, for this process."""

    proves_death = True
    is_shared = True

    def __init__(self, url: str, path: str, synchronous: Synchronous) -> None:
        self.url = url
        self.synchronous = synchronous
        self.is_closed = False
        self.pid = os.getpid()
        self._users = 0
        self._counting = threading.Lock()
        self.is_given_up = False
        self._use = threading.RLock()
        self._pools: dict[str, _Pool] = {}
        self._calls: deque[_Call] = deque()
        self._questions: deque[_Call] = deque()
        self._answers: deque[_Call] = deque()
        self._is_running = False
        self._is_at_gate = False
        self._batches = 0
        self._accepted: dict[int, tuple[str, str, float]] = {}  # token -> pool, request, when
        self._to_ring: set[int] = set()
        self._rest = 0.0
        self._attendant: asyncio.AbstractEventLoop | None = None
        self._nudges = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._is_nudged = False
        self._wakes_at = 0  # when our thread will look by itself
        self._followed: set[str] = set()  # the pools whose replicas are up to date in this batch
        self._hurried: set[asyncio.AbstractEventLoop] = set()
        self._stuck_check: _alarm.Appointment | None = None
        self._is_buried = False
        self._met_stranger = False
        self._version: object = None
        self._database = Database(path, tables=[_log.TABLES], synchronous=synchronous)
        self._gate = self._database.gate
        self._live = LiveFile(self._database.path)
        self._number = enrol(self._database, self._live)
        self._clock = EngineClock(self._database)
        self._bell = Bell(self._database.path, self._number)
        self._deaths = DeathWatch(self._live)
        self._dead: set[int] = set()
        self._sessions: dict[int, Passport] = {}
        self._known: set[str] = set()
        passport = Passport.of_this_process(self._live)
        self.holder = Holder("process", "", passport.host, passport.pid, passport.start)
        self._selector = selectors.DefaultSelector()
        self._listen()
        self._meet()
        self._bell.ring(number for number in self._sessions if number != self._number)
        self._thread = threading.Thread(target=self._work, name="millpond-sqlite", daemon=True)
        self._thread.start()

    # --- the verbs ---------------------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The number of this process's session."""
        return str(self._number)

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Queue a command; with `block`, carry out all that is queued if the gate stands open."""
        self._check_open()
        call = _Call(self, pool, command, done)
        if isinstance(command, Acquire) and command.chosen:
            shielded(self._look_for_deaths)
        self._calls.append(call)
        if self._is_running and self._owns_use():
            pass  # a watcher, called from within a batch: it goes with it
        elif block:
            shielded(self._hurry)
        else:
            self._hurry_soon()
        return call

    def read(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Answer a question about the pool as the file has it now."""
        self._check_open()
        call = _Call(self, pool, question, done)
        if block or self._is_at_gate:  # our thread may stand there for long, and a question needs no gate
            shielded(lambda: self._answer(call))
        else:
            self._questions.append(call)
            self._nudge()
        return DONE

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Tell every entry of the pool from now on; with `own`, only what concerns this session need be prompt."""
        self._check_open()
        with self._use:
            self._glance([pool])
            here = self._pools[pool]
            here.watchers = [*here.watchers, watcher]
            here.curious += not own
        if not own:
            self._nudge()

        def stop() -> None:
            with self._use:
                here.watchers = [one for one in here.watchers if one is not watcher]
                here.curious -= not own

        return stop

    def accept(self, pool: str, request: str, token: int, until: int) -> bool:
        """Take an offered lock by locking its byte."""
        self._live.lock(CLAIMS + token)
        if self._clock.now() < until:
            self._accepted[token] = (pool, request, elapsed())
            return True
        self._live.unlock(CLAIMS + token)
        return False

    def pools(self) -> list[str]:
        """Return the names of all pools of the file."""
        self._check_open()
        with self._use, self._database.reading() as transaction:
            return _log.names(transaction)

    def drop(self, pool: str) -> None:
        """Delete a pool from the file."""
        self._check_open()
        while not shielded(lambda: self._try_drop(pool)):
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

    def retain(self) -> bool:
        """Take note of one more user; False if the last one has left."""
        with self._counting:
            if not self.is_given_up:
                self._users += 1
            return not self.is_given_up

    def close(self) -> None:
        """Give up one use; the last one ends the session."""
        with self._counting:
            self._users -= 1
            self.is_given_up = self._users <= 0
        if self.is_given_up:
            self.shut_down()

    def shut_down(self) -> None:
        """End the session: what this process holds is released."""
        if self.is_closed or os.getpid() != self.pid:
            return
        self.is_closed = True
        self._nudge()
        self._thread.join(5.0)
        try:
            if self._gate.enter_within(5.0):
                try:
                    self._say_goodbye()
                finally:
                    self._gate.leave()
        except EngineError as error:  # the kernel will tell the others that we are gone
            logger.warning("a session could not be ended", extra={"millpond": {"error": str(error)}})
        self._fail_all(PoolClosed(f"{self.url} was closed"))
        self._dismiss()
        self._selector.close()
        self._is_nudged = True  # for ever: the pipe's number may be another's soon
        for end in self._nudges:
            os.close(end)
        self._bell.close()
        self._deaths.close()
        self._database.close()
        self._live.close()

    # --- batches -----------------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        """Carry out all that is queued now if the gate stands open, else leave it to our thread."""
        if not self._try_batch():
            self._nudge()
            self._expect_answer()

    def _hurry_soon(self) -> None:
        """Do so at the end of this turn of the event loop, for all that came in it; else leave it to our thread."""
        loop = asyncio._get_running_loop()
        if loop is None or self.synchronous == "FULL":  # a turn of a loop is no place to wait for a disk
            self._nudge()
            self._expect_answer()
        elif loop not in self._hurried:
            if self._attendant is not loop:
                self._attend(loop)
            self._hurried.add(loop)
            loop.call_soon(self._hurry_now, loop)

    def _attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let an event loop listen to the bell itself: that saves a change of threads for all that it hears."""
        if self._attendant is None or self._attendant.is_closed():
            with contextlib.suppress(NotImplementedError, ValueError, KeyError):
                loop.add_reader(self._bell.fileno(), self._heard_bell)
                self._attendant = loop
                self._selector.unregister(self._bell)

    def _dismiss(self) -> None:
        """Let no event loop listen any more: it would be deaf to whatever has the bell's descriptor next."""
        loop, self._attendant = self._attendant, None
        if loop is None or loop.is_closed():
            return
        bell, gone = self._bell.fileno(), threading.Event()

        def leave() -> None:
            loop.remove_reader(bell)
            gone.set()

        if not loop.is_running() or asyncio._get_running_loop() is loop:
            leave()
            return
        with contextlib.suppress(RuntimeError):  # closed at this moment
            loop.call_soon_threadsafe(leave)
            gone.wait(1.0)

    def _heard_bell(self) -> None:
        """Hear, on an event loop, that something was handed to this process."""
        self._bell.drain()
        if not self._use.acquire(blocking=False):
            self._nudge()
            return
        try:
            self._glance([pool.name for pool in self._pools.values() if pool.watchers])
        finally:
            self._use.release()
        self._publish()

    def _nudge(self) -> None:
        """Wake our thread."""
        if not self._is_nudged:
            self._is_nudged = True
            with contextlib.suppress(OSError):
                os.write(self._nudges[1], b"!")

    def _hurry_now(self, loop: asyncio.AbstractEventLoop) -> None:
        self._hurried.discard(loop)
        if self._calls and not self.is_closed:
            shielded(self._hurry)

    def _try_batch(self) -> bool:
        """Carry out all that is queued, if the gate stands open."""
        self._prepare([call.pool for call in list(self._calls)])
        if not self._gate.try_enter():
            return False
        self._batch(())
        return True

    def _prepare(self, names: list[str]) -> None:
        """Follow what others have done before we stand in their way: the less is left to do inside of the gate."""
        with self._use:
            self._glance(set(names))

    def _batch(self, also: Iterable[str]) -> None:
        """Carry out all that is queued, in one transaction, and make it known; `also` follow these pools.

        The gate is ours when it begins, and stands open again as soon as the transaction is over.
        """
        calls: list[_Call] = []
        made: dict[str, list[Entry]] = {}
        transaction: Transaction | None = None
        try:
            with self._use:
                self._is_running = True
                try:
                    with self._database.writing() as transaction:
                        self._follow_all(transaction, also)
                        self._bury(transaction, made)
                        self._claim_old(made)
                        self._decide_all(transaction, calls, made)
                        self._append(transaction, made)
                        self._clock.record(transaction)
                except BaseException as error:
                    if transaction is None or not transaction.committed:
                        self._undo(calls, error)
                        if isinstance(error, EngineError):
                            return
                        raise
                    self._done(made, calls)
                    raise
                finally:
                    self._is_running = False
                    self._gate.leave()
                self._done(made, calls)
                self._batches += 1
        finally:
            self._publish()

    def _follow_all(self, transaction: Transaction, also: Iterable[str]) -> None:
        """Follow what others have done in all pools that matter now, and tell it: a watcher may queue claims."""
        self._followed.clear()
        queued = [call.pool for call in list(self._calls)]
        for name in {*also, *queued, *(pool for pool, _, _ in self._accepted.values())}:
            self._bring_up(transaction, name)

    def _bring_up(self, transaction: Transaction, name: str) -> _Pool:
        """Have a replica that is up to date in this batch. Once only: from then on it may be ahead of the file."""
        if name not in self._followed:
            self._tell(self._follow(transaction, name, create=True))
            self._followed.add(name)
        return self._pools[name]

    def _decide_all(self, transaction: Transaction, calls: list[_Call], made: dict[str, list[Entry]]) -> None:
        """Carry out what is queued, also what is queued meanwhile by watchers."""
        while self._calls:
            call = self._calls[0]
            calls.append(call)  # before it leaves the queue: if Ctrl-C strikes here, `_undo` finds it
            self._calls.popleft()
            pool = self._bring_up(transaction, call.pool)
            if isinstance(call.command, Adopt | Pass):
                self._claim_first(pool, call.command.token, made)
            call.reply = self._decide(pool, call.command, made)  # type: ignore[arg-type]

    def _decide(self, pool: _Pool, command: Command, made: dict[str, list[Entry]], now: int = 0) -> Reply:
        """Decide one command; but nothing lapses that was accepted in time."""
        assert pool.replica is not None
        state = pool.replica.state
        if not now:
            now = self._clock.now()
            due = state.due()
            if due is not None and due <= now:
                # The first to lapse first: a claim is decided at a moment at which no later one is over yet.
                over = [one for one in state.requests.values() if one.state == OFFERED and one.until <= now]
                for request in sorted(over, key=lambda one: one.until):
                    if self._is_accepted(request.token):
                        self._decide(pool, Claim(request.session, (request.id,)), made, request.until - 1)
        reply, entry = pool.replica.decide(command, now)
        if entry is not None:
            made.setdefault(pool.name, []).append(entry)
        return reply

    def _is_accepted(self, token: int) -> bool:
        return token in self._accepted or self._live.is_locked(CLAIMS + token)

    def _claim_old(self, made: dict[str, list[Entry]]) -> None:
        """Claim what we accepted a while ago and still hold."""
        if self._has_old_claims():
            late = elapsed() - CLAIM
            for name, request, since in list(self._accepted.values()):
                if since < late:
                    self._decide(self._pools[name], Claim(self.session, (request,)), made)

    def _claim_first(self, pool: _Pool, token: int, made: dict[str, list[Entry]]) -> None:
        """Claim what somebody holds by its byte only, so far, before it is passed on or comes into other hands."""
        assert pool.replica is not None
        request = pool.replica.state.requests.get(pool.replica.state.tokens.get(token, ""))
        if request is not None and request.state == OFFERED and self._is_accepted(token):
            self._decide(pool, Claim(request.session, (request.id,)), made)

    def _append(self, transaction: Transaction, made: dict[str, list[Entry]]) -> None:
        for name, entries in made.items():
            pool = self._pools[name]
            assert pool.replica is not None and pool.id is not None
            _log.append(transaction, pool.id, pool.replica.version, entries)
            pool.base = _log.compact(transaction, pool.id, pool.replica, pool.base)

    def _done(self, made: dict[str, list[Entry]], calls: list[_Call]) -> None:
        """Make known what was committed."""
        for name, entries in made.items():
            pool = self._pools[name]
            pool.unheard += entries
            if pool.replica is not None:
                pool.heard = pool.replica.version
                due = pool.replica.state.due()
                if due is not None and due < self._wakes_at:
                    self._nudge()  # our thread means to sleep longer than that
        if self._accepted:
            self._settle_claims()
        self._answers.extend(calls)
        self._to_ring |= self._concerned(made)

    def _settle_claims(self) -> None:
        """Let go of the bytes of what is claimed in the file now, or over."""
        for token, (name, request, _) in list(self._accepted.items()):
            replica = self._pools[name].replica
            found = None if replica is None else replica.state.requests.get(request)
            if replica is not None and (found is None or found.state != OFFERED or found.token != token):
                del self._accepted[token]
                self._live.unlock(CLAIMS + token)

    def _undo(self, calls: list[_Call], error: BaseException) -> None:
        """Forget what was not committed: fail the calls of a broken engine, queue those of an interrupted one again."""
        for name in self._followed:
            self._pools[name].replica = None
        if isinstance(error, Exception):
            for call in (*calls, *self._calls):
                call.reply = error
                self._answers.append(call)
            self._calls.clear()
            self._rest = REST
        else:
            self._calls.extendleft(call for call in reversed(calls) if call not in self._calls)
            self._nudge()

    def _concerned(self, made: dict[str, list[Entry]]) -> set[int]:
        """Return the other sessions that must hear of it soon."""
        found: set[str] = set()
        for name, entries in made.items():
            replica = self._pools[name].replica
            requests = replica.state.requests if replica is not None else {}
            for entry in entries:
                for change in entry.changes:
                    kind = type(change)
                    if kind is to.Offered or kind is to.Held or kind is to.Left:
                        request = requests.get(change.id)  # type: ignore[union-attr]
                        if request is not None:
                            found.add(request.session)
                    elif (kind is to.Ended and change.how not in _QUIET) or kind is to.Adopted:  # type: ignore[union-attr]
                        return {number for number in self._sessions if number != self._number}
        found -= {"", self.session}
        return {int(session) for session in found}

    # --- following ---------------------------------------------------------------------------------------------

    def _follow(self, transaction: Transaction, name: str, *, create: bool = False) -> _Pool:
        """Bring the replica of a pool up to date; `_use` is ours."""
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool(name)
        if self._goes_on(transaction, pool):
            return pool
        before, pool.id = pool.id, _log.find(transaction, name)
        if pool.id is None or before not in (None, pool.id):
            pool.heard = 0  # there is none yet, or it is another one: all of it is news
        if pool.id is None:
            if not create:
                pool.replica = Replica()
                return pool
            pool.id = _log.create(transaction, name)
        pool.replica, pool.base = _log.load(transaction, pool.id)
        version = pool.replica.version
        if pool.heard is not None and version > pool.heard:
            news = list(pool.replica.history)[pool.heard - version :]
            pool.unheard += news
            self._notice(news)
        pool.heard = version
        return pool

    def _goes_on(self, transaction: Transaction, pool: _Pool) -> bool:
        """Let the replica follow with a single statement, and tell whether it could."""
        if pool.replica is None or pool.id is None or not pool.replica.version:
            return False
        replica, pool.replica = pool.replica, None  # interrupted in the middle, it would be good for nothing
        news = _log.follow(transaction, pool.id, replica)
        if news is None:
            return False
        if news:
            pool.unheard += news
            pool.heard = replica.version
            self._notice(news)
        pool.replica = replica
        return True

    def _glance(self, names: Iterable[str]) -> None:
        """Bring replicas up to date outside of the gate; `_use` is ours."""
        with self._database.glancing() as transaction:
            behind = [name for name in names if name not in self._pools]
            behind += [
                name for name in names if name in self._pools and not self._goes_on(transaction, self._pools[name])
            ]
        if behind:
            with self._database.reading() as transaction:
                for name in behind:
                    self._follow(transaction, name)

    def _notice(self, news: list[Entry]) -> None:
        """Notice if somebody has buried us, and we need another session; and those whom we do not watch over yet."""
        for entry in news:
            if entry.by and entry.by not in self._known:
                self._met_stranger = True
            for change in entry.changes:
                if type(change) is to.Buried and change.session == self.session:
                    self._is_buried = True

    def _tell(self, pool: _Pool) -> None:
        """Tell the watchers what they have not heard; `_use` is ours. Interrupted, it is told again."""
        while pool.unheard:
            news = pool.unheard
            for watcher in pool.watchers:
                try:
                    watcher(news)
                except Exception:
                    logger.exception("a watcher failed")
            pool.unheard = pool.unheard[len(news) :]

    def _publish(self) -> None:
        """Tell what was committed, then give the answers. Outside of the gate: who is woken takes the CPU or the GIL.

        Interrupted, whoever comes next goes on where this one stopped; what was told or answered twice is heard once.
        """
        try:
            with self._use:
                if self._to_ring:
                    self._bell.ring(self._to_ring)
                    self._to_ring = set()
                for pool in self._pools.values():
                    self._tell(pool)
                while self._answers:
                    call = self._answers[0]
                    call.done(call.reply)
                    self._answers.popleft()
                if self._met_stranger:
                    self._nudge()  # our thread must watch over its process from now on
        except BaseException:
            self._nudge()
            raise

    def _answer(self, call: _Call) -> None:
        """Answer a question."""
        try:
            with self._use:
                self._glance([call.pool])
                pool = self._pools[call.pool]
                self._tell(pool)
                assert pool.replica is not None
                call.reply = call.command(pool.replica, self._clock.now())  # type: ignore[operator]
        except Exception as error:
            call.reply = error
        call.done(call.reply)

    # --- deaths ------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Learn of all sessions, to watch over their processes."""
        with self._use:
            with self._database.glancing() as transaction:
                self._sessions = enrolled(transaction)
            self._known = {str(number) for number in self._sessions}
            self._met_stranger = False
            self._deaths.update(self._sessions)

    def _look_for_deaths(self) -> None:
        """Look at once whether somebody died, before a request is judged by who has its id."""
        with self._use:
            self._meet()
            self._dead.update(self._deaths.dead(eager=True))

    def _bury(self, transaction: Transaction, made: dict[str, list[Entry]]) -> None:
        """End all that the dead held, in every pool of the file."""
        if not self._dead:
            return
        there = enrolled(transaction)
        for number in sorted(self._dead):
            if number in there:
                for name in _log.names(transaction):
                    self._decide(self._bring_up(transaction, name), Bury(str(number)), made)
                strike(transaction, number)
            self._bell.sweep(number)
        self._sessions = {number: one for number, one in there.items() if number not in self._dead}
        self._dead.clear()

    def _say_goodbye(self) -> None:
        """End all that is ours, and our session; the gate is ours."""
        with self._use:
            self._dead = {self._number}
            made: dict[str, list[Entry]] = {}
            with self._database.writing() as transaction:
                self._followed.clear()
                self._bury(transaction, made)
                self._append(transaction, made)
            self._bell.ring(self._concerned(made))

    def _begin_again(self) -> None:
        """Take a new session after somebody buried the old one by mistake, and mend a live file that was replaced."""
        with self._use:
            is_found = self._live.reassert()
        if self._attendant is not None and self._attendant.is_closed():
            self._attendant = None
            self._listen()
        if self._is_buried:
            self._is_buried = False
            self._dismiss()
            self._bell.close()
            self._number = enrol(self._database, self._live)
            self._bell = Bell(self._database.path, self._number)
            self._listen()
        elif not is_found:
            old, self._live = self._live, LiveFile(self._database.path)
            self._live.lock(self._number)
            passport = Passport.of_this_process(self._live).encode()
            with self._database.writing() as transaction:
                transaction.execute("UPDATE session SET passport = ? WHERE number = ?", (passport, self._number))
            self._deaths.close()
            self._deaths = DeathWatch(self._live)
            self._deaths.update(self._sessions)
            self._listen()
            old.close()

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
                    self._database.checkpoint_if_large()
                if now - look >= 1_000_000:
                    look = now
                    self._begin_again()
                    self._meet()
            except EngineError as error:
                logger.warning("the SQLite engine is in trouble", extra={"millpond": {"error": str(error)}})
                self._fail_all(error)
                self._rest = REST
            except Exception:
                if self._is_over():
                    return
                logger.exception("the SQLite engine failed")

    def _is_over(self) -> bool:
        return self.is_closed

    def _wait(self, timeout: float | None) -> None:
        if not self._calls and not self._questions:
            self._selector.select(timeout)
        if self._is_nudged:
            with contextlib.suppress(BlockingIOError):
                os.read(self._nudges[0], 16)
            self._is_nudged = False
        if self._attendant is None:
            self._bell.drain()

    def _has_old_claims(self) -> bool:
        return bool(self._accepted) and next(iter(self._accepted.values()))[2] < elapsed() - CLAIM

    def _listen(self) -> None:
        """Wait for the bell and for deaths, from now on for those that we have now."""
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._selector.register(self._nudges[0], selectors.EVENT_READ)
        if self._deaths.fileno() >= 0:
            self._selector.register(self._deaths, selectors.EVENT_READ)

    def _turn(self, now: int) -> None:
        """Do what is to be done now."""
        with self._use:
            if self._met_stranger:
                self._meet()
            self._dead.update(self._deaths.dead(eager=True))
            pools = [pool for pool in self._pools.values() if pool.watchers]
            for pool in pools:
                if self._is_due(pool, now):
                    self._calls.append(_Call(self, pool.name, Tick(), lambda reply: None))
        changed = [pool.name for pool in pools] if len(pools) <= FEW or self._has_changed() else []
        if self._answers:
            self._publish()  # somebody was interrupted
        if self._calls or self._dead or self._has_old_claims():
            self._prepare(changed)
            self._is_at_gate = True
            try:
                self._gate.enter()
            finally:
                self._is_at_gate = False
            self._batch(changed)
        elif changed:
            with self._use:
                self._glance(changed)
            self._publish()
        while self._questions:
            self._answer(self._questions.popleft())

    def _has_changed(self) -> bool:
        """Tell whether anybody has written to the file since we last asked."""
        before, self._version = self._version, self._database.data_version()
        return before != self._version

    def _patience(self) -> float | None:
        """Return how long there is nothing to do unless somebody rings."""
        with self._use:
            pools = [pool for pool in self._pools.values() if pool.watchers]
            limits = [SAFETY]
            if self._accepted or self._attendant is not None or any(pool.curious for pool in pools):
                limits.append(CURIOSITY)
            now = self._clock.now()
            for pool in pools:
                due = pool.replica.state.due() if pool.replica is not None else None
                if due is not None:
                    limits.append(max(0.0, (due - now) / 1_000_000))
            deaths = self._deaths.patience(eager=True)
            if deaths is not None:
                limits.append(deaths)
            rest, self._rest = self._rest, 0.0
            patience = max(rest, min(limits))
            self._wakes_at = now + int(patience * 1_000_000)
        return patience

    def _is_due(self, pool: _Pool, now: int) -> bool:
        due = pool.replica.state.due() if pool.replica is not None else None
        return due is not None and due <= now

    # --- small things ------------------------------------------------------------------------------------------

    def _check_stuck(self) -> None:
        """Give up calls that could not begin for too long, and say who is in the way."""
        self._stuck_check = None
        blocker = self._gate.blocker()
        why = f"its gate is held by {blocker}: continue or end that" if blocker else "the disk is too slow"
        with self._use:
            while self._calls and elapsed() - self._calls[0].since > STUCK:
                call = self._calls.popleft()
                call.reply = EngineUnavailable(f"{self.url} did not answer for {STUCK:g} s: {why}")
                self._answers.append(call)
        self._publish()
        self._expect_answer()

    def _expect_answer(self) -> None:
        if self._calls and self._stuck_check is None and not self.is_closed:
            self._stuck_check = _alarm.call_later(STUCK / 4, self._check_stuck)

    def _cancel(self, call: _Call) -> bool:
        with self._use:
            if call not in self._calls:
                return False
            self._calls.remove(call)
            return True

    def _owns_use(self) -> bool:
        return self._use._is_owned()  # type: ignore[attr-defined, no-any-return]

    def _fail_all(self, error: Exception) -> None:
        with self._use:
            for queue in (self._calls, self._questions):
                while queue:
                    call = queue.popleft()
                    call.reply = error
                    self._answers.append(call)
        self._publish()

    def _check_open(self) -> None:
        if self.is_closed:
            raise PoolClosed(f"{self.url} is closed in this process: open the pool again")

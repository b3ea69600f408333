"""The companion: a small process beside the users of a store on one machine. It runs no user code.

It talks to the store, runs the rules, and is the witness of the processes it serves: what the kernel says of them, it
tells the store at once. So a user's pause, GIL, Ctrl-Z or death costs only that user. It is started by the first
process that needs it, serves all processes of the same user and URL on the machine, and ends when the last one is
gone.

One thread, one loop: read what has come on all sockets, let each pool that has something to do take its turn (which
may wait for the store), write the answers. While the store is away, calls wait, and are answered with
`EngineUnavailable` after a while.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import selectors
import signal
import socket
import struct
import sys
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millpond._clock import elapsed
from millpond._events import logger
from millpond._sqlite._process import own_start
from millpond.errors import EngineError, EngineUnavailable
from millpond.resources._questions import Standings as StandingsQuestion
from millpond.resources._rules.commands import Bury, Command, Reply, Suspect
from millpond.resources._rules.records import HELD
from millpond.resources._rules.wire import Entry, freeze, pack
from millpond.resources.engines.log import _messages
from millpond.resources.engines.log._hosted import HostedPool, Listener, StoreClock
from millpond.resources.engines.log._log import LOST_WORDS, Log, Orphan, Witness
from millpond.resources.engines.log._stores import open_log
from millpond.resources.engines.log._witness import Process, seen_from, verdict

BEAT: Final = 1.0
"""Seconds between two signs of life in a pool."""
LOST: Final = 10.0
"""Seconds of silence after which a companion, and with it its machine, is taken for lost."""
LINGER: Final = 2.0
"""Seconds for which a companion without users stays, lest a shell loop start one per command."""
GIVE_UP: Final = 300.0
"""Seconds for which it tries to tell a store that is away who has died, when nobody is left. Whoever uses the store on
this machine next will find that out as well."""
IDLE: Final = 60.0
"""Seconds after which a session that has nothing open in a pool, and asks nothing, leaves it until it comes again."""
TURNS: Final = 1.0
"""Seconds of turns of pools, and of signs of life in them, after which what has come on the sockets is read first."""
AWAY: Final = 5.0
"""Seconds after which calls are answered although the store is not."""
FULL: Final = 16 << 20
"""Bytes waiting for a process that does not read, after which it is told no more news."""
_credentials = struct.Struct("3i")


class Session(Listener):
    """One process's use of the store: what it asked, and the way to it while there is one."""

    def __init__(self, name: str, process: Process, witness: Witness) -> None:
        self.session = name
        self.process = process
        self.witness = witness
        self.pools: set[str] = set()
        """Where it is registered."""
        self.past: set[str] = set()
        """Where it was, and may be remembered by what it was answered."""
        self.connection: Connection | None = None

    def news(self, pool: str, entries: list[Entry], everything: bool) -> None:
        """Send entries."""
        if self.connection is not None:
            self.connection.tell_news(_messages.News(pool, tuple(entries)))

    def missed(self, pool: str) -> None:
        """Send the word that something may have been missed."""
        if self.connection is not None:
            self.connection.tell(_messages.Missed(pool))

    def replied(self, number: int, reply: Reply) -> None:
        """Send a reply."""
        if self.connection is not None and self.connection.calls.pop(number, None) is not None:
            self.connection.tell(_messages.Replied(number, reply))


class Connection:
    """The socket to a process, what was read of it, and what is to be written."""

    def __init__(self, made: socket.socket) -> None:
        self.socket = made
        self.frames = _messages.Frames()
        self.session: Session | None = None
        self.calls: dict[int, tuple[float, str]] = {}  # unanswered, since when, and of which pool
        self.out: list[_messages.Message] = []
        self.rest = b""
        self.missed: set[str] = set()

    def tell(self, message: _messages.Message) -> None:
        """Send a message at the end of this turn."""
        self.out.append(message)

    def tell_news(self, message: _messages.News) -> None:
        """Send news, unless the process does not read: then it is told later that it missed something."""
        if len(self.rest) > FULL:
            self.missed.add(message.pool)
        else:
            self.out.append(message)

    def flush(self) -> bool:
        """Write as much as can be written now; tell whether something is left."""
        if self.out:
            self.rest += _messages.frame(self.out)
            self.out = []
        while self.rest:
            try:
                sent = self.socket.send(self.rest)
            except (BlockingIOError, InterruptedError):
                return True
            self.rest = self.rest[sent:]
            if not self.rest and self.missed:
                self.rest = _messages.frame([_messages.Missed(pool) for pool in sorted(self.missed)])
                self.missed.clear()
        return False


class Question:
    """Something that a process wants to know of a pool, or have done with it."""

    __slots__ = ("ask", "connection")

    def __init__(self, connection: Connection, ask: Any) -> None:
        self.connection, self.ask = connection, ask


class _Leaving:
    """A session that has said goodbye, and waits until that is written down in its pools."""

    __slots__ = ("number", "pools")

    def __init__(self, number: int, pools: set[str]) -> None:
        self.number, self.pools = number, pools


class Companion:
    """The loop, with everybody it serves."""

    def __init__(self, log: Log, listener: socket.socket, here: Witness) -> None:
        self.me = uuid.uuid4().hex[:16]
        self._here = msgspec.structs.replace(here, companion=self.me)
        self._log = log
        self._clock = StoreClock()
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._pools: dict[str, HostedPool] = {}
        self._sessions: dict[str, Session] = {}
        self._connections: set[Connection] = set()
        self._questions: dict[str, list[Question]] = {}
        self._lists: list[Question] = []  # who wants the names of all pools
        self._retry_at = 0.0
        self._failures = 0
        self._trouble: EngineUnavailable | None = None
        self._turns: list[str] = []  # pools that have yet to take their turn in this round
        self._beats: list[str] = []  # pools that have yet to hear that we live
        self._beat_at = 0.0
        self._compare_at = elapsed() + LOST
        self._compares = False
        self._alone_since: float | None = elapsed()
        self._hint_fd = -1
        self._subscribed: set[str] = set()
        self._wanted = {f"to:{self.me}"}
        self._looked_over: set[str] = set()
        self._silent: dict[tuple[str, str], tuple[int, float]] = {}  # by pool and companion: last beat, and since when
        self._is_checked = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    # --- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until nobody is left."""
        while not self._is_over():
            for key, events in self._selector.select(self._patience()):
                if isinstance(key.data, Connection):
                    if events & selectors.EVENT_READ:
                        self._read(key.data)
                elif isinstance(key.data, Session):
                    self._bury(key.data)
                elif callable(key.data):
                    key.data()
            self._look_for_dead()
            self._flush_all()
            if elapsed() >= self._retry_at:
                self._work()
            self._give_up_old()
            self._flush_all()
        with contextlib.suppress(EngineError):
            for pool in self._pools.values():
                pool.leave()

    def _is_over(self) -> bool:
        if self._connections or self._sessions:
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = elapsed()
        has_news = any(pool.has_to_tell for pool in self._pools.values())  # who has died, for a store that is away
        return elapsed() - self._alone_since > (GIVE_UP if has_news else LINGER)

    def _patience(self) -> float:
        now = elapsed()
        limits = [LINGER, self._beat_at - now] if self._sessions else [LINGER / 4]
        if self._retry_at > now:
            limits.append(self._retry_at - now)
        else:
            if self._lists or self._turns or self._beats or any(self._questions.values()):
                return 0.0
            limits += [at - now for pool in self._pools.values() if (at := pool.wakes_at()) is not None]
        if any(session.process.fileno() < 0 for session in self._sessions.values()):
            limits.append(0.2)
        return max(0.0, min(limits))

    # --- the store ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Do what the store is needed for; when it is away, rest a little."""
        try:
            if not self._is_checked:
                self._log.check()
                self._is_checked = True
            self._listen()
            self._take_turns()
            self._answer_lists()
            if self._beats or (self._sessions and elapsed() >= self._beat_at):
                self._beat()
        except EngineUnavailable as error:
            self._failures += 1
            self._trouble = error
            self._fail_lists(str(error))  # who opens a pool is told at once
            self._retry_at = elapsed() + min(1.0, 0.02 * 2 ** min(self._failures, 10)) * random.uniform(0.5, 1.0)
        except Exception as error:  # it will not go away by itself
            text = str(error)
            if not isinstance(error, EngineError):
                logger.exception("a companion failed")
                text = f"a companion failed with {error!r}: this looks like a bug of millpond, please report it"
            for name in self._pools:
                self._fail(name, text)
            self._fail("", text)
            self._retry_at = elapsed() + 1.0
        else:
            self._failures, self._trouble = 0, None

    def _take_turns(self) -> None:
        """Take the turns of the pools, or with a slow store of some of them: who is silent for long is replaced."""
        if not self._turns:
            self._turns = list(self._questions.keys() | self._pools.keys())
        until = elapsed() + TURNS
        while self._turns:
            self._alone(self._turns.pop(), self._turn)
            if elapsed() >= until:
                break

    def _alone(self, name: str, do: Callable[[str], None]) -> None:
        """Do something for a pool; one that cannot be read harms no other."""
        try:
            do(name)
        except EngineUnavailable:
            raise
        except Exception as error:
            if not isinstance(error, EngineError):
                logger.exception("a pool cannot be used", extra={"millpond": {"pool": name}})
                error = EngineError(f"pool {name!r} cannot be read ({error!r}): drop it, or restore a backup")
            self._fail(name, str(error))

    def _fail(self, name: str, text: str) -> None:
        """Answer everybody who waits for a pool with an error."""
        for connection in self._connections:
            for number in [number for number, (_, pool) in connection.calls.items() if pool == name]:
                del connection.calls[number]
                connection.tell(_messages.Failed(number, text, False))
        self._questions.pop(name, None)
        if name in self._pools:
            self._pools[name].give_up()
        else:
            self._lists.clear()

    def _turn(self, name: str) -> None:
        pool = self._pool(name)
        questions = self._questions.get(name)
        if questions:
            self._drop(pool, questions)
        if pool.rests:
            return
        wakes_at = pool.wakes_at()
        if (wakes_at is not None and wakes_at <= elapsed()) or not pool.is_known:
            pool.turn()
        if pool.went_back:
            self._look_over(pool)
            pool.went_back = False
        if name not in self._looked_over:
            self._look_over(pool)
            if pool.replica.state.index.sessions.keys() - self._sessions.keys():
                self._suspect_silent(pool)
            self._looked_over.add(name)
            pool.turn()
        if questions:
            pool.sync()
            pool.turn()
            while questions:
                self._answer(pool, questions[-1])  # from the end: one that fails for want of the store stays
                questions.pop()

    def _drop(self, pool: HostedPool, questions: list[Question]) -> None:
        """Delete a pool for those who want that: first of all, since it may be one that cannot be read."""
        for question in [one for one in questions if isinstance(one.ask, _messages.Drop)]:
            self._log.drop(pool.name)
            pool.read_anew()
            questions.remove(question)
            question.connection.tell(_messages.Names(question.ask.number, ()))
            question.connection.calls.pop(question.ask.number, None)

    def _answer(self, pool: HostedPool, question: Question) -> None:
        ask, connection = question.ask, question.connection
        now = max(self._clock.now(), pool.last_time)
        match ask:
            case _messages.Look():
                session = connection.session.session if connection.session is not None else ""
                found = StandingsQuestion(session, ask.ids, ask.strays).answer(pool.replica, now)
                connection.tell(_messages.Standings(ask.number, tuple(found)))
            case _messages.GetImage():
                replica = pool.replica
                history = pack(tuple(replica.history))
                connection.tell(_messages.PoolImage(ask.number, replica.version, now, freeze(replica.state), history))
            case _messages.Watch():
                connection.tell(_messages.Names(ask.number, ()))
            case _Leaving():
                ask.pools.discard(pool.name)
                if ask.pools:
                    return
                connection.tell(_messages.Names(ask.number, ()))
        connection.calls.pop(ask.number, None)

    def _fail_lists(self, text: str) -> None:
        for question in self._lists:
            question.connection.calls.pop(question.ask.number, None)
            question.connection.tell(_messages.Failed(question.ask.number, text, True))
        self._lists.clear()

    def _answer_lists(self) -> None:
        if self._lists:
            names = tuple(self._log.pools())
            for question in self._lists:
                question.connection.tell(_messages.Names(question.ask.number, names))
                question.connection.calls.pop(question.ask.number, None)
            self._lists.clear()

    def _listen(self) -> None:
        """Keep the subscription open, and to everybody we serve."""
        if self._hint_fd >= 0 and self._log.fileno() != self._hint_fd:
            self._forget_hints()
        if self._hint_fd < 0 or self._wanted != self._subscribed:
            self._log.subscribe(self._wanted)
            self._subscribed = set(self._wanted)
            if self._hint_fd < 0:
                self._hint_fd = self._log.fileno()
                if self._hint_fd >= 0:
                    self._selector.register(self._hint_fd, selectors.EVENT_READ, self._hear)
                    self._hear()
        for pool in self._pools.values():
            pool.has_hints = self._hint_fd >= 0

    def _hear(self) -> None:
        found = self._log.hints()
        if self._log.fileno() != self._hint_fd:
            self._forget_hints()
        for name in self._pools if found is None else found & self._pools.keys():
            self._pools[name].look_soon()

    def _forget_hints(self) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):
            self._selector.unregister(self._hint_fd)
        self._hint_fd = -1

    # --- life and death ----------------------------------------------------------------------------------------

    def _look_for_dead(self) -> None:
        """Find those who have died without a word of the kernel, where it gives none."""
        for session in list(self._sessions.values()):
            if session.process.fileno() < 0 and session.process.has_ended():
                self._bury(session)

    def _bury(self, session: Session) -> None:
        """Report to the store that a process is gone, as soon as that is possible: its grants are free from then on."""
        if self._sessions.get(session.session) is session:  # else it has said goodbye as it went
            self._end(session, f"process {session.process.pid} on {self._here.host} is gone")

    def _end(self, session: Session, reason: str) -> None:
        """End a session."""
        del self._sessions[session.session]
        if session.process.fileno() >= 0:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(session.process)
        session.process.close()
        for name in session.pools | session.past:
            self._pool(name).bury(session.session, reason)
        self._wanted.discard(f"to:{session.session}")

    def _beat(self) -> None:
        """Show that we live, and look after those whose witness does not."""
        if not self._beats:
            self._beat_at = elapsed() + BEAT
            self._beats = list({name for session in self._sessions.values() for name in session.pools})
            self._compares = elapsed() >= self._compare_at
            if self._compares:
                self._compare_at = elapsed() + LOST
        until = elapsed() + TURNS
        while self._beats:
            self._alone(self._beats.pop(), self._beat_in)
            if elapsed() >= until:
                break

    def _beat_in(self, name: str) -> None:
        pool = self._pool(name)
        for orphan in self._log.beat(name, self.me, int(LOST * 250_000)):
            self._judge(pool, orphan)
        self._clear_suspicion(pool)
        self._let_idle_go(pool)
        if self._compares:
            self._compare(pool)

    def _let_idle_go(self, pool: HostedPool) -> None:
        """Retire sessions that have long had nothing in a pool: watching them costs the store two calls a second."""
        for session in self._sessions.values():
            if pool.name in session.pools and pool.is_idle(session.session, IDLE):
                session.pools.discard(pool.name)
                session.past.add(pool.name)
                pool.retire(session.session)
        if not pool.curious:
            self._wanted.discard(f"all:{pool.name}")

    def _compare(self, pool: HostedPool) -> None:
        """Register again whom the store has forgotten: a failover may lose that alone."""
        known = self._log.sessions(pool.name)
        for session in self._sessions.values():
            if pool.name in session.pools and session.session not in known:
                self._log.register(pool.name, self.me, session.session, session.witness)

    def _silence(self, pool: HostedPool, orphan: Orphan) -> float:
        """Return for how long a companion is silent, by our own clock too: the store may have been away."""
        key = (pool.name, orphan.witness.companion)
        beat, since = self._silent.get(key, (0, 0.0))
        if beat != orphan.beat:
            since = elapsed()
            self._silent[key] = (orphan.beat, since)
        return min(orphan.silence, elapsed() - since)

    def _look_over(self, pool: HostedPool) -> None:
        """Judge, once, the sessions of this machine that another companion watched over, or we did and are over."""
        for session, witness in self._log.sessions(pool.name).items():
            is_over = witness.companion == self.me or seen_from(witness, self._here) is True
            if is_over and session not in self._sessions:
                pool.bury(session, "its process is gone")

    def _suspect_silent(self, pool: HostedPool) -> None:
        """Mark, once, what is held by machines that are silent by the store's clock: who only looks does not stay.

        That clock may be wrong, and the store may have been away: so nothing is ended by it, and the mark is taken away
        when the machine is heard of.
        """
        for orphan in self._log.beat(pool.name, self.me, int(LOST * 1_000_000)):
            if orphan.session not in self._sessions and seen_from(orphan.witness, self._here) is None:
                self._suspect_lost(pool, orphan, orphan.silence)

    def _judge(self, pool: HostedPool, orphan: Orphan) -> None:
        """See what became of a session whose witness is silent."""
        if orphan.session in self._sessions:
            self._sessions[orphan.session].pools.add(pool.name)
            self._log.register(pool.name, self.me, orphan.session, self._sessions[orphan.session].witness)
            return
        silence = self._silence(pool, orphan)
        gone = seen_from(orphan.witness, self._here) if silence < LOST else verdict(orphan.witness, self._here)
        free_after = pool.replica.state.settings.free_after / 1_000_000
        if gone:
            pool.bury(orphan.session, "its process is gone")
        elif gone is False:  # it lives here, and its companion does not: it is ours now
            self._adopt(pool, orphan)
        elif silence >= LOST and free_after and silence >= free_after:
            words = f"{LOST_WORDS} for {silence:.0f} s, and the pool frees such after {free_after:g} s: a guess"
            if orphan.session in pool.replica.state.index.sessions:
                pool.send(Bury(orphan.session, words))
            else:
                pool.retire(orphan.session)  # if it lives, its own companion registers it again
        elif silence >= LOST:
            self._suspect_lost(pool, orphan, silence)

    def _adopt(self, pool: HostedPool, orphan: Orphan) -> None:
        witness = msgspec.structs.replace(orphan.witness, companion=self.me)
        session = Session(orphan.session, Process(witness.pid, witness.start), witness)
        session.pools.add(pool.name)
        self._add_session(session)
        self._log.register(pool.name, self.me, orphan.session, witness)

    def _suspect_lost(self, pool: HostedPool, orphan: Orphan, silence: float) -> None:
        where = orphan.witness.host or orphan.witness.machine
        self._suspect(pool, orphan.session, f"{LOST_WORDS}: {where} was last seen {silence:.0f} s ago")

    def _suspect(self, pool: HostedPool, session: str, why: str) -> None:
        for command in _suspicions(pool, session, why):
            pool.send(command)

    def _clear_suspicion(self, pool: HostedPool) -> None:
        """Take back what others have suspected of those who live."""
        for session in self._sessions.values():
            if pool.name in session.pools:
                self._suspect(pool, session.session, "")

    # --- processes ---------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it went away again, or there are no descriptors left
            made, _ = self._listener.accept()
            made.setblocking(False)
            connection = Connection(made)
            self._connections.add(connection)
            self._selector.register(made, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect(connection)
            return
        try:
            for body in connection.frames.feed(data):
                for ask in _messages.decode_asks(body):
                    self._take(connection, ask)
        except (msgspec.DecodeError, msgspec.ValidationError):  # somebody who speaks another language
            self._disconnect(connection)

    def _take(self, connection: Connection, ask: _messages.Ask) -> None:
        match ask:
            case _messages.Apply():
                self._apply(connection, ask)
            case _messages.Hello():
                self._greet(connection, ask)
            case _messages.Look() | _messages.GetImage() | _messages.Drop():
                self._ask(connection, ask.pool, ask)
            case _messages.Watch():
                self._watch(connection, ask)
            case _messages.GetPools():
                connection.calls[ask.number] = (elapsed(), "")
                self._lists.append(Question(connection, ask))
            case _messages.Bye():
                self._leave(connection, ask)
            case _messages.Ping():
                connection.tell(_messages.Names(ask.number, ()))

    def _greet(self, connection: Connection, ask: _messages.Hello) -> None:
        """Begin with a process, or go on with it."""
        pid, uid, _ = _credentials.unpack(connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid() or pid != ask.process.pid:  # of another user, or of another pid namespace
            self._disconnect(connection)
            return
        session = self._sessions.get(ask.session)
        if session is None:
            witness = msgspec.structs.replace(ask.process, companion=self.me)
            session = Session(ask.session, Process(pid, ask.process.start), witness)
            self._add_session(session)
        if session.connection is not None and session.connection is not connection:
            old, session.connection = session.connection, None
            old.session = None
            self._disconnect(old)
        session.connection, connection.session = connection, session
        connection.tell(_messages.Welcome(os.getpid(), own_start()))
        for name in ask.pools:
            self._enter(session, name)
            session.missed(name)

    def _add_session(self, session: Session) -> None:
        self._sessions[session.session] = session
        self._wanted.add(f"to:{session.session}")
        if session.process.fileno() >= 0:
            self._selector.register(session.process, selectors.EVENT_READ, session)

    def _enter(self, session: Session, name: str) -> HostedPool:
        """Enter a session in a pool: from now on somebody watches over it there."""
        pool = self._pool(name)
        if name not in session.pools or session.session not in pool.listeners:
            session.pools.add(name)
            session.past.discard(name)
            pool.admit(session)
        return pool

    def _apply(self, connection: Connection, ask: _messages.Apply) -> None:
        if connection.session is None:
            self._disconnect(connection)
            return
        pool = self._enter(connection.session, ask.pool)
        connection.calls[ask.number] = (elapsed(), ask.pool)
        pool.call(connection.session.session, ask.number, ask.acked, ask.command)

    def _ask(self, connection: Connection, pool: str, ask: Any) -> None:
        connection.calls[ask.number] = (elapsed(), pool)
        self._questions.setdefault(pool, []).insert(0, Question(connection, ask))

    def _watch(self, connection: Connection, ask: _messages.Watch) -> None:
        if connection.session is None:
            self._disconnect(connection)
            return
        pool = self._enter(connection.session, ask.pool)
        if ask.everything:
            pool.curious.add(connection.session.session)
            self._wanted.add(f"all:{ask.pool}")
        else:
            pool.curious.discard(connection.session.session)
        self._ask(connection, ask.pool, ask)

    def _leave(self, connection: Connection, ask: _messages.Bye) -> None:
        session = connection.session
        if session is not None and self._sessions.get(session.session) is session:
            connection.session = session.connection = None
            leaving = _Leaving(ask.number, session.pools | session.past)
            for name in session.pools | session.past:
                self._ask(connection, name, leaving)
            self._end(session, "its pool was closed")
            if leaving.pools:
                return
        connection.tell(_messages.Names(ask.number, ()))

    def _disconnect(self, connection: Connection) -> None:
        """Close a connection. The process may live on: as another program, or with another companion."""
        if connection in self._connections:
            self._connections.discard(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()
        if connection.session is not None:
            connection.session.connection = None
            for name in connection.session.pools:
                self._pool(name).curious.discard(connection.session.session)
        for questions in self._questions.values():
            questions[:] = [one for one in questions if one.connection is not connection]

    def _flush_all(self) -> None:
        for connection in list(self._connections):
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            is_left = connection.flush()
        except OSError:
            self._disconnect(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_left else 0)
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, connection)

    def _give_up_old(self) -> None:
        """Answer those who have waited too long for a store that is away."""
        if self._trouble is None:
            return
        before = elapsed() - AWAY
        for connection in self._connections:
            for number in [number for number, (since, _) in connection.calls.items() if since < before]:
                del connection.calls[number]
                connection.tell(_messages.Failed(number, str(self._trouble), True))
        for questions in self._questions.values():
            questions[:] = [one for one in questions if one.ask.number in one.connection.calls]

    def _pool(self, name: str) -> HostedPool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = HostedPool(name, self._log, self.me, self._clock)
        return pool


def _suspicions(pool: HostedPool, session: str, why: str) -> list[Command]:
    """Return what marks the locks of a session; with no reason, what takes the mark away again."""
    state = pool.replica.state
    found: list[Command] = []
    for known in state.index.sessions.get(session, ()):
        request = state.requests[known]
        is_marked = request.suspect.startswith(LOST_WORDS)
        if request.state == HELD and is_marked != bool(why) and (is_marked or not request.suspect):
            found.append(Suspect(session, request.token, why))
    return found


def main() -> None:
    """Run as a program: what to do comes by standard input, the socket to listen on as a descriptor."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # it ends with its last user, whatever a terminal tells all of them
    url, here = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[str, Witness])
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        path = listener.getsockname()
        with open(f"{path}.pid", "w") as file:
            file.write(f"{os.getpid()} {own_start()}")
        log = open_log(url)
        try:
            Companion(log, listener, here).run()
        except Exception:
            logger.exception("a companion failed")
            raise
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
            log.close()


if __name__ == "__main__":
    main()

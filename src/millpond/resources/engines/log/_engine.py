"""The log engine in a user's process: calls go to the companion of this machine, answers and news come back.

It decides nothing and knows no store. One thread reads what the companion says and calls who waits for it. When the
companion is gone, another is started, everything that was not answered is sent again under its number, and watchers are
told that they may have missed something. A companion that gives no sign of life is ended and replaced: nothing is lost
with it.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from millpond._clock import elapsed
from millpond._events import logger
from millpond._interrupts import shielded
from millpond._sqlite._process import is_gone
from millpond._urls import shown
from millpond.errors import EngineError, EngineUnavailable, PoolClosed
from millpond.resources._engine import AUDIT, Question, Ticket, Watcher
from millpond.resources._questions import Standings as StandingsQuestion
from millpond.resources._rules.commands import Command, Reply
from millpond.resources._rules.records import Holder
from millpond.resources._rules.replica import Replica
from millpond.resources._rules.wire import Entry, thaw, unpack
from millpond.resources.engines.log import _messages
from millpond.resources.engines.log._machine import witness_of_this_process
from millpond.resources.engines.log._rendezvous import meet, written_pid

T = TypeVar("T")
SILENCE: Final = 5.0
"""Seconds without a word while something is asked, after which a companion is asked whether it lives; three times that
many, and it is replaced."""
OPEN: Final = 30.0
"""Seconds for which the first answer of a store is waited for."""


class Call:
    """Something that was asked, until it is answered."""

    __slots__ = ("ask", "done", "engine", "is_sent")

    def __init__(self, engine: LogEngine, ask: Any, done: Callable[[Any], None]) -> None:
        self.engine, self.ask, self.done = engine, ask, done
        self.is_sent = False

    def cancel(self) -> bool:
        """Take it back, if it was not sent."""
        return self.engine.take_back(self)

    def obstacle(self) -> str:
        """Return nothing: it is the companion who would know."""
        return ""


class LogEngine:
    """All pools of one store, for this process."""

    is_shared = True
    audit_every = AUDIT

    def __init__(self, url: str, machine: str = "") -> None:
        self.url = shown(url)
        self._url = url
        self.users = 0
        self.session = uuid.uuid4().hex
        self.pid = os.getpid()
        self._here = witness_of_this_process(machine)
        self.holder = Holder("process", "", self._here.host, self._here.pid, self._here.start)
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._watchers: dict[str, list[tuple[Watcher, bool]]] = {}
        self._socket: socket.socket | None = None
        self._out = bytearray()
        self.companion: tuple[int, int] | None = None
        """Pid and start of the companion, as soon as it has said so."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._is_mute = False  # whether who has the companion's socket has not said a word
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="millpond-log", daemon=True)
        try:
            self._connect()
            self._thread.start()
            self.pools(OPEN)  # a store that cannot be used is told here, not at the first call
        except BaseException:
            self.shut_down()
            raise

    # --- the verbs ---------------------------------------------------------------------------------------------

    def apply(self, pool: str, command: Command, done: Callable[[Reply | Exception], None], *, block: bool) -> Ticket:
        """Send a command to the companion."""
        return self._ask(lambda number, acked: _messages.Apply(number, acked, pool, command), done)

    def ask(self, pool: str, question: Question[T], done: Callable[[T | Exception], None], *, block: bool) -> Ticket:
        """Ask how requests stand, which the companion can tell; for another question, get the pool and ask it here."""
        if isinstance(question, StandingsQuestion):
            return self._ask(lambda number, acked: _messages.Look(number, pool, question.ids, question.strays), done)

        def answered(answer: Any) -> None:
            if isinstance(answer, _messages.PoolImage):
                replica = Replica(thaw(answer.image), answer.version)
                replica.history.extend(unpack(answer.history))
                try:
                    answer = question.answer(replica, answer.now)
                except Exception as error:
                    answer = error
            done(answer)

        return self._ask(lambda number, acked: _messages.GetImage(number, pool), answered)

    def watch(self, pool: str, watcher: Watcher, *, own: bool = False) -> Callable[[], None]:
        """Call a watcher for every entry from now on; with `own`, for those that concern this session."""
        entry = (watcher, own)

        begun = threading.Event()

        def begin() -> None:
            with self._lock:
                self._check_open()
                self._watchers[pool] = [*self._watchers.get(pool, ()), entry]
                self._send_watch(pool, lambda answer: begun.set())

        def stop() -> None:
            with self._lock:
                left = [one for one in self._watchers.get(pool, ()) if one is not entry]
                if len(left) == len(self._watchers.get(pool, ())):
                    return
                if left:
                    self._watchers[pool] = left
                else:
                    del self._watchers[pool]
                if not own and not self._is_closed:
                    self._send_watch(pool)

        shielded(begin)
        if not own and threading.current_thread() is not self._thread:
            begun.wait(OPEN)  # what happens from now on is told
        return lambda: shielded(stop)

    def accept(self, pool: str, request: str, token: int, until: int) -> bool:
        """Leave it to a claim."""
        return False

    def pools(self, timeout: float = OPEN) -> list[str]:
        """Return the names of all pools."""
        return list(self._wait(_messages.GetPools, timeout))

    def drop(self, pool: str) -> None:
        """Delete a pool."""
        self._wait(lambda number: _messages.Drop(number, pool), OPEN)

    def close(self) -> None:
        """Give up one use; the last one ends the session."""
        if _release(self):
            self.shut_down()

    def shut_down(self) -> None:
        """End the session: what this process holds is released."""
        if self._is_closed or os.getpid() != self.pid:
            return
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            try:
                self._wait(_messages.Bye, SILENCE)
            except EngineError as error:  # the companion will see that we are gone
                logger.warning("a session could not be ended", extra={"millpond": {"error": str(error)}})
            except PoolClosed:
                pass
        elif self._thread.is_alive():
            self._ask(lambda number, acked: _messages.Bye(number), _nobody)  # from within a callback: nobody can wait
        with self._lock:
            self._is_closed = True
            left, self._calls = list(self._calls.values()), {}
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(SILENCE)
        for call in left:
            _answer(call, PoolClosed(f"{self.url} was closed"))
        self.let_go()

    def let_go(self) -> None:
        """Close the descriptors of this process, also in a forked child, where the session is the parent's."""
        made, self._socket = self._socket, None
        if made is not None:
            made.close()
        for one in (self._wake_reader, self._wake_writer):
            if one >= 0:
                os.close(one)
        self._wake_reader = self._wake_writer = -1

    # --- sending -----------------------------------------------------------------------------------------------

    def _ask(self, make: Callable[[int, int], _messages.Message], done: Callable[[Any], None]) -> Call:
        return shielded(lambda: self._ask_now(make, done))

    def _ask_now(self, make: Callable[[int, int], _messages.Message], done: Callable[[Any], None]) -> Call:
        with self._lock:
            self._check_open()
            number = next(self._numbers)
            acked = next(iter(self._calls), number) - 1
            call = Call(self, make(number, acked), done)
            self._calls[number] = call
            self._send(call)
        return call

    def _send(self, call: Call) -> None:
        """Send a call if there is a connection; else it is sent when there is one. The lock is held."""
        if self._socket is not None:
            call.is_sent = True
            self._write(_messages.frame((call.ask,)))

    def _write(self, data: bytes) -> None:
        made = self._socket
        if made is None:
            return
        if not self._out:
            try:
                sent = made.send(data, socket.MSG_DONTWAIT)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return  # the reader sees it too, and connects again
            if sent == len(data):
                return
            data = data[sent:]
        self._out += data
        self._wake()

    def _send_watch(self, pool: str, done: Callable[[Any], None] | None = None) -> None:
        everything = any(not own for _, own in self._watchers.get(pool, ()))
        self._ask_now(lambda number, acked: _messages.Watch(number, pool, everything), done or _nobody)

    def take_back(self, call: Call) -> bool:
        """Take back a call that was not sent."""
        with self._lock:
            if call.is_sent or self._calls.get(call.ask.number) is not call:
                return False
            del self._calls[call.ask.number]
            return True

    def _wait(self, make: Callable[[int], _messages.Message], timeout: float) -> tuple[str, ...]:
        came = threading.Event()
        answers: list[Any] = []

        def done(answer: Any) -> None:
            answers.append(answer)
            came.set()

        self._ask(lambda number, acked: make(number), done)
        if not came.wait(timeout):
            raise EngineUnavailable(f"{self.url} did not answer within {timeout:g} s")
        if isinstance(answers[0], Exception):
            raise answers[0]
        return tuple(answers[0])

    def _check_open(self) -> None:
        if self._is_closed:
            raise PoolClosed(f"{self.url} is closed in this process: open the pool again")

    # --- the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._is_closed:
            try:
                self._listen()
            except OSError as error:
                logger.debug("a companion is gone", extra={"millpond": {"url": self.url, "error": str(error)}})
            except Exception:
                logger.exception("a companion said something strange")
            self._reconnect()

    def _listen(self) -> None:
        """Read until the connection is gone, or it is time to end."""
        made = self._socket
        if made is None:
            return
        frames = _messages.Frames()
        heard = elapsed()
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.register(made, select.POLLIN)
        while not self._is_closed:
            poll.modify(made, select.POLLIN | (select.POLLOUT if self._out else 0))  # no call of the kernel
            ready = dict(poll.poll(SILENCE * 1000))
            if self._wake_reader in ready:
                _drain(self._wake_reader)
            events = ready.get(made.fileno(), 0)
            if events & select.POLLOUT:
                self._flush(made)
            if events & ~select.POLLOUT:
                data = made.recv(1 << 18)
                if not data:
                    return
                heard = elapsed()
                for body in frames.feed(data):
                    for message in _messages.decode_tells(body):
                        self._take(message)
            elif not self._calls:
                heard = elapsed()
            elif not self._is_alive(elapsed() - heard):
                return

    def _is_alive(self, silence: float) -> bool:
        """Ask a companion that is silent while something is asked whether it lives; end it after a while."""
        if silence > 3 * SILENCE:
            self._end_companion()
            return False
        if silence > SILENCE:
            with self._lock:
                self._ask_now(lambda number, acked: _messages.Ping(number), _nobody)
        return True

    def _flush(self, made: socket.socket) -> None:
        with self._lock:
            while self._out:
                try:
                    del self._out[: made.send(self._out, socket.MSG_DONTWAIT)]
                except (BlockingIOError, InterruptedError):
                    return

    def _end_companion(self) -> None:
        """End a companion that does not answer: another one goes on with everything."""
        self._is_mute = self.companion is None
        logger.warning("a companion does not answer", extra={"millpond": {"url": self.url, "process": self.companion}})
        found = self.companion or written_pid(self._url)
        if found is not None and is_gone(*found) is False:
            with suppress(OSError):
                os.kill(found[0], signal.SIGKILL)

    def _reconnect(self) -> None:
        """Find or start a companion again, until there is one. After a while, calls are answered without one."""
        was_refused = self.companion is None
        with self._lock:
            made, self._socket, self.companion = self._socket, None, None
            self._out.clear()
            if made is not None:
                made.close()
        failures, since = 0, elapsed()
        if was_refused and not self._is_closed:  # it ended before it had welcomed us: do not hurry
            self._rest(random.uniform(0.1, 0.3))
        while not self._is_closed:
            try:
                self._connect()
                return
            except Exception as error:
                failures += 1
                if failures == 5:
                    logger.warning("no companion", extra={"millpond": {"url": self.url, "error": str(error)}})
                if elapsed() - since > SILENCE:
                    self._fail_all(f"{self.url} cannot be used: {error}; whether the call took effect is unknown")
                self._rest(min(1.0, 0.02 * 2 ** min(failures, 8)) * random.uniform(0.5, 1))

    def _fail_all(self, text: str) -> None:
        with self._lock:
            left, self._calls = list(self._calls.values()), {}
        for call in left:
            _answer(call, EngineUnavailable(text))

    def _rest(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        poll.poll(seconds * 1000)
        _drain(self._wake_reader)

    def _connect(self) -> None:
        """Connect, and say again what was not answered."""
        made = meet(self._url, self._here, is_mute=self._is_mute)
        self._is_mute = False
        with self._lock:
            self._socket = made
            pools = tuple(self._watchers)
            self._write(_messages.frame((_messages.Hello(self.session, self._here, pools),)))
            for pool in pools:
                self._send_watch(pool)
            for call in list(self._calls.values()):
                self._send(call)

    def _wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_writer, b"!")

    # --- hearing -----------------------------------------------------------------------------------------------

    def _take(self, message: _messages.Tell) -> None:
        match message:
            case _messages.News():
                self._tell(message.pool, message.entries)
            case _messages.Replied():
                reply: Any = message.reply
                if reply.kind in ("failed", "forgotten"):
                    reply = EngineError(f"{self.url}: {reply.detail or 'the call came too late to be answered'}")
                self._answer(message.number, reply)
            case _messages.Standings():
                self._answer(message.number, list(message.standings))
            case _messages.PoolImage():
                self._answer(message.number, message)
            case _messages.Names():
                self._answer(message.number, message.names)
            case _messages.Failed():
                kind = EngineUnavailable if message.is_away else EngineError
                self._answer(message.number, kind(message.text))
            case _messages.Missed():
                self._tell(message.pool, ())
            case _messages.Welcome():
                self.companion = (message.pid, message.start)

    def _tell(self, pool: str, entries: Sequence[Entry]) -> None:
        for watcher, _ in self._watchers.get(pool, ()):
            try:
                watcher(entries)
            except Exception:
                logger.exception("a watcher failed")

    def _answer(self, number: int, answer: Any) -> None:
        with self._lock:
            call = self._calls.pop(number, None)
        if call is not None:
            _answer(call, answer)


def _answer(call: Call, answer: Any) -> None:
    try:
        call.done(answer)
    except Exception:
        logger.exception("an answer was not taken")


def _nobody(answer: Any) -> None:
    """Take an answer that nobody waits for."""


def _drain(descriptor: int) -> None:
    with suppress(OSError):
        while os.read(descriptor, 4096):
            pass


_open: dict[str, LogEngine] = {}
_opening: dict[str, threading.Lock] = {}  # by URL: one that is away holds up no other
_registry_lock = threading.Lock()


def open_shared(url: str, machine: str) -> LogEngine:
    """Return the engine of a URL; processes have one each."""
    with _registry_lock:
        turn = _opening.setdefault(url, threading.Lock())
    with turn:
        with _registry_lock:
            engine = _open.get(url)
            if engine is not None:
                engine.users += 1
                return engine
        made = LogEngine(url, machine)
        with _registry_lock:
            _open[url] = made
            made.users += 1
            return made


def _release(engine: LogEngine) -> bool:
    """Give up one use; tell whether it was the last."""
    with _registry_lock:
        engine.users -= 1
        if engine.users > 0:
            return False
        if _open.get(engine._url) is engine:
            del _open[engine._url]
        return True


def _forget_in_child() -> None:
    """Begin anew after a fork: the sessions are the parent's."""
    global _registry_lock
    _registry_lock = threading.Lock()
    _opening.clear()
    for engine in _open.values():
        engine.let_go()
    _open.clear()


def close_all() -> None:
    """End all sessions of this process, at its exit."""
    for engine in list(_open.values()):
        engine.shut_down()


os.register_at_fork(after_in_child=_forget_in_child)

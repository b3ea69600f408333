"""Hints by publish and subscribe: one thread and one connection for all who listen at a store.

Hints that were published while there was no connection are lost, so everybody is called once when there is one (again).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from millpond._fork import this
from millpond._redis import Address, Connection, ServerError, connected
from millpond.keyed.rules.records import Signal

_PATIENCE: Final = 5.0
"""Seconds of silence after which the connection is tried, and after which it is given up."""
_PAUSES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)

_log = logging.getLogger("millpond")


class Subscription:
    """Somebody who listens for hints to one name."""

    def __init__(
        self,
        listener: Listener,
        channel: bytes,
        heard: Callable[[], None],
        handed: Callable[[int, Signal], None] | None,
    ) -> None:
        self._listener, self.channel, self.heard, self.handed = listener, channel, heard, handed

    def close(self) -> None:
        """Unsubscribe."""
        self._listener.unsubscribe(self)


class Listener:
    """All subscriptions of a store."""

    def __init__(self, address: Address, base: bytes) -> None:
        self._address, self._base = address, base
        self._everybody = base + b"all"
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[bytes, list[Subscription]] = {}
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._pid = this.pid

    def listen(
        self, name: str, heard: Callable[[], None], handed: Callable[[int, Signal], None] | None = None
    ) -> Subscription:
        """Call `heard` for hints to that name, and to everybody; `handed` for those that carry a job."""
        if self._pid != this.pid:  # the subscriptions of the parent hear there
            self._begin_anew()
        channel = self._base + b"to:" + name.encode()
        subscription = Subscription(self, channel, heard, handed)
        with self._lock:
            subscriptions = self._subscriptions.setdefault(channel, [])
            subscriptions.append(subscription)
            if len(subscriptions) == 1:
                self._say("SUBSCRIBE", channel)
            if self._thread is None:
                self._over = threading.Event()
                self._thread = threading.Thread(
                    target=self._listen, args=(self._over,), name="millpond-redis-listener", daemon=True
                )
                self._thread.start()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Call this subscription no more."""
        if self._pid != this.pid:
            return
        with self._lock:
            subscriptions = self._subscriptions.get(subscription.channel, [])
            if subscription in subscriptions:
                subscriptions.remove(subscription)
                if not subscriptions:
                    del self._subscriptions[subscription.channel]
                    self._say("UNSUBSCRIBE", subscription.channel)

    def close(self) -> None:
        """End the thread."""
        if self._pid != this.pid:
            return
        with self._lock:
            self._over.set()
            thread, self._thread = self._thread, None
            self._say("PING")  # its answer wakes the thread up
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _say(self, *words: str | bytes) -> None:
        """Send a command if there is a connection; the thread reads the answer. Call it with the lock held."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the thread notices, and connects again
                self._connection.send(words)

    def _listen(self, over: threading.Event) -> None:
        failures = 0
        while not over.is_set():
            connection = None
            try:
                connection = connected(self._address)
                with self._lock:
                    self._connection = connection
                    self._say("SUBSCRIBE", self._everybody, *self._subscriptions)
                self._call(self._all_subscriptions())
                failures = 0
                self._read(connection, over)
            except (ServerError, OSError):
                failures += 1
            finally:
                with self._lock:
                    if self._connection is connection:
                        self._connection = None
                if connection is not None:
                    connection.close()
            over.wait(_PAUSES[min(failures, len(_PAUSES) - 1)])

    def _read(self, connection: Connection, over: threading.Event) -> None:
        is_asked = False
        while not over.is_set():
            messages = connection.heard(_PATIENCE)
            if not messages:
                if is_asked:
                    raise TimeoutError("no answer")
                with self._lock:
                    self._say("PING")
            is_asked = not messages
            for message in messages:
                if isinstance(message, ServerError):
                    raise message
                if isinstance(message, list) and message[0] in (b"message", b"subscribe"):
                    self._tell(message[0] == b"message", message[1], message[2])

    def _tell(self, is_message: bool, channel: bytes, text: Any) -> None:
        """Wake up those who listen there; a channel that has just been subscribed to may have had something before."""
        if channel != self._everybody:
            with self._lock:
                subscriptions = list(self._subscriptions.get(channel, ()))
            if is_message and text:
                self._hand(subscriptions, text)
            else:
                self._call(subscriptions)
        elif is_message:
            self._call(self._all_subscriptions())

    def _all_subscriptions(self) -> list[Subscription]:
        with self._lock:
            return [subscription for subscriptions in self._subscriptions.values() for subscription in subscriptions]

    def _call(self, subscriptions: list[Subscription]) -> None:
        for subscription in subscriptions:
            try:
                subscription.heard()
            except Exception:
                _log.exception("a listener of a keyed pool failed")

    def _hand(self, subscriptions: list[Subscription], text: bytes) -> None:
        """Pass on a job that came with a hint; who does not take any is told to look."""
        try:
            before, signal = _handed(text)
        except ValueError:  # whoever may publish can say anything; the job itself stands in the store
            _log.warning("a hint to a keyed pool was not understood: %r", text[:80])
            self._call(subscriptions)
            return
        for subscription in subscriptions:
            try:
                if subscription.handed is None:
                    subscription.heard()
                else:
                    subscription.handed(before, signal)
            except Exception:
                _log.exception("a listener of a keyed pool failed")


def _handed(text: bytes) -> tuple[int, Signal]:
    """Return a job that came with a hint, and the number of the signal before it. Raise ValueError."""
    before, number, slot, token, length, rest = text.split(b" ", 5)
    mailbox, data = rest[: int(length)], rest[int(length) :]
    return int(before), Signal(int(number), "take", mailbox.decode(), "", int(token), data, int(slot))

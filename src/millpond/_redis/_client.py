"""Calls to a server, one after the other, and what its troubles mean.

A call that found the connection broken or the server slow may have run or not, so it is never sent again from here: the
connection is dropped and the caller is told. Only what surely did not run is sent again: a script that the server does
not know, a node of a cluster that sends us elsewhere, a connection that was closed before we wrote to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from millpond._clock import elapsed
from millpond._redis._address import Address
from millpond.errors import EngineError, EngineUnavailable

try:
    from hiredis import Reader as _Reader
    from hiredis import pack_command as _pack_command
except ImportError:  # pragma: no cover  (the extra brings it; this is for where it has no wheel)
    from millpond._redis._parser import Reader as _Reader  # type: ignore[assignment]
    from millpond._redis._parser import packed as _pack_command  # type: ignore[assignment]

Argument: TypeAlias = str | bytes | int
_packed: Final[Callable[[tuple[Argument, ...]], bytes]] = _pack_command  # type: ignore[assignment]
_REDIRECTS: Final = 5
SILENCE: Final = 15.0
"""Seconds after which a subscription that does not answer is taken for dead."""


class ServerError(Exception):
    """What the server answered instead of a result."""


class NotRedis(ConnectionError):
    """What answered does not speak the protocol of Redis."""


class Script:
    """A script, and the name by which the server knows it once it was loaded."""

    __slots__ = ("sha", "source")

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.sha = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()


RECENT = 0.1
"""Seconds after an answer for which a connection is taken to be open without looking."""


def _nothing() -> int:
    return 0


class Connection:
    """One connection that is ready for use. One thread reads; another may write meanwhile, one at a time."""

    def __init__(self, address: Address) -> None:
        self.socket = address.connect()
        self._reader = _Reader(protocolError=NotRedis, replyError=ServerError)
        self._pending: Callable[[], int] = getattr(self.socket, "pending", _nothing)
        """Bytes that TLS has taken from the socket already."""
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)
        self._patience = address.patience * 1000
        self.used = 0.0
        """When something was last heard on it."""
        try:
            if address.password or address.username:
                name = [address.username] if address.username else []
                self.must("AUTH", *name, address.password)
            if address.db:
                self.must("SELECT", address.db)
        except BaseException:
            self.close()
            raise

    def must(self, *args: Argument) -> None:
        self.send(args)
        answer = self.read()
        if isinstance(answer, ServerError):
            raise answer

    def send(self, args: Sequence[Argument]) -> None:
        try:
            self.socket.sendall(_packed(tuple(args)))
        except BlockingIOError as error:
            raise TimeoutError("the server takes nothing in") from error

    def read(self) -> Any:
        while (answer := self._reader.gets()) is False:
            self._receive()
        self.used = elapsed()
        return answer

    def heard(self, seconds: float) -> list[Any]:
        """Return the answers that have come; wait for the first one for so many seconds."""
        found: list[Any] = []
        while True:
            while (answer := self._reader.gets()) is not False:
                found.append(answer)
            if not self._pending() and not self._poll.poll(0 if found else seconds * 1000):
                return found
            self._receive()

    def _receive(self) -> None:
        if not self._pending() and not self._poll.poll(self._patience):
            raise TimeoutError("the server does not answer")  # the kernel's own limit begins anew with each signal
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError as error:
            raise TimeoutError("the server does not answer") from error
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(data)

    def is_over(self) -> bool:
        """Return whether the server closed it, or has said something, while nothing was asked."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.close()


class Client:
    """Calls to the server, or to the node of a cluster that has the keys."""

    def __init__(self, address: Address, *, recent: float = RECENT) -> None:
        self.address = address
        self._recent = recent
        self._connection: Connection | None = None

    def run(self, script: Script, keys: Sequence[Argument], args: Sequence[Argument]) -> Any:
        """Run a script."""
        return self._call(("EVALSHA", script.sha, len(keys), *keys, *args), script)

    def command(self, *args: Argument) -> Any:
        """Run a plain command."""
        return self._call(args, None)

    def _call(self, args: tuple[Argument, ...], script: Script | None) -> Any:
        for _ in range(_REDIRECTS):
            answer = self._guarded(args)
            if not isinstance(answer, ServerError):
                return answer
            text = str(answer)
            if text.startswith("NOSCRIPT") and script is not None:
                loaded = self._guarded(("SCRIPT", "LOAD", script.source))
                if isinstance(loaded, ServerError):
                    raise explained(loaded, self.address)
            elif text.startswith("MOVED "):
                host, _, port = text.split()[-1].rpartition(":")
                self._drop()
                self.address.redirect(host, int(port))
            else:
                if _says(text, "READONLY", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED"):
                    self._drop()  # another server may answer to that name now
                    self.address.return_to_first()
                raise explained(answer, self.address)
        raise EngineUnavailable(
            f"redis at {self.address.name} sent the call elsewhere or forgot its script {_REDIRECTS} times; try again "
            "when the cluster is at rest"
        )

    def _guarded(self, args: tuple[Argument, ...]) -> Any:
        try:
            return self._send(args)
        except (OSError, ServerError) as error:
            raise explained(error, self.address) from error

    def _send(self, args: tuple[Argument, ...]) -> Any:
        connection = self._connection
        if connection is not None and elapsed() - connection.used > self._recent and connection.is_over():
            self._drop()
            connection = None
        if connection is None:
            connection = self._connection = self._connect()
        try:
            connection.send(args)
            return connection.read()
        except BaseException:  # also a signal: what comes next on it would be the answer to this call
            self._drop()
            raise

    def _connect(self) -> Connection:
        try:
            return connected(self.address)
        except OSError as error:
            raise explained(error, self.address, is_sent=False) from error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connection."""
        self._drop()


class Subscription:
    """Messages of channels. Those that were published while there was no connection are lost: `messages` tells so."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._channels: set[str] = set()
        self._connection: Connection | None = None
        self._is_new = True
        self._asked = 0.0  # since when an answer is awaited

    def subscribe(self, channels: Iterable[str]) -> None:
        """Listen to these channels and no others; connect if there is no connection."""
        wanted = set(channels)
        new, old = wanted - self._channels, self._channels - wanted
        self._channels = wanted
        connection = self._connection
        try:
            if connection is None:
                connection = self._connection = Connection(self._address)
                self._is_new = True
                new, old = wanted, set()
            for channel in sorted(new):
                connection.send(("SUBSCRIBE", channel))
            for channel in sorted(old):
                connection.send(("UNSUBSCRIBE", channel))
        except (OSError, ServerError) as error:
            self._drop()
            raise explained(error, self._address) from error

    def fileno(self) -> int:
        """Return the descriptor to wait on; -1 when there is no connection."""
        return -1 if self._connection is None else self._connection.socket.fileno()

    def messages(self) -> list[bytes] | None:
        """Return what has come; None when something may have been missed (the connection is new, or broken)."""
        found: list[bytes] = []
        was_new, self._is_new = self._is_new, False
        connection = self._connection
        if connection is None:
            return None
        try:
            for answer in connection.heard(0):
                self._asked = 0.0
                if isinstance(answer, list) and answer[0] == b"message":
                    found.append(answer[2])
                elif isinstance(answer, ServerError):
                    raise answer
        except (OSError, ServerError):
            self._drop()
            return None
        return None if was_new else found

    def ping(self) -> None:
        """Drop a connection that has been silent although it was asked; ask it for a sign of life."""
        if self._connection is None:
            return
        now = elapsed()
        if self._asked and now - self._asked > SILENCE:
            self._drop()
        elif not self._asked:
            try:
                self._connection.send(("PING",))
                self._asked = now
            except OSError:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._asked = 0.0
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connection."""
        self._drop()


def connected(address: Address) -> Connection:
    """Return a new connection: to the node that we were sent to, or else to that of the URL. Raise OSError."""
    try:
        return Connection(address)
    except OSError:
        sent_to = address.host, address.port
        if not address.return_to_first():
            raise
        try:
            return Connection(address)
        except OSError:
            address.redirect(*sent_to)  # either may come back first
            raise


def explained(error: Exception, address: Address, *, is_sent: bool = True) -> EngineError:
    """Return an error of ours: what happened, and what to do. `is_sent`: the call may have reached the server."""
    where, text = f"redis at {address.name}", str(error)
    if isinstance(error, ServerError):
        for words, what in _REFUSALS:
            if _says(text, *words):
                return EngineError(f"{where} {what.format(prefix=address.prefix)} ({text})")
        for words, what in _TROUBLES:
            if _says(text, *words):
                return EngineUnavailable(f"{where} {what} ({text})")
        return EngineError(f"{where} refused a call: {text}; this looks like a bug of millpond, please report it")
    if is_sent and isinstance(error, TimeoutError):
        return EngineUnavailable(
            f"{where} did not answer within {address.patience:g} s: whether the call took effect is unknown; look at "
            "the load of the server, or put ?socket_timeout= into the URL"
        )
    fate = "whether the call took effect is unknown" if is_sent else "nothing was sent"
    return EngineUnavailable(
        f"{where} cannot be reached ({text.rstrip('.')}): {fate}; check that the server runs and that the URL is right"
    )


def _says(text: str, *words: str) -> bool:
    """Return whether an error begins with a word; Redis 6.2 puts others in front of what a script ran into."""
    return text.startswith(words) or any(f"-{word}" in text for word in words)


_REFUSALS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (
        ("WRONGPASS", "NOAUTH", "ERR AUTH", "ERR invalid password", "ERR Client sent AUTH"),
        "refused to let us in: put user and password into the URL: redis://user:password@host",
    ),
    (
        ("ERR DB index", "ERR SELECT"),
        "has no database of that number: put another one into the URL, redis://host:6379/0",
    ),
    (
        ("NOPERM",),
        "forbids something that a pool needs; allow the user of the URL: +@all -@dangerous +info ~{prefix}* &{prefix}*",
    ),
)
_TROUBLES: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("ERR max number of clients",), "has too many clients; raise maxclients, or close some"),
    (("LOADING",), "is loading its data after a start; try again in a while"),
    (("READONLY",), "is a read-only replica; wait for the failover, or give the URL of the primary"),
    (("OOM",), "is out of memory and refuses writes; give it more"),
    (("CLUSTERDOWN", "MASTERDOWN"), "says that its cluster is down or its primary gone; try again in a while"),
    (("ASK", "TRYAGAIN"), "is moving the pool to another node; try again when that is done"),
    (("BUSY",), "is busy with a script of somebody; wait for it, or SCRIPT KILL it"),
    (("MISCONF",), "cannot save its data and refuses writes; look at its log and its disk"),
    (("NOREPLICAS",), "has too few replicas and refuses writes; try again when they are back"),
)

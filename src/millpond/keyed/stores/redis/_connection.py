"""A connection to the server, and what its troubles mean.

A call that found the connection broken or the server slow may have run or not, so it is never sent again from here, and
redis-py is kept from doing so (by default it would, up to ten times): the connection is dropped and the caller is told.
Only what surely did not run is sent again: a script that the server does not know, or a node of a cluster that sends us
elsewhere. What the library gets from redis-py is the way to the server: sockets, TLS, authentication, the protocol.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
from redis.retry import Retry

from millpond._fork import this
from millpond.errors import EngineError, EngineUnavailable
from millpond.keyed.stores.redis._scripts import Script, script

CONNECT: Final = 2.0
CALL: Final = 5.0
PREFIX: Final = "millpond:"
_REDIRECTS: Final = 5
_SCHEMES: Final = {
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
    "redis+unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
    "valkey+cluster": "redis",
    "valkeys+cluster": "rediss",
    "valkey+unix": "unix",
}
_ONLY_HERE: Final = {
    "credential_provider",
    "ssl_ca_data",
    "ssl_ciphers",
    "ssl_min_version",
    "ssl_ocsp_context",
    "ssl_password",
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
}
"""Options of a connection that the heart of a worker, which has no redis-py, cannot honour."""
_parse_url: Any = parse_url


class Place:
    """Where the server is: as the URL says, or as a node of its cluster said."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        if scheme not in ("redis", "rediss", "unix"):
            raise ValueError(f"{url!r} is no URL of Redis; write redis://host:6379/0, rediss://… or unix:///path")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.prefix = query.pop("prefix", PREFIX)
        query.pop("cluster", None)
        query.pop("machine", None)  # for resource pools
        options: dict[str, Any] = {
            "socket_connect_timeout": CONNECT,
            "socket_timeout": CALL,
            "socket_keepalive": True,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        if scheme == "unix":
            del options["socket_keepalive"], options["socket_connect_timeout"]
        options |= _parse_url(f"{scheme}://{parts.netloc}{parts.path}?{urlencode(query)}")
        self._make: Any = options.pop("connection_class", Connection)
        self._options = self._seed = options

    @property
    def name(self) -> str:
        """What people know it by; no secret."""
        path = self._options.get("path")
        return str(path) if path else f"{self._options.get('host', 'localhost')}:{self._options.get('port', 6379)}"

    @property
    def patience(self) -> float:
        return float(self._options["socket_timeout"] or 0)

    def address(self) -> dict[str, Any]:
        """Return where the server is and how to get in, for a program that has no redis-py; raise if it could not."""
        get = self._seed.get
        if odd := sorted(_ONLY_HERE & self._seed.keys()):
            raise OSError(f"it cannot honour {odd[0]} of the URL")
        tls = None
        if issubclass(self._make, SSLConnection):
            tls = {
                "ca_file": get("ssl_ca_certs"),
                "ca_path": get("ssl_ca_path"),
                "cert_file": get("ssl_certfile"),
                "key_file": get("ssl_keyfile"),
                "verifies": str(get("ssl_cert_reqs", "required")).lower() not in ("none", "0"),
                "check_hostname": get("ssl_check_hostname", True) not in (False, "False", "false", "no", "0"),
            }
        return {
            "host": get("host", "localhost"),
            "port": int(get("port", 6379)),
            "path": get("path"),
            "db": int(get("db", 0) or 0),
            "username": (get("username") or "").encode(),
            "password": (get("password") or "").encode(),
            "tls": tls,
        }

    def redirect(self, host: str, port: int) -> None:
        """Go to another node from now on."""
        self._options = {**self._options, "host": host or self._options.get("host", "localhost"), "port": port}

    def connect(self) -> Any:
        """Return a new connection that is ready: to the node that we were sent to, or else to that of the URL."""
        try:
            return self._connect()
        except EngineUnavailable:
            if self._options is self._seed:
                raise
            sent_to, self._options = self._options, self._seed
            try:
                return self._connect()
            except EngineUnavailable:
                self._options = sent_to  # either may come back first
                raise

    def _connect(self) -> Any:
        try:
            connection = self._make(**self._options)
        except TypeError as error:
            raise ValueError(f"the URL of Redis has an option that redis-py does not know: {error}") from None
        try:
            connection.connect()
        except (exceptions.RedisError, OSError) as error:
            raise explained(error, self, is_sent=False) from error
        return connection


class Link:
    """One connection for one purpose. Calls go out in the order in which they are made, one after the other."""

    def __init__(self, place: Place, base: bytes) -> None:
        self._place, self._base = place, base
        self._connection: Any = None
        self._lock = threading.Lock()
        self._pid = this.pid

    def run(self, name: str, args: Sequence[str | bytes | int]) -> Any:
        """Run a script; its answer is what it is."""
        one = script(name)
        return self._call(("EVALSHA", one.sha, 1, self._base, *args), one)

    def command(self, *args: str | bytes | int) -> Any:
        """Run a plain command."""
        return self._call(args, None)

    def _call(self, args: tuple[str | bytes | int, ...], one: Script | None) -> Any:
        if self._pid != this.pid:
            self._begin_anew()
        with self._lock:
            for _ in range(_REDIRECTS):
                try:
                    return self._send(args)
                except exceptions.NoScriptError:
                    if one is None:
                        raise
                    self._guarded(("SCRIPT", "LOAD", one.source))
                except (exceptions.RedisError, OSError) as error:
                    elsewhere = _elsewhere(error)
                    if elsewhere is None:
                        raise self._explain(error) from error
                    self._drop()
                    self._place.redirect(*elsewhere)
        raise EngineUnavailable(
            f"redis at {self._place.name} sent the call elsewhere or forgot its script {_REDIRECTS} times; try again "
            "when the cluster is at rest"
        )

    def _guarded(self, args: tuple[str | bytes | int, ...]) -> Any:
        try:
            return self._send(args)
        except (exceptions.RedisError, OSError) as error:
            raise self._explain(error) from error

    def _send(self, args: tuple[str | bytes | int, ...]) -> Any:
        connection = self._connection
        if connection is not None and _is_over(connection):
            self._drop()
            connection = None
        if connection is None:
            connection = self._connection = self._place.connect()
        try:
            connection.send_packed_command(connection.pack_command(*args), check_health=False)
            return connection.read_response()
        except exceptions.ResponseError:
            raise  # the answer to this call; the connection is as good as before
        except BaseException:  # also Ctrl-C: what comes next on it would be the answer to this call
            self._drop()
            raise

    def _explain(self, error: Exception) -> EngineError:
        if _is(error, "READONLY", "read only", "CLUSTERDOWN", "MASTERDOWN"):
            self._drop()  # another server may answer to that name now
        return explained(error, self._place)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _begin_anew(self) -> None:
        """In a forked child: the socket is the parent's, and its lock may be held by a thread that is not here."""
        self._connection = None
        self._lock = threading.Lock()
        self._pid = this.pid

    def close(self) -> None:
        if self._pid != this.pid:
            return
        with self._lock:
            self._drop()


def _elsewhere(error: Exception) -> tuple[str, int] | None:
    """Return the node to which another one sends us; older versions of redis-py have no error of its own for that."""
    if not (isinstance(error, exceptions.MovedError) or str(error).startswith("MOVED ")):
        return None
    host, _, port = str(error).split()[-1].rpartition(":")
    return host, int(port)


def _is_over(connection: Any) -> bool:
    """Tell whether the server closed a connection while nothing was asked on it: then nothing was lost, either."""
    try:
        return bool(connection.can_read(0))
    except (exceptions.RedisError, OSError):
        return True


def explained(error: Exception, place: Place, *, is_sent: bool = True) -> EngineError:
    """Return an error of ours: what happened, and what to do. `is_sent`: the call may have reached the server."""
    where = f"redis at {place.name}"
    text = str(error)
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError) or _is(
        error, "WRONGPASS", "NOAUTH"
    ):
        return EngineError(
            f"{where} refused to let us in: {text}; put user and password into the URL: redis://user:password@host"
        )
    if isinstance(error, exceptions.NoPermissionError) or "NOPERM" in text:
        return forbidden(text, place)
    for kind, word, what in _TEMPORARY:
        if isinstance(error, kind) and (not word or _is(error, word)):
            return EngineUnavailable(f"{where} {what} ({text})")
    if is_sent and isinstance(error, exceptions.TimeoutError | TimeoutError):
        return EngineUnavailable(
            f"{where} did not answer within {place.patience:g} s ({text}): whether the call took effect is unknown; "
            "look at the load of the server, or put ?socket_timeout= into the URL"
        )
    if isinstance(error, exceptions.ResponseError):
        return EngineError(f"{where} refused a call: {text}; this looks like a bug of millpond, please report it")
    fate = "whether the call took effect is unknown" if is_sent else "nothing was sent"
    return EngineUnavailable(
        f"{where} cannot be reached ({text.rstrip('.')}): {fate}; check that the server runs and that the URL is "
        "right, then call again"
    )


def forbidden(text: str, place: Place) -> EngineError:
    """Return an error of ours for what the user of the URL may not do."""
    return EngineError(
        f"redis at {place.name} forbids something that a pool needs: {text}; allow the user of the URL: "
        f"+@all -@dangerous +info ~{place.prefix}* &{place.prefix}*"
    )


def _is(error: Exception, *words: str) -> bool:
    return any(word in str(error) for word in words)


_TEMPORARY: Final = (
    (exceptions.BusyLoadingError, "", "is loading its data after a start; try again in a while"),
    (exceptions.ReadOnlyError, "", "is a read-only replica now; wait for the failover, or give the URL of the primary"),
    (exceptions.OutOfMemoryError, "", "is out of memory and refuses writes; give it more or drain the pool"),
    (exceptions.AskError, "", "is moving the pool to another node; try again when that is done"),
    (exceptions.ClusterDownError, "", "says that its cluster is down or its primary gone; try again in a while"),
    (exceptions.TryAgainError, "", "is moving the pool to another node; try again when that is done"),
    (exceptions.ResponseError, "CLUSTERDOWN", "says that its cluster is down; try again in a while"),
    (exceptions.ResponseError, "MASTERDOWN", "says that its primary is gone; try again in a while"),
    (exceptions.ResponseError, "TRYAGAIN", "is moving the pool to another node; try again when that is done"),
    (exceptions.ResponseError, "ASK ", "is moving the pool to another node; try again when that is done"),
    (exceptions.ResponseError, "BUSY", "is busy with a script of somebody; wait for it, or SCRIPT KILL it"),
    (exceptions.ResponseError, "MISCONF", "cannot save its data and refuses writes; look at its log and its disk"),
    (exceptions.ResponseError, "NOREPLICAS", "has too few replicas and refuses writes; try again when they are back"),
    (exceptions.ResponseError, "OOM ", "is out of memory and refuses writes; give it more or drain the pool"),
    (
        exceptions.ResponseError,
        "READONLY",
        "is a read-only replica now; wait for the failover, or give the URL of the primary",
    ),
    (exceptions.ResponseError, "LOADING", "is loading its data after a start; try again in a while"),
)

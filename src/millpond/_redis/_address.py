"""Where a server is and how to get in, as a URL says it."""

from __future__ import annotations

import math
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from millpond._urls import shown

CONNECT: Final = 2.0
CALL: Final = 5.0
_LONGEST: Final = 1e9
"""Seconds that the kernel can still count."""
PREFIX: Final = "millpond:"
_SCHEMES: Final = {
    "redis": "tcp",
    "valkey": "tcp",
    "redis+cluster": "tcp",
    "valkey+cluster": "tcp",
    "rediss": "tls",
    "valkeys": "tls",
    "rediss+cluster": "tls",
    "valkeys+cluster": "tls",
    "unix": "unix",
    "redis+unix": "unix",
    "valkey+unix": "unix",
}
_OPTIONS: Final = frozenset(
    {
        "cluster",
        "db",
        "machine",
        "password",
        "prefix",
        "protocol",
        "socket_connect_timeout",
        "socket_timeout",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_keyfile",
        "username",
    }
)


class Address:
    """A server, and how to get in. `host` and `port` change when a node of a cluster sends us elsewhere."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        kind = _SCHEMES.get(parts.scheme)
        if kind is None:
            raise ValueError(
                f"{shown(url)!r} is no URL of Redis; write redis://host:6379/0, rediss://… or unix:///path"
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if odd := sorted(options.keys() - _OPTIONS):
            raise ValueError(f"{shown(url)!r} has an option {odd[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
        if options.get("protocol", "2") not in ("2", "3"):  # we speak one that every server knows, whatever is said
            raise ValueError(f"{shown(url)!r} has protocol={options['protocol']!r}; it must be 2 or 3, or left out")
        if kind != "tls" and (odd := sorted(name for name in options if name.startswith("ssl_"))):
            raise ValueError(f"{shown(url)!r} has {odd[0]!r}, but uses no TLS: write rediss://, or leave it out")
        try:
            self.port = parts.port or 6379
            path = parts.path.strip("/")
            self.db = int(options.get("db", path if kind != "unix" and path else 0))
            self.patience = float(options.get("socket_timeout", CALL))
            self._connect_patience = float(options.get("socket_connect_timeout", CONNECT))
            self.host = parts.hostname or "localhost"
            self.host.encode("idna")
            if self.db < 0:
                raise ValueError
        except ValueError:  # its words may show a password that has a slash in it
            raise ValueError(
                f"{shown(url)!r} is no URL of Redis: write redis://user:password@host:6379/0, odd characters of the "
                "password as %2F and the like"
            ) from None
        for patience in (self.patience, self._connect_patience):
            if not 0 < patience < math.inf:
                raise ValueError(f"{shown(url)!r} has a time-out of {patience:g}; it must be more than 0 seconds")
        self.path = unquote(parts.path) if kind == "unix" else ""
        self.username = unquote(parts.username or "") or options.get("username", "")
        self.password = unquote(parts.password or "") or options.get("password", "")
        self.prefix = options.get("prefix", PREFIX)
        self.machine = options.get("machine", "")
        self._is_tls = kind == "tls"
        self._checks_host = _either(url, options, "ssl_check_hostname", ("true", "yes", "1"), ("false", "no", "0"))
        self._verifies = _either(url, options, "ssl_cert_reqs", ("required", "optional", "2", "1"), ("none", "0"))
        self._options = options
        self._first = (self.host, self.port)

    def for_programs(self) -> dict[str, Any]:
        """Return the same as plain data, for a program that has nothing of ours; it begins where the URL says."""
        get: Any = self._options.get
        host, port = self._first
        tls = {
            "ca_file": get("ssl_ca_certs"),
            "ca_path": get("ssl_ca_path"),
            "cert_file": get("ssl_certfile"),
            "key_file": get("ssl_keyfile"),
            "verifies": self._verifies,
            "check_hostname": self._checks_host,
        }
        return {
            "host": host,
            "port": port,
            "path": self.path,
            "db": self.db,
            "username": self.username.encode(),
            "password": self.password.encode(),
            "tls": tls if self._is_tls else None,
        }

    @property
    def name(self) -> str:
        """What people know it by; no secret."""
        return self.path or f"{self.host}:{self.port}"

    def redirect(self, host: str, port: int) -> None:
        """Go to another node from now on."""
        self.host, self.port = host or self.host, port

    def return_to_first(self) -> bool:
        """Go to the node of the URL again; False when we are there."""
        was = (self.host, self.port)
        self.host, self.port = self._first
        return was != self._first

    def connect(self) -> socket.socket:
        """Return a new connection, or raise OSError."""
        if self.path:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(self.patience)
            try:
                made.connect(self.path)
                _limit(made, self.patience)
            except BaseException:
                made.close()
                raise
            return made
        made = socket.create_connection((self.host, self.port), self._connect_patience)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            made.settimeout(self.patience)
            if self._is_tls:
                return self._secured(made)
            _limit(made, self.patience)
            return made
        except BaseException:
            made.close()
            raise

    def _secured(self, made: socket.socket) -> socket.socket:
        get: Any = self._options.get
        context = ssl.create_default_context(cafile=get("ssl_ca_certs"), capath=get("ssl_ca_path"))
        context.check_hostname = self._checks_host
        if not self._verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if get("ssl_certfile"):
            context.load_cert_chain(get("ssl_certfile"), get("ssl_keyfile"))
        return context.wrap_socket(made, server_hostname=self.host)


def _either(url: str, options: Mapping[str, str], name: str, yes: Sequence[str], no: Sequence[str]) -> bool:
    """Return what an option of two sides says; the first word of `yes` when it is not there."""
    word = options.get(name, yes[0]).lower()
    if word not in (*yes, *no):
        raise ValueError(f"{shown(url)!r} has {name}={options[name]!r}; it must be one of {', '.join((*yes, *no))}")
    return word in yes


def _limit(made: socket.socket, seconds: float) -> None:
    """Leave the time limit to the kernel: Python asks it before each call whether there is something to read."""
    whole, part = divmod(max(1, round(min(seconds, _LONGEST) * 1_000_000)), 1_000_000)  # 0 would be no limit
    limit = struct.pack("ll", whole, part)
    made.settimeout(None)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

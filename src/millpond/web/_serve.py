"""The server of `millpond web`: one process, bound to this machine unless there is a token.

Somebody who opens connections and says nothing, or little, is let go after a few seconds, so that 200 of those do not
keep others out.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from millpond.errors import PoolError
from millpond.web._app import app
from millpond.web._pools import OpenPools

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise ImportError('the page needs starlette and uvicorn: pip install "millpond[web]"') from error

ASKING = 10.0
"""Seconds in which the head of a request must have come."""
IDLE = 5
ENDING = 3


class Impatient(H11Protocol):
    """HTTP, with an end to waiting for the head of a request."""

    _alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait on, if that was not all of the head of a request."""
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        elif self._alarm is None:
            self._wait()

    def on_response_complete(self) -> None:
        """Leave the rest to `timeout_keep_alive`."""
        self._stop_waiting()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._alarm = self.loop.call_later(ASKING, self._let_go)

    def _stop_waiting(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _let_go(self) -> None:
        self._alarm = None
        if not self.transport.is_closing():
            self.transport.abort()


class Server(uvicorn.Server):
    """A server that ends its streams when it is told to end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, after a signal."""
        self.config.app.state.is_ending.set()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def is_this_machine(host: str) -> bool:
    """Return whether an address to listen at is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.getaddrinfo(host, port, family=family if ":" in host else 0, type=socket.SOCK_STREAM)[0]
    found = socket.socket(address[0], address[1])
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address[4])
        found.listen(1024)
    except BaseException:
        found.close()
        raise
    return found


def run(
    url: str,
    host: str,
    port: int,
    *,
    token: str | None,
    read_only: bool,
    show_payloads: bool,
    hosts: Sequence[str],
    root_path: str,
    say: Callable[[str], None],
) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    if token is None and not is_this_machine(host):
        raise ValueError(
            f"{host} can be reached by others: give a token, by --token-file or MILLPOND_WEB_TOKEN, "
            "or listen at 127.0.0.1"
        )
    page = app(url, token=token, read_only=read_only, show_payloads=show_payloads, hosts=[*hosts, *_names(host)])
    with contextlib.suppress(PoolError):  # it is away: the page says so, and looks again
        OpenPools(url).names()
    with listen(host, port) as found:
        shown = f"[{host}]" if ":" in host else host
        say(f"http://{shown}:{found.getsockname()[1]}{root_path.rstrip('/')}/")
        config = uvicorn.Config(
            page,
            http=Impatient,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            root_path=root_path.rstrip("/"),
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=ENDING,
        )
        Server(config).run(sockets=[found])


def _names(host: str) -> list[str]:
    """Return the name that it listens at, if that is one by which it is asked for."""
    return [] if host in ("0.0.0.0", "::", "") else [f"[{host}]" if ":" in host else host]

"""Answers probes over HTTP: see `_health`."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STUCK = 5.0
"""Seconds that an event loop has to answer."""


class HealthServer(ThreadingHTTPServer):
    """Answers probes, in threads of its own."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], is_member: Callable[[], bool], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self._is_member, self._loop = is_member, loop
        self._thread = threading.Thread(target=self.serve_forever, name="millpond-health", daemon=True)
        self._thread.start()

    def server_bind(self) -> None:
        """Begin to listen, without asking anybody for our name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def stop(self) -> None:
        """Answer no more."""
        self.shutdown()
        self.server_close()

    def answer(self, path: str) -> tuple[int, str]:
        """Return the status and what is said."""
        if path == "/healthz":
            return (200, "ok\n") if self._is_alive() else (503, "the event loop does not answer\n")
        if path == "/readyz":
            return (200, "ok\n") if self._is_member() else (503, "not a member of the pool\n")
        return 404, "there is /healthz and /readyz\n"

    def _is_alive(self) -> bool:
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it is closed
            return False
        return answered.wait(STUCK)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    server: HealthServer

    def do_GET(self) -> None:
        status, text = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (as it is called there)
        """Say nothing: probes come every few seconds."""

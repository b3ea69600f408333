"""Answers probes over HTTP: see `health`."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from millpond._events import logger

PLAIN: Final = "text/plain; charset=utf-8"
STUCK = 5.0
"""Seconds that an event loop has to answer."""


class Metrics(Protocol):
    """What tells the metrics of a worker."""

    def render(self) -> tuple[bytes, str]:
        """Return the text and its content type."""

    def close(self) -> None:
        """Close what is open."""


def _closed() -> Metrics:
    raise RuntimeError("the worker has ended")


class HealthServer(ThreadingHTTPServer):
    """Answers probes, in threads of its own."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        is_member: Callable[[], bool],
        loop: asyncio.AbstractEventLoop,
        make_metrics: Callable[[], Metrics],
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self._is_member, self._loop = is_member, loop
        self._make_metrics = make_metrics
        self._metrics: Metrics | None = None
        self._lock = threading.Lock()
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
        with self._lock:
            metrics, self._metrics, self._make_metrics = self._metrics, None, _closed
        if metrics is not None:
            metrics.close()

    def answer(self, path: str) -> tuple[int, bytes, str]:
        """Return the status, what is said, and its type."""
        if path == "/metrics":
            return self._measured()
        if path == "/healthz":
            status, text = (200, "ok\n") if self._is_alive() else (503, "the event loop does not answer\n")
        elif path == "/readyz":
            status, text = (200, "ok\n") if self._is_member() else (503, "not a member of the pool\n")
        else:
            status, text = 404, "there is /healthz, /readyz and /metrics\n"
        return status, text.encode(), PLAIN

    def _measured(self) -> tuple[int, bytes, str]:
        try:
            with self._lock:
                if self._metrics is None:
                    self._metrics = self._make_metrics()
            return 200, *self._metrics.render()
        except ModuleNotFoundError as error:
            return 501, f"{error}\n".encode(), PLAIN
        except Exception as error:  # of a collector of the program's
            logger.exception("the metrics of a worker cannot be told")
            return 500, f"{type(error).__name__}: {error}\n".encode(errors="replace"), PLAIN

    def _is_alive(self) -> bool:
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:  # it is closed
            return False
        return answered.wait(STUCK)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    server: HealthServer

    def do_GET(self) -> None:
        status, body, content_type = self.server.answer(self.path.partition("?")[0])
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (as it is called there)
        """Log nothing: probes come every few seconds."""

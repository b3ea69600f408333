"""The page, served for a test; and a client that sends what it is told, right or wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from millpond.web import app
from millpond.web._serve import Impatient, listen
from waiting import HANG, until


class Answer:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Talks to a page."""

    def __init__(self, port: int, prefix: str = "") -> None:
        self.port = port
        self.prefix = prefix
        self.headers: dict[str, str] = {}

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}/"

    def send(self, method: str, path: str, body: bytes | None = None, /, **headers: str) -> Answer:
        """Send a request; `content_type=` is the header Content-Type."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            line.request(method, f"{self.prefix}/{path}", body, {**self.headers, **given})
            return Answer(line.getresponse())
        finally:
            line.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        given = {"content_type": "application/json", **headers}
        return self.send("POST", path, json.dumps(body).encode(), **given)


@contextlib.contextmanager
def served(asgi: Any, prefix: str = "") -> Iterator[Client]:
    """Serve an ASGI app on a free port for as long as the block lasts."""
    with listen("127.0.0.1", 0) as found:
        config = uvicorn.Config(asgi, http=Impatient, ws="none", log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [found]}, name="page")
        thread.start()
        try:
            until(lambda: server.started)
            yield Client(found.getsockname()[1], prefix)
        finally:
            server.should_exit = True
            thread.join(HANG)
            assert not thread.is_alive()


@contextlib.contextmanager
def page(url: str, **options: Any) -> Iterator[Client]:
    """Serve the page of a place."""
    asgi = app(url, **options)
    with served(asgi) as client:
        try:
            yield client
        finally:
            asgi.state.is_ending.set()

"""What happens, as server-sent events: how all pools stand once a second, and one of them in detail.

A stream asks the store at most once a second for all tabs together. When the store is away, the stream goes on and says
so; it ends with the server, and a browser that does not read is let go.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from millpond._clock import elapsed
from millpond.errors import PoolError

EVERY = 1.0
SLOW = 20.0
"""Seconds for which a browser may not read."""
MOST = 200
"""Streams at a time."""
ALONE = 20.0
"""Seconds after which a stream ends, and the browser asks for another, where nobody says that the server ends."""

Ask = Callable[[Callable[[], Any]], Awaitable[Any]]
"""How something that blocks is asked, in a thread and within a time."""


class Streams:
    """The streams that are open."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        self._encode = encode
        self.count = 0
        self.is_ending = threading.Event()
        self.ends_with_server = False
        """Whether the server tells its end: it does not to an app that is mounted in another."""

    def response(self, request: Request, ask: Ask, look: Callable[[], dict[str, Any]]) -> Stream:
        """Return what streams the answers to a question."""
        return Stream(self, ask, look)

    def event(self, name: str, data: Any) -> bytes:
        """Return an event as it is sent."""
        return b"event: " + name.encode() + b"\ndata: " + self._encode(data) + b"\n\n"


class Stream:
    """One browser that watches."""

    def __init__(self, streams: Streams, ask: Ask, look: Callable[[], dict[str, Any]]) -> None:
        self._streams = streams
        self._ask = ask
        self._look = look
        self._sent: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until somebody has enough."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        self._streams.count += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            gone = asyncio.ensure_future(_until_gone(receive))
            try:
                await self._send(send, gone)
            finally:
                gone.cancel()
        except (TimeoutError, OSError):  # it does not read, or is gone
            return
        finally:
            self._streams.count -= 1

    async def _send(self, send: Send, gone: asyncio.Future[None]) -> None:
        began = elapsed()
        while not gone.done() and not self._streams.is_ending.is_set():
            if not self._streams.ends_with_server and elapsed() - began > ALONE:
                break
            async with asyncio.timeout(SLOW):
                await send({"type": "http.response.body", "body": await self._news(), "more_body": True})
            await asyncio.wait([gone], timeout=EVERY)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _news(self) -> bytes:
        """Return the parts that have changed; a comment when nothing has, which keeps the line open."""
        try:
            parts = await self._ask(self._look)
        except (PoolError, TimeoutError, OSError, ValueError) as error:
            self._sent.clear()
            return self._streams.event("away", {"error": str(error) or "the store does not answer"})
        news = b""
        for name, data in parts.items():
            event = self._streams.event(name, data)
            if self._sent.get(name) != event:
                self._sent[name] = event
                news += event
        return news or b": nothing new\n\n"


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

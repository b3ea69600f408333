"""Stands between programs and a Redis server, and does to their conversation what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from waiting import HANG

HOST = "127.0.0.1"


class Proxy:
    """A port of its own that leads to the server's. All that it does at random it does from `seed`.

    `lose_request`, `lose_answer`: the share of messages at which it cuts the connection instead of passing them on (half
    a request may have gone out). `double`: the share of script calls that the server gets a second time, from another
    connection, up to `late` seconds later. `delay`: up to so many seconds before a message is passed on.
    """

    def __init__(self, target: int, seed: int) -> None:
        self.lose_request = self.lose_answer = self.double = self.delay = 0.0
        self.late = 0.3
        self.cuts = self.doubles = 0
        self._target = target
        self._random = random.Random(seed)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._ask(asyncio.start_server(self._serve, HOST, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def cut(self) -> None:
        """Break all connections; new ones can be made."""
        self._do(self._cut)

    def block(self) -> None:
        """Pass nothing on, as a network does that swallows packets: nobody is told."""
        self._do(self._is_open.clear)

    def unblock(self) -> None:
        self._do(self._is_open.set)

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            self._cut()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._ask(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _ask(self, step: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(HANG)

    def _do(self, step: Callable[[], object]) -> None:
        async def run() -> None:
            step()

        self._ask(run())

    def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._enlist()
        try:
            there_reader, there_writer = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, there_writer}
        self._writers |= pair
        try:
            await asyncio.gather(
                self._pump(reader, there_writer, is_request=True), self._pump(there_reader, writer, is_request=False)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in pair:
                one.transport.abort()
            self._writers -= pair

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool) -> None:
        while chunk := await reader.read(1 << 20):
            if self.delay:
                await asyncio.sleep(self._random.random() * self.delay)
            await self._is_open.wait()
            if self._random.random() < (self.lose_request if is_request else self.lose_answer):
                self.cuts += 1
                if is_request:
                    writer.write(chunk[: self._random.randrange(len(chunk))])
                    with contextlib.suppress(OSError):
                        await writer.drain()
                raise ConnectionResetError
            if is_request and self.double and b"EVAL" in chunk[:40] and self._random.random() < self.double:
                self.doubles += 1
                self._enlist(asyncio.ensure_future(self._send_again(chunk, self._random.random() * self.late)))
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError

    async def _send_again(self, chunk: bytes, late: float) -> None:
        await asyncio.sleep(late)
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, self._target)
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.2)  # whatever it answers
            writer.transport.abort()

    def _enlist(self, task: asyncio.Task[None] | None = None) -> None:
        task = task or asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

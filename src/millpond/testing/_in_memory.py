"""Jobs of a program, run in a test: its pool lives in memory meanwhile, whatever its URL is."""

from __future__ import annotations

import contextlib
import secrets
from types import TracebackType
from typing import Any

from millpond.errors import PoolClosed
from millpond.keyed import AsyncKeyedPool, KeyedPool


class in_memory:  # noqa: N801  (it is used like a function)
    """Run a keyed pool in memory for as long as a block lasts, with a worker; nothing else is touched.

        with in_memory(app.tenants):
            assert app.sync.dispatch("tenant-42").result(5) == "done"

    `async with` for an `AsyncKeyedPool`. Pools of modules can be used as they are: afterwards they are where they were.
    `worker=False` runs nothing; other options are those of `pool.worker`.
    """

    def __init__(self, pool: KeyedPool | AsyncKeyedPool, *, worker: bool = True, **options: Any) -> None:
        if not isinstance(pool, (KeyedPool, AsyncKeyedPool)):
            raise TypeError(f"in_memory() takes a KeyedPool or an AsyncKeyedPool, not {pool!r}")
        self._pool: Any = pool
        self._has_worker, self._options = worker, options
        self._url = f"memory:in_memory-{secrets.token_hex(8)}"

    def __enter__(self) -> Any:
        pool = self._pool
        if not isinstance(pool, KeyedPool):
            raise TypeError(
                f"use `async with in_memory(...)` for {pool!r}, in a test that is a coroutine, or around the lifespan "
                "of your web service"
            )
        with contextlib.ExitStack() as stack:
            if not pool._connection.is_closed:
                pool.close()
                stack.callback(pool._connection.revive)
            stack.enter_context(pool._connection.living_at(self._url))
            stack.enter_context(pool)
            stack.callback(self._drop)
            if self._has_worker:
                stack.enter_context(pool.worker(**self._options))
            self._after = stack.pop_all()
        return pool

    def _drop(self) -> None:
        with contextlib.suppress(PoolClosed):  # the test has closed it
            self._pool.admin.drop(force=True)

    async def _async_drop(self) -> None:
        with contextlib.suppress(PoolClosed):
            await self._pool.admin.drop(force=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._after.close()

    async def __aenter__(self) -> Any:
        pool = self._pool
        if not isinstance(pool, AsyncKeyedPool):
            raise TypeError(f"use `with` for {pool!r}")
        async with contextlib.AsyncExitStack() as stack:
            if not pool._connection.is_closed:
                await pool.close()
                stack.callback(pool._connection.revive)
            stack.enter_context(pool._connection.living_at(self._url))
            await stack.enter_async_context(pool)
            stack.push_async_callback(self._async_drop)
            if self._has_worker:
                await stack.enter_async_context(pool.worker(**self._options))
            self._async_after = stack.pop_all()
        return pool

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._async_after.aclose()

"""A worker. See the package's docstring."""

from __future__ import annotations

import asyncio

from tenants.shared import pool, show


async def main() -> None:
    async with pool:
        show("a worker is ready")
        await pool.run()  # until SIGTERM, Ctrl-C or the end of the pool
        show("a worker has left")


if __name__ == "__main__":
    asyncio.run(main())

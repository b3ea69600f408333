"""A worker. Every one of them asks for the controller, and there is one. See the package's docstring."""

from __future__ import annotations

import asyncio

from tenants.shared import control, pool, show


async def main() -> None:
    async with pool:
        await control.start("controller")  # does nothing where it runs already
        show("a worker is ready")
        await pool.run()  # until SIGTERM, Ctrl-C or the end of the pool
        show("a worker has left")


if __name__ == "__main__":
    asyncio.run(main())

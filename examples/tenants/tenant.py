"""Change the table of tenants, and look who runs what. See the package's docstring."""

from __future__ import annotations

import asyncio
import sys

from tenants.shared import add, pool, remove, say


async def main() -> None:
    for name in sys.argv[2:]:
        {"add": add, "remove": remove}[sys.argv[1]](name)
    async with pool:
        await print_who_runs_what()


async def print_who_runs_what() -> None:
    """Print the workers, each with its residents."""
    found = await pool.residents()
    for worker in await pool.workers():
        names = sorted(one.key for one in found if one.worker == worker.id and one.state == "running")
        say(f"  {worker.label}  {worker.slots:4} slots  {' '.join(names)}")


if __name__ == "__main__":
    asyncio.run(main())

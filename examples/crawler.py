"""Crawl with coroutines: at most ten at once, results as they come, every page once."""

from __future__ import annotations

import asyncio

from millpond import AsyncPool


async def fetch(page: int) -> list[int]:
    await asyncio.sleep(0.001)  # stands for the network
    return [page * 2 + 1, page * 2 + 2]


async def main() -> None:
    seen = {0}
    frontier = [0]
    async with AsyncPool(10, name="crawler") as pool:
        while frontier:
            found: list[int] = []
            async for links in pool.map(fetch, frontier, ordered=False):
                found += links
            frontier = sorted({page for page in found if page < 200} - seen)
            seen.update(frontier)
    print(f"{len(seen)} pages, never more than {pool.statistics().largest} at once")


if __name__ == "__main__":
    asyncio.run(main())

"""Download from an endless list with eight threads, never more than twenty ahead, and stop at the first failure."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from millpond import ThreadPool


def download(url: str) -> int:
    time.sleep(0.002)  # stands for the network
    if url.endswith("/42"):
        raise ConnectionError(f"{url} is gone")
    return len(url)


def urls() -> Iterator[str]:
    for number in itertools.count(1):
        yield f"https://example.invalid/{number}"


def main() -> None:
    size = 0
    with ThreadPool(8, name="downloads") as pool:
        try:
            for length in pool.map(download, urls(), buffersize=20):
                size += length
        except ConnectionError as error:
            print(f"stopped: {error}")
    print(f"{size} bytes before that; {pool.statistics().failed} failed")


if __name__ == "__main__":
    main()

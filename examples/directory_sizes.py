"""Walk a tree of folders with tasks that wait for tasks, on two threads: it cannot deadlock."""

from __future__ import annotations

import tempfile
from pathlib import Path

from millpond import ThreadPool


def size_of(folder: Path, pool: ThreadPool) -> int:
    entries = list(folder.iterdir())
    below = [pool.submit(size_of, entry, pool) for entry in entries if entry.is_dir()]
    here = sum(entry.stat().st_size for entry in entries if entry.is_file())
    return here + sum(task.result() for task in below)


def main() -> None:
    with tempfile.TemporaryDirectory() as root, ThreadPool(2) as pool:
        folder = Path(root)
        for depth in range(30):
            folder = folder / f"level{depth}"
            folder.mkdir()
            (folder / "data").write_bytes(b"x" * 100)
        print(pool.submit(size_of, Path(root), pool).result(), "bytes, 30 folders deep")


if __name__ == "__main__":
    main()

"""Share GPUs between four processes through a file; kill one that holds a GPU, and see who gets it, and how soon."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time

from millpond import ResourcePool


def train(url: str, name: str) -> None:
    """Run as one of the four: take a GPU, say so, and use it until told to end."""
    with ResourcePool("gpus", url, holder=name) as gpus, gpus.acquire({"model": "a100"}, reason="training") as grant:
        print(f"{name} has {grant.resource}", flush=True)
        sys.stdin.read()  # stands for hours of training; ends when the parent closes the pipe


def start(url: str, name: str, gpus: ResourcePool) -> subprocess.Popen[str]:
    """Start one and return when it holds something or stands in line, so that the order is always the same."""
    child = subprocess.Popen(
        [sys.executable, __file__, url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    while name not in {*map(str, gpus.holders()), *map(str, gpus.waiters())}:
        time.sleep(0.005)
    return child


def heard(child: subprocess.Popen[str]) -> str:
    """Wait for the next line that a child prints."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def main(folder: str) -> None:
    url = f"sqlite:///{folder}/pools.db"
    with ResourcePool("gpus", url) as gpus:
        gpus.add("gpu-0", labels={"model": "a100", "zone": "east"})
        gpus.add("gpu-1", labels={"model": "a100", "zone": "west"})
        gpus.add("gpu-2", labels={"model": "t4"})

        children = {name: start(url, name, gpus) for name in ("ann", "bob", "cid", "dan")}
        print(heard(children["ann"]))
        print(heard(children["bob"]))
        for waiter in gpus.waiters():
            print(f"in line: {waiter.position}. {waiter} for {waiter.selectors[0]}: {waiter.why}")

        before = time.monotonic()
        children["ann"].kill()  # kill -9: it has no chance to give anything back
        line = heard(children["cid"])
        print(f"ann was killed, and {(time.monotonic() - before) * 1000:.1f} ms later {line}")

        children["bob"].communicate()  # closes its pipe: it ends as it should
        print(f"bob is done, and {heard(children['dan'])}")
        for event in gpus.admin.history("gpu-0"):
            print(f"  gpu-0 {event.name}: {event.data.get('holder', event.data.get('by'))}")
        for child in children.values():
            child.communicate()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(*sys.argv[1:])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)

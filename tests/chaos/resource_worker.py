"""One process of the chaos: it borrows resources in every way there is, and checks with the kernel that they are its own.

The oracle: each resource has a device file. Whoever holds all units of it must be able to lock that file exclusively,
whoever holds one unit must be able to share it. The kernel drops those locks with the process, not before and not
later, and no pool has a say in it. A lock that cannot be had is a violation, written down for the test to find.
(Record locks: `flock` would live on in a forked child. They do not tell threads apart, so those keep a list.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from millpond import AcquireTimeout, LeaseLost, ResourcePool, Unsatisfiable
from millpond.resources import Grant, want

SHARED = "shared"  # the one resource with several units


class Worker:
    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.pool = ResourcePool("chaos", url, holder=f"worker-{os.getpid()}", on_lost="ignore")
        self.is_over = False
        self.guard = threading.Lock()
        self.in_use: set[str] = set()
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.is_over = True

    def run(self) -> None:
        actions = [self.hold, self.hold, self.hold, self.bundle, self.share, self.attempt, self.give_up, self.interrupt]
        actions += [self.fork, self.pass_on]
        threads = [threading.Thread(target=self.background) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not self.is_over:
            self.random.choice(actions)()
        for thread in threads:
            thread.join()
        self.pool.close()

    def background(self) -> None:
        """Wait in a thread, so that this process has several places in line."""
        while not self.is_over:
            self.hold()

    # --- ways to borrow ----------------------------------------------------------------------------------------

    def hold(self) -> None:
        selector = self.random.choice([None, {"kind": "disk"}, {"kind": "disk", "speed": ["fast", "slow"]}])
        with contextlib.suppress(AcquireTimeout, Unsatisfiable), self.pool.acquire(selector, timeout=2.0) as grant:
            self.use(grant)

    def bundle(self) -> None:
        parts = (
            [want({"kind": "disk"}, count=2)] if self.random.random() < 0.5 else [{"speed": "fast"}, {"kind": "disk"}]
        )
        with contextlib.suppress(AcquireTimeout, Unsatisfiable), self.pool.acquire_all(parts, timeout=2.0) as grant:
            self.use(grant)

    def share(self) -> None:
        units = self.random.choice([1, 1, "all"])
        grant = None
        with contextlib.suppress(AcquireTimeout, Unsatisfiable):
            grant = self.pool.acquire(name=SHARED, units=units, timeout=2.0)  # type: ignore[arg-type]
        if grant is not None:
            with grant:
                self.use(grant)

    def attempt(self) -> None:
        with contextlib.suppress(Unsatisfiable):
            grant = self.pool.try_acquire()
            if grant is not None:
                with grant:
                    self.use(grant)

    def give_up(self) -> None:
        limit = self.random.random() * 0.003
        with contextlib.suppress(AcquireTimeout, Unsatisfiable), self.pool.acquire(timeout=limit) as grant:
            self.use(grant)

    def interrupt(self) -> None:
        """Be interrupted while waiting, as by Ctrl-C."""
        signal.setitimer(signal.ITIMER_REAL, self.random.random() * 0.004 + 0.0001)
        try:
            with self.pool.acquire(timeout=1.0) as grant:
                self.use(grant)
        except (KeyboardInterrupt, AcquireTimeout, Unsatisfiable):
            pass
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0)

    def fork(self) -> None:
        """Fork while holding: the child has nothing, can borrow for itself, and its end takes nothing from us."""
        if self.random.random() < 0.8:
            return
        with contextlib.suppress(AcquireTimeout, Unsatisfiable), self.pool.acquire(timeout=2.0) as grant:
            parent = os.getpid()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    try:
                        grant.release()
                    except RuntimeError:
                        status = 0
                    mine = self.pool.try_acquire(name=grant.resource)
                    if mine is not None and grant.resource != SHARED and os.getppid() == parent:  # else it died: fair
                        self.violate(f"a forked child got {grant.resource}, which its parent holds")
                except Unsatisfiable:
                    pass
                finally:
                    os._exit(status)
            self.use(grant)
            _, status = os.waitpid(child, 0)
            if status:
                self.violate(f"a forked child could release its parent's grant (status {status})")
            grant.check()

    def pass_on(self) -> None:
        """Hand a grant to ourselves under a new token."""
        with contextlib.suppress(AcquireTimeout, Unsatisfiable):
            first = self.pool.acquire(timeout=2.0)
            second = self.pool.adopt(first.transfer())
            with second:
                self.use(second)

    # --- the oracle --------------------------------------------------------------------------------------------

    def use(self, grant: Grant) -> None:
        units = grant.units
        exclusive = {name for name in units if name != SHARED or units[name] > 1}
        with self.guard:
            for name in exclusive & self.in_use:
                self.violate(f"{name} (token {grant.token}) is in use by another thread")
            self.in_use |= exclusive
        devices = []
        try:
            for name in units:
                device = open(self.folder / f"device-{name}", "a+")
                devices.append(device)
                try:
                    fcntl.lockf(device, (fcntl.LOCK_EX if name in exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                except BlockingIOError:
                    self.violate(f"{name} ({units[name]} units, token {grant.token}) is in use by another process")
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.004)
        finally:
            with self.guard:
                self.in_use -= exclusive
            for device in devices:
                device.close()

    def violate(self, what: str) -> None:
        with open(self.folder / "violations", "a") as file:
            file.write(f"process {os.getpid()}: {what}\n")


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    url, folder, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGALRM, _raise_interrupt)
    worker = Worker(url, folder, seed)
    try:
        worker.run()
    except KeyboardInterrupt:
        pass
    except LeaseLost as error:
        worker.violate(f"lost a lock: {error}")
    except BaseException:
        worker.violate(traceback.format_exc())
        raise

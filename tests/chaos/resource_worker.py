"""The processes of the chaos: each borrows resources in every way there is, and checks with the kernel that they are its own.

The oracle: each resource has a device file. Whoever holds all units of it must be able to lock that file exclusively,
whoever holds one unit must be able to share it. The kernel drops those locks with the process, not before and not
later, and no pool has a say in it. A lock that cannot be had is a violation, written down for the test to find.
(Record locks: `flock` would live on in a forked child. They do not tell threads apart, so those keep a list.)

An interrupt may strike anywhere but in the oracle: while its books are open it waits, and strikes when they are closed.

Run as a program, this forks one worker for each line that it reads, so that a new one costs no start of Python.
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
from collections.abc import Iterator
from pathlib import Path

from millpond import AcquireTimeout, LeaseLost, ResourcePool, Unsatisfiable
from millpond.resources import Grant, want

SHARED = "shared"  # the one resource with several units


class Worker:
    def __init__(self, pool: ResourcePool, folder: Path, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = pool
        self.folder = folder
        self.name = name
        self.has_begun = False
        self.is_over = False
        self.stands_still = False  # now and then, while it uses something
        self.guard = threading.Lock()
        self.in_use: set[str] = set()
        self.stillness = threading.Lock()
        self.is_armed = False  # the next alarm interrupts, once
        self.is_open = False  # the main thread has the oracle's books open
        self.is_late = False  # an alarm came meanwhile
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, self._interrupt)

    def _stop(self, *_: object) -> None:
        self.is_over = True

    def _interrupt(self, *_: object) -> None:
        if self.is_open:
            self.is_late = True
        elif self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt

    def run(self) -> None:
        actions = [self.hold, self.hold, self.hold, self.bundle, self.share, self.attempt, self.give_up, self.interrupt]
        actions += [self.fork, self.pass_on]
        threads = [threading.Thread(target=self.background) for _ in range(2)]
        for thread in threads:
            thread.start()
        with self.witnessed():
            while not self.is_over:
                self.random.choice(actions)()
        for thread in threads:
            thread.join()
        self.pool.close()

    def background(self) -> None:
        """Wait in a thread, so that this process has several places in line."""
        with self.witnessed():
            while not self.is_over:
                self.hold()

    @contextlib.contextmanager
    def witnessed(self) -> Iterator[None]:
        """Write down whatever ends a thread, and end the others with it."""
        try:
            yield
        except LeaseLost as error:
            self.violate(f"lost a lock: {error}")
        except BaseException:
            self.violate(traceback.format_exc())
        finally:
            self.is_over = True

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
        """Hold a resource, interrupted at any moment of it, as by Ctrl-C."""
        try:
            try:
                self.is_armed = True
                signal.setitimer(signal.ITIMER_REAL, self.random.random() * 0.004 + 0.0001)
                with self.pool.acquire(timeout=1.0) as grant:
                    self.use(grant)
            finally:
                self.is_armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, AcquireTimeout, Unsatisfiable):
            pass

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
        """Check that nobody else has it, use it for a moment, and note that this worker has begun."""
        if threading.current_thread() is not threading.main_thread():  # where no signal strikes
            self._use(grant)
            return
        self.is_open = True
        try:
            self._use(grant)
        finally:
            self.is_open = False
            if self.is_late:
                self.is_late = False
                self._interrupt()

    def _use(self, grant: Grant) -> None:
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
            if not self.has_begun:
                begun(self.folder, self.name).touch()
                self.has_begun = True
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.004)
            if self.stands_still and self.random.random() < 0.05:
                self.stand_still()
        finally:
            with self.guard:
                self.in_use -= exclusive
            for device in devices:
                device.close()

    def stand_still(self) -> None:
        """Stop this process while it uses something, until the storm lets it go on: it does so while the mark is there."""
        mark = still(self.folder, self.name)
        with self.stillness:
            mark.touch()
            # sent to the process, it might reach another thread, and this one go on to the next line
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            mark.unlink()

    def violate(self, what: str) -> None:
        with open(self.folder / "violations", "a") as file:
            file.write(f"process {os.getpid()}: {what}\n")


def begun(folder: Path, name: str) -> Path:
    """Return the file that is there as soon as that worker has used a grant."""
    return folder / f"begun-{name}"


def still(folder: Path, name: str) -> Path:
    """Return the file that is there while that worker stands still by itself."""
    return folder / f"still-{name}"


def main() -> None:
    """Fork a worker for each "name seed" and answer its pid; for "wait pid" wait for its end and answer its status."""
    url, folder = sys.argv[1], Path(sys.argv[2])
    while line := sys.stdin.readline():
        name, number = line.split()
        if name == "wait":
            answer = os.waitpid(int(number), 0)[1]
        elif (answer := os.fork()) == 0:
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)  # its pipes are not ours
                os.dup2(nothing.fileno(), 1)
            pool = ResourcePool("chaos", url, holder=name, on_lost="ignore")
            worker = Worker(pool, folder, name, seed=int(number))
            # on SQLite a lock can be accepted that the file does not tell of yet
            worker.stands_still = url.startswith("sqlite")
            worker.run()
            return
        print(answer, flush=True)


if __name__ == "__main__":
    main()

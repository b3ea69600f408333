"""The I/O thread of a pool as other threads see it: they wake it, start it, and leave calls for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from millpond._interrupts import shielded
from millpond.local._task import Task
from millpond.local.processes._callback_thread import join_thread
from millpond.local.processes._workers import Runner, is_importing_main


class IoThread(Protocol):
    """The I/O thread itself (`_io_thread.py`)."""

    thread: threading.Thread

    def wake(self) -> None: ...
    def close(self) -> None: ...
    def recall_all(self) -> None: ...
    def end_task(self, task: Task[Any]) -> None: ...


class IoHandle:
    def __init__(self, runner: Runner, make: Callable[[], IoThread]) -> None:
        self._runner = runner
        self._make = make
        self.note_ended()

    def note_ended(self) -> None:
        """Go on without the thread, which has ended (under the lock)."""
        self.running: IoThread | None = None
        self.is_waiting = True  # whether the thread waits for tasks, or there is none
        self.is_working = False  # whether a worker has something to do
        self.calls: deque[Callable[[], object]] = deque()

    def wake(self) -> bool:
        """Wake the thread, or start it, since there is work; False when the pool is closed and it is gone."""
        try:
            with self._runner.lock:
                if self.running is None:
                    if self._runner.is_closed:
                        return False
                    shielded(self._start)
                else:
                    self.is_waiting = False  # not before there is a thread: whoever looked then would count on it
                io = self.running
            assert io is not None
            io.wake()
        except BaseException:  # of a signal handler, perhaps: others count on this wake-up
            io = self.running
            if io is not None:
                shielded(io.wake)
            raise
        return True

    def _start(self) -> None:
        if is_importing_main():
            raise RuntimeError(
                f"pool {self._runner.name!r} got work while a worker process imports the main script; put the code "
                "that uses it under if __name__ == '__main__':"
            )
        io = self._make()
        try:
            io.thread.start()
        except BaseException:
            io.close()
            raise
        self.running = io

    def call_soon(self, call: Callable[[], object]) -> None:
        """Queue a call for the thread to make soon, if there is one; a call that is on its way is not added again."""
        with self._runner.lock:
            io = self.running
            if io is not None and call not in self.calls:
                self.calls.append(call)
                io.wake()

    def end_task(self, task: Task[Any]) -> None:
        with self._runner.lock:
            if self.running is not None:
                self.call_soon(partial(self.running.end_task, task))

    def join(self, deadline: float | None) -> bool:
        with self._runner.lock:
            io = self.running
        return io is None or join_thread(io.thread, deadline)

    def after_fork(self) -> None:
        if self.running is not None:
            self.running.close()
        self.note_ended()

"""One worker process as its pool sees it: a process, a socket, a journal, and the batches it has.

Sending never blocks: what the socket does not take stays in the outbox until it does. So a worker that is stopped, or
busy sending a large answer, holds up nobody.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from multiprocessing.heap import BufferWrapper
from typing import TYPE_CHECKING, Any

from millpond.local.processes._child import main
from millpond.local.processes._frames import BATCH, LENGTH, Inbox
from millpond.local.processes._journal import SIZE, SKIP, Journal

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from millpond.local.processes._batch import Batch
    from millpond.local.processes._seats import Seat


class ProcessWorker:
    """A worker process."""

    def __init__(self, context: BaseContext, name: str, setup: bytes, seat: Seat, *, tells_memory: bool) -> None:
        self.seat = seat
        self.name = name
        self.flight: deque[Batch] = deque()
        self.next_number = 1
        self.done = 0
        self.items = 0
        self.failed = 0
        self.memory = 0
        self.is_ready = False
        self.is_leaving = False
        self.is_doomed = False
        self.is_buried = False
        self.deadline: float | None = None  # when its task, which travels alone, is timed out
        self.late_at = 0.0  # past this it gets nothing in advance: what it runs takes longer than expected
        self.recall_at: float | None = None
        self.fence: tuple[float, int, int] | None = None  # a recall under way: its end, and where it began
        self.born = self.idle_since = time.monotonic()
        self.inbox = Inbox()
        self.outbox: deque[memoryview] = deque()
        memory = BufferWrapper(SIZE)
        self.journal = Journal(memory)
        self.journal.clear()
        self.sock, theirs = socket.socketpair()
        try:
            self.sock.setblocking(False)
            options: dict[str, Any] = {"tells_memory": tells_memory}
            if context.get_start_method() == "fork":
                options["inherited"] = self.sock.fileno()
            self.process: Any = context.Process(  # type: ignore[attr-defined]
                target=main, args=(theirs, memory, setup), kwargs=options, name=name
            )
            self.process.start()
        except BaseException:
            self.sock.close()
            raise
        finally:
            theirs.close()
        self.pidfd = _open_pidfd(self.process.pid)

    @property
    def sentinel(self) -> int | None:
        """What becomes readable when the process has ended; None where only the end of its socket tells (Windows)."""
        if self.pidfd is None:
            return None if sys.platform == "win32" else int(self.process.sentinel)
        return self.pidfd

    @property
    def is_idle(self) -> bool:
        """Whether it is ready and has nothing to do."""
        return self.is_ready and not self.flight and not self.is_leaving and not self.is_doomed

    @property
    def load(self) -> int:
        """How many of its calls are not settled."""
        return sum([batch.open for batch in self.flight])

    @property
    def ended(self) -> int:
        """How many calls it has ended."""
        return self.done + self.items

    def count(self, batch: Batch, ended: int, failed: int) -> None:
        """Count calls of a batch that have ended."""
        if batch.counts_items:
            self.items += ended
        else:
            self.done += ended
        self.failed += failed

    @property
    def has_keys(self) -> bool:
        """Whether it has tasks with a key, which are to run there, in order: they are not asked back."""
        return bool(self.flight) and self.flight[0].is_keyed

    # -- sending ----------------------------------------------------------------------------------------------------

    def give(self, batch: Batch, body: bytes) -> bool:
        """Send a batch; False when part of it has to wait for room in the socket."""
        batch.first = self.next_number
        self.next_number += batch.count
        self.flight.append(batch)
        head = LENGTH.pack(BATCH.size + len(body)) + BATCH.pack(batch.first, batch.count)
        if len(body) < 1 << 16:
            self.outbox.append(memoryview(head + body))
        else:
            self.outbox.append(memoryview(head))
            self.outbox.append(memoryview(body))
        return self.flush()

    def flush(self) -> bool:
        """Send what waits; False when some of it still does."""
        outbox = self.outbox
        try:
            while outbox:
                number = self.sock.send(outbox[0])
                if number == len(outbox[0]):
                    outbox.popleft()
                else:
                    outbox[0] = outbox[0][number:]
        except BlockingIOError:
            return False
        except OSError:  # it is dead: whoever watches it will bury it
            outbox.clear()
        return True

    def dismiss(self) -> None:
        """Let it end when it has read what was sent."""
        self.is_leaving = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End it now, whatever it does."""
        self.is_doomed = True
        if self.pidfd is not None and hasattr(signal, "pidfd_send_signal"):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        else:
            self.process.kill()

    # -- recalling ---------------------------------------------------------------------------------------------------

    def ask_back(self) -> None:
        """Tell it to start nothing of what it has (under the crew's lock, so that the number never goes down)."""
        self.journal.words[SKIP] = self.next_number

    def start_recall(self, fence: float) -> None:
        """Ask back what it has; `fence` seconds from now that is sure to be known there (under the crew's lock)."""
        self.ask_back()
        self.fence = (time.monotonic() + fence, *self.journal.position())
        self.recall_at = None

    # -- the end -----------------------------------------------------------------------------------------------------

    def collect(self) -> int | None:
        """Take in the exit code of the ended process."""
        self.process.join(1.0)
        code: int | None = self.process.exitcode
        return code

    def close(self) -> None:
        """Give back what it used here; not the process object, which others may have got from multiprocessing."""
        self.sock.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that tells of the end of a process surely; None where there is no such thing."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def how_it_ended(code: int | None) -> str:
    """Return an exit code in words."""
    if code is None:
        return "it is gone"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"

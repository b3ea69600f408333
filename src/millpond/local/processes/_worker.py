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
from multiprocessing.context import BaseContext
from multiprocessing.heap import BufferWrapper
from typing import Any

from millpond.local._worker_queues import WorkerQueue
from millpond.local.processes._batch import Batch
from millpond.local.processes._child import main
from millpond.local.processes._frames import BATCH, Inbox, frame
from millpond.local.processes._journal import SIZE, SKIP, Journal


class ProcessWorker:
    def __init__(
        self, context: BaseContext, name: str, setup: bytes, queue: WorkerQueue, *, reports_memory: bool
    ) -> None:
        self.queue = queue
        self.in_flight: list[Batch] = []  # two at most; others look at it too, so each look is a single call
        self.next_number = 1  # of the next call that it gets
        self.ended = self.memory = 0
        self.is_leaving = self.is_killed = self.is_reaped = False
        self.ready_at: float | None = None
        self.idle_since = 0.0
        self.deadline: float | None = None  # when its task, which travels alone, is timed out
        self.late_at = 0.0  # past this it gets nothing in advance: what it runs takes longer than expected
        self.recall_at: float | None = None
        self.recall_until: float | None = None  # a recall is under way until then
        self.recalled_at_position = (0, 0)  # where its journal was when the recall began
        self.inbox = Inbox()
        self.outbox: deque[memoryview] = deque()
        memory = BufferWrapper(SIZE)
        self.journal = Journal(memory)
        self.journal.clear()
        self.sock, theirs = socket.socketpair()
        try:
            self.sock.setblocking(False)
            options: dict[str, Any] = {"reports_memory": reports_memory}
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
        self.pidfd: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # where there is no such thing
            self.pidfd = os.pidfd_open(self.process.pid)

    @property
    def sentinel(self) -> int | None:
        """What becomes readable when the process has ended; None where only the end of its socket tells (Windows)."""
        if self.pidfd is None:
            return None if sys.platform == "win32" else int(self.process.sentinel)
        return self.pidfd

    @property
    def is_ready(self) -> bool:
        return self.ready_at is not None

    @property
    def load(self) -> int:
        return sum([batch.open for batch in self.in_flight.copy()])

    @property
    def has_keys(self) -> bool:
        """Whether it has tasks with a key, which are to run there, in order: they are not recalled."""
        return any(batch.is_keyed for batch in self.in_flight[:1])

    def give(self, batch: Batch, body: bytes) -> bool:
        """Send a batch; False when part of it has to wait for room in the socket."""
        batch.first = self.next_number
        self.next_number += batch.count
        self.in_flight.append(batch)
        self.outbox += map(memoryview, frame(body, BATCH.pack(batch.first, batch.count)))
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
        except OSError:  # it is dead: the I/O thread will see that
            outbox.clear()
        return True

    def stop(self) -> None:
        self.is_leaving = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        self.is_killed = True
        if self.pidfd is not None and hasattr(signal, "pidfd_send_signal"):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        else:
            self.process.kill()

    def skip_rest(self) -> None:
        """Ask it to start nothing of what it has (under the runner's lock, so that the number never goes down)."""
        self.journal.words[SKIP] = self.next_number

    def start_recall(self, seconds: float) -> None:
        """Recall what it has; `seconds` from now it is sure to know (under the runner's lock)."""
        self.skip_rest()
        self.recall_until = time.monotonic() + seconds
        self.recalled_at_position = self.journal.position()
        self.recall_at = None

    def collect(self) -> Any:
        self.process.join(1.0)
        return self.process.exitcode

    def close(self) -> None:
        """Close what it used here; not the process object, which others may have got from multiprocessing."""
        self.sock.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


def how_it_ended(code: int | None) -> str:
    if code is None:
        return "it is gone"
    if code >= 0:
        return f"exit code {code}"
    names = {each.value: each.name for each in signal.Signals}
    return f"killed by {names.get(-code, f'signal {-code}')}"

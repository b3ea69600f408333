"""What a worker process leaves behind when it is killed: a little memory that it shares with its pool.

A worker runs its calls in batches and answers for many at once. So that `kill -9` in the middle loses nothing but the
call it was running, it keeps a journal: before each call it writes the call's number, after each call it appends the
outcome. Nobody reads that while all is well. Calls are numbered per worker, from 1 upwards.

    STARTED   the number of the call that was started last; every call before it has its outcome in the journal or sent
    BASE      the number of the call whose outcome is the first record of the journal
    SKIP      written by the pool: calls below this number that have not been started are not to be run here any more
    records   outcomes one after another, as `marshal` writes them: a plain value, or a tuple that starts with a word

The order of the stores is all there is to it. A record is complete before STARTED moves on; an answer is with the
kernel before BASE moves on. What a dead process had stored is seen in that order on every processor.

*Recall.* The pool writes SKIP and reads STARTED; the worker writes STARTED and reads SKIP. Neither has a memory fence,
so each may miss the other's latest store for as long as a store can wait in a processor's buffer: nanoseconds. The pool
therefore waits two milliseconds between its store and its load, and then knows: what lies beyond STARTED will be
skipped. (Rejected: a lock in shared memory. A killed worker would take it along; and it costs more than the call.)
"""

from __future__ import annotations

import contextlib
import io
import marshal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.heap import BufferWrapper

SIZE = 1 << 16
STARTED, BASE, SKIP = 0, 1, 2
_HEAD = 24

PICKLED, FAILED, SKIPPED, UNLOADABLE = 0, 1, 2, 3
"""Outcomes other than a plain value: a pickle of the value; an exception; not run, as was asked, and the number below
which nothing more will be; not understood."""


class Journal:
    """The shared memory of one worker, seen from either side."""

    def __init__(self, memory: BufferWrapper) -> None:
        self._memory = memory  # keeps it ours
        view = memory.create_memoryview()
        self.words: memoryview = view[:_HEAD].cast("Q")
        self.records: memoryview = view[_HEAD:]

    def clear(self) -> None:
        """Begin anew: the memory may have been another's before."""
        self.words[STARTED] = self.words[BASE] = self.words[SKIP] = 0

    def position(self) -> tuple[int, int]:
        return self.words[STARTED], self.words[BASE]

    def outcomes(self) -> tuple[int, list[Any]]:
        """Return BASE and the outcomes of the calls from there up to STARTED, which must not move meanwhile."""
        started, base = self.position()
        found: list[Any] = []
        stream = io.BytesIO(self.records)
        with contextlib.suppress(EOFError, ValueError, TypeError):  # a dying process may have spoilt it: that is lost
            found.extend(marshal.load(stream) for _ in range(base, started))
        return base, found

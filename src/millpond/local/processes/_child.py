"""The worker process: reads batches of calls from its socket, runs them, answers.

It imports as little as it can, since every worker pays for it at its start. What it sends is in `_frames`, what it
leaves behind when it is killed in `_journal`.

It answers at the end of a batch; earlier when two milliseconds have passed, when the journal is full, or after a large
outcome. So an outcome is at any time either in the journal or with the kernel, except that of the call just ended:
until its answer is sent, that one counts as running.

Ctrl-C reaches the whole process group. The worker ignores it: what to do about it is for the pool to decide, which
ends its workers if it is left. (A handler, not SIG_IGN, because programs started by a task would inherit that.)
"""

from __future__ import annotations

import importlib
import marshal
import os
import pickle
import signal
import socket
import sys
import traceback
from functools import lru_cache
from itertools import repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any

from millpond.local.processes._frames import BATCH, BROKEN, READY, REPLY, Inbox, frame
from millpond.local.processes._journal import BASE, FAILED, PICKLED, SKIP, SKIPPED, STARTED, UNLOADABLE, Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.heap import BufferWrapper
    from types import ModuleType

FLUSH_AFTER = 0.002  # seconds after which outcomes are sent although the batch goes on; looked at every eighth call
PLAIN = frozenset({type(None), bool, int, float, str, bytes})  # they need no pickle: reading one back cannot fail


def main(
    sock: socket.socket, memory: BufferWrapper, setup: bytes, *, reports_memory: bool, inherited: int = -1
) -> None:
    """Run a worker process until the pool closes the socket.

    A forked one has inherited the pool's end of the socket, too, and closes it: else it would never see it closed.
    """
    if inherited >= 0:
        os.close(inherited)
    signal.signal(signal.SIGINT, _ignore)
    child = Child(sock, Journal(memory), reports_memory=reports_memory)
    try:
        try:
            initializer, initargs, finalizer = pickle.loads(setup)
            if initializer is not None:
                initializer(*initargs)
        except BaseException as error:
            child.send((BROKEN, *_pickle_error(error)))
            return
        child.send((READY, os.getpid()))
        child.serve()
    except (BrokenPipeError, ConnectionResetError):
        return  # the pool's process is gone
    if finalizer is not None:
        try:
            finalizer()
        except Exception:
            traceback.print_exc()


def _ignore(*_: object) -> None:
    pass


class Child:
    def __init__(self, sock: socket.socket, journal: Journal, *, reports_memory: bool) -> None:
        self._sock = sock
        self._journal = journal
        self._reports_memory = reports_memory
        sock.setblocking(True)

    def send(self, message: tuple[Any, ...]) -> None:
        for piece in frame(pickle.dumps(message, 5)):
            self._sock.sendall(piece)

    def serve(self) -> None:
        inbox = Inbox()
        while True:
            frames = inbox.receive(self._sock)
            if frames is None:
                return
            for each in frames:
                first, count = BATCH.unpack_from(each)
                self.run(first, count, self.load(memoryview(each)[BATCH.size :]))
            del frames

    def load(self, body: memoryview) -> Iterable[tuple[Any, Any]] | None:
        """Return the calls of a batch; None when it cannot be understood."""
        try:
            fns, arguments, is_bare = pickle.loads(body)
        except BaseException:
            return None
        if fns is None:
            fns = [_call_blob]
        return zip(fns if len(fns) > 1 else repeat(fns[0]), zip(arguments) if is_bare else arguments)  # noqa: B905

    def run(self, first: int, count: int, calls: Iterable[tuple[Any, Any]] | None) -> None:
        """Run the calls of a batch and answer. This is the hot loop."""
        words, records = self._journal.words, self._journal.records
        room, used, base, last = len(records), 0, first, first + count - 1
        values: list[Any] = []
        specials: dict[int, tuple[Any, ...]] = {}
        special: tuple[Any, ...] | None
        words[BASE] = seq = first
        began = perf_counter()
        if calls is None:
            self.answer(first, [None] * count, dict.fromkeys(range(count), (UNLOADABLE,)), 0.0)
            words[BASE] = last + 1  # the journal has no record of them
            words[STARTED] = last
            return
        for fn, args in calls:
            words[STARTED] = seq
            try:
                if seq < words[SKIP]:
                    value, special = None, (SKIPPED, words[SKIP])
                else:
                    value = fn(*args)
                    special = None if type(value) in PLAIN else _special(fn, value)
            except BaseException as error:
                special = (FAILED, *_pickle_error(error))
            if special is not None:
                value = None
                specials[seq - base] = special
            values.append(value)
            if seq < last:
                record = marshal.dumps(value if special is None else special)
                end = used + len(record)
                if end <= room and (seq & 7 or perf_counter() - began < FLUSH_AFTER):
                    records[used:end] = record
                    used = end
                else:
                    self.answer(base, values, specials, perf_counter() - began)
                    words[BASE] = base = seq + 1
                    values, specials, used, began = [], {}, 0, perf_counter()
            seq += 1
        self.answer(base, values, specials, perf_counter() - began)

    def answer(self, base: int, values: list[Any], specials: dict[int, tuple[Any, ...]], seconds: float) -> None:
        memory = _memory() if self._reports_memory else 0
        self.send((REPLY, base, values, specials, seconds, memory))


def _special(fn: Any, value: Any) -> tuple[Any, ...]:
    """Pickle a value by itself, so that a bad one spoils no other."""
    try:
        return PICKLED, dumps(value)
    except Exception as error:
        raise pickle.PicklingError(
            f"the result of {name_of(fn)}, a {type(value).__qualname__}, cannot be pickled: {error}; return plain data"
        ) from None


_CONTEXT: Any = BaseException.__dict__["__context__"]


def _pickle_error(error: BaseException) -> tuple[bytes, str]:
    """Return a pickle of an exception and the text of its traceback, without this module's own frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    text = "".join(traceback.format_exception(error.with_traceback(trace)))  # an assignment, a class may forbid
    _CONTEXT.__set__(error.with_traceback(None), None)
    try:
        blob = pickle.dumps(error, 5)
        pickle.loads(blob)  # many exceptions can be pickled, but not loaded
    except BaseException as trouble:
        stand_in = RuntimeError(
            f"the task raised {type(error).__qualname__}: {text_of(error)}, which cannot be sent to the pool's process "
            f"({text_of(trouble)}); give {type(error).__qualname__} a __reduce__"
        )
        blob = pickle.dumps(stand_in, 5)
    return blob, text


def _call_blob(name: str, blob: bytes) -> Any:
    try:
        fn, args = pickle.loads(blob)
    except Exception as error:
        raise pickle.UnpicklingError(
            f"the call of {name} could not be loaded in the worker process: {error}; define it in a module that the "
            'worker can import, or pip install "millpond[pickle]"'
        ) from error
    return fn(*args)


@lru_cache(256)
def load_by_value(blob: bytes) -> Any:
    """Load a function that was sent by value; one that was loaded before is the same object again."""
    return pickle.loads(blob)


def name_of(fn: Any) -> str:
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__qualname__", None) or text_of(fn, repr)


def text_of(value: Any, to_text: Callable[[Any], str] = str) -> str:
    """Return a user's object in words, even when its own way to say them raises."""
    try:
        return to_text(value)
    except BaseException:
        return f"<{type(value).__qualname__} that cannot be shown>"


def dumps(value: Any) -> bytes:
    """Pickle by name, or by value where that fails."""
    try:
        return pickle.dumps(value, 5)
    except Exception:
        by_value = cloudpickle()
        if by_value is None:
            raise
        blob: bytes = by_value.dumps(value)
        return blob


def cloudpickle() -> ModuleType | None:
    """Return the module that pickles functions by value; None when it is not installed."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None


def _memory() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        if sys.platform == "win32":
            return 0
        usage = importlib.import_module("resource").getrusage(0).ru_maxrss  # the peak: the best there is
        return int(usage) if sys.platform == "darwin" else int(usage) * 1024

"""What the pools take for atomic, with the interpreter's lock (GIL) and without it.

Three things are done without a lock of ours, for their speed:

1. *Single calls* on lists, deques, dicts and sets (`append`, `pop`, `remove`, `d[k] = v`). They are atomic on every
   CPython: by the GIL, or by the lock that each of these objects has in a free-threaded build.
2. *A swap*, `fn, task._fn = task._fn, None`: whoever gets the function has the task. With the GIL no other thread runs
   between its load and its store. Without it two threads may both get the function, so a swap is made under
   `lock_of(task)` there: `claim`, or `take_away` for other attributes.
3. *Store, then look.* One side stores A and looks at B, the other stores B and looks at A; at least one must see the
   other. With the GIL all threads see all stores in one order. Without it a look may be answered with what was there
   before, unless both sides pass the same lock between store and look: then the second one to pass sees all that the
   first one did before. Which lock that is, is told at each place: the lock of a list or deque that both sides work on
   (a plain `len` or truth test passes no lock, `length_now` does), or `lock_of`.

`lock_of` gives one of a few locks by the address of the object. Nothing is called while one is held, so it may be asked
for while any other lock is held. They are reentrant, since a signal handler may come between any two lines.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

FREE_THREADED: Final = "t" in getattr(sys, "abiflags", "")
"""Whether this build of Python can run without the GIL; one that has it switched on all the same is only slower."""

_LOCKS: Final = [threading.RLock() for _ in range(64 if FREE_THREADED else 1)]


def _renew_locks() -> None:
    """Free the locks in a forked child: threads of the parent may have held them."""
    for lock in _LOCKS:
        lock._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def lock_of(thing: object) -> threading.RLock:
    """Return the lock for single steps on this object."""
    return _LOCKS[(id(thing) >> 6) % len(_LOCKS)]


def pass_lock_of(thing: object) -> None:
    """Go through the lock of an object, between a store and a look: see the third point above."""
    with lock_of(thing):
        pass


def take_away(thing: Any, name: str) -> Any:
    """Atomically replace an attribute by None and return what it was."""
    with lock_of(thing):
        value = getattr(thing, name)
        if value is not None:
            setattr(thing, name, None)
    return value


class _Extensible(Protocol):
    def extend(self, items: Iterable[Any], /) -> None: ...
    def __len__(self) -> int: ...


length_now: Callable[[Any], int]
"""Returns the length of a list or deque, after going through its lock."""

if FREE_THREADED:

    def claim(task: Any) -> Any:
        """Atomically take the function of a task; None when somebody else has it."""
        with lock_of(task):
            fn = task._fn
            if fn is not None:  # else leave it alone: who has the task may be putting it back
                task._fn = None
        return fn

    def _length_now(items: _Extensible) -> int:
        items.extend(())
        return len(items)

    length_now = _length_now

else:

    def claim(task: Any) -> Any:
        """Atomically take the function of a task; None when somebody else has it."""
        fn, task._fn = task._fn, None
        return fn

    length_now = len  # (a name of the built-in itself costs nothing)

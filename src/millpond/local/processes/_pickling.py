"""Calls on their way to a worker process, and outcomes on their way back.

A batch is one pickle: `(fns, arguments, is_bare)`, with a single function when its calls are all of one.
Pickled together, a call costs a twentieth of what it costs alone. When that fails, on either side, the batch is not
lost: function by function and call by call, the culprit is found and it alone fails.

What cannot be pickled by name (a lambda, a nested function, one typed into a notebook) is sent by value when
cloudpickle is installed. Such a function is pickled once and loaded once per worker (`ByValue`).

All of it is done in the I/O thread, and with it what users' objects do when they are pickled or loaded (`__reduce__`,
`__getstate__`, `__setstate__`): the one code of users that runs there. The docstring of `ProcessPool` tells them. So
whatever it raises, even SystemExit, is the error of that one task, and no error of theirs is trusted to have a text.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.local.processes._child import cloudpickle, dumps, load_by_value, name_of, text_of

BY_NAME, BY_VALUE, SINGLY = 0, 1, 2  # how calls are encoded; each is tried when the one before has failed

INSTALL = 'or pip install "millpond[pickle]" so that it can be sent by value'


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as text: the `__cause__` of that exception here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(slots=True)
class ByValue:
    """A function that travels by value."""

    fn: Any  # so that its identity stays its own
    blob: bytes

    def __reduce__(self) -> Any:
        return load_by_value, (self.blob,)


class Encoder:
    def __init__(self) -> None:
        self._encodings: dict[str, int] = {}
        self._by_value: dict[int, ByValue] = {}

    def encode(
        self, fns: Sequence[Any], arguments: list[Any], *, is_bare: bool = False
    ) -> tuple[bytes, dict[int, Exception]]:
        """Return the pickle of a batch, and the errors of those of its calls that cannot be pickled, by position.

        `fns` has the function of each call, or one for all; `is_bare` is told in `_batch`.
        """
        encoding = max(map(self._encoding, fns)) if self._encodings else BY_NAME
        if encoding != SINGLY:
            try:
                sent = fns if encoding == BY_NAME else [self._represent(fn) for fn in fns]
                return pickle.dumps((sent, arguments, is_bare), 5), {}
            except BaseException:
                if encoding == BY_NAME and self._sends_by_value(fns):
                    return self.encode(fns, arguments, is_bare=is_bare)
        return self._singly(fns, [(each,) for each in arguments] if is_bare else arguments)

    def _sends_by_value(self, fns: Sequence[Any]) -> bool:
        """Note which of these functions must travel by value; False when that does not help."""
        nameless = [fn for fn in {id(fn): fn for fn in fns}.values() if not _can_pickle(fn, pickle.dumps)]
        if nameless and cloudpickle() is not None:
            for fn in nameless:
                self.next_encoding(fn)
            return True
        return False

    def next_encoding(self, fn: Any) -> None:
        """Send the calls of `fn` in the next encoding from now on, since the one so far has failed."""
        name = _full_name(fn)
        encoding = self._encodings.get(name, BY_NAME)
        if len(self._encodings) > 4096:
            self._encodings.clear()
        self._encodings[name] = BY_VALUE if encoding == BY_NAME and cloudpickle() is not None else SINGLY

    def _encoding(self, fn: Any) -> int:
        return self._encodings.get(_full_name(fn), BY_NAME)

    def _represent(self, fn: Any) -> Any:
        """Return what stands for `fn` in a pickle: itself, or a `ByValue` when it cannot be pickled by name."""
        found = self._by_value.get(id(fn))
        if found is None:
            by_value = cloudpickle()
            if by_value is None or not self._encoding(fn):
                return fn
            if len(self._by_value) >= 256:
                self._by_value.clear()
            found = self._by_value[id(fn)] = ByValue(fn, by_value.dumps(fn))
        return found

    def _singly(self, fns: Sequence[Any], arguments: list[tuple[Any, ...]]) -> tuple[bytes, dict[int, Exception]]:
        blobs: list[tuple[str, bytes]] = []
        errors: dict[int, Exception] = {}
        for position, args in enumerate(arguments):
            fn, blob = fns[position if len(fns) > 1 else 0], b""
            try:
                blob = dumps((self._represent(fn), args))
            except BaseException as error:
                errors[position] = _explain(fn, args, error)
            blobs.append((name_of(fn), blob))
        return pickle.dumps((None, blobs, False), 5), errors


def encode_setup(initializer: Any, initargs: tuple[Any, ...], finalizer: Any) -> bytes:
    """Return the pickle of what a worker calls at its start and at its end."""
    try:
        return dumps((initializer, initargs, finalizer))
    except Exception as error:
        if finalizer is not None and not _can_pickle(finalizer):
            raise _explain(finalizer, (), error) from error
        raise _explain(initializer, initargs, error) from error


def _explain(fn: Any, args: tuple[Any, ...], error: BaseException) -> Exception:
    bad = next((at for at, each in enumerate(args) if not _can_pickle(each)), None) if _can_pickle(fn) else None
    if bad is None:
        hint = "" if cloudpickle() is not None else f", {INSTALL}"
        what = f"{name_of(fn)} (in {getattr(fn, '__module__', None)})"
        advice = f"define it at module level{hint}"
    else:
        what = f"argument {bad + 1} of {name_of(fn)}, a {type(args[bad]).__qualname__},"
        advice = "pass plain data, or the name or path by which the worker can open it"
    explained = pickle.PicklingError(f"{what} cannot be sent to a worker process: {text_of(error)}; {advice}")
    explained.__cause__ = error
    return explained


def _can_pickle(value: Any, dumps: Callable[[Any], bytes] = dumps) -> bool:
    try:
        dumps(value)
    except BaseException:
        return False
    return True


def load_error(blob: bytes, text: str) -> BaseException:
    """Return what a call raised, with the traceback of its process as its cause."""
    try:
        error: BaseException = pickle.loads(blob)
    except BaseException as trouble:
        error = unreadable("the exception", trouble)
    error.__cause__ = RemoteTraceback(text)
    return error


def unreadable(name: str, error: BaseException) -> Exception:
    trouble = pickle.UnpicklingError(f"what {name} returned cannot be loaded here: {text_of(error)}; return plain data")
    trouble.__cause__ = error
    return trouble


def _full_name(fn: Any) -> str:
    fn = getattr(fn, "func", fn)
    return f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"

"""How a job ended, as bytes and as what its caller gets."""

from __future__ import annotations

import traceback

import msgspec

from millpond._saying import kind_of, said
from millpond.errors import JobFailed


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """What is kept of an exception."""

    type: str
    message: str
    traceback: str
    attempts: int


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Failure).decode

_OURS = ("millpond.keyed.worker.", "millpond.otel")
"""How the names of modules begin by which a handler is called."""
_TRACE = BaseException.__dict__["__traceback__"]
"""Reads where an exception was raised; a class of its own may have something else under that name."""
_LONGEST = 20_000
"""Characters of a traceback that are kept: its end says most."""


def bare(error: BaseException) -> BaseException:
    """Leave out of a traceback how we came to call the handler; nothing is left of one that is only ours."""
    trace = _TRACE.__get__(error)
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_OURS):
        trace = trace.tb_next
    return BaseException.with_traceback(error, trace)  # not by an assignment: a class may forbid those


def failure(error: BaseException, attempts: int) -> Failure:
    """Return what is kept of an exception."""
    message = said(error)
    text = said(error, _formatted)
    return Failure(kind_of(error), _clean(message[:_LONGEST]), _clean(text[-_LONGEST:]), attempts)


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # its cause or its notes cannot be had: where it was raised can
        lines = traceback.format_tb(_TRACE.__get__(error))
        return "".join(["Traceback (most recent call last):\n", *lines, f"{kind_of(error)}: {said(error)}\n"])


def _clean(text: str) -> str:
    """Return text that can be encoded: names of files may have bytes in it that cannot."""
    return text.encode(errors="backslashreplace").decode()


def refusal(key: str, job: str, status: str, data: bytes) -> JobFailed:
    """Return the error for a job that did not end well."""
    if status in ("failed", "dead") and data[:1] >= b"\x90":
        kept = _decode(data)
        tries = f" after {kept.attempts} attempts" if kept.attempts > 1 else ""
        return JobFailed(
            f"job {job!r} of key {key!r} failed{tries} with {kept.type}: {kept.message}",
            key=key,
            job_id=job,
            status="failed",
            error=kept.type,
            traceback=kept.traceback,
        )
    words = {
        "dead": "is among the dead letters",
        "lost": "killed its worker too often and is among the dead letters",
        "cancelled": "was cancelled",
        "replaced": "was replaced by a later one",
        "purged": "was purged",
    }
    reason = f": {data.decode(errors='replace')}" if data else ""
    return JobFailed(
        f"job {job!r} of key {key!r} {words.get(status, status)}{reason}", key=key, job_id=job, status=status
    )

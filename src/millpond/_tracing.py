"""What a keyed pool asks of whoever traces it. `millpond.otel.Tracing` does so for OpenTelemetry."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, runtime_checkable


@runtime_checkable
class Tracing(Protocol):
    """Follows jobs from their dispatch to their run."""

    def sending(self, pool: str, job: str, key: str | None) -> AbstractContextManager[Mapping[str, str]]:
        """Trace a dispatch while the block lasts; the value is what travels with the job. `key` is None for many."""

    def running(
        self,
        pool: str,
        job: str,
        key: str,
        id: str,  # noqa: A002  (what it is called everywhere)
        attempt: int,
        carrier: Mapping[str, str],
    ) -> AbstractContextManager[Any]:
        """Trace a run of a handler while the block lasts; `carrier` is what came with the job."""


NOT_TRACED: Final = contextlib.nullcontext(None)
"""In the place of a block that is not traced."""


def check_tracing(tracing: Any) -> Tracing | None:
    """Return what traces a pool; refuse what cannot."""
    if tracing is not None and (isinstance(tracing, type) or not isinstance(tracing, Tracing)):
        raise TypeError(f"tracing= is a millpond.otel.Tracing(), not {tracing!r}")
    return tracing

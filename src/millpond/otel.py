"""Traces by OpenTelemetry: one from the dispatch of a job to its run, in whatever process.

    from millpond.otel import Tracing                                   # pip install "millpond[otel]"

    tracing = Tracing()
    tenants = KeyedPool("tenants", "redis://localhost", tracing=tracing)
    gpus = ResourcePool("gpus", "sqlite:///pools.db", on_event=tracing)
    threads = ThreadPool(on_event=tracing)

Spans: `send sync` (PRODUCER) around a dispatch, `process sync` (CONSUMER) around each run of its handler, `acquire
gpus` for the time that somebody waited for a resource, `run resize` for a task of a local pool. The context
(`traceparent`, `tracestate`, `baggage`, or what your propagator writes) travels with the job in the store.

Only the API of OpenTelemetry is needed; the SDK and where spans go to are the program's. Without an SDK nothing is
recorded, and nothing is added to jobs. What a local pool or a grant did becomes a span when it has ended, with its
true times; its parent is the span in which it was submitted or asked for. Tasks of a `ProcessPool` have no parent,
since what they do in another process is told afterwards: `carried` takes the context of the submitter there.

Nothing that goes wrong in here touches a job: it is logged, and the job goes on without its span.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, Literal, ParamSpec, TypeVar

try:
    from opentelemetry import context, propagate, trace
except ModuleNotFoundError as _error:  # pragma: no cover  (a test runs it without the package)
    raise ModuleNotFoundError(
        'millpond.otel needs OpenTelemetry: pip install "millpond[otel]"', name="opentelemetry"
    ) from _error

from millpond._events import Event, logger
from millpond._saying import said
from millpond._version import __version__
from millpond.keyed import Retry

__all__ = ["Tracing", "carried"]

P = ParamSpec("P")
R = TypeVar("R")
Links = Literal["retries", "always", "never"]
LONGEST: Final = 4096
"""Bytes that may travel with a job; what is more is left out, but for the trace itself."""


class Tracing:
    """Makes spans of what pools do. Give it to keyed pools as `tracing=`, to the others as `on_event=`.

    `links` says which runs of a job are in a trace of their own that is linked to the dispatch, rather than in its
    trace: `retries` (they may come hours later), `always` (for jobs that wait long) or `never`. `keys=False` leaves the
    keys of jobs out of spans. `then` is an observer that gets every event as well.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        links: Links = "retries",
        keys: bool = True,
        then: Callable[[Event], object] | None = None,
    ) -> None:
        if links not in ("retries", "always", "never"):
            raise ValueError(f"links is 'retries', 'always' or 'never', not {links!r}")
        if not isinstance(keys, bool):
            raise TypeError(f"keys= is True or False, not {keys!r}")
        if then is not None and not callable(then):
            raise TypeError(f"then= is a function of an event, not {then!r}")
        self._tracer = trace.get_tracer("millpond", __version__, tracer_provider)
        self._links = links
        self._keys = keys
        self._then = then

    # --- keyed pools -------------------------------------------------------------------------------------------------

    def sending(self, pool: str, job: str, key: str | None) -> AbstractContextManager[Mapping[str, str]]:
        """Trace a dispatch while the block lasts; the value is what travels with the job."""
        span = self._begun(f"send {job}", None, trace.SpanKind.PRODUCER, self._about("send", pool, job, key))
        return contextlib.nullcontext({}) if span is None else _Sending(span)

    def running(
        self,
        pool: str,
        job: str,
        key: str,
        id: str,  # noqa: A002  (what it is called everywhere)
        attempt: int,
        carrier: Mapping[str, str],
    ) -> AbstractContextManager[Any]:
        """Trace a run of a handler while the block lasts, in the trace of its dispatch or linked to it."""
        about = {**self._about("process", pool, job, key), "messaging.message.id": id, "millpond.attempt": attempt}
        sent = _extracted(carrier)
        parent, links = sent, []
        if self._links == "always" or (self._links == "retries" and attempt > 1):
            creation = trace.get_current_span(sent).get_span_context()
            if creation.is_valid:
                parent, links = trace.set_span_in_context(trace.INVALID_SPAN, sent), [trace.Link(creation)]
        span = self._begun(f"process {job}", parent, trace.SpanKind.CONSUMER, about, links)
        return contextlib.nullcontext() if span is None else _Block(span, parent)

    def _begun(
        self,
        name: str,
        parent: context.Context | None,
        kind: trace.SpanKind,
        about: dict[str, str | int],
        links: Sequence[trace.Link] = (),
    ) -> trace.Span | None:
        """Begin a span; None when something of the program's SDK raises."""
        try:
            return self._tracer.start_span(name, parent, kind=kind, attributes=about, links=links)
        except Exception:
            logger.exception("a span cannot be begun")
            return None

    def _about(self, operation: str, pool: str, job: str, key: str | None) -> dict[str, str | int]:
        about: dict[str, str | int] = {
            "messaging.system": "millpond",
            "messaging.operation.type": operation,
            "messaging.operation.name": operation,
            "messaging.destination.name": pool,
            "millpond.job": job,
        }
        if self._keys and isinstance(key, str):
            about["millpond.key"] = key
        return about

    # --- local and resource pools ------------------------------------------------------------------------------------

    def __call__(self, event: Event) -> None:
        """Make a span of what has ended: a task of a local pool, or the wait for a resource."""
        try:
            self._tell(event)
        except Exception:  # a tracer or processor of the program's
            logger.exception("a span cannot be made")
        if self._then is not None:
            self._then(event)

    def _tell(self, event: Event) -> None:
        data = event.data
        if event.name in ("task_finished", "task_failed"):
            about = {"millpond.pool": event.pool, "code.function.name": str(data.get("function", ""))}
            self._past(f"run {data.get('function', 'task')}", data.get("seconds"), about, data.get("error"))
        elif event.name in ("acquired", "acquire_failed"):
            about = {"millpond.pool": event.pool, "millpond.wants": str(data.get("wants", ""))}
            if "resources" in data:
                about["millpond.resources"] = ", ".join(data["resources"])
            self._past(f"acquire {event.pool}", data.get("waited"), about, data.get("error"))

    def _past(self, name: str, seconds: float | None, about: dict[str, str], error: Any) -> None:
        """Make a span that ends now and lasted for so many seconds."""
        now = time.time_ns()
        began = now - max(0, round((seconds or 0.0) * 1e9))
        span = self._tracer.start_span(name, attributes=about, start_time=began)
        if isinstance(error, BaseException):
            _note(span, error)
        span.end(now)


class _Block(AbstractContextManager[Any]):
    """A span that is current while a block lasts. A class, and no generator, since a job may be a microsecond."""

    __slots__ = ("_base", "_span", "_token")

    def __init__(self, span: trace.Span, base: context.Context | None = None) -> None:
        self._span = span
        self._base = base

    def __enter__(self) -> Any:
        self._token = context.attach(trace.set_span_in_context(self._span, self._base))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        context.detach(self._token)
        if error is not None:
            _note(self._span, error)
        try:
            self._span.end()
        except Exception:  # a processor of the program's
            logger.exception("a span cannot be ended")


class _Sending(_Block):
    """A dispatch."""

    __slots__ = ()

    def __enter__(self) -> Mapping[str, str]:
        super().__enter__()
        try:
            return _injected() if self._span.get_span_context().is_valid else {}
        except Exception:  # a span of the program's
            logger.exception("the context of a trace cannot be sent")
            return {}


def _injected() -> dict[str, str]:
    """Return the current context as texts that can travel."""
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier)
    except Exception:  # a propagator of the user's
        logger.exception("the context of a trace cannot be sent")
    return _bounded(carrier)


def _extracted(carrier: Mapping[str, str]) -> context.Context:
    """Return the context that has travelled."""
    try:
        return propagate.extract(carrier, context.Context()) if carrier else context.Context()
    except Exception:
        logger.exception("the context of a trace cannot be read")
        return context.Context()


def _bounded(carrier: dict[str, str]) -> dict[str, str]:
    """Leave out what is too long to travel with a job, or no text; the trace itself goes first."""
    kept: dict[str, str] = {}
    room = LONGEST
    for name in sorted(carrier, key=lambda name: (name != "traceparent", name != "tracestate")):
        text = carrier[name]
        try:
            size = len(name.encode()) + len(text.encode())
        except (AttributeError, UnicodeError):
            continue
        if size <= room:
            kept[name] = text
            room -= size
    return kept


def _note(span: trace.Span, error: BaseException) -> None:
    """Note how something ended: by an error, or because it was told to stop or to be tried again."""
    try:
        if isinstance(error, Retry):
            span.add_event("retry")
        elif isinstance(error, Exception):
            span.record_exception(error)
            span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {said(error)}"[:1000])
        else:
            span.add_event("stopped", {"exception.type": type(error).__name__})
    except Exception:  # an exception that cannot be printed, or a span of the program's
        with contextlib.suppress(Exception):
            span.set_status(trace.StatusCode.ERROR, type(error).__name__)


class _Carried(Generic[P, R]):
    """A function with the context of whoever submits it; it can be pickled."""

    def __init__(self, function: Callable[P, R], carrier: dict[str, str]) -> None:
        self.function = function
        self.carrier = carrier
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        token = context.attach(_extracted(self.carrier))
        try:
            return self.function(*args, **kwargs)
        finally:
            context.detach(token)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Carried, (self.function, self.carrier)


def carried(function: Callable[P, R], /) -> Callable[P, R]:
    """Return the function with the current trace: `processes.submit(carried(resize), image)`.

    What it does in the other process is in the trace of whoever submitted it, if that process has an SDK as well.
    """
    if not callable(function):
        raise TypeError(f"carried() takes a function, not {function!r}")
    return _Carried(function, _injected())

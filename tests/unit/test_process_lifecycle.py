"""`ProcessPool` at its beginning and end: initializers, interpreter exit, Ctrl-C, fork. Mostly whole programs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest

from millpond import PoolClosed, ProcessPool
from waiting import HANG

sys.path.insert(0, str(Path(__file__).parent))
import process_calls as calls

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def leaves_no_process_behind() -> Iterator[None]:
    yield
    gc.collect()
    left = [child for child in multiprocessing.active_children() if (child.join(HANG), child.is_alive())[1]]
    assert not left


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[calls.Gate]:
    gate = calls.Gate(tmp_path)
    yield gate
    gate.open()


def start(tmp_path: Path, script: str) -> subprocess.Popen[str]:
    file = tmp_path / "script.py"
    file.write_text(script)
    return subprocess.Popen(
        [sys.executable, "-u", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path[1:], str(HERE)])},
        start_new_session=True,
    )


def run(tmp_path: Path, script: str) -> tuple[int, str, str]:
    program = start(tmp_path, script)
    try:
        out, err = program.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        raise
    return program.returncode, out, err


# -- beginning ---------------------------------------------------------------------------------------------------------


def test_a_failing_initializer_breaks_the_pool_and_shows_why():
    with ProcessPool(2, initializer=calls.fail, initargs=("no database",)) as pool:
        tasks = [pool.submit(calls.noop) for _ in range(10)]
        error = tasks[0].exception(HANG)
        assert isinstance(error, BrokenProcessPool)
        assert "ValueError('no database')" in str(error) and "in fail" in str(error)
        assert all(isinstance(task.exception(HANG), BrokenProcessPool) for task in tasks)
        with pytest.raises(BrokenProcessPool):
            pool.submit(calls.noop)
        assert pool.statistics().state == "broken"


def test_workers_that_die_before_they_are_ready_break_the_pool_instead_of_starting_for_ever():
    with ProcessPool(1, initializer=calls.die) as pool:
        error = pool.submit(calls.noop).exception(HANG)
        assert isinstance(error, BrokenProcessPool)
        assert "3 worker processes" in str(error) and "exit code 3" in str(error) and "__main__" in str(error)


def test_a_broken_pool_can_be_restarted(tmp_path):
    with ProcessPool(1, initializer=calls.die_once, initargs=(str(tmp_path / "x"),)) as pool:
        assert pool.submit(calls.square, 2).result(HANG) == 4  # the first worker died at its start, the second lived
    with ProcessPool(1, initializer=calls.fail) as pool:
        pool.submit(calls.noop).exception(HANG)
        pool.restart()
        assert isinstance(pool.submit(calls.noop).exception(HANG), BrokenProcessPool)


def test_an_unguarded_script_ends_with_an_error_that_says_what_to_do(tmp_path):
    code, _, err = run(
        tmp_path,
        "from millpond import ProcessPool\nimport process_calls as calls\n"
        "with ProcessPool(2) as pool:\n    print(pool.submit(calls.square, 3).result(50))\n",
    )
    assert code == 1
    assert "if __name__ == '__main__':" in err and "BrokenProcessPool" in err


def test_a_pool_may_be_made_at_the_top_of_a_script_when_it_is_used_below_the_guard(tmp_path):
    code, out, err = run(
        tmp_path,
        "from millpond import ProcessPool\nimport process_calls as calls\n"
        "pool = ProcessPool(2, min_workers=1)\n"
        "if __name__ == '__main__': print(pool.submit(calls.square, 3).result())\n",
    )
    assert (code, out, err) == (0, "9\n", "")


def test_a_function_of_the_main_script_can_be_submitted(tmp_path):
    code, out, err = run(
        tmp_path,
        "from millpond import ProcessPool\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with ProcessPool(2) as pool: print(sum(pool.map(double, range(100))))\n",
    )
    assert (code, out, err) == (0, "9900\n", "")


def test_a_function_typed_into_a_console_is_sent_by_value(tmp_path):
    program = subprocess.run(
        [
            sys.executable,
            "-c",
            "from millpond import ProcessPool\n"
            "def double(x): return 2 * x\n"
            "with ProcessPool(2) as pool: print(sum(pool.map(double, range(100))))\n",
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])},
    )
    assert (program.returncode, program.stdout, program.stderr) == (0, "9900\n", "")


# -- end ---------------------------------------------------------------------------------------------------------------


def test_queued_work_is_finished_when_the_interpreter_ends(tmp_path):
    out = tmp_path / "out"
    code, _, err = run(
        tmp_path,
        "from millpond import ProcessPool\nimport process_calls as calls\n"
        "if __name__ == '__main__':\n"
        "    pool = ProcessPool(2)\n"
        f"    for x in range(2000): pool.submit(calls.write_line, {str(out)!r}, x)\n",
    )
    assert (code, err) == (0, "")
    assert sorted(map(int, out.read_text().split())) == list(range(2000))


def test_functions_of_the_main_script_and_callbacks_run_though_the_script_has_ended(tmp_path):
    code, out, err = run(
        tmp_path,
        "import sys\nfrom millpond import ProcessPool\n"
        "sys.modules['cloudpickle'] = None  # nothing is sent by value\n"
        "def double(x): return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    pool = ProcessPool(1)\n"
        "    for x in range(3): pool.submit(double, x).add_done_callback(lambda task: print(task.result()))\n",
    )
    assert (code, out, err) == (0, "0\n2\n4\n", "")


def test_thread_pools_may_use_process_pools_to_the_very_end(tmp_path):
    out = tmp_path / "out"
    code, _, err = run(
        tmp_path,
        "from millpond import ThreadPool, ProcessPool\nimport process_calls as calls\n"
        "if __name__ == '__main__':\n"
        "    threads = ThreadPool(2)\n"
        "    processes = ProcessPool(1)\n"
        f"    def step(x): processes.submit(calls.write_line, {str(out)!r}, x).result()\n"
        "    for x in range(50): threads.submit(step, x)\n",
    )
    assert (code, err) == (0, "")
    assert sorted(map(int, out.read_text().split())) == list(range(50))


def alive_children(program: subprocess.Popen[str]) -> list[psutil.Process]:
    return list(psutil.Process(program.pid).children(recursive=True))


@pytest.mark.parametrize("style", ["with", "without"])
def test_ctrl_c_leaves_promptly_and_leaves_nobody_behind(tmp_path, gate, style):
    body = {
        "with": "    with ProcessPool(2) as pool:\n        pool.submit(calls.hold, {0!r}).result()\n",
        "without": "    pool = ProcessPool(2)\n    pool.submit(calls.hold, {0!r}).result()\n",
    }[style].format(gate.path)
    program = start(
        tmp_path,
        f"from millpond import ProcessPool\nimport process_calls as calls\nif __name__ == '__main__':\n{body}",
    )
    gate.wait()
    family = alive_children(program)
    assert family
    os.killpg(program.pid, signal.SIGINT)
    _, err = program.communicate(timeout=HANG)
    assert err.count("Traceback") == 1 and err.endswith("KeyboardInterrupt\n")
    psutil.wait_procs(family, timeout=HANG)
    assert not [member for member in family if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_end_when_the_program_is_killed(tmp_path, method):
    program = start(
        tmp_path,
        "from millpond import ProcessPool\nimport process_calls as calls, time\n"
        "if __name__ == '__main__':\n"
        f"    pool = ProcessPool(2, min_workers=2, start_method={method!r})\n"
        "    pool.submit(calls.noop).result(); print('ready'); time.sleep(3600)\n",
    )
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    family = alive_children(program)
    program.kill()
    program.communicate()
    gone, left = psutil.wait_procs(family, timeout=HANG)
    assert family and not left


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_pool_is_usable_in_a_forked_child(gate):
    with ProcessPool(1) as pool:
        running = pool.submit(calls.hold, gate.path)
        gate.wait()
        waiting = pool.submit(calls.square, 3)
        child = os.fork()
        if child == 0:
            try:
                ok = isinstance(running.exception(0), PoolClosed) and isinstance(waiting.exception(0), PoolClosed)
                ok = ok and pool.submit(calls.square, 4).result(HANG) == 16
                ok = ok and pool.shutdown(timeout=HANG)
                with ProcessPool(1) as another:
                    ok = ok and another.submit(calls.square, 5).result(HANG) == 25
                os._exit(0 if ok else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        gate.open()
        assert os.waitstatus_to_exitcode(status) == 0
        assert waiting.result(HANG) == 9


def test_importing_the_pool_costs_a_worker_little():
    program = (
        "import sys, millpond.local.processes._child; print(*(m for m in sys.modules if m.startswith('millpond')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])},
    )
    loaded = set(re.findall(r"\S+", done.stdout))
    assert loaded == {
        "millpond",
        "millpond._lazy",
        "millpond._version",
        "millpond.local",
        "millpond.local.processes",
        "millpond.local.processes._child",
        "millpond.local.processes._frames",
        "millpond.local.processes._journal",
    }


def test_whoever_submits_while_the_io_thread_cannot_be_started_hears_of_it_too(monkeypatch):
    """The second one finds the thread on its way: it must not count on it."""
    one_has_heard, outcomes = threading.Event(), []
    refusal = RuntimeError("can't start new thread")
    real_start = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.endswith("-io"):
            one_has_heard.wait(0.1)
            raise refusal
        real_start(thread)

    def submit(pool: ProcessPool) -> None:
        try:
            pool.submit(calls.noop).result(HANG)
        except RuntimeError as error:
            outcomes.append(error)
        one_has_heard.set()

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr("millpond.local.processes._pool.STARTS_AT_ONCE", False)
    pool = ProcessPool(1)
    threads = [threading.Thread(target=submit, args=(pool,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert outcomes == [refusal] * 4
    monkeypatch.undo()
    assert pool.submit(abs, -3).result(HANG) == 3  # and goes on when it can
    pool.shutdown()

"""Ctrl-C inside a `with ThreadPool()` block: the process leaves at once, and says what it left behind.

Each test runs a script whose tasks would sleep for an hour: one that waits for them does not leave. A thread of the
script watches where the main thread is, and sends the signal when it is there for sure, and the tasks have begun.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from waiting import HANG

PRELUDE = """
import logging, os, signal, sys, threading, time
import concurrent.futures as standard
import millpond
from millpond import ThreadPool
signal.signal(signal.SIGINT, signal.default_int_handler)
logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def interrupt_in(*names, running=0):
    '''Send Ctrl-C when so many tasks run and the main thread rests in these functions, the first inside the second.'''
    main = threading.main_thread().ident
    def watch():
        quiet = 0
        while quiet < 5 or len(begun) < running:  # it is there, and stays there
            frame, stack = sys._current_frames()[main], []
            while frame is not None:
                stack.append(frame.f_code.co_name)
                frame = frame.f_back
            found = iter(stack)
            quiet = quiet + 1 if all(name in found for name in names) else 0
            time.sleep(0.01)
        say("signal")
        signal.pthread_kill(main, signal.SIGINT)  # where it is stopped just now, the kernel would choose another
    threading.Thread(target=watch, daemon=True).start()

begun, started = [], threading.Event()
def sleep():
    begun.append(1)
    started.set()
    time.sleep(3600)
"""


def interrupted(script: str) -> str:
    """Run a script that is to be ended by Ctrl-C, and check that it was; return its stderr."""
    code, out, err = run(script)
    assert "signal" in out, f"it ended before the signal; it had printed {out!r}, and to stderr:\n{err}"
    assert err.rstrip().endswith("KeyboardInterrupt"), err
    assert code == -signal.SIGINT
    return err


def run(script: str) -> tuple[int, str, str]:
    """Run a script to its end; return its exit code and what it wrote to stdout and stderr."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"it did not leave; it had printed {out!r}, and to stderr:\n{err}")
    return process.returncode, out, err


def left(queued: int, running: int) -> str:
    return f"left by KeyboardInterrupt: {queued} queued tasks cancelled, {running} running tasks left behind"


def test_ctrl_c_in_result():
    err = interrupted("""
    with ThreadPool(1) as pool:
        task = pool.submit(sleep)
        for _ in range(3): pool.submit(int)
        started.wait()
        interrupt_in("result")
        task.result()
    """)
    assert left(3, 1) in err


def test_ctrl_c_in_result_with_a_timeout():
    err = interrupted("""
    with ThreadPool(1) as pool:
        task = pool.submit(sleep)
        started.wait()
        interrupt_in("result")
        task.result(timeout=3600)
    """)
    assert left(0, 1) in err


def test_ctrl_c_in_exception():
    err = interrupted("""
    with ThreadPool(1) as pool:
        task = pool.submit(sleep)
        started.wait()
        interrupt_in("exception")
        task.exception()
    """)
    assert left(0, 1) in err


def test_ctrl_c_in_map():
    err = interrupted("""
    with ThreadPool(2) as pool:
        interrupt_in("next", running=2)
        list(pool.map(lambda _: sleep(), range(10)))
    """)
    assert "2 running tasks left behind" in err  # the map itself has cancelled its other items by then


def test_ctrl_c_in_an_unordered_lazy_map():
    err = interrupted("""
    import itertools
    with ThreadPool(2) as pool:
        interrupt_in("next", running=2)
        list(pool.map(lambda _: sleep(), itertools.count(), ordered=False, buffersize=4))
    """)
    assert "2 running tasks left behind" in err


@pytest.mark.parametrize("module", ["standard", "millpond"])
@pytest.mark.parametrize("when", ["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"])
def test_ctrl_c_in_wait(module, when):
    err = interrupted(f"""
    with ThreadPool(2) as pool:
        tasks = [pool.submit(sleep) for _ in range(5)]
        interrupt_in("wait", running=2)
        {module}.wait(tasks, return_when="{when}")
    """)
    assert left(3, 2) in err


@pytest.mark.parametrize("module", ["standard", "millpond"])
def test_ctrl_c_in_as_completed(module):
    err = interrupted(f"""
    with ThreadPool(2) as pool:
        tasks = [pool.submit(sleep) for _ in range(5)]
        interrupt_in("as_completed", running=2)
        for task in {module}.as_completed(tasks): pass
    """)
    assert left(3, 2) in err


def test_ctrl_c_in_drain():
    err = interrupted("""
    with ThreadPool(2) as pool:
        tasks = [pool.submit(sleep) for _ in range(5)]
        interrupt_in("drain", running=2)
        pool.drain()
    """)
    assert left(3, 2) in err


def test_ctrl_c_in_shutdown_inside_the_block():
    err = interrupted("""
    with ThreadPool(2) as pool:
        tasks = [pool.submit(sleep) for _ in range(5)]
        interrupt_in("shutdown", running=2)
        pool.shutdown()
    """)
    assert left(3, 2) in err


def test_ctrl_c_at_the_end_of_the_block_while_it_waits_for_the_tasks():
    err = interrupted("""
    with ThreadPool(2) as pool:
        tasks = [pool.submit(sleep) for _ in range(5)]
        interrupt_in("join", "__exit__", running=2)
    """)
    assert left(3, 2) in err


def test_ctrl_c_in_a_submit_that_waits_for_room():
    err = interrupted("""
    with ThreadPool(1, max_queued=2) as pool:
        for _ in range(3): pool.submit(sleep)
        interrupt_in("submit", running=1)
        pool.submit(sleep)
    """)
    assert left(2, 1) in err


def test_ctrl_c_in_a_group():
    err = interrupted("""
    with ThreadPool(1) as pool:
        interrupt_in("__exit__")
        with pool.group() as group:
            for _ in range(3): group.submit(sleep)
    """)
    assert "left by KeyboardInterrupt" in err


def test_ctrl_c_in_the_users_own_code():
    err = interrupted("""
    def compute():
        while True: time.sleep(0.01)
    with ThreadPool(1) as pool:
        for _ in range(3): pool.submit(sleep)
        started.wait()
        interrupt_in("compute")
        compute()
    """)
    assert left(2, 1) in err


def test_ctrl_c_with_nothing_to_leave_behind():
    err = interrupted("""
    def compute():
        while True: time.sleep(0.01)
    with ThreadPool(1) as pool:
        pool.submit(int).result()
        interrupt_in("compute")
        compute()
    """)
    assert "running tasks left behind" not in err or left(0, 0) in err


def test_ctrl_c_leaves_nested_pools():
    err = interrupted("""
    with ThreadPool(1) as outer, ThreadPool(1) as inner:
        outer.submit(sleep)
        task = inner.submit(sleep)
        interrupt_in("result", running=2)
        task.result()
    """)
    assert err.count("left by KeyboardInterrupt") == 2


def test_a_running_task_sees_by_its_token_that_the_pool_was_left():
    err = interrupted("""
    from millpond import current_token
    ended = threading.Event()
    def look():
        token = current_token()
        started.set()
        token.wait(3600)
        say("token", token.reason)
        ended.set()
    try:
        with ThreadPool(1) as pool:
            task = pool.submit(look)
            started.wait()
            interrupt_in("result")
            task.result()
    finally:
        ended.wait()
    """)
    assert left(0, 1) in err


def test_ctrl_c_that_is_caught_leaves_a_process_that_ends_without_waiting():
    script = """
    pool = ThreadPool(1)
    try:
        with pool:
            task = pool.submit(sleep)
            queued = pool.submit(int)
            started.wait()
            interrupt_in("result")
            task.result()
    except KeyboardInterrupt:
        say("cancelled", queued.cancelled())
    """
    code, out, err = run(script)
    assert code == 0 and "cancelled True" in out
    assert left(1, 1) in err


def test_a_second_ctrl_c_ends_the_wait_for_a_pool_without_a_with_block():
    """The first leaves result(); the exit waits for the running task, as the standard pool's does; then the second."""
    script = """
    import atexit
    pool = ThreadPool(1)
    task = pool.submit(sleep)
    started.wait()
    interrupt_in("result")
    try:
        task.result()
    except KeyboardInterrupt:
        say("first")
    interrupt_in("finish_queued")
    """
    _, out, err = run(script)
    assert "first" in out and out.count("signal") == 2
    assert "KeyboardInterrupt" in err


def test_a_second_ctrl_c_while_the_first_is_being_handled_leaves_at_once_too():
    interrupted("""
    class Stuck(logging.Handler):
        def emit(self, record):
            time.sleep(3600)
    logging.getLogger("millpond").addHandler(Stuck())
    with ThreadPool(1) as pool:
        for _ in range(3): pool.submit(sleep)
        started.wait()
        interrupt_in("emit")
        interrupt_in("result")
        pool.submit(int).result()
    """)


def test_ctrl_c_in_asyncio_run_with_a_pool_around_it():
    err = interrupted("""
    import asyncio
    async def main():
        with ThreadPool(1) as pool:
            for _ in range(2): pool.submit(sleep)
            interrupt_in("select")
            await pool.submit(sleep)
    asyncio.run(main())
    """)
    assert "pool" in err


def test_system_exit_leaves_the_block_at_once_too():
    script = """
    with ThreadPool(1) as pool:
        pool.submit(sleep)
        started.wait()
        sys.exit(3)
    """
    code, _, err = run(script)
    assert code == 3
    assert "left by SystemExit: 0 queued tasks cancelled, 1 running tasks left behind" in err

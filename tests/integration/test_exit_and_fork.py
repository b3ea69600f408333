"""What becomes of pools when the interpreter ends, when they are dropped, and in forked children.

Every test runs a script in a process of its own, with a time-out: a hang is a failure, not a hung suite.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import weakref

import pytest

from millpond import ThreadPool
from waiting import HANG, until

TIME_OUT = 1.5 * HANG  # longer than what a script waits, so that it can say what hangs

PRELUDE = (
    f"""HANG = {HANG}"""
    + """
import atexit, os, sys, threading, time
from millpond import PoolClosed, ThreadPool
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # one write, so that threads do not mix their lines
"""
)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(script: str, *, options: tuple[str, ...] = (), code: int = 0, errors: str | None = "") -> list[str]:
    """Run a script to its end; check its exit code and what it wrote to stderr; return the lines it printed."""
    command = [sys.executable, *options, "-c", PRELUDE + textwrap.dedent(script)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=TIME_OUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        pytest.fail(f"the process hung; it had printed {out!r}, and to stderr {err!r}")
    assert process.returncode == code, err
    if errors is not None:
        assert err.strip() == errors
    return out.split()


# -- exit -------------------------------------------------------------------------------------------------------------

QUEUED = """
pool = ThreadPool(1)
gate = threading.Event()
pool.submit(gate.wait, HANG)
for number in range(5):
    pool.submit(say, number)
threading.Timer(0.1, gate.set).start()
"""
NUMBERS = ["0", "1", "2", "3", "4"]


def test_what_is_queued_is_finished_when_the_main_thread_falls_off_the_end():
    assert run(QUEUED) == NUMBERS


def test_what_is_queued_is_finished_after_sys_exit():
    assert run(QUEUED + "sys.exit(3)", code=3) == NUMBERS


def test_what_is_queued_is_finished_after_an_unhandled_error():
    assert run(QUEUED + "raise ValueError('out')", code=1, errors=None) == NUMBERS


def test_what_is_queued_is_finished_in_development_mode_without_a_word():
    assert run(QUEUED, options=("-X", "dev", "-W", "error")) == NUMBERS


def test_a_map_that_nobody_reads_is_finished_at_exit():
    script = "pool = ThreadPool(2)\npool.map(lambda n: (time.sleep(0.001), say(n)), range(50))"
    assert sorted(map(int, run(script))) == list(range(50))


def test_what_a_paused_pool_holds_is_finished_at_exit():
    """Even though it has no thread yet, and since 3.12 none can be started once the main thread has ended."""
    assert run("pool = ThreadPool(1)\npool.pause()\nfor n in range(5): pool.submit(say, n)") == NUMBERS


def test_what_a_paused_pool_with_resting_threads_holds_is_finished_at_exit():
    script = """
    pool = ThreadPool(1, idle_timeout=None)
    pool.submit(int).result()
    pool.pause()
    for n in range(5): pool.submit(say, n)
    """
    assert run(script) == NUMBERS


@pytest.mark.parametrize("first", ["waiting", "paused"])
def test_a_pool_whose_task_waits_for_one_in_a_paused_pool_does_not_hang_the_exit(first):
    makes = {
        "waiting": "waiting = ThreadPool(1, idle_timeout=None)",
        "paused": "paused = ThreadPool(1, idle_timeout=None)",
    }
    other = "paused" if first == "waiting" else "waiting"
    # The exit looks at the pools in the order of a WeakSet, so make many: some waiting one comes first.
    script = f"""
    keep = []
    for n in range(5):
        {makes[first]}
        {makes[other]}
        paused.submit(int).result()
        paused.pause()
        inner = paused.submit(int, n)
        waiting.submit(lambda inner=inner: say(inner.result()))
        keep.append((waiting, paused))
    """
    assert sorted(run(script)) == NUMBERS


def test_tasks_that_submit_more_tasks_at_exit_are_finished():
    script = """
    pool = ThreadPool(1)
    def task(n):
        say(n)
        if n < 4:
            time.sleep(0.02)
            pool.submit(task, n + 1)
    pool.submit(task, 0)
    """
    assert run(script) == NUMBERS


def test_tasks_that_hand_over_to_another_pool_at_exit_are_finished():
    script = """
    pools = [ThreadPool(1, idle_timeout=None) for _ in range(2)]
    for pool in pools:
        pool.submit(int).result()
    def task(n):
        say(n)
        if n < 4:
            time.sleep(0.02)
            pools[n % 2].submit(task, n + 1)
    pools[1].submit(task, 0)
    """
    assert run(script) == NUMBERS


def test_a_task_waits_for_tasks_at_exit():
    script = """
    pool = ThreadPool(2)
    def task(n):
        time.sleep(0.02)
        children = [pool.submit(int, i) for i in range(n)]
        say(sum(child.result() for child in children))
    pool.submit(task, 3)
    """
    assert run(script) == ["3"]


def test_a_pool_that_a_task_makes_at_exit_is_finished_too():
    """On 3.12 and later no thread can be started then, so that may be refused, but it must not hang or vanish."""
    script = """
    def inner():
        time.sleep(0.05)
        say("inner")
    def task():
        time.sleep(0.1)
        other = ThreadPool(1)
        keep.append(other)
        try:
            other.submit(inner)
        except RuntimeError:
            say("inner")
    keep = []
    pool = ThreadPool(1)
    pool.submit(task)
    """
    assert run(script) == ["inner"]


def test_a_thread_that_outlives_the_main_thread_can_still_submit():
    script = """
    pool = ThreadPool(1, idle_timeout=None)
    pool.submit(int).result()
    def later():
        threading.main_thread().join()
        for n in range(5):
            pool.submit(say, n)
    threading.Thread(target=later).start()
    """
    assert run(script) == NUMBERS


def test_a_thread_that_outlives_the_main_thread_gets_an_answer_from_a_pool_without_threads():
    """Since 3.12 no thread can be started then: the task is run or refused, and the exit does not hang."""
    script = """
    pool = ThreadPool(1)
    def later():
        threading.main_thread().join()
        try:
            pool.submit(say, "ran")
        except RuntimeError:
            say("refused")
    threading.Thread(target=later).start()
    """
    printed = run(script)
    assert printed == (["ran"] if sys.version_info < (3, 12) else printed)
    assert printed in (["ran"], ["refused"])


def test_a_task_refused_for_want_of_a_thread_is_not_left_in_line():
    script = """
    pool = ThreadPool(1)
    real = threading.Thread.start
    def refuse(self):
        raise RuntimeError("can't start new thread")
    threading.Thread.start = refuse
    try:
        pool.submit(say, "refused")
    except RuntimeError:
        pass
    threading.Thread.start = real
    pool.submit(say, "accepted").result(HANG)
    """
    assert run(script) == ["accepted"]


def test_the_exit_does_not_hang_when_a_submit_found_no_thread():
    script = """
    pool = ThreadPool(1)
    real = threading.Thread.start
    def refuse(self):
        raise RuntimeError("can't start new thread")
    threading.Thread.start = refuse
    try:
        pool.submit(say, "ran")
    except RuntimeError:
        say("refused")
    """
    assert run(script) == ["refused"]


def test_an_atexit_function_can_submit():
    script = """
    pool = ThreadPool(1, idle_timeout=None)
    pool.submit(int).result()
    @atexit.register
    def last():
        pool.submit(say, "ran")
    """
    assert run(script) == ["ran"]


def test_an_atexit_function_can_wait_for_a_task():
    script = """
    pool = ThreadPool(1, idle_timeout=None)
    pool.submit(int).result()
    @atexit.register
    def last():
        say(pool.submit(abs, -1).result(HANG))
    """
    assert run(script) == ["1"]


def test_an_atexit_function_that_runs_after_ours_is_refused_and_does_not_hang():
    script = """
    pool = ThreadPool(1)
    pool.submit(int).result()
    """
    before = """
    import atexit
    @atexit.register
    def last():
        try:
            pool.submit(print, "ran")
        except RuntimeError:
            print("refused")
    """
    whole = textwrap.dedent(before) + "from millpond import ThreadPool\n" + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=TIME_OUT)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["refused"], "")


def test_a_pool_with_idle_threads_does_not_delay_the_exit():
    assert run("pool = ThreadPool(4, min_workers=4, idle_timeout=None)\nprint('end')") == ["end"]  # not for ever


def test_a_broken_pool_does_not_hang_the_exit():
    script = """
    def fail(): raise ValueError("no database")
    pool = ThreadPool(1, initializer=fail)
    try:
        pool.submit(int).result()
    except RuntimeError:
        say("broken")
    """
    assert run(script, errors=None) == ["broken"]


def test_a_task_that_exits_does_not_end_the_process_nor_its_code():
    assert run("pool = ThreadPool(1)\npool.submit(sys.exit, 5)\npool.submit(say, 'on')") == ["on"]


def test_asyncio_with_our_default_executor_ends_cleanly():
    script = """
    import asyncio
    async def main():
        asyncio.get_running_loop().slow_callback_duration = 3600.0  # a busy machine is no reason to warn
        asyncio.get_running_loop().set_default_executor(ThreadPool(2))
        await asyncio.gather(*(asyncio.to_thread(abs, n) for n in range(100)))
        asyncio.get_running_loop().run_in_executor(None, say, "last")
    asyncio.run(main())
    """
    assert run(script, options=("-X", "dev", "-W", "error")) == ["last"]


# -- dropped pools ----------------------------------------------------------------------------------------------------


def test_a_dropped_pool_finishes_its_tasks_before_the_exit():
    script = """
    def use():
        pool = ThreadPool(1)
        pool.submit(time.sleep, 0.05)
        for n in range(5): pool.submit(say, n)
    use()
    """
    assert run(script) == NUMBERS


def test_a_dropped_paused_pool_runs_what_it_holds():
    script = """
    def use():
        pool = ThreadPool(1)
        pool.pause()
        return [pool.submit(say, n) for n in range(5)]
    for task in use():
        task.result(HANG)
    """
    assert run(script) == NUMBERS


def test_a_thousand_dropped_pools_leave_no_threads_and_no_memory():
    def use(number: int) -> None:
        for _ in range(number):
            ThreadPool(2).submit(int).result(HANG)

    def wait_for_threads() -> None:
        until(lambda: threading.active_count() <= before, "the end of the threads")

    before = threading.active_count()
    use(50)
    wait_for_threads()
    gc.collect()
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        use(1000)
        wait_for_threads()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - start
    finally:
        tracemalloc.stop()
    assert grown < 100_000


def test_a_thousand_pools_that_were_shut_down_leave_no_memory():
    from millpond.local._crew import crews

    def use(number: int) -> None:
        for _ in range(number):
            with ThreadPool(1) as pool:
                pool.submit(int)

    use(10)
    gc.collect()
    kept = len(crews)
    use(1000)
    until(lambda: gc.collect() >= 0 and len(crews) <= kept)


def test_the_tasks_of_a_pool_keep_neither_the_pool_nor_its_threads():
    pool = ThreadPool(1, name="kept")
    tasks = [pool.submit(int) for _ in range(5)]
    ref = weakref.ref(pool)
    del pool
    assert ref() is None
    assert [task.result(HANG) for task in tasks] == [0] * 5


# -- fork -------------------------------------------------------------------------------------------------------------

FORK = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns that forking with threads is dangerous
def fork(child):
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

BUSY = (
    FORK
    + """
pool = ThreadPool(2)
gate, started = threading.Event(), threading.Semaphore(0)
def busy():
    started.release()
    gate.wait(HANG)
running = [pool.submit(busy) for _ in range(2)]
started.acquire(); started.acquire()
queued = [pool.submit(say, "parent") for _ in range(3)]
"""
)


@needs_fork
def test_a_forked_child_can_use_the_pool_of_its_busy_parent():
    script = """
    def child():
        say(pool.submit(abs, -1).result(HANG), *pool.map(abs, [-2, -3]))
    fork(child)
    gate.set()
    """
    assert run(BUSY + textwrap.dedent(script)) == ["1", "2", "3", "child", "0", "parent", "parent", "parent"]


@needs_fork
def test_a_forked_child_can_make_a_pool_of_its_own():
    script = """
    def child():
        with ThreadPool(2) as own:
            say(own.submit(abs, -1).result(HANG))
    fork(child)
    gate.set()
    """
    assert run(BUSY + textwrap.dedent(script)) == ["1", "child", "0", "parent", "parent", "parent"]


@needs_fork
def test_a_forked_child_leaves_at_once_and_runs_nothing_of_its_parents():
    assert run(BUSY + "fork(lambda: None)\ngate.set()") == ["child", "0", "parent", "parent", "parent"]


@needs_fork
@pytest.mark.parametrize("which", ["queued", "running"])
def test_the_futures_that_a_child_inherits_end_with_pool_closed(which):
    script = f"""
    def child():
        for task in {which}:
            try:
                task.result(HANG)
            except PoolClosed:
                say("closed")
            except TimeoutError:
                say("hung")
    fork(child)
    gate.set()
    """
    number = 3 if which == "queued" else 2
    expected = ["closed"] * number + ["child", "0", "parent", "parent", "parent"]
    assert run(BUSY + textwrap.dedent(script)) == expected


@needs_fork
@pytest.mark.parametrize("look", ["standard.wait(queued, 0)", "standard.wait(queued, 0, 'FIRST_COMPLETED')", "None"])
def test_the_standard_wait_does_not_hang_for_inherited_futures(look):
    script = f"""
    import concurrent.futures as standard
    {look}
    def child():
        say(len(standard.wait(queued, HANG).done), len(list(standard.as_completed(queued, HANG))))
    fork(child)
    gate.set()
    """
    assert run(BUSY + textwrap.dedent(script)) == ["3", "3", "child", "0", "parent", "parent", "parent"]


@needs_fork
def test_the_futures_of_every_sort_of_line_end_with_pool_closed_in_a_child():
    script = FORK + textwrap.dedent("""
    gate = threading.Event()
    for options in ({"order": "lifo"}, {"order": "priority"}, {"queues": "dedicated"}, {"max_queued": 5}):
        pool = ThreadPool(1, **options)
        started = threading.Event()
        pool.submit(lambda: started.set() or gate.wait(HANG))
        started.wait(HANG)
        queued = [pool.submit(int) for _ in range(2)]
        def child():
            for task in queued:
                try:
                    task.result(HANG)
                except PoolClosed:
                    say("closed")
                except TimeoutError:
                    say("hung", options)
            say(pool.submit(abs, -1).result(HANG))
        fork(child)
    gate.set()
    """)
    assert run(script) == ["closed", "closed", "1", "child", "0"] * 4


@needs_fork
def test_an_inherited_map_does_not_hang_in_the_child():
    script = """
    results = pool.map(abs, range(5))
    def child():
        threading.Timer(HANG, os._exit, (9,)).start()
        try:
            list(results)
        except PoolClosed:
            say("closed")
        os._exit(0)
    fork(child)
    gate.set()
    """
    assert run(BUSY + textwrap.dedent(script)) == ["closed", "child", "0", "parent", "parent", "parent"]


@needs_fork
def test_a_child_of_a_child_can_use_the_pool():
    script = """
    def grandchild():
        say(pool.submit(abs, -2).result(HANG))
    def child():
        say(pool.submit(abs, -1).result(HANG))
        fork(grandchild)
    fork(child)
    gate.set()
    """
    assert run(BUSY + textwrap.dedent(script))[:6] == ["1", "2", "child", "0", "child", "0"]


@needs_fork
def test_a_task_can_fork_a_child_that_uses_the_pool_and_leaves():
    script = """
    pool = ThreadPool(2)
    gate = threading.Event()
    pool.submit(gate.wait, HANG)
    def task():
        queued.append(pool.submit(say, "queued"))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                say(pool.submit(abs, -1).result(HANG))
                say(*pool.map(abs, [-2, -3]))
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    queued = []
    say("child", pool.submit(task).result(HANG))
    gate.set()
    """
    printed = run(FORK + textwrap.dedent(script))
    assert printed[:3] == ["1", "2", "3"]
    assert sorted(printed[3:]) == ["0", "child", "queued"]


@needs_fork
def test_fork_under_fire_never_hangs_a_child():
    script = """
    sys.setswitchinterval(1e-6)
    pool = ThreadPool(2)
    stop = threading.Event()
    def storm():
        while not stop.is_set():
            for task in [pool.submit(int) for _ in range(20)]:
                task.result()
    threads = [threading.Thread(target=storm) for _ in range(2)]
    for thread in threads: thread.start()
    for n in range(30):
        pid = os.fork()
        if pid == 0:
            threading.Timer(HANG, os._exit, (9,)).start()
            with ThreadPool(2) as own:
                ok = pool.submit(abs, -1).result(HANG) == own.submit(abs, -1).result(HANG) == 1
            os._exit(0 if ok else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            say("child", n, "left with", status)
            break
    stop.set()
    """
    assert run(FORK + textwrap.dedent(script)) == []


PROCESS = """
import multiprocessing, warnings
from millpond import ThreadPool
warnings.simplefilter("ignore", DeprecationWarning)
pool = None

def child():
    global pool
    pool = pool or ThreadPool(1)
    assert pool.submit(abs, -1).result(60) == 1
    pool.submit(__import__("time").sleep, 0.05)
    for n in range(5):
        pool.submit(print, n, flush=True)

if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    if "INHERITED":
        pool = ThreadPool(1)
        pool.submit(int).result(60)
    process = context.Process(target=child)
    process.start()
    process.join()
    print("left", process.exitcode)
"""


@needs_fork
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("inherited", ["", "inherited"])
def test_a_process_of_multiprocessing_finishes_what_it_queued(tmp_path, method, inherited):
    """As it does with the standard pool: `multiprocessing` runs no atexit functions in its children."""
    path = tmp_path / "program.py"
    path.write_text(PROCESS.replace("METHOD", method).replace("INHERITED", inherited))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=TIME_OUT)
    assert (done.stdout.split(), done.stderr) == ([*NUMBERS, "left", "0"], "")
    standard = path.read_text().replace(
        "from millpond import ThreadPool", "from concurrent.futures import ThreadPoolExecutor as ThreadPool"
    )
    if not inherited:
        path.write_text(standard)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=TIME_OUT)
        assert done.stdout.split() == [*NUMBERS, "left", "0"], "the standard pool does so"


@needs_fork
def test_a_multiprocessing_pool_made_by_fork_beside_a_busy_thread_pool_works():
    script = """
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(1) as processes:
        say(processes.map_async(abs, [-1, -2]).get(HANG))
    gate.set()
    """
    assert run(BUSY + textwrap.dedent(script)) == ["[1,", "2]", "parent", "parent", "parent"]

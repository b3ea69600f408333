"""Pools on Temporal from plain programs: outages, lost answers, crowds, silence, forks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from datetime import timedelta

import psutil
import pytest
from temporalio.service import RPCError, RPCStatusCode

from millpond._clock import elapsed
from millpond.errors import AcquireTimeout, EngineError, EngineUnavailable, LeaseLost, PoolClosed
from millpond.resources import AsyncResourcePool, ResourcePool
from millpond.resources.engines.temporal import _engine, _hosted_pool, _pool_client, _sender
from millpond.resources.engines.temporal._follower import Follower
from millpond.resources.engines.temporal._messages import News
from millpond.resources.engines.temporal._pool_client import PoolClient
from millpond.testing import hosted_pools
from millpond.testing._ports import free_port
from waiting import HANG, becomes, until

_numbers = itertools.count(1)


@pytest.fixture
def name():
    return f"engine-{next(_numbers)}"


def in_loop(pool, work):
    """Run a coroutine in the engine's loop."""
    return asyncio.run_coroutine_threadsafe(work, pool._engine._loop).result(HANG)


def sender_of(pool):
    return pool._engine._pool(pool.name).sender


def handle_of(pool):
    return sender_of(pool).pool_client.handle()


# --- reaching the pool -----------------------------------------------------------------------------------------------


def test_without_a_server_the_error_says_what_to_do(monkeypatch, name):
    monkeypatch.setattr(_sender, "PATIENCE", 0.2)
    monkeypatch.setattr(_engine, "PATIENCE", 0.2)
    monkeypatch.setattr("millpond.resources.engines.temporal._follower.PATIENCE", 0.2)
    url = f"temporal://127.0.0.1:{free_port()}/default"
    with ResourcePool(name, url) as pool, pytest.raises(EngineUnavailable, match="is the server there"):
        pool.add("a")


def test_without_a_worker_the_error_says_what_to_run(monkeypatch, temporal, name):
    monkeypatch.setattr(_sender, "PATIENCE", 0.4)
    monkeypatch.setattr(_pool_client, "ATTEMPT", timedelta(seconds=0.2))
    url = f"{temporal.url()}?task_queue=nobody-listens&prefix=lonely:"
    with (
        ResourcePool(name, url) as pool,
        pytest.raises(EngineUnavailable, match=r"worker for task queue 'nobody-listens'.*python -m millpond"),
    ):
        pool.add("a")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("temporal://", "does not name a server"),
        ("temporal://host:port/ns", "Port could not be cast"),
        ("temporal://host/a/b", "does not name a server"),
        ("temporal://host/ns?nonsense=1", "nonsense= is not known"),
        ("temporal://host/ns?tls=maybe", "must be true or false"),
        ("temporal://host/ns?task_queue=", "must not be empty"),
        ("temporal://host/ns?data_converter=nowhere:none", "cannot be had"),
        ("temporal://host/ns?data_converter=json", "package.module:name"),
        ("temporal://host/ns?api_key_env=NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
    ],
)
def test_a_bad_url_is_told_at_once(url, said):
    with pytest.raises(ValueError, match=said):
        ResourcePool("x", url)


# --- every command takes effect once ---------------------------------------------------------------------------------


class Lossy:
    """Lets updates through to the server and loses their answers, some of the time."""

    def __init__(self, monkeypatch, lose):
        self.lost = 0
        real = PoolClient.update

        async def update(place, update_id, message):
            answer = await real(place, update_id, message)
            if lose(self.lost):
                self.lost += 1
                raise RPCError("lost on purpose", RPCStatusCode.DEADLINE_EXCEEDED, b"")
            return answer

        monkeypatch.setattr(PoolClient, "update", update)


def test_a_lost_answer_is_asked_for_again_and_the_batch_takes_effect_once(monkeypatch, pools, name):
    coin = itertools.cycle([True, True, False])
    lossy = Lossy(monkeypatch, lambda lost: next(coin))
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        pool.add("b")
        tokens = []
        for _ in range(5):
            with pool.acquire(timeout=HANG) as grant:
                tokens.append(grant.token)
        assert tokens == sorted(set(tokens))
        assert pool.statistics().grants_total == 5
        assert [one.name for one in pool.resources()] == ["a", "b"]
        assert not pool.holders()
    assert lossy.lost > 10


def test_what_a_given_up_batch_asked_for_is_taken_back(monkeypatch, pools, name):
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        monkeypatch.setattr(_sender, "PATIENCE", 0.1)
        Lossy(monkeypatch, lambda lost: True)
        with pytest.raises(EngineUnavailable):
            pool.acquire()
        monkeypatch.undo()
        assert pool.try_acquire() is not None, "the ghost of a request holds what nobody knows of"


# --- crowds ----------------------------------------------------------------------------------------------------------


def test_more_processes_than_updates_in_flight_are_all_served(pools, name):
    """Sixteen engines, each as another process would have it; the server takes ten updates at a time."""
    url = pools.url()
    engines = [_engine.TemporalEngine(url, _engine_address(url)) for _ in range(16)]
    held = threading.Semaphore(2)
    served = []
    try:
        with contextlib.ExitStack() as stack:
            faces = []
            for engine in engines:
                monkey = pytest.MonkeyPatch()
                monkey.setattr("millpond.resources._pool.open_engine", lambda url, engine=engine: engine)
                stack.callback(monkey.undo)
                engine.users += 1
                faces.append(stack.enter_context(ResourcePool(name, url)))
            faces[0].add("a")
            faces[0].add("b")

            def work(pool):
                for _ in range(3):
                    with pool.acquire(timeout=HANG):
                        assert held.acquire(blocking=False), "more than two hold two resources"
                        held.release()
                    served.append(1)

            threads = [threading.Thread(target=work, args=(pool,)) for pool in faces]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(served) == 48
            assert not faces[0].holders() and not faces[0].waiters()
    finally:
        for engine in engines:
            engine.shut_down()


def _engine_address(url):
    from millpond.resources.engines.temporal._url import parse

    return parse(url)


def test_tasks_of_two_loops_share_a_pool(pools, name):
    async def main():
        async with AsyncResourcePool(name, pools.url()) as pool:
            await pool.add("a", exist_ok=True)

            async def one():
                async with pool.acquire(timeout=HANG) as grant:
                    return grant.token

            return await asyncio.gather(*(one() for _ in range(20)))

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.extend(asyncio.run(main()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 40


def test_a_cancelled_task_leaves_no_ghost(pools, name):
    async def main():
        async with AsyncResourcePool(name, pools.url()) as pool:
            await pool.add("a")
            for delay in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.05):
                async with pool.acquire():
                    task = asyncio.ensure_future(_hold(pool))
                    await asyncio.sleep(delay)
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
                    assert await pool.waiters() == []
                assert await pool.holders() == []

    asyncio.run(main())


async def _hold(pool):
    async with pool.acquire():
        pass


# --- following -------------------------------------------------------------------------------------------------------


def test_a_waiter_is_woken_by_the_tail_of_the_history(monkeypatch, pools, name):
    monkeypatch.setattr(
        "millpond.resources._own_requests.AUDIT", 3600.0
    )  # nothing else wakes it, or has the pool say more
    monkeypatch.setattr(_engine, "BEAT", 3600.0)
    other = _other(pools.url(), name)
    with ResourcePool(name, pools.url()) as pool, other as there:
        pool.add("a")
        for _ in range(5):
            grant = there.acquire()
            thread = threading.Thread(target=lambda: pool.acquire().release())
            thread.start()
            until(lambda: len(there.waiters()) == 1)
            grant.release()
            thread.join(HANG)
            assert not thread.is_alive()


@contextlib.contextmanager
def _other(url, name):
    """A pool object in an engine of its own, as another process has it."""
    engine = _engine.TemporalEngine(url, _engine_address(url))
    engine.users += 1
    monkey = pytest.MonkeyPatch()
    monkey.setattr("millpond.resources._pool.open_engine", lambda url: engine)
    try:
        pool = ResourcePool(name, url)
    finally:
        monkey.undo()
    with pool:
        yield pool


def test_what_an_operator_does_by_signal_is_heard(pools, name):
    with ResourcePool(name, pools.url(), on_lost="ignore") as pool:
        pool.add("a")
        grant = pool.acquire()
        in_loop(pool, handle_of(pool).signal("release_resource", {"release_key": str(grant.token)}))
        until(lambda: not grant.is_held)
        with pytest.raises(LeaseLost, match="revoked by signal"):
            grant.check()


def test_a_pool_that_is_terminated_goes_on_and_waiters_keep_their_place(pools, name):
    with ResourcePool(name, pools.url()) as pool, _other(pools.url(), name) as there:
        pool.add("a")
        pool.admin.configure(claim_within=3600)  # else one that is slow to claim loses its place
        grant = there.acquire()
        order = []

        def wait(number):
            with pool.acquire(timeout=HANG):
                order.append(number)

        threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
        for number, thread in enumerate(threads):
            thread.start()
            becomes(lambda: len(pool.waiters()), number + 1)
        ended = in_loop(pool, handle_of(pool).describe()).run_id
        in_loop(pool, handle_of(pool).terminate())
        until(lambda: in_loop(pool, handle_of(pool).describe()).run_id != ended)
        until(lambda: len(there.waiters()) == 3)
        assert not order, "a terminated pool lent what was held"
        token = grant.token
        grant.release()
        for thread in threads:
            thread.join()
        assert order == [0, 1, 2]
        with pool.acquire() as again:
            assert again.token > token


def test_a_gap_is_filled_by_a_query(monkeypatch, pools, name):
    """An engine that does not listen hears of others' doings with its next answer."""
    monkeypatch.setattr(Follower, "follow_on", lambda self: None)
    with ResourcePool(name, pools.url()) as pool, _other(pools.url(), name) as there:
        pool.add("a")
        for number in range(5):
            there.add(f"there-{number}")
        pool.add("z")
        replica = pool._engine._pool(name).follower.replica  # type: ignore[attr-defined]
        assert sorted(replica.state.resources) == ["a", *(f"there-{number}" for number in range(5)), "z"]


def test_what_ended_unheard_is_not_asked_for_again(pools, name):
    """A reader that is too far behind is given the state, and not what led to it."""
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        grant = pool.acquire()
        here = pool._engine._pool(name)  # type: ignore[attr-defined]
        assert list(here.open) == [grant.request_id]

        async def jump():
            version = here.follower.replica.version
            image = here.follower.replica.state.image()
            image.requests = []
            here.follower._learn(News(here.follower._incarnation, version + 1, 0, image=image), elapsed())

        in_loop(pool, jump())
        assert here.open == {}


# --- silence ---------------------------------------------------------------------------------------------------------

_HOLD = """
import sys, time
from millpond.resources import ResourcePool
pool = ResourcePool(sys.argv[1], sys.argv[2], holder="doomed")
pool._engine.witness.mention(pool.name)
print(pool._engine.witness.pid, flush=True)
grant = pool.acquire(lease=float(sys.argv[3]) or None)
print("held", flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def _program(pools, name, lease=0.0):
    """Start a program that wants to hold; yield it and its witness."""
    command = [sys.executable, "-c", _HOLD, name, pools.url(), str(lease)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as program:
        assert program.stdout is not None
        yield program, int(program.stdout.readline())


def _vanish(program, witness):
    """Kill both at once, as when a machine is lost."""
    program.send_signal(signal.SIGSTOP)
    os.kill(witness, signal.SIGKILL)
    program.kill()


def _lost(pools, name, lease=0.0):
    """Start a program that holds, and end it and its witness at once."""
    with _program(pools, name, lease) as (program, witness):
        assert program.stdout.readline() == b"held\n"
        _vanish(program, witness)


def test_a_silent_lock_is_shown_as_suspect_and_stays(monkeypatch, pools, name):
    monkeypatch.setattr(_hosted_pool, "SILENT", 1_000_000)
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        _lost(pools, name)
        until(lambda: "not heard of" in pool.holders()[0].suspect)
        with pytest.raises(AcquireTimeout):
            pool.acquire(timeout=0.3)
        [holder] = pool.holders()
        pool.admin.release("a", token=holder.token, reason="its process was killed")
        with pool.acquire(timeout=HANG):
            pass


def test_a_silent_lease_expires(pools, name):
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        _lost(pools, name, lease=1.0)
        with pool.acquire(timeout=HANG):
            pass


def test_a_process_that_beats_is_not_suspect(monkeypatch, pools, name):
    monkeypatch.setattr(_hosted_pool, "SILENT", 1_000_000)
    monkeypatch.setattr(_engine, "BEAT", 0.1)
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        with pool.acquire():
            silent_for_long = elapsed() + 1.5
            until(lambda: sender_of(pool).last > silent_for_long)
            until(lambda: not pool.holders()[0].suspect)  # it may be, between two beats on a busy machine


def test_a_dead_waiter_holds_nobody_up_and_is_forgotten(monkeypatch, pools, name):
    monkeypatch.setattr(_engine, "BEAT", 0.1)
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        pool.admin.configure(claim_within=0.5)
        grant = pool.acquire()
        with _program(pools, name) as (doomed, witness):
            until(lambda: len(pool.waiters()) == 1)
            _vanish(doomed, witness)
        grant.release()
        with pool.acquire(timeout=HANG):  # the offer to the dead one lapses
            assert len(pool.waiters()) == 1
            monkeypatch.setattr(_hosted_pool, "SILENT", 500_000)
            monkeypatch.setattr(_hosted_pool, "FORGOTTEN", 1_000_000)
            until(lambda: not pool.waiters())


# --- a witness -------------------------------------------------------------------------------------------------------


def test_a_killed_programs_lock_is_the_next_ones_and_it_is_said_why(pools, name):
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        with _program(pools, name) as (program, _):
            assert program.stdout.readline() == b"held\n"
            os.killpg(program.pid, signal.SIGKILL)  # its witness has a group of its own
        with pool.acquire(timeout=HANG):
            assert "its process has ended" in str(pool.admin.history())


def test_a_killed_waiter_leaves_the_line(pools, name):
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        with pool.acquire(), _program(pools, name) as (program, _):
            until(lambda: len(pool.waiters()) == 1)
            program.kill()
            until(lambda: not pool.waiters())


def test_a_program_that_stands_still_or_becomes_another_keeps_its_lock(pools, name):
    hold = _HOLD.replace("time.sleep(3600)", 'import os; os.execvp("sleep", ["sleep", "3600"])')
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        command = [sys.executable, "-c", hold, name, pools.url(), "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            witness = psutil.Process(int(program.stdout.readline()))
            assert program.stdout.readline() == b"held\n"
            until(lambda: psutil.Process(program.pid).name() == "sleep")
            program.send_signal(signal.SIGSTOP)
            with pytest.raises(AcquireTimeout):
                pool.acquire(timeout=1.0)
            assert witness.is_running() and witness.memory_info().rss < 12e6
            program.kill()
            with pool.acquire(timeout=HANG):
                pass


def test_a_witness_that_was_killed_is_replaced(pools, name):
    with ResourcePool(name, pools.url()) as pool:
        engine = pool._engine
        assert isinstance(engine, _engine.TemporalEngine)
        pool.add("a")
        with pool.acquire():
            first = engine.witness.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            until(lambda: engine.witness.pid not in (None, first))
            second = psutil.Process(engine.witness.pid)
            assert second.is_running()
    until(lambda: not second.is_running())  # with the last pool it goes


def test_a_program_without_witness_is_told_so_once_and_works(monkeypatch, caplog, pools, name):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        for _ in range(2):
            with pool.acquire():
                pass
    assert len([one for one in caplog.records if "no witness could be started" in one.message]) == 1


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_closed_pool_refuses_and_holds_nothing(pools, name):
    pool = ResourcePool(name, pools.url())
    pool.add("a")
    grant = pool.acquire()
    pool.close()
    with pytest.raises(PoolClosed):
        pool.acquire()
    assert not grant.is_held
    with ResourcePool(name, pools.url()) as again:
        assert not again.holders()


_FORK = """
import os, sys
from millpond.resources import ResourcePool
pool = ResourcePool(sys.argv[1], sys.argv[2])
grant = pool.acquire()
if os.fork() == 0:
    try:
        pool.acquire()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
grant.release()
pool.close()
print("released", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_to_be_spawned(pools, name):
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
    done = subprocess.run(
        [sys.executable, "-c", _FORK, name, pools.url()], capture_output=True, text=True, timeout=HANG, check=True
    )
    assert "'spawn'" in done.stdout and done.stdout.endswith("released\n")


_CHURN = """
import asyncio, sys
from millpond.resources import AsyncResourcePool

async def main():
    async with AsyncResourcePool(sys.argv[1], sys.argv[2]) as pool:
        async def one():
            for _ in range(3):
                async with pool.acquire():
                    pass
        await asyncio.gather(*(one() for _ in range(4)))

asyncio.run(main())
"""


@pytest.mark.slow
def test_programs_that_come_and_go_under_load_all_end(pools, name):
    """A thread of Temporal's client that calls into an interpreter which ends can hang it."""
    with ResourcePool(name, pools.url()) as pool:
        pool.add("a")
        pool.add("b")
        for _ in range(3):
            programs = [subprocess.Popen([sys.executable, "-c", _CHURN, name, pools.url()]) for _ in range(4)]
            assert [program.wait(HANG) for program in programs] == [0] * 4
        assert not pool.holders() and not pool.waiters()


def test_what_travels_goes_through_the_users_codec(temporal, name, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    url = f"{temporal.url()}?task_queue=secret&prefix=secret:&data_converter=temporal_codec:converter"
    with hosted_pools(url), ResourcePool(name, url) as pool, _other(url, name) as there:
        pool.add("a-secret-name")
        grant = there.acquire()
        thread = threading.Thread(target=lambda: pool.acquire(timeout=HANG).release())
        thread.start()
        until(lambda: len(pool.waiters()) == 1)
        grant.release()
        thread.join()
        history = in_loop(pool, handle_of(pool).fetch_history())
        assert not [event for event in history.events if b"a-secret-name" in event.SerializeToString()]


def test_a_time_limit_holds_although_the_pool_does_not_answer(monkeypatch, temporal, name):
    monkeypatch.setattr(_engine, "LEAVE", 0.3)
    url = f"{temporal.url()}?task_queue=nobody-listens-here&prefix=silent:"
    monkeypatch.setattr(_sender, "PATIENCE", 3600.0)  # it does not wait for an answer for so long
    with ResourcePool(name, url) as pool, pytest.raises(AcquireTimeout, match="did not answer within 0.5 s"):
        pool.acquire(timeout=0.5)


def test_a_namespace_that_is_not_there_is_told_at_once(monkeypatch, temporal, name):
    monkeypatch.setattr(_engine, "LEAVE", 0.3)
    monkeypatch.setattr(_sender, "PATIENCE", 3600.0)  # it does not try again for so long
    with (
        ResourcePool(name, temporal.url("no-such-namespace")) as pool,
        pytest.raises(EngineUnavailable, match="no-such-namespace"),
    ):
        pool.add("a")


def test_a_program_may_name_a_placement_of_the_pools_worker(temporal, name):
    url = f"{temporal.url()}?task_queue=placed&prefix=placed:"
    with hosted_pools(url, placements={"engine-tests-last": lambda resource, request: (-resource.slot,)}):
        with ResourcePool(name, url, placement="engine-tests-last") as pool:
            for one in ("a", "b", "c"):
                pool.add(one)
            with pool.acquire() as grant:
                assert grant.resource == "c"
        with (
            ResourcePool(name, url, placement="nobody-knows") as pool,
            pytest.raises(EngineError, match="nobody-knows"),
        ):
            pool.acquire()

"""A workflow's grant when notices and answers overtake one another, which a server does too seldom to test with."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("temporalio")

from temporalio import workflow

from millpond.errors import AcquireTimeout, LeaseLost, StaleToken
from millpond.resources._rules import commands as do
from millpond.resources._rules.commands import Reply
from millpond.resources._rules.records import Holder, Want
from millpond.resources.engines.temporal import _in_workflow
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal._hosted_pool import HostedPool

SHARES = (("a", 1),)


class OwnGrants:
    """Answers as it is told to, and does something first."""

    session = "w:flow/chain"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[do.Command] = []
        self.known: set[_in_workflow.WorkflowGrant] = set()

    def expect(self, grant: _in_workflow.WorkflowGrant) -> None:
        self.known.add(grant)

    def forget(self, grant: _in_workflow.WorkflowGrant) -> None:
        self.known.discard(grant)

    async def send(self, pool: str, command: do.Command, grace: int = 0, until: float | None = None) -> Any:
        self.sent.append(command)
        answer = self.answers.pop(0) if self.answers else Reply("withdrawn")
        if callable(answer):
            answer = answer(command)
        return answer if isinstance(answer, tuple) else (answer, None)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def wait_condition(fn: Any, *, timeout: float | None = None) -> None:
        if not fn():
            raise TimeoutError

    clock = iter(range(1000))
    monkeypatch.setattr(workflow, "uuid4", uuid.uuid4)
    monkeypatch.setattr(workflow, "time", lambda: float(next(clock)))
    monkeypatch.setattr(workflow, "info", lambda: SimpleNamespace(workflow_id="flow", run_id="run"))
    monkeypatch.setattr(workflow, "wait_condition", wait_condition)

    def run(grant: _in_workflow.WorkflowGrant, own: OwnGrants) -> None:
        monkeypatch.setattr(_in_workflow, "_own_grants", lambda: own)

        async def main() -> None:
            await grant

        asyncio.run(main())

    return run


def kinds(own: OwnGrants) -> list[str]:
    return [type(one).__name__ for one in own.sent]


def test_a_grant_that_was_ended_before_its_answer_came_is_not_held(run):
    grant = _in_workflow.acquire("pool")

    def revoked(command: do.Acquire) -> Reply:
        grant.ended(7, "revoked by an operator")
        return Reply("held", command.id, 7, SHARES)

    own = OwnGrants(revoked)
    with pytest.raises(StaleToken, match="revoked by an operator"):
        run(grant, own)
    assert kinds(own) == ["Acquire", "Withdraw"] and not own.known and not grant.is_held


def test_a_letter_that_is_quicker_than_the_answer_counts(run):
    grant = _in_workflow.acquire("pool")

    def granted(command: do.Acquire) -> Reply:
        grant.granted(7, SHARES)
        return Reply("waiting", command.id)

    own = OwnGrants(granted)
    run(grant, own)
    assert grant.is_held and grant.token == 7 and kinds(own) == ["Acquire"]


def test_a_request_that_the_pool_has_forgotten_is_made_again_under_its_id(run):
    grant = _in_workflow.acquire("pool")
    own = OwnGrants(Reply("waiting"), Reply("held", "", 9, SHARES))
    run(grant, own)
    first, second = own.sent
    assert first == second and grant.token == 9


def test_a_cancellation_that_comes_with_the_grant_gives_it_back(run):
    own = OwnGrants((Reply("held", "", 7, SHARES), asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        run(_in_workflow.acquire("pool"), own)
    assert kinds(own) == ["Acquire", "Withdraw"] and not own.known


def test_a_pool_that_does_not_answer_in_time_is_told_later(run):
    own = OwnGrants((None, None), (None, None))
    with pytest.raises(AcquireTimeout, match="did not answer"):
        run(_in_workflow.acquire("pool", timeout=5), own)
    assert kinds(own) == ["Acquire", "Withdraw"] and not own.known


def test_what_is_taken_up_may_be_lost_before_the_answer_comes(run):
    detached = _in_workflow.Detached("pool", "#1", 7, OwnGrants.session)
    grant = _in_workflow.acquire("pool", reattach=detached)

    def revoked(command: do.Renew) -> Reply:
        grant.ended(7, "revoked by an operator")
        return Reply("held", "#1", 7, SHARES)

    with pytest.raises(LeaseLost, match="revoked by an operator"):
        run(grant, OwnGrants(revoked))
    assert not grant.is_held


@pytest.mark.parametrize(
    "detached",
    [
        _in_workflow.Detached("other", "#1", 7, OwnGrants.session),
        _in_workflow.Detached("pool", "#1", 7, "w:other/chain"),
    ],
)
def test_what_belongs_to_others_is_not_taken_up(run, detached):
    own = OwnGrants()
    with pytest.raises(LeaseLost):
        run(_in_workflow.acquire("pool", reattach=detached), own)
    assert own.sent == []


def test_outside_of_workflows_it_says_what_to_use_instead():
    async def main() -> None:
        await _in_workflow.acquire("pool")

    with pytest.raises(RuntimeError, match="ResourcePool"):
        asyncio.run(main())


@pytest.mark.parametrize("grace", [0, 5_000_000], ids=["at once", "when its work had time to end"])
def test_what_an_earlier_run_left_goes_back_when_a_later_one_asks(grace):
    hosted = HostedPool("pool", "incarnation")
    session = "w:flow/chain"

    def send(now: int, *commands: do.Command, deaths: tuple[say.Death, ...] = (), number: int = 0) -> list[Reply]:
        graces = {session: grace} if grace else {}
        return hosted.take(say.Batch("lane", number, list(commands), "", graces, list(deaths)), now).replies

    def ask(name: str, run: str) -> do.Acquire:
        return do.Acquire(name, session, 0, Holder("workflow", "flow", run), (Want(),), sure=True)

    send(1_000_000, do.Add("a", {}), do.Add("b", {}), do.Add("c", {}))
    assert [one.kind for one in send(2_000_000, ask("#left", "1"), ask("#kept", "1"))] == ["held", "held"]
    later = say.Death(session, 4_000_000, "an earlier run left it", ("#kept", "#new"))
    zombie = say.Death(session, 1_500_000, "an earlier run left it", ())
    send(5_000_000, ask("#new", "2"), deaths=(later, zombie))
    held = {one.id: one.session for one in hosted.replica.state.requests.values()}
    assert held == {"#kept": session, "#new": session} | ({"#left": ""} if grace else {})
    hosted.tick(5_000_000 + grace)
    assert set(hosted.replica.state.requests) == {"#kept", "#new"}

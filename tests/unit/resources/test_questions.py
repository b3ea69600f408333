"""What people and requests ask a pool is plain data, so that an engine may carry a question to wherever the pool is."""

from __future__ import annotations

import msgspec
import pytest

from millpond.resources import _questions as about
from millpond.resources._engine import Question
from millpond.resources._rules import commands as do
from millpond.resources._rules.records import Holder, Want
from millpond.resources._rules.replica import Replica

ASKED = do.Acquire("r2", "s", 0, Holder("process", "me"), (Want("gpu", 2),), reason="training")
QUESTIONS: list[Question[object]] = [
    about.Standings("s", ("r1", "gone"), strays=True),
    about.WhyNot(ASKED),
    about.Candidates((Want(),)),
    about.LabelsOf("a"),
    about.Resources(),
    about.Holders(),
    about.Waiters(),
    about.Statistics(),
    about.History("p", "a", 10, True),
    about.Explain("a"),
    about.IsDraining("a"),
    about.CountRequests(),
    about.PoolSettings(),
    about.Requests(),
    about.WholePool(),
]


def copy_of_a_pool() -> Replica:
    replica = Replica()
    replica.decide(do.Add("a", {"gpu": ""}), 1)
    replica.decide(do.Acquire("r1", "s", 0, Holder("process", "me"), (Want(),)), 2)
    replica.decide(do.Acquire("r3", "s", 0, Holder("process", "you"), (Want(),)), 3)
    return replica


def test_every_question_that_exists_is_listed_here():
    here = {one for one in Question.__subclasses__() if one.__module__.startswith("millpond.")}  # tests have theirs
    assert {type(one) for one in QUESTIONS} == here


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: type(one).__name__)
def test_a_question_and_its_answer_can_be_sent_elsewhere(question):
    replica = copy_of_a_pool()
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(question), type=type(question))
    assert sent == question
    answer = sent.answer(replica, 4)
    assert msgspec.msgpack.encode(answer) == msgspec.msgpack.encode(question.answer(copy_of_a_pool(), 4))


def test_an_answer_stays_as_it_was_when_the_pool_goes_on():
    replica = copy_of_a_pool()
    answers = [(one, one.answer(replica, 4)) for one in QUESTIONS]
    before = [msgspec.msgpack.encode(answer) for _, answer in answers]
    replica.decide(do.Release("s", next(one.token for one in replica.state.requests.values() if one.token)), 5)
    replica.decide(do.Mark("a", "cordoned", "operator", "broken"), 6)
    replica.decide(do.Relabel("a", {"other": ""}), 7)
    for (question, answer), old in zip(answers, before, strict=True):
        assert msgspec.msgpack.encode(answer) == old, f"the answer to {question} is a live part of the pool"

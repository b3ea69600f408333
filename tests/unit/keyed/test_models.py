"""Models of pydantic as arguments and results, and types that cannot travel."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, Json, RootModel, SecretStr, computed_field, field_validator

from millpond.errors import JobFailed
from millpond.keyed import Job, KeyedPool, Resident
from waiting import HANG, until


class Colour(enum.Enum):
    RED = "red"


class Line(BaseModel):
    article: str
    price: decimal.Decimal
    number: int = Field(default=1, alias="count")


class Order(BaseModel):
    id: uuid.UUID
    at: datetime.datetime
    lines: list[Line] = []
    colour: Colour = Colour.RED
    raw: bytes = b""


class Names(RootModel[list[str]]):
    pass


ORDER = Order(
    id=uuid.UUID(int=7),
    at=datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC),
    lines=[Line(article="tea", price=decimal.Decimal("3.10"), count=2)],
    raw=b"\xff\x00",
)


class Stranger:
    pass


class Holder:
    inner: Stranger


def test_a_model_arrives_as_it_was_sent(pool: KeyedPool):
    @pool.job
    def keep(job: Job, order: Order, more: dict[str, list[Line | None]], names: Names) -> Order:
        assert type(order) is Order and order == ORDER
        assert more == {"a": [ORDER.lines[0], None]} and type(more["a"][0]) is Line
        assert names.root == ["x", "y"]
        return order

    with pool.worker():
        receipt = keep.dispatch("a", ORDER, more={"a": [ORDER.lines[0], None]}, names=Names(["x", "y"]))
        result = receipt.result(HANG)
    assert type(result) is Order and result == ORDER


def test_models_in_open_arguments_and_by_position_from_a_program_without_the_handler(pool: KeyedPool):
    @pool.job
    def many(job: Job, /, *lines: Line, **orders: Order) -> int:
        assert all(type(one) is Line for one in lines) and all(type(one) is Order for one in orders.values())
        return len(lines) + len(orders)

    @pool.job
    def one(job: Job, line: Line) -> str:
        return line.article

    with pool.worker():
        assert many.dispatch("a", *ORDER.lines, *ORDER.lines, x=ORDER).result(HANG) == 3
        assert pool.declare_job("one").dispatch("a", ORDER.lines[0]).result(HANG) == "tea"
        plain = {"article": "coffee", "price": "1", "count": 1}
        assert pool.declare_job("one").dispatch("a", plain).result(HANG) == "coffee"


def test_what_a_model_refuses_is_refused_with_its_words(pool: KeyedPool):
    @pool.job
    def one(job: Job, line: Line) -> str:
        return line.article

    with pool.worker(), pytest.raises(JobFailed, match="valid decimal"):
        pool.declare_job("one").dispatch("a", {"article": "tea", "price": "dear"}).result(HANG)


def test_a_resident_takes_models_too(pool: KeyedPool):
    seen: list[Any] = []

    @pool.resident
    def stay(resident: Resident, line: Line) -> None:
        seen.append(line)

    with pool.worker():
        stay.start("a", ORDER.lines[0])
        until(lambda: seen == [ORDER.lines[0]])


class Aliased(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    id: uuid.UUID
    pair: tuple[int, str] = Field(default=(1, "a"), serialization_alias="other")
    text: Json[list[int]] = Field(default_factory=list)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def both(self) -> str:
        return f"{self.pair}"


class Fragile(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def check(cls, value: int) -> int:
        return {1: 1}[value]


def test_strict_aliased_and_computed_fields_survive_the_trip(pool: KeyedPool):
    @pool.job
    def same(job: Job, value: Aliased) -> Aliased:
        return value

    value = Aliased(id=uuid.UUID(int=1), pair=(2, "b"), text="[1, 2]")  # type: ignore[arg-type]
    with pool.worker():
        assert same.dispatch("a", value).result(HANG) == value


def test_whatever_a_model_raises_the_caller_is_told(pool: KeyedPool):
    @pool.job
    def fragile(job: Job, value: Fragile) -> None: ...

    with pool.worker(), pytest.raises(JobFailed, match="KeyError"):
        pool.declare_job("fragile").dispatch("a", {"value": 2}).result(HANG)


def test_a_result_that_comes_back_as_plain_data_is_warned_of(pool: KeyedPool, caplog: pytest.LogCaptureFixture):
    @pool.job
    def either(job: Job) -> Line | Order:
        return ORDER.lines[0]

    assert "plain data" in caplog.text
    assert "<locals>.either returns" in caplog.text and "<function" not in caplog.text


def test_a_result_of_object_is_as_good_as_one_of_any(pool: KeyedPool, caplog: pytest.LogCaptureFixture):
    @pool.job
    def turn(job: Job) -> dict[str, object]:
        return {"text": "hello", "parts": [1, None, {"a": 2.5}]}

    assert not caplog.text
    with pool.worker():
        assert turn.dispatch("a").result(HANG) == {"text": "hello", "parts": [1, None, {"a": 2.5}]}


def test_a_secret_is_not_sent_as_stars(pool: KeyedPool):
    class Login(BaseModel):
        password: SecretStr

    def login(job: Job, who: Login) -> None: ...

    login.__annotations__["who"] = Login
    with pytest.raises(TypeError, match="SecretStr"):
        pool.job(login).dispatch("a", Login(password=SecretStr("x")))


@pytest.mark.parametrize(
    "kind", [Stranger, list[Stranger], dict[str, tuple[int, Stranger]], Stranger | None, Holder, object]
)
def test_a_type_that_cannot_travel_is_refused_when_the_job_is_declared(pool: KeyedPool, kind: Any):
    def do(job: Job, value: Any) -> None: ...

    do.__annotations__["value"] = kind
    with pytest.raises(TypeError, match="parameter 'value' has a type that cannot travel"):
        pool.job(do)


def test_a_type_that_contains_itself_can_travel(pool: KeyedPool):
    @pool.job
    def depth(job: Job, tree: Tree) -> int:
        return 1 + max((depth(job, each) for each in tree.children), default=0)

    with pool.worker():
        assert depth.dispatch("a", Tree(children=[Tree(), Tree(children=[Tree()])])).result(HANG) == 3


class Tree(BaseModel):
    children: list[Tree] = []

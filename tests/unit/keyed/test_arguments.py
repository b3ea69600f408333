"""What may be dispatched and returned, and what is refused, where and how."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millpond.errors import JobFailed
from millpond.keyed import AsyncKeyedPool, Job, KeyedPool, Resident
from millpond.keyed.rules import records as store_records
from millpond_conformance._verbs import Verbs
from waiting import HANG, until


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Order(msgspec.Struct):
    item: str
    many: int = 1


class Colour(enum.Enum):
    RED = "red"


SENT: list[Any] = [
    None,
    True,
    False,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    "",
    "text \N{GRINNING FACE} \0",
    b"bytes",
    [],
    [1, [2, [None]]],
    {},
    {"a": {"b": [1]}},
]


@pytest.mark.parametrize("value", SENT, ids=repr)
def test_a_plain_value_comes_back_as_it_went(pool: KeyedPool, value: Any):
    @pool.job
    def echo(job: Job, value: Any) -> Any:
        return value

    @pool.job
    async def aecho(job: Job, value: Any) -> Any:
        return value

    with pool.worker():
        for one in (echo, aecho):
            got = one.dispatch("k", value).result(HANG)
            assert got == value and type(got) is type(value)


def test_typed_values_keep_their_types(pool: KeyedPool):
    @pool.job
    def place(job: Job, point: Point, order: Order, colour: Colour) -> Point:
        assert type(point) is Point and type(order) is Order and colour is Colour.RED
        return Point(point.x + order.many, point.y)

    @pool.job
    async def when(job: Job, at: datetime.datetime, who: uuid.UUID, price: decimal.Decimal) -> tuple[Any, ...]:
        assert isinstance(at, datetime.datetime) and isinstance(who, uuid.UUID) and isinstance(price, decimal.Decimal)
        return (at.isoformat(), str(who), str(price))

    @pool.job
    async def sets(job: Job, some: set[int], pair: tuple[int, str], maybe: Order | None = None) -> Order | None:
        assert some == {1, 2} and pair == (1, "a")
        return maybe

    with pool.worker():
        assert place.dispatch("k", Point(1), Order("nail", 2), Colour.RED).result(HANG) == Point(3)
        now, one = datetime.datetime.now(datetime.UTC), uuid.uuid4()
        assert when.dispatch("k", now, one, decimal.Decimal("1.10")).result(HANG) is not None
        assert sets.dispatch("k", {1, 2}, (1, "a")).result(HANG) is None
        assert sets.dispatch("k", {1, 2}, (1, "a"), Order("x")).result(HANG) == Order("x")


def test_all_kinds_of_parameters_are_filled_as_python_would(pool: KeyedPool):
    @pool.job
    def kinds(job: Job, a: int, b: int = 2, *, c: int, d: int = 4) -> list[int]:
        return [a, b, c, d]

    @pool.job
    def only(job: Job, a: int, /, b: int) -> list[int]:
        return [a, b]

    @pool.job  # type: ignore[arg-type]
    def rest(job: Job, a: int, *more: int, **named: int) -> list[Any]:
        return [a, list(more), named]

    @pool.job
    def nothing(job: Job) -> str:
        return job.key

    @pool.job
    def mutable(job: Job, found: list[int] = [], table: dict[str, int] = {"a": 1}) -> list[Any]:  # noqa: B006
        return [found, table]

    with pool.worker():
        assert kinds.dispatch("k", 1, c=3).result(HANG) == [1, 2, 3, 4]
        assert kinds.dispatch("k", b=9, a=1, c=3, d=0).result(HANG) == [1, 9, 3, 0]
        assert only.dispatch("k", 1, b=2).result(HANG) == [1, 2]
        assert rest.dispatch("k", 1, 2, 3, x=4).result(HANG) == [1, [2, 3], {"x": 4}]
        assert nothing.dispatch("k").result(HANG) == "k"
        assert mutable.dispatch("k").result(HANG) == [[], {"a": 1}]
        assert mutable.dispatch("k", [1], table={}).result(HANG) == [[1], {}]


def test_parameters_may_have_awkward_names(pool: KeyedPool):
    @pool.job
    def awkward(job: Job, self: int, cls: int, _x: int, key: int, id: int, name: int, timeout: int) -> list[int]:  # noqa: A002
        return [self, cls, _x, key, id, name, timeout]

    with pool.worker():
        got = awkward.dispatch("k", self=1, cls=2, _x=3, key=4, id=5, name=6, timeout=7).result(HANG)
        assert got == [1, 2, 3, 4, 5, 6, 7]


def test_a_struct_may_be_a_default(pool: KeyedPool):
    @pool.job
    def book(job: Job, order: Order = Order("nail"), point: Point = Point(1)) -> list[Any]:  # noqa: B008
        return [order.item, point.x]

    with pool.worker():
        assert book.dispatch("k").result(HANG) == ["nail", 1]


BAD_CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1, 2, 3), {}),
    ((1,), {"a": 1}),
    ((1,), {"c": 1}),
]


@pytest.mark.parametrize(("args", "kwargs"), BAD_CALLS)
def test_a_call_that_does_not_fit_is_a_type_error_where_it_is_made(pool: KeyedPool, args: Any, kwargs: Any):
    @pool.job
    def two(job: Job, a: int, b: int = 2) -> int:
        return a

    @pool.job
    def named(job: Job, a: int, *, b: int = 2) -> int:
        return a

    for one in (two, named):
        with pytest.raises(TypeError):
            one.dispatch("k", *args, **kwargs)
    assert pool.statistics().dispatched_total == 0


def test_a_call_that_does_not_fit_a_handler_with_a_rest_is_refused_too(pool: KeyedPool):
    @pool.job
    def rest(job: Job, a: int, *more: int) -> int:
        return a

    @pool.job  # type: ignore[arg-type]
    def named(job: Job, a: int, **more: int) -> int:
        return a

    for one in (rest, named):
        with pytest.raises(TypeError):
            one.dispatch("k")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        rest.dispatch("k", 1, b=2)  # type: ignore[call-arg]


def test_the_annotations_of_a_handler_with_a_rest_count(pool: KeyedPool):
    @pool.job  # type: ignore[arg-type]
    def rest(job: Job, point: Point, **more: int) -> int:
        return point.x

    with pool.worker():
        assert rest.dispatch("k", Point(3), y=1).result(HANG) == 3


class Unsendable:
    pass


@pytest.mark.parametrize(
    "value", [Unsendable(), 2**64, object(), {1: object()}, "\ud800", print, [lambda: 0]], ids=repr
)
def test_what_cannot_travel_is_a_type_error_where_it_is_dispatched(pool: KeyedPool, value: Any):
    @pool.job
    def take(job: Job, value: Any) -> None: ...

    @pool.job
    def rest(job: Job, *value: Any) -> None: ...

    for one in (take, rest):
        with pytest.raises(TypeError, match="cannot travel"):
            one.dispatch("k", value)
    assert pool.statistics().dispatched_total == 0


def test_a_cycle_cannot_travel(pool: KeyedPool):
    @pool.job
    def take(job: Job, value: Any) -> None: ...

    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(TypeError, match="cannot travel"):
        take.dispatch("k", cycle)


@pytest.mark.parametrize("value", [Unsendable(), 2**64, "\ud800"], ids=["object", "large", "surrogate"])
def test_a_result_that_cannot_travel_fails_its_job_with_a_reason(pool: KeyedPool, value: Any):
    @pool.job
    def give(job: Job) -> Any:
        return value

    @pool.job
    async def agive(job: Job) -> Any:
        return value

    with pool.worker():
        for one in (give, agive):
            with pytest.raises(JobFailed) as caught:
                one.dispatch("k").result(HANG)
            assert caught.value.status == "failed" and caught.value.error
        assert len(pool.admin.dead_letters()) == 2


def test_a_result_that_nobody_keeps_need_not_travel(pool: KeyedPool):
    @pool.job(keep_result=0)
    def give(job: Job) -> Any:
        return Unsendable()

    with pool.worker():
        give.dispatch("k")
        until(lambda: pool.statistics().done_total == 1)
    assert pool.statistics().dead == 0


def test_a_payload_that_is_too_large_is_refused(make: Callable[..., KeyedPool]):
    pool = make(payload_limit=1000)

    @pool.job
    def take(job: Job, data: bytes) -> int:
        return len(data)

    @pool.resident
    def stay(resident: Resident, data: bytes) -> None: ...

    with pytest.raises(ValueError, match="1000"):
        take.dispatch("k", b"x" * 1001)
    with pytest.raises(ValueError, match="1000"):
        take.dispatch_many([("k", b"x" * 1001)])
    with pytest.raises(ValueError, match="1000"):
        stay.start("k", b"x" * 1001)
    with pool.worker():
        assert take.dispatch("k", b"x" * 900).result(HANG) == 900


def test_a_message_that_is_too_large_is_refused(make: Callable[..., KeyedPool]):
    pool = make(payload_limit=1000)

    @pool.resident
    def stay(resident: Resident) -> None: ...

    stay.start("k")
    with pytest.raises(ValueError, match="1000"):
        stay.notify("k", b"x" * 1001)


def test_a_message_that_cannot_travel_is_a_type_error(pool: KeyedPool):
    @pool.resident
    def stay(resident: Resident) -> None: ...

    stay.start("k")
    with pytest.raises(TypeError, match="cannot travel"):
        stay.notify("k", Unsendable())


@pytest.mark.parametrize("key", ["", 1, None, b"k", ("k",), "x" * 1025, "\ud800"], ids=repr)
def test_what_is_no_key_is_refused(pool: KeyedPool, key: Any):
    @pool.job
    def do(job: Job) -> None: ...

    @pool.resident
    def stay(resident: Resident) -> None: ...

    for call in (do.dispatch, stay.start, stay.stop, pool.owner, pool.admin.pause, pool.admin.purge):
        if key is None and call == pool.admin.pause:
            continue  # the whole pool
        with pytest.raises((TypeError, ValueError)):
            call(key)
    with pytest.raises((TypeError, ValueError)):
        stay.notify(key, 1)


@pytest.mark.parametrize("key", [":", "a:b:c", "j:x", "r:watch:x", "{}", "a b\n\0", "\N{GRINNING FACE}", "x" * 1024])
def test_any_text_is_a_key(pool: KeyedPool, key: str):
    @pool.job
    def do(job: Job) -> str:
        return job.key

    @pool.resident
    def stay(resident: Resident) -> None:
        resident.lost.wait(HANG)

    with pool.worker():
        assert do.dispatch(key).result(HANG) == key
        assert stay.start(key)
        until(lambda: [one.state for one in pool.residents()] == ["running"])
        assert pool.residents()[0].key == key
        assert stay.stop(key, timeout=HANG)


def test_arguments_of_another_type_make_a_dead_letter_that_says_so(pool: KeyedPool):
    @pool.job(max_attempts=5)
    def need(job: Job, number: int) -> int:
        return number

    stranger = pool.declare_job("need")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {"number": "x"}),
        ((), {}),
        ((1, 2), {}),
        ((), {"number": 1, "more": 2}),
        (("x",), {}),
    ]
    with pool.worker():
        for args, kwargs in calls:
            with pytest.raises(JobFailed) as caught:
                stranger.dispatch("k", *args, **kwargs).result(HANG)
            assert caught.value.status == "failed"
        letters = pool.admin.dead_letters()
        assert len(letters) == len(calls)
        for letter in letters:
            assert letter.key == "k" and letter.name == "need" and "do not fit" in letter.reason.splitlines()[0]
        assert letters[0].arguments == {"number": "x"}
        assert stranger.dispatch("k", 7).result(HANG) == 7
        assert stranger.dispatch("k", number=8).result(HANG) == 8


def test_a_declared_job_reaches_every_kind_of_parameter(pool: KeyedPool):
    @pool.job
    def kinds(job: Job, a: int, b: int = 2, *, c: int = 3) -> list[int]:
        return [a, b, c]

    @pool.job  # type: ignore[arg-type]
    def rest(job: Job, a: int, *more: int, **named: int) -> list[Any]:
        return [a, list(more), named]

    @pool.job
    async def point(job: Job, point: Point) -> Point:
        return point

    with pool.worker():
        declared = pool.declare_job("kinds")
        assert declared.dispatch("k", 1).result(HANG) == [1, 2, 3]
        assert declared.dispatch("k", 1, 5, c=6).result(HANG) == [1, 5, 6]
        assert declared.dispatch("k", 1, b=5).result(HANG) == [1, 5, 3]
        assert pool.declare_job("rest").dispatch("k", 1, 2, x=3).result(HANG) == [1, [2], {"x": 3}]
        assert pool.declare_job("point").dispatch("k", Point(1, 2)).result(HANG) == {"x": 1, "y": 2}
        assert pool.declare_job("point").dispatch("k", {"x": 1, "y": 0}).result(HANG) == {"x": 1, "y": 0}


def test_a_declared_job_cannot_be_called(pool: KeyedPool):
    with pytest.raises(TypeError, match="only declared here"):
        pool.declare_job("x")("k")
    with pytest.raises(TypeError, match="only declared here"):
        pool.declare_resident("x")("k")


def test_a_job_can_be_called_as_the_function_that_it_is(pool: KeyedPool):
    @pool.job
    def double(job: Job, number: int) -> int:
        """Double it."""
        return number * 2

    assert double(None, 4) == 8
    assert double.__doc__ == "Double it."
    assert double.name == "double" and "double" in repr(double)


# --- handlers --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_a_handler_is_refused_where_it_is_declared(pool: KeyedPool):
    with pytest.raises(TypeError, match="first parameter"):

        @pool.job  # type: ignore[arg-type]
        def none() -> None: ...

    with pytest.raises(TypeError, match="first parameter"):

        @pool.job  # type: ignore[arg-type]
        def keyword(*, job: Job) -> None: ...

    with pytest.raises(TypeError, match="yield"):

        @pool.job
        def yields(job: Job) -> Any:
            yield 1

    with pytest.raises(TypeError, match="yield"):

        @pool.job
        async def ayields(job: Job) -> Any:
            yield 1

    with pytest.raises((TypeError, ValueError)):
        pool.job(5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="name"):
        pool.job(lambda job: None)
    with pytest.raises(ValueError, match="timeout"):

        @pool.job(timeout=1)
        def plain(job: Job) -> None: ...


@pytest.mark.parametrize("name", ["a:b", "", ":", "<x>", "a\nb", 5])
def test_what_is_no_name_is_refused(pool: KeyedPool, name: Any):
    with pytest.raises(ValueError, match="name"):
        pool.job(name=name)(lambda job: None)
    with pytest.raises(ValueError, match="name"):
        pool.resident(name=name)(lambda resident: None)
    with pytest.raises(ValueError, match="name"):
        pool.declare_job(name)
    with pytest.raises(ValueError, match="name"):
        pool.declare_resident(name)


def test_a_name_is_taken_once(pool: KeyedPool):
    @pool.job
    def same(job: Job) -> None: ...

    with pytest.raises(ValueError, match="already"):
        pool.job(name="same")(lambda job: None)
    with pytest.raises(ValueError, match="already"):
        pool.resident(name="same")(lambda resident: None)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"backoff": -1},
        {"backoff": float("nan")},
        {"backoff_limit": -1},
        {"keep_result": -1},
        {"timeout": 0},
        {"timeout": -1},
        {"retry_on": ("ValueError",)},
        {"retry_on": [ValueError]},
        {"nonsense": 1},
    ],
    ids=repr,
)
def test_options_of_a_job_that_make_no_sense_are_refused_at_once(pool: KeyedPool, options: dict[str, Any]):
    with pytest.raises((ValueError, TypeError)):

        @pool.job(**options)
        async def do(job: Job) -> None: ...


def test_other_callables_can_be_handlers(pool: KeyedPool):
    class Service:
        def __init__(self) -> None:
            self.calls = 0

        def serve(self, job: Job, number: int) -> int:
            self.calls += 1
            return number

        async def aserve(self, job: Job, number: int) -> int:
            return number

        def __call__(self, job: Job, number: int) -> int:
            return number

    service = Service()
    handlers = [
        pool.job(service.serve),
        pool.job(service.aserve),
        pool.job(name="object")(service),
        pool.job(name="part")(functools.partial(lambda job, offset, number: number + offset, offset=0)),
    ]
    with pool.worker():
        for one in handlers:
            assert one.dispatch("k", number=3).result(HANG) == 3
    assert service.calls == 1


def test_a_coroutine_behind_a_plain_wrapper_is_awaited_or_refused_with_a_clear_word(pool: KeyedPool):
    def wrapper(function: Any) -> Any:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapped

    @pool.job
    @wrapper
    async def work(job: Job, number: int) -> int:
        return number

    with pool.worker():
        try:
            assert work.dispatch("k", 3).result(HANG) == 3
        except JobFailed as error:
            assert "coroutine" in str(error)  # noqa: PT017


def test_a_callable_with_a_coroutine_for_its_call_is_a_coroutine(pool: KeyedPool):
    class Service:
        async def __call__(self, job: Job, number: int) -> int:
            return number

    work = pool.job(name="service")(Service())
    with pool.worker():
        assert work.dispatch("k", 3).result(HANG) == 3


def test_a_parameter_that_cannot_travel_is_refused_where_it_is_declared(pool: KeyedPool):
    with pytest.raises(TypeError, match="cannot travel"):

        @pool.job
        def mixed(job: Job, value: Point | Order) -> None: ...


def test_a_result_that_is_not_what_its_annotation_says_still_arrives_or_says_so(pool: KeyedPool):
    @pool.job
    def lies(job: Job) -> int:
        return "text"  # type: ignore[return-value]

    with pool.worker():
        receipt = lies.dispatch("k")
        until(lambda: receipt.status() == "done")
        with pytest.raises((JobFailed, TypeError, ValueError)) as caught:
            receipt.result(HANG)
        assert "int" in str(caught.value)


@pytest.mark.parametrize("call", ["k1", b"k1", 5, (), None], ids=repr)
def test_dispatch_many_takes_tuples_and_nothing_else(pool: KeyedPool, call: Any):
    @pool.job
    def one(job: Job, value: Any = None) -> Any:
        return value

    with pytest.raises((TypeError, ValueError)):
        one.dispatch_many([call])
    assert pool.statistics().dispatched_total == 0


@pytest.mark.asyncio
async def test_the_other_colour_is_the_same(apool: AsyncKeyedPool):
    @apool.job
    def plain(job: Job, a: int, *, b: Point) -> Point:
        return Point(a, b.y)

    @apool.job
    async def coroutine(job: Job, a: int, b: int = 2) -> int:
        return a + b

    async with apool, apool.worker():
        assert await (await plain.dispatch("k", 1, b=Point(2, 3))).result(HANG) == Point(1, 3)
        assert await (await coroutine.dispatch("k", 1)).result(HANG) == 3
        receipts = await coroutine.dispatch_many([("k", 1), ("l", 2, 3)])
        assert [await one.result(HANG) for one in receipts] == [3, 5]
        with pytest.raises(TypeError):
            await coroutine.dispatch("k")  # type: ignore[call-arg]


class Tenant(str, enum.Enum):  # noqa: UP042  (a StrEnum shows itself as what it is)
    """A string that shows itself as another one."""

    ACME = "acme"

    def __str__(self) -> str:
        return "Tenant.ACME"


@pytest.mark.parametrize("odd", [b"order-7", 7, ("a",), ["a"], 1.5, True, object()], ids=repr)
def test_an_id_that_is_no_text_is_refused_where_it_is_given(pool: KeyedPool, odd: Any):
    @pool.job
    def work(job: Job) -> None: ...

    with pytest.raises(TypeError, match="an id is a string"):
        work.options(id=odd)
    with pytest.raises(TypeError, match="a key is a string"):
        work.dispatch(odd)


@pytest.mark.parametrize("odd", ["", "x" * 201, "\ud800"], ids=["empty", "long", "surrogate"])
def test_an_id_is_a_text_that_every_store_can_keep(pool: KeyedPool, odd: str):
    @pool.job
    def work(job: Job) -> None: ...

    with pytest.raises(ValueError, match="an id"):
        work.options(id=odd)


def test_a_subclass_of_str_is_as_good_as_the_text_in_it(pool: KeyedPool):
    @pool.job
    def work(job: Job) -> str:
        return f"{job.key} {job.id}"

    with pool.worker():
        assert work.options(id=Tenant.ACME).dispatch(Tenant.ACME).result(HANG) == "acme acme"


def test_a_job_that_cannot_be_read_becomes_a_dead_letter_and_harms_no_other(pool: KeyedPool):
    """Somebody wrote nonsense into the store: its key goes on, and so do the dead letters."""

    @pool.job
    def work(job: Job) -> str:
        return job.key

    with pool.worker():
        work.dispatch("k").result(HANG)
        address = pool._connection.address("k")
        Verbs(pool._connection.store).dispatch(
            store_records.Batch("nonsense", 1), [store_records.Order(*address, b"\x93\xc4\x02hi\x01\x02")]
        )
        assert work.dispatch("k").result(HANG) == "k"
        (letter,) = pool.admin.dead_letters()
        assert "cannot be read" in letter.reason
        assert work.dispatch("other").result(HANG) == "other"
    assert pool.admin.replay() == 1
    assert pool.admin.discard() == 0


def test_a_result_has_the_same_limit_as_arguments(make: Callable[..., KeyedPool]):
    pool = make(payload_limit=1000)

    @pool.job
    def large(job: Job, number: int) -> bytes:
        return b"x" * number

    @pool.job(keep_result=0)
    def unread(job: Job) -> bytes:
        return b"x" * 5000

    with pool.worker():
        assert len(large.dispatch("k", 900).result(HANG)) == 900
        with pytest.raises(JobFailed, match="returned 5003 bytes, and pool 'p' allows 1000"):
            large.dispatch("k", 5000).result(HANG)
        unread.dispatch("k")
        assert len(large.dispatch("k", 1).result(HANG)) == 1
        assert [letter.name for letter in pool.admin.dead_letters()] == ["large"]


def takes_a_number(number: int): ...


def takes_a_list(names: list[str], job: Any = None): ...


@pytest.mark.parametrize(("function", "kind"), [(takes_a_number, "int"), (takes_a_list, r"list\[str\]")])
def test_a_first_parameter_that_is_no_job_by_its_annotation_is_refused_where_it_is_declared(
    pool: KeyedPool, function, kind
):
    with pytest.raises(
        TypeError, match=rf"as its first parameter, and .* is annotated as {kind}: def takes_a_.*\(job, n"
    ):
        pool.job(function)


def unannotated(job, number: int): ...


def anything(job: Any): ...


def an_object(job: object): ...


def by_a_name_for_type_checkers(job: OnlyForTypeCheckers): ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("function", [unannotated, anything, an_object, by_a_name_for_type_checkers])
def test_a_first_parameter_that_may_be_the_job_is_taken(pool: KeyedPool, function):
    pool.job(function)

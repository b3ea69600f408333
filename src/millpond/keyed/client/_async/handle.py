"""A job or a resident of a pool, as those see it who dispatch or start it: typed like its function."""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_args

from millpond.errors import AlreadyExists, NotFound, PoolClosed, PoolFull
from millpond.keyed.client.async_bridge import AsyncBridge
from millpond.keyed.client.results import PROGRESS
from millpond.keyed.client.sender import BATCH
from millpond.keyed.rules import commands as do
from millpond.keyed.rules import questions as about
from millpond.keyed.rules.checks import LAST, check_moment, check_seconds, check_text, check_timeout
from millpond.keyed.rules.envelope import opened, stamped
from millpond.keyed.rules.records import SECOND, KeyView, Order, OrderOptions, Verdicts, key_of
from millpond.keyed.shared.arguments import decode
from millpond.keyed.shared.connection import PoolConnection
from millpond.keyed.shared.definition import Definition
from millpond.keyed.shared.outcome import refusal

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

OnBusy = Literal["queue", "reject", "replace", "coalesce"]
_ON_BUSY = get_args(OnBusy)
LONGEST_ID = 200
PAGE = 1000
"""Residents that are read in one call."""
UNIQUE_FOR = 24 * 3600.0
"""Seconds for which an id that was given is remembered."""


class AsyncReceipt(Generic[R_co]):
    """What a dispatch returns: the way to the job's outcome."""

    def __init__(
        self,
        port: AsyncBridge,
        definition: Definition,
        key: str,
        id: str,  # noqa: A002
        siblings: Sequence[str] = (),
        place: int = 0,
    ) -> None:
        self.key = key
        self.id = id
        self._siblings = siblings
        self._place = place
        self._bridge = port
        self._definition = definition

    async def result(self, timeout: float | None = None, *, on_progress: Callable[[Any], object] | None = None) -> R_co:
        """Wait for the job to end and return what its handler returned.

        Raise `JobFailed` if it did not end well, `TimeoutError` after so many seconds (the job goes on), and `NotFound`
        if its outcome is not kept (any more): see `keep_result`. `on_progress` is called with what the handler tells by
        `job.progress` meanwhile; when it tells much at a time, with the latest only.
        """
        if not self._definition.keep:
            raise NotFound(f"job {self._definition.name!r} keeps no results: declare it with keep_result= seconds")
        patience = check_timeout(timeout)
        slot, mailbox = self._bridge.connection.address(self.key)
        near = self._siblings[self._place + 1 : self._place + 500]
        results = self._bridge.results
        if inspect.iscoroutinefunction(on_progress):
            raise TypeError("on_progress= is a plain function: start a task in it for what has to be awaited")
        watch = None if on_progress is None else self._bridge.caller(lambda data: on_progress(decode(data)))
        expected = results.expect(self.id, slot, mailbox, near, watch)
        try:
            status, data = await self._bridge.wait(expected, patience)
        except TimeoutError:
            results.forget(self.id, expected, watch)
            where = await self._where()
            raise TimeoutError(
                f"job {self._definition.name!r} of key {self.key!r} has not ended in {timeout} s ({where}); "
                "it goes on, and may be waited for again"
            ) from None
        except BaseException:
            results.forget(self.id, expected, watch)
            raise
        if status != "done":
            raise refusal(self.key, self.id, status, data)
        value: R_co = self._definition.decode_result(data)
        return value

    async def _where(self) -> str:
        """Return where the job is, and whether anybody is there to run it."""
        status = await self.status()
        if status != "waiting" or (await self._bridge.look(about.Members())).members:
            return f"it is {status}"
        return "it is waiting, and no worker is there: start one with `millpond worker` or pool.run()"

    async def status(self) -> str:
        """Return where the job is.

        `delayed`, `waiting`, `running`, or how it ended: `done`, `failed`, `lost`, `cancelled`, `replaced`, `purged`;
        `dead` (among the dead letters) or `gone` where the outcome is not kept.
        """
        outcome = await self._outcome()
        if outcome is not None and outcome[0] != PROGRESS:
            return _ended(outcome[0])
        slot, mailbox = self._bridge.connection.address(self.key)
        place = await self._bridge.look(about.Where(slot, mailbox, self.id))
        if place in ("gone", "dead"):  # it may have ended between the two questions
            outcome = await self._outcome()
        return place if outcome is None or outcome[0] == PROGRESS else _ended(outcome[0])

    async def progress(self) -> Any:
        """Return what the handler has told last by `job.progress`; None: nothing, or the job has ended."""
        outcome = await self._outcome()
        return decode(outcome[1]) if outcome is not None and outcome[0] == PROGRESS else None

    async def _outcome(self) -> tuple[str, bytes] | None:
        outcomes = await self._bridge.look(about.Outcomes((self.id,)))
        return outcomes[0]

    async def cancel(self) -> bool:
        """Cancel the job. False: it has ended. A job that runs is asked to stop, and may end before it hears."""
        slot, mailbox = self._bridge.connection.address(self.key)
        return await self._bridge.do(do.Cancel(slot, mailbox, self.id)) != "gone"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of job {self._definition.name!r}, key {self.key!r}>"


Trace = Mapping[str, str] | None
"""What travels with a job whose dispatch is traced."""
Ordered = tuple[str, str, Order]
"""A key, the id of a job, and its order."""


class AsyncLot:
    """Many jobs on their way: while one batch is with the store the next is put together."""

    def __init__(self, port: AsyncBridge) -> None:
        self._bridge = port
        self._part: list[Ordered] = []
        self._underway: tuple[list[Ordered], Callable[[], Any]] | None = None

    async def add(self, one: Ordered) -> tuple[list[Ordered], Verdicts] | None:
        """Add one; return what has been answered meanwhile."""
        self._part.append(one)
        return await self._send() if len(self._part) == BATCH else None

    async def rest(self) -> list[tuple[list[Ordered], Verdicts]]:
        """Send what is left, and return all that was not returned yet."""
        if self._underway is None:  # it is only one batch: no need for a thread
            part = self._part
            return [(part, await self._bridge.dispatch([order for _, _, order in part]))] if part else []
        answered = [await self._send()] if self._part else []
        part, ended = self._underway
        return [each for each in answered if each is not None] + [(part, await ended())]

    async def _send(self) -> tuple[list[Ordered], Verdicts] | None:
        before, part, self._part = self._underway, self._part, []
        self._underway = part, self._bridge.begin([order for _, _, order in part])
        return None if before is None else (before[0], await before[1]())


class AsyncKeyedJob(Generic[P, R]):
    """A job of a pool: call it to run the handler here and now, dispatch it to have it run by the key's owner."""

    def __init__(self, port: AsyncBridge, definition: Definition, options: OrderOptions | None = None) -> None:
        self.name = definition.name
        self._bridge = port
        self._definition = definition
        self._options = options
        if definition.function is not None:
            self.__doc__ = definition.function.__doc__
            self.__wrapped__ = definition.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler itself, as in a test."""
        if self._definition.function is None:
            raise TypeError(f"job {self.name!r} is only declared here: its handler is in another program")
        return self._definition.function(*args, **kwargs)

    def options(
        self,
        *,
        id: str | None = None,  # noqa: A002
        delay: float | None = None,
        at: datetime.datetime | float | None = None,
        on_busy: OnBusy | None = None,
    ) -> AsyncKeyedJob[P, R]:
        """Return the same job with options for its dispatches.

        `id`: the same id is not dispatched twice (it is remembered for a day). `delay` seconds, or `at` a time, after
        which it enters the mailbox of its key. `on_busy` says what happens when its key has jobs: `queue` (default),
        `reject` (raise `AlreadyExists`), `replace` those of the same name that wait, `coalesce` with one that waits.
        """
        if on_busy is not None and on_busy not in _ON_BUSY:
            raise ValueError(f"on_busy is one of {', '.join(_ON_BUSY)}, not {on_busy!r}")
        if delay is not None and at is not None:
            raise ValueError("give delay= or at=, not both")
        if id is not None:
            id = check_text(id, "an id", LONGEST_ID)  # noqa: A001
        options = self._options or OrderOptions("", self.name)
        if id is not None:
            options = options._replace(id=id, unique_for=round(UNIQUE_FOR * SECOND))
        if delay is not None or at is not None:
            later = 0.0 if delay is None else check_seconds(delay, "delay=", most=LAST)
            when = 0.0 if at is None else check_moment(at, "at=")
            options = options._replace(delay=round(later * SECOND), at=round(when * SECOND))
        if on_busy is not None:
            options = options._replace(on_busy=on_busy)
        return AsyncKeyedJob(self._bridge, self._definition, options)

    async def dispatch(self, key: str, /, *args: P.args, **kwargs: P.kwargs) -> AsyncReceipt[R]:
        """Dispatch a job: the owner of the key runs it, after all that was dispatched for this key before.

        When this returns, the job is in the store. Raise `PoolFull` when there is no room, `PoolClosed` when the pool
        was shut down.
        """
        await self._bridge.open()
        with self._bridge.connection.sending(self.name, key) as trace:
            job, order = self._bridge.connection.order(self._definition, key, args, kwargs, self._options, trace)
            verdicts = await self._bridge.dispatch([order])
            if verdicts:
                job = self._handle_verdict(verdicts[0], key, job)
        return AsyncReceipt(self._bridge, self._definition, key, job)

    async def dispatch_many(
        self, calls: Iterable[tuple[Any, ...]], *, ids: Iterable[str] | None = None
    ) -> list[AsyncReceipt[R]]:
        """Dispatch many at once: each is a tuple of the key and the arguments. Much cheaper than one by one.

        Those of one key run in this order. `ids`: an id for each, as in `options(id=...)`; other options hold for all.
        Raise `PoolFull` (or `AlreadyExists`, with on_busy="reject") if some were refused; its `receipts` has those that
        were not, and None for the others.
        """
        await self._bridge.open()
        if self._options is not None and self._options.id:
            raise ValueError("options(id=...) names one job: give dispatch_many one for each, as ids=")
        with self._bridge.connection.sending(self.name) as trace:
            return await self._dispatch_many(calls, ids, trace)

    async def receipt(self, key: str, id: str) -> AsyncReceipt[R]:  # noqa: A002
        """Return the receipt of a job of this name that was dispatched before, in any process; it dispatches nothing.

        So one request may dispatch, and another ask for the result: keep the key and `receipt.id`. Raise `NotFound` if
        the store knows no such job: it was never dispatched, or has ended and its outcome is kept no longer (see
        `keep_result`): a store cannot tell which. An outcome is found by the id alone, whatever the key: who may ask
        for it is yours to check.
        """
        await self._bridge.open()
        job = check_text(id, "an id", LONGEST_ID)
        found: AsyncReceipt[R] = AsyncReceipt(
            self._bridge, self._definition, self._bridge.connection.checked_key(key), job
        )
        if await found.status() == "gone":
            raise NotFound(
                f"pool {self._bridge.connection.name!r} knows no job {job!r} of key {key!r}: it was never dispatched, "
                "or it has ended and its outcome is kept no longer (see keep_result=)"
            )
        return found

    async def _dispatch_many(
        self, calls: Iterable[tuple[Any, ...]], ids: Iterable[str] | None, trace: Trace
    ) -> list[AsyncReceipt[R]]:
        lot = AsyncLot(self._bridge)
        receipts: list[AsyncReceipt[R] | None] = []
        refused: PoolFull | AlreadyExists | None = None
        orders = (self._order(call, trace) for call in calls) if ids is None else self._named(calls, ids, trace)
        for order in list(orders) if isinstance(calls, Sequence) else orders:  # what is all there is checked as a whole
            if answered := await lot.add(order):
                refused = self._receive(*answered, receipts) or refused
        for answered in await lot.rest():
            refused = self._receive(*answered, receipts) or refused
        if refused is not None:
            refused.receipts = receipts
            raise refused
        return receipts  # type: ignore[return-value]

    def _named(self, calls: Iterable[Any], ids: Iterable[str], trace: Trace) -> Iterator[Ordered]:
        """Return the orders of calls that each have an id."""
        if isinstance(ids, str | bytes):
            raise TypeError(f"ids= is a list with an id for each call, not the text {ids!r}")
        for call, each in zip(calls, ids, strict=True):
            yield self.options(id=check_text(each, "an id", LONGEST_ID))._order(call, trace)

    def _order(self, call: Any, trace: Trace) -> Ordered:
        if not isinstance(call, (tuple, list)) or not call:
            raise TypeError(f"dispatch_many takes tuples of a key and its arguments, not {call!r}")
        key, *args = call
        return key, *self._bridge.connection.order(self._definition, key, tuple(args), {}, self._options, trace)

    def _receive(
        self, part: list[Ordered], verdicts: Verdicts, receipts: list[AsyncReceipt[R] | None]
    ) -> PoolFull | AlreadyExists | None:
        """Add the receipts of what was answered; return an error if some of it was refused."""
        refused: PoolFull | AlreadyExists | None = None
        siblings = [job for _, job, _ in part]
        for index, (key, job, _) in enumerate(part):
            try:
                if verdicts and index in verdicts:
                    job = self._handle_verdict(verdicts[index], key, job)
                receipts.append(AsyncReceipt(self._bridge, self._definition, key, job, siblings, index))
            except (PoolFull, AlreadyExists) as error:
                refused = error
                receipts.append(None)
        return refused

    def _handle_verdict(self, verdict: str, key: str, job: str) -> str:
        """Return the id of the job that stands for this one, or raise why there is none."""
        name, settings = self._bridge.connection.name, self._bridge.connection.settings
        if verdict == "same":
            return job
        if verdict.startswith("into:"):
            return verdict[5:]
        if verdict == "busy":
            raise AlreadyExists(f"key {key!r} of pool {name!r} has a job already, and on_busy is 'reject'")
        if verdict == "closed":
            raise PoolClosed(f"pool {name!r} was shut down: admin.resume() opens it again")
        if verdict == "full":
            raise PoolFull(
                f"key {key!r} of pool {name!r} has {settings.max_per_key} jobs, its limit (max_per_key): try later"
            )
        raise PoolFull(f"pool {name!r} has {settings.max_jobs} jobs, its limit (max_jobs): try later, or add workers")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of pool {self._bridge.connection.name!r}>"


class AsyncKeyedResident(Generic[P]):
    """A resident of a pool: started, it runs on one worker until it is stopped."""

    def __init__(self, port: AsyncBridge, definition: Definition) -> None:
        self.name = definition.name
        self._bridge = port
        self._definition = definition
        if definition.function is not None:
            self.__doc__ = definition.function.__doc__
            self.__wrapped__ = definition.function

    @property
    def connection(self) -> PoolConnection:
        """The pool that it belongs to."""
        return self._bridge.connection

    @property
    def definition(self) -> Definition:
        """What the pool knows of it by name."""
        return self._definition

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the handler itself, as in a test."""
        if self._definition.function is None:
            raise TypeError(f"resident {self.name!r} is only declared here: its handler is in another program")
        return self._definition.function(*args, **kwargs)

    async def start(self, key: str, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Start it for this key. False: it runs already, with these arguments. With others it is replaced."""
        await self._bridge.open()
        return await self._start(key, self._bridge.connection.resident(self._definition, key, args, kwargs))

    async def _start(self, key: str, body: bytes) -> bool:
        connection = self._bridge.connection
        command = do.Start(*connection.address(key, self.name), body)
        answer = await self._bridge.do(command)
        if answer == "closed":
            raise PoolClosed(f"pool {connection.name!r} was shut down: admin.resume() opens it again")
        return answer != "same"

    def check(self, key: str, /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Raise what `start` would raise for a key or arguments that do not do, without starting anything."""
        self._bridge.connection.resident(self._definition, key, args, kwargs)

    async def reconcile(self, wanted: Mapping[str, Mapping[str, Any]]) -> int:
        """Make the residents of this name equal to `wanted`: see `reconcile` of the pool."""
        changes = 0
        _check_wanted(wanted)
        await self._bridge.open()
        connection = self._bridge.connection
        bodies = {
            connection.checked_key(key): connection.resident(self._definition, key, (), arguments)
            for key, arguments in wanted.items()  # all of them, before anything is done
        }
        after = ""
        while True:
            page = await self._bridge.look(about.Keys("r", after, PAGE))
            for view in page:
                key = key_of(view.mailbox)
                if not view.mailbox.startswith(f"r:{self.name}:"):
                    continue
                if key not in wanted:
                    changes += await self.stop(key)
                elif key in bodies and _is_right(view, bodies[key]):
                    del bodies[key]  # it is right as it is
            after = page.next
            if not after:
                break
        for key, body in bodies.items():
            changes += await self._start(key, body)
        return changes

    async def stop(self, key: str, *, timeout: float | None = None) -> bool:
        """End it. False: there is none. With `timeout`, wait until it has ended; raise TimeoutError if it does not."""
        check_timeout(timeout)
        await self._bridge.open()
        slot, mailbox = self._bridge.connection.address(key, self.name)
        answer = await self._bridge.do(do.Stop(slot, mailbox))
        if answer == "stopping" and timeout is not None:
            for step in range(1 + round(timeout / 0.05)):
                await self._bridge.sleep(0.05 if step else 0.005)
                if await self._bridge.look(about.Key(slot, mailbox)) is None:
                    return True
            raise TimeoutError(f"resident {self.name!r} of key {key!r} has not ended in {timeout} s; it was told to")
        return answer != "gone"

    async def notify(self, key: str, message: Any) -> None:
        """Send it a message. Raise `NotFound` if there is none, `PoolFull` if `max_per_key` messages wait for it."""
        await self._bridge.open()
        command = do.Notify(*self._bridge.connection.address(key, self.name), self._bridge.connection.message(message))
        answer = await self._bridge.do(command)
        if answer == "gone":
            raise NotFound(f"there is no resident {self.name!r} of key {key!r} to notify: start it first")
        if answer == "full":
            most = self._bridge.connection.settings.max_per_key
            raise PoolFull(
                f"resident {self.name!r} of key {key!r} has {most} messages that it did not handle, the limit of the "
                "pool (max_per_key): try later"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of pool {self._bridge.connection.name!r}>"


def _is_right(view: KeyView, body: bytes) -> bool:
    """Return whether a resident is as it is wanted, and was not told to end."""
    return not view.is_ending and opened(view.last).payload == opened(stamped(0, body)).payload


def _ended(status: str) -> str:
    """Return how a job ended, for people: one whose error is known has failed."""
    return "failed" if status == "dead" else status


def _check_wanted(wanted: Any) -> None:
    """Raise TypeError unless residents are wanted as `reconcile` takes them."""
    if not isinstance(wanted, Mapping):
        raise TypeError(f"reconcile() takes the arguments of each resident by key, {{}} for none, not {wanted!r}")
    for key, arguments in wanted.items():
        if not isinstance(arguments, Mapping):
            raise TypeError(
                f"the arguments of the resident of key {key!r} are given by name, {{}} for none, not {arguments!r}"
            )

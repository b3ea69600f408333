"""Resource pools inside workflows, in the words of everywhere else.

A request goes to the pool by a local activity (so it is answered in the same workflow task when something is free);
one that has to wait is told by signal. The holder is the workflow's *chain*: continue-as-new, retries and reset do not
change it. When the server closes the chain, however that comes, what it held goes on to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError

from millpond.errors import AcquireTimeout, EngineError, LeaseLost
from millpond.resources import _arguments
from millpond.resources._arguments import Units
from millpond.resources._refusals import Asked, add_note, grant_name, lost, not_held
from millpond.resources._rules import commands
from millpond.resources._rules.commands import Acquire, Command, Reply
from millpond.resources._rules.records import HELD, WAITING, Holder, Want
from millpond.resources._rules.selectors import Selector
from millpond.resources.engines.temporal import _messages, _sessions
from millpond.resources.engines.temporal._orders import Order, raw

T = TypeVar("T")
FIRST_LOOK: Final = 20.0
"""Seconds after which a waiter makes sure that it stands in line; each time twice as many."""
LAST_LOOK: Final = 1800.0
PATIENCE: Final = 10.0
"""Seconds that who gives up waits for the pool to take note of it."""
LOOK: Final = "its query get_current_holders tells why"
NOTHING: Final = raw(b"null")
REASON: Final = 300
"""Characters of a reason that a pool on Temporal keeps."""
_RETRY: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=300),
    maximum_interval=timedelta(seconds=10),
    non_retryable_error_types=["NotFoundError", EngineError.__name__],
)


@dataclass(frozen=True)
class Detached:
    """A grant on its way through continue-as-new: an argument of the next run, which acquires with `reattach=`."""

    pool: str
    """The name of the pool."""
    request_id: str
    """The request that was granted."""
    token: int
    """The token of the grant."""
    session: str
    """Who holds it: the chain of runs of the workflow."""


def acquire(
    pool: str,
    selector: Selector | None = None,
    /,
    *,
    name: str | None = None,
    count: int = 1,
    units: Units = 1,
    timeout: float | None = None,
    lease: float | None = None,
    priority: int = 0,
    group: str | None = None,
    reason: str | None = None,
    placement: str = "first",
    wait_for_capacity: bool = False,
    work_ends_within: float | None = None,
    reattach: Detached | None = None,
) -> WorkflowGrant:
    """Wait for resources of a pool, inside a workflow, and return them as a grant, itself a context manager.

    Arguments are those of `ResourcePool.acquire`, and `work_ends_within`: seconds that activities may still run after
    the workflow was closed under them (terminated, timed out); only then is what it held lent again. `reattach` takes
    up what an earlier run detached: do that before anything else is acquired from the same pool, for then whatever
    earlier runs left there (retried, reset, continued as new) goes back to it. A lease is not renewed by itself here: a
    lock comes back when its workflow ends.
    """
    if reattach is not None:
        if not isinstance(reattach, Detached):
            raise TypeError(f"reattach must be what detach() returned, not {reattach!r}")
        return WorkflowGrant(pool, None, None, 0, reattach)
    want = _arguments.want(selector, name=name, count=count, units=units)
    options = _options(timeout, lease, priority, group, reason, placement, wait_for_capacity)
    return WorkflowGrant(
        pool, (want,), timeout, _arguments.microseconds(work_ends_within, "work_ends_within"), **options
    )


def acquire_all(
    pool: str,
    selectors: Iterable[Selector | Want],
    /,
    *,
    timeout: float | None = None,
    lease: float | None = None,
    priority: int = 0,
    group: str | None = None,
    reason: str | None = None,
    placement: str = "first",
    wait_for_capacity: bool = False,
    work_ends_within: float | None = None,
) -> WorkflowGrant:
    """Wait for several resources at once, all or nothing."""
    options = _options(timeout, lease, priority, group, reason, placement, wait_for_capacity)
    grace = _arguments.microseconds(work_ends_within, "work_ends_within")
    return WorkflowGrant(pool, _arguments.bundle(selectors), timeout, grace, **options)


def _options(
    timeout: float | None,
    lease: float | None,
    priority: int,
    group: str | None,
    reason: str | None,
    placement: str,
    patient: bool,
) -> dict[str, Any]:
    return {
        "timeout": _arguments.microseconds(timeout, "timeout"),
        "wait": timeout != 0,
        "lease": _arguments.microseconds(lease, "lease", 0.05),
        "priority": _arguments.priority(priority),
        "group": _arguments.text(group, "group"),
        "reason": _arguments.text(reason, "reason")[:REASON],
        "placement": _arguments.name(placement, "placement"),
        "patient": _arguments.flag(patient, "wait_for_capacity"),
    }


class WorkflowGrant:
    """Resources in the hands of a workflow, until it leaves the block or releases them."""

    def __init__(
        self,
        pool: str,
        wants: tuple[Want, ...] | None,
        limit: float | None,
        grace: int,
        reattach: Detached | None = None,
        /,
        **options: Any,
    ) -> None:
        self._pool = _arguments.name(pool, "a pool's name")
        self._wants = wants
        self._limit = limit
        self._grace = grace
        self._options = options
        self._reattach = reattach
        self._shares: tuple[tuple[str, int], ...] = ()
        self._token = 0
        self._id = ""
        self._state = "new"  # waiting, held, over, lost, detached
        self._how = ""

    # --- what is held ------------------------------------------------------------------------------------------

    @property
    def resource(self) -> str:
        """The name of the resource; of the first one, if there are several."""
        return self._held()[0][0]

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of all resources, in the order in which they were asked for."""
        return tuple(name for name, _ in self._held())

    @property
    def units(self) -> Mapping[str, int]:
        """How many units of each resource."""
        return dict(self._held())

    @property
    def token(self) -> int:
        """The number of this grant: it grows with every grant of the pool. For fences: hand it to your activities."""
        self._held()
        return self._token

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self._id

    @property
    def is_held(self) -> bool:
        """Whether it is held, as far as this workflow was told."""
        return self._state == HELD

    @property
    def is_waiting(self) -> bool:
        """Whether it was asked for and not granted yet."""
        return self._state == WAITING

    def check(self) -> None:
        """Raise `LeaseLost` unless the grant is held."""
        if self._state != HELD:
            how = self._how or {"new": "it was not acquired yet"}.get(self._state, self._state)
            raise not_held(self._name(), how)

    async def lost(self) -> str:
        """Wait until the grant is taken away (an operator, the end of a lease), and return how."""
        await workflow.wait_condition(lambda: self._state in ("lost", "over"))
        return self._how

    async def execute_activity(self, activity: Any, *args: Any, **options: Any) -> Any:
        """Run an activity while holding: `workflow.execute_activity`, but a cancellation waits until it has stopped.

        So what it uses is not lent to others while it is still using it. When the grant is lost meanwhile (an operator
        released it, a lease ended), the activity is cancelled, and this raises `LeaseLost` once it has stopped. Like
        every activity, it hears of a cancellation only if it sends heartbeats.
        """
        self.check()
        options.setdefault("cancellation_type", workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)
        if args:
            options["args"] = [*args, *options.get("args", ())]
        running = workflow.start_activity(activity, **options)
        watch = asyncio.create_task(self._cancel_when_lost(running))
        try:
            result = await running
        except (asyncio.CancelledError, ActivityError) as error:
            if watch.done() and not watch.cancelled() and watch.result() and _is_cancellation(error):
                raise self._loss() from error
            watch.cancel()
            raise
        watch.cancel()
        return result

    async def _cancel_when_lost(self, running: asyncio.Task[Any]) -> bool:
        """Cancel an activity as soon as the grant is lost; tell whether that was done.

        Not while a history is replayed that was written before this was done: there the activity went on.
        """
        await workflow.wait_condition(lambda: self._state == "lost")
        return workflow.patched("millpond-loss-cancels-activity") and running.cancel()

    # --- giving it back ----------------------------------------------------------------------------------------

    async def release(self) -> None:
        """Give it back. Doing so again does nothing; one that was lost meanwhile raises `LeaseLost`."""
        if self._state in ("over", "detached"):
            return
        if self._state == "lost":
            raise self._loss()
        self.check()
        own = _own_grants()
        reply, cancelled = await own.send(self._pool, commands.Release(own.session, self._token))
        own.forget(self)
        if self._state == HELD:
            self._state, self._how = "over", "released"
            if reply is not None and reply.kind == "stale":
                self._state, self._how = "lost", reply.detail
        if cancelled is not None:
            raise cancelled
        if self._state == "lost":
            raise self._loss()

    async def renew(self) -> None:
        """Renew a lease for its whole length from now."""
        self.check()
        own = _own_grants()
        reply, cancelled = await own.send(self._pool, commands.Renew(own.session, self._token))
        if reply is not None and reply.kind != HELD and self._state == HELD:
            self._lose(reply.detail or reply.kind)
        if cancelled is not None:
            raise cancelled
        self.check()

    def detach(self) -> Detached:
        """Keep it through continue-as-new: the end of the block does not release it, the next run takes it up.

        Give what this returns to the next run, and there `acquire(pool, reattach=...)`.
        """
        self.check()
        self._state = "detached"
        return Detached(self._pool, self._id, self._token, _own_grants().session)

    async def __aenter__(self) -> WorkflowGrant:
        if self._state == "new":
            await self._obtain()
        self.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:
            return  # the workflow is thrown away (terminated, or evicted): the pool hears of its end from the server
        try:
            await self.release()
        except LeaseLost as loss:
            if error is None:
                raise
            add_note(error, str(loss))

    def __await__(self) -> Generator[Any, None, WorkflowGrant]:
        if self._state == "new":
            yield from self._obtain().__await__()
        return self

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self._shares) or "nothing yet"
        return f"<WorkflowGrant {self._state}: {names} of {self._pool!r}, token {self._token}>"

    # --- getting it --------------------------------------------------------------------------------------------

    async def _obtain(self) -> None:
        own = _own_grants()
        if self._reattach is not None:
            await self._take_up(own, self._reattach)
            return
        assert self._wants is not None
        self._id = f"#{workflow.uuid4().hex}"
        self._state = WAITING
        own.expect(self)
        info = workflow.info()
        holder = Holder("workflow", info.workflow_id, info.run_id)
        command = Acquire(self._id, own.session, 0, holder, self._wants, sure=True, **self._options)
        try:
            await self._ask(own, command)
        except GeneratorExit:  # the workflow is thrown away, see __aexit__
            raise
        except BaseException:
            if self._state != "over":
                await self._give_up(own)
            raise

    async def _ask(self, own: _OwnGrants, command: Acquire) -> None:
        """Ask, and wait for the notice; now and then make sure that the pool still knows."""
        deadline = None if self._limit is None else workflow.time() + self._limit
        look = FIRST_LOOK
        while True:
            until = None if deadline is None else deadline + PATIENCE
            reply, cancelled = await own.send(self._pool, command, self._grace, until)
            if cancelled is not None:
                raise cancelled
            if reply is None:
                raise AcquireTimeout(f"pool {self._pool!r} did not answer in time: is a worker there that hosts it?")
            if self._state == WAITING:  # else a notice was quicker
                if reply.kind == HELD:
                    self.granted(reply.token, reply.shares)
                elif reply.kind != WAITING:
                    self._end(own, reply.kind)
                    raise self._asked().refused(reply.kind, reply.detail, LOOK)
            left = None if deadline is None else max(0.001, deadline - workflow.time())
            try:
                if self._state == WAITING:
                    patience = look if left is None else min(look, left)
                    await workflow.wait_condition(lambda: self._state != WAITING, timeout=patience)
            except TimeoutError:
                if deadline is not None and workflow.time() >= deadline:
                    raise self._asked().timed_out(LOOK) from None
                look = min(2 * look, LAST_LOOK)
                continue
            if self._state == HELD:
                return
            raise self._asked().refused("ended", self._how, LOOK)

    async def _give_up(self, own: _OwnGrants) -> None:
        """Take the request back, wherever it stands; a pool that does not answer is told later."""
        self._end(own, self._how or "withdrawn")
        until = workflow.time() + PATIENCE
        _, cancelled = await own.send(self._pool, commands.Withdraw(own.session, self._id), until=until)
        if cancelled is not None:
            raise cancelled

    def _end(self, own: _OwnGrants, how: str) -> None:
        self._state, self._how = "over", how
        own.forget(self)

    async def _take_up(self, own: _OwnGrants, detached: Detached) -> None:
        """Go on with what an earlier run of this chain held."""
        if detached.pool != self._pool:
            raise LeaseLost(f"grant {detached.token} is of pool {detached.pool!r}, not of {self._pool!r}")
        if detached.session != own.session:
            raise LeaseLost(
                f"grant {detached.token} of pool {self._pool!r} belongs to {detached.session[2:]}, not here"
            )
        self._id = detached.request_id
        self._state = WAITING
        own.expect(self)
        reply, cancelled = await own.send(self._pool, commands.Renew(own.session, detached.token))
        if self._state == WAITING and reply is not None:
            if reply.kind == HELD and reply.id == self._id:
                self.granted(detached.token, reply.shares)
            else:
                self._lose(reply.detail or reply.kind)
        if cancelled is not None:
            await self._give_up(own)
            raise cancelled
        if self._state != HELD:
            raise LeaseLost(f"grant {detached.token} of pool {self._pool!r} was lost meanwhile: {self._how}")

    def granted(self, token: int, shares: tuple[tuple[str, int], ...]) -> None:
        """Mark it as held."""
        self._token, self._shares, self._state = token, shares, HELD

    def ended(self, token: int, detail: str) -> None:
        """Handle a notice that says that it is over."""
        if self._state == WAITING or (self._state == HELD and token in (0, self._token)):
            self._lose(detail)

    def _lose(self, how: str) -> None:
        self._state, self._how = "lost", how
        _own_grants().forget(self)

    # --- words -------------------------------------------------------------------------------------------------

    def _held(self) -> tuple[tuple[str, int], ...]:
        if not self._shares:
            raise RuntimeError("nothing is held yet: await the grant, or use it in an async with block")
        return self._shares

    def _name(self) -> str:
        return grant_name(self._token, self._shares, self._pool)

    def _loss(self) -> LeaseLost:
        return lost(self._name(), self._how)

    def _asked(self) -> Asked:
        return Asked(self._pool, self._id, self._wants or (), self._limit)


class _OwnGrants:
    """All that one run of a workflow asks for and holds; it is the handler of the pools' notices."""

    def __init__(self) -> None:
        info = workflow.info()
        self._chain = info.first_execution_run_id
        self.session = _sessions.of_workflow(info.workflow_id, self._chain)
        self._is_later_run = info.run_id != self._chain
        self._grants: dict[str, WorkflowGrant] = {}  # also those that are detached

    def expect(self, grant: WorkflowGrant) -> None:
        """Bring notices about a request to its grant."""
        self._grants[grant.request_id] = grant

    def forget(self, grant: WorkflowGrant) -> None:
        """Bring no more of them."""
        self._grants.pop(grant.request_id, None)

    def hear(self, content: RawValue = NOTHING) -> None:
        """Read a notice; one for another chain, or about a request that is not known, is ignored."""
        try:
            notice = _messages.read(content.payload.data, _messages.Notice)
        except ValueError as error:
            workflow.logger.warning("a signal was not understood: %s", error)
            return
        if notice.chain != self._chain:
            return
        grant = self._grants.get(notice.request)
        if grant is None:
            return
        if notice.kind == "granted":
            if grant.is_waiting:  # else it is known: a pool that moves on may write twice
                grant.granted(notice.token, notice.shares)
        else:
            grant.ended(notice.token, notice.detail)

    async def send(
        self, pool: str, command: Command, grace: int = 0, until: float | None = None
    ) -> tuple[Reply | None, asyncio.CancelledError | None]:
        """Send a command to be carried out; return a cancellation that came meanwhile with the answer.

        There is no answer (None) when it takes longer than `until`, or much longer than a cancellation: a request is
        then taken back, if it still can be, and all else goes on by itself.
        """
        order = Order(pool, command, grace)
        if self._is_later_run and isinstance(command, Acquire):
            order = Order(pool, command, grace, workflow.time_ns() // 1000, tuple(self._grants))
        carried = _carry(order)
        cancelled: asyncio.CancelledError | None = None
        while not carried.done():
            left = None if until is None else until - workflow.time()
            if left is not None and left <= 0:
                if isinstance(command, Acquire):
                    carried.cancel()
                return None, cancelled
            try:
                await workflow.wait([carried], timeout=left)
            except asyncio.CancelledError as error:
                cancelled = error
                until = workflow.time() + PATIENCE
        return _answer(pool, carried), cancelled


def _is_cancellation(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError) or isinstance(error.__cause__, CancelledError)


def _carry(order: Order) -> workflow.ActivityHandle[RawValue]:
    try:
        return workflow.start_local_activity(
            _messages.COMMAND,
            order.write(),
            result_type=RawValue,
            start_to_close_timeout=timedelta(seconds=40),
            retry_policy=_RETRY,
            local_retry_threshold=timedelta(milliseconds=200),  # between attempts the workflow hears of all else
            summary=f"{type(order.command).__name__} in pool {order.pool}",
        )
    except ValueError as error:
        if "not registered" in str(error):
            raise _no_plugin() from error
        raise


def _answer(pool: str, carried: asyncio.Task[RawValue]) -> Reply:
    try:
        return msgspec.json.decode(carried.result().payload.data, type=Reply)
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type == "NotFoundError":
            raise _no_plugin() from error
        raise EngineError(f"pool {pool!r} could not be asked: {cause or error}") from error


def _no_plugin() -> ApplicationError:
    return ApplicationError(
        "this worker cannot speak with resource pools: give it plugins=[millpond.resources.temporal.Plugin()]",
        type="PluginMissing",
        non_retryable=True,
    )


def _own_grants() -> _OwnGrants:
    """Return the grants of this run: the handler of the pools' signal knows them, so nothing global does."""
    if not workflow.in_workflow():
        raise RuntimeError(
            "this is not a workflow: use ResourcePool(name, 'temporal://...') in programs and activities"
        )
    handler = workflow.get_signal_handler(_messages.NOTICE)
    own = getattr(handler, "__self__", None)
    if isinstance(own, _OwnGrants):
        return own
    own = _OwnGrants()
    workflow.set_signal_handler(_messages.NOTICE, own.hear)
    return own

"""A pool as a long-lived workflow: it takes batches by update, writes to workflows by signal, and never blocks.

It decides nothing itself (`_hosted_pool` does) and waits for nothing in a handler. What it sees to:

- *only batches decide*: a signal waits in the inbox, a timer only tells that it is time, and both have a host send an
  empty batch (`_knock`). Of all but batches the SDK may tell another time, and another order, when they are replayed:
  docs/decisions/0032 has the cases;
- *time*: one timer for whatever ends first; it is never moved back, so a busy pool does not fill its history with them;
- *notices* go out side by side; each stays in the state until the server has taken it, also over continue-as-new;
- *continue-as-new* comes by its own count, long before the limits of the server, whether or not it is busy. From the
  decision on no notice is written any more, and when the last one has arrived no batch is taken any more (their senders
  try again): so none is answered in the task that moves on;
- *bad input* of any shape is refused and remembered, and harms nobody;
- *its end*: it ends when it is dropped. When an operator cancels it, it ends if nobody holds or waits, and leaves its
  resources to the next run. While it is in use it refuses, since nobody would look after those who hold and wait;
- *what comes after an end that it did not choose* (terminated, timed out): the next run takes over everything from the
  closed one, or, if that cannot be read, lends nothing before an operator says that it may.

A run is replayed by whatever version of this code a worker has, so whatever changes the commands that it gives (also
the numbers below) goes behind `workflow.patched`; what the rules decide has numbers of its own (`_hosted_pool.RULES`).
The histories in tests/replay show whether that was forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError

from millpond.resources._arguments import NAME
from millpond.resources._rules import commands
from millpond.resources._rules.placement import POLICIES
from millpond.resources._rules.records import HELD, QUARANTINED, Holder, Request
from millpond.resources.engines.temporal import _hosted_pool, _messages, _queries, _sessions
from millpond.resources.engines.temporal._hosted_pool import HostedPool
from millpond.resources.engines.temporal._orders import raw
from millpond.resources.engines.temporal._runner import insist_on_order
from millpond.resources.engines.temporal._url import PREFIX

UPDATES: Final = 300
"""Batches of one run. The server allows 2,000, but each makes the next one slower: it remembers them all."""
LAST_UPDATES: Final = 1_000
"""Batches after which it does not wait for notices any more."""
SIGNALS: Final = 7_000
"""Signals of one run; the server allows 10,000."""
BYTES: Final = 3_000_000
EVENTS: Final = 10_000
DAY: Final = 86_400_000_000
DELIVERY: Final = 2.0
"""Seconds for notices to arrive before it moves on; those that did not are written again."""
IN_FLIGHT: Final = 500
"""Notices under way; the server allows 2,000."""
ROWS: Final = 500
"""Waiters that a query shows unless it is asked for more: 20,000 would not fit into its answer."""
NOTHING: Final = raw(b"{}")


@workflow.defn(name=_messages.WORKFLOW, sandboxed=False)
class PoolWorkflow:
    """One resource pool."""

    @workflow.init
    def __init__(self, start: RawValue = NOTHING) -> None:
        info = workflow.info()
        self._name = info.workflow_id.removeprefix(PREFIX)
        self._rules = _newest_rules()
        self._hosted: HostedPool | None = None
        self._inbox: list[_messages.Leftover] = []
        self._undelivered: list[tuple[_messages.Notice, FailureError]] = []
        self._is_knocking = self._must_knock_again = False
        self._opening = _messages.Opening()
        self._sending: dict[int, _messages.Notice] = {}
        self._sent = 0
        self._updates = 0
        self._signals = 0
        self._alarms: list[int] = []  # each earlier than the one before
        self._strange: dict[str, int] = {}  # placement -> how often it was not known
        self._is_watched = False
        self._is_leaving = False
        self._is_closing = False
        self._is_dropped = False
        self._began = _now()
        self._detailed = 0.0
        self._stay_until = 0
        self._problem = ""
        data = start.payload.data
        try:
            if start.payload.metadata.get("encoding") == b"binary/plain":
                self._begin(_messages.thaw(data, _messages.CarriedState))
                return
            if data not in (b"", b"null"):
                self._opening = _messages.read(data, _messages.Opening)
        except ValueError as error:
            self._problem = f"the pool's input is not understood: {error}"
            return
        if self._opening.previous == "":
            self._begin(None)

    def _begin(self, carried: _messages.CarriedState | None) -> None:
        opening = self._opening
        hosted = HostedPool(self._name, workflow.info().run_id, carried, self._rules, self._knows, opening.limit)
        if strange := hosted.placements() - POLICIES.keys():
            raise RuntimeError(f"this worker does not know the placements {strange}: give them to pool_worker()")
        self._hosted = hosted
        hosted.tick(self._began)
        self._inbox = [*(carried.signals if carried else []), *self._inbox]
        for name in opening.resources:
            hosted.apply(commands.Add(name, {}, by="the pool's input"))
            if isinstance(opening.resources, dict) and opening.resources[name] is not None:
                why = "the pool's input says that it is held: uncordon it when it is surely free"
                hosted.apply(commands.Mark(name, QUARANTINED, "the pool's input", why))
        for one in opening.waiters:
            self._try("the pool's input", PoolWorkflow._acquire, hosted, [msgspec.json.encode(one)])

    def _knows(self, placement: str) -> bool:
        """Return whether a placement can be used; a replay, maybe on a worker that knows more, comes to the same."""
        if placement in _hosted_pool.BUILT_IN:
            return True
        times = self._strange.get(placement, 0)
        if placement in POLICIES and workflow.patched(f"millpond-placement-{placement}-{times}"):
            return True
        self._strange[placement] = times + 1
        return False

    @workflow.run
    async def run(self, start: RawValue = NOTHING) -> str:
        """Live until it is dropped."""
        insist_on_order()
        if self._problem:
            raise ApplicationError(self._problem, non_retryable=True)
        living = asyncio.create_task(self._live())
        while True:
            try:
                return await asyncio.shield(living)
            except asyncio.CancelledError:
                if self._hosted is not None and not self._hosted.is_in_use():
                    raise
                self._refuse("(cancel)", "the pool is in use: drop it, or release what is held and cancel what waits")

    async def _live(self) -> str:
        if "millpond" not in workflow.memo():
            workflow.upsert_memo({"millpond": f"resource pool {self._name}"})
        if self._hosted is None:
            await self._take_over()
        self._settle()
        if self._inbox:
            self._knock()
        while True:
            await workflow.wait_condition(lambda: self._is_leaving)
            if self._sending:
                with contextlib.suppress(TimeoutError):
                    await workflow.wait_condition(self._can_close, timeout=DELIVERY)
            self._is_closing = True
            await workflow.sleep(0.001)  # on to a task in which no batch is answered
            if self._is_dropped:
                return "dropped"
            self._move_on()

    def _can_close(self) -> bool:
        return not self._sending or self._updates >= LAST_UPDATES or self._is_dropped

    # --- what comes in -----------------------------------------------------------------------------------------

    @workflow.update(name=_messages.APPLY)
    def apply(self, batch: RawValue) -> RawValue:
        """Run a batch of commands: `{"lane": ..., "number": ..., "commands": [...]}`."""
        hosted = self._ready()
        self._updates += 1
        self._must_knock_again = False
        hosted.tick(_now())
        self._do_what_waits(hosted)
        try:
            wanted, beyond = _messages.read_batch(batch.payload.data)
            answer = hosted.take(wanted, _now(), beyond)
        except ValueError as error:
            raise ApplicationError(f"not a batch: {error}", type=_messages.BAD_REQUEST, non_retryable=True) from error
        finally:
            self._is_leaving = self._is_leaving or self._should_move_on()
            self._settle()
        written = _messages.write(answer)
        if len(written) > hosted.limit // 2:  # whoever is behind asks for news
            written = _messages.write(msgspec.structs.replace(answer, base=answer.version, entries=[]))
        return raw(written)

    @apply.validator
    def may_apply(self, batch: RawValue) -> None:
        """Send batches away while the pool moves on: they come again."""
        self._ready()

    @workflow.update
    def drop(self) -> None:
        """Forget everything: a pool that starts under this name later is another one."""
        self._ready()
        self._is_dropped = self._is_closing = self._is_leaving = True

    @workflow.signal(dynamic=True)
    def hear(self, name: str, args: Sequence[RawValue]) -> None:
        """Take any signal, in any shape."""
        self._signals += 1
        self._inbox.append(_messages.Leftover(name, args[0].payload.data if args else b"", len(args)))
        self._knock()

    def _do_what_waits(self, hosted: HostedPool) -> None:
        """Do what signals ask for, and what follows from notices that could not be delivered."""
        undelivered, self._undelivered = self._undelivered, []
        for notice, error in undelivered:
            self._undeliverable(hosted, notice, error)
        inbox, self._inbox = self._inbox, []
        for one in inbox:
            self._try(one.name, _SIGNALS.get(one.name, PoolWorkflow._unknown), hosted, [one.data] * one.args)

    def _try(self, name: str, handler: _Handler, hosted: HostedPool, args: list[bytes]) -> None:
        try:
            handler(self, hosted, args)
        except Exception as error:
            self._refuse(name, str(error) or type(error).__name__)

    def _release(self, hosted: HostedPool, args: list[bytes]) -> None:
        """Release by key, or by resource and holder, as the texts of Temporal's samples say."""
        wanted = msgspec.json.decode(_only(args), type=_ReleaseSignal)
        state = hosted.replica.state
        if wanted.release_key is not None:
            token = int(wanted.release_key)
        elif wanted.resource and wanted.workflow_id:
            token = _held_by(hosted, wanted.resource, wanted.workflow_id, wanted.run_id).token
        else:
            raise ValueError('give {"release_key": "..."}, or {"resource", "workflow_id", "run_id"} of the holder')
        request = state.requests.get(state.index.tokens.get(token, ""))
        is_own = request is not None and request.session[:2] in ("s:", "l:")  # nobody else can release for them
        by, reason = ("", "") if is_own else ("signal", wanted.reason or "release_resource")
        reply = hosted.apply(
            commands.Release(request.session if is_own and request else "", token, wanted.resource, by, reason)
        )
        if reply.kind != "released":
            raise ValueError(f"{token} holds nothing: {reply.detail}")

    def _acquire(self, hosted: HostedPool, args: list[bytes]) -> None:
        """Ask for any resource in the words of Temporal's samples; the answer is an `assign_resource` signal."""
        wanted = msgspec.json.decode(_only(args), type=_AcquireSignal)
        session = _sessions.of_workflow(wanted.workflow_id, wanted.run_id, "l" if wanted.run_id else "s")
        request = f"#{workflow.uuid4()}"
        command = _queries.sample_request(request, session, wanted.workflow_id, wanted.run_id)
        reply = hosted.apply(command)
        if reply.kind == HELD:  # at once, and it is told by notice all the same
            hosted.notices.append(
                _messages.Notice(
                    self._name, wanted.run_id, "granted", request, reply.token, reply.shares, session=session
                )
            )
        elif reply.kind != "waiting":
            raise ValueError(reply.detail or reply.kind)

    def _hand_off(self, hosted: HostedPool, args: list[bytes]) -> None:
        """Hand what the last run of a workflow holds to the next one, in the words of the locking sample."""
        wanted = msgspec.json.decode(_only(args), type=_HandOffSignal)
        request = _held_by(hosted, wanted.resource, wanted.workflow_id, wanted.old_run_id)
        if not request.session.startswith("l:"):
            raise ValueError(f"{wanted.workflow_id} does not speak as the locking sample does")
        session = _sessions.of_workflow(wanted.workflow_id, wanted.new_run_id, "l")
        holder = Holder("workflow", wanted.workflow_id, wanted.new_run_id)
        hosted.apply(commands.Pass(request.session, request.token))
        hosted.apply(commands.Adopt(session, request.token, holder, "transferred"))

    def _add(self, hosted: HostedPool, args: list[bytes]) -> None:
        """Add resources: a list of names."""
        for name in msgspec.json.decode(_only(args), type=list[_Name]):
            reply = hosted.apply(commands.Add(name, {}, by="signal"))
            if reply.kind == "refused":
                raise ValueError(reply.detail)

    def _unknown(self, hosted: HostedPool, args: list[bytes]) -> None:
        raise ValueError(f"no such signal; there are {', '.join(_SIGNALS)}")

    def _refuse(self, name: str, why: str) -> None:
        """Say no in the history, where whoever sent it looks."""
        if self._hosted is not None:
            self._hosted.refuse(name, why, self._hosted.now)
        workflow.logger.warning("a signal was refused", extra={"signal": name, "why": why})
        workflow.upsert_memo({"millpond_refused": f"{name[:100]}: {why}"[:500]})

    # --- what is asked -----------------------------------------------------------------------------------------

    @workflow.query(name=_messages.NEWS)
    def news(self, since: RawValue) -> RawValue:
        """Return what a reader does not know yet."""
        news = self._ready(moving=False).news(_messages.read(since.payload.data, _messages.Since))
        events = workflow.info().get_current_history_length()
        return raw(_messages.write(msgspec.structs.replace(news, events=events)))

    @workflow.query(name=_messages.CARRIED_STATE)
    def carried_state(self) -> RawValue:
        """Return all there is, for the pool that comes after this one."""
        return raw(_messages.freeze(self._estate()))

    @workflow.query(name=_messages.CHAINS)
    def chains(self) -> list[str]:
        """Return the workflows whose end must be noticed."""
        return self._ready(moving=False).chains()

    @workflow.query
    def get_current_holders(self) -> dict[str, Any]:
        """Return who holds what."""
        return _queries.holders(self._ready(moving=False).replica, _wall_clock())

    @workflow.query
    def get_waiters(self, first: int = ROWS) -> list[dict[str, Any]]:
        """Return who waits, in the order of service: the first ones."""
        return _queries.waiters(self._ready(moving=False).replica, _wall_clock(), first)

    @workflow.query
    def get_refusals(self) -> list[dict[str, Any]]:
        """Return the last signals that were refused, and why."""
        hosted = self._ready(moving=False)
        return [{"at": one.at / 1e6, "signal": one.signal, "why": one.why} for one in hosted.refusals]

    # --- what goes on ------------------------------------------------------------------------------------------

    def _ready(self, *, moving: bool = True) -> HostedPool:
        if self._hosted is None or (moving and self._is_closing):
            raise ApplicationError("the pool is moving on: send it again", type=_messages.MOVING, non_retryable=True)
        return self._hosted

    async def _take_over(self) -> None:
        """Take over what a closed run of this pool left."""
        info = workflow.info()
        found: RawValue = await workflow.execute_activity(
            _messages.RECOVER,
            args=[info.workflow_id, info.run_id, self._opening.previous],
            result_type=RawValue,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
            ),
        )
        left = _messages.thaw(found.payload.data, _messages.Recovered)
        self._opening.limit = self._opening.limit or left.limit
        self._inbox = [*left.leftovers, *self._inbox]
        self._begin(left.carried)
        assert self._hosted is not None
        if left.quarantine:
            self._hosted.quarantine(left.quarantine)

    def _settle(self) -> None:
        """See to all that a change may call for."""
        hosted = self._hosted
        if hosted is None or self._is_leaving:
            return
        self._post(hosted)
        self._set_alarm(hosted)
        if not self._is_watched and hosted.has_workflows():
            self._is_watched = True
            asyncio.create_task(self._watch())  # noqa: RUF006  (the workflow's loop keeps its tasks)
        self._show(hosted)

    def _should_move_on(self) -> bool:
        info = workflow.info()
        return info.get_current_history_length() >= self._stay_until and (
            self._updates >= UPDATES
            or self._signals >= SIGNALS
            or info.is_continue_as_new_suggested()
            or info.get_current_history_size() > BYTES
            or info.get_current_history_length() > EVENTS
            or _now() - self._began > DAY
        )

    def _set_alarm(self, hosted: HostedPool) -> None:
        due = hosted.due()
        if due is not None and not (self._alarms and self._alarms[-1] <= due):
            self._alarms.append(due)
            asyncio.create_task(self._wake(due))  # noqa: RUF006

    async def _wake(self, due: int) -> None:
        left = due - _now()
        await workflow.sleep(left / 1e6 if left > 0 else 1.0)  # what is not over by now has a reason: no hurry
        self._alarms.remove(due)
        self._knock()

    def _knock(self) -> None:
        """Have a host send a batch, in which all is done that waits, or is due."""
        if self._is_knocking:
            self._must_knock_again = True
        elif self._hosted is not None and not self._is_closing:
            self._is_knocking = True
            asyncio.create_task(self._have_a_batch_sent())  # noqa: RUF006

    async def _have_a_batch_sent(self) -> None:
        try:
            await workflow.execute_activity(
                _messages.KNOCK,
                workflow.info().workflow_id,
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=5)
                ),
            )
        except FailureError as error:
            workflow.logger.warning("no batch could be sent: %s", error)
            self._must_knock_again = True
        self._is_knocking = False
        if self._must_knock_again:
            self._must_knock_again = False
            self._knock()

    def _post(self, hosted: HostedPool) -> None:
        while hosted.notices and len(self._sending) < IN_FLIGHT:
            notice = hosted.notices.pop(0)
            self._sent += 1
            self._sending[self._sent] = notice
            asyncio.create_task(self._deliver(self._sent, notice))  # noqa: RUF006

    async def _deliver(self, number: int, notice: _messages.Notice) -> None:
        workflow_id, _ = _sessions.workflow_of(notice.session)
        signal, content = self._address(notice)
        error: FailureError | None = None
        try:
            if signal:
                await workflow.get_external_workflow_handle(workflow_id).signal(signal, content)
        except FailureError as failure:
            error = failure
        del self._sending[number]
        if error is not None and notice.kind == "granted":
            self._undelivered.append((notice, error))
        if self._undelivered or (self._hosted is not None and self._hosted.notices):
            self._knock()

    def _undeliverable(self, hosted: HostedPool, notice: _messages.Notice, error: FailureError) -> None:
        """Give to others what its workflow cannot be told of."""
        if isinstance(error, ApplicationError) and error.type == "ExternalWorkflowExecutionNotFound":
            hosted.died(notice.session, hosted.now, "its workflow is closed")
            return
        request = hosted.replica.state.requests.get(notice.request)
        if request is not None and request.token == notice.token and request.session == notice.session:
            hosted.refuse("(grant)", f"{notice.session} could not be told: {error}", hosted.now)
            hosted.apply(commands.Release(notice.session, notice.token))

    def _address(self, notice: _messages.Notice) -> tuple[str, RawValue]:
        """Return the signal and its content, in the words that the receiver understands; "" when it has none."""
        kind = notice.session[:2]
        if kind == "w:":
            return _messages.NOTICE, raw(_messages.write(msgspec.structs.replace(notice, session="")))
        if notice.kind != "granted":
            return "", raw(b"{}")
        resource = notice.shares[0][0]
        if kind == "l:":
            return "assign_resource", raw(msgspec.json.encode({"resource": resource}))
        content = {"release_key": str(notice.token), "resource": resource}
        return f"assign_resource_{workflow.info().workflow_id}", raw(msgspec.json.encode(content))

    async def _watch(self) -> None:
        """Watch over workflows for as long as any holds or waits."""
        try:
            await workflow.execute_activity(
                _messages.WATCH,
                workflow.info().workflow_id,
                start_to_close_timeout=timedelta(days=2),
                heartbeat_timeout=timedelta(seconds=5),
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10)
                ),
            )
        except FailureError as error:
            workflow.logger.warning("the watch over workflows ended: %s", error)
        self._is_watched = False
        if self._hosted is not None and self._hosted.has_workflows():
            self._knock()

    def _show(self, hosted: HostedPool) -> None:
        """Show in Temporal's UI who holds what."""
        if workflow.time() - self._detailed >= 1.0:
            self._detailed = workflow.time()
            workflow.set_current_details(_queries.details(hosted.replica))

    def _estate(self) -> _messages.CarriedState:
        carried = self._ready(moving=False).carried_state()
        undelivered = [notice for notice, _ in self._undelivered]  # the next run finds that out, too
        carried.notices = [*self._sending.values(), *undelivered, *carried.notices]
        carried.signals = self._inbox
        return carried

    def _move_on(self) -> None:
        """Go on in a new run, with everything."""
        assert self._hosted is not None
        self._do_what_waits(self._hosted)
        size = self._hosted.limit * 975 // 1000
        data = _messages.freeze_to_fit(self._estate(), size)
        if len(data) > size:  # better a long history than a pool that stands still
            workflow.logger.error("the pool is too large to continue as new: %d bytes", len(data))
            self._updates = self._signals = 0
            self._stay_until = workflow.info().get_current_history_length() + 1000
            self._is_closing = self._is_leaving = False
            self._settle()
            self._knock()
            return
        workflow.continue_as_new(raw(data))


class _ReleaseSignal(msgspec.Struct):
    release_key: str | int | None = None
    resource: str = ""
    workflow_id: str = ""
    run_id: str = ""
    reason: str = ""


_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME)]
"""What names somebody: a notice to a workflow without an id could never be sent, and would be tried for ever."""


class _AcquireSignal(msgspec.Struct):
    workflow_id: _Name
    run_id: Annotated[str, msgspec.Meta(max_length=NAME)] = ""


class _HandOffSignal(msgspec.Struct):
    resource: _Name
    workflow_id: _Name
    old_run_id: str
    new_run_id: _Name


_Handler: TypeAlias = Callable[[PoolWorkflow, HostedPool, list[bytes]], None]
_SIGNALS: Final[dict[str, _Handler]] = {
    "release_resource": PoolWorkflow._release,
    "acquire_resource": PoolWorkflow._acquire,
    "handoff_resource": PoolWorkflow._hand_off,
    "add_resources": PoolWorkflow._add,
}


def _held_by(hosted: HostedPool, resource: str, workflow_id: str, run_id: str) -> Request:
    for one in hosted.replica.state.requests.values():
        is_held = one.state == HELD and any(name == resource for name, _ in one.shares)
        runs = ("", one.holder.host, _sessions.workflow_of(one.session)[1])
        if is_held and one.holder.id == workflow_id and run_id in runs:
            return one
    raise ValueError(f"{workflow_id} {run_id} does not hold {resource!r}")


def _only(args: list[bytes]) -> bytes:
    if len(args) != 1:
        raise ValueError(f"it takes one argument, not {len(args)}")
    return args[0]


def _now() -> int:
    return workflow.time_ns() // 1000


def _wall_clock() -> int:
    """Return the time for answers to queries, which change nothing: a quiet pool's own clock stands still."""
    return max(_now(), time.time_ns() // 1000)


def _newest_rules() -> int:
    """Return the newest rules that this run may follow: a run that began with older ones goes on with them."""
    for number in sorted(_hosted_pool.RULES, reverse=True):
        if number == 1 or workflow.patched(f"millpond-rules-{number}"):
            return number
    raise AssertionError("there are always rules 1")

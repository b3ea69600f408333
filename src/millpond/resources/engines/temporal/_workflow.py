"""A pool as a long-lived workflow: it takes batches by update, writes to workflows by signal, and never blocks.

It decides nothing itself (`_keeper` does) and waits for nothing in a handler. What it sees to:

- *time*: one timer for whatever ends first; it is never moved back, so a busy pool does not fill its history with them;
- *letters* go out side by side; each stays in the state until the server has taken it, also over continue-as-new;
- *continue-as-new* comes by its own count, long before the limits of the server, whether or not it is busy. From the
  decision on no batch is taken any more (their senders try again), so none is answered in the task that moves on;
- *bad input* of any shape is refused and remembered, and harms nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError, FailureError

from millpond.resources import _commands as do
from millpond.resources._records import HELD
from millpond.resources.engines.temporal import _keeper, _people, _sessions
from millpond.resources.engines.temporal import _messages as say
from millpond.resources.engines.temporal._keeper import Keeper
from millpond.resources.engines.temporal._orders import raw
from millpond.resources.engines.temporal._url import PREFIX

UPDATES: Final = 1_500
"""Batches of one run; the server allows 2,000."""
SIGNALS: Final = 7_000
"""Signals of one run; the server allows 10,000."""
BYTES: Final = 3_000_000
EVENTS: Final = 10_000
DAY: Final = 86_400.0
PAYLOAD: Final = 1_950_000
"""Bytes that one payload may have, a little less than the server's limit."""
IN_FLIGHT: Final = 500
"""Letters under way; the server allows 2,000."""
NOTHING: Final = raw(b"null")


@workflow.defn(name=say.WORKFLOW, sandboxed=False)
class PoolWorkflow:
    """One resource pool."""

    @workflow.init
    def __init__(self, start: RawValue = NOTHING) -> None:
        info = workflow.info()
        self._name = info.workflow_id.removeprefix(PREFIX)
        self._rules = _newest_rules()
        self._keeper: Keeper | None = None
        self._early: list[tuple[str, Sequence[RawValue]]] = []
        self._opening = say.Opening()
        self._sending: dict[int, say.Letter] = {}
        self._sent = 0
        self._updates = 0
        self._signals = 0
        self._alarm: int | None = None
        self._is_watched = False
        self._is_closing = False
        self._is_dropped = False
        self._began = workflow.time()
        self._detailed = 0.0
        self._stay_until = 0
        data = start.payload.data
        if start.payload.metadata.get("encoding") == b"binary/plain":
            self._begin(say.thaw(data))
            return
        try:
            self._opening = say.read(data, say.Opening) if data != b"null" else self._opening
        except (msgspec.DecodeError, ValueError) as error:
            raise ApplicationError(f"the pool's input is not understood: {error}", non_retryable=True) from error
        if self._opening.previous == "":
            self._begin(None)

    def _begin(self, estate: say.Estate | None) -> None:
        self._keeper = Keeper(self._name, workflow.info().run_id, estate, self._rules)
        self._keeper.tick(_now())
        for name in self._opening.resources:
            self._keeper.apply(do.Add(name, {}, by="the pool's input"))

    @workflow.run
    async def run(self, start: RawValue = NOTHING) -> str:
        """Live until it is dropped."""
        if "millpond" not in workflow.memo():
            workflow.upsert_memo({"millpond": f"resource pool {self._name}"})
        if self._keeper is None:
            await self._inherit()
        self._settle()
        while True:
            await workflow.wait_condition(lambda: self._is_closing)
            await workflow.sleep(0.001)  # on to a task in which no batch is answered
            if self._is_dropped:
                return "dropped"
            self._move_on()

    # --- what comes in -----------------------------------------------------------------------------------------

    @workflow.update(name=say.APPLY)
    def apply(self, batch: RawValue) -> RawValue:
        """Run a batch of commands: `{"lane": ..., "number": ..., "commands": [...]}`."""
        keeper = self._ready()
        self._updates += 1
        try:
            answer = keeper.take(say.read(batch.payload.data, say.Batch), _now())
        except (msgspec.DecodeError, ValueError) as error:
            raise ApplicationError(f"not a batch: {error}", type=say.BAD_REQUEST, non_retryable=True) from error
        written = raw(say.write(answer))
        self._settle()
        return written

    @apply.validator
    def may_apply(self, batch: RawValue) -> None:
        """Send batches away while the pool moves on: they come again."""
        self._ready()

    @workflow.update
    def drop(self) -> None:
        """Forget everything: a pool that starts under this name later is another one."""
        self._ready()
        self._is_dropped = self._is_closing = True

    @workflow.signal(dynamic=True)
    def hear(self, name: str, args: Sequence[RawValue]) -> None:
        """Take any signal, in any shape."""
        self._signals += 1
        if self._keeper is None:
            self._early.append((name, args))
            return
        self._keeper.tick(_now())
        try:
            _SIGNALS.get(name, PoolWorkflow._unknown)(self, self._keeper, [one.payload.data for one in args])
        except (msgspec.DecodeError, ValueError) as error:
            self._refuse(name, str(error))
        self._settle()

    def _release(self, keeper: Keeper, args: list[bytes]) -> None:
        """Release by key, or by resource and holder, as the texts of Temporal's samples say."""
        wanted = msgspec.json.decode(_only(args), type=_ReleaseSignal)
        state = keeper.replica.state
        if wanted.release_key is not None:
            token = int(wanted.release_key)
        elif wanted.resource and wanted.workflow_id:
            runs = {wanted.run_id} - {""}
            token = next(
                (
                    one.token
                    for one in state.requests.values()
                    if one.state == HELD
                    and one.holder.id == wanted.workflow_id
                    and any(name == wanted.resource for name, _ in one.shares)
                    and (not runs or runs & {one.holder.host, _sessions.workflow_of(one.session)[1]})
                ),
                0,
            )
            if not token:
                raise ValueError(f"{wanted.workflow_id} {wanted.run_id} does not hold {wanted.resource!r}")
        else:
            raise ValueError('give {"release_key": "..."}, or {"resource", "workflow_id", "run_id"} of the holder')
        request = state.requests.get(state.tokens.get(token, ""))
        is_own = request is not None and request.session[:2] in ("s:", "l:")  # nobody else can release for them
        by, reason = ("", "") if is_own else ("signal", wanted.reason or "release_resource")
        reply = keeper.apply(
            do.Release(request.session if is_own and request else "", token, wanted.resource, by, reason)
        )
        if reply.kind != "released":
            raise ValueError(f"{token} holds nothing: {reply.detail}")

    def _acquire(self, keeper: Keeper, args: list[bytes]) -> None:
        """Ask for any resource in the words of Temporal's samples; the answer is an `assign_resource` signal."""
        wanted = msgspec.json.decode(_only(args), type=_AcquireSignal)
        session = _sessions.of_workflow(wanted.workflow_id, wanted.run_id, "l" if wanted.run_id else "s")
        request = f"#{workflow.uuid4()}"
        command = _people.sample_request(request, session, wanted.workflow_id, wanted.run_id)
        reply = keeper.apply(command)
        if reply.kind == HELD:  # at once, and it is told by letter all the same
            keeper.letters.append(
                say.Letter(self._name, wanted.run_id, "granted", request, reply.token, reply.shares, session=session)
            )
        elif reply.kind != "waiting":
            raise ValueError(reply.detail or reply.kind)

    def _add(self, keeper: Keeper, args: list[bytes]) -> None:
        """Add resources: a list of names."""
        for name in msgspec.json.decode(_only(args), type=list[str]):
            keeper.apply(do.Add(name, {}, by="signal"))

    def _unknown(self, keeper: Keeper, args: list[bytes]) -> None:
        raise ValueError(f"no such signal; there are {', '.join(_SIGNALS)}")

    def _refuse(self, name: str, why: str) -> None:
        """Say no in the history, where whoever sent it looks."""
        assert self._keeper is not None
        self._keeper.refuse(name, why, _now())
        workflow.logger.warning("a signal was refused", extra={"signal": name, "why": why})
        workflow.upsert_memo({"millpond_refused": f"{name}: {why}"[:500]})

    # --- what is asked -----------------------------------------------------------------------------------------

    @workflow.query(name=say.NEWS)
    def news(self, since: RawValue) -> RawValue:
        """Return what a reader does not know yet."""
        news = self._ready(moving=False).news(say.read(since.payload.data, say.Since))
        events = workflow.info().get_current_history_length()
        return raw(say.write(msgspec.structs.replace(news, events=events)))

    @workflow.query(name=say.ESTATE)
    def estate(self) -> RawValue:
        """Return all there is, for the pool that comes after this one."""
        return raw(say.freeze(self._estate()))

    @workflow.query(name=say.CHAINS)
    def chains(self) -> list[str]:
        """Return the workflows whose end must be noticed."""
        return self._ready(moving=False).chains()

    @workflow.query
    def get_current_holders(self) -> dict[str, Any]:
        """Return who holds what."""
        return _people.holders(self._ready(moving=False).replica, _now())

    @workflow.query
    def get_waiters(self) -> list[dict[str, Any]]:
        """Return who waits, in the order of service."""
        return _people.waiters(self._ready(moving=False).replica, _now())

    @workflow.query
    def get_refusals(self) -> list[dict[str, Any]]:
        """Return the last signals that were refused, and why."""
        keeper = self._ready(moving=False)
        return [{"at": one.at / 1e6, "signal": one.signal, "why": one.why} for one in keeper.refusals]

    # --- what goes on ------------------------------------------------------------------------------------------

    def _ready(self, *, moving: bool = True) -> Keeper:
        if self._keeper is None or (moving and self._is_closing):
            raise ApplicationError("the pool is moving on: send it again", type=say.MOVING, non_retryable=True)
        return self._keeper

    async def _inherit(self) -> None:
        """Take over what a closed run of this pool left."""
        info = workflow.info()
        found: RawValue = await workflow.execute_activity(
            say.INHERIT,
            args=[info.workflow_id, info.run_id, self._opening.previous],
            result_type=RawValue,
            start_to_close_timeout=timedelta(seconds=60),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
            ),
        )
        left = say.read(found.payload.data, say.Inheritance)
        self._begin(left.estate)
        assert self._keeper is not None
        if left.quarantine:
            self._keeper.quarantine(left.quarantine)
        early, self._early = self._early, []
        for one in left.leftovers:
            self.hear(one.name, [raw(one.data)])
        for name, args in early:
            self.hear(name, args)

    def _settle(self) -> None:
        """See to all that a change may call for."""
        keeper = self._keeper
        if keeper is None or self._is_closing:
            return
        if self._should_move_on():
            self._is_closing = True
            return
        self._post(keeper)
        self._set_alarm(keeper)
        if not self._is_watched and keeper.has_workflows():
            self._is_watched = True
            asyncio.create_task(self._watch())  # noqa: RUF006  (the workflow's loop keeps its tasks)
        self._show(keeper)

    def _should_move_on(self) -> bool:
        info = workflow.info()
        return info.get_current_history_length() >= self._stay_until and (
            self._updates >= UPDATES
            or self._signals >= SIGNALS
            or info.is_continue_as_new_suggested()
            or info.get_current_history_size() > BYTES
            or info.get_current_history_length() > EVENTS
            or workflow.time() - self._began > DAY
        )

    def _set_alarm(self, keeper: Keeper) -> None:
        due = keeper.due()
        if due is not None and (self._alarm is None or due < self._alarm):
            self._alarm = due
            asyncio.create_task(self._wake(due))  # noqa: RUF006

    async def _wake(self, due: int) -> None:
        await workflow.sleep(max(0.001, (due - _now()) / 1e6))
        if self._alarm == due:
            self._alarm = None
        if self._keeper is not None and not self._is_closing:
            self._keeper.tick(_now())
            self._settle()

    def _post(self, keeper: Keeper) -> None:
        while keeper.letters and len(self._sending) < IN_FLIGHT:
            letter = keeper.letters.pop(0)
            self._sent += 1
            self._sending[self._sent] = letter
            asyncio.create_task(self._deliver(self._sent, letter))  # noqa: RUF006

    async def _deliver(self, number: int, letter: say.Letter) -> None:
        workflow_id, _ = _sessions.workflow_of(letter.session)
        signal, content = self._address(letter)
        error: FailureError | None = None
        try:
            if signal:
                await workflow.get_external_workflow_handle(workflow_id).signal(signal, content)
        except FailureError as failure:
            error = failure
        del self._sending[number]
        keeper = self._keeper
        if keeper is None or self._is_closing:
            return
        if error is not None and letter.kind == "granted":
            self._undeliverable(keeper, letter, error)
        self._settle()

    def _undeliverable(self, keeper: Keeper, letter: say.Letter, error: FailureError) -> None:
        """Give to others what its workflow cannot be told of."""
        keeper.tick(_now())
        if isinstance(error, ApplicationError) and error.type == "ExternalWorkflowExecutionNotFound":
            keeper.died(letter.session, keeper.now, "its workflow is closed")
        request = keeper.replica.state.requests.get(letter.request)
        if request is not None and request.token == letter.token and request.session == letter.session:
            keeper.refuse("(grant)", f"{letter.session} could not be told: {error}", keeper.now)
            keeper.apply(do.Release(letter.session, letter.token))

    def _address(self, letter: say.Letter) -> tuple[str, RawValue]:
        """Return the signal and its content, in the words that the receiver understands; "" when it has none."""
        kind = letter.session[:2]
        if kind == "w:":
            return say.LETTER, raw(say.write(msgspec.structs.replace(letter, session="")))
        if letter.kind != "granted":
            return "", raw(b"{}")
        resource = letter.shares[0][0]
        if kind == "l:":
            return "assign_resource", raw(msgspec.json.encode({"resource": resource}))
        content = {"release_key": str(letter.token), "resource": resource}
        return f"assign_resource_{workflow.info().workflow_id}", raw(msgspec.json.encode(content))

    async def _watch(self) -> None:
        """Have an eye on workflows for as long as any holds or waits."""
        try:
            await workflow.execute_activity(
                say.WATCH,
                workflow.info().workflow_id,
                start_to_close_timeout=timedelta(days=2),
                heartbeat_timeout=timedelta(seconds=15),
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=10)
                ),
            )
        except FailureError as error:
            workflow.logger.warning("the watch over workflows ended: %s", error)
        self._is_watched = False
        if not self._is_closing:
            self._settle()

    def _show(self, keeper: Keeper) -> None:
        """Let Temporal's UI show who holds what."""
        if workflow.time() - self._detailed < 1.0 or workflow.unsafe.is_replaying():
            return
        self._detailed = workflow.time()
        workflow.set_current_details(_people.details(keeper.replica))

    def _estate(self) -> say.Estate:
        estate = self._ready(moving=False).estate()
        estate.letters = [*self._sending.values(), *estate.letters]
        return estate

    def _move_on(self) -> None:
        """Go on in a new run, with everything."""
        estate = self._estate()
        data = say.freeze(estate)
        for trim in _TRIMS:
            if len(data) <= PAYLOAD:
                break
            trim(estate)
            data = say.freeze(estate)
        if len(data) > PAYLOAD:  # better a long history than a pool that stands still
            workflow.logger.error("the pool is too large to continue as new: %d bytes", len(data))
            self._updates = self._signals = 0
            self._stay_until = workflow.info().get_current_history_length() + 1000
            self._is_closing = False
            self._settle()
            return
        workflow.continue_as_new(raw(data))


class _ReleaseSignal(msgspec.Struct):
    release_key: str | int | None = None
    resource: str = ""
    workflow_id: str = ""
    run_id: str = ""
    reason: str = ""


class _AcquireSignal(msgspec.Struct):
    workflow_id: str
    run_id: str = ""


_SIGNALS: Final[dict[str, Callable[[PoolWorkflow, Keeper, list[bytes]], None]]] = {
    "release_resource": PoolWorkflow._release,
    "acquire_resource": PoolWorkflow._acquire,
    "add_resources": PoolWorkflow._add,
}


def _forget_history(estate: say.Estate) -> None:
    estate.recent = []


def _forget_endings(estate: say.Estate) -> None:
    estate.image.endings = []


def _forget_replies(estate: say.Estate) -> None:
    estate.lanes = {}


_TRIMS: Final = (_forget_history, _forget_endings, _forget_replies)


def _only(args: list[bytes]) -> bytes:
    if len(args) != 1:
        raise ValueError(f"it takes one argument, not {len(args)}")
    return args[0]


def _now() -> int:
    return workflow.time_ns() // 1000


def _newest_rules() -> int:
    """Return the newest rules that this run may follow: a run that began with older ones goes on with them."""
    for number in sorted(_keeper.RULES, reverse=True):
        if number == 1 or workflow.patched(f"millpond-rules-{number}"):
            return number
    raise AssertionError("there are always rules 1")

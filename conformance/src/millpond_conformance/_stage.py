"""A resource pool on a stage: short words for the commands, so that a test of the rules reads like a story.

Requests go by their ids, sessions too; every word is a step under the judge (`_model.Judge`).
"""

from __future__ import annotations

from msgspec.structs import replace

from millpond.resources._rules import changes, commands
from millpond.resources._rules.commands import Reply
from millpond.resources._rules.records import Holder, Request, Settings, Want
from millpond.resources._rules.state import State
from millpond_conformance._model import Judge

START = 1_000_000


class Stage:
    """A pool, its time, and what changed last."""

    def __init__(self, *names: str, settings: Settings | None = None) -> None:
        self.judge = Judge()
        self.now = START
        self.changes: list[changes.AnyChange] = []
        if settings is not None:
            self.tell(commands.Configure(settings))
        for name in names:
            self.add(name)

    @property
    def state(self) -> State:
        """The pool's state."""
        return self.judge.state

    def tell(self, command: commands.Command) -> Reply:
        """Run any command now."""
        outcome = self.judge.step(command, self.now)
        self.changes = outcome.changes
        return outcome.reply

    def later(self, time: int) -> None:
        """Advance the time, and end what is over then."""
        self.now += time
        self.tell(commands.Tick())

    # --- resources ---------------------------------------------------------------------------------------------------

    def add(self, name: str, capacity: int = 1, **labels: str) -> Reply:
        """Add a resource."""
        return self.tell(commands.Add(name, labels, capacity))

    def mark(self, name: str, state: str) -> Reply:
        """Set the state of a resource."""
        return self.tell(commands.Mark(name, state, "op"))

    def configure(self, **settings: object) -> None:
        """Change some settings."""
        self.tell(commands.Configure(replace(self.state.settings, **settings)))

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, name: str, *wants: Want | str, session: str = "s", number: int = 0, **more: object) -> Reply:
        """Ask for resources: selectors or wants, by default any one."""
        wanted = tuple(Want(one) if isinstance(one, str) else one for one in wants) or (Want(),)
        return self.tell(commands.Acquire(name, session, number, Holder(id=session), wanted, **more))  # type: ignore[arg-type]

    def claim(self, *names: str) -> Reply:
        """Claim them all for the session of the first of these requests."""
        return self.tell(commands.Claim(self.state.requests[names[0]].session, names))

    def decline(self, name: str) -> Reply:
        """Turn an offer down."""
        request = self.state.requests[name]
        return self.tell(commands.Decline(request.session, name, request.token))

    def withdraw(self, name: str) -> Reply:
        """Take a request back."""
        request = self.state.requests.get(name)
        return self.tell(commands.Withdraw(request.session if request is not None else "s", name))

    def release(self, name: str, by: str = "") -> Reply:
        """Give back what a request holds."""
        request = self.state.requests[name]
        return self.tell(commands.Release(request.session, request.token, by=by))

    def renew(self, name: str) -> Reply:
        """Renew a lease."""
        request = self.state.requests[name]
        return self.tell(commands.Renew(request.session, request.token))

    def pass_on(self, name: str) -> Reply:
        """Pass on what a request holds, as its holder."""
        request = self.state.requests[name]
        return self.tell(commands.Pass(request.session, request.token))

    # --- questions ---------------------------------------------------------------------------------------------------

    def request(self, name: str) -> Request:
        """Return a request that is not over."""
        return self.state.requests[name]

    def of(self, name: str) -> str:
        """Return how a request stands: its state and what it has, or how it ended in the last step, or `over`."""
        request = self.state.requests.get(name)
        if request is not None:
            return " ".join([request.state, *(resource for resource, _ in request.shares)])
        return next((one.how for one in self.changes if isinstance(one, changes.Ended) and one.id == name), "over")

    def all(self) -> dict[str, str]:
        """Return how all requests stand."""
        return {name: self.of(name) for name in self.state.requests}

    def served(self) -> list[str]:
        """Return who was given something in the last step, in order."""
        return [one.id for one in self.changes if isinstance(one, changes.Offered | changes.Held)]

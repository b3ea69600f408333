"""Why there is no grant, or none any more: one wording for programs and for workflows."""

from __future__ import annotations

from collections.abc import Sequence

from millpond._events import logger
from millpond.errors import AcquireTimeout, AlreadyExists, LeaseLost, PoolError, PoolFull, StaleToken, Unsatisfiable
from millpond.resources import _views
from millpond.resources._rules.records import Want


class Asked:
    """What was asked for, as errors name it."""

    __slots__ = ("_pool", "_request_id", "_timeout", "_wants")

    def __init__(self, pool: str, request_id: str, wants: Sequence[Want], timeout: float | None) -> None:
        self._pool = f"pool {pool!r}"
        self._request_id = request_id
        self._wants = _views.wishes(wants)
        self._timeout = timeout

    def timed_out(self, why: str) -> AcquireTimeout:
        """Return the error of one who waited in vain; `why` says what was in the way, or where to look."""
        within = f" within {self._timeout:g} s" if self._timeout else ""
        return AcquireTimeout(f"no {self._wants!r} of {self._pool} was free{within}: {why}")

    def refused(self, kind: str, detail: str, why: str) -> PoolError:
        """Return the error that says why a pool refused a request, or ended it; `why` as in `timed_out`."""
        match kind:
            case "taken":
                return AlreadyExists(
                    f"request {self._request_id!r} belongs to {detail}, which lives: choose another request_id"
                )
            case "used":
                return AlreadyExists(
                    f"request {self._request_id!r} is over ({detail}), an id counts once: choose another request_id"
                )
            case "full":
                return PoolFull(f"{self._pool} is full: {detail}; try again when others are done")
        if detail.startswith("unsatisfiable"):
            kind = detail = "unsatisfiable"
        if kind == "unsatisfiable":
            namesake = f"name={detail!r} asks for the resource of that name; or " if detail not in ("", kind) else ""
            return Unsatisfiable(
                f"no resource of {self._pool} could ever satisfy {self._wants!r}: {namesake}add one that matches "
                "(resources() lists them), or use wait_for_capacity=True"
            )
        if kind == "busy" or detail.startswith("timed out"):
            return self.timed_out(why)
        return StaleToken(
            f"request {self._request_id!r} for {self._wants!r} of {self._pool} ended without a grant: {detail or kind}"
        )


def grant_name(token: int, shares: Sequence[tuple[str, int]], pool: str) -> str:
    """Name a grant."""
    names = ", ".join(name for name, _ in shares)
    return f"grant {token} of {names or 'nothing'} in pool {pool!r}"


def not_held(grant: str, how: str) -> LeaseLost:
    """Return the error of a grant that is not held (yet, or any more)."""
    return LeaseLost(f"{grant} is not held: {how}; acquire it again")


def lost(grant: str, how: str) -> LeaseLost:
    """Return the error of a grant that was taken away."""
    return LeaseLost(f"{grant} was lost: {how}; stop using it and acquire it again")


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception of the user; the log has it for one that takes none, as a frozen dataclass does."""
    try:
        error.add_note(note)
    except Exception:
        logger.warning("%s", note, extra={"millpond": {"error": repr(error)}})

"""Asks the placement of a pool who is to own each slot, and does without it when it fails.

It may be a function of the user's, which raises or returns whatever it likes. Nothing stands still for that: slots stay
with their owners, and those that nobody owns, or one who leaves, go to whom the default would give them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from millpond._events import log
from millpond._saying import kind_of, said
from millpond.keyed.rules.placement import Member, Placement, Rendezvous, name_of


class Nonsense(Exception):
    """A placement has returned what says not who owns each slot."""


class Placing:
    """The placement of a pool, as one worker asks it."""

    def __init__(self, pool: str, name: str, placement: Placement) -> None:
        self._pool = pool
        own = name_of(placement)
        self._name = repr(name) if name == own else f"{name!r} ({own})"
        self._placement = placement
        self._default = Rendezvous()
        self._failed_for: list[Member] = []
        """The members for whom it failed last, and said so."""

    def among(self, owners: Sequence[str]) -> Placement:
        """Return a placement that never fails; what has these owners now stays with them then."""
        return partial(self._place, owners)

    def _place(self, owners: Sequence[str], members: Sequence[Member], slots: int) -> list[str]:
        try:
            return checked(self._placement(list(members), slots), members, slots)
        except BaseException as error:  # SystemExit, too: this is the thread of the feed
            self._complain(list(members), error)
        staying = {each.id for each in members}
        wanted = self._default(members, slots)
        return [owner if owner in staying else wanted[slot] for slot, owner in enumerate(owners)]

    def _complain(self, members: list[Member], error: BaseException) -> None:
        """Say what is wrong, once for these members: it is asked in every round."""
        if members == self._failed_for:
            return
        self._failed_for = members
        what = said(error) if isinstance(error, Nonsense) else f"raised {kind_of(error)}: {said(error)}"
        text = (
            f"placement {self._name} of pool {self._pool!r} {what}. Slots stay with their owners, and "
            f"those of nobody go to whom 'rendezvous' gives them"
        )
        log(logging.ERROR, text, None if isinstance(error, Nonsense) else error)


def checked(wanted: Any, members: Sequence[Member], slots: int) -> list[str]:
    """Return the ids that a placement has returned; raise `Nonsense` when they are not those of members, one a slot."""
    if isinstance(wanted, str | bytes) or not isinstance(wanted, Iterable):
        raise Nonsense(f"returned a {type(wanted).__name__}, not a list of ids of members")
    found = list(islice(wanted, slots + 1))
    if len(found) != slots:
        number = f"more than {slots}" if len(found) > slots else f"{len(found)}"
        raise Nonsense(f"returned {number} ids, not {slots}, one for each slot")
    ids = {each.id: each.id for each in members}
    for slot, one in enumerate(found):
        if not isinstance(one, str) or one not in ids:
            raise Nonsense(f"gave slot {slot} to {repr(one)[:200]}, who is no member")
    return [ids[one] for one in found]  # which are plain `str`

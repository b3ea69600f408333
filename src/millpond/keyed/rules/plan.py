"""What a worker does about slots: whom it takes for dead, what it gives away, what it claims. Pure.

Every worker computes the same placement from the same members, and does its own part: it gives what it owns and another
should have, and claims what it should have and nobody living owns. Nobody leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millpond.keyed.rules.placement import NOBODY, Placement, moves
from millpond.keyed.rules.placement import Member as Weighed
from millpond.keyed.rules.records import SECOND, Member

ROUND = 1024
"""Slots that one worker gives or claims in one round; the next follows at once."""


class Sightings:
    """What one worker has seen of the leases of others, on its own clock."""

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self._seen: dict[str, tuple[int, float]] = {}

    def look(self, members: Iterable[Member], store_now: int, now: float) -> dict[str, int]:
        """Return the dead, each with the end of its lease.

        Dead is who the store can prove to be, or whose lease is over on the store's clock and stood unchanged for a
        whole lease on ours: neither clock alone decides.
        """
        seen, dead = {}, {}
        for each in members:
            end, since = self._seen.get(each.id, (each.lease_end, now))
            if end != each.lease_end:
                end, since = each.lease_end, now
            seen[each.id] = (end, since)
            is_over = not store_now < end <= store_now + self.lease * SECOND  # further away: its clock went back
            if each.is_dead or (is_over and now - since >= self.lease):
                dead[each.id] = end
        self._seen = seen
        return dead


class Plan(NamedTuple):
    """What one worker is to do now."""

    gives: list[tuple[int, str]]
    claims: list[int]
    is_more: bool
    """A round is limited: there is more to do."""


def plan(me: str, members: Sequence[Member], dead: Iterable[str], owners: Sequence[str], placement: Placement) -> Plan:
    """Compare who should own what with who does."""
    gone = set(dead)
    living = {each.id for each in members} - gone
    staying = [Weighed(each.id, each.weight) for each in members if each.id in living and not each.is_leaving]
    wanted = _place(placement, staying, len(owners))
    known = [owner if owner in living else NOBODY for owner in owners]
    changes = moves(known, wanted, len(owners))
    gives = [(move.slot, move.taker) for move in changes if move.giver == me]
    claims = [move.slot for move in changes if move.taker == me and move.giver == NOBODY]
    is_more = len(gives) > ROUND or len(claims) > ROUND
    return Plan(gives[:ROUND], claims[:ROUND], is_more)


def farewell(me: str, members: Sequence[Member], owners: Sequence[str], placement: Placement) -> list[tuple[int, str]]:
    """Return who gets what a leaving worker owns."""
    staying = [Weighed(each.id, each.weight) for each in members if each.id != me and not each.is_leaving]
    wanted = _place(placement, staying, len(owners))
    return [(slot, wanted[slot]) for slot, owner in enumerate(owners) if owner == me]


def _place(placement: Placement, members: Sequence[Weighed], slots: int) -> Sequence[str]:
    """Return who is to own each slot: nobody, when nobody is left, which no placement has to think of."""
    return placement(members, slots) if members else [NOBODY] * slots

"""Which resource a request is given, when several would do: a total order for every policy, and matching for bundles.

| policy   | prefers                                                                                  |
|----------|------------------------------------------------------------------------------------------|
| `first`  | the pool's own order (the default: two machine words of work)                             |
| `lru`    | the one that was given back longest ago, so that wear is even                             |
| `mru`    | the one that this holder had last, else the one given back last, so that caches are warm  |
| `random` | any, by a mixing of the request's number: the same on every replica                      |
| `pack`   | the fullest that still fits, so that whole resources stay free                            |
| `spread` | the emptiest                                                                             |

The requester's own rank, if it gave one, comes before the policy; alternatives of the selector come before both, in
their order. Everything ends with the slot, so there are no ties.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from millpond.resources._rules.line import Matcher, bits
from millpond.resources._rules.records import ALL, Request, Resource, Want
from millpond.resources._rules.state import State

_MIX: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


def _mix(seq: int, slot: int) -> int:
    """Return a number that looks random: splitmix64 of the two."""
    word = (seq * _MIX + slot * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def _lru(resource: Resource, request: Request) -> tuple[int, int]:
    return resource.freed, resource.slot


def _mru(resource: Resource, request: Request) -> tuple[int, int, int]:
    return int(not resource.last or resource.last != request.holder.id), -resource.freed, resource.slot


def _random(resource: Resource, request: Request) -> tuple[int, int]:
    return _mix(request.seq, resource.slot), resource.slot


def _pack(resource: Resource, request: Request) -> tuple[int, int]:
    return resource.capacity - resource.used, resource.slot


def _spread(resource: Resource, request: Request) -> tuple[int, int]:
    return resource.used * 1_000_000 // resource.capacity, resource.slot


POLICIES: Final[dict[str, Callable[[Resource, Request], tuple[int, ...]] | None]] = {
    "first": None,
    "lru": _lru,
    "mru": _mru,
    "random": _random,
    "pack": _pack,
    "spread": _spread,
}


def pick(state: State, request: Request, matcher: Matcher, candidates: int) -> int:
    """Return the best slot of `candidates`, which is not empty."""
    for mask in matcher.masks:
        best = mask & candidates
        if best:
            break
    else:
        raise AssertionError("a candidate that matches no alternative")
    for name in request.rank:
        resource = state.resources.get(name)
        if resource is not None and best >> resource.slot & 1:
            return resource.slot
    policy = POLICIES.get(request.placement)
    if policy is None:
        return (best & -best).bit_length() - 1
    return min((policy(state.index.at(slot), request), slot) for slot in bits(best))[1]


def preferences(state: State, request: Request, matcher: Matcher, candidates: int) -> Iterator[int]:
    """Iterate over all of `candidates`, best first: what `pick` would say, again and again."""
    policy = POLICIES.get(request.placement)
    for mask in matcher.masks:
        best = mask & candidates
        candidates ^= best
        for name in request.rank:
            resource = state.resources.get(name)
            if resource is not None and best >> resource.slot & 1:
                best ^= 1 << resource.slot
                yield resource.slot
        if policy is None:
            yield from bits(best)
        else:
            yield from sorted(bits(best), key=lambda slot: policy(state.index.at(slot), request))


def needed(want: Want, resource: Resource) -> int:
    """Return how many units of this resource the want takes."""
    return resource.capacity if want.units == ALL else want.units


def lacking(want: Want, resource: Resource) -> int:
    """Return how many of the units that the want takes of this resource are not free."""
    return needed(want, resource) - resource.capacity + resource.used


def fitting(state: State, want: Want, mask: int, most: int | None = None, *, idle: bool = False) -> int:
    """Return those of `mask` that match the want and have enough free units, or would have if they were idle.

    `most` is how large one may be that is wanted as a whole.
    """
    mask &= state.index.matcher(want.selector).mask
    if want.units == 1:
        return mask
    fit = 0
    for slot in bits(mask):
        resource = state.index.at(slot)
        too_large = want.units == ALL and most is not None and resource.capacity > most
        if not too_large and lacking(want, resource) <= (resource.used if idle else 0):
            fit |= 1 << slot
    return fit


def least_units(request: Request) -> int:
    """Return the fewest units that can satisfy the request, whatever the resources are."""
    return sum(want.count * max(1, want.units) for want in request.wants)


class Plan:
    """A way to give each want of a bundle its resources, all different: as many as possible, the best first.

    Maximum matching by augmenting paths, over wants (few) rather than resources (many): a want that finds nothing left
    takes a resource of another want which finds something else. `room` is what a quota leaves; wants of whole
    resources take the smallest then, so that it goes furthest.
    """

    __slots__ = ("_fits", "_mask", "_orders", "_request", "_room", "_slots", "_spare", "_state", "_taken")

    def __init__(self, state: State, request: Request, mask: int, room: int | None, *, idle: bool = False) -> None:
        self._state = state
        self._request = request
        self._mask = mask
        self._room = room
        self._spare = None if room is None else room - least_units(request) + 1  # how large a whole one may be
        self._fits = [fitting(state, want, mask, self._spare, idle=idle) for want in request.wants]
        self._orders = [self._order(want, fit) for want, fit in zip(request.wants, self._fits, strict=True)]
        self._taken = 0
        self._slots: list[list[int]] = [[] for _ in request.wants]
        for index, want in enumerate(request.wants):
            while len(self._slots[index]) < want.count and self._extend(index):
                pass

    def shares(self) -> tuple[tuple[str, int], ...] | None:
        """Return the resources and units, want by want, or None if something is missing or the room is too small."""
        found = []
        for want, slots in zip(self._request.wants, self._slots, strict=True):
            if len(slots) < want.count:
                return None
            found += [(resource.name, needed(want, resource)) for resource in map(self._state.index.at, slots)]
        if self._room is not None and sum(units for _, units in found) > self._room:
            return None
        return tuple(found)

    def kept(self) -> int:
        """Return the resources to keep for a bundle that cannot be satisfied yet.

        Those that were found, and for each wish that none fits the one that lacks the fewest units, so that what is
        given back there adds up.
        """
        state = self._state
        kept = self._taken
        for want, slots in zip(self._request.wants, self._slots, strict=True):
            if len(slots) < want.count and want.units != 1:
                rest = bits(fitting(state, want, self._mask & ~kept, self._spare, idle=True))
                closest = sorted((lacking(want, state.index.at(slot)), slot) for slot in rest)
                for _, slot in closest[: want.count - len(slots)]:
                    kept |= 1 << slot
        return kept

    def _order(self, want: Want, fit: int) -> Iterator[int]:
        state = self._state
        if self._room is not None and want.units == ALL:
            return iter(sorted(bits(fit), key=lambda slot: (state.index.at(slot).capacity, slot)))
        return preferences(state, self._request, state.index.matcher(want.selector), fit)

    def _extend(self, first: int) -> bool:
        """Give a want one resource more, and move others if that helps; return False when nothing does."""
        if self._take(first):
            return True
        came = {first: (first, 0)}  # want -> (who takes from it, which slot)
        queue = deque(came)
        while queue:
            index = queue.popleft()
            for other, slots in enumerate(self._slots):
                useful = None if other in came else next((one for one in slots if self._fits[index] >> one & 1), None)
                if useful is None:
                    continue
                came[other] = (index, useful)
                if self._take(other):
                    self._hand_down(other, came)
                    return True
                queue.append(other)
        return False

    def _take(self, index: int) -> bool:
        """Give a want the best that is left for it, if any."""
        for slot in self._orders[index]:
            if not self._taken >> slot & 1:
                self._taken |= 1 << slot
                self._slots[index].append(slot)
                return True
        return False

    def _hand_down(self, index: int, came: dict[int, tuple[int, int]]) -> None:
        """Pass one resource each from the want that found another to the one that found none."""
        taker, slot = came[index]
        while taker != index:
            self._slots[index].remove(slot)
            self._slots[taker].append(slot)
            index = taker
            taker, slot = came[index]


def assign(state: State, request: Request, mask: int, room: int | None) -> tuple[tuple[str, int], ...] | None:
    """Return shares that satisfy a whole bundle from the free units of `mask`, all on different resources, or None."""
    return Plan(state, request, mask, room).shares() if _enough(state, request, mask) else None


def cost(state: State, request: Request, mask: int, room: int | None) -> int | None:
    """Return the units that would satisfy the request if nobody held any of `mask`, or None if nothing would."""
    if not _enough(state, request, mask):
        return None
    if not request.bundle:
        return 1 if room is None or room > 0 else None
    shares = Plan(state, request, mask, room, idle=True).shares()
    return None if shares is None else sum(units for _, units in shares)


def _enough(state: State, request: Request, mask: int) -> bool:
    """Return whether each want, taken by itself, finds as many resources as it wants."""
    for want in request.wants:
        fit = mask & state.index.matcher(want.selector).mask
        if not fit or fit.bit_count() < want.count:
            return False
    return True

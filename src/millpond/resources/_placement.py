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

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from millpond.resources._line import Matcher
from millpond.resources._records import ALL, Request, Resource, Want
from millpond.resources._state import State

_MIX: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1


def bits(mask: int) -> Iterator[int]:
    """Iterate over the slots of a mask, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _mix(seq: int, slot: int) -> int:
    word = ((seq * 0x100000001B3) ^ slot) & _WORD
    word = ((word ^ (word >> 30)) * _MIX) & _WORD
    return word ^ (word >> 27)


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


def needed(want: Want, resource: Resource) -> int:
    """Return how many units of this resource the want takes."""
    return resource.capacity if want.units == ALL else want.units


def fitting(state: State, want: Want, mask: int) -> int:
    """Return those of `mask` that match the want and have enough free units."""
    mask &= state.matcher(want.selector).mask
    if want.units == 1:
        return mask
    fit = 0
    for slot in bits(mask):
        resource = state.at(slot)
        if resource.capacity - resource.used >= needed(want, resource):
            fit |= 1 << slot
    return fit


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
    policy = POLICIES[request.placement]
    if policy is None:
        return (best & -best).bit_length() - 1
    return min((policy(state.at(slot), request), slot) for slot in bits(best))[1]


def preferences(state: State, request: Request, want: Want, candidates: int) -> list[int]:
    """Return all of `candidates`, best first."""
    matcher = state.matcher(want.selector)
    order = []
    candidates &= matcher.mask
    while candidates:
        slot = pick(state, request, matcher, candidates)
        order.append(slot)
        candidates &= ~(1 << slot)
    return order


def match(wishes: Sequence[Sequence[int]]) -> list[int | None]:
    """Give each wish a slot of its own, as many as possible (maximum matching by augmenting paths)."""
    owner: dict[int, int] = {}

    def place(wish: int, tried: set[int]) -> bool:
        for slot in wishes[wish]:
            if slot not in owner:
                owner[slot] = wish
                return True
        for slot in wishes[wish]:
            if slot not in tried:
                tried.add(slot)
                if place(owner[slot], tried):
                    owner[slot] = wish
                    return True
        return False

    for wish in range(len(wishes)):
        place(wish, set())
    given: list[int | None] = [None] * len(wishes)
    for slot, wish in owner.items():
        given[wish] = slot
    return given


def wishes(state: State, request: Request, mask: int) -> list[tuple[Want, list[int]]]:
    """Return one wish per resource that a bundle needs, each with the slots of `mask` that would do, best first."""
    found: list[tuple[Want, list[int]]] = []
    for want in request.wants:
        order = preferences(state, request, want, fitting(state, want, mask))
        found.extend((want, order) for _ in range(want.count))
    return found


def assign(state: State, request: Request, mask: int) -> tuple[tuple[str, int], ...] | None:
    """Return shares that satisfy a whole bundle from the free units of `mask`, all on different resources, or None."""
    wanted = wishes(state, request, mask)
    shares = []
    for (want, _), slot in zip(wanted, match([order for _, order in wanted]), strict=True):
        if slot is None:
            return None
        resource = state.at(slot)
        shares.append((resource.name, needed(want, resource)))
    return tuple(shares)


def camp(state: State, request: Request, mask: int) -> int:
    """Return the resources of `mask` to keep for a bundle that cannot be satisfied yet.

    First as many as fit, by matching; then, for each wish that none fits, the one with the most free units, so that
    what is given back there adds up.
    """
    wanted = wishes(state, request, mask)
    given = match([order for _, order in wanted])
    kept = sum(1 << slot for slot in given if slot is not None)
    for (want, _), slot in zip(wanted, given, strict=True):
        rest = mask & ~kept & state.matcher(want.selector).mask
        if slot is None and want.units != 1 and rest:
            kept |= 1 << min(bits(rest), key=lambda one: (state.at(one).used - state.at(one).capacity, one))
    return kept


def could_ever(state: State, request: Request, mask: int) -> bool:
    """Tell whether the request would fit if every resource of `mask` were wholly free."""
    wished = []
    for want in request.wants:
        fit = [
            slot
            for slot in bits(mask & state.matcher(want.selector).mask)
            if want.units == ALL or state.at(slot).capacity >= want.units
        ]
        if len(fit) < want.count:
            return False
        wished.extend([fit] * want.count)
    return len(request.wants) == 1 or None not in match(wished)

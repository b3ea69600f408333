"""Which worker owns a key: pure rules, the same in every process and version.

A key belongs to a *slot* (a fixed number per pool, by a stable hash), a slot to a *worker*. The second step is computed
from the live members alone, so whoever knows them comes to the same answer, and little changes when one joins or
leaves:

- `Rendezvous` (the default): every member has a score for every slot, the highest wins. A member that joins takes about
  1/N of the slots from all others, one that leaves gives its own to all others, whatever its position. Nobody is given
  more than `load` times its fair share: a slot that finds its best member full goes to the next best, and a member that
  is full keeps those slots for which its score is highest. So the result does not depend on any order.
- `Jump` (the seed's): jump consistent hash over the members in the order of joining. Balance is perfect, but only the
  last member can leave without moving nearly everything.
- any function of members and the number of slots.

`moves` then says what has to change hands now: slots without an owner at once, others a few at a time.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

SLOTS: Final = 4096
LOAD: Final = 1.15
"""With it a join or a leave moves 1.3/N of the slots at most, up to 64 workers; with 1.1 it was 1.35/N."""
NOBODY: Final = ""
_WORD: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Member(NamedTuple):
    """A worker that takes part; one of weight 2 is given twice as much as one of weight 1."""

    id: str
    weight: int = 1


class Move(NamedTuple):
    """A slot that changes hands; `giver` is nobody when it has no owner."""

    slot: int
    giver: str
    taker: str


Placement: TypeAlias = Callable[[Sequence[Member], int], Sequence[str]]
"""Says who owns each slot: a member's id for each, in order."""


def name_of(placement: Placement) -> str:
    """Return what a placement is called that was given no name."""
    return f"{getattr(placement, '__module__', '')}.{getattr(placement, '__qualname__', type(placement).__qualname__)}"


def slot_of(key: str, slots: int = SLOTS) -> int:
    """Return the slot of a key.

    By CRC-32, a quarter of a secure hash's time and as even: every dispatch pays for it (decision 31).
    """
    return crc32(key.encode()) % slots


def stable_hash(text: str) -> int:
    """Return 64 bits of a text that are the same everywhere, for ever."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def mix(word: int) -> int:
    """Return 64 bits that look random, by splitmix64."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


class Rendezvous:
    """Weighted rendezvous hashing with bounded load. It remembers the scores of members that it has met."""

    def __init__(self, load: float = LOAD) -> None:
        if not load >= 1.0:
            raise ValueError(f"load must be at least 1, the fair share, not {load!r}")
        self._load = load
        self._scores: dict[tuple[str, int, int], array[int]] = {}

    def __call__(self, members: Sequence[Member], slots: int) -> list[str]:
        """Return the owner of each slot."""
        if not members:
            return [NOBODY] * slots
        members = sorted(members)
        self._scores = {
            (one.id, one.weight, slots): self._scores.get((one.id, one.weight, slots)) or _score(one, slots)
            for one in members
        }
        scores = [self._scores[one.id, one.weight, slots] for one in members]
        rooms = self._rooms(members, slots)
        return _match(members, scores, rooms, slots)

    def _rooms(self, members: Sequence[Member], slots: int) -> list[int]:
        """Return how many slots each may have at most: together at least all of them."""
        total = sum(one.weight for one in members)
        per_mille = round(self._load * 1000)  # whole numbers, so that all come to the same result
        return [-(-slots * one.weight * per_mille // (total * 1000)) for one in members]


def _score(member: Member, slots: int) -> array[int]:
    """Return how much a member wants each slot: the best of as many draws as it has weight."""
    best = array("Q", bytes(8 * slots))
    for share in range(member.weight):
        seed = stable_hash(f"{member.id}\0{share}")
        for slot in range(slots):
            word = (seed + slot * _GOLDEN) & _WORD
            word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
            word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
            word ^= word >> 31
            if word > best[slot]:
                best[slot] = word
    return best


def _match(members: Sequence[Member], scores: list[array[int]], rooms: list[int], slots: int) -> list[str]:
    """Give every slot to the best member that has room: the stable matching, which is the same in whatever order."""
    owners = [-1] * slots
    kept: list[list[tuple[int, int]]] = [[] for _ in members]  # (score, slot), the least wanted first
    free = list(range(slots))
    turned_down: dict[int, int] = {}  # slot -> the score at which it was turned down last
    many = range(len(members))
    while free:
        slot = free.pop()
        below = turned_down.get(slot, _WORD + 1)
        best, taker = -1, -1
        for index in many:
            score = scores[index][slot]
            if best < score < below:
                best, taker = score, index
        heap = kept[taker]
        heapq.heappush(heap, (best, slot))
        owners[slot] = taker
        if len(heap) > rooms[taker]:
            score, loser = heapq.heappop(heap)
            turned_down[loser] = score
            owners[loser] = -1
            free.append(loser)
    return [members[index].id for index in owners]


class Jump:
    """Jump consistent hash (Lamping and Veach, 2014) over the members in their order; weights do not count."""

    def __call__(self, members: Sequence[Member], slots: int) -> list[str]:
        """Return the owner of each slot."""
        if not members:
            return [NOBODY] * slots
        return [members[jump(mix((slot + 1) * _GOLDEN & _WORD), len(members))].id for slot in range(slots)]


def jump(key: int, buckets: int) -> int:
    """Return the bucket of a key."""
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) & _WORD
        following = (bucket + 1) * (1 << 31) // ((key >> 33) + 1)
    return bucket


def moves(owners: Sequence[str], wanted: Sequence[str], limit: int) -> list[Move]:
    """Return what has to change hands in this round: all that nobody owns, and `limit` of the rest.

    Those who have most to give and to take come first, so that a joiner gets something from everybody.
    """
    free: list[Move] = []
    rest: list[Move] = []
    for slot, (owner, taker) in enumerate(zip(owners, wanted, strict=True)):
        if owner != taker and taker != NOBODY:
            (rest if owner != NOBODY else free).append(Move(slot, owner, taker))
    if len(rest) <= limit:
        return free + rest
    turns: dict[str, int] = {}
    order = []
    for move in rest:
        turn = turns[move.giver] = turns.get(move.giver, 0) + 1
        order.append((turn, move.giver, move.slot, move))
    order.sort()
    return free + [move for *_, move in order[:limit]]

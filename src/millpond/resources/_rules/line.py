"""Waiters that want the same thing, and which resources would do.

A `Matcher` knows, as bits, the resources that satisfy one selector. A `Line` holds the waiters that are equal in all
that decides whether they can be served (wants, group, refused resources), so that only its head ever needs a look.
Entries of requests that left stay in the heap until they surface; too many of them, and the heap is built anew. A line
in which nobody waits any more is dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from millpond.resources._rules import selectors
from millpond.resources._rules.records import WAITING, Request, Resource, Want

LineKey: TypeAlias = tuple[tuple[Want, ...], str, tuple[str, ...]]


def bits(mask: int) -> Iterator[int]:
    """Iterate over the slots of a mask, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Matcher:
    """The resources that satisfy a selector: `mask` all of them, `masks` one per alternative, in its order.

    `lines` are those in which somebody waits for one of them; `name` is the one resource that it asks for, if it does.
    """

    __slots__ = ("_alternatives", "lines", "mask", "masks", "name")

    def __init__(self, selector: str, resources: Mapping[str, Resource]) -> None:
        self._alternatives = selectors.parse(selector)
        self.lines: dict[LineKey, Line] = {}
        self.masks = [0] * len(self._alternatives)
        self.mask = 0
        self.name = selectors.only_name(self._alternatives)
        if self.name is None:
            for resource in resources.values():
                self.learn(resource)
        elif self.name in resources:
            self.learn(resources[self.name])

    def learn(self, resource: Resource) -> None:
        """Take note of a resource that is new or has other labels."""
        self.forget(resource)
        if self.name is not None and self.name != resource.name:
            return
        bit = 1 << resource.slot
        for index, alternative in enumerate(self._alternatives):
            if selectors.matches(alternative, resource.name, resource.labels):
                self.masks[index] |= bit
                self.mask |= bit

    def forget(self, resource: Resource) -> None:
        """Drop a resource."""
        bit = 1 << resource.slot
        if self.mask & bit:
            self.mask ^= bit
            self.masks = [mask & ~bit for mask in self.masks]


class Line:
    """The waiters of one key, first come first. `heap[0]` is the first: its order, its number, itself."""

    __slots__ = ("_last", "group", "heap", "is_mixed", "refused", "size")

    def __init__(self, key: LineKey) -> None:
        _, self.group, self.refused = key
        self.size = 0
        self.heap: list[tuple[int, int, Request]] = []
        self.is_mixed = False  # somebody may stand before one who asked earlier
        self._last: tuple[int, int] | None = None

    def push(self, order: int, request: Request) -> None:
        """Add a request at its place."""
        seq = request.seq
        last = self._last
        if last is None or (order >= last[0] and seq > last[1]):
            self._last = order, seq
        elif not order == last[0] == self.heap[0][0]:
            self.is_mixed = True
        heapq.heappush(self.heap, (order, seq, request))
        self.size += 1

    def leave(self, request: Request) -> None:
        """Remove one of them, who still waits now, but will not."""
        self.size -= 1
        heap = self.heap
        if not self.size:
            heap.clear()
        elif len(heap) > 64 and len(heap) > 2 * self.size:
            self.heap = [entry for entry in self._entries() if entry[2] is not request]
            heapq.heapify(self.heap)
        else:
            while heap[0][2] is request or not self._waits(heap[0][2]):
                heapq.heappop(heap)

    def requests(self) -> list[Request]:
        """Return those who wait, in order."""
        return [entry[2] for entry in sorted(self._entries())]

    def _entries(self) -> list[tuple[int, int, Request]]:
        """Return the entries that count; one who was away and came back may have several."""
        return list({entry[1]: entry for entry in self.heap if self._waits(entry[2])}.values())

    def _waits(self, request: Request) -> bool:
        return request.state == WAITING and request.refused == self.refused

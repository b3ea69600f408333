"""Waiters that want the same thing, and which resources would do.

A `Matcher` knows, as bits, the resources that satisfy one selector. A `Line` holds the waiters that are equal in all
that decides whether they can be served (wants, group, refused resources), so that only its head ever needs a look.
Entries of requests that left stay in the heap until they surface; too many of them, and the heap is built anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TypeAlias

from millpond.resources import _selectors
from millpond.resources._records import WAITING, Request, Resource, Want

LineKey: TypeAlias = tuple[tuple[Want, ...], str, tuple[str, ...]]


class Matcher:
    """The resources that satisfy a selector: `mask` all of them, `masks` one per alternative, in its order."""

    __slots__ = ("_alternatives", "mask", "masks")

    def __init__(self, selector: str, resources: Mapping[str, Resource]) -> None:
        self._alternatives = _selectors.parse(selector)
        self.masks = [0] * len(self._alternatives)
        self.mask = 0
        name = self.name
        if name is None:
            for resource in resources.values():
                self.learn(resource)
        elif name in resources:
            self.learn(resources[name])

    @property
    def name(self) -> str | None:
        """The one resource that it asks for, if it asks by name."""
        first = self._alternatives[0]
        if len(self._alternatives) == 1 and len(first) == 1 and first[0][0] == "@":
            return first[0][1]
        return None

    def learn(self, resource: Resource) -> None:
        """Take note of a resource that is new or has other labels."""
        self.forget(resource)
        bit = 1 << resource.slot
        for index, alternative in enumerate(self._alternatives):
            if _selectors.matches(alternative, resource.name, resource.labels):
                self.masks[index] |= bit
                self.mask |= bit

    def forget(self, resource: Resource) -> None:
        """Drop a resource."""
        keep = ~(1 << resource.slot)
        self.mask &= keep
        for index, mask in enumerate(self.masks):
            self.masks[index] = mask & keep


class Line:
    """The waiters of one key, first come first."""

    __slots__ = ("_dead", "_heap", "group", "key", "matchers", "name", "refused")

    def __init__(self, key: LineKey, matchers: tuple[Matcher, ...]) -> None:
        self.key = key
        _, self.group, self.refused = key
        self.matchers = matchers
        self.name = matchers[0].name if len(matchers) == 1 else None
        self._heap: list[tuple[int, int, Request]] = []
        self._dead = 0

    def push(self, order: int, request: Request) -> None:
        """Let a request join at its place."""
        heapq.heappush(self._heap, (order, request.seq, request))

    def head(self) -> tuple[int, int, Request] | None:
        """Return the first that waits."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._waits(entry[2]):
                return entry
            heapq.heappop(heap)
        return None

    def leave(self) -> None:
        """Take note that one of the entries is of no more use."""
        self._dead += 1
        if self._dead > 64 and self._dead > len(self._heap) // 2:
            self._heap = list({entry[1]: entry for entry in self._heap if self._waits(entry[2])}.values())
            heapq.heapify(self._heap)
            self._dead = 0

    def requests(self) -> list[Request]:
        """Return those who wait, in order."""
        return [entry[2] for entry in sorted({e[1]: e for e in self._heap if self._waits(e[2])}.values())]

    def _waits(self, request: Request) -> bool:
        return request.state == WAITING and request.refused == self.refused

    def reach(self) -> int:
        """Return the resources that could be of use here."""
        first, *rest = self.matchers
        mask = first.mask
        for matcher in rest:
            mask |= matcher.mask
        return mask

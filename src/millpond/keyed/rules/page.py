"""Some of what there is, and where to go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Page(list[T]):
    """A list of some of what there is. Give `next` as `after=` to get more; when it is empty, this was all.

    While jobs come, move and end between one page and the next, a thing may be seen twice, or not at all; what stays
    where it is all the time is seen.
    """

    def __init__(
        self,
        items: Iterable[T] = (),
        next: str = "",  # noqa: A002  (it is what people call it)
        now: int = 0,
        marks: Sequence[str] = (),
    ) -> None:
        super().__init__(items)
        self.next = next
        """Where the next page begins; empty: there is none. (What comes next may turn out to be nothing.)"""
        self.now = now
        """The time of the store at which this was read, in microseconds."""
        self.marks = marks
        """Of what a store answers: where to go on behind each item."""


def page_of(items: list[T], marks: Sequence[str], now: int, limit: int | None) -> Page[T]:
    """Return the first of these, which are in order and may be more than wanted, so that it is seen if there are."""
    if limit is None or len(items) <= limit:
        return Page(items, "", now, marks)
    return Page(items[:limit], marks[limit - 1], now, marks[:limit])

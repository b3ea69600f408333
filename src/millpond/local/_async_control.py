"""What the owner of a pool does to its limiter: pause, resize, purge, cancel, close, reopen."""

from __future__ import annotations

from millpond._events import tell
from millpond.local._async_limiter import Limiter
from millpond.local._async_task import AsyncTask


class Control(Limiter):
    """A limiter that can be told what to do."""

    def pause(self) -> None:
        """Start nothing more."""
        self.is_paused = True
        for each in self.maps:
            each.halt = True

    def resume(self) -> None:
        """Start again."""
        self.is_paused = False
        self.ring()
        self.notice()

    def resize(self, limit: int) -> None:
        """Change the number of places; surplus ones go as their tasks end."""
        self.limit = limit
        for each in self.maps:
            each.halt = True
        self.ring()
        self.notice()

    def purge(self) -> int:
        """Cancel what has not started; return how many."""
        tasks = self.waiting()
        for task in reversed(tasks):  # backwards, so that no successor of a key is put in line first
            task.cancel()
        return len(tasks) + sum(each.drop_rest() for each in list(self.maps))

    def cancel_running(self) -> None:
        """Cancel what runs here and below."""
        for each in list(self.maps):
            each.stop()
        for entry in list(self.root.inners.values()):
            if isinstance(entry, AsyncTask) and is_under(entry._home, self):
                entry.cancel()

    def close(self) -> None:
        """Take no more tasks, here and below; start again what is paused, so that it can end."""
        if not self.is_closed:
            self.is_closed = True
            tell(self.observer, "pool_closed", self.name)
        self._refuse()

    def _refuse(self) -> None:
        self.is_refusing = True
        if self.is_paused:
            self.resume()
        if self.room is not None:
            self.room.close()
        for lazy in list(self.lazies):
            lazy.cut(self.refusal())
        for child in self.children:
            child._refuse()

    def reopen(self) -> None:
        """Take tasks again."""
        self.is_closed = False
        self.is_refusing = self.parent is not None and self.parent.is_refusing
        for child in self.children:
            if not child.is_closed:
                child.reopen()


def is_under(limiter: Limiter, other: Limiter) -> bool:
    """Tell whether `limiter` is `other`, or stands below it."""
    node: Limiter | None = limiter
    while node is not None and node is not other:
        node = node.parent
    return node is other

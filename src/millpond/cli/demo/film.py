"""What happened in the demo, as a film: the same facts as on the screen, noted a few times a second."""

from __future__ import annotations

from millpond.cli.demo.world import Sight


class Film:
    """The sights of a demo, the first one at 0 s."""

    def __init__(self) -> None:
        self.sights: list[Sight] = []

    def take(self, sight: Sight) -> None:
        """Add a sight."""
        self.sights.append(sight)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.sights[-1].at - self.sights[0].at if self.sights else 0.0

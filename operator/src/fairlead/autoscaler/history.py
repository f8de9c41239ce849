"""History: what the load asked for at earlier ticks, so that replicas go only when fewer were enough for a while."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Want:
    """How many replicas were wanted at one tick."""

    time: float
    """In seconds of a monotonic clock."""
    replicas: int


@dataclass(frozen=True, slots=True)
class History:
    """Immutable; `remember` makes the next one."""

    since: float
    """When the first tick was. Before that nothing is known."""
    wants: tuple[Want, ...] = ()
    """Oldest first."""

    def covers(self, now: float, window: float) -> bool:
        """Whether one full window of so many seconds was seen."""
        return now - self.since >= window

    def most_wanted(self, now: float, window: float) -> int:
        """The largest want within the last `window` seconds; 0 where there is none."""
        return max((want.replicas for want in self.wants if now - want.time <= window), default=0)

    def remember(self, replicas: int, now: float, window: float) -> Self:
        """With this tick's want, and without what is older than the window."""
        kept = tuple(want for want in self.wants if now - want.time <= window)
        return type(self)(self.since, (*kept, Want(now, replicas)))

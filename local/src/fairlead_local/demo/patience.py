"""How long the demo waits for something: as long as anything moves, however slow the machine is. Pure."""

from collections.abc import Hashable

QUIET_SECONDS = 180.0
"""Nothing has moved for so long: what is waited for will not come."""
MOST_ANSWERS = 60
"""So many answers are progress while replicas stay as they are: that many requests tell an autoscaler enough, at
whatever speed they are answered."""


class Patience:
    """With one thing that is waited for. Show it what there is to see at every look."""

    def __init__(self, now: float) -> None:
        self._moved_at = now
        self._seen: Hashable = None
        self._answers = self._first = 0

    def is_over(self, now: float, seen: Hashable, num_answered: int = 0) -> bool:
        """Whether neither what is seen has changed for long, nor requests were answered that still count."""
        if seen != self._seen:
            self._seen, self._moved_at = seen, now
            self._first = self._answers = num_answered
        elif self._answers < num_answered <= self._first + MOST_ANSWERS:
            self._answers, self._moved_at = num_answered, now
        return now - self._moved_at > QUIET_SECONDS

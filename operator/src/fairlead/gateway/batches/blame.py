"""Whether a line of a batch is to blame for its failures, or the fleet. Pure.

A line may break whatever runs it, or may have been on replicas that broke down by themselves. Lines that failed and
were then answered tell how far the failures of others may be trusted.
"""

BLAMED = frozenset({500, 502, 504})
"""Answers that name the line as the cause: a replica failed at it, broke down on it alone, or kept silent on it."""
MAX_FAULTS = 3.0
"""Tries with such an answer after which a line is to blame, where no line was blamed wrongly."""
MOST_FAULTS = 12.0
"""The same in a fleet that breaks down all the time."""
_SHARED_FAULT = 0.25
"""A try that was lost with replicas that had other requests, too."""


def fault(status: int, num_deaths: int) -> float:
    """Of one try. `num_deaths`: replicas that broke down on it."""
    if status in BLAMED:
        return 1.0
    return _SHARED_FAULT if num_deaths and status >= 400 else 0.0


class Blame:
    """Of the lines of one run."""

    def __init__(self) -> None:
        self._survived = 0.0
        """Most faults of a line that was then answered."""

    def answered(self, faults: float) -> None:
        """A line with these faults has an answer of its own: they were the fleet's."""
        self._survived = max(self._survived, faults)

    def has(self, faults: float) -> bool:
        """Whether a line with so many faults is to blame. Where innocent lines have had some, it takes twice as many
        more: the worst of many lines has little more than the second worst, by chance."""
        return faults >= min(MAX_FAULTS + 2.0 * self._survived, MOST_FAULTS)

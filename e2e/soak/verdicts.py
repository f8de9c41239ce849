"""What came of each request, by kind: the clients and attackers write here, the report reads it. No I/O."""

import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

GRACE_SECONDS = 5.0
"""For so long after a kill a new request may still meet what is left of the dead."""


class Outcome(StrEnum):
    """How one request ended."""

    ANSWERED = "answered"
    """As it should: the whole answer, or the refusal that was due."""
    TRY_LATER = "try later"
    """429 with Retry-After: the fleet was full."""
    LEFT = "left"
    """The client went away, as it meant to."""
    EXCUSED = "excused"
    """Failed by the death of an engine or gateway, or meant for an engine that is not there (any more, or yet)."""
    WRONG = "wrong"
    """Anything else."""


@dataclass
class Verdicts:
    """Outcomes by kind of request, what was wrong in words, and what may excuse a failure."""

    counts: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    """When, by the monotonic clock, an engine or gateway was killed. Nothing else excuses a failed request."""

    def enter(self, kind: str, outcome: Outcome) -> None:
        """Counts one request."""
        self.counts[kind, outcome] += 1

    def failed(self, kind: str, problem: str, started: float) -> None:
        """A request that began at `started` did not get what it should."""
        if any(kill > started - GRACE_SECONDS for kill in self.kills):
            self.enter(kind, Outcome.EXCUSED)
            return
        self.enter(kind, Outcome.WRONG)
        self.wrong(f"{kind}: {problem}")

    def wrong(self, problem: str) -> None:
        """Something that must not be."""
        self.problems.append(f"{time.strftime('%H:%M:%S')} {problem}"[:1000])

    def of(self, outcome: Outcome) -> int:
        """How many requests ended so."""
        return sum(count for (_, found), count in self.counts.items() if found is outcome)

"""A fleet over time, as somebody saw who looked at it again and again, and what was decided meanwhile. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the fleet was like at one time."""

    time: float
    """Seconds since the load began; negative = before."""
    ready: int
    starting: int = 0
    draining: int = 0
    wanted: int | None = None
    """Replicas that the autoscaler wants; None = it has not said."""
    waiting: int = 0
    """Requests in the gateways."""
    running: int = 0
    """Requests with a replica."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Another number of replicas is wanted from `time` on."""

    time: float
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.before} → {self.after}"


def decisions(moments: Sequence[Moment]) -> list[ScalingDecision]:
    """Where the number that is wanted changed. The first one heard of is no decision: it was there before."""
    found: list[ScalingDecision] = []
    wanted: int | None = None
    for moment in moments:
        if wanted is not None and moment.wanted is not None and moment.wanted != wanted:
            found.append(ScalingDecision(moment.time, wanted, moment.wanted))
        wanted = wanted if moment.wanted is None else moment.wanted
    return found


def rows_apart(times: Sequence[float], gap: float) -> list[int]:
    """A row for the label at each of `times`, ascending, so that labels of one row are at least `gap` apart; rows count
    from 0, and the lowest with room is taken."""
    ends: list[float] = []
    rows = []
    for time in times:
        row = next((row for row, end in enumerate(ends) if time >= end), len(ends))
        if row == len(ends):
            ends.append(time)
        ends[row] = time + gap
        rows.append(row)
    return rows

"""What a request takes beside the engine's steps: network, HTTP, tokenising, a model of steps that is a little off.

Learnt per replica as a fading median of (actual TTFT - modelled TTFT), so that neither a straggler nor an old trouble
counts for long. A model's errors grow with what it foresees, and a tenth of a second too much says little about the
overhead where the steps alone take seconds: so each request weighs the less, the longer it was to take. The router
tells and asks.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW = 31
"""Requests that are remembered per replica."""
NUM_ZEROS = 3
"""Beside them, as many requests without overhead are assumed, as long as the typical one: so the first ones that come,
which may have set up connections, alone say nothing."""
SHORTEST_SECONDS = 0.01
"""Requests that were to take less weigh no more."""
FADE_SECONDS = 60.0
"""What was longer ago counts no more: a replica that is avoided for what it was gets a new chance."""
MAX_SECONDS = 1.0
"""What takes longer is no overhead, but something the model does not know, and no reason to expect it again."""


@dataclass(slots=True)
class _Record:
    samples: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """(when it came, seconds beside the modelled ones, modelled seconds) of each, the oldest first."""
    seconds: float = 0.0
    fades_at: float = 0.0
    """When `seconds` has to be computed anew."""


class OverheadBook:
    """Seconds per replica, by uid: at least 0, at most MAX_SECONDS, 0 at the start."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def seconds(self, uid: str, now: float) -> float:
        """What a request to this replica is expected to take beside the steps."""
        record = self._records.get(uid)
        if record is None:
            return 0.0
        if now >= record.fades_at:
            self._recompute(uid, record, now)
        return record.seconds

    def observe(self, uid: str, actual: float, modelled: float, now: float) -> None:
        """A request's first token took `actual` seconds, its steps should have taken `modelled`."""
        record = self._records.setdefault(uid, _Record())
        record.samples.append((now, actual - modelled, modelled))
        self._recompute(uid, record, now)

    def keep_only(self, uids: frozenset[str]) -> None:
        """Forgets replicas that left."""
        for uid in self._records.keys() - uids:
            del self._records[uid]

    def _recompute(self, uid: str, record: _Record, now: float) -> None:
        while record.samples and record.samples[0][0] <= now - FADE_SECONDS:
            record.samples.popleft()
        if not record.samples:
            del self._records[uid]
            record.seconds = 0.0
            return
        typical = median(modelled for _, _, modelled in record.samples)
        samples = [(0.0, typical)] * NUM_ZEROS + [(value, modelled) for _, value, modelled in record.samples]
        record.seconds = min(max(0.0, _weighted_median(samples)), MAX_SECONDS)
        record.fades_at = record.samples[0][0] + FADE_SECONDS


def _weighted_median(samples: Sequence[tuple[float, float]]) -> float:
    """Of (value, modelled seconds): the value with half of the weights below it, weights being 1 / seconds."""
    weighted = sorted((value, 1.0 / max(seconds, SHORTEST_SECONDS)) for value, seconds in samples)
    rest = sum(weight for _, weight in weighted) / 2
    for value, weight in weighted:
        rest -= weight
        if rest <= 0.0:
            return value
    return weighted[-1][0]

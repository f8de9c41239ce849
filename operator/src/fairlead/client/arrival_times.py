"""When requests arrive in an open loop: a renewal process whose rate may change from phase to phase. Pure."""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with one average rate."""

    rate: float
    """Arrivals per second; 0 = none."""
    seconds: float
    """How long it lasts; may be infinite."""

    def __post_init__(self) -> None:
        if not (self.rate >= 0 and self.seconds > 0):  # not numbers neither
            raise ValueError(
                f"a phase needs a rate of 0 or more and some seconds, not {self.rate:g} for {self.seconds:g}"
            )


def arrival_times(phases: Iterable[Phase], seed: int = 0, *, burstiness: float = 1.0) -> Iterator[float]:
    """Times of arrivals, in seconds since the first phase began, ascending; the same for the same seed.

    Each gap is one draw of a gamma distribution with mean 1, spent at the rate of the moment (time rescaling).
    `burstiness` is its shape, as in vLLM's benchmarks: 1 is a Poisson process of varying rate exactly, less comes in
    bursts, more ever more evenly. `phases` are taken one by one as their time comes near, so an iterator may decide
    late.
    """
    if not 0 < burstiness < math.inf:
        raise ValueError(f"burstiness is above 0 and finite, not {burstiness:g}")
    draw = random.Random(f"arrivals/{seed}")

    def gap() -> float:
        return draw.gammavariate(burstiness, 1.0 / burstiness)

    left = gap()
    began = 0.0
    for phase in phases:
        now, ends = began, began + phase.seconds
        while phase.rate > 0 and now + left / phase.rate < ends:
            now += left / phase.rate
            yield now
            left = gap()
        if phase.rate > 0:
            left -= (ends - now) * phase.rate
        began = ends

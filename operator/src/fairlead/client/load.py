"""A small load generator: closed loop (so many at a time) or open loop (so many per second), and its percentiles.

Used by the demo. It sends what it is given; making workloads is somebody else's work.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fairlead.client.openai import ApiError, Completion

Request = Callable[[], Awaitable[Completion]]
"""Sends one request and waits for its end."""


@dataclass(slots=True)
class LoadReport:
    """What came of a number of requests."""

    completions: list[Completion] = field(default_factory=list)
    """Those that were answered, in order of their end."""
    errors: list[ApiError] = field(default_factory=list)
    seconds: float = 0.0
    """From the first request's start to the last one's end."""

    @property
    def by_replica(self) -> dict[str, int]:
        """Answers per replica, most first."""
        return dict(Counter(completion.replica for completion in self.completions).most_common())

    @property
    def output_tokens_per_second(self) -> float:
        """Of all requests together."""
        total = sum(completion.num_completion_tokens for completion in self.completions)
        return total / self.seconds if self.seconds else 0.0

    def ttft_percentile(self, percent: float) -> float:
        """Seconds; 0 where nothing was answered."""
        return percentile([c.ttft_seconds for c in self.completions if c.ttft_seconds is not None], percent)

    def duration_percentile(self, percent: float) -> float:
        """Seconds; 0 where nothing was answered."""
        return percentile([completion.duration_seconds for completion in self.completions], percent)


async def closed_loop(requests: Iterable[Request], *, concurrency: int) -> LoadReport:
    """Sends all `requests`, `concurrency` at a time: each waits for one before it to end."""
    queue = iter(requests)
    report = LoadReport()

    async def work() -> None:
        for request in queue:  # shared: each worker takes the next one
            await _send(request, report)

    return await _timed(report, [work() for _ in range(concurrency)])


async def open_loop(requests: Sequence[Request], *, rate: float, seed: int = 0) -> LoadReport:
    """Sends all `requests` at Poisson arrivals, `rate` per second on average, whether or not answers come."""
    draw, report = random.Random(seed), LoadReport()
    arrival = 0.0

    async def later(request: Request, delay: float) -> None:
        await asyncio.sleep(delay)
        await _send(request, report)

    work = []
    for request in requests:
        work.append(later(request, arrival))
        arrival += draw.expovariate(rate)
    return await _timed(report, work)


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the nearest ranks, as numpy's default; 0 for no values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


async def _send(request: Request, report: LoadReport) -> None:
    try:
        report.completions.append(await request())
    except ApiError as error:
        report.errors.append(error)


async def _timed(report: LoadReport, work: Iterable[Awaitable[None]]) -> LoadReport:
    clock = asyncio.get_running_loop().time
    started = clock()
    await asyncio.gather(*work)
    report.seconds = clock() - started
    return report

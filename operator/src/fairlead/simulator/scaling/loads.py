"""Loads of a fleet in virtual time: a kind of machine, requests per second over time, and the catalogue of benchmarks.

A load is in capacities of a replica, and suits every machine.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from fairlead.simulator.scaled_fleet import NUM_BLOCKS, TOKEN_BUDGET, RecordedRequest, Workload
from fairlead_common.wire.messages import StepCost

QUIET_SECONDS = 60.0
"""Time before the load of a benchmark begins, which is not judged."""

Load = Callable[[float], float]
"""Requests per second, in capacities of one replica, at a number of seconds since the load began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An engine, the mean request, and the targets of the fleet."""

    cost: StepCost
    told_cost: StepCost | None = None
    """As engines report; None = the true cost."""
    slots: int
    prompt: int
    """Tokens of a prompt, on average."""
    uncached: int
    """Of these, tokens to compute."""
    output: int
    """Tokens of an answer, on average."""
    target: float = 2.0
    """Longest time to first token, in seconds."""
    depth: int = 12
    """Most waiting requests per replica."""
    num_blocks: int = NUM_BLOCKS
    token_budget: int = TOKEN_BUDGET

    def work(self, prompt: int, uncached: int, output: int) -> float:
        """Seconds of a replica with full slots for one request of these tokens."""
        cost = self.cost
        decode = cost.base / self.slots + cost.decode_seq + cost.kv_token * (prompt + output / 2.0)
        context = cost.prefill_context * uncached * (prompt - uncached / 2.0)
        return output * decode / cost.tokens_per_decode + cost.prefill_token * uncached + context + cost.prefill_step

    @property
    def capacity(self) -> float:
        """Requests per second that keep the slots of one replica taken."""
        return 1.0 / self.work(self.prompt, self.uncached, self.output)


def _times(cost: StepCost, by: float) -> StepCost:
    names = ("base", "prefill_token", "prefill_step", "decode_seq")
    return StepCost(**{name: by * getattr(cost, name) for name in names})


_SMALL = StepCost(base=0.002, prefill_token=0.00005, prefill_step=0.0005, decode_seq=0.00034)
SMALL = Machine(cost=_SMALL, slots=4, prompt=430, uncached=40, output=256)
"""A model of the demo's size on a quick machine: 0.87 s per request, 4.6 requests per second."""
DEMO = replace(SMALL, cost=_times(_SMALL, 2.9 * 1.25), told_cost=_times(_SMALL, 2.9))
"""The demo on two busy cores: steps take a quarter longer than engines report."""
GPU = Machine(
    cost=StepCost(base=0.012, prefill_token=0.0001, decode_seq=0.0002), slots=32, prompt=800, uncached=300, output=200
)
"""32 slots, 4.7 s per request, 6.9 requests per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A load on a kind of machine."""

    name: str
    load: Load
    seconds: float
    """From the beginning of the load to the end."""
    machine: Machine = SMALL
    cold_start: float = 5.0
    replicas: int = 1
    """At the start of the fleet."""
    most_replicas: int = 30
    """For contenders without settings of their own."""
    quiet: float = QUIET_SECONDS
    """Seconds from the start of the fleet to the beginning of the load; not judged."""
    recorded: tuple[RecordedRequest, ...] | None = None
    """Times since the beginning of the load. None = arrivals are drawn at random by the load."""
    begins: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    """Time of day of the start, for schedules."""

    @property
    def end(self) -> float:
        """Seconds from the start of the fleet to the end."""
        return self.quiet + self.seconds

    def capacities(self, time: float) -> float:
        """The load at a time of the fleet, in capacities of one replica."""
        return self.load(time - self.quiet)

    def most(self, since: float, until: float) -> float:
        """The greatest load between two times of the fleet, in capacities of one replica."""
        steps = max(20, math.ceil(until - since))
        return max(self.capacities(since + (until - since) * each / steps) for each in range(steps + 1))

    def workload(self) -> Workload:
        """The requests of clients over the time of the fleet."""
        machine = self.machine
        return Workload(
            rate=lambda time: machine.capacity * self.capacities(time),
            prompt_tokens=machine.prompt,
            uncached_tokens=machine.uncached,
            output_tokens=machine.output,
            recorded=self.recorded,
        )


# -- shapes: functions of their parameters and, last, of the seconds since the load began ------------------------------


def step(before: float, after: float, now: float) -> float:
    """From one rate to another at the beginning."""
    return before if now < 0.0 else after


def ramp(before: float, after: float, seconds: float, now: float) -> float:
    """From one rate to another within a number of seconds, and constant afterwards."""
    return before + (after - before) * min(1.0, max(0.0, now / seconds))


def on_off(high: float, low: float, seconds: float, now: float) -> float:
    """High and low by turns, each for a number of seconds."""
    return high if now >= 0.0 and now // seconds % 2 == 0 else low


def tide(low: float, high: float, seconds: float, now: float) -> float:
    """A wave with one maximum in a number of seconds."""
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    return low if now < 0.0 else middle - half * math.cos(2.0 * math.pi * now / seconds)


def saw(low: float, high: float, seconds: float, now: float) -> float:
    """From low to high within a number of seconds, then low at once, again and again."""
    return low if now < 0.0 else low + (high - low) * (now % seconds) / seconds


def surge(base: float, high: float, seconds: float, now: float) -> float:
    """High for a number of seconds from the beginning, else the base."""
    return high if 0.0 <= now < seconds else base


TRACES = (
    Trace(name="step 0.5 → 1.2", load=partial(step, 0.5, 1.2), seconds=300.0),
    Trace(name="step 0.5 → 2", load=partial(step, 0.5, 2.0), seconds=300.0),
    Trace(name="step 0.5 → 5", load=partial(step, 0.5, 5.0), seconds=300.0),
    Trace(name="step 0.5 → 2, start 60 s", load=partial(step, 0.5, 2.0), seconds=420.0, cold_start=60.0),
    Trace(name="ramp 0.5 → 5 in 120 s", load=partial(ramp, 0.5, 5.0, 120.0), seconds=300.0),
    Trace(
        name="ramp 0.5 → 5 in 600 s, start 60 s", load=partial(ramp, 0.5, 5.0, 600.0), seconds=700.0, cold_start=60.0
    ),
    Trace(name="on and off, 2 and 0.1, 60 s each", load=partial(on_off, 2.0, 0.1, 60.0), seconds=600.0),
    Trace(name="tide 0.2 … 4 in 1200 s", load=partial(tide, 0.2, 4.0, 1200.0), seconds=1200.0, cold_start=20.0),
    Trace(name="demo: 0 → 1.15", load=partial(step, 0.0, 1.15), seconds=200.0, machine=DEMO),
    Trace(
        name="32 slots: step 0.5 → 2, start 60 s", load=partial(step, 0.5, 2.0), seconds=420.0, machine=GPU,
        cold_start=60.0,
    ),
    Trace(
        name="32 slots: ramp 0.5 → 3 in 600 s, start 60 s", load=partial(ramp, 0.5, 3.0, 600.0), seconds=700.0,
        machine=GPU, cold_start=60.0,
    ),
)  # fmt: skip
HELD_OUT = (
    Trace(name="step 1.2 → 3, start 30 s", load=partial(step, 1.2, 3.0), seconds=400.0, cold_start=30.0, replicas=2),
    Trace(name="saw 0.3 … 3 in 300 s, start 10 s", load=partial(saw, 0.3, 3.0, 300.0), seconds=900.0, cold_start=10.0),
    Trace(
        name="surge 4 for 90 s on 0.6, start 20 s", load=partial(surge, 0.6, 4.0, 90.0), seconds=400.0, cold_start=20.0
    ),
    Trace(name="ramp 4 → 0.5 in 400 s", load=partial(ramp, 4.0, 0.5, 400.0), seconds=600.0, replicas=5),
    Trace(
        name="32 slots: tide 0.5 … 3 in 900 s, start 30 s", load=partial(tide, 0.5, 3.0, 900.0), seconds=900.0,
        machine=GPU, cold_start=30.0,
    ),
)  # fmt: skip
"""Loads by which no rule and no constant was chosen."""


def named(texts: Iterable[str], *, held_out: bool = False) -> list[Trace]:
    """The benchmarks whose name contains one of the texts; all of them for no texts."""
    wanted = tuple(texts)
    return [each for each in (HELD_OUT if held_out else TRACES) if not wanted or any(t in each.name for t in wanted)]

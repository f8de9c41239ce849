"""The autoscaler against rivals that are a formula each, on eleven loads over a fleet in virtual time.

    make bench-autoscaling            or    python operator/benchmarks/autoscaling.py --seeds 4

Every policy looks once a second at the same signals (`ScaledFleet`), with the real cold start and no delay of a metrics
pipeline, which flatters the rivals. Attained is the share of the requests after the load began whose first token came
within the target; requests that have waited for longer at the end count as late. Replica-seconds are of the whole
trace, with replicas that start or drain.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScalingTargets
from fairlead.autoscaler.history import History
from fairlead.autoscaler.recommend import recommend
from fairlead.autoscaler.recommendation import Recommendation
from fairlead.autoscaler.signals import Signals
from fairlead.simulator.scaled_fleet import Decide, ScaledFleet, Workload
from fairlead_common.wire.messages import StepCost

BEGIN = 60.0
"""When the load of a trace begins; the time before is not judged."""
MOST_REPLICAS = 30
ALIKE = 0.005
"""A difference of attained shares that decides nothing."""

Load = Callable[[float], float]
"""Requests per second, in capacities of one replica, at a number of seconds since BEGIN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An engine, its requests and what is asked of the fleet."""

    cost: StepCost
    told_cost: StepCost | None = None
    """As engines report; None = the true cost."""
    slots: int
    capacity: float
    """Requests per second that keep one replica's slots taken."""
    prompt: int
    uncached: int
    output: int
    target: float = 2.0
    depth: int = 12


def _times(cost: StepCost, by: float) -> StepCost:
    names = ("base", "prefill_token", "prefill_step", "decode_seq")
    return StepCost(**{name: by * getattr(cost, name) for name in names})


_SMALL = StepCost(base=0.002, prefill_token=0.00005, prefill_step=0.0005, decode_seq=0.00034)
SMALL = Machine(cost=_SMALL, slots=4, capacity=4.6, prompt=430, uncached=40, output=256)
"""A model of the demo's size on a quick machine: 0.87 s per request."""
DEMO = replace(SMALL, cost=_times(_SMALL, 2.9 * 1.25), told_cost=_times(_SMALL, 2.9), capacity=1.59 / 1.25)
"""The demo on two busy cores: engines that take a quarter longer than they say."""
GPU = Machine(
    cost=StepCost(base=0.012, prefill_token=0.0001, decode_seq=0.0002),
    slots=32, capacity=6.9, prompt=800, uncached=300, output=200,
)  # fmt: skip
"""32 slots, 4.7 s per request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A load on a kind of machine."""

    name: str
    load: Load
    seconds: float
    """From BEGIN to the end."""
    machine: Machine = SMALL
    cold_start: float = 5.0
    replicas: int = 1
    """At the beginning."""

    def per_second(self, time: float) -> float:
        """Requests per second at a time of the fleet."""
        return self.machine.capacity * self.load(time - BEGIN)


def step(before: float, after: float) -> Load:
    """From one rate to another at BEGIN."""
    return lambda now: before if now < 0.0 else after


def ramp(before: float, after: float, seconds: float) -> Load:
    """From one rate to another within so many seconds; then it stays."""
    return lambda now: before + (after - before) * min(1.0, max(0.0, now / seconds))


def on_off(high: float, low: float, seconds: float) -> Load:
    """High and low by turns, each for so many seconds."""
    return lambda now: high if now >= 0.0 and now // seconds % 2 == 0 else low


def tide(low: float, high: float, seconds: float) -> Load:
    """A wave with one maximum in so many seconds."""
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    return lambda now: low if now < 0.0 else middle - half * math.cos(2.0 * math.pi * now / seconds)


TRACES = (
    Trace(name="step 0.5 → 1.2", load=step(0.5, 1.2), seconds=300.0),
    Trace(name="step 0.5 → 2", load=step(0.5, 2.0), seconds=300.0),
    Trace(name="step 0.5 → 5", load=step(0.5, 5.0), seconds=300.0),
    Trace(name="step 0.5 → 2, start 60 s", load=step(0.5, 2.0), seconds=420.0, cold_start=60.0),
    Trace(name="ramp 0.5 → 5 in 120 s", load=ramp(0.5, 5.0, 120.0), seconds=300.0),
    Trace(name="ramp 0.5 → 5 in 600 s, start 60 s", load=ramp(0.5, 5.0, 600.0), seconds=700.0, cold_start=60.0),
    Trace(name="on and off, 2 and 0.1, 60 s each", load=on_off(2.0, 0.1, 60.0), seconds=600.0),
    Trace(name="tide 0.2 … 4 in 1200 s", load=tide(0.2, 4.0, 1200.0), seconds=1200.0, cold_start=20.0),
    Trace(name="demo: 0 → 1.15", load=step(0.0, 1.15), seconds=200.0, machine=DEMO),
    Trace(name="32 slots: step 0.5 → 2, start 60 s", load=step(0.5, 2.0), seconds=420.0, machine=GPU, cold_start=60.0),
    Trace(
        name="32 slots: ramp 0.5 → 3 in 600 s, start 60 s", load=ramp(0.5, 3.0, 600.0), seconds=700.0, machine=GPU,
        cold_start=60.0,
    ),
)  # fmt: skip


def saw(low: float, high: float, seconds: float) -> Load:
    """From low to high within so many seconds, then low at once, again and again."""
    return lambda now: low if now < 0.0 else low + (high - low) * (now % seconds) / seconds


def surge(base: float, high: float, seconds: float) -> Load:
    """High for so many seconds from BEGIN, else the base."""
    return lambda now: high if 0.0 <= now < seconds else base


HELD_OUT = (
    Trace(name="step 1.2 → 3, start 30 s", load=step(1.2, 3.0), seconds=400.0, cold_start=30.0, replicas=2),
    Trace(name="saw 0.3 … 3 in 300 s, start 10 s", load=saw(0.3, 3.0, 300.0), seconds=900.0, cold_start=10.0),
    Trace(name="surge 4 for 90 s on 0.6, start 20 s", load=surge(0.6, 4.0, 90.0), seconds=400.0, cold_start=20.0),
    Trace(name="ramp 4 → 0.5 in 400 s", load=ramp(4.0, 0.5, 400.0), seconds=600.0, replicas=5),
    Trace(
        name="32 slots: tide 0.5 … 3 in 900 s, start 30 s", load=tide(0.5, 3.0, 900.0), seconds=900.0, machine=GPU,
        cold_start=30.0,
    ),
)  # fmt: skip
"""Loads by which no rule and no constant was chosen."""


# -- rivals ------------------------------------------------------------------------------------------------------------


class Formula(Protocol):
    """A rival: replicas by the signals of this second. Keeps state of its own."""

    def __call__(self, signals: Signals) -> float:
        """The number, before bounds."""


@dataclass(slots=True)
class Averaged:
    """Mean of a figure over the last seconds."""

    window: float
    seen: list[tuple[float, float]] = field(default_factory=list)

    def add(self, time: float, value: float) -> float:
        """The mean with one more value."""
        self.seen = [(at, each) for at, each in self.seen if at > time - self.window]
        self.seen.append((time, value))
        return statistics.fmean(each for _, each in self.seen)


def in_flight(signals: Signals) -> int:
    """Requests at gateways and replicas."""
    return signals.demand.waiting + signals.demand.running


@dataclass(slots=True)
class KubeAI:
    """Mean requests in flight over a window, by the requests that one replica shall have; every 10 s, and fewer after a
    delay of 30 s in which fewer were always enough."""

    each: float
    window: float
    mean: Averaged = field(init=False)
    next_at: float = 0.0
    fewer_since: float | None = None

    def __post_init__(self) -> None:
        self.mean = Averaged(self.window)

    def __call__(self, signals: Signals) -> float:
        wanted = math.ceil(self.mean.add(signals.time, in_flight(signals)) / self.each)
        if signals.time < self.next_at:
            return signals.desired
        self.next_at = signals.time + 10.0
        if wanted >= signals.desired:
            self.fewer_since = None
            return wanted
        self.fewer_since = signals.time if self.fewer_since is None else self.fewer_since
        return wanted if signals.time - self.fewer_since >= 30.0 else signals.desired


@dataclass(slots=True)
class HPA:
    """Kubernetes' formula on requests in flight per ready replica: every 15 s, a tolerance of a tenth, and the largest
    number of the last window before fewer."""

    each: float
    window: float
    next_at: float = 0.0
    wanted: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, signals: Signals) -> float:
        if signals.time < self.next_at:
            return signals.desired
        self.next_at = signals.time + 15.0
        ready = max(1, signals.ready)
        ratio = in_flight(signals) / ready / self.each
        number = signals.desired if abs(ratio - 1.0) <= 0.1 else math.ceil(ready * ratio)
        self.wanted = [(at, each) for at, each in self.wanted if at > signals.time - self.window]
        self.wanted.append((signals.time, number))
        return max(each for _, each in self.wanted)


@dataclass(slots=True)
class KPA:
    """Knative's formula: the mean in flight of 60 s; of the last 6 s while that asks for twice the ready replicas, and
    nothing goes during such a panic."""

    each: float
    stable: Averaged = field(default_factory=lambda: Averaged(60.0))
    short: Averaged = field(default_factory=lambda: Averaged(6.0))
    panic_until: float = 0.0
    most: float = 0.0

    def __call__(self, signals: Signals) -> float:
        now, flying = signals.time, in_flight(signals)
        stable = math.ceil(self.stable.add(now, flying) / self.each)
        short = math.ceil(self.short.add(now, flying) / self.each)
        if short >= 2 * max(1, signals.ready):
            self.panic_until = now + 60.0
        if now >= self.panic_until:
            self.most = 0.0
            return stable
        self.most = max(self.most, short, signals.desired)
        return self.most


@dataclass(slots=True)
class DynamoLoad:
    """The load planner: one more where every engine's estimated time is above the target, one fewer where every one is
    below 0.8 of it; every 5 s, and not while replicas start. Estimates: the prefill queue, and slots taken."""

    slots: int
    target: float
    share: float = 0.7
    next_at: float = 0.0

    def __call__(self, signals: Signals) -> float:
        demand = signals.demand
        if signals.time < self.next_at or signals.starting or signals.draining or demand.capacity is None:
            return signals.desired
        self.next_at = signals.time + 5.0
        cost = demand.capacity.step_cost
        ready = max(1, signals.ready)
        wait = 0.0 if cost is None else cost.prefill_token * demand.backlog_tokens / ready
        load = max(wait / self.target, in_flight(signals) / ready / (self.share * self.slots))
        return signals.desired + 1 if load > 1.0 else signals.desired - 1 if load < 0.8 else signals.desired


@dataclass(slots=True)
class Oracle:
    """Knows the rate from one cold start and 5 s ahead until now, and keeps replicas loaded to a share."""

    trace: Trace
    share: float

    def __call__(self, signals: Signals) -> float:
        ahead = self.trace.cold_start + 5.0
        times = [signals.time + ahead * part / 20.0 for part in range(21)]
        most = max(map(self.trace.per_second, times))
        return math.ceil(most / (self.share * self.trace.machine.capacity) - 1e-9)


def follow(formula: Formula) -> Decide:
    """The policy that asks for what a formula says, within the bounds of the spec."""

    def decide(signals: Signals, spec: Autoscaling, history: History) -> Recommendation:
        number = max(spec.min_replicas or 1, min(spec.max_replicas or 1, math.ceil(formula(signals))))
        return Recommendation(replicas=number, reason="", wanted=number)

    return decide


def _static(trace: Trace) -> Decide:
    most = max(trace.load(float(second)) for second in range(int(trace.seconds)))
    return follow(lambda _: math.ceil(most / 0.8 - 1e-9))


POLICIES: dict[str, Callable[[Trace], Decide]] = {
    "Fairlead": lambda trace: recommend,
    "KubeAI 10 min, 0.7": lambda trace: follow(KubeAI(0.7 * trace.machine.slots, 600.0)),
    "KubeAI 1 min, 0.6": lambda trace: follow(KubeAI(0.6 * trace.machine.slots, 60.0)),
    "HPA 5 min, 0.7": lambda trace: follow(HPA(0.7 * trace.machine.slots, 300.0)),
    "HPA 1 min, 0.6": lambda trace: follow(HPA(0.6 * trace.machine.slots, 60.0)),
    "KPA, 0.6": lambda trace: follow(KPA(0.6 * trace.machine.slots)),
    "KPA, 0.8": lambda trace: follow(KPA(0.8 * trace.machine.slots)),
    "Dynamo load, 0.7": lambda trace: follow(DynamoLoad(trace.machine.slots, trace.machine.target)),
    "static": _static,
    "oracle, 0.8": lambda trace: follow(Oracle(trace, 0.8)),
}
NOT_RIVALS = ("Fairlead", "static", "oracle, 0.8")
"""Static and oracle know the load beforehand."""


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one trace, with one seed, or the mean over seeds."""

    attained: float
    replica_seconds: float
    num_changes: float


def play(trace: Trace, policy: str, seed: int) -> Outcome:
    """One run."""
    machine = trace.machine
    spec = Autoscaling(
        min_replicas=1,
        max_replicas=MOST_REPLICAS,
        targets=ScalingTargets(queue_depth=machine.depth, time_to_first_token=machine.target),
        scale_down=ScaleDown(stabilization_window=10.0),
    )
    workload = Workload(
        rate=trace.per_second, prompt_tokens=machine.prompt, uncached_tokens=machine.uncached,
        output_tokens=machine.output,
    )  # fmt: skip
    fleet = ScaledFleet(
        spec, workload, cost=machine.cost, told_cost=machine.told_cost, slots=machine.slots,
        cold_start=trace.cold_start, replicas=trace.replicas, seed=seed, decide=POLICIES[policy](trace),
    )  # fmt: skip
    end = BEGIN + trace.seconds
    fleet.run(end)
    judged = [(at, took) for at, took in fleet.first_tokens if at - took >= BEGIN]
    waiting = [end - each.arrived for each in fleet.waiting if each.arrived >= BEGIN]
    num_late = sum(seconds > machine.target for seconds in waiting)
    num_in_time = sum(took <= machine.target for _, took in judged)
    return Outcome(
        attained=num_in_time / max(1, len(judged) + num_late),
        replica_seconds=fleet.replica_seconds,
        num_changes=len(fleet.changes),
    )


def mean(outcomes: Sequence[Outcome]) -> Outcome:
    """Over seeds."""
    return Outcome(
        statistics.fmean(each.attained for each in outcomes),
        statistics.fmean(each.replica_seconds for each in outcomes),
        statistics.fmean(each.num_changes for each in outcomes),
    )


def table(results: dict[tuple[str, str], Outcome], policies: Sequence[str]) -> str:
    """The results in Markdown: one row per trace, with the rivals that gain there, and one of all traces."""
    names = list(dict.fromkeys(name for name, _ in results))
    heads = ("trace", *policies, "better than Fairlead", "attains more, with more replicas")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name in names:
        row = {policy: results[name, policy] for policy in policies}
        cells = [f"{each.attained:.3f}, {each.replica_seconds:.0f}, {each.num_changes:.0f}" for each in row.values()]
        lines.append(f"| {name} | {' | '.join([*cells, _rivals(row, False), _rivals(row, True)])} |")
    sums = [[results[name, policy] for name in names] for policy in policies]
    means = [
        f"{statistics.fmean(each.attained for each in one):.3f}, {sum(each.replica_seconds for each in one):.0f}, "
        f"{sum(each.num_changes for each in one):.0f}"
        for one in sums
    ]
    return "\n".join([*lines, f"| mean, and sums | {' | '.join(means)} | | |", ""])


def _rivals(row: dict[str, Outcome], is_dearer: bool) -> str:
    """Rivals that attain more for more replica-seconds, or that attain as much for fewer, or more for as few."""
    ours = row.get("Fairlead")
    if ours is None:
        return ""
    found = []
    for policy, each in row.items():
        gain, price = each.attained - ours.attained, each.replica_seconds / ours.replica_seconds - 1.0
        if is_dearer:
            is_found = gain > ALIKE and price > ALIKE
        else:
            is_found = gain >= -ALIKE and price <= ALIKE and (gain > ALIKE or price < -ALIKE)
        if is_found and policy not in NOT_RIVALS:
            found.append(policy)
    return "; ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="runs of each policy on each trace")
    parser.add_argument("--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES), metavar="NAME")
    parser.add_argument("--traces", nargs="*", default=[""], metavar="TEXT", help="those whose name contains one")
    parser.add_argument("--held-out", action="store_true", help="the loads by which nothing was chosen, instead")
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    parser.add_argument("--output", type=Path, help="a file for the table, in Markdown")
    args = parser.parse_args()
    traces = [
        each for each in (HELD_OUT if args.held_out else TRACES) if any(text in each.name for text in args.traces)
    ]
    runs = [(trace.name, policy, seed) for trace in traces for policy in args.policies for seed in range(args.seeds)]
    with ProcessPoolExecutor(args.processes) as pool:
        outcomes = dict(zip(runs, pool.map(_played, runs), strict=True))
    results = {
        (trace.name, policy): mean([outcomes[trace.name, policy, seed] for seed in range(args.seeds)])
        for trace in traces
        for policy in args.policies
    }
    text = table(results, args.policies)
    print(text)
    if args.output is not None:
        args.output.write_text(text)


def _played(run: tuple[str, str, int]) -> Outcome:
    name, policy, seed = run
    return play(next(trace for trace in (*TRACES, *HELD_OUT) if trace.name == name), policy, seed)


if __name__ == "__main__":
    main()

"""A trial: one contender on one trace with one seed, and the figures of the run."""

import math
from dataclasses import dataclass, replace

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScalingTargets
from fairlead.api.scaling_policy import fewest_replicas, most_replicas
from fairlead.api.scaling_schedules import bounds_at
from fairlead.simulator.scaled_fleet import Request, ScaledFleet
from fairlead.simulator.scaling.loads import Trace
from fairlead.simulator.scaling.policies import OURS, policy
from fairlead.simulator.scaling.recording import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A policy with its settings: a row of the tables."""

    name: str
    policy: str = OURS
    """Of the catalogue."""
    spec: Autoscaling | None = None
    """None = the settings of the benchmarks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The figures of one run."""

    attained: float
    """Share of the judged requests with a first token within the target. Requests that have waited for longer at the
    end count as late, younger ones do not count."""
    replica_seconds: float
    """Of all replicas over the whole trace, with those that start and drain."""
    num_changes: int
    ttft_p90: float
    """Seconds; a request without a first token counts with its age."""
    num_requests: int
    """That came after the load began."""
    replicas: tuple[tuple[float, int], ...]
    """Time of the fleet, and the number asked for from then on; the first is the start."""


def benchmark_spec(trace: Trace) -> Autoscaling:
    """Settings of the benchmarks: the machine's targets, and a scale-down window of 10 s."""
    machine = trace.machine
    return Autoscaling(
        min_replicas=1,
        max_replicas=trace.most_replicas,
        targets=ScalingTargets(queue_depth=machine.depth, time_to_first_token=machine.target),
        scale_down=ScaleDown(stabilization_window=10.0),
    )


def play(trace: Trace, contender: Contender, seed: int, recording: Recording | None = None) -> TrialResult:
    """One run. `recording`: the requests of the trace, in the order of this seed."""
    fleet = fleet_of(trace, contender, seed, recording)
    first = fleet.desired
    fleet.run(trace.end)
    return result(fleet, trace, first)


def fleet_of(trace: Trace, contender: Contender, seed: int, recording: Recording | None = None) -> ScaledFleet:
    """The fleet of a run, before its start."""
    machine = trace.machine
    if recording is not None:
        trace = replace(trace, recorded=recording.shuffled(seed).requests)
    spec = contender.spec or benchmark_spec(trace)
    bounds = bounds_at(spec, trace.begins)
    return ScaledFleet(
        spec, trace.workload(), cost=machine.cost, told_cost=machine.told_cost, slots=machine.slots,
        cold_start=trace.cold_start, replicas=max(fewest_replicas(bounds), min(most_replicas(bounds), trace.replicas)),
        seed=seed, decide=policy(contender.policy, trace), num_blocks=machine.num_blocks,
        token_budget=machine.token_budget, begins=trace.begins, decisions_kept=1,
    )  # fmt: skip


def result(fleet: ScaledFleet, trace: Trace, first: int) -> TrialResult:
    """The figures of a fleet at the end of a trace. `first`: replicas at the start."""
    target = trace.machine.target
    judged = [took for at, took in fleet.first_tokens if at - took >= trace.quiet]
    engines = [replica.model for replica in fleet.replicas]
    inside = [each for engine in engines for each in (*engine.waiting, *engine.running) if not each.num_generated]
    unanswered = [each for each in (*fleet.waiting, *inside) if isinstance(each, Request)]
    waiting = [fleet.time - each.arrived for each in unanswered if each.arrived >= trace.quiet]
    num_late = sum(seconds > target for seconds in waiting)
    took = sorted([*judged, *waiting])
    return TrialResult(
        attained=sum(seconds <= target for seconds in judged) / max(1, len(judged) + num_late),
        replica_seconds=fleet.replica_seconds,
        num_changes=len(fleet.changes),
        ttft_p90=took[min(len(took) - 1, math.ceil(0.9 * len(took)) - 1)] if took else 0.0,
        num_requests=len(took),
        replicas=((0.0, first), *fleet.changes),
    )

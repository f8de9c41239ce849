"""Time per output token: the formula by hand, what measurements change, and a fleet in virtual time that is held to
it."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScalingTargets
from fairlead.api.signals_message import SECONDS_BOUNDS
from fairlead.autoscaler.tpot import expected_pace, out_of_reach, slow_tokens
from fairlead.demand.buckets import Buckets
from fairlead.demand.signals import Capacity, Demand, Signals
from fairlead.simulator.scaled_fleet import ScaledFleet, Workload
from fairlead_common.wire.messages import StepCost

COST = StepCost(base=0.02, decode_seq=0.002, kv_token=0.00001)
CAPACITY = Capacity(step_cost=COST, token_budget=100, max_num_seqs=32, kv_blocks=1000)
TARGETS = ScalingTargets(time_per_output_token=0.05, percentile=50)


def signals(ready: int, tpot: float | None = None, **demand: Any) -> Signals:
    """A context of 100 tokens, so a step of q sequences takes 20 + 3·q ms."""
    counts = [20 * (tpot is not None and bound == tpot) for bound in (*SECONDS_BOUNDS, None)]
    seen = Demand(
        prompt_tokens_per_request=50.0, output_tokens_per_request=100.0, num_gateways=1, tpot=Buckets.seconds(counts),
        recent_tpot=Buckets.seconds(counts), capacity=CAPACITY, arrivals_per_second=2.5,
    )  # fmt: skip
    seen = replace(seen, **demand)
    return Signals(time=0.0, desired=ready, ready=ready, starting=0, draining=0, demand=seen)


def test_steps_are_shared_with_the_sequences_that_run_beside() -> None:
    """250 tokens/s: on one replica work of 0.75 of a second, so a step of 80 ms with 20 sequences; on two 32 ms with 4.
    A request has these beside its own."""
    seen = signals(1)
    paces = [expected_pace(number, seen, 50) for number in (1, 2)]
    assert [each and each.sequences for each in paces] == pytest.approx([21.0, 5.0])
    assert [each and each.seconds for each in paces] == pytest.approx([0.083, 0.035])
    assert slow_tokens(1, seen, TARGETS, 0.1) == (
        "would take 83ms per output token at p50 > timePerOutputToken 50ms, with 21 sequences each"
    )
    assert slow_tokens(2, seen, TARGETS, 0.0) == ""
    assert not slow_tokens(2, seen, replace(TARGETS, time_per_output_token=0.0355), -0.0)
    assert slow_tokens(2, seen, replace(TARGETS, time_per_output_token=0.0355), -0.1), "too little room to let one go"


def test_measurements_raise_the_prediction_and_its_floor() -> None:
    slow = next(bound for bound in SECONDS_BOUNDS if bound > 0.07)
    seen = signals(2, tpot=slow, arrivals_per_second=0.001)
    measured, pace = seen.demand.tpot.percentile(50), expected_pace(2, seen, 50)
    assert measured and pace and [pace.seconds, pace.floor] == pytest.approx([measured] * 2, rel=1e-3)
    assert out_of_reach(seen, TARGETS) and not slow_tokens(2, seen, TARGETS, 0.1), "more replicas would be no help"
    assert slow_tokens(1, seen, TARGETS, -0.1), "but it is not sure, so none goes"
    assert not out_of_reach(signals(2, arrivals_per_second=0.001), TARGETS)


def test_without_a_step_cost_none_is_added_and_fewer_are_slower_at_most_in_proportion() -> None:
    bound = SECONDS_BOUNDS[12]
    seen = signals(4, tpot=bound, capacity=None)
    measured, pace = seen.demand.tpot.percentile(50), expected_pace(2, seen, 50)
    assert measured and pace and pace.seconds == pytest.approx(2.0 * measured)
    assert expected_pace(4, seen, 50) is expected_pace(5, seen, 50) is None


def test_a_fleet_follows_its_target_and_no_target_that_is_out_of_reach() -> None:
    """At two requests a second one replica has free slots and no queue, and takes 38 ms for a token at p90."""

    def run(target: float) -> ScaledFleet:
        targets = ScalingTargets(queue_depth=4, time_per_output_token=target)
        spec = Autoscaling(
            min_replicas=1, max_replicas=10, targets=targets, scale_down=ScaleDown(stabilization_window=20.0)
        )
        work = Workload(
            rate=lambda now: 2.0 if now < 200.0 else 0.1, prompt_tokens=400, uncached_tokens=200, output_tokens=100
        )
        cost = StepCost(base=0.02, prefill_token=0.00002, decode_seq=0.0015, kv_token=1e-7)
        virtual = ScaledFleet(spec, work, cost=cost, slots=32)
        virtual.run(200.0)
        return virtual

    virtual = run(0.035)
    assert [number for _, number in virtual.changes] == [2]
    late = sorted(seconds for at, seconds in virtual.token_times if at > virtual.changes[0][0] + 40.0)
    assert late[int(0.9 * len(late))] <= 0.035
    assert "ms per output token at p90 > timePerOutputToken 35ms" in virtual.decisions[-1][1].reason
    virtual.run(150.0)
    assert [number for _, number in virtual.changes] == [2, 1]
    hopeless = run(0.015)
    assert hopeless.changes == []
    reason = hopeless.decisions[-1][1].reason
    assert "no number of replicas meets timePerOutputToken 15ms: a single sequence takes" in reason

"""The autoscaler in its loop, over a fleet in virtual time: it rises, falls, sleeps, wakes, and does not flap."""

import pkgutil
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScalingTargets
from fairlead.simulator.scaled_fleet import ScaledFleet, Workload
from fairlead_common.wire.messages import StepCost

COST = StepCost(base=0.03, prefill_token=0.0001, decode_seq=0.001, kv_token=1e-6)
"""One replica with 8 slots answers about 4 requests/s of 40 tokens each."""
SPEC = Autoscaling(
    min_replicas=1,
    max_replicas=10,
    targets=ScalingTargets(queue_depth=4, time_to_first_token=1.0),
    scale_down=ScaleDown(stabilization_window=20.0),
)
TO_ZERO = replace(SPEC, min_replicas=0, scale_to_zero_after=8.0, scale_down=ScaleDown(stabilization_window=5.0))


def fleet(
    rate: Callable[[float], float] | float, spec: Autoscaling = SPEC, *, cost: StepCost = COST, replicas: int = 1,
    seed: int = 0, cold_start: float = 20.0, told_cost: StepCost | None = None,
) -> ScaledFleet:  # fmt: skip
    workload = Workload(rate=rate if callable(rate) else lambda _: rate)
    return ScaledFleet(
        spec, workload, cost=cost, replicas=replicas, seed=seed, cold_start=cold_start, told_cost=told_cost
    )


def scaled(by: float) -> StepCost:
    seconds = set(StepCost.__struct_fields__) - {"residual", "tokens_per_decode"}
    return StepCost(**{name: by * getattr(COST, name) for name in seconds})


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.compute)])
@pytest.mark.parametrize("window", [5.0, 120.0])
@pytest.mark.parametrize("rate", [0.5, pytest.param(4.0, marks=pytest.mark.compute), 7.0])
def test_constant_load_settles_and_then_nothing_changes_any_more(rate: float, window: float, seed: int) -> None:
    """Requests at random, at a rate that stays: after the fleet has settled not one change in ten minutes."""
    virtual = fleet(rate, replace(SPEC, scale_down=ScaleDown(stabilization_window=window)), replicas=3, seed=seed)
    virtual.run(300.0 + 4 * window)
    settled = virtual.time
    virtual.run(600.0)
    assert virtual.changes_since(settled) == [], virtual.decisions[-1]
    assert virtual.counted.num_answered > 0.9 * virtual.counted.num_arrivals


@pytest.mark.compute
@pytest.mark.parametrize(
    "targets", [ScalingTargets(queue_depth=4), ScalingTargets(time_to_first_token=0.3)], ids=["queue", "ttft"]
)
@pytest.mark.parametrize("rate", [2.0, 7.0])
def test_one_target_alone_hardly_flaps_either(rate: float, targets: ScalingTargets) -> None:
    virtual = fleet(rate, replace(SPEC, targets=targets), replicas=3)
    virtual.run(400.0)
    settled = virtual.time
    virtual.run(600.0)
    assert len(virtual.changes_since(settled)) <= 2  # one that chance asks for goes again


@pytest.mark.compute
@pytest.mark.parametrize("told", [scaled(0.4), scaled(2.0), StepCost()], ids=["too-cheap", "too-dear", "unknown"])
def test_engines_that_are_wrong_about_their_steps_cost_one_mistake_not_many(told: StepCost) -> None:
    """A number of replicas that proved too few is not tried again for the same load."""
    virtual = fleet(5.0, replicas=3, told_cost=told, seed=1)
    virtual.run(1200.0)
    settled = virtual.time
    virtual.run(900.0)
    assert len(virtual.changes_since(settled)) <= 2
    late = [seconds for at, seconds in virtual.first_tokens if at >= settled]
    assert sorted(late)[int(0.9 * len(late))] <= 1.0


def test_a_step_up_is_answered_within_seconds_and_brings_first_tokens_within_target() -> None:
    virtual = fleet(lambda now: 1.0 if now < 60.0 else 8.0)
    virtual.run(240.0)
    first_at, _ = virtual.changes_since(60.0)[0]
    assert first_at <= 65.0
    enough_at = next(at for at, replicas in virtual.changes if replicas >= 3)
    assert enough_at <= 75.0
    assert max(replicas for _, replicas in virtual.changes) <= 6, virtual.changes  # three are needed
    late = sorted(seconds for at, seconds in virtual.first_tokens if at >= 150.0)
    assert late[int(0.9 * len(late))] <= 1.0


def test_a_step_down_is_followed_after_the_window_and_no_request_waits_for_it() -> None:
    virtual = fleet(lambda now: 8.0 if now < 100.0 else 1.0, replicas=3)
    virtual.run(100.0)
    assert virtual.desired == 3
    virtual.run(200.0)
    assert virtual.desired == 1
    assert all(at >= 115.0 for at, replicas in virtual.changes_since(100.0) if replicas < 3)
    assert next(at for at, replicas in virtual.changes_since(100.0) if replicas == 1) <= 200.0
    late = sorted(seconds for at, seconds in virtual.first_tokens if at >= 130.0)
    assert late[int(0.9 * len(late))] <= 1.0


def test_a_slow_rise_finds_its_replicas_before_it_needs_them() -> None:
    """From 1 to 12 requests/s within ten minutes: with cold starts of 20 s hardly any first token is late."""
    virtual = fleet(lambda now: 1.0 + 11.0 * min(1.0, now / 600.0))
    virtual.run(700.0)
    assert virtual.desired >= 3
    late = [seconds for _, seconds in virtual.first_tokens if seconds > 1.0]
    assert len(late) <= 0.1 * len(virtual.first_tokens)


def test_zero_one_zero_and_every_request_is_answered() -> None:
    virtual = fleet(lambda now: 2.0 if 60.0 <= now < 90.0 else 0.0, TO_ZERO, cold_start=6.0, seed=1)
    virtual.run(60.0)
    assert virtual.changes == [(8.0, 0)]
    virtual.run(30.0)
    woken_at, woken = virtual.changes[1]
    assert woken >= 1
    assert woken_at <= 62.0
    virtual.run(60.0)
    assert virtual.desired == 0
    assert virtual.changes[-1][0] >= 98.0  # 8 s after the last request came, at the earliest
    assert virtual.counted.num_answered == virtual.counted.num_arrivals > 0
    assert not virtual.replicas


def test_a_single_request_into_a_fleet_at_zero_starts_a_single_replica() -> None:
    virtual = fleet(
        lambda now: 60.0 if now >= 60.0 and not virtual.counted.num_arrivals else 0.0, TO_ZERO, cold_start=6.0
    )
    virtual.run(120.0)
    assert virtual.counted.num_arrivals == virtual.counted.num_answered == 1
    assert [replicas for _, replicas in virtual.changes] == [0, 1, 0]


@pytest.mark.parametrize("at", [7.4, 7.95, 8.0, 8.05, 8.6])
def test_a_request_around_the_second_in_which_the_last_replica_goes_is_answered(at: float) -> None:
    virtual = fleet(
        lambda now: 60.0 if now >= at and not virtual.counted.num_arrivals else 0.0, TO_ZERO, cold_start=6.0
    )
    virtual.run(40.0)
    assert virtual.counted.num_arrivals == virtual.counted.num_answered == 1
    assert virtual.changes[-1][1] == 0 and virtual.desired == 0
    assert all(seconds <= 8.0 for _, seconds in virtual.first_tokens)


def test_a_gateway_that_falls_silent_takes_nothing_away() -> None:
    virtual = fleet(lambda now: 8.0 if now < 100.0 else 0.5, replicas=3)
    virtual.run(100.0)
    virtual.is_silent = True
    virtual.run(200.0)
    assert virtual.desired == 3
    virtual.is_silent = False
    virtual.run(100.0)
    assert virtual.desired == 1


def test_tokens_are_counted_with_the_answers_that_are_over_as_gateways_count_them() -> None:
    """Those of answers under way would make each of the first answers look several times as long."""
    virtual = fleet(8.0)
    virtual.run(5.0)
    told = [signals.demand.output_tokens_per_request for signals, _ in virtual.decisions if signals.demand.running]
    answered = [tokens for tokens in told if tokens != 128.0]  # what is assumed before the first one is over
    assert answered and max(answered) <= 1.5 * virtual.workload.output_tokens


def test_the_benchmark_takes_out_rules_that_there_are() -> None:
    edits = runpy.run_path(str(Path(__file__).parents[2] / "operator" / "benchmarks" / "rules.py"))["EDITS"]
    page = (Path(__file__).parents[2] / "docs" / "benchmarks" / "autoscaling.md").read_text()
    for rule, (name, instead) in edits.items():
        assert f"| *{rule.capitalize()}*:" in page
        with patch(name, instead):
            assert pkgutil.resolve_name(name) is instead

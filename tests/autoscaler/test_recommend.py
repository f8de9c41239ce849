"""The decision: what demand asks for, what keeps replicas, and what bounds every step."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.api.llmdeployment import Autoscaling, ScaleDown, ScalingTargets
from fairlead.autoscaler.history import History, Want
from fairlead.autoscaler.prediction import predicted_ttft, predicted_waiting
from fairlead.autoscaler.recommend import Recommendation, recommend
from fairlead.autoscaler.signals import STALE_SECONDS, Signals

NOW = 1000.0
LONG_AGO = History(since=0.0)
SPEC = Autoscaling(
    min_replicas=1,
    max_replicas=20,
    targets=ScalingTargets(queue_depth=4, time_to_first_token=2.0),
    scale_down=ScaleDown(stabilization_window=10.0),
)


def signals(replicas: int = 1, **changes: Any) -> Signals:
    """Everything seen, nothing to do, on so many ready replicas."""
    idle = Signals(
        time=NOW, desired=replicas, ready=replicas, starting=0, draining=0, waiting=0, running=0, ttft_seconds=None,
        arrivals_per_second=0.0, age_seconds=0.0, num_gateways=2, missing_gateways=0,
    )  # fmt: skip
    return replace(idle, **changes)


def decided(seen: Signals, spec: Autoscaling = SPEC, history: History = LONG_AGO) -> Recommendation:
    return recommend(seen, spec, history)


def test_the_queue_asks_for_as_many_replicas_as_keep_it_within_its_depth() -> None:
    assert decided(signals(waiting=4)).replicas == 1
    assert decided(signals(waiting=5)).replicas == 2
    assert decided(signals(waiting=17, running=8)).replicas == 5


def test_the_time_to_first_token_asks_in_proportion() -> None:
    assert decided(signals(2, ttft_seconds=3.2)).replicas == 4
    assert decided(signals(2, ttft_seconds=1.0)).replicas == 1
    assert predicted_ttft(4, signals(2, ttft_seconds=3.0)) == 1.5


def test_the_more_demanding_target_decides() -> None:
    assert decided(signals(2, waiting=12, ttft_seconds=2.5)).replicas == 3
    assert decided(signals(2, waiting=12, ttft_seconds=5.0)).replicas == 5


@pytest.mark.parametrize("ttft", [1.81, 2.0, 2.19])
def test_a_time_to_first_token_near_its_target_changes_nothing(ttft: float) -> None:
    assert decided(signals(8, ttft_seconds=ttft)).replicas == 8


def test_without_a_measured_time_to_first_token_only_the_queue_asks() -> None:
    assert decided(signals(3)).replicas == 1
    assert decided(signals(3, waiting=13)).replicas == 4


def test_a_fleet_without_ready_replicas_can_be_asked_for_more() -> None:
    assert decided(signals(1, ready=0, starting=1, waiting=9)).replicas == 3


def test_replicas_that_work_are_not_taken_for_idle_ones() -> None:
    busy = signals(6, running=48)
    assert predicted_waiting(6, busy) == 0
    assert predicted_waiting(4, busy) == pytest.approx(16.0)
    assert decided(busy).replicas == 4
    assert decided(replace(busy, running=1)).replicas == 1


def test_without_any_target_a_queue_of_four_per_replica_is_the_target() -> None:
    assert decided(signals(waiting=9), replace(SPEC, targets=None)).replicas == 3
    assert decided(signals(waiting=9), replace(SPEC, targets=ScalingTargets(time_to_first_token=1.0))).replicas == 1


def test_starting_replicas_count_once() -> None:
    """One ready, three on their way: what the one cannot do is what the four are for."""
    on_the_way = signals(4, ready=1, starting=3, waiting=16, ttft_seconds=8.0)
    assert decided(on_the_way).replicas == 4
    assert decided(replace(on_the_way, waiting=20)).replicas == 5


def test_one_step_doubles_or_adds_four() -> None:
    assert decided(signals(1, waiting=999)).replicas == 5
    assert decided(signals(8, waiting=999)).replicas == 16
    assert "16 are the most that one step may reach from 8" in decided(signals(8, waiting=999)).reason


def test_fewer_only_when_fewer_were_enough_for_the_whole_window() -> None:
    history = History(0.0, (Want(NOW - 11.0, 9), Want(NOW - 9.0, 3), Want(NOW - 2.0, 2)))
    assert decided(signals(5), history=history).replicas == 3
    assert "3 replicas kept because the last 10s needed them" in decided(signals(5), history=history).reason
    assert decided(signals(5)).replicas == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"missing_gateways": 1}, "1 gateway could not be read"),
        ({"num_gateways": 0}, "no gateway could be read"),
        ({"age_seconds": STALE_SECONDS + 2}, "the oldest figures are 12s old"),
        ({"starting": 1}, "1 replica is still starting"),
        ({"draining": 2}, "2 replicas are still draining"),
    ],
)
def test_nothing_is_taken_away_while_something_is_unseen_or_on_its_way(changes: dict[str, Any], why: str) -> None:
    kept = decided(signals(3, **changes))
    assert kept.replicas == 3
    assert kept.reason.endswith(f"3 replicas kept because {why}")
    assert decided(signals(3, waiting=20, **changes)).replicas == 5


def test_nothing_is_taken_away_before_one_full_window_was_seen() -> None:
    assert decided(signals(3), history=History(NOW - 9.0)).replicas == 3
    assert decided(signals(3), history=History(NOW - 10.0)).replicas == 1
    assert decided(signals(3, waiting=20), history=History(NOW)).replicas == 5


def test_a_tick_that_did_not_see_everything_does_not_pass_for_a_quiet_one() -> None:
    assert decided(signals(3)).wanted == 1
    assert decided(signals(3, missing_gateways=1)).wanted == 3


def test_the_bounds_hold_whatever_is_missing() -> None:
    assert decided(signals(25, starting=1)).replicas == 20
    assert decided(signals(25, num_gateways=0)).reason.endswith("; maxReplicas is 20")
    assert decided(signals(1), replace(SPEC, min_replicas=7)).replicas == 7
    assert decided(signals(0)).replicas == 1


def test_scale_to_zero_is_held_at_one_and_says_so() -> None:
    zero = decided(signals(2), replace(SPEC, min_replicas=0))
    assert zero.replicas == 1
    assert "minReplicas 0 is held at 1" in zero.reason
    assert "minReplicas 0" not in decided(signals(2, waiting=20), replace(SPEC, min_replicas=0)).reason


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (
            signals(1, waiting=6, running=2, ttft_seconds=3.24),
            "6 requests waiting and 2 running on 1 ready replica (queueDepth 4), p90 time to first token 3.2s "
            "(target 2s): 2 replicas needed",
        ),
        (
            signals(20, waiting=100),
            "100 requests waiting and 0 running on 20 ready replicas (queueDepth 4), p90 time to first token "
            "not measured (target 2s): more than maxReplicas 20 needed",
        ),
    ],
)
def test_the_reason_is_a_sentence_with_its_numbers(seen: Signals, sentence: str) -> None:
    assert decided(seen).reason == sentence

"""Predictions: the formula by hand, what makes them endless, and that they fall with replicas and grow with load."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fairlead.api.signals_message import ReplicaSignals
from fairlead.autoscaler.buckets import Buckets
from fairlead.autoscaler.prediction import (
    expected_ttft,
    measured_ttft,
    num_sequences,
    predicted_ttft,
    predicted_waiting,
    step_seconds,
)
from fairlead.autoscaler.signals import Capacity, Demand, Signals
from fairlead_common.wire.messages import StepCost

COST = StepCost(base=0.02, prefill_token=0.0005, decode_seq=0.002, kv_token=0.00001)
CAPACITY = Capacity(step_cost=COST, token_budget=100, max_num_seqs=8, kv_blocks=1000)
DEMAND = Demand(
    arrivals_per_second=4.0, arrivals_per_second_high=5.0, uncached_tokens_per_request=100.0,
    prompt_tokens_per_request=180.0, output_tokens_per_request=40.0, num_gateways=1, capacity=CAPACITY,
)  # fmt: skip


def signals(ready: int = 1, cold_start: float | None = None, **demand: Any) -> Signals:
    return Signals(
        time=0.0, desired=ready, ready=ready, starting=0, draining=0, demand=replace(DEMAND, **demand),
        cold_start_seconds=cold_start,
    )  # fmt: skip


def load(**changes: int) -> ReplicaSignals:
    idle = ReplicaSignals(
        name="a", age_seconds=0.0, running=1, waiting=0, queued_prefill_tokens=0, kv_blocks_free=1000,
        kv_blocks_total=1000, kv_tokens=0, token_budget=100, max_num_seqs=8,
    )  # fmt: skip
    return structs.replace(idle, **changes)


def times(*seconds: float) -> Buckets:
    counts = [0] * (len(Buckets.seconds().bounds) + 1)
    for each in seconds:
        counts[next(place for place, bound in enumerate(Buckets.seconds().bounds) if each <= bound)] += 1
    return Buckets.seconds(counts)


def test_a_step_takes_longer_the_more_of_each_second_is_work() -> None:
    """λu = 400, λo = 160, k = 200: work = 0.0005 · 400 + (0.002 + 0.00001 · 200) · 160 = 0.84 of one replica's
    second."""
    assert step_seconds(1, DEMAND, COST) == pytest.approx(0.02 / (1 - 0.84))
    assert step_seconds(2, DEMAND, COST) == pytest.approx(0.02 / (1 - 0.42))
    assert step_seconds(1, replace(DEMAND, arrivals_per_second=5.0), COST) == math.inf
    assert num_sequences(2, DEMAND, COST) == pytest.approx(160 * 0.02 / 0.58)  # Little's law


def test_an_engine_that_speculates_decodes_less_often() -> None:
    """Twice the cost of a decode that brings two tokens is the same work, and half as many run at a time."""
    cost = StepCost(base=0.02, prefill_token=0.0005, decode_seq=0.004, kv_token=0.00002, tokens_per_decode=2.0)
    assert step_seconds(2, DEMAND, cost) == pytest.approx(step_seconds(2, DEMAND, COST))
    assert num_sequences(2, DEMAND, cost) == pytest.approx(num_sequences(2, DEMAND, COST) / 2)


def test_the_prediction_is_half_a_step_and_the_routers_formula() -> None:
    """Two replicas, 60 tokens of prompts in their queues, prompts of 100 uncached tokens: U = 30 + 100 in
    ceil(130 / (100 - r)) steps, with r = 160 · S / 2 = 2.76 sequences each."""
    step, running = 0.02 / 0.58, 160 * (0.02 / 0.58) / 2
    every = 0.02 + 0.002 * running + 0.00001 * running * 200
    seen = signals(2, loads={"a": load(queued_prefill_tokens=60)})
    assert predicted_ttft(2, seen, 90) == pytest.approx(step / 2 + 2 * every + 0.0005 * 130)


def test_the_percentile_of_prompts_is_what_counts_where_it_is_known() -> None:
    counts = [0] * 22
    counts[3], counts[9] = 50, 50  # half of them up to 8 tokens, half between 256 and 512
    seen = signals(2, uncached_per_request=Buckets.tokens(counts))
    short, long = predicted_ttft(2, seen, 10), predicted_ttft(2, seen, 90)
    assert short is not None and long is not None and short < long


@pytest.mark.parametrize(
    "changes",
    [
        {"arrivals_per_second": 5.0},  # more work than a second holds
        {"running": 9},  # more than the slots hold now
        {"arrivals_per_second": 4.2, "output_tokens_per_request": 45.0},  # more than they will hold
    ],
)
def test_what_one_replica_cannot_do_at_all_is_endless(changes: dict[str, Any]) -> None:
    assert predicted_ttft(1, signals(1, **changes), 90) == math.inf


def test_a_cache_above_nine_tenths_is_endless() -> None:
    def held(free: int) -> Signals:
        return signals(1, arrivals_per_second=1.0, loads={"a": load(kv_blocks_free=free)})

    assert predicted_ttft(1, held(100), 90) != math.inf
    assert predicted_ttft(1, held(99), 90) == math.inf


def test_without_a_step_cost_nothing_is_predicted() -> None:
    assert predicted_ttft(1, signals(1, capacity=None), 90) is None
    assert predicted_ttft(1, signals(1, capacity=replace(CAPACITY, step_cost=None)), 90) is None


def test_what_is_measured_corrects_the_prediction_upwards_only() -> None:
    seen = signals(2)
    predicted = predicted_ttft(2, seen, 90)
    assert predicted is not None
    assert expected_ttft(2, seen, 90, measured=None) == predicted
    assert expected_ttft(2, seen, 90, measured=predicted / 2) == predicted
    assert expected_ttft(2, seen, 90, measured=8.0) == 8.0
    assert expected_ttft(4, seen, 90, measured=8.0) == 4.0  # more replicas share it
    assert expected_ttft(1, seen, 90, measured=0.001) == predicted_ttft(1, seen, 90)
    assert expected_ttft(1, signals(2, arrivals_per_second=1.0), 90, measured=8.0) == 8.0  # fewer are no faster


def test_without_a_prediction_what_is_measured_is_shared_in_proportion() -> None:
    seen = signals(2, capacity=None)
    assert [expected_ttft(n, seen, 90, measured=3.0) for n in (1, 2, 4)] == [6.0, 3.0, 1.5]
    assert expected_ttft(1, seen, 90, measured=None) is None


def test_measured_is_what_lasts() -> None:
    slow, fast = times(*[2.0] * 20), times(*[0.01] * 20)
    assert measured_ttft(replace(DEMAND, ttft=slow, recent_ttft=slow), 90) == pytest.approx(2.0, rel=0.25)
    assert measured_ttft(replace(DEMAND, ttft=slow, recent_ttft=fast), 90) == pytest.approx(0.01, rel=0.25)
    assert measured_ttft(replace(DEMAND, ttft=fast, recent_ttft=slow), 90) == pytest.approx(0.01, rel=0.25)
    assert measured_ttft(replace(DEMAND, ttft=times(2.0), recent_ttft=times(2.0)), 90) is None  # one is chance


def test_running_requests_keep_the_slots_they_need() -> None:
    """docs/adr/0007."""
    busy = signals(6, running=40, waiting=1)
    assert [predicted_waiting(n, busy) for n in (6, 5, 4, 3)] == [1, 1, 9, 17]
    unknown = replace(busy, demand=replace(busy.demand, capacity=None))
    assert predicted_waiting(3, unknown) == pytest.approx(1 + 20)
    assert predicted_waiting(7, unknown) == 1
    assert predicted_waiting(1, replace(busy, ready=0)) == 41


demands = st.builds(
    replace,
    st.just(DEMAND),
    waiting=st.integers(0, 200),
    lasting_running=st.floats(0.0, 200.0),
    oldest_wait_seconds=st.floats(0.0, 60.0),
    waiting_uncached_tokens=st.integers(0, 20_000),
    running=st.integers(0, 100),
    arrivals_per_second=st.floats(0.0, 50.0),
    uncached_tokens_per_request=st.floats(0.0, 2000.0),
    prompt_tokens_per_request=st.floats(0.0, 4000.0),
    output_tokens_per_request=st.floats(0.0, 500.0),
    capacity=st.builds(
        Capacity,
        step_cost=st.builds(
            StepCost,
            base=st.floats(1e-4, 0.1),
            prefill_token=st.floats(0.0, 1e-3),
            prefill_context=st.floats(0.0, 1e-6),
            prefill_step=st.floats(0.0, 1e-2),
            decode_seq=st.floats(0.0, 1e-2),
            kv_token=st.floats(0.0, 1e-5),
        ),
        token_budget=st.integers(16, 8192),
        max_num_seqs=st.integers(1, 256),
        kv_blocks=st.integers(1, 10_000),
    ),
)
LOADS = (
    "waiting", "lasting_running", "oldest_wait_seconds", "waiting_uncached_tokens", "running", "arrivals_per_second",
    "uncached_tokens_per_request", "prompt_tokens_per_request", "output_tokens_per_request",
)  # fmt: skip


def predicted(num_replicas: int, demand: Demand) -> float:
    seen = Signals(time=0.0, desired=1, ready=1, starting=0, draining=0, demand=demand)
    seconds = predicted_ttft(num_replicas, seen, 90)
    assert seconds is not None
    return seconds


@settings(deadline=None, max_examples=50)
@given(demands, st.integers(1, 60), st.integers(1, 20))
def test_more_replicas_never_make_first_tokens_later(demand: Demand, number: int, more: int) -> None:
    assert predicted(number + more, demand) <= predicted(number, demand) * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(demands, st.integers(1, 60), st.sampled_from(LOADS), st.integers(1, 500))
def test_more_load_of_any_kind_never_makes_first_tokens_earlier(
    demand: Demand, number: int, kind: str, more: int
) -> None:
    demand = replace(demand, running=max(demand.running, round(demand.lasting_running)))
    heavier: Demand = replace(demand, **{kind: getattr(demand, kind) + more})
    assert predicted(number, heavier) >= predicted(number, demand) * (1 - 1e-9)

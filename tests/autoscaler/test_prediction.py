"""Predictions: the formula by hand, what makes them endless, and that they fall with replicas and grow with load."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fairlead.api.signals_message import ReplicaSignals
from fairlead.autoscaler.prediction import (
    forecast,
    has_cache,
    lasting_percentile,
    num_sequences,
    own_ttft,
    predicted_waiting,
    slot_rate,
    slot_seconds,
    step_seconds,
)
from fairlead.demand.buckets import Buckets
from fairlead.demand.signals import Capacity, Demand, Signals
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
    assert own_ttft(2, seen, 90) == pytest.approx(step / 2 + 2 * every + 0.0005 * 130)


def test_the_percentile_of_prompts_is_what_counts_where_it_is_known() -> None:
    counts = [0] * 22
    counts[3], counts[9] = 50, 50  # half of them up to 8 tokens, half between 256 and 512
    seen = signals(2, uncached_per_request=Buckets.tokens(counts))
    short, long = own_ttft(2, seen, 10), own_ttft(2, seen, 90)
    assert short is not None and long is not None and short < long


def test_more_work_than_a_second_holds_is_endless() -> None:
    assert own_ttft(1, signals(1, arrivals_per_second=5.0), 90) == math.inf


def test_a_cache_holds_nine_tenths() -> None:
    def held(free: int) -> Demand:
        return replace(DEMAND, loads={"a": load(kv_blocks_free=free)})

    assert has_cache(1, held(100), CAPACITY)
    assert not has_cache(1, held(99), CAPACITY)


def test_late_are_those_behind_the_queue_and_those_whom_chance_lets_wait() -> None:
    """A step of 8 slots takes 0.052 s, so a slot is held for 40 · 0.052 + 8 · (0.0005 · 100) = 2.48 s and 3.2 a second
    come free on one replica. In 10 s 1 request a second more comes than leaves two replicas of 16 slots."""
    held = slot_seconds(DEMAND, CAPACITY, COST)
    assert held == pytest.approx(40 * 0.052 + 8 * 0.05)
    assert slot_rate(signals()) == pytest.approx(8 / held)
    many = signals(2, running=16, waiting=4, arrivals_per_second=2 * 8 / held + 1.0)
    overloaded = forecast(2, many, patience=2.0, window=60.0, ahead=10.0)
    assert overloaded.late == 1.0
    assert overloaded.waiting == pytest.approx(14.0)
    assert overloaded.taken == pytest.approx(1.0 + held / 16)
    fewer = signals(2, running=16, waiting=40, arrivals_per_second=2 * 8 / held - 2.0)
    seen = forecast(2, fewer, patience=2.0, window=60.0, ahead=10.0)
    assert seen.waiting == pytest.approx(20.0)
    behind = (20.0 - 2.0 * 16 / held) / 2.0 / 60.0
    chance = 1.0 - (1.0 - seen.late) / (1.0 - behind)
    assert 0.0 < chance < 0.25
    more = forecast(3, replace(fewer, coming=((5.0, 3),)), patience=2.0, window=60.0, ahead=10.0)
    assert more.waiting < seen.waiting and more.late < 0.01


def test_one_that_waits_though_slots_are_free_makes_those_behind_it_late() -> None:
    stuck = signals(1, running=2, waiting=1, arrivals_per_second=0.5, oldest_wait_seconds=14.0)
    assert forecast(1, stuck, patience=2.0, window=60.0, ahead=10.0).late == pytest.approx(0.2, abs=0.01)
    assert forecast(2, stuck, patience=2.0, window=60.0, ahead=10.0).late < 0.01


def test_without_a_step_cost_nothing_is_predicted() -> None:
    assert own_ttft(1, signals(1, capacity=None), 90) is None
    assert own_ttft(1, signals(1, capacity=replace(CAPACITY, step_cost=None)), 90) is None


def test_measured_is_what_lasts() -> None:
    slow, fast = times(*[2.0] * 20), times(*[0.01] * 20)
    assert lasting_percentile(slow, slow, 90) == pytest.approx(2.0, rel=0.25)
    assert lasting_percentile(slow, fast, 90) == pytest.approx(0.01, rel=0.25)
    assert lasting_percentile(fast, slow, 90) == pytest.approx(0.01, rel=0.25)
    assert lasting_percentile(times(2.0), times(2.0), 90) is None  # one is chance


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


def late(num_replicas: int, demand: Demand) -> tuple[float, float]:
    """The share that waits for more than 2 s, and the rest of the time to first token."""
    seen = Signals(time=0.0, desired=1, ready=1, starting=0, draining=0, demand=demand, coming=((4.0, 3),))
    own = own_ttft(num_replicas, seen, 90)
    assert own is not None
    return forecast(num_replicas, seen, patience=2.0, window=60.0, ahead=10.0).late, own


@settings(deadline=None, max_examples=50)
@given(demands, st.integers(1, 60), st.integers(1, 20))
def test_more_replicas_never_make_first_tokens_later(demand: Demand, number: int, more: int) -> None:
    for fewer, after in zip(late(number, demand), late(number + more, demand), strict=True):
        assert after <= fewer * (1 + 1e-6) + 1e-9


@settings(deadline=None, max_examples=50)
@given(demands, st.integers(1, 60), st.sampled_from(LOADS), st.integers(1, 500))
def test_more_load_of_any_kind_never_makes_first_tokens_earlier(
    demand: Demand, number: int, kind: str, more: int
) -> None:
    heavier: Demand = replace(demand, **{kind: getattr(demand, kind) + more})
    for lighter, after in zip(late(number, demand), late(number, heavier), strict=True):
        assert after >= lighter * (1 - 1e-6) - 1e-9

"""What policies do to time to first token, on engines in virtual time; seeds are fixed, so every run is the same.

Margins are far from what is measured: these tests notice a policy that has become worse, they do not rank finely.
"""

from functools import cache
from statistics import mean, median, quantiles
from typing import Any

import pytest

from fairlead.routing.policies import POLICIES
from fairlead.simulator.routed_fleet import RoutedFleet, Served, Setup
from fairlead_common.wire.messages import StepCost
from fairlead_testing.arrivals import shared_prefixes, unshared
from fairlead_testing.routing import BLOCK_SIZE

SEEDS = (1, 2)
HALF_THE_DOCUMENTS = Setup(num_blocks=800)
"""Each cache holds 12 of the 24 documents."""
ACCELERATORS = Setup(
    num_replicas=4,
    cost=StepCost(base=0.012, prefill_token=4e-5, prefill_context=2e-9, decode_seq=1e-4, kv_token=2e-8),
    max_num_seqs=64,
    token_budget=2048,
    num_blocks=6000,
)

BESIDE_A_BATCH = Setup(
    num_replicas=2, cost=StepCost(base=0.004, prefill_token=5e-5, decode_seq=5e-4), max_num_seqs=32, token_budget=512
)


def serve(policy: str, workload: str, seed: int) -> list[Served]:
    if workload == "shared":
        simulation = RoutedFleet(policy, HALF_THE_DOCUMENTS, seed)
        served = simulation.run(shared_prefixes(seed, num=300, rate=16.0, num_documents=24))
    elif workload == "unshared":
        simulation = RoutedFleet(policy, Setup(), seed)
        served = simulation.run(unshared(seed, num=300, rate=20.0))
    else:
        simulation = RoutedFleet(policy, ACCELERATORS, seed)
        documents = {"num_documents": 40, "document_tokens": 4000, "question_tokens": 300}
        served = simulation.run(shared_prefixes(seed, num=200, rate=30.0, **documents))
    simulation.router.in_flight.check()
    simulation.datastore.index.check()
    assert simulation.router.in_flight.total == 0
    return served


@cache
def served_by(policy: str, workload: str) -> list[Served]:
    return [request for seed in SEEDS for request in serve(policy, workload, seed)]


def ttfts(policy: str, workload: str) -> list[float]:
    return [request.ttft for request in served_by(policy, workload)]


def cached_ratio(policy: str, workload: str) -> float:
    served = served_by(policy, workload)
    return sum(each.num_cached_tokens for each in served) / sum(each.num_prompt_tokens for each in served)


@pytest.mark.parametrize("workload", ["shared", "long documents"])
@pytest.mark.parametrize("other", ["LeastLoaded", "RoundRobin"])
def test_with_shared_prefixes_predicted_ttft_is_far_sooner_and_computes_less(workload: str, other: str) -> None:
    assert mean(ttfts("PredictedTTFT", workload)) < 0.6 * mean(ttfts(other, workload))
    assert median(ttfts("PredictedTTFT", workload)) < median(ttfts(other, workload))
    assert cached_ratio("PredictedTTFT", workload) > cached_ratio(other, workload) + 0.1


@pytest.mark.parametrize("other", ["LeastLoaded", "RoundRobin"])
def test_with_nothing_shared_predicted_ttft_does_not_lose(other: str) -> None:
    assert mean(ttfts("PredictedTTFT", "unshared")) < 1.01 * mean(ttfts(other, "unshared"))
    assert median(ttfts("PredictedTTFT", "unshared")) < 1.01 * median(ttfts(other, "unshared"))


def test_prefix_hash_finds_more_in_caches_than_policies_that_do_not_look() -> None:
    assert cached_ratio("PrefixHash", "shared") > cached_ratio("RoundRobin", "shared") + 0.05
    assert mean(ttfts("PrefixHash", "shared")) < mean(ttfts("RoundRobin", "shared"))


@pytest.mark.parametrize("policy", ["PredictedTTFT", "RoundRobin"])
@pytest.mark.parametrize("workload", ["shared", "unshared", "long documents"])
def test_what_is_predicted_is_what_happens(policy: str, workload: str) -> None:
    served = served_by(policy, workload)
    assert median(request.prediction_error for request in served) < 0.15
    exact = sum(abs(each.num_cached_tokens - each.sent.decision.cached_tokens) <= BLOCK_SIZE for each in served)
    assert exact / len(served) >= 0.95


def test_overhead_is_learnt_to_be_the_latency_both_ways() -> None:
    setup = Setup(latency=0.02, noise=0.0)
    simulation = RoutedFleet("LeastLoaded", setup, 1)
    served = simulation.run(unshared(1, num=120, rate=3.0))
    for uid in simulation.engines:
        assert simulation.router.overhead.seconds(uid, simulation.time.now) == pytest.approx(0.04, abs=0.005)
    assert median(each.prediction_error for each in served[60:]) < 0.05


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_serves_a_fleet_that_is_full_for_a_while(policy: str) -> None:
    setup = Setup(num_replicas=2, max_num_seqs=3)
    simulation = RoutedFleet(policy, setup, 1)
    served = simulation.run(unshared(1, num=60, rate=60.0))
    assert max(each.sent.dispatched_at - each.arrival.at for each in served) > 0.5, "many had to wait in the gateway"
    assert all(each.num_generated == each.arrival.num_output for each in served)
    for engine in simulation.engines.values():
        assert engine.most_at_once <= 3, "nobody waited for a slot inside an engine"


@pytest.mark.matrix
@pytest.mark.parametrize("longest", [200, 4000])
@pytest.mark.parametrize(("workload", "rate"), [(unshared, 8.0), (unshared, 16.0), (shared_prefixes, 8.0)])
def test_a_batch_takes_spare_capacity_and_hardly_delays_others(workload: Any, rate: float, longest: int) -> None:
    """`longest`: of its prompts, in tokens."""

    def p90(num_lines: int) -> tuple[float, int]:
        simulation = RoutedFleet("PredictedTTFT", BESIDE_A_BATCH, 1)
        lines = unshared(9, num=num_lines, rate=1.0, longest=longest)
        for line in lines:
            line.at = 4.0  # a fleet that nobody uses yet would be filled
        served = simulation.run(workload(1, num=300, rate=rate), lines)
        simulation.router.in_flight.check()
        return quantiles((each.ttft for each in served), n=10)[-1], simulation.num_lines_answered

    (alone, _), (beside, num_answered) = p90(0), p90(400)
    assert beside < 1.15 * alone
    assert 0 < num_answered < 400, "there are lines to the end"


def test_a_run_is_repeatable() -> None:
    first, second = (serve("PredictedTTFT", "unshared", 1) for _ in range(2))
    assert [each.ttft for each in first] == [each.ttft for each in second]

"""Who is picked: the soonest, the least loaded, each in turn, or by the prompt's beginning; ties are shared evenly."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.llmdeployment import PrefixHashSettings, Routing, RoutingPolicy
from fairlead.routing.policies import POLICIES, Policy, make_policy
from fairlead.routing.policies.least_loaded import LeastLoaded
from fairlead.routing.policies.predicted_ttft import PredictedTTFT, expected_seconds
from fairlead.routing.policies.prefix_hash import PrefixHash
from fairlead.routing.policies.round_robin import RoundRobin
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision
from fairlead_testing.routing import make_replica


def candidate(uid: str, num_in_flight: int = 0, ttft: float | None = None, cached: int = 0) -> Candidate:
    return Candidate(make_replica(uid), num_in_flight, cached, 100 - cached, predicted_ttft_seconds=ttft)


def decide(policy: Policy, candidates: Sequence[Candidate], affinity: str = "") -> Decision:
    in_flight = {each.replica.uid: each.num_in_flight for each in candidates}
    return policy.pick(candidates, Prompt(affinity=affinity), in_flight)


def pick(policy: Policy, candidates: Sequence[Candidate], affinity: str = "") -> str:
    return decide(policy, candidates, affinity).replica.uid


uids = st.text("abcdefgh", min_size=1, max_size=3)
loads = st.dictionaries(uids, st.integers(0, 5), min_size=1, max_size=8)
foreseen = st.dictionaries(
    uids,
    st.tuples(st.integers(0, 5), st.none() | st.floats(0.001, 2.0), st.integers(0, 100)),
    min_size=1,
    max_size=8,
).map(lambda facts: [candidate(uid, *fact) for uid, fact in facts.items()])


# -- least loaded, round robin ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(st.lists(loads, min_size=1, max_size=20))
def test_least_loaded_always_picks_a_minimum(rounds: list[dict[str, int]]) -> None:
    policy = LeastLoaded(Routing())
    for load in rounds:
        decision = decide(policy, [candidate(uid, num) for uid, num in load.items()])
        assert load[decision.replica.uid] == min(load.values())
        assert str(min(load.values())) in decision.reason


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from([LeastLoaded, RoundRobin, PredictedTTFT]),
    st.sampled_from([None, 0.1]),
    st.integers(1, 9),
    st.integers(1, 60),
    st.randoms(),
)
def test_equal_replicas_get_equal_shares_whatever_their_order(kind, ttft, num_replicas, num_requests, random) -> None:
    policy, picked = kind(Routing()), Counter()
    candidates = [candidate(str(index), ttft=ttft) for index in range(num_replicas)]
    for _ in range(num_requests):
        random.shuffle(candidates)
        picked[pick(policy, candidates)] += 1
    shares = [picked[str(index)] for index in range(num_replicas)]
    assert max(shares) - min(shares) <= 1


@settings(deadline=None, max_examples=50)
@given(loads)
def test_round_robin_visits_every_candidate_before_any_twice(load: dict[str, int]) -> None:
    policy = RoundRobin(Routing())
    candidates = [candidate(uid, num) for uid, num in load.items()]
    assert {pick(policy, candidates) for _ in candidates} == set(load)


def test_round_robin_goes_on_behind_a_replica_that_left() -> None:
    policy = RoundRobin(Routing())
    everyone = [candidate(uid) for uid in "abc"]
    assert [pick(policy, everyone) for _ in range(2)] == ["a", "b"]
    assert pick(policy, [candidate("a"), candidate("c")]) == "c"
    assert pick(policy, everyone) == "a"


# -- predicted TTFT ---------------------------------------------------------------------------------------------------


def test_the_soonest_is_picked_and_the_reason_tells_people_why() -> None:
    candidates = [candidate("a", 1, 0.210), candidate("b", 5, 0.034, cached=95), candidate("c", 0, 1.5)]
    decision = decide(PredictedTTFT(Routing()), candidates)
    assert decision.replica.uid == "b"
    assert decision.reason == "first token in 34 ms (95 of 100 tokens cached); next best 210 ms"
    assert (decision.cached_tokens, decision.uncached_tokens, decision.predicted_ttft_seconds) == (95, 5, 0.034)


def test_differences_nobody_notices_are_decided_by_work_then_by_requests() -> None:
    assert pick(PredictedTTFT(Routing()), [candidate("a", 3, 0.100), candidate("b", 1, 0.104)]) == "b"
    assert pick(PredictedTTFT(Routing()), [candidate("a", 3, 0.100, cached=16), candidate("b", 1, 0.104)]) == "a"
    assert pick(PredictedTTFT(Routing()), [candidate("a", 3, 0.100), candidate("b", 1, 0.107)]) == "a"


def test_without_any_prediction_the_least_loaded_is_picked() -> None:
    decision = decide(PredictedTTFT(Routing()), [candidate("a", 3), candidate("b", 1)])
    assert decision.replica.uid == "b"
    assert decision.predicted_ttft_seconds is None
    assert "nothing is known" in decision.reason


def test_an_unknown_replica_neither_attracts_every_request_nor_starves() -> None:
    known = {"a": 0, "b": 0, "unknown": 0}
    policy, picked = PredictedTTFT(Routing()), Counter()
    for _ in range(90):  # nothing ends, and each request makes the known ones slower by 50 ms
        candidates = [candidate(uid, num, None if uid == "unknown" else 0.05 * (num + 1)) for uid, num in known.items()]
        uid = pick(policy, candidates)
        known[uid] += 1
        picked[uid] += 1
    assert 20 <= picked["unknown"] <= 40


def test_an_unknown_replica_does_not_take_a_prompt_from_where_it_is_cached() -> None:
    candidates = [candidate("a", 1, 0.5), candidate("b", 1, 0.02, cached=96), candidate("unknown", 1)]
    assert pick(PredictedTTFT(Routing()), candidates) == "b"
    decision = decide(PredictedTTFT(Routing()), [candidate("a", 3, 0.5), candidate("unknown", 0)])
    assert decision.replica.uid == "unknown"
    assert "its load is not known" in decision.reason
    assert decision.predicted_ttft_seconds is None


def test_estimates_of_tokens_are_not_reported_as_knowledge() -> None:
    decision = decide(PredictedTTFT(Routing()), [replace(candidate("a", 0, 0.5), is_tokenized=False)])
    assert (decision.cached_tokens, decision.uncached_tokens) == (None, None)
    assert decision.reason == "first token in 500 ms; the only one with room"


@settings(deadline=None, max_examples=80)
@given(foreseen, st.floats(0, 3.0), st.data())
def test_what_makes_a_replica_slower_never_makes_it_more_attractive(candidates, slower, data) -> None:
    index = data.draw(st.integers(0, len(candidates) - 1))
    before = candidates[index]
    if before.predicted_ttft_seconds is None:
        return
    after = [*candidates]
    after[index] = replace(before, predicted_ttft_seconds=before.predicted_ttft_seconds + slower)
    is_unknown_there = any(each.predicted_ttft_seconds is None for each in candidates)
    if pick(PredictedTTFT(Routing()), after) == before.replica.uid and not is_unknown_there:
        assert pick(PredictedTTFT(Routing()), candidates) == before.replica.uid


@settings(deadline=None, max_examples=80)
@given(foreseen, st.integers(0, 100), st.data())
def test_what_is_cached_never_makes_a_replica_less_attractive(candidates, more, data) -> None:
    index = data.draw(st.integers(0, len(candidates) - 1))
    before = candidates[index]
    after = [*candidates]
    after[index] = replace(before, uncached_tokens=max(0, before.uncached_tokens - more))
    if pick(PredictedTTFT(Routing()), candidates) == before.replica.uid:
        assert pick(PredictedTTFT(Routing()), after) == before.replica.uid


@settings(deadline=None, max_examples=50)
@given(foreseen)
def test_the_pick_is_soonest_but_for_what_nobody_notices(candidates) -> None:
    expected = expected_seconds(candidates)
    chosen = pick(PredictedTTFT(Routing()), candidates)
    assert not expected or expected[chosen] <= min(expected.values()) * 1.05 + 0.001


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(POLICIES)), st.lists(foreseen, min_size=1, max_size=8))
def test_the_same_requests_are_decided_the_same(name, rounds) -> None:
    first, second = make_policy(Routing(policy=name)), make_policy(Routing(policy=name))
    for candidates in rounds:
        assert decide(first, candidates, "x") == decide(second, candidates, "x")


# -- prefix hash ------------------------------------------------------------------------------------------------------


def prefix_hash(factor: int = 125) -> PrefixHash:
    return PrefixHash(Routing(prefix_hash=PrefixHashSettings(mean_load_factor=factor)))


def walk(policy: PrefixHash, text: str, members: str = "abcd") -> list[str]:
    """The order in which replicas are met, found by taking each one that is picked out of the candidates."""
    met: list[str] = []
    while len(met) < len(members):
        idle = [candidate(uid) for uid in members if uid not in met]
        in_flight = dict.fromkeys(members, 0)
        met.append(policy.pick(idle, Prompt(affinity=text), in_flight).replica.uid)
    return met


def test_the_same_beginning_goes_to_the_same_replica_while_loads_are_even() -> None:
    policy = prefix_hash()
    for number in range(50):
        assert len({pick(policy, [candidate(uid, load) for uid in "abcd"], f"p{number}") for load in (0, 3, 9)}) == 1
    assert len({pick(policy, [candidate(uid) for uid in "abcd"], f"p{number}") for number in range(50)}) == 4


@pytest.mark.parametrize(
    ("loads_on_walk", "position"),
    [
        # 4 replicas, total 7: at most (7 + 1) / 4 · 1.25 = 2.5 in flight
        ((2, 2, 2, 1), 0),
        ((3, 2, 1, 1), 1),
        ((3, 3, 0, 1), 2),
        # total 9: at most 3.125, so the first is within; total 15: at most 5
        ((3, 3, 3, 0), 0),
        ((6, 6, 3, 0), 2),
        ((0, 5, 5, 5), 0),
    ],
)
def test_the_first_on_the_walk_within_the_bound_is_taken(loads_on_walk, position) -> None:
    policy = prefix_hash()
    order = walk(policy, "text")
    candidates = [candidate(uid, load) for uid, load in zip(order, loads_on_walk, strict=True)]
    assert pick(policy, candidates, "text") == order[position]


def test_when_no_candidate_is_within_the_bound_the_first_on_the_walk_is_taken() -> None:
    policy = prefix_hash(100)
    order = walk(policy, "text")
    in_flight = dict(zip(order, (9, 8, 0, 0), strict=True))  # bound (17 + 1) / 4 = 4.5; the last two have no room
    candidates = [candidate(uid, in_flight[uid]) for uid in order[:2]]
    decision = policy.pick(candidates, Prompt(affinity="text"), in_flight)
    assert decision.replica.uid == order[0]
    assert "all have more than 4.5" in decision.reason


def test_with_nothing_in_flight_any_factor_accepts_the_first() -> None:
    policy = prefix_hash(100)
    order = walk(policy, "text")
    assert pick(policy, [candidate(uid) for uid in order], "text") == order[0]


@settings(deadline=None, max_examples=40)
@given(st.integers(100, 300), st.integers(2, 8), st.lists(st.sampled_from("pqr"), max_size=80))
def test_loads_stay_bounded_however_popular_a_beginning_is(factor, num_replicas, texts) -> None:
    policy = prefix_hash(factor)
    in_flight = {f"r{number}": 0 for number in range(num_replicas)}
    for text in texts:
        uid = pick(policy, [candidate(uid, num) for uid, num in in_flight.items()], text)
        bound = (sum(in_flight.values()) + 1) / num_replicas * factor / 100
        assert in_flight[uid] <= bound
        in_flight[uid] += 1


def test_a_replica_that_is_no_candidate_for_a_moment_keeps_its_place_on_the_ring() -> None:
    policy = prefix_hash()
    order = walk(policy, "text")
    places = policy._ring._places
    rest = [candidate(uid) for uid in order[1:]]
    assert policy.pick(rest, Prompt(affinity="text"), dict.fromkeys(order, 0)).replica.uid == order[1]
    assert policy._ring._places is places


# -- names ------------------------------------------------------------------------------------------------------------


def test_policies_are_found_by_the_names_users_write() -> None:
    assert {name: type(make_policy(Routing(policy=name))).__name__ for name in POLICIES} == {
        name: str(name) for name in RoutingPolicy
    }
    assert set(POLICIES) == set(RoutingPolicy)


def test_the_settings_of_prefix_hash_arrive() -> None:
    settings = PrefixHashSettings(mean_load_factor=200, replication=3)
    policy = make_policy(Routing(policy=RoutingPolicy.PREFIX_HASH, prefix_hash=settings))
    decide(policy, [candidate("a"), candidate("b")])
    assert len(policy._ring._places) == 6
    assert policy._load_factor == 2.0

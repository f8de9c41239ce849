"""Who is picked: the least loaded, or each in turn; and ties are shared evenly."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.routing.policies import POLICIES, LeastLoaded, RoundRobin, make_policy
from fairlead.routing.replica import Candidate, Replica


def candidate(uid: str, num_in_flight: int = 0) -> Candidate:
    return Candidate(Replica(uid=uid, name=f"pod-{uid}", host="127.0.0.1", port=8000), num_in_flight)


loads = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(0, 5), min_size=1, max_size=8)


@settings(deadline=None, max_examples=200)
@given(st.lists(loads, min_size=1, max_size=20))
def test_least_loaded_always_picks_a_minimum(rounds: list[dict[str, int]]) -> None:
    policy = LeastLoaded()
    for load in rounds:
        decision = policy.pick([candidate(uid, num) for uid, num in load.items()], 0.0)
        assert load[decision.replica.uid] == min(load.values())
        assert str(min(load.values())) in decision.reason


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([LeastLoaded, RoundRobin]), st.integers(1, 9), st.integers(1, 60), st.randoms())
def test_equal_replicas_get_equal_shares_whatever_their_order(kind, num_replicas, num_requests, random) -> None:
    policy, picked = kind(), Counter()
    candidates = [candidate(str(index)) for index in range(num_replicas)]
    for _ in range(num_requests):
        random.shuffle(candidates)
        picked[policy.pick(candidates, 0.0).replica.uid] += 1
    shares = [picked[str(index)] for index in range(num_replicas)]
    assert max(shares) - min(shares) <= 1


@settings(deadline=None, max_examples=100)
@given(loads)
def test_round_robin_visits_every_candidate_before_any_twice(load: dict[str, int]) -> None:
    policy = RoundRobin()
    candidates = [candidate(uid, num) for uid, num in load.items()]
    assert {policy.pick(candidates, 0.0).replica.uid for _ in candidates} == set(load)


def test_round_robin_goes_on_behind_a_replica_that_left() -> None:
    policy = RoundRobin()
    everyone = [candidate(uid) for uid in "abc"]
    assert [policy.pick(everyone, 0.0).replica.uid for _ in range(2)] == ["a", "b"]
    assert policy.pick([candidate("a"), candidate("c")], 0.0).replica.uid == "c"
    assert policy.pick(everyone, 0.0).replica.uid == "a"


def test_policies_are_found_by_the_names_users_write() -> None:
    assert {name: type(make_policy(name)) for name in POLICIES} == {
        "LeastLoaded": LeastLoaded,
        "RoundRobin": RoundRobin,
    }
    assert isinstance(make_policy("FromTheFuture"), LeastLoaded)

"""The router: health, capacity, loads and what is in flight decide who is a candidate, and the books stay right."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.llmdeployment import Routing
from fairlead.routing.books import Failure
from fairlead.routing.datastore import Datastore
from fairlead.routing.in_flight import TRIAL_SECONDS, InFlightRequest
from fairlead.routing.policies import POLICIES, make_policy
from fairlead.routing.policies.least_loaded import LeastLoaded
from fairlead.routing.policies.predicted_ttft import PredictedTTFT
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Limits, Replica
from fairlead.routing.router import Router
from fairlead.routing.suspects import Suspicion
from fairlead_common.wire.blocks import hash_blocks
from fairlead_common.wire.messages import StepCost
from fairlead_testing.routing import DIGEST, make_load, make_prompt, make_replica

SLOTS = 3
COST = StepCost(base=0.01, prefill_token=0.001)
PROMPT = make_prompt(range(100))
HASHES = hash_blocks(range(100), 16)


def replica(uid: str) -> Replica:
    return make_replica(uid, SLOTS)


def unlimited(uid: str) -> Replica:
    return replace(replica(uid), limits=None)


def make_router(*replicas: Replica, policy=LeastLoaded) -> Router:
    router = Router(policy(Routing()), Datastore(), "gateway")
    router.set_replicas(replicas)
    return router


def route(router: Router, now: float = 0.0, prompt: Prompt = PROMPT) -> InFlightRequest:
    routed = router.route(prompt, now)
    assert routed is not None
    return routed


def candidates(router: Router, now: float = 0.0, prompt: Prompt = PROMPT) -> list[str]:
    return [each.replica.uid for each in router.candidates(prompt, now)]


# -- room, health and capacity ----------------------------------------------------------------------------------------


def test_without_a_load_a_replica_gets_as_many_as_it_has_slots() -> None:
    router = make_router(replica("a"))
    slots = [route(router) for _ in range(SLOTS)]
    assert router.route(PROMPT, 0.0) is None
    router.release(slots[0], 0.0)
    assert router.route(PROMPT, 0.0) is not None


def test_a_load_tells_of_other_gateways_requests_and_dispatches_it_has_not_seen_are_added() -> None:
    router = make_router(replica("a"))
    router.datastore.loaded("a", make_load(running=1, max_num_seqs=SLOTS))
    slots = [route(router) for _ in range(SLOTS - 1)]
    assert candidates(router) == []
    router.datastore.loaded("a", make_load(running=2, max_num_seqs=SLOTS, time=0.1, seen={"gateway": 2}))
    assert candidates(router, 0.1) == ["a"], "both are in the load now, and another gateway's has ended"
    router.release(slots[0], 0.2)
    third, fourth = route(router, 0.2), route(router, 0.2)
    assert (third.dispatch, fourth.dispatch) == (3, 4)
    assert candidates(router, 0.2) == []


def test_seen_of_another_gateway_says_nothing_of_ours() -> None:
    router = make_router(replica("a"))
    router.datastore.loaded("a", make_load(running=1, max_num_seqs=SLOTS, seen={"other": 50}))
    assert [route(router).dispatch for _ in range(SLOTS - 1)] == [1, 2]
    assert candidates(router) == []


def test_a_full_replica_is_tried_again_when_its_load_is_stale() -> None:
    router = make_router(replica("a"))
    router.datastore.loaded("a", make_load(running=SLOTS, max_num_seqs=SLOTS))
    assert candidates(router) == []
    assert router.next_change(1.0) == 3.0
    assert candidates(router, 3.0) == ["a"]


def test_a_draining_replica_gets_nothing() -> None:
    router = make_router(replica("a"), replica("b"))
    router.datastore.loaded("a", make_load(draining=True))
    assert candidates(router) == ["b"]


def test_a_replica_that_hangs_gets_nothing_while_another_is_well_even_if_that_is_full() -> None:
    router = make_router(replica("a"), replica("b"))
    router.datastore.loaded("a", make_load(running=1, step_age_seconds=30.0, step_cost=COST))
    router.datastore.loaded("b", make_load(step_cost=COST, max_num_seqs=1))
    assert candidates(router) == ["b"]
    route(router)
    assert candidates(router) == []
    router.set_replicas([replica("a")])
    assert candidates(router) == ["a"], "better than nothing"


def test_a_replica_that_fell_silent_gets_nothing_while_another_has_room() -> None:
    router = make_router(replica("a"), replica("b"), replica("new"))
    router.datastore.loaded("a", make_load())
    router.datastore.loaded("b", make_load(time=9.0, max_num_seqs=1))
    assert candidates(router, 10.0) == ["b", "new"], "who has not spoken yet is not silent"
    router.set_replicas([replica("a"), replica("b")])
    route(router, 10.0)
    assert candidates(router, 10.0) == ["a"]


def test_a_replica_whose_limits_are_unknown_is_bounded_by_its_refusals_only() -> None:
    router = make_router(unlimited("a"))
    slots = [route(router) for _ in range(50)]
    router.full(slots[-1], 0.0)
    router.release(slots[-1], 0.0)
    assert router.route(PROMPT, 0.0) is None
    router.release(slots[0], 0.0)
    assert router.route(PROMPT, 0.0) is not None


def test_after_a_refusal_one_more_is_tried_per_pause_and_success_opens_up() -> None:
    router = make_router(unlimited("a"))
    router.full(first := route(router), 0.0)
    router.release(first, 0.0)
    assert router.route(PROMPT, 0.01) is None
    assert router.next_change(0.01) == 0.05
    trial = route(router, 0.05)
    assert router.route(PROMPT, 0.06) is None
    router.accepted(trial)
    assert router.route(PROMPT, 0.06) is not None


def test_a_refusal_pauses_a_replica_whose_load_shows_room_as_well() -> None:
    router = make_router(replica("a"))
    router.datastore.loaded("a", make_load())
    router.full(first := route(router), 0.0)
    router.release(first, 0.0)
    assert candidates(router, 0.01) == []
    assert candidates(router, 0.05) == ["a"]


def test_a_refusal_is_over_when_a_later_load_shows_an_empty_queue() -> None:
    router = make_router(replica("a"))
    router.full(first := route(router), 0.0)
    router.release(first, 0.0)
    router.datastore.loaded("a", make_load(time=0.01, waiting=1, running=0, seen={"gateway": first.dispatch}))
    assert candidates(router, 0.01) == []
    router.datastore.loaded("a", make_load(time=0.02, running=1, max_num_seqs=SLOTS, seen={"gateway": first.dispatch}))
    assert candidates(router, 0.02) == ["a"]
    route(router, 0.02)
    assert candidates(router, 0.02) == ["a"], "it has a sent more, and has not refused anything since"


def test_being_full_is_forgotten_after_a_while_without_refusals() -> None:
    router = make_router(unlimited("a"))
    router.full(first := route(router), 0.0)
    router.release(first, 0.0)
    assert [router.route(PROMPT, 6.0) is not None for _ in range(3)] == [True, True, True]


def test_a_replica_that_fails_attracts_nothing_and_is_probed_by_one_request_after_its_pause() -> None:
    router = make_router(replica("a"), replica("b"))
    bad = route(router)
    router.failed(bad, Failure.UNREACHABLE, 0.0)
    router.release(bad, 0.0)
    assert {route(router).uid for _ in range(3)} == {"b"}
    assert router.route(PROMPT, 0.1) is None, "b is full and a is paused"
    probe = route(router, 0.6)
    assert probe.uid == bad.uid
    assert router.route(PROMPT, 0.6) is None, "one probe at a time"
    router.accepted(probe)
    assert route(router, 0.6).uid == bad.uid


def test_pauses_double_and_failures_within_a_pause_count_once() -> None:
    router = make_router(replica("a"))
    first, second = route(router), route(router)
    for sent in (first, second):
        router.failed(sent, Failure.DIED, 0.0)
        router.release(sent, 0.0)
    assert router.next_change(0.0) == 0.5
    probe = route(router, 0.5)
    router.failed(probe, Failure.DIED, 0.5)
    router.release(probe, 0.5)
    assert router.next_change(0.5) == 1.5


@pytest.mark.parametrize(
    ("failure", "pauses"), [(Failure.UNAVAILABLE, (0.5, 1.0, 2.0, 2.0, 2.0)), (Failure.DIED, (0.5, 1.0, 2.0, 4.0, 8.0))]
)
def test_lines_of_batches_probe_a_server_that_refuses_everything_however_long_it_has(
    failure: Failure, pauses: tuple[float, ...]
) -> None:
    router, now = make_router(replica("a")), 0.0
    router.failed(sent := route(router), failure, now)
    router.release(sent, now)
    for pause in pauses:
        assert router.route(PROMPT, now + 0.9 * pause, is_spare=True) is None
        now += pause
        probe = router.route(PROMPT, now, is_spare=True)
        assert probe is not None
        assert router.route(PROMPT, now, is_spare=True) is None, "one probe at a time"
        router.failed(probe, failure, now)
        router.release(probe, now)
    if failure is Failure.UNAVAILABLE:
        assert router.route(PROMPT, now + 2.0) is None, "others leave it alone until its pause ends"
        assert router.next_change(now) == now + 2.0
        assert router.route(PROMPT, now + 2.0, is_spare=True) is not None
        assert router.route(PROMPT, now + 16.0) is not None, "nor do they wait for a line's whole answer"


def test_a_probe_that_ends_without_a_verdict_may_be_repeated() -> None:
    router = make_router(replica("a"))
    sent = route(router)
    router.failed(sent, Failure.DIED, 0.0)
    router.release(sent, 0.0)
    router.release(route(router, 1.0), 1.0)
    assert router.route(PROMPT, 1.0) is not None


def test_a_probe_that_the_engines_load_includes_has_succeeded_long_before_it_is_answered() -> None:
    router = make_router(replica("a"))
    failed = route(router)
    router.failed(failed, Failure.DIED, 0.0)
    router.release(failed, 0.0)
    probe = route(router, 0.5)
    router.datastore.loaded("a", make_load(time=0.6, seen={"gateway": failed.dispatch}))
    assert candidates(router, 0.6) == [], "it has not got there yet"
    router.datastore.loaded("a", make_load(time=0.7, running=1, max_num_seqs=SLOTS, seen={"gateway": probe.dispatch}))
    assert candidates(router, 0.7) == ["a"]
    assert not router.all_failing()


def test_all_failing_tells_a_broken_pool_from_a_full_one() -> None:
    router = make_router(replica("a"), replica("b"))
    assert not router.all_failing()
    for _ in range(2):
        sent = route(router)
        assert not router.all_failing()
        router.failed(sent, Failure.DIED, 0.0)
        router.release(sent, 0.0)
    assert router.all_failing()
    router.set_replicas([])
    assert not router.all_failing()


def test_a_pod_that_comes_back_under_another_uid_starts_with_clean_books() -> None:
    router = make_router(replica("a"))
    sent = route(router)
    router.failed(sent, Failure.TIMED_OUT, 0.0)
    router.set_replicas([replica("a2")])
    assert route(router).uid == "a2"
    assert router.in_flight.total == 2


# -- caches -----------------------------------------------------------------------------------------------------------


def test_cached_tokens_are_whole_blocks_and_never_the_last_token() -> None:
    router = make_router(replica("a"), replica("b"), replica("c"))
    router.datastore.listed("a", 0, HASHES[:4])
    router.datastore.listed("b", 0, HASHES)
    found = {each.replica.uid: (each.cached_tokens, each.uncached_tokens) for each in router.candidates(PROMPT, 0.0)}
    assert found == {"a": (64, 36), "b": (96, 4), "c": (0, 100)}
    whole = make_prompt(range(96))
    assert {each.cached_tokens for each in router.candidates(whole, 0.0)} == {0, 64, 80}
    assert router.expected_uncached(PROMPT) == 4


def test_a_prompt_is_matched_per_tokenizer_and_block_size() -> None:
    """As in a rollout: another tokenizer for one replica, another block size for the next, none for the last."""
    old, new = replica("old"), make_replica("new", digest="other")
    wide, untold = make_replica("wide", block_size=32), make_replica("untold", digest="unheard-of")
    router = make_router(old, new, wide, untold)
    prompt = make_prompt(range(100))
    prompt.by_digest["other"] = make_prompt(range(500, 580), digest="other").by_digest["other"]
    router.datastore.listed("old", 0, HASHES[:2])
    router.datastore.listed("new", 0, [*HASHES, *hash_blocks(range(500, 580), 16)[:3]])
    router.datastore.listed("wide", 0, hash_blocks(range(100), 32)[:1])
    router.datastore.listed("untold", 0, HASHES)
    found = {each.replica.uid: (each.cached_tokens, each.uncached_tokens) for each in router.candidates(prompt, 0.0)}
    assert found == {"old": (32, 68), "new": (48, 32), "wide": (32, 68), "untold": (0, 100)}
    router.set_replicas([untold])
    decision = router.route(prompt, 0.0).decision
    assert (decision.cached_tokens, decision.uncached_tokens) == (None, None)


def test_a_request_with_several_prompts_is_the_sum_of_them() -> None:
    router = make_router(replica("a"))
    router.datastore.listed("a", 0, HASHES[:4])
    prompt = make_prompt(range(100), range(40), range(7, 17))
    (found,) = router.candidates(prompt, 0.0)
    assert (found.cached_tokens, found.uncached_tokens) == (64 + 32, 36 + 8 + 10)


def test_without_replicas_all_tokens_are_uncached() -> None:
    assert make_router().expected_uncached(PROMPT) == 100


def test_a_prefix_under_way_counts_as_cached_until_its_blocks_are_told_or_it_fails() -> None:
    router = make_router(replica("a"))
    router.datastore.listed("a", 0, HASHES[:1])
    first = route(router)
    assert (first.decision.cached_tokens, first.decision.uncached_tokens) == (16, 84)
    second = route(router)
    assert (second.decision.cached_tokens, second.decision.uncached_tokens) == (96, 4)
    router.failed(first, Failure.DIED, 0.0)
    router.release(first, 0.0)
    assert router.expected_uncached(PROMPT) == 4, "the second has to compute it now"
    router.first_token(second, 0.1)
    assert router.expected_uncached(PROMPT) == 4
    router.datastore.changed("a", 1, HASHES[1:3], [])
    assert router.expected_uncached(PROMPT) == 100 - 48
    router.release(second, 0.2)
    router.datastore.index.check()


def test_nothing_is_expected_of_a_replica_whose_blocks_nobody_tells() -> None:
    router = make_router(replica("a"))
    route(router)
    assert router.expected_uncached(PROMPT) == 100


# -- predictions ------------------------------------------------------------------------------------------------------


def loaded_router(*uids: str, **changed) -> Router:
    router = make_router(*(make_replica(uid) for uid in uids), policy=PredictedTTFT)
    for uid in uids:
        router.datastore.listed(uid, 0, [])
        router.datastore.loaded(uid, make_load(step_cost=COST, **changed))
    return router


def test_the_replica_that_holds_the_prompt_gets_it_and_says_so() -> None:
    router = loaded_router("a", "b")
    router.datastore.listed("b", 0, HASHES)
    sent = router.route(PROMPT, 0.0)
    decision = sent.decision
    assert decision.replica.uid == "b"
    assert decision.reason == "first token in 14 ms (96 of 100 tokens cached); next best 110 ms"
    assert decision.predicted_ttft_seconds == pytest.approx(0.014)
    assert sent.dispatched_at == 0.0


def test_a_busy_cache_is_left_for_an_idle_replica_when_that_is_sooner() -> None:
    router = loaded_router("a", "b")
    router.datastore.listed("b", 0, HASHES)
    router.datastore.loaded("b", make_load(step_cost=COST, running=1, waiting=1, queued_prefill_tokens=200))
    assert route(router).uid == "a"


def test_dispatches_count_at_once_though_no_load_line_tells_of_them() -> None:
    router = loaded_router("a", "b")
    assert {route(router, prompt=make_prompt(range(number, number + 90))).uid for number in (1000, 2000)} == {"a", "b"}


def test_who_needs_a_prefix_under_way_waits_for_it_at_least() -> None:
    router = loaded_router("a")
    first = route(router)
    assert first.decision.predicted_ttft_seconds == pytest.approx(0.11)
    router.datastore.loaded("a", make_load(time=0.02, step_cost=COST, seen={"gateway": 1}))  # without its tokens
    (found,) = router.candidates(PROMPT, 0.02)
    assert found.uncached_tokens == 4
    assert found.predicted_ttft_seconds == pytest.approx(0.09 + 0.014)
    (other,) = router.candidates(make_prompt(range(500, 504)), 0.02)
    assert other.predicted_ttft_seconds == pytest.approx(0.014)


def test_what_requests_take_beside_the_steps_is_learnt_from_first_tokens() -> None:
    router, now = loaded_router("a"), 0.0
    for number in range(40):
        now = number * 1.0
        router.datastore.loaded("a", make_load(time=now, step_cost=COST, seen={"gateway": number}))
        sent = route(router, now, make_prompt(range(number * 1000, number * 1000 + 90)))
        assert sent.modelled_ttft_seconds == pytest.approx(0.1)
        router.first_token(sent, now + 0.125, learn=number % 2 == 0)
        router.release(sent, now + 0.2)
    (found,) = router.candidates(make_prompt(range(90)), now)
    assert found.overhead_seconds == pytest.approx(0.025)
    assert found.predicted_ttft_seconds == pytest.approx(0.125)


def test_the_whole_of_an_answer_that_was_not_streamed_teaches_nothing() -> None:
    router = loaded_router("a")
    for number in range(20):
        sent = route(router, 0.0, make_prompt(range(number * 1000, number * 1000 + 90)))
        router.first_token(sent, 9.0, learn=False)
        router.release(sent, 9.0)
    assert router.overhead.seconds("a", 9.0) == 0.0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_reports_what_is_foreseen(name: str) -> None:
    router = loaded_router("a")
    router.policy = make_policy(Routing(policy=name))
    decision = router.route(PROMPT, 0.0).decision
    assert (decision.cached_tokens, decision.uncached_tokens, decision.dispatch) == (0, 100, 1)
    assert decision.predicted_ttft_seconds == pytest.approx(0.11)
    assert decision.reason


states = st.dictionaries(
    st.sampled_from("abcd"),
    st.fixed_dictionaries(
        {
            "running": st.integers(0, 7),
            "waiting": st.integers(0, 3),
            "queued_prefill_tokens": st.integers(0, 2000),
            "kv_tokens": st.integers(0, 50_000),
        }
    ),
    min_size=2,
)
held = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6))


def picked(loads: dict[str, dict[str, int]], holds: dict[str, int]) -> str | None:
    """By a router that knows this and has done nothing yet."""
    router = loaded_router(*sorted(loads))
    cost = StepCost(base=0.01, prefill_token=0.001, prefill_context=1e-7, decode_seq=0.001, kv_token=1e-7)
    for uid, figures in loads.items():
        router.datastore.loaded(uid, make_load(step_cost=cost, **figures))
        router.datastore.listed(uid, 0, HASHES[: holds.get(uid, 0)])
    routed = router.route(PROMPT, 0.0)
    return None if routed is None else routed.uid


@settings(deadline=None, max_examples=50)
@given(states, held, st.integers(1, 1000), st.data())
def test_more_queued_tokens_never_make_a_replica_more_attractive(loads, holds, more, data) -> None:
    uid = data.draw(st.sampled_from(sorted(loads)))
    longer = {**loads[uid], "queued_prefill_tokens": loads[uid]["queued_prefill_tokens"] + more}
    if picked({**loads, uid: longer}, holds) == uid:
        assert picked(loads, holds) == uid


@settings(deadline=None, max_examples=50)
@given(states, held, st.integers(1, 6), st.data())
def test_more_cached_tokens_never_make_a_replica_less_attractive(loads, holds, more, data) -> None:
    uid = data.draw(st.sampled_from(sorted(loads)))
    if picked(loads, holds) == uid:
        assert picked(loads, {**holds, uid: min(6, holds.get(uid, 0) + more)}) == uid


@settings(deadline=None, max_examples=50)
@given(states, held)
def test_the_same_knowledge_leads_to_the_same_decision(loads, holds) -> None:
    assert picked(loads, holds) == picked(dict(reversed(loads.items())), holds)


def test_limits_are_what_the_engine_says() -> None:
    limits = Limits(max_num_seqs=1, max_num_queued_tokens=1)
    router = make_router(Replica("u", "n", "h", 1, limits, digest=DIGEST))
    route(router)
    assert router.route(PROMPT, 0.0) is None


def suspect(router: Router, now: float = 0.0, *, patient: bool = False) -> InFlightRequest | None:
    return router.route(PROMPT, now, is_suspect=True, patient=patient)


def test_a_suspect_is_kept_apart_until_its_trial_is_over() -> None:
    router = make_router(unlimited("a"), unlimited("b"), unlimited("c"))
    first, second = suspect(router), suspect(router)
    assert first.uid != second.uid
    assert router.holds_back(PROMPT, 0.0, patient=False) and suspect(router) is None, "one is left to the others"
    [left] = {"a", "b", "c"} - {first.uid, second.uid}
    assert {route(router).uid for _ in range(4)} == {left}
    assert router.next_change(0.0) == TRIAL_SECONDS
    router.first_token(first, 0.1)
    assert not router.holds_back(PROMPT, 0.1, patient=False)
    assert suspect(router, 0.1).uid == first.uid
    assert suspect(router, TRIAL_SECONDS) is not None, "time ends a trial as well"


def test_a_patient_suspect_gets_a_replica_where_no_prompt_is_being_computed() -> None:
    router = make_router(unlimited("a"), unlimited("b"))
    slots = {sent.uid: sent for sent in (route(router), route(router))}
    assert slots.keys() == {"a", "b"}
    assert suspect(router, patient=True) is None
    assert {route(router).uid for _ in range(3)} == {"b"}, "the other one empties for it"
    router.first_token(slots["a"], 0.1)
    assert suspect(router, 0.1, patient=True).uid == "a"


def test_the_last_replica_that_is_well_takes_others_beside_a_suspect() -> None:
    router = make_router(unlimited("a"))
    suspect(router)
    assert route(router).uid == "a"
    assert suspect(router) is None


def test_a_load_with_nothing_to_compute_proves_whom_it_counts() -> None:
    router = make_router(unlimited("a"))
    old, new = route(router), route(router)
    router.told("a", make_load(time=0.1, seen={"gateway": old.dispatch}, queued_prefill_tokens=5))
    assert router.in_flight.is_unproven(old, 0.1)
    router.told("a", make_load(time=0.2, seen={"gateway": old.dispatch}))
    assert not router.in_flight.is_unproven(old, 0.2)
    assert router.failed(old, Failure.DIED, 0.3) is Suspicion.NONE
    router.release(old, 0.3)
    assert router.failed(new, Failure.DIED, 0.3) is Suspicion.SOLE


def test_requests_that_die_together_share_the_suspicion() -> None:
    router = make_router(unlimited("a"))
    slots = [route(router) for _ in range(3)]
    for sent in slots:  # one after another, as their connections break
        assert router.failed(sent, Failure.DIED, 0.1) is Suspicion.SHARED
        router.release(sent, 0.1)
    alone = route(router, 1.0)
    assert router.failed(alone, Failure.DIED, 1.2) is Suspicion.SOLE


@pytest.mark.parametrize(
    ("last", "expected"),
    [({"seen": {"other": 2}, "queued_prefill_tokens": 9}, Suspicion.SHARED), ({"seen": {"other": 2}}, Suspicion.SOLE)],
)
def test_what_another_gateway_has_just_sent_is_suspect_as_well(last: dict, expected: Suspicion) -> None:
    router = make_router(unlimited("a"))
    router.told("a", make_load(time=0.0, seen={"other": 1}))
    router.told("a", make_load(time=0.1, **last))
    assert router.failed(route(router), Failure.DIED, 0.2) is expected

"""Sessions: they break ties towards the replica that served them last, and nothing else; memory is bounded."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.api.llmdeployment import Routing
from fairlead.routing.policies import Policy
from fairlead.routing.policies.least_loaded import LeastLoaded
from fairlead.routing.policies.predicted_ttft import PredictedTTFT, expected_seconds
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate
from fairlead.routing.router import Router
from fairlead.routing.sessions import NO_SESSION, SessionBook, SessionPlace, session_hash
from fairlead_common.wire.messages import StepCost
from fairlead_testing.routing import make_load, make_prompt, make_replica

COST = StepCost(base=0.01, prefill_token=0.001)
MINE, OTHERS = session_hash("mine"), session_hash("others")

facts = st.tuples(st.integers(0, 2), st.none() | st.sampled_from([0.1, 0.1001, 0.104, 0.2]), st.sampled_from([0, 16]))
candidate_lists = st.lists(facts, min_size=1, max_size=6).map(
    lambda each: [
        Candidate(make_replica(str(index)), num, cached, 100 - cached, predicted_ttft_seconds=ttft)
        for index, (num, ttft, cached) in enumerate(each)
    ]
)


def picked(policy: Policy, candidates: Sequence[Candidate]) -> Candidate:
    in_flight = {each.replica.uid: each.num_in_flight for each in candidates}
    uid = policy.pick(candidates, Prompt(), in_flight).replica.uid
    return next(each for each in candidates if each.replica.uid == uid)


def rank(policy: type[Policy], each: Candidate, candidates: Sequence[Candidate]) -> tuple[float, ...]:
    """What decides before sessions do."""
    expected = expected_seconds(candidates) if policy is PredictedTTFT else {}
    if not expected:
        return (each.num_in_flight,)
    bound = min(expected.values()) * (1 + PredictedTTFT.TIE_RATIO) + PredictedTTFT.TIE_SECONDS
    return (expected[each.replica.uid] > bound, each.uncached_tokens, each.num_in_flight)


@settings(deadline=None, max_examples=80)
@given(st.sampled_from([PredictedTTFT, LeastLoaded]), candidate_lists, st.data())
def test_whoever_costs_less_wins_with_a_session_or_without(policy, candidates, data) -> None:
    """And where the session's replica costs as little as any, it is the one."""
    served = data.draw(st.none() | st.integers(0, len(candidates) - 1))
    if served is not None:
        candidates[served] = replace(candidates[served], served_session=True)
    least = min(rank(policy, each, candidates) for each in candidates)
    chosen = picked(policy(Routing()), candidates)
    assert rank(policy, chosen, candidates) == least
    if served is not None and rank(policy, candidates[served], candidates) == least:
        assert chosen is candidates[served]


def test_the_reason_says_when_the_session_decided() -> None:
    equal = [Candidate(make_replica(uid), 0, predicted_ttft_seconds=0.1, served_session=uid == "c") for uid in "abc"]
    reason = PredictedTTFT(Routing()).pick(equal, Prompt(), {}).reason
    assert (
        reason == "first token in 100 ms (0 of 0 tokens cached); next best 100 ms; served its session among equal ones"
    )
    reason = LeastLoaded(Routing()).pick(equal, Prompt(), {}).reason
    assert reason == "fewest in flight (0) of 3 with room, served its session among 3 equal"
    sooner = [*equal, Candidate(make_replica("d"), 0, predicted_ttft_seconds=0.05)]
    assert "session" not in PredictedTTFT(Routing()).pick(sooner, Prompt(), {}).reason


# -- the router -------------------------------------------------------------------------------------------------------


def make_router(uids: str = "abc", policy: type[Policy] = PredictedTTFT) -> Router:
    router = Router(policy(Routing()))
    router.set_replicas([make_replica(uid) for uid in uids])
    for uid in uids:
        router.datastore.loaded(uid, make_load(step_cost=COST))
    return router


def serve(router: Router, session: bytes = NO_SESSION, *, accepted: bool = True) -> tuple[str, SessionPlace | None]:
    """One request from beginning to end: its replica, and what that was for its session."""
    sent = router.route(replace(make_prompt(range(50)), session=session), now=0.0)
    assert sent is not None
    if accepted:
        router.accepted(sent)
    router.release(sent, 0.0)
    return sent.uid, sent.decision.session


def test_equal_replicas_keep_their_sessions_while_others_go_in_turn() -> None:
    router = make_router()
    first, place = serve(router, MINE)
    assert place is SessionPlace.NEW
    second, _ = serve(router, OTHERS)
    assert second != first
    others = set()
    for _ in range(5):
        assert serve(router, MINE) == (first, SessionPlace.LAST)
        assert serve(router, OTHERS) == (second, SessionPlace.LAST)
        others.add(serve(router)[0])
    assert others == set("abc")


def test_cached_tokens_and_load_go_before_the_session() -> None:
    router = make_router("ab")
    last, _ = serve(router, MINE)
    other = "b" if last == "a" else "a"
    router.datastore.listed(other, 1, make_prompt(range(50)).by_digest["digest"][0].hashes(16))
    router.datastore.listed(last, 1, [])
    assert serve(router, MINE) == (other, SessionPlace.OTHER)
    assert serve(router, MINE) == (other, SessionPlace.LAST), "the replica that served it last is another now"

    router = make_router("ab")
    last, _ = serve(router, MINE)
    other = "b" if last == "a" else "a"
    router.datastore.loaded(last, make_load(step_cost=COST, waiting=4, queued_prefill_tokens=500))
    assert serve(router, MINE) == (other, SessionPlace.OTHER)


def test_a_replica_that_did_not_answer_has_not_served_the_session() -> None:
    router = make_router()
    assert serve(router, MINE, accepted=False)[1] is SessionPlace.NEW
    assert serve(router, MINE)[1] is SessionPlace.NEW
    assert serve(router, MINE)[1] is SessionPlace.LAST


def test_replicas_that_left_are_forgotten() -> None:
    router = make_router("ab")
    last, _ = serve(router, MINE)
    router.set_replicas([make_replica(uid) for uid in "ab" if uid != last])
    assert len(router.sessions) == 0
    router.set_replicas([make_replica(uid) for uid in "ab"])
    assert serve(router, MINE)[1] is SessionPlace.NEW


# -- the book ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from("stuvwxyz"), st.sampled_from("abc")) | st.sets(st.sampled_from("abc")).map(frozenset),
        max_size=60,
    )
)
def test_the_book_is_an_lru_of_sessions_whose_replicas_are_there(steps) -> None:
    book, model, present = SessionBook(max_sessions=4), {}, frozenset("abc")
    book.keep_only(present)
    for step in steps:
        if isinstance(step, frozenset):
            present = step
            book.keep_only(present)
            model = {session: uid for session, uid in model.items() if uid in present}
            continue
        session, uid = session_hash(step[0]), step[1]
        before = model.get(session)
        place = SessionPlace.NEW if before is None else SessionPlace.LAST if before == uid else SessionPlace.OTHER
        assert book.place(session, uid) is place
        book.served(session, uid)
        if uid in present:
            model.pop(session, None)
            model[session] = uid
            model = dict(list(model.items())[-4:])
        assert len(book) == len(model) <= 4
        assert all(book.last(each) == known for each, known in model.items())


def test_what_names_nothing_is_no_session() -> None:
    book = SessionBook()
    book.keep_only(frozenset("a"))
    assert session_hash("") == NO_SESSION
    book.served(NO_SESSION, "a")
    assert len(book) == 0
    assert book.place(NO_SESSION, "a") is None
    assert len(session_hash("\ud800")) == len(session_hash("x" * 1000)) == 16

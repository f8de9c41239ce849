"""How long a line takes: the arithmetic, what is learnt of requests that ended, and what a router makes of both."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.llmdeployment import Routing
from fairlead.routing.policies.least_loaded import LeastLoaded
from fairlead.routing.predictor import Work
from fairlead.routing.queue import PoolQueue, Ticket
from fairlead.routing.router import Router
from fairlead.routing.waits import WINDOW, HeldBook, SlotUse, seconds_to_slot, slot_seconds
from fairlead_common.wire.messages import StepCost
from fairlead_testing.routing import make_load, make_prompt, make_replica

COST = StepCost(base=0.010, prefill_token=0.0001, decode_seq=0.001)


def issue(queue: PoolQueue, num_bytes: int, priority: int = 0) -> Ticket:
    return Ticket(queue.next_number(), num_bytes, priority)


def test_the_example_of_the_docstring() -> None:
    held = slot_seconds(COST, slots=10, kv_tokens=0, output_tokens=20, prefill_seconds=50 * COST.prefill_token)
    assert held == pytest.approx(0.450)
    assert seconds_to_slot(3, 10 / held) == pytest.approx(0.135)


def test_a_step_that_brings_more_tokens_holds_a_slot_for_less() -> None:
    cost = StepCost(base=0.010, prefill_token=0.0001, decode_seq=0.001, tokens_per_decode=2.0)
    held = slot_seconds(cost, slots=10, kv_tokens=0, output_tokens=20, prefill_seconds=0.0)
    assert held == pytest.approx(slot_seconds(COST, slots=10, kv_tokens=0, output_tokens=10, prefill_seconds=0.0))


def test_who_finds_a_slot_free_waits_for_none() -> None:
    assert seconds_to_slot(0, 1.0) == seconds_to_slot(-3, 1.0) == seconds_to_slot(0, 0.0) == 0.0
    assert seconds_to_slot(1, 0.0) == inf


@given(
    st.integers(0, 10_000),
    st.integers(0, 100),
    st.floats(0.001, 1000),
    st.floats(0, 1000),
)
def test_more_ahead_is_a_longer_wait_and_more_slots_a_shorter_one(
    short: int, more: int, per_second: float, faster: float
) -> None:
    wait = seconds_to_slot(short, per_second)
    assert seconds_to_slot(short + more, per_second) >= wait >= seconds_to_slot(short, per_second + faster)


def test_what_was_seen_counts_and_never_less_than_what_steps_cost() -> None:
    book = HeldBook()
    assert book.seconds(COST, slots=10, kv_tokens=0) is None, "nobody has ended yet"
    book.observe(SlotUse(0.3, Work(50)))
    assert book.seconds(COST, slots=10, kv_tokens=0) == pytest.approx(0.3), "how many tokens came is not known"
    book.observe(SlotUse(0.5, Work(50), num_generated=20))
    assert book.seconds(COST, slots=10, kv_tokens=0) == pytest.approx(0.450), "by steps that are full now"
    assert book.seconds(COST, slots=1, kv_tokens=0) == pytest.approx(0.4), "as seen"


def test_what_was_long_ago_is_forgotten() -> None:
    book = HeldBook()
    for seconds in [100.0] * WINDOW + [1.0] * WINDOW:
        book.observe(SlotUse(seconds))
    assert book.seconds(COST, slots=1, kv_tokens=0) == pytest.approx(1.0)


def test_a_ticket_is_foreseen_once_and_knows_who_is_before_it() -> None:
    queue = PoolQueue(max_waiting=10, max_bytes=100)
    first, second, third = (issue(queue, 1) for _ in range(3))
    for ticket in (third, first):
        queue.enter(ticket, 0.0)
    assert [queue.num_ahead(ticket) for ticket in (first, second, third)] == [0, 1, 1]
    ticket = Ticket(1, 0)
    ticket.foresee(None, 1.0)
    ticket.foresee(2.0, 3.0)
    assert (ticket.foreseen_at, ticket.foreseen_ttft_seconds) == (1.0, None)


def full_router(num_replicas: int = 1, *, slots: int = 2, num_ended: int = 1) -> Router:
    """All slots taken at time 0 by requests of this gateway; one held its slot for 0.4 s, as many times as asked."""
    router = Router(LeastLoaded(Routing()), gateway_id="gateway")
    router.set_replicas([make_replica(str(index), slots) for index in range(num_replicas)])
    for _ in range(num_ended):
        found = router.route(make_prompt(range(10)), -0.4)
        assert found is not None
        router.accepted(found)
        router.release(found, 0.0)
    for index in range(num_replicas):
        load = make_load(step_cost=COST, max_num_seqs=slots, seen={"gateway": 100})
        router.datastore.loaded(str(index), load)
    for _ in range(num_replicas * slots):
        assert router.route(make_prompt(range(10)), 0.0) is not None
    assert router.route(make_prompt(range(10)), 0.0) is None
    return router


def foreseen(router: Router, num_ahead: int) -> float:
    seconds = router.foreseen_ttft(make_prompt(range(100, 150)), num_ahead, 0.0)
    assert seconds is not None
    return seconds


def test_the_wait_is_what_is_ahead_and_then_the_way_through_the_replica() -> None:
    """Two slots held for 0.4 s each: one comes free every 0.2 s. Then a step with 50 prompt tokens: 10 + 5 ms."""
    router = full_router()
    assert [foreseen(router, ahead) for ahead in range(3)] == pytest.approx([0.215, 0.415, 0.615])
    assert foreseen(full_router(2), 1) == pytest.approx(0.215), "twice as many slots"


def test_a_shorter_prompt_has_a_shorter_time_of_its_own() -> None:
    router = full_router()
    short = router.foreseen_ttft(make_prompt(range(10)), 0, 0.0)
    assert short == pytest.approx(0.2 + 0.010 + 10 * COST.prefill_token)


def test_refused_attempts_held_no_slot() -> None:
    router = full_router()
    slot = router.in_flight.unseen("0", 0)[0]
    router.full(slot, 0.001)
    router.release(slot, 0.001)
    assert router.held.seconds(COST, slots=1, kv_tokens=0) == pytest.approx(0.4)


def test_what_nobody_knows_is_not_foreseen() -> None:
    prompt = make_prompt(range(10))
    assert full_router(num_ended=0).foreseen_ttft(prompt, 0, 0.0) is None, "for how long slots are held"
    router = full_router()
    router.datastore.loaded("0", make_load(max_num_seqs=2))
    assert router.foreseen_ttft(prompt, 0, 0.0) is None, "what steps cost"
    router.set_replicas([])
    assert router.foreseen_ttft(prompt, 0, 0.0) is None, "whether there will ever be a replica"


def test_answers_of_several_sequences_do_not_say_how_long_they_are() -> None:
    router = Router(LeastLoaded(Routing()))
    router.set_replicas([make_replica("a")])
    for prompt in (make_prompt(range(10), range(10)), make_prompt(range(10))):
        found = router.route(prompt, 0.0)
        assert found is not None
        router.generated(found, 20)
        assert found.num_generated == (20 if found.num_seqs == 1 else None)

"""Whether a replica has room, by its load and by what happened since."""

import pytest

from fairlead.routing.in_flight import InFlightRequest
from fairlead.routing.predictor import Work
from fairlead.routing.replica import Decision
from fairlead.routing.replica_state import ReplicaState
from fairlead_common.wire.messages import StepCost
from fairlead_testing.routing import make_load, make_replica

REPLICA = make_replica("a", max_num_seqs=4)


def sent(number: int, *, uncached_tokens: int = 0, num_seqs: int = 1) -> InFlightRequest:
    return InFlightRequest(Decision(REPLICA, "", dispatch=number), 0.0, Work(uncached_tokens), num_seqs=num_seqs)


@pytest.mark.parametrize(
    ("running", "waiting", "num_unseen", "num_ended", "has_room"),
    [
        (3, 0, 0, 0, True),
        (4, 0, 0, 0, False),
        (3, 1, 0, 0, False),
        (3, 0, 1, 0, False),
        (4, 0, 0, 1, True),
        (4, 0, 1, 1, False),
        (2, 1, 2, 2, True),
    ],
)
def test_a_slot_is_free_by_the_load_what_it_does_not_include_and_what_ended(
    running, waiting, num_unseen, num_ended, has_room
) -> None:
    load = make_load(running=running, waiting=waiting, max_num_seqs=4)
    state = ReplicaState(REPLICA, 0, load, [sent(number) for number in range(num_unseen)], num_ended)
    assert state.has_room(100) == has_room


def test_what_this_gateway_has_there_is_there_whatever_the_load_says() -> None:
    assert not ReplicaState(REPLICA, 4, make_load(max_num_seqs=4), [], 0).has_room(1)
    assert not ReplicaState(REPLICA, 4, make_load(running=4, max_num_seqs=4), [], 3).has_room(1)


def test_a_request_with_several_prompts_takes_several_slots() -> None:
    load = make_load(max_num_seqs=4)
    assert ReplicaState(REPLICA, 1, load, [sent(1, num_seqs=3)]).has_room(1)
    assert not ReplicaState(REPLICA, 1, load, [sent(1, num_seqs=4)]).has_room(1)


def test_free_blocks_must_hold_what_is_uncached_and_what_is_on_its_way() -> None:
    load = make_load(running=1, kv_blocks_free=10)
    assert ReplicaState(REPLICA, 1, load).has_room(160)
    assert not ReplicaState(REPLICA, 1, load).has_room(161)
    assert ReplicaState(REPLICA, 2, load, [sent(2, uncached_tokens=17)]).has_room(128)
    assert not ReplicaState(REPLICA, 2, load, [sent(2, uncached_tokens=17)]).has_room(129)


def test_a_replica_with_nothing_to_do_takes_any_prompt() -> None:
    assert ReplicaState(REPLICA, 0, make_load(kv_blocks_free=0)).has_room(10_000)
    assert not ReplicaState(REPLICA, 0, make_load(kv_blocks_free=0, draining=True)).has_room(1)


def test_a_draining_replica_has_no_room() -> None:
    assert not ReplicaState(REPLICA, 1, make_load(running=1, draining=True)).has_room(1)


def test_without_a_load_what_this_gateway_has_there_counts() -> None:
    assert ReplicaState(REPLICA, 3).has_room(10_000)
    assert not ReplicaState(REPLICA, 4).has_room(1)


def test_a_step_that_takes_far_too_long_hangs() -> None:
    quick, slow = StepCost(base=0.01), StepCost(base=1.0)
    assert not ReplicaState(REPLICA, 0, make_load(step_age_seconds=4.0, step_cost=quick)).hangs()
    assert ReplicaState(REPLICA, 0, make_load(step_age_seconds=6.0, step_cost=quick)).hangs()
    assert not ReplicaState(REPLICA, 0, make_load(step_age_seconds=6.0, step_cost=slow)).hangs()
    assert ReplicaState(REPLICA, 0, make_load(step_age_seconds=21.0, step_cost=slow)).hangs()
    assert not ReplicaState(REPLICA, 0).hangs()


def test_a_time_is_foreseen_only_with_load_and_step_cost() -> None:
    cost = StepCost(base=0.01, prefill_token=0.001)
    assert ReplicaState(REPLICA, 0).predicted_ttft(Work(10), 0.0) is None
    assert ReplicaState(REPLICA, 0, make_load()).predicted_ttft(Work(10), 0.0) is None
    assert ReplicaState(REPLICA, 0, make_load(step_cost=cost)).predicted_ttft(Work(10), 0.0) == pytest.approx(0.02)
    unseen = [sent(1, uncached_tokens=90)]
    assert ReplicaState(REPLICA, 1, make_load(step_cost=cost), unseen).predicted_ttft(Work(10), 0.05) == pytest.approx(
        0.07
    )

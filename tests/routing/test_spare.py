"""Which replicas take lines of batches: what is left free for others, in slots, cache and time."""

from dataclasses import replace
from math import ceil
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead.routing.predictor import Work
from fairlead.routing.replica import Load, Replica
from fairlead.routing.replica_state import ReplicaState
from fairlead.routing.spare import DELAY, DELAYING_SHARE, QUIET_SECONDS, SpareBook
from fairlead_common.wire.messages import StepCost

COST = StepCost(base=0.010, prefill_token=0.0001, decode_seq=0.0001)
PROMPT = Work(10.0, 45.0)


def state(**figures: Any) -> ReplicaState:
    load = {
        "waiting": 0, "running": 0, "queued_prefill_tokens": 0, "kv_blocks_free": 1000, "kv_blocks_total": 1000,
        "kv_tokens": 0, "token_budget": 512, "max_num_seqs": 16, "step_age_seconds": 0.0, "draining": False, "seq": 1,
        "step_cost": COST, "time": 0.0,
    }  # fmt: skip
    made = Load(**load | figures)
    return ReplicaState(Replica("r", "r", "host", 1), made.running, made)


def busy() -> SpareBook:
    """Of a model whose prompts have 100 uncached tokens."""
    book = SpareBook()
    for _ in range(100):
        book.dispatched(Work(100.0, 0.0), 0.0)
    return book


@given(slots=st.integers(1, 300), running=st.integers(0, 300), num_spare=st.integers(0, 300), quiet=st.booleans())
def test_slots_are_left_free(slots: int, running: int, num_spare: int, quiet: bool) -> None:
    running, num_spare = min(running, slots), min(num_spare, running, slots)
    book = SpareBook() if quiet else busy()
    now_quiet = quiet and running == num_spare
    left = ceil(slots * (0.125 if now_quiet else 0.25))
    taken = book.may_take(state(running=running, max_num_seqs=slots), num_spare, PROMPT, 1.0)
    if taken and running:
        assert running + 1 <= slots - (min(slots - 1, left) if now_quiet else left)
    if not running:
        assert taken, "an idle replica takes one, whatever its size"


def test_others_are_noticed_for_a_minute() -> None:
    book, crowd = SpareBook(), state(running=12)
    assert book.may_take(crowd, 12, PROMPT, 0.0)
    book.came(0.0)
    assert not book.may_take(crowd, 12, PROMPT, QUIET_SECONDS - 1.0)
    assert book.may_take(crowd, 12, PROMPT, QUIET_SECONDS)
    assert not book.may_take(crowd, 11, PROMPT, QUIET_SECONDS), "another gateway's request runs there"


def test_lines_go_where_nothing_is_computed_or_waits() -> None:
    for figures in (
        {"queued_prefill_tokens": 1}, {"waiting": 1}, {"draining": True}, {"step_age_seconds": 99.0},
        {"kv_blocks_free": 200},
    ):  # fmt: skip
        assert not busy().may_take(state(**{"running": 1} | figures), 0, PROMPT, 1.0), figures
    assert busy().may_take(state(), 0, PROMPT, 1.0)


def test_decodes_of_lines_add_at_most_a_tenth_to_a_usual_step() -> None:
    usual = COST.base + 100 * COST.prefill_token
    most = int(DELAY * usual / COST.decode_seq)
    slots = 4 * most
    assert busy().may_take(state(running=most - 2, max_num_seqs=slots), most - 2, PROMPT, 1.0)
    assert not busy().may_take(state(running=most, max_num_seqs=slots), most, PROMPT, 1.0)
    unknown = replace(state(running=2, step_cost=StepCost()))
    assert not busy().may_take(unknown, 2, PROMPT, 1.0) and busy().may_take(unknown, 1, PROMPT, 1.0)


def test_long_prompts_of_lines_take_a_small_part_of_the_time() -> None:
    book, long = busy(), Work(300.0, 0.0)
    seconds = 300 * COST.prefill_token
    num_taken, now, step = 0, 0.0, 0.01
    while now < 60.0:
        if book.may_take(state(), 0, long, now):
            book.took(state(), long, now)
            num_taken += 1
        now += step
    assert 0.8 * DELAYING_SHARE <= num_taken * seconds / now <= 1.1 * DELAYING_SHARE
    assert book.may_take(state(), 0, PROMPT, now), "short ones hold nobody up"


@given(costly=st.booleans(), slots=st.sampled_from([1, 2, 16]), seconds=st.floats(0.01, 5.0))
def test_lines_that_delay_others_run_alone_a_small_part_of_the_time(costly: bool, slots: int, seconds: float) -> None:
    """Others ask all the time and are never served at that moment."""
    cost = msgspec.structs.replace(COST, decode_seq=0.005) if costly else COST
    book, figures = busy(), {"step_cost": cost, "max_num_seqs": slots}
    alone, now, num_taken = 0.0, 0.0, 0
    while now < 600.0:
        book.came(now)
        if book.may_take(state(**figures), 0, PROMPT, now):
            book.took(state(**figures), PROMPT, now)
            now, alone, num_taken = now + seconds, alone + seconds, num_taken + 1
            book.ended("r", now)
        now += 0.25
    assert num_taken > 1
    if costly or slots == 1:
        assert alone <= DELAYING_SHARE * now + seconds
        assert not book.may_take(state(running=1, **figures), 1, PROMPT, now), "one more beside it"
    else:
        assert num_taken >= int(600.0 / (seconds + 0.25)), "each at once"

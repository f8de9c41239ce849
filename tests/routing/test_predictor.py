"""Predicted time to first token: by hand, in closed form, and against an engine that is played step by step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.routing.predictor import (
    Dispatched,
    Work,
    predicted_ttft,
    prefill_context,
    prefill_seconds,
    prefill_work,
    step_seconds,
)
from fairlead.routing.replica import Load
from fairlead_common.wire.messages import StepCost
from fairlead_testing.routing import make_load

COST = StepCost(base=0.010, prefill_token=0.0001, decode_seq=0.001)


def load(**changed) -> Load:
    return make_load(**{"token_budget": 104, **changed})


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_closed_form_of_contexts_is_their_sum(cached: int, uncached: int) -> None:
    assert prefill_context(cached, uncached) == sum(range(cached, cached + uncached))


def test_a_step_costs_the_sum_of_its_work() -> None:
    cost = StepCost(base=1, prefill_step=100, prefill_token=2, prefill_context=3, decode_seq=5, kv_token=7)
    assert step_seconds(cost, running=11, kv_tokens=13, prefill_tokens=17, prefill_context=19) == (
        1 + 100 + 5 * 11 + 7 * 13 + 2 * 17 + 3 * 19
    )
    assert step_seconds(cost, running=11, kv_tokens=13) == 1 + 5 * 11 + 7 * 13


@pytest.mark.parametrize(("tokens", "num_steps"), [(0, 0), (1, 1), (100, 1), (101, 2), (250, 3)])
def test_prefill_takes_whole_steps_and_what_its_tokens_cost(tokens: int, num_steps: int) -> None:
    seconds = prefill_seconds(COST, tokens=tokens, context=0, token_budget=104, running=4, kv_tokens=0)
    assert seconds == pytest.approx(num_steps * 0.014 + tokens * 0.0001)


def test_the_example_of_the_docstring() -> None:
    then = load(running=4, queued_prefill_tokens=260, step_age_seconds=0.005)
    assert predicted_ttft(then, COST, [], Work(50), now=0.020) == pytest.approx(0.062)


def test_an_idle_replica_begins_at_once() -> None:
    assert predicted_ttft(load(), COST, [], Work(50), now=1.0) == pytest.approx(0.010 + 0.005)


def test_a_decoding_replica_is_somewhere_in_its_step() -> None:
    then = load(running=4, step_age_seconds=0.004)
    own = 0.014 + 0.005
    assert predicted_ttft(then, COST, [], Work(50), now=0.0) == pytest.approx(0.010 + own)
    assert predicted_ttft(then, COST, [], Work(50), now=0.009) == pytest.approx(0.001 + own)
    assert predicted_ttft(then, COST, [], Work(50), now=0.011) == pytest.approx(0.013 + own)
    assert predicted_ttft(then, COST, [], Work(50), now=0.011 + 100 * 0.014) == pytest.approx(0.013 + own)


def test_what_was_dispatched_since_begins_a_step_and_later_ones_wait_for_its_end() -> None:
    unseen = [Dispatched(1.0, Work(80)), Dispatched(1.001, Work(30)), Dispatched(1.002, Work(10))]
    # The first began alone: 18 ms from 1.000 on. The other two share the next step with the new prompt.
    assert predicted_ttft(load(), COST, unseen, Work(20), now=1.005) == pytest.approx(0.013 + 0.010 + 0.006)


def test_what_came_before_the_running_step_began_is_part_of_it() -> None:
    """Its figures are those of the end of the step before: a replica that has just begun says that it has nothing."""
    begun = load(time=1.0, step_age_seconds=0.005)
    assert predicted_ttft(begun, COST, [Dispatched(0.994, Work(80))], Work(20), now=1.0) == pytest.approx(
        (0.018 - 0.005) + 0.010 + 0.002
    )
    busy = load(time=1.0, running=4, queued_prefill_tokens=70, step_age_seconds=0.005)
    unseen = [Dispatched(0.994, Work(80)), Dispatched(0.996, Work(10))]
    # 100 of the 150 tokens are in the running step; 50, the second and the new one are behind it.
    assert predicted_ttft(busy, COST, unseen, Work(20), now=1.0) == pytest.approx((0.024 - 0.005) + 0.014 + 0.008)


def test_what_was_dispatched_since_is_worked_off_as_well() -> None:
    unseen = [Dispatched(1.0, Work(80))]
    assert predicted_ttft(load(), COST, unseen, Work(20), now=1.5) == pytest.approx(0.010 + 0.002)


def test_a_late_step_is_expected_to_be_late_as_long_again() -> None:
    seconds = [
        predicted_ttft(load(running=4, step_age_seconds=age), COST, [], Work(50), now=0.0) for age in (0.015, 0.5, 4.0)
    ]
    assert seconds == pytest.approx([0.019 + 0.001, 0.019 + 0.486, 0.019 + 3.986])


def test_requests_that_ended_since_decode_no_longer() -> None:
    then = load(running=4, kv_tokens=1000, step_age_seconds=0.0)
    cost = StepCost(base=0.010, prefill_token=0.0001, decode_seq=0.001, kv_token=0.00001)
    assert predicted_ttft(then, cost, [], Work(50), now=0.0) == pytest.approx(2 * 0.024 + 0.005)
    assert predicted_ttft(then, cost, [], Work(50), now=0.0, num_ended=2) == pytest.approx(2 * 0.017 + 0.005)
    assert predicted_ttft(then, cost, [], Work(50), now=0.0, num_ended=4) == pytest.approx(0.010 + 0.005)


def test_long_contexts_cost_more() -> None:
    cost = StepCost(base=0.010, prefill_token=0.0001, prefill_context=0.000001)
    seconds = predicted_ttft(load(), cost, [], prefill_work(1000, 50), now=0.0)
    assert seconds == pytest.approx(0.010 + 0.005 + 0.000001 * (50 * 1000 + 1225))


def test_contexts_of_queued_tokens_are_taken_from_who_knows_them() -> None:
    cost = StepCost(base=0.010, prefill_context=0.000001)
    then = load(waiting=1, queued_prefill_tokens=100, token_budget=100, step_age_seconds=0.0)
    guessed = predicted_ttft(then, cost, [], Work(50), now=0.0)
    assert guessed == pytest.approx(2 * 0.010 + 0.000001 * 100 * 25)
    known = predicted_ttft(then, cost, [], Work(50), now=0.0, context_per_token=1000)
    assert known == pytest.approx(2 * 0.010 + 0.000001 * 100 * 1000)


class PlayedEngine:
    """The model of the docstring, played step by step: what `predicted_ttft` must foretell exactly."""

    def __init__(self, cost: StepCost, running: int, token_budget: int, now: float = 0.0) -> None:
        self.cost, self.running, self.per_step = cost, running, max(1, token_budget - running)
        self.now, self.step_ends, self.queue = now, None, []

    def run(self, until: float) -> None:
        while True:
            if self.step_ends is None:
                if not self.running and not sum(self.queue):
                    break
                self._begin(self.now)
            if self.step_ends > until:
                break
            self.now, self.step_ends = self.step_ends, None
        self.now = max(self.now, until)

    def _begin(self, now: float) -> None:
        tokens = min(sum(self.queue), self.per_step)
        self.step_ends = now + step_seconds(self.cost, running=self.running, kv_tokens=0, prefill_tokens=tokens)
        left = tokens
        for index, queued in enumerate(self.queue):
            self.queue[index] -= min(left, queued)
            left -= min(left, queued)

    def first_token_of(self, tokens: int) -> float:
        self.queue.append(tokens)
        while True:
            if self.step_ends is None:
                self._begin(self.now)
            self.now, self.step_ends = self.step_ends, None
            if not sum(self.queue):
                return self.now


@settings(deadline=None, max_examples=80)
@given(
    running=st.integers(0, 20),
    queued=st.integers(0, 2000),
    arrivals=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 300)), max_size=6),
    wait=st.integers(0, 200),
    tokens=st.integers(1, 400),
)
def test_it_foretells_an_engine_that_keeps_to_the_model(running, queued, arrivals, wait, tokens) -> None:
    """Dyadic costs and times, so that both sides compute exactly."""
    cost = StepCost(base=2**-7, prefill_step=2**-8, prefill_token=2**-12, decode_seq=2**-9)
    engine = PlayedEngine(cost, running, token_budget=64)
    engine.queue.append(queued)
    then = load(running=running, waiting=int(queued > 0), queued_prefill_tokens=queued, token_budget=64)
    unseen, now = [], 0.0
    if running or queued:
        engine.run(0.0)
    for pause, num_tokens in arrivals:
        now += (pause + 0.5) * 2**-11
        engine.run(now)
        engine.queue.append(num_tokens)
        unseen.append(Dispatched(now, Work(num_tokens)))
        engine.run(now)
    now += (wait + 0.5) * 2**-11
    engine.run(now)
    predicted = predicted_ttft(then, cost, unseen, Work(tokens), now=now)
    assert predicted == pytest.approx(engine.first_token_of(tokens) - now, rel=1e-9)


costs = st.builds(
    StepCost,
    base=st.floats(1e-4, 1e-1),
    prefill_step=st.floats(0, 1e-2),
    prefill_token=st.floats(0, 1e-2),
    prefill_context=st.floats(0, 1e-6),
    decode_seq=st.floats(0, 1e-2),
    kv_token=st.floats(0, 1e-5),
)
loads = st.builds(
    load,
    running=st.integers(0, 60),
    waiting=st.integers(0, 20),
    queued_prefill_tokens=st.integers(0, 5000),
    kv_tokens=st.integers(0, 50_000),
    token_budget=st.integers(1, 2048),
    step_age_seconds=st.just(0.0),
)


@settings(deadline=None, max_examples=50)
@given(loads, costs, st.integers(0, 3000), st.integers(1, 1000), st.integers(1, 1000))
def test_what_is_cached_never_makes_it_later(then: Load, cost: StepCost, cached: int, less: int, uncached: int) -> None:
    worse = predicted_ttft(then, cost, [], prefill_work(cached, uncached + less), now=0.0)
    better = predicted_ttft(then, cost, [], prefill_work(cached + less, uncached), now=0.0)
    assert better <= worse * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(loads, costs, st.integers(1, 3000), st.integers(1, 1000))
def test_more_unseen_tokens_never_make_it_earlier(then: Load, cost: StepCost, tokens: int, more: int) -> None:
    fewer = predicted_ttft(then, cost, [Dispatched(0.0, Work(tokens))], Work(10), now=0.0)
    greater = predicted_ttft(then, cost, [Dispatched(0.0, Work(tokens + more))], Work(10), now=0.0)
    assert fewer <= greater * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(loads, costs, st.lists(st.tuples(st.floats(0, 1), st.integers(0, 500))), st.floats(0, 3), st.integers(0, 9))
def test_it_is_finite_and_at_least_the_prompts_own_step(then, cost, dispatched, now, num_ended) -> None:
    unseen = [Dispatched(at, Work(tokens)) for at, tokens in sorted(dispatched)]
    seconds = predicted_ttft(then, cost, unseen, Work(100), now=now, num_ended=num_ended)
    assert cost.base + 100 * cost.prefill_token <= seconds * (1 + 1e-9)
    assert seconds < 1e6

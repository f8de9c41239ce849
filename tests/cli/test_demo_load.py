"""The demo's load against the autoscaler's own rule, in virtual time: whatever the machine's speed, many clients make
it want a second replica, and few make it want one and keep that one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairlead.api.llmdeployment import Autoscaling
from fairlead.simulator.scaled_fleet import Request, ScaledFleet, Workload
from fairlead_common.wire.messages import StepCost
from fairlead_local.demo.load_plan import ANSWER_TOKENS, LONGEST_PAUSE_SECONDS, Crowd, Speed, few, many, wanted
from fairlead_local.demo.recorder import MOST_ANSWERS, QUIET_SECONDS, Patience
from fairlead_local.demo.story import autoscaling_of, read_manifest
from fairlead_testing.fleet_objects import load

SPEC = autoscaling_of(read_manifest(Path(__file__).parent.parent.parent / "examples" / "02-autoscaling.yaml"))
SLOTS = 4
PROMPT_TOKENS, UNCACHED_TOKENS = 430, 30
GOVERN_SECONDS = 2.0
CAPACITIES = pytest.mark.parametrize("capacity", [0.5, 1.0, 1.5, 8.0])
"""Requests per second that keep every slot of one replica taken."""
SHARES = pytest.mark.parametrize("share", [0.1, 0.9])
"""Of a step with full slots that a step for one costs as well: between these two, cores may be as they like."""


def cost_of(capacity: float, share: float) -> StepCost:
    step = SLOTS / capacity / ANSWER_TOKENS
    return StepCost(base=share * step, decode_seq=(1 - share) * step / SLOTS, prefill_token=step / 1000)


def times(cost: StepCost, by: float) -> StepCost:
    return msgspec.structs.replace(cost, **{name: by * getattr(cost, name) for name in ("base", "decode_seq")})


def speed_of(cost: StepCost) -> Speed:
    loads = [load("one", step_cost=cost, max_num_seqs=SLOTS)]
    return Speed(loads=loads, prompt_tokens=PROMPT_TOKENS, uncached_tokens=UNCACHED_TOKENS)


class CrowdedFleet(ScaledFleet):
    """With clients that ask again when they were answered; `rule` says how many, from what steps are said to cost."""

    def __init__(self, cost: StepCost, *, told: StepCost) -> None:
        workload = Workload(
            rate=lambda _: 0.0,
            prompt_tokens=PROMPT_TOKENS,
            uncached_tokens=UNCACHED_TOKENS,
            output_tokens=ANSWER_TOKENS,
        )
        self.rule: Callable[[Speed, Autoscaling], Crowd] = many
        self._crowd, self._governed_at = Crowd(clients=0), -GOVERN_SECONDS
        self._asked: dict[int, Request] = {}
        super().__init__(SPEC, workload, cost=cost, told_cost=told, slots=SLOTS, cold_start=5.0)

    def _arrive(self, is_request: bool) -> None:
        if self.time >= self._governed_at + GOVERN_SECONDS:
            self._crowd, self._governed_at = self.rule(speed_of(self.told_cost), self.spec), self.time
        for place in range(self._crowd.clients):
            last, pause = self._asked.get(place), self._crowd.every_seconds
            if last is None or (last.num_generated >= last.max_tokens and self.time >= last.arrived + pause):
                self._asked[place] = self.ask(UNCACHED_TOKENS, self._crowd.output_tokens)
        super()._arrive(is_request)

    def until(self, replicas: int) -> bool:
        """Whether so many are asked for and ready, and no others there, before the demo would lose its patience."""
        patience = Patience(self.time)
        while not patience.is_over(self.time, (self.desired, len(self.replicas)), self.counted.num_answered):
            if self.desired == len(self._ready()) == len(self.replicas) == replicas:
                return True
            self.run(1.0)
        return False


@CAPACITIES
@SHARES
def test_many_clients_make_the_autoscaler_want_two_and_few_make_it_want_one(capacity: float, share: float) -> None:
    """By the rule alone, with what a minute of them is counted as."""
    speed = speed_of(cost_of(capacity, share))
    high, low = many(speed, SPEC), few(speed, SPEC)
    assert [wanted(high, speed, SPEC, ready=ready) for ready in (1, 2)] == [2, 2]
    assert [wanted(low, speed, SPEC, ready=ready) for ready in (1, 2)] == [1, 1]
    assert high.clients >= 2 * SLOTS


@pytest.mark.matrix
@CAPACITIES
@SHARES
@pytest.mark.parametrize("slower", [1.0, 3.0], ids=["as-measured", "three-times-slower-by-now"])
def test_the_fleet_follows_up_and_down_and_stays(capacity: float, share: float, slower: float) -> None:
    """The whole loop, with what engines say of their steps as old as it can be: from before they became slower."""
    told = cost_of(capacity, share)
    fleet = CrowdedFleet(times(told, slower), told=told)
    assert fleet.until(2), fleet.decisions[-1]
    fleet.run(30.0)
    assert fleet.desired == 2
    fleet.rule = few
    assert fleet.until(1), fleet.decisions[-1]
    changes = list(fleet.changes)
    fleet.run(120.0)
    assert fleet.changes == changes


@pytest.mark.matrix
@CAPACITIES
@SHARES
def test_the_low_load_follows_what_engines_say_by_now(capacity: float, share: float) -> None:
    """They say that steps became three times as dear: no more tokens are asked for than one replica has room for by
    what they say now."""
    measured = cost_of(capacity, share)
    now = times(measured, 3.0)
    fleet = CrowdedFleet(now, told=measured)
    assert fleet.until(2)
    fleet.told_cost, fleet.rule = now, few
    assert fleet.until(1), fleet.decisions[-1]
    assert few(speed_of(now), SPEC).output_tokens <= few(speed_of(measured), SPEC).output_tokens


def test_however_many_slots_there_are_there_are_more_clients() -> None:
    cost = cost_of(8.0, 0.5)
    speed = Speed(loads=[load("one", step_cost=cost, max_num_seqs=256)], prompt_tokens=430, uncached_tokens=30)
    assert many(speed, SPEC).clients >= 512


def test_the_last_replica_has_no_silence_to_go_in() -> None:
    speed = speed_of(cost_of(1.0, 0.5))
    assert few(speed, SPEC).every_seconds == pytest.approx(LONGEST_PAUSE_SECONDS)
    assert few(speed, replace(SPEC, scale_to_zero_after=6.0)).every_seconds == pytest.approx(2.0)


def test_an_engine_that_has_learnt_nothing_is_no_basis() -> None:
    with pytest.raises(ValueError, match="has not learnt"):
        many(speed_of(StepCost()), SPEC)


def test_what_is_said_of_the_speed() -> None:
    said = str(speed_of(StepCost(base=0.001, decode_seq=0.0005)))
    assert said.startswith("a decode step of 4 takes 3.00 ms, so a request holds its slot for 0.77 s")


def test_patience_lasts_as_long_as_something_moves() -> None:
    patience, now = Patience(0.0), 0.0
    for stage in ("one", "two", "three"):
        assert not patience.is_over(now, stage)
        now += QUIET_SECONDS
    assert not patience.is_over(now, "three")
    assert patience.is_over(now + 1.0, "three")


@pytest.mark.parametrize("seconds", [1.0, 170.0])
def test_answers_are_progress_at_any_speed_but_not_for_ever(seconds: float) -> None:
    """As many as an autoscaler needs to know; then it has to have moved."""
    patience, now, number = Patience(0.0), 0.0, 5
    while not patience.is_over(now, "the same", number):
        number, now = number + 1, now + seconds
    assert now == pytest.approx(MOST_ANSWERS * seconds + QUIET_SECONDS, abs=2 * seconds)

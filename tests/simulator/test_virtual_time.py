"""A clock that jumps from call to call, and engines that step by it."""

from typing import Any

import pytest

from fairlead.routing.replica import Limits
from fairlead.simulator.engine_model import EngineModel, ModelSequence, StepOutcome
from fairlead.simulator.virtual_time import TimedEngine, VirtualTime
from fairlead_common.wire.messages import StepCost


class RecordingEngine(TimedEngine):
    """Notes when each step ended, and how many sequences got tokens."""

    def __init__(self, time: VirtualTime, **options: Any) -> None:
        limits = Limits(max_num_seqs=2, max_num_queued_tokens=100)
        model = EngineModel(limits, num_blocks=100, token_budget=20, step_cost=StepCost(base=1.0))
        super().__init__(model, time, **options)
        self.ended: list[tuple[float, int]] = []

    def stepped(self, outcome: StepOutcome) -> None:
        self.ended.append((self.time.now, len(outcome.answered)))


def sequence(max_tokens: int) -> ModelSequence:
    return ModelSequence(num_prompt_tokens=4, max_tokens=max_tokens)


def test_calls_come_in_the_order_of_their_times_and_equal_times_in_the_order_of_scheduling() -> None:
    time, calls = VirtualTime(), []
    for name, at in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        time.at(at, lambda name=name: calls.append((time.now, name)))
    time.at(1.0, lambda: time.after(0.5, lambda: calls.append((time.now, "later"))))
    while time.advance():
        pass
    assert calls == [(1.0, "a"), (1.0, "b"), (1.5, "later"), (2.0, "c")]


def test_time_stops_at_the_bound_and_goes_on_from_there() -> None:
    time = VirtualTime()
    time.at(3.0, lambda: None)
    assert not time.advance(2.0)
    assert time.now == 2.0
    assert time.advance(3.0)
    assert time.now == 3.0


def test_an_engine_steps_while_it_has_requests_and_takes_new_ones_between_steps() -> None:
    time = VirtualTime()
    engine = RecordingEngine(time)
    engine.add(sequence(2))
    time.at(0.5, lambda: engine.add(sequence(1)))
    while time.advance(100.0):
        pass
    assert engine.ended == [(1.0, 1), (2.0, 2)]
    engine.add(sequence(1))
    assert time.advance()
    assert engine.ended[2:] == [(101.0, 1)], "an idle engine begins at once"


def test_a_request_cuts_steps_that_are_taken_together() -> None:
    time = VirtualTime()
    engine = RecordingEngine(time, together_seconds=50.0)
    engine.add(sequence(21))
    time.at(4.5, lambda: engine.add(sequence(1)))
    while time.advance(100.0):
        pass
    assert engine.ended == [(1.0, 1), (5.0, 1), (6.0, 2), (21.0, 1)]
    assert engine.model.num_steps == 21


def test_steps_are_stretched() -> None:
    time = VirtualTime()
    engine = RecordingEngine(time, stretch=lambda: 1.5)
    engine.add(sequence(1))
    time.advance()
    assert engine.ended == [(pytest.approx(1.5), 1)]

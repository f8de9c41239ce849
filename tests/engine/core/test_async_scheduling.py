"""Steps that are planned while one is under way: in which order, and what becomes of sequences that end meanwhile."""

import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.types import FinishReason
from fairlead_engine_testing import FakeClock, FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.checked_steps import run_checked
from fairlead_engine_testing.fake_engine import fake_config

MODEL = FakeModelConfig(vocab_size=50, max_position_embeddings=64, eos_token_ids=())


class WatchedRunner(FakeRunner):
    """Notes each launch and each collect, by the number of the batch.

    A step takes a second when it is collected, or, `at_launch`, one for each token when it is launched, as on a CPU.
    """

    def __init__(self, clock: FakeClock, at_launch: bool = False) -> None:
        super().__init__(MODEL)
        self.clock = clock
        self.at_launch = at_launch
        self.notes: list[str] = []
        self.num_launched = self.num_collected = 0

    def launch(self, batch):  # type: ignore[no-untyped-def]
        self.clock.advance(1.0 * batch.num_tokens * self.at_launch)
        self.notes.append(f"launch {self.num_launched}")
        self.num_launched += 1
        return super().launch(batch)

    def collect(self, launched):  # type: ignore[no-untyped-def]
        self.clock.advance(0.0 if self.at_launch else 1.0)
        self.notes.append(f"collect {self.num_collected}")
        self.num_collected += 1
        return super().collect(launched)


def make_engine(at_launch: bool = False, **changes: object) -> tuple[Engine, WatchedRunner]:
    clock = FakeClock()
    runner = WatchedRunner(clock, at_launch)
    engine = Engine(fake_config(**{"async_scheduling": True, **changes}), runner, clock)  # type: ignore[arg-type]
    runner.notes.clear()
    runner.num_launched = runner.num_collected = 0
    return engine, runner


def test_a_step_is_launched_before_the_one_before_it_is_collected() -> None:
    engine, runner = make_engine()
    prompt = [1, 2, 3]
    engine.add(make_request("a", prompt, max_tokens=3))
    assert engine.step() == [], "nobody knows yet what the first step did"
    outputs = run_checked(engine)
    assert [token for output in outputs for token in output.new_token_ids] == runner.generate(prompt, 3)
    assert runner.notes == ["launch 0", "launch 1", "collect 0", "launch 2", "collect 1", "collect 2"]
    assert engine.load.num_steps == 3
    assert engine.load.last_step_seconds == pytest.approx(1.0), "each is as long as the device was at it"


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_launch_that_does_all_the_work_is_the_launched_steps_time(async_scheduling: bool) -> None:
    engine, _ = make_engine(at_launch=True, async_scheduling=async_scheduling, max_num_batched_tokens=8)
    engine.add(make_request("a", range(20), max_tokens=4))
    seconds = []
    while engine.has_work():
        num_steps = engine.load.num_steps
        engine.step()
        if engine.load.num_steps > num_steps:
            assert engine.load.last_step_seconds == engine.load.last_step_tokens
            seconds.append(engine.load.last_step_seconds)
    assert seconds == [8.0, 8.0, 4.0, 1.0, 1.0, 1.0]


def test_a_cpu_waits_for_each_step_unless_told_otherwise() -> None:
    engine, runner = make_engine(async_scheduling=None)
    engine.add(make_request("a", max_tokens=2))
    run_checked(engine)
    assert runner.notes == ["launch 0", "collect 0", "launch 1", "collect 1"]


def test_what_was_computed_for_a_sequence_that_has_ended_is_dropped() -> None:
    engine, runner = make_engine()
    prompt = [1, 2, 3]
    first, second = runner.generate(prompt, 2)
    engine.add(make_request("a", prompt, max_tokens=9, stop_token_ids=[second]))
    outputs = run_checked(engine)
    assert [output.new_token_ids for output in outputs] == [[first], [second]]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert runner.num_launched == 3, "the third step began before the second was known"
    assert engine.blocks.num_free == engine.blocks.num_blocks
    assert engine.load.generation_tokens == 2


def test_a_request_that_is_aborted_under_way_says_nothing_more_and_its_name_is_free() -> None:
    engine, runner = make_engine()
    engine.add(make_request("a", [1, 2, 3], max_tokens=9))
    engine.step()
    engine.abort("a")
    assert engine.has_work(), "the device is still at it"
    engine.add(make_request("a", [4, 5], max_tokens=2))
    outputs = run_checked(engine)
    assert [token for output in outputs for token in output.new_token_ids] == runner.generate([4, 5], 2)
    assert engine.blocks.num_free == engine.blocks.num_blocks


def test_a_sequence_that_is_preempted_under_way_keeps_its_token() -> None:
    engine, runner = make_engine(num_blocks=16, max_num_seqs=2, enable_prefix_caching=False)
    prompts = {"a": list(range(1, 30)), "b": list(range(9, 31))}  # together 14 blocks, and 12 tokens more each
    for index, (name, prompt) in enumerate(prompts.items()):
        engine.add(make_request(name, prompt, max_tokens=12, arrival_time=float(index)))
    outputs = run_checked(engine)
    assert engine.load.num_preemptions == 1
    for name, prompt in prompts.items():
        tokens = [token for output in outputs if output.request_id == name for token in output.new_token_ids]
        assert tokens == runner.generate(prompt, 12)


def test_logits_that_leave_no_choice_end_a_sequence_whose_next_step_is_under_way() -> None:
    engine, runner = make_engine()
    runner.is_spoilt = lambda sequence: sequence.request_id == "a" and sequence.num_output_tokens == 1
    engine.add(make_request("a", [1, 2, 3], max_tokens=9))
    engine.add(make_request("b", [1, 2, 3], max_tokens=9))
    outputs = run_checked(engine)
    assert [output.finish_reason for output in outputs if output.finish_reason] == [
        FinishReason.ERROR,
        FinishReason.LENGTH,
    ]
    assert [token for output in outputs if output.request_id == "b" for token in output.new_token_ids] == (
        runner.generate([1, 2, 3], 9)
    )

"""An engine with drafts does what it does without, in fewer steps; its books and figures are right.

The runner is fake and the guesses are as good as a test wants, so that every number of them stands.
"""

from typing import Any

import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.attention.block_allocator import LRUBlocks
from fairlead_engine.types import FinishReason
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.checked_steps import run_checked
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.fake_runner import KnowingProposer

MODEL = FakeModelConfig(vocab_size=8, max_position_embeddings=60, eos_token_ids=(0,))


def make_engine(wrong: float = 0.0, most: int = 4, **changes: Any) -> tuple[Engine, FakeRunner]:
    config = fake_config(speculative_method="ngram", num_speculative_tokens=most, **changes)
    runner = FakeRunner(MODEL, block_size=config.block_size, block_allocator=LRUBlocks)
    engine = Engine(config, runner)
    assert engine.scheduler.drafting is not None
    engine.scheduler.drafting.proposer = KnowingProposer(runner, wrong)
    return engine, runner


def _width(batch: list[tuple[int, int]]) -> int:
    return sum(num_tokens for _, num_tokens in batch)


def test_right_drafts_save_steps_and_the_figures_say_so() -> None:
    engine, runner = make_engine(most=3)
    engine.scheduler.drafting.proposer.propose = lambda sequence, most: runner.generate(sequence.token_ids, most)  # type: ignore[union-attr, method-assign]
    engine.add(make_request("a", [1, 2, 3], max_tokens=21, ignore_eos=True))
    num_steps = engine.load.num_steps
    outputs = run_checked(engine)
    assert [len(output.new_token_ids) for output in outputs] == [1, 4, 4, 4, 4, 4]
    assert engine.load.num_steps - num_steps == 6
    assert (engine.load.num_drafts, engine.load.num_draft_tokens) == (5, 15)
    assert engine.load.num_accepted_per_position == (5, 5, 5)
    assert engine.load.step_cost.tokens_per_decode == pytest.approx(4.0)


def test_costs_are_told_per_sequence_with_its_drafts() -> None:
    engine, _ = make_engine(wrong=1.0, most=1)
    before = engine.load.step_cost
    engine.add(make_request("a", [1, 2, 3], max_tokens=30, ignore_eos=True))
    engine.step()
    engine.step()
    drafting = engine.scheduler.drafting
    assert drafting is not None
    assert (drafting.rows_per_decode, drafting.tokens_per_decode) == (2.0, 1.0)
    coefficients = engine.step_cost.coefficients
    assert engine.load.step_cost.decode_seq == pytest.approx(2 * coefficients["decode_seq"])
    assert engine.load.step_cost.base == coefficients["base"]
    assert before.tokens_per_decode == 1.0


def test_drafts_that_are_never_right_are_given_up() -> None:
    engine, runner = make_engine(wrong=1.0, most=8, max_num_seqs=1, num_blocks=20)
    engine.add(make_request("a", [1, 2, 3], max_tokens=50, ignore_eos=True))
    before = len(runner.batches)
    run_checked(engine)
    assert len(runner.batches) - before == 50
    assert sum(_width(batch) for batch in runner.batches[before:]) <= 3 + 49 + 20
    assert engine.scheduler.drafting.proposer.num_forgotten == 1  # type: ignore[union-attr]


def test_spoilt_logits_behind_a_draft_end_the_sequence_behind_what_stood() -> None:
    engine, runner = make_engine(most=4)
    engine.add(make_request("a", [1, 2, 3], max_tokens=30, ignore_eos=True))
    outputs = engine.step() + engine.step()
    runner.is_spoilt = lambda sequence: True
    outputs += run_checked(engine)
    tokens = [token for output in outputs for token in output.new_token_ids]
    assert tokens == runner.generate([1, 2, 3], len(tokens))
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert engine.blocks.num_free == engine.blocks.num_blocks


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"speculative_method": "magic"}, "speculative_method"),
        ({"num_speculative_tokens": 2}, "num_speculative_tokens"),
        ({"prompt_lookup_max": 2}, "prompt_lookup_max"),
        ({"speculative_method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"speculative_method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_min"),
        ({"speculative_method": "ngram", "prompt_lookup_max": 99}, "prompt_lookup_max"),
        ({"speculative_method": "ngram", "async_scheduling": True}, "async_scheduling"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as error:
        fake_config(**settings)
    assert error.value.field == field


def test_bounds_of_lookup_follow_one_another() -> None:
    assert fake_config(speculative_method="ngram").lookup_lengths == (2, 4)
    assert fake_config(speculative_method="ngram", prompt_lookup_min=6).lookup_lengths == (6, 6)
    assert fake_config(speculative_method="ngram", prompt_lookup_max=1).lookup_lengths == (1, 1)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_steps_with_drafts_do_not_overlap(device: str) -> None:
    assert not fake_config(speculative_method="ngram").for_device(device).async_scheduling
    assert fake_config().for_device(device).async_scheduling is (device == "cuda")

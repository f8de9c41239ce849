"""An engine with drafts does what it does without, in fewer steps; its books and figures are right.

The runner is fake and the guesses are as good as a test wants, so that every number of them stands.
"""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError
from fairlead_engine.kernels.attention.block_allocator import LRUBlocks
from fairlead_engine.sequences import Sequence
from fairlead_engine.types import FinishReason
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.checked_steps import run_checked
from fairlead_engine_testing.fake_engine import fake_config

MODEL = FakeModelConfig(vocab_size=8, max_position_embeddings=60, eos_token_ids=(0,))


class Knowing:
    """Proposes what the runner will choose, but for one token in so many."""

    def __init__(self, runner: FakeRunner, wrong: float, seed: int = 0) -> None:
        self.runner, self.wrong, self.draw = runner, wrong, random.Random(seed)
        self.num_forgotten = 0

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        right = self.runner.generate(sequence.token_ids, self.draw.randint(1, most))
        return [(token + (self.draw.random() < self.wrong)) % MODEL.vocab_size for token in right]

    def forget(self, sequences: Any) -> None:
        self.num_forgotten += len(list(sequences))


def make_engine(wrong: float = 0.0, most: int = 4, **changes: Any) -> tuple[Engine, FakeRunner]:
    config = fake_config(speculative_method="ngram", num_speculative_tokens=most, **changes)
    runner = FakeRunner(MODEL, block_size=config.block_size, block_allocator=LRUBlocks)
    engine = Engine(config, runner)
    assert engine.scheduler.drafting is not None
    engine.scheduler.drafting.proposer = Knowing(runner, wrong)
    return engine, runner


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=20), min_size=1, max_size=6),
    most_tokens=st.integers(1, 30),
    min_tokens=st.integers(0, 5),
    stops=st.sampled_from([(), (3,), (5, 6)]),
    ignore_eos=st.booleans(),
    block_size=st.sampled_from([1, 2, 4]),
    spare_blocks=st.integers(0, 10),
    num_seqs=st.integers(1, 4),
    spare_budget=st.integers(0, 20),
    most=st.integers(1, 6),
    wrong=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    caching=st.booleans(),
)  # fmt: skip
def test_every_answer_is_the_one_without_drafts(
    prompts: list[list[int]],
    most_tokens: int,
    min_tokens: int,
    stops: tuple[int, ...],
    ignore_eos: bool,
    block_size: int,
    spare_blocks: int,
    num_seqs: int,
    spare_budget: int,
    most: int,
    wrong: float,
    caching: bool,
) -> None:
    engine, runner = make_engine(
        wrong, most, block_size=block_size, num_blocks=-(-50 // block_size) + spare_blocks, max_model_len=50,
        max_num_seqs=num_seqs, max_num_batched_tokens=num_seqs + spare_budget, enable_prefix_caching=caching,
        max_num_queued_tokens=10_000,
    )  # fmt: skip
    runner.batches.clear()
    tokens: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        tokens[str(index)] = []
        request = make_request(
            str(index), prompt, max_tokens=most_tokens, min_tokens=min(min_tokens, most_tokens), stop_token_ids=stops,
            ignore_eos=ignore_eos, logprobs=index % 2 or None,
        )  # fmt: skip
        assert engine.add(request) is None
    ends = {*stops, *(() if ignore_eos else MODEL.eos_token_ids)}
    for output in run_checked(engine):
        tokens[output.request_id] += output.new_token_ids
        if int(output.request_id) % 2:
            assert output.logprobs is not None
            assert [each.token_id for each in output.logprobs] == output.new_token_ids
        if output.finish_reason is FinishReason.STOP:
            assert output.stop_token_id == output.new_token_ids[-1]
    for index, prompt in enumerate(prompts):
        wanted = runner.generate(prompt, most_tokens)
        last = next(
            (n for n, token in enumerate(wanted, start=1) if token in ends and n >= min(min_tokens, most_tokens)), None
        )
        assert tokens[str(index)] == wanted[:last]
    assert engine.blocks.num_free == engine.blocks.num_blocks
    load = engine.load
    assert load.generation_tokens == sum(map(len, tokens.values()))
    assert sum(load.num_accepted_per_position) <= load.num_draft_tokens <= load.num_drafts * most
    assert list(load.num_accepted_per_position) == sorted(load.num_accepted_per_position, reverse=True)
    assert max(map(_width, runner.batches)) <= engine.scheduler.limits.max_num_batched_tokens


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

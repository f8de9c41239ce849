"""Drafts for models that keep states: rejected ones leave nothing behind, and snapshots are as without drafts."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError
from fairlead_engine.types import EngineRequest, SequenceOutput
from fairlead_engine.types.sequences import Sequence
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families import FAMILIES

pytestmark = pytest.mark.matrix

VOCAB_SIZE = 61
KEEP_STATES = ("qwen3_5", "qwen3_next", "granite_hybrid")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        name: write_letters(write_random_checkpoint(root / name, FAMILIES[name](vocab_size=VOCAB_SIZE)))
        for name in KEEP_STATES
    }


class Foretold:
    """Proposes the tokens of known answers, a share of them wrong."""

    def __init__(self, answers: Mapping[str, list[int]], wrong: float, seed: int) -> None:
        self.answers, self.wrong, self.draw = answers, wrong, random.Random(seed)

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        right = self.answers[sequence.request_id][sequence.num_output_tokens :][: self.draw.randint(1, most)]
        return [(token + (self.draw.random() < self.wrong)) % VOCAB_SIZE for token in right]

    def forget(self, sequences: Collection[Sequence]) -> None:
        """Keeps nothing."""


def turns(seed: int, shared: list[int], before: Mapping[str, list[int]]) -> list[EngineRequest]:
    """First prompts of six talks, of which some begin alike; or what follows `before`, tokens by name."""
    draw = random.Random(seed)
    found = []
    for name in map(str, range(6)):
        begun = before.get(name) or shared[: draw.choice([0, 9, 20])]
        prompt = [*begun, *(draw.randrange(2, VOCAB_SIZE) for _ in range(draw.randint(1, 12)))]
        found.append(make_request(name, prompt, max_tokens=draw.randint(1, 24), ignore_eos=True))
    return found


def without_drafts(engine: Engine, requests: list[EngineRequest]) -> dict[str, SequenceOutput]:
    """Each alone."""
    return {name: output for request in requests for name, output in answered(engine, [request]).items()}


@pytest.mark.matrix
@pytest.mark.parametrize("family", KEEP_STATES)
@pytest.mark.parametrize(
    ("size", "num_batched", "num_blocks", "num_ranks"),
    [
        *((*each, 1) for each in ((1, 7, 90), (4, 64, 100), (4, 11, 24), (8, 256, 60), (16, 20, 30))),
        pytest.param(4, 11, 24, 2, marks=pytest.mark.compute),
    ],
)
def test_two_turns_of_talks_are_what_they_are_without_drafts(
    size: int, num_batched: int, num_blocks: int, num_ranks: int, family: str, folders: dict[str, Path]
) -> None:
    config = small_config(
        folders[family], block_size=size, max_model_len=90, max_num_batched_tokens=num_batched, max_num_seqs=4,
    )  # fmt: skip
    alone = engine_of_blocks(replace(config, enable_prefix_caching=False), -(-90 // size))
    guesses: dict[str, Any] = {"speculative_method": "ngram", "num_speculative_tokens": 5}
    engine = engine_of_blocks(replace(config, tensor_parallel_size=num_ranks, **guesses), num_blocks)
    draw = random.Random(size)
    shared, said = [draw.randrange(2, VOCAB_SIZE) for _ in range(20)], dict[str, list[int]]()
    for turn in range(2):
        requests = turns(turn, shared, said)
        expected = {name: each.new_token_ids for name, each in without_drafts(alone, requests).items()}
        assert engine.scheduler.drafting is not None
        engine.scheduler.drafting.proposer = Foretold(expected, 0.3, turn)
        found = answered(engine, requests)
        assert {name: each.new_token_ids for name, each in found.items()} == expected
        said = {each.request_id: [*each.prompt_token_ids, *expected[each.request_id]] for each in requests}
    load = engine.load
    assert load.prefix_hit_tokens > 0
    assert load.num_accepted_per_position[1] > 10, "several drafts of a step stand"
    assert load.num_draft_tokens > sum(load.num_accepted_per_position), "and some do not"
    engine.runner.close()


@pytest.mark.parametrize("wrong", [0.0, 0.5, 1.0])
def test_a_state_is_kept_behind_the_last_block_of_an_answer_whatever_was_drafted(
    wrong: float, folders: dict[str, Path]
) -> None:
    config = small_config(folders["qwen3_5"], block_size=4, max_model_len=200)
    plain = engine_of_blocks(config, 200)
    guesses: dict[str, Any] = {"speculative_method": "ngram", "num_speculative_tokens": 5}
    engine, draw = engine_of_blocks(replace(config, **guesses), 200), random.Random(0)
    assert engine.scheduler.drafting is not None
    prompt = [draw.randrange(2, VOCAB_SIZE) for _ in range(21)]
    for max_tokens in (9, 10, 11, 12, 30):
        request = make_request("r", prompt, max_tokens=max_tokens, ignore_eos=True)
        expected = answered(plain, [request])["r"]
        engine.scheduler.drafting.proposer = Foretold({"r": expected.new_token_ids}, wrong, max_tokens)
        found = answered(engine, [request])["r"]
        assert (found.new_token_ids, found.num_cached_tokens) == (expected.new_token_ids, expected.num_cached_tokens)
        prompt = [*prompt, *expected.new_token_ids, 7, 8]
        assert not engine.scheduler.schedule(), "a step of nothing, as when what waits is not ready"
    # The state of the last whole block of what was computed: all but the last token of an answer.
    assert found.num_cached_tokens == (len(prompt) - 32 - 3) // 4 * 4


@pytest.mark.parametrize(
    ("settings", "name", "said"),
    [
        ({"speculative_method": "medusa", "speculative_tree": "2x8"}, "speculative-tree", "follow one path"),
        ({"speculative_method": "draft"}, "speculative-model", "cannot go back behind a draft"),
    ],
)
def test_trees_and_drafts_by_a_model_that_keeps_states_are_refused(
    settings: dict[str, Any], name: str, said: str, folders: dict[str, Path]
) -> None:
    config = small_config(folders["qwen3_5"], speculative_model=str(folders["qwen3_5"]), **settings)
    with pytest.raises(ConfigError, match=said) as refused:
        Engine(config)
    assert str(refused.value).startswith(name)
    assert "Qwen3_5ForCausalLM" in str(refused.value)

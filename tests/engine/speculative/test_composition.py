"""Drafts, adapters, grammars, shared prefixes, chunks and preemption in one batch: each answer is what it is alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead_engine.types import EngineRequest, Grammar
from fairlead_engine_testing import make_request
from fairlead_engine_testing.adapters import write_random_adapter
from fairlead_engine_testing.checked_steps import tokens_of
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import engine_of_blocks, small_config
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families.dense import llama_fields

pytestmark = pytest.mark.matrix

VOCAB_SIZE = 61


def requests() -> list[EngineRequest]:
    shared = [2 + (5 * place) % 40 for place in range(16)]
    kinds: list[dict[str, Any]] = [
        {}, {"grammar": Grammar("start: /([a-m][N-Z])*/")}, {"repetition_penalty": 1.2, "logprobs": 1},
        {"ignore_eos": True},
    ]  # fmt: skip
    return [
        make_request(
            str(index), [*shared[: 16 * (index % 3 > 0)], 3 + index, 9, 5 + index], arrival_time=index, max_tokens=30,
            adapter=(None, "one", "two")[index % 3], **kinds[index % len(kinds)],
        )
        for index in range(12)
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_all_at_once_is_each_alone(method: str, tmp_path: Path) -> None:
    model = write_letters(write_random_checkpoint(tmp_path / "model", llama_fields(vocab_size=VOCAB_SIZE)))
    adapters = [
        f"{name}={write_random_adapter(tmp_path / name, model, seed=seed)}" for seed, name in enumerate(("one", "two"))
    ]
    config = small_config(
        model, block_size=4, max_model_len=64, max_num_batched_tokens=14, max_num_queued_tokens=10**6,
        lora_modules=",".join(adapters), max_loras=2,
    )  # fmt: skip
    engine = engine_of_blocks(replace(config, enable_prefix_caching=False), 40)
    alone = [tokens_of(engine, [request]) for request in requests()]
    guesses: dict[str, Any] = {"speculative_method": method, "num_speculative_tokens": 3}
    guesses |= {"prompt_lookup_min": 1} if method == "ngram" else {"speculative_model": str(model)}
    engine = engine_of_blocks(replace(config, **guesses), 24)
    assert tokens_of(engine, requests()) == {name: tokens for each in alone for name, tokens in each.items()}
    load = engine.load
    assert load.num_preemptions
    assert load.prefix_hit_tokens
    assert load.num_masks
    assert sum(load.num_accepted_per_position)

"""Drafts change no distribution: what is drawn with them is what is drawn without, seed by seed and by frequency."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fairlead_engine.core.engine import Engine
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import tokens_of
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.eagle_heads import eagle_fields, write_eagle_head
from fairlead_engine_testing.greedy_answers import small_config
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families.dense import llama_fields

pytestmark = pytest.mark.matrix

VOCAB_SIZE = 6
PROMPT = [2, 3, 4, 5, 2, 3, 1, 0, 2, 3, 4]
NUM_DRAWS = 1000


def exact(engine: Engine, prompt: list[int]) -> np.ndarray:
    """The next token's probabilities."""
    engine.add(make_request("exact", prompt, max_tokens=1, logprobs=VOCAB_SIZE))
    [output] = engine.step()
    assert output.logprobs is not None
    return np.exp([logprob for _, logprob in sorted(output.logprobs[0].top)])


@pytest.mark.parametrize(
    ("method", "tree"),
    [
        ("ngram", None), ("medusa", "2x6"), pytest.param("eagle3", None, marks=pytest.mark.compute),
        pytest.param("eagle3", "3x9", marks=pytest.mark.compute),
    ],
)  # fmt: skip
def test_what_is_drawn_with_drafts_has_the_models_distribution(method: str, tree: str | None, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields(vocab_size=VOCAB_SIZE))
    guesses: dict[str, Any] = {"speculative_method": method, "num_speculative_tokens": 3}
    if method == "ngram":
        guesses["prompt_lookup_min"] = 1
    elif method == "medusa":
        head = tmp_path
        save_file({f"{place}.0.weight": torch.randn(VOCAB_SIZE, 64) for place in range(3)}, head / "model.safetensors")
        guesses["speculative_model"] = str(head)
    else:
        layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
        head = write_eagle_head(tmp_path / "head", eagle_fields(64, VOCAB_SIZE, VOCAB_SIZE, **layers))
        guesses["speculative_model"] = str(head)
    guesses["speculative_tree"] = tree
    runner = loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, block_size=4, **guesses)
    config = small_config(
        folder, block_size=4, max_model_len=64, max_num_seqs=64, max_num_batched_tokens=512,
        max_num_queued_tokens=10**6, kv_cache_memory=2**22,
    )  # fmt: skip
    requests = [
        make_request(str(seed), PROMPT, temperature=1.0, seed=seed, max_tokens=4, ignore_eos=True)
        for seed in range(NUM_DRAWS)
    ]
    plain = tokens_of(Engine(config, runner), requests)
    engine = Engine(replace(config, **guesses), runner)
    drawn = tokens_of(engine, requests)
    load = engine.load
    assert 0 < sum(load.num_accepted_per_position) < load.num_draft_tokens
    assert drawn == plain, "a seed draws the same tokens"
    first = exact(engine, PROMPT)
    expected = np.array([first[token] * exact(engine, [*PROMPT, token]) for token in range(VOCAB_SIZE)]) * NUM_DRAWS
    assert expected.sum() == pytest.approx(NUM_DRAWS, rel=1e-4)
    found = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for tokens in drawn.values():
        found[tokens[0], tokens[1]] += 1
    rare = expected < 5
    cells = [(found[~rare], expected[~rare]), (found[rare].sum(), max(expected[rare].sum(), 1e-9))]
    chi_square = sum(float(((seen - wanted) ** 2 / wanted).sum()) for seen, wanted in cells)
    freedom = int((~rare).sum())
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5, "five deviations of a chi-square"

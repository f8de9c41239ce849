"""A model that computes NaN for some prompts fails those, one by one, and nobody else: on real weights."""

import math
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from fairlead_engine.core.engine import Engine
from fairlead_engine.types import FinishReason
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered, run_checked
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import small_engine
from fairlead_engine_testing.tiny_families.dense import llama_fields

SPOILT = 77
SHARED = list(range(10, 34))


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    folder = write_random_checkpoint(tmp_path, llama_fields())
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][SPOILT] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return small_engine(folder, kv_cache_memory=2**19)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 1}, {"logprobs": 2}])
def test_nan_ends_its_request_and_no_other(engine: Engine, sampling: dict[str, float]) -> None:
    def serve(*prompts: list[int]) -> list[tuple[list[int], FinishReason | None]]:
        found = answered(
            engine,
            (
                make_request(str(index), prompt, max_tokens=12, ignore_eos=True, **sampling)
                for index, prompt in enumerate(prompts)
            ),
        )
        return [(found[str(index)].new_token_ids, found[str(index)].finish_reason) for index in range(len(prompts))]

    good = [*SHARED, 5]
    (alone,) = serve(good)
    # The spoilt token fills a block that others would reuse, and its blocks' memory is used again by who comes later.
    assert serve(good, [*SHARED, SPOILT, *range(40, 50)]) == [alone, ([], FinishReason.ERROR)]
    for _ in range(3):
        assert serve(good, [*range(90, 150)]) == [alone, serve([*range(90, 150)])[0]]


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_scores_that_are_no_numbers_end_their_request(engine: Engine, max_tokens: int) -> None:
    prompt = [*SHARED, SPOILT, *range(40, 50)]
    assert engine.add(make_request("scored", prompt, max_tokens=max_tokens, prompt_logprobs=2)) is None
    outputs = run_checked(engine)
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR]
    assert "not finite" in (outputs[0].message or "")
    assert not outputs[0].prompt_logprobs
    assert not engine.blocks.published()

"""Whole models with keys and values in 8 bits, against transformers with a cache that rounds them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.core.profile import identity
from fairlead_engine.kernels.attention.stored_heads import KV_DTYPES
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families import FAMILIES, a_third
from fairlead_engine_testing.tiny_families.dense import llama_fields

pytestmark = pytest.mark.matrix

NUM_NEW = 12
PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 1), (3, 40), (9, 17))]
STEP = {"int8": 1 / 127, "fp8": 1 / 8}
"""From one number to the next, of the head's largest or of the number itself, at most."""


def serve(folder: Path, prompts: list[list[int]], per_step: int = 100, **settings: Any) -> list[list[int]]:
    engine = small_engine(folder, **{"block_size": 4, "max_model_len": 200, **settings})
    return greedy_answers(engine, prompts, NUM_NEW, per_step=per_step)


def rounded(heads: torch.Tensor, name: str) -> torch.Tensor:
    """Each head by its largest magnitude, written out: to whole 127ths of it, or to four binary digits."""
    highest = heads.abs().amax(-1, keepdim=True)
    if name == "int8":
        return (heads / highest * 127).round() / 127 * highest
    scaled = heads / highest * 448
    step = 2.0 ** (scaled.abs().log2().floor().clamp_min(-6.0) - 3)
    return (scaled / step).round() * step / 448 * highest


@pytest.mark.parametrize("name", STEP)
@pytest.mark.parametrize("family", a_third([*FAMILIES], 0))
def test_a_model_is_transformers_with_a_cache_that_rounds(family: str, name: str, reference: Any, tmp_path) -> None:
    """A number halfway between two may go either way; what follows then differs by as much as rounding did."""
    from transformers.cache_utils import DynamicCache

    class RoundingCache(DynamicCache):  # type: ignore[misc]
        def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if keys.shape[-1] != values.shape[-1]:  # a latent and what is rotated, which have one scale
                both = rounded(torch.cat((keys, values), -1), name)
                return super().update(*both.split((keys.shape[-1], values.shape[-1]), -1), *args, **kwargs)
            return super().update(rounded(keys, name), rounded(values, name), *args, **kwargs)

        def update_indexer(self, keys: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().update_indexer(rounded(keys, name), *args, **kwargs)

    folder = write_random_checkpoint(tmp_path, FAMILIES[family]())
    outputs = serve(folder, PROMPTS, kv_cache_dtype=name)
    gaps, plain = [], []
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        token_ids = torch.tensor([prompt + output[:-1]])
        with torch.inference_mode():
            logits = reference.model(folder)(
                token_ids, past_key_values=RoundingCache(config=reference.model(folder).config)
            ).logits[0, len(prompt) - 1 :]
            floats = reference.model(folder)(token_ids).logits[0, len(prompt) - 1 :]
        gaps.append(logits.amax(1) - logits.gather(1, torch.tensor(output)[:, None])[:, 0])
        plain.append((logits - floats).abs().amax(1))
    assert float(torch.cat(gaps).max()) < 1e-2 < float(torch.cat(plain).max())


@pytest.mark.parametrize(("dtype", "ratio"), [("float32", 4 * 64 / (64 + 4)), ("bfloat16", 2 * 64 / (64 + 4))])
@pytest.mark.parametrize("name", STEP)
def test_the_same_memory_holds_more_tokens(name: str, dtype: str, ratio: float, tmp_path: Path) -> None:
    """A head of 64 takes 68 bytes."""
    folder = write_random_checkpoint(tmp_path, llama_fields(head_dim=64))
    engines = {
        each: Engine(EngineConfig(
            model=str(folder), dtype=dtype, device="cpu", num_threads=1, kv_cache_memory=2**20, max_model_len=64,
            kv_cache_dtype=each,
        ))
        for each in ("auto", name)
    }  # fmt: skip
    blocks = {each: engine.info.num_kv_blocks for each, engine in engines.items()}
    assert blocks[name] == pytest.approx(ratio * blocks["auto"], rel=0.05)
    assert engines[name].info.kv_cache_bytes <= 2**20 and engines[name].info.kv_cache_dtype == name


def test_a_profile_tells_the_format_of_the_cache(tmp_path: Path) -> None:
    """fp8 and int8 take the same bytes, and not the same time."""
    folder = write_random_checkpoint(tmp_path, llama_fields())
    told = [
        identity(loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, kv_cache_dtype=name), 16)
        for name in KV_DTYPES
    ]
    assert [each["kv_cache_dtype"] for each in told] == list(KV_DTYPES)
    assert told[1]["kv_bytes_per_token"] == told[2]["kv_bytes_per_token"] < told[0]["kv_bytes_per_token"]

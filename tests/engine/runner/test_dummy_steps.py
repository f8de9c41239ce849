"""The steps before the first request: the largest fills a step, and kernels meet all their kinds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError, KVCacheTooSmall
from fairlead_engine.runner.cuda_device import DeviceMemory
from fairlead_engine.runner.dummy_steps import (
    StepLimits,
    blocks_of_largest,
    every_kind_of_step,
    largest_drafted_step,
    largest_step,
)
from fairlead_engine.runner.step_graphs import foreseen_bytes
from fairlead_engine.types.sequences import NO_TOKEN
from fairlead_engine_testing import FakeRunner
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.device_meter import GIB, DeviceMeter
from fairlead_engine_testing.fake_engine import fake_config
from fairlead_engine_testing.launches import CPUGraphs
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.tiny_families.recurrent import qwen3_5_fields


@given(st.integers(1, 300), st.integers(0, 9000), st.integers(2, 10_000), st.integers(1, 64))
def test_the_largest_step_is_as_large_as_a_step_may_be(
    num_seqs: int, more_tokens: int, max_model_len: int, block_size: int
) -> None:
    limits = StepLimits(num_seqs, num_seqs + more_tokens, max_model_len)
    batch = largest_step(limits, block_size)
    assert len(batch.items) == num_seqs
    assert batch.num_tokens == min(num_seqs + more_tokens, num_seqs * max_model_len)
    assert all(0 < item.end <= max_model_len for item in batch.items)
    assert all(item.samples for item in batch.items)
    widest = blocks_of_largest(limits, block_size)
    assert max(len(item.block_table) for item in batch.items) == widest
    assert {item.sequence.slot for item in batch.items} == set(range(num_seqs))


@given(
    st.integers(1, 300), st.integers(0, 2000), st.integers(2, 10_000), st.integers(1, 64), st.integers(1, 16)
)  # fmt: skip
def test_the_largest_step_with_drafts_has_a_choice_behind_each_token(
    num_seqs: int, more_tokens: int, max_model_len: int, block_size: int, most_drafts: int
) -> None:
    limits = StepLimits(num_seqs, num_seqs + more_tokens, max_model_len)
    batch = largest_drafted_step(limits, block_size, most_drafts, 0)
    assert len(batch.chunks) == num_seqs
    assert batch.num_tokens == min(num_seqs + more_tokens, num_seqs * min(1 + most_drafts, max_model_len))
    assert len(batch.choices) == len(list(batch.sampling)) == batch.num_tokens
    assert all(len(item.drafts) == item.num_tokens - 1 <= most_drafts for item in batch.chunks)
    assert max(len(item.block_table) for item in batch.chunks) <= blocks_of_largest(limits, block_size)


@given(st.integers(1, 4), st.integers(0, 20), st.integers(2, 5000), st.integers(1, 32))
def test_no_kind_of_step_is_more_than_a_step_may_be(num_seqs, more_tokens, max_model_len, block_size) -> None:
    num_tokens = num_seqs + more_tokens
    batches = list(every_kind_of_step(StepLimits(num_seqs, num_tokens, max_model_len), block_size))
    for batch in batches:
        assert 1 <= len(batch.items) <= num_seqs
        assert batch.num_tokens <= num_tokens
        assert all(0 <= item.start < item.end <= max_model_len for item in batch.items)
        assert [item.num_tokens > 1 for item in batch.items] == sorted(item.num_tokens > 1 for item in batch.items)
    assert max_model_len in {item.end for batch in batches for item in batch.items}


def test_what_is_left_of_a_device_is_reckoned_from_what_was_measured() -> None:
    """80 GiB of which a model has taken 16, a neighbour 2 and libraries 1; the largest step took 3 more."""
    memory = DeviceMemory(total=80 * GIB, free=61 * GIB, work_space=3 * GIB)
    assert memory.left(0.9, to_come=0) == 72 * GIB - 19 * GIB - 3 * GIB
    assert memory.left(0.9, to_come=4 * GIB) == 46 * GIB
    assert memory.left(0.25, to_come=0) == 0


def test_graphs_are_foreseen_by_layers_and_sizes() -> None:
    small, large = StepLimits(1, 8, 100), StepLimits(256, 8192, 100)
    few, many = (foreseen_bytes(36, 7 * 10**9, limits, GIB, 0) for limits in (small, large))
    assert GIB < few < many < 2 * GIB
    assert foreseen_bytes(72, 14 * 10**9, large, GIB, 0) - GIB == 2 * (many - GIB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), llama_fields())


def test_the_cache_is_sized_by_what_the_largest_step_leaves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that step is computed between the two looks at the memory."""
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=4, num_threads=1)
    assert runner.memory_for_cache(0.9, 3, 20, 64) is None
    runner._part.meter = meter = DeviceMeter(5 * GIB)  # type: ignore[assignment]
    launch = runner.launch

    def noted(batch: Any) -> Any:
        meter.notes.append(f"{len(batch.items)} sequences, {batch.num_tokens} tokens")
        return launch(batch)

    monkeypatch.setattr(runner, "launch", noted)
    rows = 3 * (64 * 4 + 16 * 8)
    assert runner.memory_for_cache(0.9, 3, 20, 64) == int(7.2 * GIB) - 4 * GIB - rows
    assert meter.notes == ["begin", "3 sequences, 20 tokens", "read"]


def test_the_states_of_slots_are_a_part_of_the_cache(tmp_path: Path) -> None:
    """They were there when the memory was looked at."""
    folder = write_random_checkpoint(tmp_path, qwen3_5_fields())
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=4, num_threads=1)
    runner._part.meter = DeviceMeter(5 * GIB)  # type: ignore[assignment]
    rows = 3 * (64 * 4 + 16 * 8)
    assert runner.memory_for_cache(0.9, 3, 20, 64) == int(7.2 * GIB) - 4 * GIB - rows + 4 * runner.state_bytes


@pytest.mark.parametrize("guesser", ["none", "draft", "medusa"])
def test_the_cache_leaves_room_for_a_step_full_of_drafts(
    guesser: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever guesses: of each sequence all drafts and the token before them, each with a row of logits."""
    drafts: dict[str, Any] = {"speculative_method": "ngram", "num_speculative_tokens": 2}
    if guesser == "draft":
        drafts |= {"speculative_method": "draft", "speculative_model": str(folder)}
    elif guesser == "medusa":
        drafts |= {"speculative_method": "medusa", "speculative_model": str(tmp_path)}
        hidden, vocab = llama_fields()["hidden_size"], llama_fields()["vocab_size"]
        linear = {"weight": torch.ones(hidden, hidden), "bias": torch.ones(hidden)}
        heads = {f"{head}.0.linear.{name}": each for head in range(2) for name, each in linear.items()}
        heads |= {f"{head}.1.weight": torch.ones(vocab, hidden) for head in range(2)}
        torch.save(heads, tmp_path / "medusa_lm_head.pt")
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=4, num_threads=1, **drafts)
    runner._part.meter = DeviceMeter(5 * GIB)  # type: ignore[assignment]
    shapes, sample = [], runner._sampler.sample

    def noted(logits: Any, *others: Any) -> Any:
        shapes.append(tuple(logits.shape))
        return sample(logits, *others)

    monkeypatch.setattr(runner._sampler, "sample", noted)
    runner.memory_for_cache(0.9, 5, 20, 64)
    assert shapes[-1] == (15, llama_fields()["vocab_size"])


@pytest.mark.parametrize("limits", [StepLimits(1, 1, 9), StepLimits(3, 2, 40), StepLimits(2, 64, 300)])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_every_dummy_step_chooses_tokens_whatever_memory_held(limits, block_size: int, folder: Path) -> None:
    runner = loaded_runner(
        folder, dtype="float32", device="cpu", block_size=block_size, num_threads=1, attention_backend="block_tables"
    )
    runner.allocate_kv_cache(1, limits.max_num_seqs, -(-limits.max_model_len // block_size))
    for cache in runner._part._caches:
        cache.keys.numbers.fill_(float("nan"))
        cache.values.numbers.fill_(float("nan"))
    for batch in every_kind_of_step(limits, block_size):
        assert NO_TOKEN not in runner.collect(runner.launch(batch))


class Failing(FakeRunner):
    """Runs out of memory in the largest step."""

    def memory_for_cache(self, *args: Any) -> int | None:
        raise RuntimeError("CUDA out of memory")


def test_a_device_without_room_for_a_step_names_the_setting() -> None:
    config = fake_config()
    settings = {name: getattr(config, name) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    with pytest.raises(KVCacheTooSmall, match=r"CUDA out of memory.*lower max-num-batched-tokens"):
        Engine(EngineConfig(model="fake", **settings), Failing())


def test_steps_that_cannot_be_captured_name_the_setting(folder: Path) -> None:
    class Full(CPUGraphs):
        def record(self, run: Any) -> Any:
            raise RuntimeError("CUDA out of memory")

    runner = loaded_runner(folder, dtype="float32", device="cpu", num_threads=1, attention_backend="block_tables")
    runner._part._recorder = Full()
    runner.allocate_kv_cache(4, 2, 2)
    with pytest.raises(ConfigError, match=r"enforce-eager: is off.*CUDA out of memory.*gpu-memory-utilization"):
        runner.compile_steps(2, 8, 16)

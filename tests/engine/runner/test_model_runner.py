"""The runner's books: sizes, number formats, and what it keeps about requests."""

from pathlib import Path

import pytest
import torch

from fairlead_engine.kernels.attention.block_allocator import ConsecutiveBlocks, LRUBlocks
from fairlead_engine.runner import ModelRunner
from fairlead_engine.types import SamplingParams
from fairlead_engine.types.batch import Batch
from fairlead_engine.types.sequences import SampledToken, ScheduledSequence, Sequence
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.tiny_families.dense import qwen3_fields


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("models") / "qwen3", qwen3_fields())


def run(runner: ModelRunner, sequence: Sequence) -> list[SampledToken | None]:
    return runner.collect(runner.launch(Batch([ScheduledSequence(sequence, sequence.num_uncomputed_tokens)])))


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_blocks_bytes_are_keys_and_values_of_all_layers(dtype, size, folder):
    runner = loaded_runner(folder, dtype=dtype, device="cpu", block_size=8, num_threads=1)
    assert runner.kv_bytes_per_block() == 2 * 2 * 2 * 32 * 8 * size
    assert str(runner.dtype) == f"torch.{dtype}"
    assert str(runner.device) == "cpu"


def test_the_last_block_of_the_cache_can_be_used(folder):
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=4, num_threads=1)
    runner.allocate_kv_cache(3, 2, 3)
    sequence = Sequence("r", [5, 6, 7, 8, 9], 5, SamplingParams(temperature=0.0), slot=0, block_table=[1, 2])
    (token,) = run(runner, sequence)
    assert 0 <= token.token_id < runner.model_config.vocab_size


def test_running_a_batch_changes_no_sequence(folder):
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=4, num_threads=1)
    runner.allocate_kv_cache(4, 2, 4)
    sampling = SamplingParams(presence_penalty=1.0, top_p=0.9, logprobs=2, min_tokens=3)
    sequence = Sequence("r", [5, 6, 7], 3, sampling, slot=0, block_table=[0])
    for _ in range(2):
        run(runner, sequence)
    assert (sequence.token_ids, sequence.block_table, sequence.num_computed_tokens) == ([5, 6, 7], [0], 0)
    runner.forget(["r", "unknown"])


def test_inference_builds_no_gradients(folder):
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=4, num_threads=1)
    runner.allocate_kv_cache(1, 2, 1)
    with torch.enable_grad():
        sequence = Sequence("r", [5, 6], 2, SamplingParams(temperature=0.0), slot=0, block_table=[0])
        assert run(runner, sequence)[0] is not None


def test_two_batches_may_be_under_way_before_the_first_is_collected(folder):
    """Steps of sequences that share nothing: what is launched does not depend on what was collected."""
    runner = loaded_runner(folder, dtype="float32", device="cpu", block_size=4, num_threads=1)
    runner.allocate_kv_cache(4, 2, 4)
    greedy = SamplingParams(temperature=0.0)
    first, second = (Sequence(name, ids, 3, greedy, slot=block, block_table=[block]) for name, ids, block in (
        ("a", [5, 6, 7], 0), ("b", [9, 8, 7], 1),
    ))  # fmt: skip
    alone = [run(runner, sequence) for sequence in (first, second)]
    launched = [runner.launch(Batch([ScheduledSequence(sequence, 3)])) for sequence in (first, second)]
    assert [runner.collect(each) for each in launched] == alone


@pytest.mark.parametrize(("name", "kind"), [("auto", ConsecutiveBlocks), ("block_tables", LRUBlocks)])
def test_the_attention_backend_places_the_blocks(name, kind, folder):
    runner = loaded_runner(folder, device="cpu", num_threads=1, attention_backend=name)
    assert isinstance(runner.block_allocator(4), kind)
    assert runner.attention_backend == ("cpu_spans" if name == "auto" else name)

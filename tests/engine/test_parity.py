"""The whole engine chooses transformers' tokens, through prefix hits and preemptions too."""

import random
from pathlib import Path

import pytest

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.testing.checkpoints import llama_fields, qwen3_fields, write_random_checkpoint
from fairlead_engine.types import EngineRequest, FinishReason, SamplingParams


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request, tmp_path_factory) -> Path:
    fields = {"llama": llama_fields, "qwen3": qwen3_fields}[request.param](max_position_embeddings=256)
    return write_random_checkpoint(tmp_path_factory.mktemp("models") / request.param, fields)


def make_engine(folder: Path, **settings) -> Engine:
    settings = {"kv_cache_memory": 2**21, "block_size": 8, "num_threads": 1, **settings}
    return Engine(EngineConfig(model=str(folder), dtype="float32", device="cpu", **settings))


def make_request(index: int, prompt: list[int], num_new: int) -> EngineRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
    return EngineRequest(request_id=f"r{index}", prompt_token_ids=prompt, sampling=sampling, arrival_time=float(index))


def make_prompts(num: int, longest: int, prefix: list[int]) -> list[list[int]]:
    draw = random.Random(longest)
    return [prefix + [draw.randrange(2, 256) for _ in range(draw.randint(1, longest))] for _ in range(num)]


def serve(engine: Engine, prompts: list[list[int]], num_new: int, *, per_step: int = 100) -> list[list[int]]:
    """All outputs; `per_step` requests arrive before each step. The block manager's books are checked all along."""
    requests = [make_request(index, prompt, num_new) for index, prompt in enumerate(prompts)]
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while requests or engine.has_work():
        arrived, requests = requests[:per_step], requests[per_step:]
        for request in arrived:
            assert engine.add(request) is None
        for output in engine.step():
            outputs[output.request_id] += output.new_token_ids
            assert output.finish_reason in (None, FinishReason.LENGTH)
        engine.check()
    return list(outputs.values())


def check(reference, folder: Path, prompts: list[list[int]], outputs: list[list[int]], num_new: int) -> None:
    assert [len(output) for output in outputs] == [num_new] * len(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        reference.check_greedy(folder, prompt, output)


@pytest.mark.parametrize("budget", [8, 33, 256])
def test_mixed_batches_give_the_references_tokens(budget, folder, reference):
    prompts = make_prompts(9, 60, prefix=[])
    engine = make_engine(folder, max_num_batched_tokens=budget, max_num_seqs=6, max_num_queued_tokens=1000)
    outputs = serve(engine, prompts, 10, per_step=2)
    check(reference, folder, prompts, outputs, 10)


def test_prefix_hits_give_the_references_tokens(folder, reference):
    prompts = make_prompts(8, 30, prefix=list(range(10, 60)))
    engine = make_engine(folder, max_num_batched_tokens=64, max_num_queued_tokens=1000)
    outputs = serve(engine, prompts, 8, per_step=1)
    assert engine.load.prefix_hit_tokens >= 5 * 48
    check(reference, folder, prompts, outputs, 8)


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_preemptions_give_the_references_tokens(prefix_caching, folder, reference):
    prompts = make_prompts(6, 40, prefix=[])
    runner_bytes_per_block = make_engine(folder).runner.kv_bytes_per_block()
    engine = make_engine(
        folder,
        kv_cache_memory=14 * runner_bytes_per_block,
        max_model_len=80,
        max_num_batched_tokens=48,
        max_num_queued_tokens=1000,
        enable_prefix_caching=prefix_caching,
    )
    outputs = serve(engine, prompts, 30)
    assert engine.load.num_preemptions > 0
    check(reference, folder, prompts, outputs, 30)

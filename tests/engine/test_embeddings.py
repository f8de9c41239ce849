"""Vectors are transformers' last hidden states, of length 1, whatever is cached, chunked, preempted or beside."""

import array
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.types import EngineRequest, FinishReason, Pooling, SequenceOutput
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import small_engine
from fairlead_engine_testing.tiny_families.dense import llama_fields, qwen3_fields

pytestmark = pytest.mark.matrix

POOLINGS = (Pooling.LAST, Pooling.MEAN, Pooling.MAX)
PREFIX = list(range(20, 45))


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request, tmp_path_factory) -> Path:
    fields = {"llama": llama_fields, "qwen3": qwen3_fields}[request.param](max_position_embeddings=256)
    return write_random_checkpoint(tmp_path_factory.mktemp("models") / request.param, fields)


def embed(name: str, prompt: list[int], pooling: Pooling, **fields: Any) -> EngineRequest:
    return make_request(name, prompt, pooling=pooling, max_tokens=0, **fields)


def vector(output: SequenceOutput) -> torch.Tensor:
    assert output.finish_reason is FinishReason.STOP
    assert output.embedding is not None
    return torch.tensor(array.array("f", output.embedding))


def expected(reference: Any, folder: Path, prompt: list[int], pooling: Pooling) -> torch.Tensor:
    with torch.inference_mode():
        hidden = reference.model(folder).model(torch.tensor([prompt])).last_hidden_state[0]
    pooled = {Pooling.LAST: hidden[-1], Pooling.MEAN: hidden.mean(0), Pooling.MAX: hidden.amax(0)}[pooling]
    return torch.nn.functional.normalize(pooled, dim=0)


def prompts(number: int) -> list[list[int]]:
    draw = random.Random(number)
    return [PREFIX + [draw.randrange(2, 256) for _ in range(draw.randint(1, 60))] for _ in range(number)]


@pytest.mark.parametrize("backend", ["cpu_spans", "block_tables"])
@pytest.mark.parametrize("budget", [7, 33, 512])
def test_vectors_are_the_references_beside_text_in_the_same_batches(folder, reference, budget, backend) -> None:
    engine = small_engine(folder, max_num_batched_tokens=budget, max_num_seqs=5, attention_backend=backend)
    requests, wanted = [], {}
    for index, prompt in enumerate(prompts(9)):
        pooling = (*POOLINGS, None)[index % 4]
        if pooling is None:
            requests.append(make_request(str(index), prompt, max_tokens=6, ignore_eos=True))
        else:
            requests.append(embed(str(index), prompt, pooling))
            wanted[str(index)] = expected(reference, folder, prompt, pooling)
    outputs = answered(engine, requests)
    assert len(outputs) == 9
    for name, each in wanted.items():
        found = vector(outputs[name])
        assert found.norm().item() == pytest.approx(1, abs=1e-5)
        assert (found - each).abs().max() < 1e-3
    assert engine.load.prompt_tokens == sum(map(len, prompts(9)))


def test_the_last_token_takes_prefixes_from_the_cache_and_a_mean_does_not(folder, reference) -> None:
    engine, prompt = small_engine(folder), prompts(1)[0]
    num_shared = (len(prompt) - 1) // 8 * 8
    for index, (pooling, num_cached) in enumerate(
        [(Pooling.MEAN, 0), (Pooling.LAST, num_shared), (Pooling.MEAN, 0), (Pooling.LAST, num_shared)]
    ):
        output = answered(engine, [embed(str(index), prompt, pooling)])[str(index)]
        assert output.num_cached_tokens == num_cached
        assert (vector(output) - expected(reference, folder, prompt, pooling)).abs().max() < 1e-3
    generated = answered(engine, [make_request("text", prompt, max_tokens=2)])["text"]
    assert generated.num_cached_tokens == num_shared, "what was computed for a vector spares a text"


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3Model"])
@pytest.mark.parametrize("tied", [False, True])
def test_published_embedders_have_neither_a_prefix_nor_a_projection(architecture, tied, reference, tmp_path) -> None:
    """As the files of Qwen3-Embedding: 8B says that the projection is not tied, and has none."""
    whole = write_random_checkpoint(tmp_path / "whole", qwen3_fields(tie_word_embeddings=tied))
    fields = json.loads((whole / "config.json").read_text()) | {"architectures": [architecture]}
    embedder = tmp_path / "embedder"
    (embedder / "1_Pooling").mkdir(parents=True)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (embedder / "modules.json").write_text(json.dumps(modules))
    (embedder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    (embedder / "config.json").write_text(json.dumps(fields))
    tensors = load_file(whole / "model.safetensors")
    trunk = {name.removeprefix("model."): each for name, each in tensors.items() if name.startswith("model.")}
    save_file(trunk, embedder / "model.safetensors", metadata={"format": "pt"})
    engine, prompt = small_engine(embedder), prompts(1)[0]
    found = vector(answered(engine, [embed("vector", prompt, Pooling.LAST)])["vector"])
    assert (found - expected(reference, whole, prompt, Pooling.LAST)).abs().max() < 1e-3
    assert engine.info.task.generates is tied


def test_hidden_states_that_are_no_numbers_end_with_an_error(folder) -> None:
    engine, prompt = small_engine(folder), prompts(1)[0]
    with torch.inference_mode():
        engine.runner._part.model.final_norm.weight.fill_(float("nan"))
    for index, pooling in enumerate(POOLINGS):
        output = answered(engine, [embed(str(index), prompt, pooling)])[str(index)]
        assert (output.finish_reason, output.embedding) == (FinishReason.ERROR, None)
    assert not engine.blocks.published()


def test_sums_of_requests_that_are_given_up_are_forgotten(folder) -> None:
    engine = small_engine(folder, max_num_batched_tokens=16, max_num_seqs=4)
    engine.add(embed("mean", prompts(1)[0], Pooling.MEAN))
    engine.step()
    assert engine.runner._pooler._sums
    engine.abort("mean")
    answered(engine, [embed("last", prompts(1)[0], Pooling.LAST)])
    assert not engine.runner._pooler._sums

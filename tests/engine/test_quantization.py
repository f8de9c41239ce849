"""Whole models with quantised weights, against transformers on the weights that they mean."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.model import load_model, read_config
from fairlead_engine.model.quantization.registry import FORMATS
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checkpoints import FAMILIES, llama_fields, write_random_checkpoint

WEIGHTS = "model.safetensors"
NUM_NEW = 12
PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 3), (3, 40), (9, 17))]
ROUND_ACTIVATIONS = ("int8", "fp8")


def is_quantized(name: str) -> bool:
    """The linear layers but the output projection and the router."""
    return name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


def write_dequantized(folder: Path, target: Path, name: str) -> Path:
    """The checkpoint in `folder` with every weight replaced by what is left of it in the format."""
    target.mkdir()
    shutil.copy(folder / "config.json", target)
    weights = load_file(folder / WEIGHTS)
    for key in filter(is_quantized, weights):
        weights[key] = FORMATS[name].quantize(weights[key]).dequantized()
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
    return target


def serve(folder: Path, prompts: Sequence[list[int]], per_step: int = 100, budget: int = 256, **settings) -> list:
    config = EngineConfig(
        model=str(folder), dtype="float32", device="cpu", num_threads=1, block_size=8, kv_cache_memory=2**21,
        max_num_batched_tokens=budget, max_num_seqs=4, max_num_queued_tokens=1000, **settings,
    )  # fmt: skip
    engine = Engine(config)
    waiting = [make_request(str(i), prompt, max_tokens=NUM_NEW, ignore_eos=True) for i, prompt in enumerate(prompts)]
    tokens: list[list[int]] = [[] for _ in prompts]
    while waiting or engine.has_work():
        for request in waiting[:per_step]:
            assert engine.add(request) is None
        waiting = waiting[per_step:]
        for output in engine.step():
            tokens[int(output.request_id)] += output.new_token_ids
    return tokens


def rounding(name: str) -> Callable[[torch.nn.Module, tuple[torch.Tensor]], tuple[torch.Tensor]]:
    """What a layer of the format makes of its input, as a hook of torch's."""

    def rounded(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (x,) = inputs
        scales = x.abs().amax(-1, keepdim=True) / (127 if name == "int8" else 448)
        values = (x / scales).round() if name == "int8" else (x / scales).to(torch.float8_e4m3fn).float()
        return (values * scales,)

    return rounded


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_the_one_of_its_dequantised_weights(family: str, name: str, reference, tmp_path: Path) -> None:
    if family == "mixtral" and name in ROUND_ACTIVATIONS:
        pytest.skip("transformers computes experts without modules that could round their inputs")
    folder = write_random_checkpoint(tmp_path / "floats", FAMILIES[family](max_position_embeddings=256))
    meant = write_dequantized(folder, tmp_path / "meant", name)
    outputs = serve(folder, PROMPTS, quantization=name)
    if name not in ROUND_ACTIVATIONS:
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            reference.check_greedy(meant, prompt, output)
        return
    for key, module in reference.model(meant).named_modules():
        if isinstance(module, torch.nn.Linear) and is_quantized(f"{key}.weight"):
            module.register_forward_pre_hook(rounding(name))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        logits = reference.logits(meant, prompt + output[:-1])[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        # An activation halfway between two integers may go either way, as its last bit happens to be.
        assert float((logits.amax(1) - chosen).max()) < 0.02


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", ["qwen3", "mixtral"])
def test_chunks_and_company_change_no_token(family: str, name: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, FAMILIES[family](max_position_embeddings=256))
    whole = serve(folder, PROMPTS, quantization=name)
    assert serve(folder, PROMPTS, quantization=name, budget=7) == whole
    assert serve(folder, PROMPTS, quantization=name, budget=33, per_step=1) == whole
    assert [serve(folder, [prompt], quantization=name)[0] for prompt in PROMPTS] == whole


@pytest.mark.parametrize("name", FORMATS)
def test_output_projection_embeddings_and_routers_keep_their_precision(name: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, FAMILIES["mixtral"]())
    weights, config = load_file(folder / WEIGHTS), read_config(folder)
    model = load_model(folder, config, torch.float32, torch.device("cpu"), name)
    x = torch.randn(3, config.hidden_size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.head(x), x @ weights["lm_head.weight"].t())
    assert torch.equal(model.embedding, weights["model.embed_tokens.weight"])
    router = model.layers[0].feed_forward.router
    torch.testing.assert_close(router(x), x @ weights["model.layers.0.block_sparse_moe.gate.weight"].t())


@pytest.mark.parametrize(("name", "most"), [("int8", 0.3), ("int8-weight-only", 0.3), ("int4-weight-only", 0.2)])
def test_memory_is_counted_as_it_is_taken(name: str, most: float, tmp_path: Path) -> None:
    fields = llama_fields(hidden_size=256, intermediate_size=512, vocab_size=32, head_dim=64)
    folder = write_random_checkpoint(tmp_path, fields)
    config, cpu = read_config(folder), torch.device("cpu")
    plain = load_model(folder, config, torch.float32, cpu)
    model = load_model(folder, config, torch.float32, cpu, name)
    assert model.num_parameters == plain.num_parameters
    assert model.weight_bytes < most * plain.weight_bytes

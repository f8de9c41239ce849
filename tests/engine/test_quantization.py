"""Whole models with quantised weights, against transformers on the weights that they mean."""

import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairlead_engine.core.profile import identity
from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason
from fairlead_engine.model import weights
from fairlead_engine.model.checkpoint import WHOLE, Checkpoint
from fairlead_engine.model.loading import load_model, read_config
from fairlead_engine.model.quantization.stored import FORMATS, choose_source
from fairlead_engine.model.shard import Shard
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine
from fairlead_engine_testing.model_runners import loaded_runner
from fairlead_engine_testing.quantized_checkpoints import (
    WEIGHTS,
    is_quantized,
    write_awq,
    write_compressed_tensors,
    write_dequantized,
    write_finegrained_fp8,
    write_gptq,
    write_mxfp4,
    write_nvfp4,
)
from fairlead_engine_testing.tiny_families import FAMILIES, a_third
from fairlead_engine_testing.tiny_families.dense import llama_fields
from fairlead_engine_testing.tiny_families.experts import gpt_oss_fields

pytestmark = pytest.mark.matrix

NUM_NEW = 12
PROMPTS = [[5 + 7 * i % 200 for i in range(start, start + length)] for start, length in ((0, 3), (3, 40), (9, 17))]
ROUND_ACTIVATIONS = ("int8", "fp8")
WITH_EXPERTS = tuple(name for name, family in FAMILIES.items() if getattr(family.config, "num_experts", 0))
KINDS_OF_EXPERTS = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "mixtral", "phimoe",
    "qwen2_moe", "qwen3_moe",
)  # fmt: skip
"""Families among which are all gates and ways to choose experts."""


def serve(folder: Path, prompts: Sequence[list[int]], per_step: int = 100, budget: int = 256, **settings) -> list:
    engine = small_engine(folder, max_num_batched_tokens=budget, **settings)
    return greedy_answers(engine, prompts, NUM_NEW, per_step=per_step)


def rounding(
    name: str, columns: int | None = None
) -> Callable[[torch.nn.Module, tuple[torch.Tensor]], tuple[torch.Tensor]]:
    """What a layer of the format makes of its input, so many columns at a time, as a hook of torch's."""

    def rounded(module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        x = inputs[0].unflatten(-1, (-1, min(columns or inputs[0].shape[-1], inputs[0].shape[-1])))
        scales = x.abs().amax(-1, keepdim=True) / (127 if name == "int8" else 448)
        values = (x / scales).round() if name == "int8" else (x / scales).to(torch.float8_e4m3fn).float()
        return ((values * scales).flatten(-2),)

    return rounded


@pytest.mark.parametrize(
    ("family", "name"),
    [
        case
        for name in FORMATS
        # transformers computes experts without modules that could round their inputs
        for case in a_third(
            [(each, name) for each in FAMILIES if each not in WITH_EXPERTS or name not in ROUND_ACTIVATIONS], 2
        )
    ],
)
def test_a_model_is_the_one_of_its_dequantised_weights(family: str, name: str, reference, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", FAMILIES[family](max_position_embeddings=256))
    meant = write_dequantized(folder, tmp_path / "meant", name)
    outputs = serve(folder, PROMPTS, quantization=name)
    if name not in ROUND_ACTIVATIONS:
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            reference.check_greedy(meant, prompt, output)
        return
    check_rounded(reference, meant, outputs, name)


def check_rounded(reference, meant: Path, outputs: list, name: str, columns: int | None = None) -> None:
    """transformers, whose layers round their inputs, would have chosen these tokens, or nearly.

    An activation halfway between two numbers may go either way, as its last bit happens to be on this CPU, and takes
    others along; what follows then differs by as much as rounding did.
    """
    gaps = []
    for key, module in reference.model(meant).named_modules():
        is_restored = key.endswith("kv_b_proj")  # whose products are of floats
        if isinstance(module, torch.nn.Linear) and is_quantized(f"{key}.weight") and not is_restored:
            module.register_forward_pre_hook(rounding(name, columns))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        logits = reference.logits(meant, prompt + output[:-1])[len(prompt) - 1 :]
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        gaps.append(logits.amax(1) - chosen)
    assert float(torch.cat(gaps).max()) < 0.6
    assert float((torch.cat(gaps) < 0.02).float().mean()) > 0.85


def feed_forwards(folder: Path, is_grouped: bool, name: str | None, shard: Shard, monkeypatch) -> tuple[int, list]:
    """The model's size, and what rows become in each layer, some and none of them."""
    monkeypatch.setattr(weights, "groups_experts", lambda device: is_grouped)
    monkeypatch.setattr(Shard, "sum", lambda shard, part: part)
    config = read_config(folder)
    model = load_model(folder, config, torch.float32, torch.device("cpu"), name, shard)
    assert any(layer.feed_forward.waits_for_device for layer in model.layers) is not is_grouped
    x = torch.randn(23, config.hidden_size, generator=torch.Generator().manual_seed(1))
    return model.num_parameters, [(layer.feed_forward(x), layer.feed_forward(x[:0])) for layer in model.layers]


def check_grouped(folder: Path, name: str | None, shard: Shard, monkeypatch) -> None:
    """One product for all experts is what each alone computes."""
    (num, each), (num_together, together) = (
        feed_forwards(folder, is_grouped, name, shard, monkeypatch) for is_grouped in (False, True)
    )
    assert num == num_together
    for (found, none), (wanted, _) in zip(together, each, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
        assert not len(none)


ONE, SECOND_OF_TWO = Shard(), Shard(1, 2)


@pytest.mark.parametrize(
    ("family", "name", "shard"),
    [
        *((family, name, ONE) for family in KINDS_OF_EXPERTS for name in FORMATS),
        *((family, name, SECOND_OF_TWO) for family in ("gpt_oss", "mixtral") for name in ("int8", "int8-weight-only")),
    ],
)
def test_experts_in_one_product_are_what_each_computes_alone(family, name, shard, tmp_path, monkeypatch) -> None:
    """As on CUDA, where the host does not know who goes where."""
    folder = write_random_checkpoint(tmp_path, FAMILIES[family]())
    check_grouped(folder, name, shard, monkeypatch)


STORED: dict[str, Callable[[Path, Path], Path]] = {
    "gptq": lambda floats, to: write_gptq(floats, to / "stored", to / "meant", act_order=True, has_zeros=True),
    "awq": lambda floats, to: write_awq(floats, to / "stored", to / "meant"),
    "compressed-tensors": lambda floats, to: write_compressed_tensors(floats, to / "stored", "int8"),
    "fp8": lambda floats, to: write_finegrained_fp8(floats, to / "stored", (32, 32)),
    "mxfp4": lambda floats, to: write_mxfp4(floats, to / "stored"),
    "nvfp4": lambda floats, to: write_nvfp4(floats, to / "stored"),
}


@pytest.mark.parametrize("name", STORED)
def test_stored_experts_in_one_product_are_what_each_computes_alone(name, tmp_path, monkeypatch) -> None:
    floats = write_random_checkpoint(tmp_path / "floats", FAMILIES["gpt_oss" if name == "mxfp4" else "mixtral"]())
    check_grouped(STORED[name](floats, tmp_path), None, ONE, monkeypatch)


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
    assert torch.equal(model.embedding.weight, weights["model.embed_tokens.weight"])
    router = model.layers[0].feed_forward.router
    torch.testing.assert_close(router(x), x @ weights["model.layers.0.block_sparse_moe.gate.weight"].t())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_output_projection_is_rounded_where_that_is_set(is_tied: bool, name: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, llama_fields(tie_word_embeddings=is_tied))
    weights, config, cpu = load_file(folder / WEIGHTS), read_config(folder), torch.device("cpu")
    whole = load_model(folder, config, torch.float32, cpu)
    model = load_model(folder, config, torch.float32, cpu, head_quantization=name)
    stored = weights["model.embed_tokens.weight" if is_tied else "lm_head.weight"]
    assert torch.equal(model.embedding.weight, weights["model.embed_tokens.weight"])
    assert model.num_parameters == whole.num_parameters
    x = torch.randn(3, config.hidden_size, generator=torch.Generator().manual_seed(0))
    meant = x @ FORMATS[name].quantize(stored).dequantized().t()
    error = (model.head(x) - meant).abs().mean() / meant.std()
    assert 0 <= error < (0.02 if name == "int8" else 0.06 if name == "fp8" else 1e-4)
    assert not torch.allclose(meant, x @ stored.t(), rtol=1e-4, atol=1e-4)
    parts = [
        load_model(folder, config, torch.float32, cpu, None, Shard(rank, 2), head_quantization=name).head(x)
        for rank in range(2)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), model.head(x), rtol=1e-4, atol=1e-4)


def test_an_output_projection_that_is_stored_quantised_is_not_rounded_again(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", llama_fields(tie_word_embeddings=False, hidden_size=64))
    stored = write_gptq(folder, tmp_path / "stored", tmp_path / "meant", with_head=True)
    with pytest.raises(ConfigError, match="head-quantization: the checkpoint's output projection is quantised already"):
        loaded_runner(stored, dtype="float32", device="cpu", num_threads=1, head_quantization="int8")


def outputs_of(folder: Path, name: str | None = None) -> list[torch.Tensor]:
    """What every linear layer of a decoder makes of the same rows."""
    model = load_model(folder, read_config(folder), torch.bfloat16, torch.device("cpu"), name)
    outputs = []
    for layer in model.layers:
        experts = getattr(layer.feed_forward, "experts", (layer.feed_forward,))
        linears = [layer.attention.qkv, layer.attention.output, *(one for e in experts for one in (e.gate_up, e.down))]
        for linear in linears:
            in_features = next(size for size in (64, 96, 128) if accepts(linear, size))
            x = torch.randn(5, in_features, generator=torch.Generator().manual_seed(in_features)).bfloat16()
            outputs.append(linear(x))
    return outputs


def accepts(linear, in_features: int) -> bool:
    try:
        linear(torch.zeros(1, in_features, dtype=torch.bfloat16))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", ["qwen2", "mixtral"])
def test_what_is_stored_equals_what_is_rounded_at_load_to_the_last_bit(family: str, name: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", FAMILIES[family]())
    stored = write_compressed_tensors(folder, tmp_path / "stored", name)
    for found, wanted in zip(outputs_of(stored), outputs_of(folder, name), strict=True):
        assert torch.equal(found, wanted)
    assert serve(stored, PROMPTS) == serve(folder, PROMPTS, quantization=name)
    assert serve(stored, PROMPTS[:1], quantization=name) == serve(stored, PROMPTS[:1])


@pytest.mark.parametrize("name", ["int8-weight-only", "int4-weight-only"])
def test_compressed_tensors_means_the_same(name: str, reference, tmp_path: Path) -> None:
    """transformers reads what is stored here, where the library is installed that it needs for it."""
    pytest.importorskip("compressed_tensors")
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_compressed_tensors(folder, tmp_path / "stored", name)
    for prompt, output in zip(PROMPTS, serve(stored, PROMPTS), strict=True):
        reference.check_greedy(stored, prompt, output)


@pytest.mark.parametrize("block", [(32, 16), (128, 128), None])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral", "deepseek_v3"])
def test_blocks_of_8_bit_floats_give_the_weights_that_they_mean(family: str, block, reference, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", FAMILIES[family](max_position_embeddings=256))
    stored = write_finegrained_fp8(folder, tmp_path / "stored", block)
    outputs = serve(stored, PROMPTS)
    assert serve(stored, PROMPTS, budget=7) == outputs
    meant = dequantized_blocks(stored, tmp_path / "meant", block)
    if family in WITH_EXPERTS:
        source = choose_source(None, read_config(stored).quantization)
        with Checkpoint(stored, torch.float32, torch.device("cpu")) as checkpoint:
            for key, weight in load_file(meant / WEIGHTS).items():
                if is_quantized(key):
                    found = source.read(checkpoint, key.removesuffix(".weight"), weight.shape, WHOLE)
                    assert torch.equal(found.dequantized(), weight)
        if family == "deepseek_v3":  # these are multiplied as floats
            attention, floats = (
                load_model(each, read_config(each), torch.float32, torch.device("cpu")).layers[0].attention
                for each in (stored, meant)
            )
            assert torch.equal(attention.key_up, floats.key_up) and torch.equal(attention.value_up, floats.value_up)
        return
    check_rounded(reference, meant, outputs, "fp8", block and block[1])


@pytest.mark.parametrize("scales", ["blocks", "whole", "halves"])
def test_stacked_experts_in_8_bits_are_those_that_are_stored_apart(scales: str, tmp_path: Path) -> None:
    """As Mistral Small 4 and transformers have them, with one scale for gate and up, or two."""
    floats = write_random_checkpoint(tmp_path / "floats", FAMILIES["mistral4"]())
    block = (16, 16) if scales == "blocks" else None
    stored = write_finegrained_fp8(floats, tmp_path / "stored", block)
    tensors = load_file(stored / WEIGHTS)
    if scales == "halves":
        for key in [key for key in tensors if key.endswith("gate_up_proj_scale_inv")]:
            tensors[key] = torch.cat((tensors[key], 2 * tensors[key]), 1)
        save_file(tensors, stored / WEIGHTS, metadata={"format": "pt"})
    shutil.copytree(stored, tmp_path / "apart")
    for key in [key for key in tensors if ".experts." in key]:
        value, kind = tensors.pop(key), "weight_scale_inv" if key.endswith("_scale_inv") else "weight"
        place = key.removesuffix("_scale_inv")
        for number, each in enumerate(value):
            name = place.replace(".experts.", f".experts.{number}.")
            if key.endswith("_activation_scale"):
                continue
            halves = [each] if "down_proj" in key else each.chunk(2) if len(each) > 1 else (each, each)
            for half, told in zip(halves, ["down"] if "down_proj" in key else ["gate", "up"], strict=True):
                end = half.view(()) if half.numel() == 1 else half.clone()
                tensors[f"{name.replace('gate_up', told)}.{kind}"] = end.clone()
    save_file(tensors, tmp_path / "apart" / WEIGHTS, metadata={"format": "pt"})
    assert serve(stored, PROMPTS) == serve(tmp_path / "apart", PROMPTS)


@pytest.mark.parametrize("block", [(32, 16), (128, 128)])
def test_an_indexer_in_8_bits_is_the_one_that_is_meant(block, reference, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", FAMILIES["deepseek_v32"]())
    stored = write_finegrained_fp8(folder, tmp_path / "stored", block)
    meant = dequantized_blocks(stored, tmp_path / "meant", block)
    ours, floats = (
        load_model(each, read_config(each), torch.float32, torch.device("cpu")).layers[1].attention.indexer
        for each in (stored, meant)
    )
    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(ours.weigh(x), floats.weigh(x))
    for name, narrow in (("key", x), ("query", x[:, :32])):
        found, wanted = getattr(ours, name)(narrow), getattr(floats, name)(narrow)
        assert 0 < float((found - wanted).norm() / wanted.norm()) < 0.06, "only inputs are rounded anew"
    for prompt, output in zip(PROMPTS, serve(meant, PROMPTS), strict=True):
        reference.check_greedy(meant, prompt, output)
    assert all(len(output) == NUM_NEW for output in serve(stored, PROMPTS))


@pytest.mark.parametrize("by_output", [False, True])
def test_scales_of_a_weight_are_read_beside_measured_ones_of_activations(by_output: bool, tmp_path: Path) -> None:
    """As AutoFP8 and FBGEMM store them; each token's own scales are taken, so that the measured ones change nothing."""
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_finegrained_fp8(folder, tmp_path / "stored", None)
    wanted = serve(stored, PROMPTS)
    weights = load_file(stored / WEIGHTS)
    for key in [key for key in weights if key.endswith("_scale_inv")]:
        layer, scale = key.removesuffix(".weight_scale_inv"), weights.pop(key)
        rows = len(weights[f"{layer}.weight"])
        weights[f"{layer}.weight_scale"] = scale.repeat(rows)[:, None].clone() if by_output else scale.view(1)
        weights[f"{layer}.input_scale"] = torch.tensor(3.0)
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    change_config(stored, "activation_scheme", value="static")
    change_config(stored, "quant_method", value="fbgemm_fp8" if by_output else "fp8")
    assert serve(stored, PROMPTS) == wanted


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_what_was_measured_of_activations_and_of_a_cache_is_left_over(name: str, tmp_path: Path) -> None:
    """As LLM Compressor stores them of static activations, of a cache of 8 bits and of attention."""
    stored = write_compressed_tensors(
        write_random_checkpoint(tmp_path / "floats", llama_fields()), tmp_path / "stored", name
    )
    wanted = serve(stored, PROMPTS)
    weights = load_file(stored / WEIGHTS)
    for key in [key for key in weights if key.endswith(".weight_scale")]:
        layer = key.removesuffix(".weight_scale")
        weights |= {f"{layer}.input_{kind}": torch.tensor([3.0]) for kind in ("scale", "zero_point")}
        if layer.endswith(("k_proj", "v_proj")):
            weights[f"{layer}.{layer[-6]}_scale"] = torch.tensor(2.0)
            weights |= {f"{layer[:-7]}.{kind}_scale": torch.tensor(2.0) for kind in ("q", "k", "v", "kv")}
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    assert serve(stored, PROMPTS) == wanted


def test_4_bit_floats_of_experts_mean_what_transformers_makes_of_them(reference, tmp_path: Path, caplog) -> None:
    fields = gpt_oss_fields(intermediate_size=128, max_position_embeddings=256)
    stored = write_mxfp4(write_random_checkpoint(tmp_path / "floats", fields), tmp_path / "stored")
    caplog.set_level("INFO")
    outputs = serve(stored, PROMPTS)
    assert "MXFP4 weights become 8-bit integers while they are loaded" in caplog.text
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        reference.check_greedy(stored, prompt, output)
    with pytest.raises(ConfigError, match=r"quantization: int8 contradicts the checkpoint, whose weights are mxfp4"):
        serve(stored, PROMPTS, quantization="int8")


def dequantized_blocks(stored: Path, target: Path, block: tuple[int, int] | None) -> Path:
    """As transformers' own dequantisation has it: each block of a weight times its scale."""
    target.mkdir()
    config = json.loads((stored / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
    weights = load_file(stored / WEIGHTS)
    for key in [key for key in weights if key.endswith("_scale_inv")]:
        scales, weight = weights.pop(key), weights[key.removesuffix("_scale_inv")].float()
        rows, columns = block or weight.shape
        for top in range(0, len(weight), rows):
            for left in range(0, weight.shape[1], columns):
                scale = scales[top // rows, left // columns] if block else scales
                weight[top : top + rows, left : left + columns] *= scale
        weights[key.removesuffix("_scale_inv")] = weight
    save_file(weights, target / WEIGHTS, metadata={"format": "pt"})
    return target


def change_config(folder: Path, *path: str, value: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    section = config["quantization_config"]
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    (folder / "config.json").write_text(json.dumps(config))


GROUP = ("config_groups", "group_0")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("quant_method",), "bitsandbytes", "quant_method is 'bitsandbytes'"),
        (("quant_method",), None, "quant_method is None"),
        (("format",), "marlin-24", "not marlin-24"),
        (("sparsity_config",), {"format": "sparse-24-bitmask"}, "sparsity_config"),
        (("transform_config",), {"config_groups": {"u": {}}}, "transform_config"),
        (("config_groups",), {}, "config_groups"),
        ((*GROUP, "weights"), None, "group_0.weights is missing"),
        ((*GROUP, "weights", "num_bits"), 2, "not int of 2 bits with quantised ones"),
        ((*GROUP, "weights", "symmetric"), False, "weights.symmetric is False"),
        ((*GROUP, "weights", "actorder"), "group", "weights.actorder is 'group'"),
        ((*GROUP, "weights", "strategy"), "tensor_group", "not tensor_group"),
        ((*GROUP, "input_activations", "num_bits"), 4, "input_activations.num_bits is 4"),
        ((*GROUP, "output_activations"), {"num_bits": 8}, "output_activations"),
        (("ignore",), ["re:("], "'re:(' is no regular expression (missing )"),
        ((*GROUP, "targets"), ["Linear", "re:*"], "'re:*' is no regular expression (nothing to repeat"),
    ],
)
def test_what_no_layer_computes_is_refused_by_its_field(path, value, says: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_compressed_tensors(folder, tmp_path / "stored", "int8")
    change_config(stored, *path, value=value)
    with pytest.raises(ModelLoadError) as raised:
        read_config(stored)
    assert says in raised.value.message and "quantization_config" in raised.value.message


@pytest.mark.parametrize(("name", "value"), [("fmt", "e5m2"), ("weight_block_size", [128]), ("weight_block_size", 3)])
def test_blocks_that_cannot_be_read_are_refused_by_their_field(name: str, value, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_finegrained_fp8(folder, tmp_path / "stored", (32, 32))
    change_config(stored, name, value=value)
    with pytest.raises(ModelLoadError, match=f"quantization_config.{name}"):
        read_config(stored)


def test_groups_pick_layers_by_pattern_and_name(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_compressed_tensors(folder, tmp_path / "stored", "int8")
    floats, weights = load_file(folder / WEIGHTS), load_file(stored / WEIGHTS)
    for key in [key for key in weights if ".mlp." in key or ".0.self_attn.o_proj" in key]:
        del weights[key]
    weights |= {key: floats[key] for key in floats if ".mlp." in key or ".0.self_attn.o_proj" in key}
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    change_config(stored, *GROUP, "targets", value=["re:.*self_attn.*"])
    change_config(stored, "ignore", value=["lm_head", "model.layers.0.self_attn.o_proj"])
    model = load_model(stored, read_config(stored), torch.float32, torch.device("cpu"))
    kinds = [type(one).__name__ for layer in model.layers for one in (layer.attention.qkv, layer.attention.output)]
    assert len(set(kinds)) == 2 and kinds[0] == kinds[2] == kinds[3] != kinds[1]


@pytest.mark.parametrize("name", ["int8", "int4-weight-only", "fp8"])
def test_a_tensor_that_is_not_what_the_config_says_is_named(name: str, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_compressed_tensors(folder, tmp_path / "stored", name)
    key = "model.layers.1.mlp.down_proj.weight" + ("_packed" if name == "int4-weight-only" else "")
    weights = load_file(stored / WEIGHTS)
    save_file({**weights, key: weights[key].float()}, stored / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"{key} holds float32"):
        serve(stored, PROMPTS[:1])
    del weights["model.layers.1.mlp.down_proj.weight_scale"]
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"no tensor model\.layers\.1\.mlp\.down_proj\.weight_scale"):
        serve(stored, PROMPTS[:1])


@pytest.mark.parametrize("size", [16, 40])
def test_groups_of_different_sizes_are_computed_side_by_side(size: int, tmp_path: Path) -> None:
    """64 inputs in groups of 40 have as many scales as in groups of 32."""
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_compressed_tensors(folder, tmp_path / "stored", "int4-weight-only")
    weights = load_file(stored / WEIGHTS)
    weights |= {
        key: torch.ones(len(scales), -(-64 // size))
        for key, scales in weights.items()
        if key.endswith("q_proj.weight_scale")
    }
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    group = json.loads((stored / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    others = {**group, "targets": ["re:.*q_proj"], "weights": {**group["weights"], "group_size": size}}
    change_config(stored, "config_groups", value={"others": others, "group_0": group})
    config = read_config(stored)
    source = choose_source(None, config.quantization)
    model = load_model(stored, config, torch.float32, torch.device("cpu"))
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    found = model.layers[1].attention.qkv(x)
    with Checkpoint(stored, torch.float32, torch.device("cpu")) as checkpoint:
        parts = [
            source.read(checkpoint, f"model.layers.1.self_attn.{name}_proj", (rows, 64), WHOLE)
            for name, rows in (("q", 64), ("k", 32), ("v", 32))
        ]
    assert parts[0].group_size == size != parts[1].group_size == 32
    torch.testing.assert_close(found, x @ torch.cat([part.dequantized() for part in parts]).t())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", FORMATS)
def test_scales_that_are_no_numbers_are_named(name: str, value: float, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_compressed_tensors(folder, tmp_path / "stored", name)
    weights = load_file(stored / WEIGHTS)
    weights["model.layers.1.mlp.down_proj.weight_scale"][3, 0] = value
    save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"tensor model\.layers\.1\.mlp\.down_proj\.weight_scale holds what is no"):
        serve(stored, PROMPTS[:1])


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_8_bit_floats_that_are_no_numbers_are_named(code: int, tmp_path: Path) -> None:
    """Whoever rounds weights without bounding them to 448 stores NaN, whose bits are decoded as 480."""
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    key = "model.layers.0.mlp.up_proj.weight"
    for stored in (
        write_compressed_tensors(folder, tmp_path / "channels", "fp8"),
        write_finegrained_fp8(folder, tmp_path / "blocks", (32, 32)),
    ):
        weights = load_file(stored / WEIGHTS)
        weights[key].view(torch.uint8)[3, 5] = code
        save_file(weights, stored / WEIGHTS, metadata={"format": "pt"})
        with pytest.raises(ModelLoadError, match=rf"tensor {key} holds what is no finite number"):
            serve(stored, PROMPTS[:1])


def test_8_bit_floats_without_scales_are_no_weights(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, llama_fields())
    weights = load_file(folder / WEIGHTS)
    key = "model.layers.0.mlp.up_proj.weight"
    save_file({**weights, key: weights[key].to(torch.float8_e4m3fn)}, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"{key} holds float8_e4m3fn") as raised:
        serve(folder, PROMPTS[:1])
    assert raised.value.reason == ModelLoadReason.CHECKPOINT_INVALID


@pytest.mark.parametrize("name", FORMATS)
def test_no_two_weights_are_in_memory_as_floats(name: str, tmp_path: Path, monkeypatch) -> None:
    folder = write_random_checkpoint(tmp_path, FAMILIES["mixtral"]())
    plain, read = Checkpoint.stored, []

    def stored(self, key: str, *shapes, **options) -> torch.Tensor:
        assert not any(each() is not None for each in read), f"{key} is read while another is there"
        weight = plain(self, key, *shapes, **options)
        read.append(weakref.ref(weight))
        return weight

    monkeypatch.setattr(Checkpoint, "stored", stored)
    load_model(folder, read_config(folder), torch.float32, torch.device("cpu"), name)
    assert len(read) == 2 * (4 + 4 * 3)


def test_a_runner_tells_the_format_that_its_profile_is_about(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "floats", llama_fields())
    stored = write_compressed_tensors(folder, tmp_path / "stored", "int8")
    for source, setting, told in ((folder, None, None), (folder, "fp8", "fp8"), (stored, None, "int8")):
        runner = loaded_runner(source, dtype="float32", device="cpu", num_threads=1, quantization=setting)
        assert identity(runner, 16)["quantization"] == told

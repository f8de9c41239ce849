"""Checkpoints that also read images: the decoder alone is served, as transformers computes it without images."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from fairlead.fit.fit_check import read_shape
from fairlead_common.models.text_part import _DEFAULTS
from fairlead_engine import LLM, SamplingParams
from fairlead_engine.config import QUANTIZATIONS
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.loading import read_config
from fairlead_engine.runner.quantizing import QuantizeOrders, quantize
from fairlead_engine_testing.foreign_checkpoints import write_seeing_checkpoint
from fairlead_engine_testing.letters import write_letters

PROMPT = [7 + (5 * index + index * index // 3) % 40 for index in range(30)]
SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "num_threads": 1, "max_model_len": 90}
PART_TURNED = {
    "rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10_000.0, "partial_rotary_factor": 0.5
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma4": (
        "gemma4",
        {
            "sliding_window": 20, "head_dim": 16, "global_head_dim": 24, "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 256, "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        },
        {},
    ),
    "gemma4_unified": (
        "gemma4_unified",
        {
            "sliding_window": 20, "head_dim": 16, "global_head_dim": 24, "num_global_key_value_heads": 1,
            "attention_k_eq_v": True, "layer_types": ["sliding_attention", "full_attention"],
        },
        {},
    ),
    "mistral3": ("mistral3", {"model_type": "mistral", "head_dim": 24}, {"model_type": "pixtral", "head_dim": 16}),
    "ministral3": (
        "mistral3", {"model_type": "ministral3", "head_dim": 24}, {"model_type": "pixtral", "head_dim": 16}
    ),
    "mistral4": (
        "mistral3",
        {
            "model_type": "mistral4", "kv_lora_rank": 32, "q_lora_rank": 24, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 48, "num_key_value_heads": 4,
        },
        {"model_type": "pixtral", "head_dim": 16},
    ),
    "llava": ("llava", {"model_type": "llama"}, {"model_type": "clip_vision_model"}),
    "internvl": ("internvl", {"model_type": "qwen2"}, {"image_size": [28, 28], "patch_size": [14, 14]}),
    "llama4": (
        "llama4",
        {
            "intermediate_size_mlp": 80, "head_dim": 16, "num_local_experts": 4, "attention_chunk_size": 12,
            "no_rope_layers": [1, 0], "interleave_moe_layer_step": 2, "floor_scale": 8,
        },
        {"vision_output_dim": 64, "projector_input_dim": 64, "projector_output_dim": 64},
    ),
    "llava_onevision": ("llava_onevision", {"model_type": "qwen2"}, {"model_type": "siglip_vision_model"}),
    "idefics3": ("idefics3", {"model_type": "llama"}, {}),
    "smolvlm": ("smolvlm", {"model_type": "llama"}, {}),
    "glm4v": ("glm4v", {"head_dim": 16, "rope_parameters": PART_TURNED}, {}),
    "glm4v_moe": (
        "glm4v_moe",
        {
            "head_dim": 16, "rope_parameters": PART_TURNED, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
        },
        {},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_seeing_checkpoint(tmp_path_factory.mktemp(kind), *KINDS[kind])
            write_letters(made[kind])
        return made[kind]

    return folder


def reference(folder: Path) -> torch.Tensor:
    """float32 [tokens, vocab], log-probabilities by transformers."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        told: torch.Tensor = model(input_ids=torch.tensor([PROMPT])).logits[0].float().log_softmax(-1)
    return told


def check(folder: Path, wanted: torch.Tensor, most: float = 1e-3, **settings: Any) -> None:
    [found] = LLM(str(folder), **SETTINGS, **settings).generate(
        PROMPT, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=20)
    )
    places = [(at, *each) for at, entry in enumerate(found.prompt_logprobs) for each in entry.top]
    rows, ids, values = zip(*places, strict=True)
    assert {*rows} == {*range(len(PROMPT) - 1)}
    assert float((torch.tensor(values) - wanted[list(rows), list(ids)]).abs().max()) < most


def rewritten(folder: Path, target: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The same checkpoint with other tensors."""
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text((folder / "config.json").read_text())
    write_letters(target)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_alone_computes_what_transformers_does(kind: str, folders: Any) -> None:
    folder = folders(kind)
    config = read_config(folder)
    assert config.is_text_part and config.vision is None and config.task.images is None
    assert read_shape(json.loads((folder / "config.json").read_text())).architecture == config.architecture
    check(folder, reference(folder))


@pytest.mark.parametrize("beginning", ["model.language_model.", "language_model.model."])
def test_older_and_newer_files_name_the_decoder_differently(beginning: str, folders: Any, tmp_path: Path) -> None:
    folder = folders("llava")
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("language_model.model.", beginning): tensor for name, tensor in tensors.items()}
    check(rewritten(folder, tmp_path, renamed), reference(folder))


def test_a_missing_tensor_of_the_decoder_is_named_and_others_are_not_missed(folders: Any, tmp_path: Path) -> None:
    folder = folders("llava")
    lost = ("vision_tower.", "language_model.model.layers.1.mlp.up_proj.")
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(lost)}
    with pytest.raises(ModelLoadError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        LLM(str(rewritten(folder, tmp_path, tensors)), **SETTINGS)


@pytest.mark.parametrize("named", ["language_model.model.", "model.language_model.", "model."])
def test_an_adapter_names_the_layers_as_the_checkpoint_or_the_decoder_does(
    named: str, folders: Any, tmp_path: Path
) -> None:
    folder = folders("llava")
    tensors, generator = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(3)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    stored: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        if name.endswith("q_proj.weight") and name.startswith("language_model."):
            down, up = (torch.randn(shape, generator=generator) / 8 for shape in ((4, 64), (64, 4)))
            module = name.removesuffix(".weight").replace("language_model.model.", named)
            stored[f"base_model.model.{module}.lora_A.weight"] = down
            stored[f"base_model.model.{module}.lora_B.weight"] = up
            tensors[name] = weight + 2.0 * up @ down
    fields = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none"}
    fields["target_modules"] = r".*language_model.*\.q_proj" if "language" in named else ["q_proj"]  # type: ignore[assignment]
    (adapter / "adapter_config.json").write_text(json.dumps(fields))
    save_file(stored, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    model = LLM(str(folder), max_loras=1, **SETTINGS)
    model.load_adapter("one", adapter)
    sampling = SamplingParams(temperature=0.0, max_tokens=12)
    plain, adapted = (model.generate(PROMPT, sampling, adapter=name)[0].token_ids for name in (None, "one"))
    [wanted] = LLM(str(rewritten(folder, tmp_path / "merged", tensors)), **SETTINGS).generate(PROMPT, sampling)
    assert adapted == wanted.token_ids != plain


def test_layers_that_a_quantised_checkpoint_leaves_out_are_known_by_the_checkpoints_names(folders: Any) -> None:
    fields = json.loads((folders("llava") / "config.json").read_text())
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    fields["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "ignore": ["language_model.lm_head", "model.language_model.layers.0.mlp.up_proj"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip
    layout = read_shape(fields).stored
    assert layout is not None and layout.ignored == ("lm_head", "model.layers.0.mlp.up_proj")


@pytest.mark.parametrize("model_type", _DEFAULTS)
def test_fields_that_are_left_out_are_those_of_transformers(model_type: str) -> None:
    """The published file of Gemma 3 4B states five fields of its decoder."""
    theirs = transformers.AutoConfig.for_model(model_type)
    for name, value in _DEFAULTS[model_type].items():
        assert getattr(theirs, name) == value
    stated = {"model_type": model_type, "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    shape = read_shape({"architectures": ["SeesForConditionalGeneration"], "text_config": stated, "vision_config": {}})
    assert (shape.num_layers, shape.hidden_size, shape.vocab_size) == (34, 2560, theirs.vocab_size)


def test_a_decoder_without_a_family_is_refused_by_the_name_of_the_whole() -> None:
    with pytest.raises(ModelLoadError, match="names SeesForConditionalGeneration"):
        read_shape({"architectures": ["SeesForConditionalGeneration"], "text_config": {"model_type": "odd"}})


def test_a_quantised_copy_of_it_is_refused_by_name(folders: Any, tmp_path: Path) -> None:
    orders = QuantizeOrders(format_name=QUANTIZATIONS[0], method="rtn")
    with pytest.raises(ConfigError, match="reads more than text"):
        quantize(folders("llava"), tmp_path / "out", orders, None, print)

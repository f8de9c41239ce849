"""Decoders that transformers computes over our cache: its own logits and tokens, or a sentence that says why not."""

import array
import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fairlead_common.models.families.registry import ARCHITECTURES
from fairlead_engine.config import EngineConfig
from fairlead_engine.core.engine import Engine
from fairlead_engine.errors import ConfigError, ModelLoadError
from fairlead_engine.model.fallback.foreign_decoder import StepAttention
from fairlead_engine.model.shard import ALONE
from fairlead_engine.runner.comparison import LogitModel
from fairlead_engine.runner.model_part import ModelPart
from fairlead_engine.types import Pooling
from fairlead_engine_testing import make_request
from fairlead_engine_testing.checked_steps import answered
from fairlead_engine_testing.foreign_checkpoints import write_foreign_checkpoint
from fairlead_engine_testing.greedy_answers import greedy_answers, small_engine

pytestmark = pytest.mark.matrix

_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
QUICK: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 256},  # learned positions, layers stored transposed
    "gpt_neox": {},  # positions turn a part of each head, attention and feed-forward side by side
    "vaultgemma": {"sliding_window": 20, "attn_logit_softcapping": 5.0, "head_dim": 16, "query_pre_attn_scalar": 24},
    "granite_swa": {"sliding_window": 20},  # with sinks
    "minicpm3": {**_LATENT, "num_key_value_heads": 4},  # values smaller than keys
}
"""Families that differ in what they ask of attention."""
OTHERS: dict[str, dict[str, Any]] = {
    "biogpt": {},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "glm": {"head_dim": 16},
    "gpt_bigcode": {},
    "modernbert-decoder": {"local_attention": 20, "layer_types": ["sliding_attention", "full_attention"]},
    "nemotron": {"head_dim": 16},
    "olmo": {"clip_qkv": 1.0},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phi": {},
    "stablelm": {"use_qkv_bias": True},
    "starcoder2": {"sliding_window": 20},
}


@pytest.fixture(
    scope="module",
    params=[*QUICK, *(pytest.param(name, marks=pytest.mark.compute) for name in OTHERS)],
)
def folder(request, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {**QUICK, **OTHERS}[request.param]
    made = write_foreign_checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param, **changes)
    architectures = json.loads((made / "config.json").read_text())["architectures"]
    assert not ARCHITECTURES.keys() & {*architectures}, "a family of our own, which other tests hold to transformers"
    return made


def part(folder: Path, **settings: Any) -> ModelPart:
    settings = {"device": "cpu", "dtype": "float32", "block_size": 8, "num_threads": 1, **settings}
    return ModelPart(EngineConfig(model=str(folder), **settings), ALONE)


def make_engine(folder: Path, **settings: Any) -> Engine:
    return small_engine(folder, **{"kv_cache_memory": 2**22, **settings})


def test_tokens_are_those_of_transformers_in_chunks_after_preemptions_and_with_prefixes(
    folder: Path, reference
) -> None:
    """Six prompts with a common beginning, in a cache that holds not even half of them."""
    draw = random.Random(0)
    common = [draw.randrange(2, 256) for _ in range(20)]
    prompts = [common + [draw.randrange(2, 256) for _ in range(draw.randint(1, 40))] for _ in range(6)]
    bytes_per_block = make_engine(folder).runner.kv_bytes_per_block()
    engine = make_engine(
        folder, kv_cache_memory=14 * bytes_per_block, max_model_len=100, max_num_batched_tokens=24, max_num_seqs=6
    )
    outputs = greedy_answers(engine, prompts, 20, per_step=2)
    assert engine.load.num_preemptions > 0
    assert engine.load.prefix_hit_tokens > 0
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output) == 20
        reference.check_greedy(folder, prompt, output)
    generated = reference.model(folder).generate(
        torch.tensor([prompts[0]]), attention_mask=torch.ones(1, len(prompts[0])), max_new_tokens=20, min_new_tokens=20,
        do_sample=False, eos_token_id=None,
    )  # fmt: skip
    assert generated[0, len(prompts[0]) :].tolist() == outputs[0]


def test_logits_are_those_of_transformers(folder: Path, reference) -> None:
    settings = EngineConfig(model=str(folder), device="cpu", dtype="float32", block_size=8, num_threads=1)
    prompt = [random.Random(1).randrange(256) for _ in range(70)]
    wanted = reference.logits(folder, prompt)
    assert (LogitModel(settings).logits(prompt) - wanted).abs().max() < 1e-3 * wanted.abs().max()


@pytest.fixture(scope="module")
def neox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign_checkpoint(tmp_path_factory.mktemp("models") / "neox", "gpt_neox")


@pytest.mark.parametrize("settings", [{"attention_backend": "block_tables"}, {"kv_cache_dtype": "int8"}])
def test_other_backends_and_caches_give_nearly_the_same(settings: dict[str, str], neox: Path, reference) -> None:
    prompt = [random.Random(2).randrange(256) for _ in range(50)]
    wanted = reference.logits(neox, prompt)
    plain = EngineConfig(model=str(neox), device="cpu", dtype="float32", block_size=8, num_threads=1, **settings)
    error = (LogitModel(plain).logits(prompt) - wanted).abs().max() / wanted.std()
    assert error < 1e-3 if "attention_backend" in settings else 1e-4 < error < 0.2


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_guesses_leave_tokens_as_they_are(method: str, neox: Path, reference) -> None:
    """The draft model is of such a family, too."""
    guesses: dict[str, Any] = {"speculative_method": method, "num_speculative_tokens": 3}
    guesses |= {"prompt_lookup_min": 1} if method == "ngram" else {"speculative_model": str(neox)}
    engine = make_engine(neox, max_model_len=100, max_num_batched_tokens=24, max_num_seqs=4, **guesses)
    draw = random.Random(3)
    prompts = [[draw.randrange(2, 9) for _ in range(30)] for _ in range(3)]
    for prompt, output in zip(prompts, greedy_answers(engine, prompts, 40, per_step=1), strict=True):
        reference.check_greedy(neox, prompt, output)
    assert sum(engine.load.num_accepted_per_position) > 0


def test_vectors_are_transformers_last_hidden_states(neox: Path, reference) -> None:
    engine = make_engine(neox, max_num_batched_tokens=16)
    prompt = [random.Random(4).randrange(256) for _ in range(40)]
    vector = answered(engine, [make_request("v", prompt, pooling=Pooling.LAST, max_tokens=0)])["v"].embedding
    with torch.inference_mode():
        wanted = reference.model(neox).base_model(torch.tensor([prompt])).last_hidden_state[0, -1]
    found = torch.tensor(array.array("f", vector))
    assert (found - torch.nn.functional.normalize(wanted, dim=0)).abs().max() < 1e-4


@pytest.mark.parametrize("model_type", ["granitemoe", "stablelm"])
def test_a_trial_in_half_precision_tells_rounding_from_another_model(
    model_type: str, tmp_path: Path, monkeypatch
) -> None:
    """Rounding alone sends tokens of the sparse one to other experts."""
    monkeypatch.delitem(ARCHITECTURES, "GraniteMoeForCausalLM")
    folder = write_foreign_checkpoint(tmp_path, model_type)
    assert part(folder, dtype="bfloat16").dtype is torch.bfloat16
    store = StepAttention.attend
    monkeypatch.setattr(StepAttention, "attend", lambda self, *given: store(self, *given) * 0.5)
    with pytest.raises(ModelLoadError, match="logits differ from its own by"):
        part(folder, dtype="bfloat16")


def test_the_log_says_what_computes_the_model(neox: Path, caplog) -> None:
    with caplog.at_level(logging.INFO):
        loaded = part(neox)
    assert "GPTNeoXForCausalLM has no implementation of this engine's own: transformers computes it" in caplog.text
    assert "a trial of 48 tokens in steps differs" in caplog.text
    assert loaded.model.num_parameters == sum(each.numel() for each in loaded.model.network.parameters())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"quantization": "int8"}, "quantization: is int8, and this model is computed by transformers' code"),
        ({"head_quantization": "int8"}, "head-quantization: is int8"),
        ({"max_loras": 2}, "max-loras: or adapters are set.* while it runs.*merged-adapter"),
    ],
)
def test_settings_that_do_not_compose_are_refused_by_name(settings: dict[str, Any], says: str, neox: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        part(neox, **settings)


def test_a_head_that_sees_layers_is_refused(neox: Path) -> None:
    with pytest.raises(ConfigError, match="speculative-method: is eagle3, which sees what GPTNeoXForCausalLM holds"):
        make_engine(neox, speculative_method="eagle3", speculative_model=str(neox))
    with pytest.raises(ConfigError, match="speculative-method: is mtp, and the model brings no layer for it"):
        make_engine(neox, speculative_method="mtp")


def test_tensor_parallelism_is_refused_before_any_rank_is_started(neox: Path) -> None:
    with pytest.raises(ConfigError, match="tensor-parallel-size: is 2, and this model is computed by transformers'"):
        make_engine(neox, tensor_parallel_size=2)


REFUSED = {
    "mamba": ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "keeps a state of all tokens"),
    "minimax": (
        {"model_type": "minimax", "layer_types": ["linear_attention", "full_attention"], "num_hidden_layers": 2},
        "has layers of linear_attention",
    ),
    "bloom": ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, r"bias of attention's scores \(ALiBi\)"),
    "mpt": ({"model_type": "mpt", "architectures": ["MPTForCausalLM"]}, r"bias of attention's scores \(ALiBi\)"),
    "t5": ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "t5, an encoder with a decoder"),
    "bart": ({"model_type": "bart", "architectures": ["BartForConditionalGeneration"]}, "bart, an encoder with a"),
    "gptj": ({"model_type": "gptj"}, "GPTJForCausalLM, whose attention is its own and cannot be replaced"),
    "pixels": (
        {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "vision_config": {}},
        "with vision_config.*text alone can be served, and .*Qwen2_5_VLForConditionalGeneration",
    ),
    "base": ({"model_type": "gpt2", "architectures": ["GPT2Model"]}, "can be served, is GPT2LMHeadModel"),
    "quantised": (
        {"model_type": "gpt2", "quantization_config": {"quant_method": "gptq", "bits": 3}},
        "quantization_config.bits.* 4 and 8 are supported",
    ),
    "unknown bits": (
        {"model_type": "gpt2", "quantization_config": {"quant_method": "hqq"}},
        "quantization_config.quant_method.*supported are awq",
    ),
    "mxfp4": (
        {"model_type": "gpt2", "quantization_config": {"quant_method": "mxfp4"}},
        "whose layers are not stored one by one; for models that transformers computes GPTQ, AWQ",
    ),
    "mlx": (
        {"model_type": "gpt2", "quantization": {"group_size": 64, "bits": 4}},
        "weights as MLX stores them are not",
    ),
    "cross": ({"model_type": "gpt2", "add_cross_attention": True}, "asks for add_cross_attention"),
    "remote": (
        {"model_type": "homemade", "auto_map": {"AutoModelForCausalLM": "modeling.Homemade"}},
        r"needs code of its own \(auto_map\).* is never run here",
    ),
    "unknown": ({"model_type": "homemade"}, "names the model_type homemade, which transformers .* does not know"),
    "nameless": ({"architectures": ["SomethingForCausalLM"]}, "names the model_type None"),
    "broken": ({"model_type": "gpt_neox", "hidden_size": "wide"}, "config.json: transformers cannot read it"),
}
"""By `config.json` alone."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_in_a_sentence_before_weights_are_read(name: str, tmp_path: Path) -> None:
    fields, says = REFUSED[name]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "modeling.py").write_text("raise SystemExit('code of a checkpoint was run')")
    with pytest.raises(ModelLoadError, match=says) as refused:
        part(tmp_path)
    assert refused.value.reason == ("ModelConfigInvalid" if name == "broken" else "UnsupportedArchitecture")


def test_a_model_whose_tokens_see_those_after_them_is_refused(tmp_path: Path) -> None:
    write_foreign_checkpoint(tmp_path, "bert")
    with pytest.raises(ModelLoadError, match="tokens see those after them"):
        part(tmp_path)


def test_chunked_attention_is_refused_unless_a_chunk_is_the_whole_context(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delitem(ARCHITECTURES, "Llama4ForCausalLM")
    experts = {"num_local_experts": 2, "intermediate_size_mlp": 96, "head_dim": 16, "attention_chunk_size": 24}
    experts["attn_temperature_tuning"] = False
    folder = write_foreign_checkpoint(tmp_path, "llama4_text", **experts)
    with pytest.raises(ModelLoadError, match="sees other tokens than all before it"):
        part(folder)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "attention_chunk_size": 256}))
    assert part(folder).config.architecture == "Llama4ForCausalLM"


def test_a_model_that_looks_past_its_cache_is_refused_with_the_figure(neox: Path, monkeypatch) -> None:
    """Each layer mixes what it gets with what the token before got: in steps that one is not always there."""
    attention = transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXAttention
    forward = attention.forward

    def shifted(self: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return forward(self, hidden_states + 0.5 * hidden_states.roll(1, 1), *args, **kwargs)

    monkeypatch.setattr(attention, "forward", shifted)
    with pytest.raises(ModelLoadError, match=r"logits differ from its own by [\d.e+-]+ of their spread") as refused:
        part(neox)
    assert refused.value.reason == "UnsupportedArchitecture"


def test_a_model_that_fails_by_itself_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = write_foreign_checkpoint(tmp_path, "minicpm3", **{**QUICK["minicpm3"], "num_key_value_heads": 2})
    with pytest.raises(ModelLoadError, match=r"MiniCPM3.* cannot be served: .* fails when it is tried") as refused:
        part(folder)
    assert "config.json" in refused.value.message


def test_a_configuration_that_keeps_a_decoders_facts_elsewhere_is_refused_in_a_sentence(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {"model_type": "persimmon", "vocab_size": 300, "max_position_embeddings": 128, **sizes}
    fuyu = transformers.FuyuConfig(text_config=text, patch_size=4, num_channels=3)
    transformers.FuyuForCausalLM(fuyu).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=r"^FuyuForCausalLM cannot be served: .*\(AttributeError: ") as refused:
        part(tmp_path)
    assert refused.value.reason == "UnsupportedArchitecture" and "choose another model" in refused.value.message


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("get_decoder", "fails when it is made and its attention is looked at"),
        ("get_output_embeddings", "fails when it is made and its attention is looked at"),
        ("set_attn_implementation", "fails when it is made and its attention is looked at"),
        ("__init__", "cannot read the weights of GPTNeoXForCausalLM"),
        ("forward", "fails when it is tried"),
    ],
)
def test_whatever_transformers_raises_is_a_sentence_with_architecture_and_cause(
    place: str, says: str, neox: Path, monkeypatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("fault")

    monkeypatch.setattr(transformers.GPTNeoXForCausalLM, place, fails)
    with pytest.raises(ModelLoadError, match=rf"{says}.*\(KeyError: 'fault'\)") as refused:
        part(neox)
    assert "GPTNeoXForCausalLM" in refused.value.message


def test_a_bias_that_is_added_to_masks_is_refused(neox: Path, monkeypatch) -> None:
    attention = transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXAttention
    forward = attention.forward

    def biased(self: Any, hidden_states: torch.Tensor, attention_mask: Any, *args: Any, **kwargs: Any) -> Any:
        bias = torch.zeros(1, 4, hidden_states.shape[1], hidden_states.shape[1])
        return forward(self, hidden_states, bias if attention_mask is None else attention_mask + bias, *args, **kwargs)

    monkeypatch.setattr(attention, "forward", biased)
    with pytest.raises(ModelLoadError, match="adds to attention's scores"):
        part(neox)


@pytest.mark.parametrize(
    ("change", "reason", "says"),
    [
        (lambda fields: {**fields, "num_hidden_layers": 3}, "MissingTensor", "lacks 12 tensors .*gpt_neox.layers.2"),
        (lambda fields: {**fields, "num_hidden_layers": 1}, "UnexpectedTensor", "holds 12 tensors .* not account for"),
        (lambda fields: {**fields, "hidden_size": 32}, "CheckpointInvalid", "cannot read the weights of GPTNeoXForC"),
        (lambda fields: {**fields, "dtype": "float64"}, "UnsupportedArchitecture", "asks for dtype float64"),
        (lambda fields: {**fields, "eos_token_id": 256}, "ModelConfigInvalid", "eos_token_id is 256 but must be below"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: Any, reason: str, says: str, neox: Path, tmp_path: Path) -> None:
    fields = json.loads((neox / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(change(fields)))
    (tmp_path / "model.safetensors").symlink_to(neox / "model.safetensors")
    with pytest.raises(ModelLoadError, match=says) as refused:
        part(tmp_path)
    assert refused.value.reason == reason


def test_pickled_weights_are_never_read(neox: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((neox / "config.json").read_text())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="safetensors"):
        part(tmp_path)


def test_contexts_end_where_positions_would_be_stretched_by_the_longest_of_a_step(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [3.0] * 8, "rope_theta": 10000.0}
    rope |= {"original_max_position_embeddings": 64, "short_mscale": 1.0, "long_mscale": 1.0, "factor": 4.0}
    folder = write_foreign_checkpoint(tmp_path, "starcoder2", rope_parameters=rope)
    assert part(folder).config.max_position_embeddings == 64


def test_without_transformers_the_sentence_names_the_extra(neox: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelLoadError, match="names the architecture GPTNeoXForCausalLM; this engine's own") as refused:
        part(neox)
    assert refused.value.reason == "UnsupportedArchitecture"
    assert "pip install 'fairlead-engine[transformers]'" in refused.value.message

"""Checkpoints with random weights, of any supported shape, for tests and benchmarks without a download.

Written in the Hugging Face layout, so that other engines load the same files.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from fairlead_common.models.families.deepseek import DeepseekConfig
from fairlead_common.models.families.dense import ApertusConfig, UngatedConfig
from fairlead_common.models.families.experts import ExpertsConfig, GptOssConfig, RoutedExpertsConfig
from fairlead_common.models.families.gemma4 import Gemma4Config
from fairlead_common.models.families.hybrids import HybridConfig
from fairlead_common.models.families.llama4 import Llama4Config
from fairlead_common.models.families.nemotron_h import NemotronHConfig
from fairlead_common.models.families.recurrent import GraniteHybridConfig
from fairlead_common.models.families.registry import ARCHITECTURES
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import ModelConfig, QueryNorm, StateNorm
from fairlead_engine.model.loading import read_config

Shape = tuple[int, ...]
_HEAD_NORMS = {
    QueryNorm.HEADS: ("q_norm", "k_norm"),
    QueryNorm.TURNED_HEADS: ("query_layernorm", "key_layernorm"),
}
_ROUTED_NAMES = {
    "Ernie4_5_MoeForCausalLM": ("gate", "moe_statics.e_score_correction_bias", "shared_experts"),
    "ExaoneMoeForCausalLM": ("gate", "e_score_correction_bias", "shared_experts"),
    "HunYuanMoEV1ForCausalLM": ("gate.wg", "", "shared_mlp"),
    "HYV3ForCausalLM": ("router.gate", "expert_bias", "shared_mlp"),
}
"""Names of router, bias of scores and shared experts, where they are not DeepSeek's."""


def write_random_checkpoint(folder: Path, fields: dict[str, Any], *, seed: int = 0, num_shards: int = 1) -> Path:
    """Writes `config.json` and safetensors with normally distributed weights in the dtype that `fields` names.

    The scale keeps activations near one, so that logits differ enough to tell a right model from a wrong one. The same
    arguments give the same weights. Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    config = read_config(folder)
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config.dtype)
    shapes, norm = tensor_shapes(config), 1.0 - config.norm_offset
    tensors = {name: _random(name, shape, generator, norm).to(dtype) for name, shape in shapes}
    if isinstance(config, Gemma4Config):  # whose scores nothing else divides by the size of heads
        tensors |= {name: each / len(each) ** 0.5 for name, each in tensors.items() if name.endswith("q_norm.weight")}
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _save_shards(folder, tensors, num_shards)
    return folder


def write_guessing_checkpoint(model: Path) -> Path | None:
    """Writes, beside a model's folder, one of the same configuration with a layer for multi-token prediction. None =
    the family reads none, or a tower, too, which is not written here."""
    fields = json.loads((model / "config.json").read_text(encoding="utf-8")) | {"num_nextn_predict_layers": 1}
    family = ARCHITECTURES.get(fields["architectures"][0])
    config = None if family is None else family.parse(JsonFields(model / "config.json", fields))
    if config is None or config.vision is not None or not config.num_guessing_layers:
        return None
    return write_random_checkpoint(model.with_name("guessing"), fields)


def write_random_classifier(folder: Path, fields: dict[str, Any], *, architecture: str | None = None) -> Path:
    """The same with a classifier of `num_labels` in place of the output projection, called `score`."""
    write_random_checkpoint(folder, fields)
    name = architecture or fields["architectures"][0].replace("ForCausalLM", "ForSequenceClassification")
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0, **fields, "architectures": [name]}))
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    shape = (fields["num_labels"], fields["hidden_size"])
    score = _random("score", shape, torch.Generator().manual_seed(1), 1.0)
    tensors["score.weight"] = score.to(getattr(torch, fields["dtype"]))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor of a checkpoint with this configuration."""
    if isinstance(config, NemotronHConfig):
        yield from _nemotron_h(config)
        return
    if config.architecture.startswith("Lfm"):
        yield from _lfm(config)
        return
    hidden, head_dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    query, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    family = ARCHITECTURES[config.architecture].built_as or config.architecture
    qkv = {"q_proj": ((1 + config.gates_attention) * query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    gated = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    if family == "Phi3ForCausalLM":
        qkv = {"qkv_proj": (query + 2 * kv, hidden)}
    if family in ("Phi3ForCausalLM", "Glm4ForCausalLM"):
        gated = {"gate_up_proj": (2 * inner, hidden), "down_proj": (hidden, inner)}
    if isinstance(config, UngatedConfig):
        del gated["gate_proj"]
    expert = _numbered(inner, hidden)
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    if isinstance(config, Gemma4Config) and (size := config.layer_input_size):
        yield "model.embed_tokens_per_layer.weight", (config.layer_input_words, config.num_layers * size)
        yield "model.per_layer_model_projection.weight", (config.num_layers * size, hidden)
        yield "model.per_layer_projection_norm.weight", (size,)
    for index in range(config.num_layers + config.num_guessing_layers):
        prefix = f"model.layers.{index}"
        if index >= config.num_layers:
            yield from _around_guessing_layer(prefix, config)
            prefix = prefix if config.state is None else "mtp.layers.0"
        norms = ["input_layernorm", "post_attention_layernorm"]
        if family == "Olmo2ForCausalLM":
            norms = ["post_attention_layernorm", "post_feedforward_layernorm"]
        if isinstance(config, ApertusConfig):
            norms = ["attention_layernorm", "feedforward_layernorm"]
            yield from ((f"{prefix}.mlp.act_fn.alpha_{side}", (1,)) for side in "pn")
            yield from ((f"{prefix}.mlp.act_fn.{name}", ()) for name in ("beta", "eps"))
        if config.query_norm is QueryNorm.PROJECTIONS:
            yield f"{prefix}.self_attn.q_norm.weight", (query,)
            yield f"{prefix}.self_attn.k_norm.weight", (kv,)
        if family.startswith("Cohere2"):
            norms = norms[:1]
        if isinstance(config, HybridConfig):
            norms = ["input_layernorm", "pre_ff_layernorm"]
        if family == "Glm4ForCausalLM":
            norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
        elif family.startswith("Gemma"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in norms)
        if config.have_norms_bias:
            yield from ((f"{prefix}.{name}.bias", (hidden,)) for name in norms)
        if index in config.recurrent and config.state is not None and config.state.is_mamba:
            yield from _mamba_layer(f"{prefix}.mamba", config)
        elif index in config.recurrent:
            yield from _recurrent_layer(f"{prefix}.linear_attn", config)
        if isinstance(config, Gemma4Config):
            yield from _gemma4_layer(prefix, index, config)
            continue
        if isinstance(config, DeepseekConfig):
            yield from _latent_attention(f"{prefix}.self_attn", config)
            if index in config.indexed:
                yield from _indexer(f"{prefix}.self_attn.indexer", config)
        elif index in config.attending_layers or index >= config.num_layers:
            yield from _linears(f"{prefix}.self_attn", qkv, config.qkv_bias)
            yield from _linears(f"{prefix}.self_attn", {"o_proj": (hidden, query)}, config.output_bias)
        if config.query_norm in _HEAD_NORMS and index not in config.recurrent:
            yield from ((f"{prefix}.self_attn.{name}.weight", (head_dim,)) for name in _HEAD_NORMS[config.query_norm])
        if isinstance(config, GptOssConfig):
            yield f"{prefix}.self_attn.sinks", (config.num_heads,)
            yield from _stacked_experts(f"{prefix}.mlp", config)
        elif family in ("MixtralForCausalLM", "MiniMaxM2ForCausalLM") and isinstance(config, ExpertsConfig):
            if isinstance(config, RoutedExpertsConfig):
                yield f"{prefix}.block_sparse_moe.e_score_correction_bias", (config.num_experts,)
            yield f"{prefix}.block_sparse_moe.gate.weight", (config.num_experts, hidden)
            for number in range(config.num_experts):
                yield from _linears(f"{prefix}.block_sparse_moe.experts.{number}", expert, False)
        elif isinstance(config, GraniteHybridConfig):
            yield from _granite_experts(prefix, config)
        elif isinstance(config, HybridConfig):
            yield from _linears(f"{prefix}.feed_forward", gated, config.mlp_bias)
        elif isinstance(config, Llama4Config):
            if index in config.dense_layers:
                yield from _linears(f"{prefix}.feed_forward", gated, False)
            else:
                yield from _llama4_experts(f"{prefix}.feed_forward", config)
        elif isinstance(config, RoutedExpertsConfig) and index not in config.dense_layers:
            yield from _deepseek_experts(f"{prefix}.mlp", config)
        elif family == "GraniteMoeForCausalLM" and isinstance(config, ExpertsConfig):
            moe, num = f"{prefix}.block_sparse_moe", config.num_experts
            yield f"{moe}.router.layer.weight", (num, hidden)
            yield f"{moe}.input_linear.weight", (num, 2 * inner, hidden)
            yield f"{moe}.output_linear.weight", (num, hidden, inner)
        elif isinstance(config, ExpertsConfig) and index not in config.dense_layers:
            yield from _qwen_experts(f"{prefix}.mlp", config)
        else:
            yield from _linears(f"{prefix}.mlp", gated, config.mlp_bias)
    yield f"model.{'final_layernorm' if isinstance(config, HybridConfig) else 'norm'}.weight", (hidden,)
    if config.have_norms_bias:
        yield "model.norm.bias", (hidden,)
    if config.head_bias:
        yield "lm_head.bias", (config.vocab_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def _around_guessing_layer(prefix: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    """What a layer for multi-token prediction has beside a decoder layer: also copies of the model's, if not Qwen's."""
    hidden = config.hidden_size
    if config.state is not None:
        norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        yield from ((f"mtp.{name}.weight", (hidden,)) for name in norms)
        yield "mtp.fc.weight", (hidden, 2 * hidden)
        return
    yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in ("enorm", "hnorm", "shared_head.norm"))
    yield f"{prefix}.eh_proj.weight", (hidden, 2 * hidden)
    for name in ("embed_tokens", "shared_head.head"):
        yield f"{prefix}.{name}.weight", (config.vocab_size, hidden)


def _recurrent_layer(prefix: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    state, hidden = config.state, config.hidden_size
    assert state is not None
    heads, values = state.num_heads, state.num_heads * state.value_dim
    stored = {"in_proj_qkvz": state.channels + values, "in_proj_ba": 2 * heads}
    if config.architecture != "Qwen3NextForCausalLM":
        stored = {"in_proj_qkv": state.channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    yield from _linears(prefix, {name: (size, hidden) for name, size in stored.items()}, False)
    yield f"{prefix}.conv1d.weight", (state.channels, 1, state.kernel_size)
    yield from ((f"{prefix}.{name}", (heads,)) for name in ("A_log", "dt_bias"))
    yield f"{prefix}.norm.weight", (state.value_dim,)
    yield f"{prefix}.out_proj.weight", (hidden, values)


def _mamba_layer(prefix: str, config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    state, hidden = config.state, config.hidden_size
    assert state is not None
    heads, values = state.num_heads, state.num_heads * state.value_dim
    yield from _linears(prefix, {"in_proj": (state.channels + values + heads, hidden)}, state.input_bias)
    yield f"{prefix}.conv1d.weight", (state.channels, 1, state.kernel_size)
    if state.has_bias:
        yield f"{prefix}.conv1d.bias", (state.channels,)
    yield from ((f"{prefix}.{name}", (heads,)) for name in ("A_log", "dt_bias", "D"))
    if state.norm is not StateNorm.NOWHERE:
        yield f"{prefix}.norm.weight", (values,)
    yield from _linears(prefix, {"out_proj": (hidden, values)}, state.output_bias)


def _nemotron_h(config: NemotronHConfig) -> Iterator[tuple[str, Shape]]:
    hidden, query, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, query)}
    yield "backbone.embeddings.weight", (config.vocab_size, hidden)
    for index in range(config.num_layers):
        yield f"backbone.layers.{index}.norm.weight", (hidden,)
        prefix, inner = f"backbone.layers.{index}.mixer", config.intermediate_size
        if index in config.recurrent:
            yield from _mamba_layer(prefix, config)
        elif index in config.attending_layers or index >= config.num_layers:
            yield from _linears(prefix, attention, False)
        elif index in config.plain_layers:
            yield from _linears(prefix, {"up_proj": (inner, hidden), "down_proj": (hidden, inner)}, config.mlp_bias)
        else:
            yield from _nemotron_h_experts(prefix, config)
    yield "backbone.norm_f.weight", (hidden,)
    yield "lm_head.weight", (config.vocab_size, hidden)


def _nemotron_h_experts(prefix: str, config: NemotronHConfig) -> Iterator[tuple[str, Shape]]:
    hidden, latent, bias = config.hidden_size, config.latent_size, config.mlp_bias
    width, inner, shared = latent or hidden, config.expert_size, config.shared_expert_size
    yield f"{prefix}.gate.weight", (config.num_experts, hidden)
    yield f"{prefix}.gate.e_score_correction_bias", (config.num_experts,)
    for number in range(config.num_experts):
        each = {"up_proj": (inner, width), "down_proj": (width, inner)}
        yield from _linears(f"{prefix}.experts.{number}", each, False)
    wide = {"up_proj": (shared, hidden), "down_proj": (hidden, shared)}
    yield from _linears(f"{prefix}.shared_experts", wide, bias)
    if latent is not None:
        yield from _linears(prefix, {"fc1_latent_proj": (latent, hidden), "fc2_latent_proj": (hidden, latent)}, bias)


def _lfm(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    is_newer = config.architecture.startswith("Lfm3")
    hidden, query, kv = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attention = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    attention["o_proj" if is_newer else "out_proj"] = (hidden, query)
    norms = ["operator_norm", "ffn_norm", "post_operator_norm", "post_ffn_norm"][: config.norms_per_layer]
    yield "model.embed_tokens.weight", (config.vocab_size, hidden)
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in norms)
        if config.state is not None and index in config.recurrent:
            shapes: dict[str, Shape] = {"in_proj": (3 * hidden, hidden), "out_proj": (hidden, hidden)}
            shapes["conv"] = (hidden, 1, config.state.kernel_size)
            yield from _linears(f"{prefix}.conv", shapes, config.state.has_bias)
        else:
            yield from _linears(f"{prefix}.self_attn", attention, config.qkv_bias)
            end = "norm" if is_newer else "layernorm"
            yield from ((f"{prefix}.self_attn.{name}_{end}.weight", (config.head_dim,)) for name in "qk")
            if config.gates_heads:
                yield f"{prefix}.self_attn.gate_proj.weight", (config.num_heads, hidden)
        if isinstance(config, ExpertsConfig) and index not in config.dense_layers:
            yield from _lfm2_experts(f"{prefix}.feed_forward", config)
        else:
            yield from _linears(f"{prefix}.feed_forward", _numbered(config.intermediate_size, hidden), False)
    yield "model.embedding_norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, hidden)


def _lfm2_experts(prefix: str, config: ExpertsConfig) -> Iterator[tuple[str, Shape]]:
    yield f"{prefix}.gate.weight", (config.num_experts, config.hidden_size)
    if isinstance(config, RoutedExpertsConfig) and config.has_score_bias:
        yield f"{prefix}.expert_bias", (config.num_experts,)
    for number in range(config.num_experts):
        shapes = _numbered(config.expert_size, config.hidden_size)
        yield from _linears(f"{prefix}.experts.{number}", shapes, False)


def _numbered(inner: int, hidden: int) -> dict[str, Shape]:
    """A gated feed-forward's projections: gate, up and down."""
    return {"w1": (inner, hidden), "w3": (inner, hidden), "w2": (hidden, inner)}


def _granite_experts(prefix: str, config: GraniteHybridConfig) -> Iterator[tuple[str, Shape]]:
    hidden, inner, num = config.hidden_size, config.expert_size, config.num_experts
    yield f"{prefix}.shared_mlp.input_linear.weight", (2 * config.shared_expert_size, hidden)
    yield f"{prefix}.shared_mlp.output_linear.weight", (hidden, config.shared_expert_size)
    if num:
        yield f"{prefix}.block_sparse_moe.router.layer.weight", (num, hidden)
        yield f"{prefix}.block_sparse_moe.input_linear.weight", (num, 2 * inner, hidden)
        yield f"{prefix}.block_sparse_moe.output_linear.weight", (num, hidden, inner)


def _latent_attention(prefix: str, config: DeepseekConfig) -> Iterator[tuple[str, Shape]]:
    hidden, heads, bias = config.hidden_size, config.num_heads, config.output_bias
    query = heads * (config.plain_dim + config.turned_dim)
    if config.query_rank is None:
        yield f"{prefix}.q_proj.weight", (query, hidden)
    else:
        yield from _linears(prefix, {"q_a_proj": (config.query_rank, hidden)}, bias)
        yield f"{prefix}.q_a_layernorm.weight", (config.query_rank,)
        yield f"{prefix}.q_b_proj.weight", (query, config.query_rank)
    yield from _linears(prefix, {"kv_a_proj_with_mqa": (config.head_dim, hidden)}, bias)
    yield f"{prefix}.kv_a_layernorm.weight", (config.latent_dim,)
    yield f"{prefix}.kv_b_proj.weight", (heads * (config.plain_dim + config.value_dim), config.latent_dim)
    yield from _linears(prefix, {"o_proj": (hidden, heads * config.value_dim)}, bias)


def _indexer(prefix: str, config: DeepseekConfig) -> Iterator[tuple[str, Shape]]:
    assert config.query_rank is not None
    heads, size, hidden = config.num_index_heads, config.index_dim, config.hidden_size
    shapes = {"wq_b": (heads * size, config.query_rank), "wk": (size, hidden), "weights_proj": (heads, hidden)}
    yield from _linears(prefix, shapes, False)
    yield from ((f"{prefix}.k_norm.{kind}", (size,)) for kind in ("weight", "bias"))


def _gemma4_layer(prefix: str, index: int, config: Gemma4Config) -> Iterator[tuple[str, Shape]]:
    """What a layer has besides the four normalisations."""
    hidden, (kv_heads, head_dim) = config.hidden_size, config.kv_of(index)
    query, kv, size = config.num_heads * head_dim, kv_heads * head_dim, config.layer_input_size
    qkv = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
    named = dict(list(qkv.items())[: config.num_projections(index)])
    attention = f"{prefix}.self_attn"
    yield from _linears(attention, {**named, "o_proj": (hidden, query)}, config.qkv_bias)
    yield from ((f"{attention}.{name}.weight", (head_dim,)) for name in ("q_norm", "k_norm")[: len(named)])
    yield from _linears(f"{prefix}.mlp", _gated(hidden, config.inner_size(index)), False)
    yield f"{prefix}.layer_scalar", (1,)
    if size:
        yield f"{prefix}.per_layer_input_gate.weight", (size, hidden)
        yield f"{prefix}.per_layer_projection.weight", (hidden, size)
        yield f"{prefix}.post_per_layer_input_norm.weight", (hidden,)
    if num := config.num_experts:
        yield f"{prefix}.router.scale", (hidden,)
        yield f"{prefix}.router.per_expert_scale", (num,)
        yield f"{prefix}.router.proj.weight", (num, hidden)
        yield f"{prefix}.experts.gate_up_proj", (num, 2 * config.expert_size, hidden)
        yield f"{prefix}.experts.down_proj", (num, hidden, config.expert_size)
        names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in names)


def _deepseek_experts(prefix: str, config: RoutedExpertsConfig) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    names = _ROUTED_NAMES.get(config.architecture, ("gate", "gate.e_score_correction_bias", "shared_experts"))
    router, bias, shared = (f"{prefix}.{name}" for name in names)
    yield f"{router}.weight", (config.num_experts, hidden)
    if config.has_score_bias:
        yield bias, (1, config.num_experts) if config.is_softmax else (config.num_experts,)
    if config.architecture == "Mistral4ForCausalLM":
        yield f"{prefix}.experts.gate_up_proj", (config.num_experts, 2 * config.expert_size, hidden)
        yield f"{prefix}.experts.down_proj", (config.num_experts, hidden, config.expert_size)
    else:
        for number in range(config.num_experts):
            yield from _linears(f"{prefix}.experts.{number}", _gated(hidden, config.expert_size), False)
    if inner := config.num_shared_experts * config.expert_size:
        yield from _linears(shared, _gated(hidden, inner), False)


def _llama4_experts(prefix: str, config: Llama4Config) -> Iterator[tuple[str, Shape]]:
    num, hidden, inner = config.num_experts, config.hidden_size, config.expert_size
    yield f"{prefix}.router.weight", (num, hidden)
    yield f"{prefix}.experts.gate_up_proj", (num, hidden, 2 * inner)
    yield f"{prefix}.experts.down_proj", (num, inner, hidden)
    yield from _linears(f"{prefix}.shared_expert", _gated(hidden, inner), False)


def _qwen_experts(prefix: str, config: ExpertsConfig) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    yield f"{prefix}.gate.weight", (config.num_experts, hidden)
    for number in range(config.num_experts):
        yield from _linears(f"{prefix}.experts.{number}", _gated(hidden, config.expert_size), False)
    if config.shared_expert_size:
        yield from _linears(f"{prefix}.shared_expert", _gated(hidden, config.shared_expert_size), False)
        yield f"{prefix}.shared_expert_gate.weight", (1, hidden)


def _stacked_experts(prefix: str, config: GptOssConfig) -> Iterator[tuple[str, Shape]]:
    num, hidden, inner = config.num_experts, config.hidden_size, config.intermediate_size
    yield from _linears(prefix, {"router": (num, hidden)}, True)
    for name, shape in (("gate_up_proj", (hidden, 2 * inner)), ("down_proj", (inner, hidden))):
        yield f"{prefix}.experts.{name}", (num, *shape)
        yield f"{prefix}.experts.{name}_bias", (num, shape[1])


def _gated(hidden: int, inner: int) -> dict[str, Shape]:
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


def _linears(prefix: str, shapes: Mapping[str, Shape], bias: bool) -> Iterator[tuple[str, Shape]]:
    for name, shape in shapes.items():
        yield f"{prefix}.{name}.weight", shape
        if bias:
            yield f"{prefix}.{name}.bias", shape[:1]


def _random(name: str, shape: Shape, generator: torch.Generator, norm: float) -> torch.Tensor:
    """`norm`: about what a normalisation's weights are."""
    values = torch.randn(shape, generator=generator)
    if not shape:
        return torch.tensor(-1e-6 if name.endswith(".eps") else 0.5)
    if len(shape) == 1:
        norm = 1.0 if name.endswith("linear_attn.norm.weight") else norm
        return 0.1 * values if name.endswith(".bias") else norm + 0.1 * values
    return values / math.sqrt(shape[1])


def _save_shards(folder: Path, tensors: dict[str, torch.Tensor], num_shards: int) -> None:
    weight_map = {
        name: f"model-{1 + index % num_shards:05}-of-{num_shards:05}.safetensors" for index, name in enumerate(tensors)
    }
    for file in sorted(set(weight_map.values())):
        part = {name: tensors[name] for name, place in weight_map.items() if place == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

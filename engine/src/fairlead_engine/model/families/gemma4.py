"""Gemma 4, the decoder of its text: layers differ in heads, the last layers read keys and values of earlier layers, and
some models have inputs of each layer, or experts beside the feed-forward."""

import torch

from fairlead_common.models.families.gemma4 import Gemma4Config
from fairlead_engine.kernels.attention.scoring import Scoring
from fairlead_engine.kernels.gates import GELU, gelu_mul
from fairlead_engine.kernels.norm_rope_store import HeadNorm
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder, TokenEmbedding
from fairlead_engine.model.layer_inputs import (
    ExpertsBeside,
    InputsEmbedding,
    LayerInput,
    LayerInputs,
    NormedValues,
    ReadingAttention,
    ScaledLayer,
)
from fairlead_engine.model.layers import Attention, AttentionLayer, DecoderLayer, FeedForward, RMSNorm
from fairlead_engine.model.shard import scaled
from fairlead_engine.model.weights import NormNames, Weights, layer_index

_DENSE = "pre_feedforward_layernorm"
_UNREAD = ("k_proj", "v_proj", "k_norm", "v_norm")
"""Of layers that read what others stored; some files have them."""


def build(weights: Weights, config: Gemma4Config) -> Decoder:
    norms = NormNames("input_layernorm", "post_attention_layernorm", _DENSE, "post_feedforward_layernorm")

    def finished(prefix: str, layer: DecoderLayer) -> DecoderLayer:
        index = layer_index(prefix)
        return ScaledLayer(
            layer.norms, layer.attention, layer.feed_forward,
            factor=weights.offsets(f"{prefix}.layer_scalar", 1, is_rounded=True),
            hidden_size=config.hidden_size, is_last=index == config.num_layers - 1,
            layer_input=_layer_input(weights, config, prefix) if config.layer_input_size else None,
        )  # fmt: skip

    return weights.decoder(
        attention=lambda prefix: _attention(weights, config, prefix),
        feed_forward=lambda prefix: _feed_forward(weights, config, prefix),
        norms=norms._replace(before_feed_forward=None) if config.num_experts else norms,
        finished=finished,
        embed=lambda embedding: _embedding(weights, config, embedding),
    )


def _embedding(weights: Weights, config: Gemma4Config, own: TokenEmbedding) -> TokenEmbedding:
    if not config.layer_input_size:
        return own
    size = config.layer_input_size
    columns = config.num_layers * size
    inputs = LayerInputs(
        weights.table("model.embed_tokens_per_layer", config.layer_input_words, columns, scale=size**0.5),
        weights.linear({"model.per_layer_model_projection": columns}, config.hidden_size, is_sensitive=True),
        weights.norm("model.per_layer_projection_norm", size),
    )
    return InputsEmbedding(own.weight, own.first, own.shard, own.scale, inputs)


def _layer_input(weights: Weights, config: Gemma4Config, prefix: str) -> LayerInput:
    hidden, size = config.hidden_size, config.layer_input_size
    return LayerInput(
        weights.linear({f"{prefix}.per_layer_input_gate": size}, hidden),
        weights.linear({f"{prefix}.per_layer_projection": hidden}, size),
        weights.norm(f"{prefix}.post_per_layer_input_norm", hidden),
        hidden + layer_index(prefix) * size,
        size,
    )


def _attention(weights: Weights, config: Gemma4Config, prefix: str) -> AttentionLayer:
    """Scores are not scaled by the size of a head, as backends do."""
    layer, prefix = layer_index(prefix), f"{prefix}.self_attn"
    num_kv_heads, head_dim = config.kv_of(layer)
    heads, kv_heads = weights.shard.part(config.num_heads), weights.shard.key_heads(num_kv_heads)
    query_part, num_here = scaled(heads, head_dim), heads.stop - heads.start
    names = ("q_proj", "k_proj", "v_proj")[: config.num_projections(layer)]
    sizes = (config.num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
    parts = [query_part, *[scaled(kv_heads, head_dim)] * 2]
    projection = weights.linear(
        {f"{prefix}.{name}": size for name, size in zip(names, sizes, strict=False)}, config.hidden_size,
        bias=config.qkv_bias, row_parts=parts[: len(names)],
    )  # fmt: skip
    output = weights.linear(
        {f"{prefix}.o_proj": config.hidden_size}, config.num_heads * head_dim, bias=config.output_bias,
        column_part=query_part,
    )  # fmt: skip
    norm, scoring = weights.norm(f"{prefix}.q_norm", head_dim), Scoring(config.windows[layer])
    scale, is_local = head_dim**0.5, config.is_local(layer)
    if config.is_reader(layer):
        for name in _UNREAD:
            weights.skip(f"{prefix}.{name}.")
        return ReadingAttention(projection, output, norm, num_here, head_dim, scoring, scale, is_local)
    ones = torch.ones(head_dim, dtype=weights.dtype, device=weights.device)
    key_norm, eps = weights.norm(f"{prefix}.k_norm", head_dim), config.rms_norm_eps
    own = Attention(
        projection, output, HeadNorm(norm.weight, key_norm.weight, eps), num_here, kv_heads.stop - kv_heads.start,
        head_dim, scoring, scale, is_local,
    )  # fmt: skip
    return NormedValues(own, RMSNorm(ones, eps), are_keys=len(names) == 2)


def _feed_forward(weights: Weights, config: Gemma4Config, prefix: str) -> FeedForward:
    hidden, inner = config.hidden_size, config.inner_size(layer_index(prefix))
    dense = weights.feed_forward(f"{prefix}.mlp", inner=inner, combine=gelu_mul)
    if not config.num_experts:
        return dense
    weights.unstack_experts(prefix, config.num_experts, config.expert_size, is_transposed=False)
    factors = weights.offsets(f"{prefix}.router.per_expert_scale", config.num_experts)
    experts = weights.experts(
        prefix, config.num_experts, ExpertRouting(config.num_experts_per_token, factors=factors),
        inner=config.expert_size, router="router.proj", activation=GELU,
    )  # fmt: skip
    scale = weights.offsets(f"{prefix}.router.scale", hidden, is_rounded=True).float() * hidden**-0.5
    names = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
    before_experts, after_dense, after_experts = (weights.norm(f"{prefix}.{name}", hidden) for name in names)
    return ExpertsBeside(
        dense, experts, weights.norm(f"{prefix}.{_DENSE}", hidden), after_dense, before_experts, after_experts,
        RMSNorm(scale.to(weights.dtype), config.rms_norm_eps),
    )  # fmt: skip

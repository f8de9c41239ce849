"""LFM2 and LFM3: layers of a short convolution or of attention, with a feed-forward or experts each."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import torch

from fairlead_common.models.families.experts import RoutedExpertsConfig
from fairlead_common.models.model_config import ModelConfig, StateShape
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.recurrent import convolution_kernel
from fairlead_engine.model.layers import Attention, AttentionLayer, FeedForward
from fairlead_engine.model.recurrent import HeadGatedAttention, ShortConvolution
from fairlead_engine.model.weights import AttentionNames, NormNames, OuterNames, Weights, layer_index

_ATTENTION = AttentionNames(output="out_proj", query_norm="q_layernorm", key_norm="k_layernorm")
_NORMS = NormNames(before_attention="operator_norm", before_feed_forward="ffn_norm")
_SANDWICH_NORMS = NormNames("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm")
_OUTER = OuterNames(final_norm="model.embedding_norm")


def build_lfm2(weights: Weights, config: ModelConfig) -> Decoder:
    return _build(weights, config, partial(weights.attention, names=_ATTENTION), _NORMS)


def build_lfm3(weights: Weights, config: ModelConfig) -> Decoder:
    """With gates of heads, and outputs of a layer's parts normalised, unless the model has neither."""
    norms = _NORMS if config.norms_per_layer == 2 else _SANDWICH_NORMS

    def attention(prefix: str) -> Attention:
        plain = weights.attention(prefix)
        if not config.gates_heads:
            return plain
        heads = weights.shard.part(config.num_heads)
        name = f"{prefix}.self_attn.g_proj"
        if weights.has(published := f"{prefix}.self_attn.gate_proj"):
            weights.divide(published, {name: config.num_heads}, are_adapted=True)
        gate = weights.linear(
            {name: config.num_heads}, config.hidden_size, is_sensitive=True, adapts=True, row_parts=[heads]
        )
        return HeadGatedAttention(**{each.name: getattr(plain, each.name) for each in fields(plain)}, gate=gate)

    return _build(weights, config, attention, norms)


def _build(
    weights: Weights, config: ModelConfig, attends: Callable[[str], AttentionLayer], norms: NormNames
) -> Decoder:
    def attention(prefix: str) -> AttentionLayer:
        if layer_index(prefix) in config.recurrent:
            assert config.state is not None
            return _convolution(weights, f"{prefix}.conv", config.hidden_size, config.state)
        return attends(prefix)

    feed_forward = partial(_feed_forward, weights, config)
    return weights.decoder(attention=attention, feed_forward=feed_forward, norms=norms, outer=_OUTER)


def _convolution(weights: Weights, prefix: str, hidden: int, state: StateShape) -> ShortConvolution:
    own, has_bias = weights.shard.part(hidden), state.has_bias
    rows, parts = weights.pieces(f"{prefix}.in_proj", [(hidden, own)] * 3)
    return ShortConvolution(
        project=weights.linear(rows, hidden, bias=has_bias, row_parts=parts),
        output=weights.linear({f"{prefix}.out_proj": hidden}, hidden, bias=has_bias, column_part=own),
        kernel=convolution_kernel(weights, f"{prefix}.conv.weight", state, [(hidden, own)]),
        bias=weights.offsets(f"{prefix}.conv.bias", hidden, parts=[own]) if has_bias else None,
        num_channels=state.of_ranks(weights.shard.size).channels,
    )


def _feed_forward(weights: Weights, config: ModelConfig, prefix: str) -> FeedForward:
    layer, prefix = layer_index(prefix), f"{prefix}.feed_forward"
    if not isinstance(config, RoutedExpertsConfig) or layer in config.dense_layers:
        return weights.feed_forward(prefix, gate="w1", up="w3", down="w2")
    num, inner = config.num_experts, config.expert_size
    bias = torch.zeros(num, device=weights.device)  # with which scores are sigmoids
    if config.has_score_bias:
        bias = weights.offsets(f"{prefix}.expert_bias", num)
    routing = ExpertRouting(config.num_experts_per_token, config.is_normalised, scale=config.routed_scale, bias=bias)
    return weights.experts(prefix, num, routing, inner=inner, gate="w1", up="w3", down="w2")

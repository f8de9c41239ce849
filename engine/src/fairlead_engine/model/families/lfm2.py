"""LFM2: layers of a short convolution or of attention, with a feed-forward or experts each."""

from functools import partial

import torch

from fairlead_common.models.families.experts import RoutedExpertsConfig
from fairlead_common.models.model_config import ModelConfig, StateShape
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.recurrent import convolution_kernel
from fairlead_engine.model.layers import AttentionLayer, FeedForward
from fairlead_engine.model.recurrent import ShortConvolution
from fairlead_engine.model.weights import AttentionNames, NormNames, OuterNames, Weights, layer_index

_ATTENTION = AttentionNames(output="out_proj", query_norm="q_layernorm", key_norm="k_layernorm")
_NORMS = NormNames(before_attention="operator_norm", before_feed_forward="ffn_norm")
_OUTER = OuterNames(final_norm="model.embedding_norm")


def build(weights: Weights, config: ModelConfig) -> Decoder:
    def attention(prefix: str) -> AttentionLayer:
        if layer_index(prefix) in config.recurrent:
            assert config.state is not None
            return _convolution(weights, f"{prefix}.conv", config.hidden_size, config.state)
        return weights.attention(prefix, names=_ATTENTION)

    feed_forward = partial(_feed_forward, weights, config)
    return weights.decoder(attention=attention, feed_forward=feed_forward, norms=_NORMS, outer=_OUTER)


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

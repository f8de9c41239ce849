"""Families with Mamba-2's layers beside attention: Bamba, and Falcon-H1, whose layers have both and factors
everywhere."""

import torch
from torch import Tensor

from fairlead_common.models.families.hybrids import FalconH1Config, HybridConfig
from fairlead_common.models.model_config import StateShape
from fairlead_engine.kernels.gates import scaled_silu_mul
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.recurrent import mamba_layer
from fairlead_engine.model.layers import AttentionLayer, FeedForward, ScaledOutputs
from fairlead_engine.model.recurrent import JointLayer
from fairlead_engine.model.weights import NormNames, OuterNames, Weights, layer_index

_NORMS = NormNames(before_feed_forward="pre_ff_layernorm")
_OUTER = OuterNames(final_norm="model.final_layernorm")


def build_bamba(weights: Weights, config: HybridConfig) -> Decoder:
    state = config.state
    assert state is not None

    def attention(prefix: str) -> AttentionLayer:
        if layer_index(prefix) in config.recurrent:
            return mamba_layer(weights, f"{prefix}.mamba", config.hidden_size, state)
        return weights.attention(prefix)

    return weights.decoder(
        attention=attention,
        feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.feed_forward", bias=config.mlp_bias),
        norms=_NORMS,
        outer=_OUTER,
    )


def build_falcon_h1(weights: Weights, config: FalconH1Config) -> Decoder:
    state = config.state
    assert state is not None
    factors = _projection_factors(config, state.of_ranks(weights.shard.size)).to(weights.device, weights.dtype)

    def attention(prefix: str) -> JointLayer:
        return JointLayer(
            attention=weights.attention(prefix),
            recurrent=mamba_layer(weights, f"{prefix}.mamba", config.hidden_size, state, factors),
            attention_factors=config.attention_factors,
            recurrent_factors=config.state_factors,
        )

    def feed_forward(prefix: str) -> FeedForward:
        made = weights.feed_forward(
            f"{prefix}.feed_forward",
            bias=config.mlp_bias,
            combine=lambda gate_up: scaled_silu_mul(gate_up, config.gate_factor),
        )
        return ScaledOutputs(made, config.down_factor)

    return weights.decoder(attention=attention, feed_forward=feed_forward, norms=_NORMS, outer=_OUTER)


def _projection_factors(config: FalconH1Config, state: StateShape) -> Tensor:
    """float32, of each row that a recurrent part projects: gates, values, keys, queries and steps."""
    values, keys = state.num_heads * state.value_dim, state.num_key_heads * state.key_dim
    sizes = torch.tensor([values, values, keys, keys, state.num_heads])
    return torch.tensor(config.projection_factors).repeat_interleave(sizes)

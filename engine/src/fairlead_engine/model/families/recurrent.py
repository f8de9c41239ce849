"""Families whose layers keep a state of each sequence, except every few: Qwen3-Next and Qwen3.5."""

from fairlead_common.models.families.experts import QwenExpertsConfig
from fairlead_common.models.model_config import ModelConfig, StateShape
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.experts import qwen_feed_forward
from fairlead_engine.model.layers import AttentionLayer
from fairlead_engine.model.recurrent import GatedDeltaNet
from fairlead_engine.model.weights import Weights, layer_index


def build_qwen3_next(weights: Weights, config: QwenExpertsConfig) -> Decoder:
    return _build(weights, config, is_grouped=True)


def build_qwen3_5(weights: Weights, config: ModelConfig) -> Decoder:
    return _build(weights, config, is_grouped=False)


def _build(weights: Weights, config: ModelConfig, *, is_grouped: bool) -> Decoder:
    """`is_grouped`: projections of a recurrent layer are stored as two, by key head."""
    state = config.state
    assert state is not None
    weights.skip("mtp.")  # layers that guess a token further

    def attention(prefix: str) -> AttentionLayer:
        if layer_index(prefix) not in config.recurrent:
            return weights.attention(prefix)
        return _recurrent_layer(weights, f"{prefix}.linear_attn", config, state, is_grouped)

    if isinstance(config, QwenExpertsConfig):
        return weights.decoder(attention=attention, feed_forward=qwen_feed_forward(weights, config))
    return weights.decoder(attention=attention, feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"))


def _recurrent_layer(
    weights: Weights, prefix: str, config: ModelConfig, state: StateShape, is_grouped: bool
) -> GatedDeltaNet:
    heads, values = state.num_heads, state.num_heads * state.value_dim
    if is_grouped:
        wide, narrow = {"in_proj_qkvz": state.channels + values}, {"in_proj_ba": 2 * heads}
    else:
        wide = {"in_proj_qkv": state.channels, "in_proj_z": values}
        narrow = {"in_proj_b": heads, "in_proj_a": heads}
    kernel = weights.offsets(f"{prefix}.conv1d.weight", state.channels, 1, state.kernel_size)
    return GatedDeltaNet(
        project=weights.linear({f"{prefix}.{name}": size for name, size in wide.items()}, config.hidden_size),
        modulate=weights.linear(
            {f"{prefix}.{name}": size for name, size in narrow.items()}, config.hidden_size, is_sensitive=True
        ),
        is_grouped=is_grouped,
        output=weights.linear({f"{prefix}.out_proj": config.hidden_size}, values),
        kernel=kernel.squeeze(1).T.contiguous(),
        rates=weights.offsets(f"{prefix}.A_log", heads).exp(),
        offsets=weights.offsets(f"{prefix}.dt_bias", heads),
        norm=weights.norm(f"{prefix}.norm", state.value_dim, offset=0.0).weight,
        eps=config.rms_norm_eps,
        shape=state,
    )

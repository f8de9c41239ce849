"""Families whose layers keep a state of each sequence, except every few: Qwen3-Next, Qwen3.5 and
Granite 4."""

from torch import Tensor

from fairlead_common.models.families.experts import QwenExpertsConfig
from fairlead_common.models.families.recurrent import GraniteHybridConfig
from fairlead_common.models.model_config import ModelConfig, StateNorm, StateShape
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.experts import qwen_feed_forward
from fairlead_engine.model.layers import AttentionLayer, FeedForward, GatedFeedForward, SharedExpert
from fairlead_engine.model.recurrent import GatedDeltaNet, Mamba2
from fairlead_engine.model.weights import GuessingNames, Weights, layer_index

_GUESSING = GuessingNames(
    "mtp_num_hidden_layers, or num_nextn_predict_layers",
    "mtp.layers.0",
    "mtp.fc",
    "mtp.pre_fc_norm_embedding",
    "mtp.pre_fc_norm_hidden",
    "mtp.norm",
)
"""A layer with attention, whichever of the model's layers recur."""


def build_qwen(weights: Weights, config: ModelConfig) -> Decoder:
    state = config.state
    assert state is not None
    weights.skip("mtp.")  # layers that guess a token further, where they are not wanted
    guessing = _GUESSING if config.num_guessing_layers else None

    def attention(prefix: str) -> AttentionLayer:
        if prefix == _GUESSING.layer or layer_index(prefix) not in config.recurrent:
            return weights.attention(prefix)
        return _recurrent_layer(weights, f"{prefix}.linear_attn", config, state)

    if isinstance(config, QwenExpertsConfig):
        experts = qwen_feed_forward(weights, config)
        return weights.decoder(attention=attention, feed_forward=experts, guessing=guessing)
    return weights.decoder(
        attention=attention, feed_forward=lambda prefix: weights.feed_forward(f"{prefix}.mlp"), guessing=guessing
    )


def _recurrent_layer(weights: Weights, prefix: str, config: ModelConfig, state: StateShape) -> GatedDeltaNet:
    """Projections are stored as four, or as two by key head."""
    heads, values = state.num_heads, state.num_heads * state.value_dim
    if is_grouped := weights.has(f"{prefix}.in_proj_qkvz"):
        wide, narrow = {"in_proj_qkvz": state.channels + values}, {"in_proj_ba": 2 * heads}
    else:
        wide = {"in_proj_qkv": state.channels, "in_proj_z": values}
        narrow = {"in_proj_b": heads, "in_proj_a": heads}
    kernel = weights.offsets(f"{prefix}.conv1d.weight", state.channels, 1, state.kernel_size)
    return GatedDeltaNet(
        project=weights.linear({f"{prefix}.{name}": size for name, size in wide.items()}, config.hidden_size),
        modulate=weights.linear(
            {f"{prefix}.{name}": size for name, size in narrow.items()},
            config.hidden_size,
            is_sensitive=True,
            adapts=True,
        ),
        is_grouped=is_grouped,
        output=weights.linear({f"{prefix}.out_proj": config.hidden_size}, values),
        kernel=kernel.squeeze(1).T.contiguous(),
        rates=weights.offsets(f"{prefix}.A_log", heads).exp(),
        offsets=weights.offsets(f"{prefix}.dt_bias", heads),
        norm=weights.norm(f"{prefix}.norm", state.value_dim, offset=0.0).weight,
        shape=state,
    )


def build_granite_hybrid(weights: Weights, config: GraniteHybridConfig) -> Decoder:
    state, hidden = config.state, config.hidden_size
    assert state is not None

    def attention(prefix: str) -> AttentionLayer:
        return (
            mamba_layer(weights, f"{prefix}.mamba", hidden, state)
            if layer_index(prefix) in config.recurrent
            else (weights.attention(prefix))
        )

    def feed_forward(prefix: str) -> FeedForward:
        inner, part = config.shared_expert_size, weights.shard.part(config.shared_expert_size)
        both = {f"{prefix}.shared_mlp.input_linear": 2 * inner}
        if not weights.has(*both):
            both = {f"{prefix}.shared_mlp.{name}_proj": inner for name in ("gate", "up")}
        shared = GatedFeedForward(
            gate_up=weights.linear(both, hidden),
            down=weights.linear({f"{prefix}.shared_mlp.output_linear": hidden}, inner, column_part=part),
        )
        if not config.num_experts:
            return shared
        moe, inner = f"{prefix}.block_sparse_moe", config.expert_size
        weights.unstack_experts(
            moe, config.num_experts, inner, gate_up="input_linear.weight", down="output_linear.weight"
        )
        routing = ExpertRouting(config.num_experts_per_token)
        return SharedExpert(
            weights.experts(moe, config.num_experts, routing, inner=inner, router="router.layer"), shared
        )

    return weights.decoder(attention=attention, feed_forward=feed_forward)


def mamba_layer(weights: Weights, prefix: str, hidden: int, state: StateShape, factors: Tensor | None = None) -> Mamba2:
    """`factors`: of what is projected; None = 1."""
    heads, values = state.num_heads, state.num_heads * state.value_dim
    kernel = weights.offsets(f"{prefix}.conv1d.weight", state.channels, 1, state.kernel_size)
    rows = {f"{prefix}.in_proj": state.channels + values + heads}
    return Mamba2(
        project=weights.linear(rows, hidden, bias=state.input_bias),
        output=weights.linear({f"{prefix}.out_proj": hidden}, values, bias=state.output_bias),
        kernel=kernel.squeeze(1).T.contiguous(),
        bias=weights.offsets(f"{prefix}.conv1d.bias", state.channels) if state.has_bias else None,
        rates=weights.offsets(f"{prefix}.A_log", heads).exp(),
        offsets=weights.offsets(f"{prefix}.dt_bias", heads),
        passed=weights.offsets(f"{prefix}.D", heads),
        norm=None if state.norm is StateNorm.NOWHERE else weights.norm(f"{prefix}.norm", values).weight,
        shape=state,
        factors=factors,
    )

"""Families whose layers keep a state of each sequence, except every few: Qwen3-Next, Qwen3.5 and
Granite 4."""

from collections.abc import Sequence

from torch import Tensor

from fairlead_common.models.families.experts import QwenExpertsConfig
from fairlead_common.models.families.recurrent import GraniteHybridConfig
from fairlead_common.models.model_config import ModelConfig, StateNorm, StateShape
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.experts import qwen_feed_forward
from fairlead_engine.model.layers import AttentionLayer, FeedForward, GatedFeedForward, SharedExpert
from fairlead_engine.model.recurrent import GatedDeltaNet, Mamba2, StateParts
from fairlead_engine.model.shard import side_by_side
from fairlead_engine.model.vision_tower import VisionTower
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


def build_qwen(weights: Weights, config: ModelConfig, vision: VisionTower | None = None) -> Decoder:
    state = config.state
    assert state is not None
    weights.skip("mtp.")  # layers that guess a token further, where they are not wanted
    guessing = _GUESSING if config.num_guessing_layers else None

    def attention(prefix: str) -> AttentionLayer:
        if prefix == _GUESSING.layer or layer_index(prefix) not in config.recurrent:
            return weights.attention(prefix)
        return _recurrent_layer(weights, f"{prefix}.linear_attn", config, state)

    def feed_forward(prefix: str) -> FeedForward:
        return weights.feed_forward(f"{prefix}.mlp")

    chosen = qwen_feed_forward(weights, config) if isinstance(config, QwenExpertsConfig) else feed_forward
    return weights.decoder(attention=attention, feed_forward=chosen, guessing=guessing, vision=vision)


def _recurrent_layer(weights: Weights, prefix: str, config: ModelConfig, state: StateShape) -> GatedDeltaNet:
    """Projections are stored as four, or as two by key head."""
    heads, keys, values = state.num_heads, state.num_key_heads * state.key_dim, state.num_heads * state.value_dim
    shard, own = weights.shard, StateParts.of(state, weights.shard)
    channels = [(keys, own.keys), (keys, own.keys), (values, own.values)]
    if is_grouped := weights.has(f"{prefix}.in_proj_qkvz"):
        wide, narrow = {f"{prefix}.in_proj_qkvz": state.channels + values}, {f"{prefix}.in_proj_ba": 2 * heads}
        wide_parts, narrow_parts = ([shard.part(sum(sizes.values()))] for sizes in (wide, narrow))
    else:
        wide, wide_parts = weights.pieces(f"{prefix}.in_proj_qkv", channels)
        wide, wide_parts = {**wide, f"{prefix}.in_proj_z": values}, [*wide_parts, own.values]
        narrow, narrow_parts = {f"{prefix}.in_proj_b": heads, f"{prefix}.in_proj_a": heads}, [own.heads, own.heads]
    return GatedDeltaNet(
        project=weights.linear(wide, config.hidden_size, row_parts=wide_parts),
        modulate=weights.linear(narrow, config.hidden_size, is_sensitive=True, adapts=True, row_parts=narrow_parts),
        is_grouped=is_grouped,
        output=weights.linear({f"{prefix}.out_proj": config.hidden_size}, values, column_part=own.values),
        kernel=convolution_kernel(weights, f"{prefix}.conv1d.weight", state, channels),
        rates=weights.offsets(f"{prefix}.A_log", heads, parts=[own.heads]).exp(),
        offsets=weights.offsets(f"{prefix}.dt_bias", heads, parts=[own.heads]),
        norm=weights.norm(f"{prefix}.norm", state.value_dim, offset=0.0).weight,
        shape=state.of_ranks(shard.size),
    )


def convolution_kernel(weights: Weights, name: str, state: StateShape, channels: Sequence[tuple[int, slice]]) -> Tensor:
    """The convolution's weights float32 [kernel_size, channels], of this rank's `channels`."""
    parts = side_by_side(channels)
    return weights.offsets(name, state.channels, 1, state.kernel_size, parts=parts).squeeze(1).T.contiguous()


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
        fused = f"{prefix}.shared_mlp.input_linear"
        if weights.has(fused):
            both, parts = weights.pieces(fused, [(inner, part), (inner, part)])
        else:
            both, parts = {f"{prefix}.shared_mlp.{name}_proj": inner for name in ("gate", "up")}, [part, part]
            if weights.slots is not None:  # adapters know one layer, whatever the file has
                weights.slots.fuse(fused, both)
        shared = GatedFeedForward(
            gate_up=weights.linear(both, hidden, row_parts=parts),
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
    heads, keys, values = state.num_heads, state.num_key_heads * state.key_dim, state.num_heads * state.value_dim
    own, conv = StateParts.of(state, weights.shard), f"{prefix}.conv1d"
    channels, of_heads = [(values, own.values), (keys, own.keys), (keys, own.keys)], [own.heads]
    rows, parts = weights.pieces(f"{prefix}.in_proj", [(values, own.values), *channels, (heads, own.heads)])
    bias = None
    if state.has_bias:
        bias = weights.offsets(f"{conv}.bias", state.channels, parts=side_by_side(channels))
    return Mamba2(
        project=weights.linear(rows, hidden, bias=state.input_bias, row_parts=parts),
        output=weights.linear({f"{prefix}.out_proj": hidden}, values, bias=state.output_bias, column_part=own.values),
        kernel=convolution_kernel(weights, f"{conv}.weight", state, channels),
        bias=bias,
        rates=weights.offsets(f"{prefix}.A_log", heads, parts=of_heads).exp(),
        offsets=weights.offsets(f"{prefix}.dt_bias", heads, parts=of_heads),
        passed=weights.offsets(f"{prefix}.D", heads, parts=of_heads),
        norm=None if state.norm is StateNorm.NOWHERE else weights.norm(f"{prefix}.norm", values, own.values).weight,
        shape=state.of_ranks(weights.shard.size),
        num_groups=state.num_key_heads,
        shard=weights.shard,
        factors=factors,
    )

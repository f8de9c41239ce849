"""Nemotron-H: layers of one kind each, and feed-forwards without gates."""

from fairlead_common.models.families.nemotron_h import NemotronHConfig
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.dense import ungated
from fairlead_engine.model.families.recurrent import mamba_layer
from fairlead_engine.model.layers import (
    Apart,
    AttentionLayer,
    FeedForward,
    LatentExperts,
    Passing,
    SharedExpert,
    SingleLayer,
    SparseExperts,
    UngatedFeedForward,
)
from fairlead_engine.model.weights import NormNames, OuterNames, Weights, layer_index

_NORMS = NormNames("norm", None, None, None)
_OUTER = OuterNames("model.embeddings", "model.norm_f")


def build_nemotron_h(weights: Weights, config: NemotronHConfig) -> Decoder:
    weights.skip("mtp.")  # layers that guess a token further

    def attention(prefix: str) -> AttentionLayer:
        layer = layer_index(prefix)
        if layer in config.recurrent:
            assert config.state is not None
            return mamba_layer(weights, f"{prefix}.mixer", config.hidden_size, config.state)
        if layer in config.attending_layers:
            return weights.attention(prefix, name="mixer")
        return Apart(config.hidden_size)

    def feed_forward(prefix: str) -> FeedForward:
        layer = layer_index(prefix)
        if layer in config.plain_layers:
            return ungated(weights, config, f"{prefix}.mixer", config.intermediate_size)
        return Passing() if layer in config.dense_layers else _experts(weights, config, f"{prefix}.mixer")

    return weights.decoder(attention=attention, feed_forward=feed_forward, norms=_NORMS, kind=SingleLayer, outer=_OUTER)


def _experts(weights: Weights, config: NemotronHConfig, prefix: str) -> SharedExpert:
    """Without grouped products, which know gates alone: each expert is computed by itself."""
    hidden, inner, bias = config.hidden_size, config.expert_size, config.mlp_bias
    width, part = config.latent_size or hidden, weights.shard.part(inner)
    names = [f"{prefix}.experts.{index}" for index in range(config.num_experts)]
    for kind in ("up_proj", "down_proj"):  # stacked in some files
        weights.unstack(f"{prefix}.experts.{kind}", [f"{name}.{kind}" for name in names], is_transposed=False)
    routing = ExpertRouting(
        config.num_experts_per_token, config.is_normalised, num_groups=config.num_groups,
        num_chosen_groups=config.num_chosen_groups, scale=config.routed_scale,
        bias=weights.offsets(f"{prefix}.gate.e_score_correction_bias", config.num_experts),
    )  # fmt: skip
    ups, downs = (
        [{f"{name}.{kind}": size} for name in names] for kind, size in (("up_proj", inner), ("down_proj", width))
    )
    adapters = None
    if weights.slots is not None:
        adapters = weights.slots.adapted_experts(ups, downs, (width, inner), [part], part)
    each = []
    for index, (up_name, down_name) in enumerate(zip(ups, downs, strict=True)):
        up = weights.linear(up_name, width, row_parts=[part], sums=False, adapts=False)
        down = weights.linear(down_name, inner, column_part=part, sums=False, adapts=False)
        if adapters is not None:
            up, down = adapters.adapted(index, up, down)
        each.append(UngatedFeedForward(up=up, down=down))
    router = weights.linear({f"{prefix}.gate": config.num_experts}, hidden, is_sensitive=True, adapts=True)
    experts = SparseExperts(router, tuple(each), routing, weights.shard, adapters.slots if adapters else None)
    shared = ungated(weights, config, f"{prefix}.shared_experts", config.shared_expert_size)
    if config.latent_size is None:
        return SharedExpert(experts, shared)
    narrow = weights.linear({f"{prefix}.fc1_latent_proj": width}, hidden, bias=bias)
    widen = weights.linear({f"{prefix}.fc2_latent_proj": hidden}, width, bias=bias)
    return SharedExpert(LatentExperts(narrow, experts, widen), shared)

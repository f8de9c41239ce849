"""Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2 with many narrow experts, and one that all tokens take."""

from fairlead_engine.kernels.route_top_k import Routing
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import Experts, FeedForward, SharedExpert
from fairlead_engine.model.weights import Weights, layer_index
from fairlead_protocol.models.families.experts import QwenExpertsConfig


def feed_forward(weights: Weights, config: QwenExpertsConfig, prefix: str) -> FeedForward:
    """A layer's `mlp`: its experts, or the only one of a layer without."""
    if layer_index(prefix) in config.dense_layers:
        return weights.feed_forward(f"{prefix}.mlp")
    return weights.experts(
        f"{prefix}.mlp",
        config.num_experts,
        Routing(config.num_experts_per_token, config.is_normalised),
        inner=config.expert_size,
    )


def build(weights: Weights, config: QwenExpertsConfig) -> Decoder:
    def with_shared(prefix: str) -> FeedForward:
        chosen, mlp = feed_forward(weights, config, prefix), f"{prefix}.mlp"
        if not isinstance(chosen, Experts):
            return chosen
        shared = weights.feed_forward(f"{mlp}.shared_expert", inner=config.shared_expert_size)
        gate = weights.linear({f"{mlp}.shared_expert_gate": 1}, config.hidden_size, is_sensitive=True)
        return SharedExpert(chosen, shared, gate)

    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=config.qkv_bias), feed_forward=with_shared
    )

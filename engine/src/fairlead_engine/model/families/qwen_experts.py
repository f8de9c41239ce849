"""Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671), Qwen3-MoE (arXiv 2505.09388): Qwen2 and Qwen3 with many narrow experts,
and in the older ones an expert that all tokens take."""

from fairlead_engine.kernels.route_top_k import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import FeedForward, SharedExpert
from fairlead_engine.model.weights import Weights, layer_index
from fairlead_protocol.models.families.experts import QwenExpertsConfig


def build(weights: Weights, config: QwenExpertsConfig) -> Decoder:
    routing = ExpertRouting(config.num_experts_per_token, config.is_normalised)

    def feed_forward(prefix: str) -> FeedForward:
        mlp = f"{prefix}.mlp"
        if layer_index(prefix) in config.dense_layers:
            return weights.feed_forward(mlp)
        chosen = weights.experts(mlp, config.num_experts, routing, inner=config.expert_size)
        if not config.shared_expert_size:
            return chosen
        shared = weights.feed_forward(f"{mlp}.shared_expert", inner=config.shared_expert_size)
        gate = weights.linear({f"{mlp}.shared_expert_gate": 1}, config.hidden_size, is_sensitive=True)
        return SharedExpert(chosen, shared, gate)

    return weights.decoder(attention=weights.attention, feed_forward=feed_forward)

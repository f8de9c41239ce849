"""Llama 4: experts whose inputs are scaled by sigmoid scores, beside one for all tokens, in all layers or in some.

`Weights.attention` follows the configuration: chunks with positions, and whole contexts without.
"""

import torch

from fairlead_common.models.families.llama4 import Llama4Config
from fairlead_engine.kernels.routes import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import FeedForward, ScaledInputs, SharedExpert
from fairlead_engine.model.weights import Weights, layer_index


def build(weights: Weights, config: Llama4Config) -> Decoder:
    def feed_forward(prefix: str) -> FeedForward:
        layer, inner = f"{prefix}.feed_forward", config.expert_size
        if layer_index(prefix) in config.dense_layers:
            return weights.feed_forward(layer)
        weights.unstack_experts(layer, config.num_experts, inner, is_transposed=True)
        experts = weights.experts(
            layer, config.num_experts, ExpertRouting(1), inner=inner, router="router", are_sides_swapped=True
        )
        bias = torch.zeros(config.num_experts, device=weights.device)
        scores = ExpertRouting(config.num_experts_per_token, normalised=False, bias=bias)
        shared = weights.feed_forward(f"{layer}.shared_expert", inner=inner)
        return SharedExpert(ScaledInputs(experts, scores), shared)

    return weights.decoder(attention=weights.attention, feed_forward=feed_forward)

"""Mixtral (arXiv 2401.04088): in place of one feed-forward layer several experts, of which each token takes a few."""

from fairlead_engine.kernels.route_top_k import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.layers import Experts
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.families.experts import ExpertsConfig


def build(weights: Weights, config: ExpertsConfig) -> Decoder:
    def experts(prefix: str) -> Experts:
        chosen = config.num_experts, ExpertRouting(config.num_experts_per_token)
        return weights.experts(f"{prefix}.block_sparse_moe", *chosen, gate="w1", up="w3", down="w2")

    return weights.decoder(attention=weights.attention, feed_forward=experts)

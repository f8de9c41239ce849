"""gpt-oss (arXiv 2508.10925): experts whose gates are clamped, stored in one tensor, and attention that sees a window
in every other layer and may attend to nothing, by a score of each head."""

from fairlead_engine.kernels.gates import Gate
from fairlead_engine.kernels.route_top_k import ExpertRouting
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.expert_products import ExpertProjections
from fairlead_engine.model.layers import Experts
from fairlead_engine.model.shard import scaled
from fairlead_engine.model.weights import Weights
from fairlead_protocol.models.families.experts import GptOssConfig


def build(weights: Weights, config: GptOssConfig) -> Decoder:
    hidden, inner = config.hidden_size, config.intermediate_size
    part = weights.shard.part(inner)
    gate = Gate(config.gate_alpha, config.gate_limit)

    def experts(prefix: str) -> Experts:
        each = [f"{prefix}.mlp.experts.{index}" for index in range(config.num_experts)]
        for name in ("gate_up_proj", "down_proj"):
            layers = [f"{one}.{name}" for one in each]
            weights.unstack(f"{prefix}.mlp.experts.{name}", layers, is_transposed=True)
        router = weights.linear({f"{prefix}.mlp.router": config.num_experts}, hidden, bias=True, is_sensitive=True)
        routing = ExpertRouting(config.num_experts_per_token)
        projections = [ExpertProjections({f"{one}.gate_up_proj": 2 * inner}, f"{one}.down_proj") for one in each]
        return weights.expert_layer(  # rows of gate and up lie by turns
            router, routing, projections, inner, row_parts=[scaled(part, 2)], bias=True, gate=gate
        )

    return weights.decoder(
        attention=weights.attention,
        feed_forward=experts,
    )

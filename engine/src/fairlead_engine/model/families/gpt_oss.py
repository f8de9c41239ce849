"""gpt-oss (arXiv 2508.10925): experts whose gates are clamped, stored in one tensor, and attention that sees a window
in every other layer and may attend to nothing, by a score of each head."""

from dataclasses import dataclass
from functools import partial

from fairlead_engine.kernels.gates import Gate
from fairlead_engine.kernels.route_top_k import Routing
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.expert_products import ExpertProjections
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.layers import Experts
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.shard import scaled
from fairlead_engine.model.weights import Weights
from fairlead_engine.model.windows import windows_alternating


@dataclass(frozen=True, slots=True, kw_only=True)
class GptOssConfig(ModelConfig):
    num_experts: int
    num_experts_per_token: int
    attention_bias: bool
    """Whether the four attention projections add a bias."""
    gate_alpha: float
    """What a gate is multiplied by within its sigmoid."""
    gate_limit: float
    """The largest gate, and the largest magnitude of what it lets through."""


def parse(fields: JsonFields) -> GptOssConfig:
    windows = partial(windows_alternating, default=128, every=2)
    config = GptOssConfig(
        **parse_shape(fields, num_kv_heads=8, head_dim=64, rms_norm_eps=1e-5, rope_theta=150_000.0, windows=windows),
        num_experts=fields.positive_int("num_local_experts", fields.positive_int("num_experts", 128)),
        num_experts_per_token=fields.positive_int("num_experts_per_tok", 4),
        attention_bias=fields.boolean("attention_bias", True),
        gate_alpha=fields.positive_number("swiglu_alpha", 1.702),
        gate_limit=fields.positive_number("swiglu_limit", 7.0),
    )
    if config.num_experts_per_token > config.num_experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most num_local_experts ({config.num_experts})")
    return config


def build(weights: Weights, config: GptOssConfig) -> Decoder:
    hidden, inner, bias = config.hidden_size, config.intermediate_size, config.attention_bias
    part = weights.shard.part(inner)
    gate = Gate(config.gate_alpha, config.gate_limit)

    def experts(prefix: str) -> Experts:
        each = [f"{prefix}.mlp.experts.{index}" for index in range(config.num_experts)]
        for name in ("gate_up_proj", "down_proj"):
            layers = [f"{one}.{name}" for one in each]
            weights.unstack(f"{prefix}.mlp.experts.{name}", layers, is_transposed=True)
        router = weights.linear({f"{prefix}.mlp.router": config.num_experts}, hidden, bias=True, is_sensitive=True)
        routing = Routing(config.num_experts_per_token)
        projections = [ExpertProjections({f"{one}.gate_up_proj": 2 * inner}, f"{one}.down_proj") for one in each]
        return weights.expert_layer(  # rows of gate and up lie by turns
            router, routing, projections, inner, row_parts=[scaled(part, 2)], bias=True, gate=gate
        )

    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias, has_sinks=True),
        feed_forward=experts,
    )


GPT_OSS = ModelFamily("gpt_oss", parse, build)

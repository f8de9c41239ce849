"""Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2 with many narrow experts, and one that all tokens take."""

from dataclasses import dataclass
from typing import Any

from fairlead_engine.kernels.route_top_k import Routing
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.layers import Experts, FeedForward, SharedExpert
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import Weights, layer_index


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenExpertsConfig(ModelConfig):
    """What Qwen's models with experts have in common; `intermediate_size` is that of layers without."""

    num_experts: int
    num_experts_per_token: int
    expert_size: int
    """Width of each expert."""
    is_normalised: bool
    """Whether the weights of a token's experts sum to 1."""
    dense_layers: frozenset[int]
    """Layers that have one feed-forward instead of experts."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        return {"intermediate_size": self.intermediate_size, "moe_intermediate_size": self.expert_size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2MoeConfig(QwenExpertsConfig):
    shared_expert_size: int
    qkv_bias: bool
    """Whether query, key and value add a bias."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        return {
            "intermediate_size": self.intermediate_size,
            "moe_intermediate_size": self.expert_size,
            "shared_expert_intermediate_size": self.shared_expert_size,
        }


def parse_experts(fields: JsonFields, shape: dict[str, Any], *, expert_size: int, num_experts: int, most: int) -> Any:
    """`shape` with the fields of `QwenExpertsConfig`; the others are the family's defaults, `most` the experts of a
    token. `num_experts` has another name in what newer versions of transformers write."""
    num_experts = fields.positive_int("num_experts", fields.positive_int("num_local_experts", num_experts))
    num_layers, each = shape["num_layers"], fields.positive_int("decoder_sparse_step", 1)
    num_experts_per_token = fields.positive_int("num_experts_per_tok", most)
    if num_experts_per_token > num_experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most num_experts ({num_experts})")
    dense = {*fields.whole_numbers("mlp_only_layers")} | {index for index in range(num_layers) if (index + 1) % each}
    return {
        **shape,
        "num_experts": num_experts,
        "num_experts_per_token": num_experts_per_token,
        "expert_size": fields.positive_int("moe_intermediate_size", expert_size),
        "is_normalised": fields.boolean("norm_topk_prob", False),
        "dense_layers": frozenset(dense),
    }


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


def parse(fields: JsonFields) -> Qwen2MoeConfig:
    shape = parse_experts(fields, parse_shape(fields), expert_size=1408, num_experts=60, most=4)
    return Qwen2MoeConfig(
        **shape,
        shared_expert_size=fields.positive_int("shared_expert_intermediate_size", 5632),
        qkv_bias=fields.boolean("qkv_bias", True),
    )


def build(weights: Weights, config: Qwen2MoeConfig) -> Decoder:
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


QWEN2_MOE = ModelFamily("qwen2_moe", parse, build)

"""Mixtral (arXiv 2401.04088): in place of one feed-forward layer several experts, of which each token takes a few."""

from dataclasses import dataclass

from fairlead_engine.kernels.route_top_k import Routing
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.layers import Experts
from fairlead_engine.model.model_config import ModelConfig, parse_shape
from fairlead_engine.model.weights import Weights
from fairlead_engine.model.windows import windows_everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtralConfig(ModelConfig):
    num_experts: int
    num_experts_per_token: int


def parse(fields: JsonFields) -> MixtralConfig:
    config = MixtralConfig(
        **parse_shape(fields, num_kv_heads=8, rms_norm_eps=1e-5, rope_theta=1e6, windows=windows_everywhere),
        num_experts=fields.positive_int("num_local_experts", 8),
        num_experts_per_token=fields.positive_int("num_experts_per_tok", 2),
    )
    if config.num_experts_per_token > config.num_experts:
        raise fields.invalid("num_experts_per_tok", f"must be at most num_local_experts ({config.num_experts})")
    return config


def build(weights: Weights, config: MixtralConfig) -> Decoder:
    def experts(prefix: str) -> Experts:
        chosen = config.num_experts, Routing(config.num_experts_per_token)
        return weights.experts(f"{prefix}.block_sparse_moe", *chosen, gate="w1", up="w3", down="w2")

    return weights.decoder(attention=weights.attention, feed_forward=experts)


MIXTRAL = ModelFamily("mixtral", parse, build)

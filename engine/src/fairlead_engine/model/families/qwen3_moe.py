"""Qwen3-MoE (arXiv 2505.09388): Qwen3 with many narrow experts in place of the feed-forward."""

from dataclasses import dataclass

from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.families.qwen2_moe import QwenExpertsConfig, feed_forward, parse_experts
from fairlead_engine.model.families.qwen3 import DEFAULT_HEAD_DIM
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.model_config import parse_shape
from fairlead_engine.model.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3MoeConfig(QwenExpertsConfig):
    attention_bias: bool
    """Whether the four attention projections add a bias."""


def parse(fields: JsonFields) -> Qwen3MoeConfig:
    shape = parse_shape(fields, num_kv_heads=4, head_dim=DEFAULT_HEAD_DIM)
    shape = parse_experts(fields, shape, expert_size=768, num_experts=128, most=8)
    return Qwen3MoeConfig(**shape, attention_bias=fields.boolean("attention_bias", False))


def build(weights: Weights, config: Qwen3MoeConfig) -> Decoder:
    bias = config.attention_bias
    return weights.decoder(
        attention=lambda prefix: weights.attention(prefix, qkv_bias=bias, output_bias=bias, norms_heads=True),
        feed_forward=lambda prefix: feed_forward(weights, config, prefix),
    )


QWEN3_MOE = ModelFamily("qwen3_moe", parse, build)

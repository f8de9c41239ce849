"""DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437): latent attention, and many narrow experts behind a few layers
without, chosen within groups, beside some that all tokens take. V3's extra layer that guesses one token further is left
out."""

from dataclasses import dataclass
from typing import Any

import torch

from fairlead_engine.kernels.route_top_k import Routing
from fairlead_engine.model.checkpoint import WHOLE
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.families.family import ModelFamily
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.latent_attention import LatentAttention, LowRankQuery
from fairlead_engine.model.layers import FeedForward, SharedExpert
from fairlead_engine.model.model_config import ModelConfig, parse_shape, refuse
from fairlead_engine.model.rope import yarn_scale
from fairlead_engine.model.shard import scaled
from fairlead_engine.model.weights import Weights, layer_index

_NORM_EPS = 1e-6
"""Of the normalisations within attention, whatever the configuration says of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepseekConfig(ModelConfig):
    """`head_dim` is that of the one key head in the cache; `intermediate_size` is that of layers without experts."""

    query_rank: int | None
    """Width of the vector that queries come through; None = they do not."""
    plain_dim: int
    """Elements of a head's query and key that positions do not turn,"""
    turned_dim: int
    """and those that they do, which all heads' keys have in common."""
    value_dim: int
    """Elements of a head's value."""
    attention_bias: bool
    """Whether projections from and to the stream add a bias."""
    is_interleaved: bool
    num_experts: int
    routing: Routing
    """Without its bias, which is a tensor."""
    has_score_bias: bool
    expert_size: int
    num_shared_experts: int
    """Experts that all tokens take, stored as one."""
    dense_layers: frozenset[int]
    """Layers that have one feed-forward instead of experts."""
    num_guessing_layers: int
    """Behind the others, in the checkpoint."""

    @property
    def latent_dim(self) -> int:
        """Elements of what keys and values are made of."""
        assert self.shared_value_dim is not None
        return self.shared_value_dim

    @property
    def rotary_dim(self) -> int:
        return self.turned_dim

    @property
    def inner_sizes(self) -> dict[str, int]:
        sizes = {}
        if self.dense_layers:
            sizes["intermediate_size"] = self.intermediate_size
        if len(self.dense_layers) < self.num_layers:
            sizes["moe_intermediate_size"] = self.expert_size
        return sizes


def parse_v2(fields: JsonFields) -> DeepseekConfig:
    if (scoring := fields.text("scoring_func") or "softmax") != "softmax":
        raise refuse(f"scoring_func {scoring}", "of a DeepSeek-V2 softmax is supported")
    method = fields.text("topk_method") or "greedy"
    if method not in ("greedy", "group_limited_greedy"):
        raise refuse(f"topk_method {method}", "of a DeepSeek-V2 greedy and group_limited_greedy are supported")
    if fields.boolean("norm_topk_prob", False):
        raise refuse("norm_topk_prob", "of a DeepSeek-V2 weights of experts that do not sum to 1 are supported")
    groups: dict[str, Any] = {"num_groups": 1, "num_chosen_groups": 1}
    if method != "greedy":
        groups = _groups(fields, None, None)
    routing = Routing(
        fields.positive_int("num_experts_per_tok"),
        normalised=False,
        **groups,
        scale=fields.positive_number("routed_scaling_factor", 1.0),
    )
    return _parse(
        fields, routing, query_rank=1536, num_experts=64, num_shared_experts=2, expert_size=1407, first_dense=0
    )


def parse_v3(fields: JsonFields) -> DeepseekConfig:
    if (scoring := fields.text("scoring_func") or "sigmoid") != "sigmoid":
        raise refuse(f"scoring_func {scoring}", "of a DeepSeek-V3 sigmoid is supported")
    if (method := fields.text("topk_method") or "noaux_tc") != "noaux_tc":
        raise refuse(f"topk_method {method}", "of a DeepSeek-V3 noaux_tc is supported")
    routing = Routing(
        fields.positive_int("num_experts_per_tok", 8),
        normalised=fields.boolean("norm_topk_prob", True),
        **_groups(fields, 8, 4),
        scale=fields.positive_number("routed_scaling_factor", 2.5),
    )
    return _parse(
        fields, routing, query_rank=1536, num_experts=256, num_shared_experts=1, expert_size=2048, first_dense=3,
        has_score_bias=True,
    )  # fmt: skip


def _groups(fields: JsonFields, num: int | None, num_chosen: int | None) -> dict[str, Any]:
    return {
        "num_groups": fields.positive_int("n_group", num),
        "num_chosen_groups": fields.positive_int("topk_group", num_chosen),
    }


def _parse(
    fields: JsonFields,
    routing: Routing,
    *,
    query_rank: int,
    num_experts: int,
    num_shared_experts: int,
    expert_size: int,
    first_dense: int,
    has_score_bias: bool = False,
) -> DeepseekConfig:
    """The arguments are the version's: what chooses experts, and defaults of fields that are left out."""
    turned, latent = fields.positive_int("qk_rope_head_dim", 64), fields.positive_int("kv_lora_rank", 512)
    if turned % 2:
        raise fields.invalid("qk_rope_head_dim", "must be even: rotary positions turn pairs of elements")
    has_rank = fields.has("q_lora_rank") or not fields.names("q_lora_rank")
    bias = fields.boolean("attention_bias", False)
    if bias and not has_rank:
        raise refuse("attention_bias without q_lora_rank", "use a model whose projections add no bias")
    if fields.boolean("mlp_bias", False):
        raise refuse("mlp_bias", "use a model whose feed-forward layers add no bias")
    shape = parse_shape(fields, head_dim=turned)
    plain = fields.positive_int("qk_nope_head_dim", 128)
    rope = shape["rope"]
    # A head in the cache is longer than those that were trained, by whose size scores are divided.
    scale = ((latent + turned) / (plain + turned)) ** 0.5 * yarn_scale(rope.factor, rope.score_weight) ** 2
    shape |= {"num_kv_heads": 1, "head_dim": latent + turned, "shared_value_dim": latent, "query_scale": scale}
    first = _from_zero(fields, "first_k_dense_replace", first_dense)
    every = fields.positive_int("moe_layer_freq", 1)
    config = DeepseekConfig(
        **shape,
        query_rank=fields.positive_int("q_lora_rank", query_rank) if has_rank else None,
        plain_dim=plain,
        turned_dim=turned,
        value_dim=fields.positive_int("v_head_dim", 128),
        attention_bias=bias,
        is_interleaved=fields.boolean("rope_interleave", True),
        num_experts=fields.positive_int("n_routed_experts", num_experts),
        routing=routing,
        has_score_bias=has_score_bias,
        expert_size=fields.positive_int("moe_intermediate_size", expert_size),
        num_shared_experts=_from_zero(fields, "n_shared_experts", num_shared_experts),
        dense_layers=frozenset(each for each in range(shape["num_layers"]) if each < first or each % every),
        num_guessing_layers=_from_zero(fields, "num_nextn_predict_layers", 0) if has_score_bias else 0,
    )
    _check_experts(fields, config)
    return config


def _from_zero(fields: JsonFields, name: str, default: int) -> int:
    """A whole number, where null stands for 0."""
    if not fields.names(name):
        return default
    return fields.whole_number(name)


def _check_experts(fields: JsonFields, config: DeepseekConfig) -> None:
    routing, num_experts = config.routing, config.num_experts
    if num_experts % routing.num_groups:
        raise fields.invalid("n_group", f"must divide n_routed_experts ({num_experts})")
    if routing.num_chosen_groups > routing.num_groups:
        raise fields.invalid("topk_group", f"must be at most n_group ({routing.num_groups})")
    available = num_experts // routing.num_groups * routing.num_chosen_groups
    if routing.num_chosen > available:
        raise fields.invalid("num_experts_per_tok", f"must be at most {available}, the experts of topk_group groups")


def build(weights: Weights, config: DeepseekConfig) -> Decoder:
    for index in range(config.num_layers, config.num_layers + config.num_guessing_layers):
        weights.skip(f"model.layers.{index}.")
    return weights.decoder(
        attention=lambda prefix: _attention(weights, config, f"{prefix}.self_attn"),
        feed_forward=lambda prefix: _feed_forward(weights, config, prefix),
    )


def _attention(weights: Weights, config: DeepseekConfig, prefix: str) -> LatentAttention:
    """Ranks have heads of their own, and all of them the latent."""
    latent, plain, value = config.latent_dim, config.plain_dim, config.value_dim
    heads, query_dim, bias = weights.shard.part(config.num_heads), plain + config.turned_dim, config.attention_bias
    num_here = heads.stop - heads.start
    query_size, query_part = config.num_heads * query_dim, scaled(heads, query_dim)
    key = {f"{prefix}.kv_a_proj_with_mqa": config.head_dim}
    low_rank = None
    if config.query_rank is None:
        query, first_part = {f"{prefix}.q_proj": query_size}, query_part
    else:
        query, first_part = {f"{prefix}.q_a_proj": config.query_rank}, WHOLE
        low_rank = LowRankQuery(
            weights.norm(f"{prefix}.q_a_layernorm", config.query_rank, eps=_NORM_EPS),
            weights.linear({f"{prefix}.q_b_proj": query_size}, config.query_rank, row_parts=[query_part]),
        )
    of_head = plain + value
    up = weights.dequantized(f"{prefix}.kv_b_proj", config.num_heads * of_head, latent, scaled(heads, of_head))
    key_up, value_up = torch.split(up.view(num_here, of_head, latent), [plain, value], dim=1)
    return LatentAttention(
        down=weights.linear(query | key, config.hidden_size, bias=bias, row_parts=[first_part, WHOLE]),
        low_rank=low_rank,
        latent_norm=weights.norm(f"{prefix}.kv_a_layernorm", latent, eps=_NORM_EPS),
        key_up=key_up.contiguous(),
        value_up=value_up.transpose(1, 2).contiguous(),
        project=weights.linear(
            {f"{prefix}.o_proj": config.hidden_size}, config.num_heads * value, bias=bias,
            column_part=scaled(heads, value),
        ),
        rotary_dim=config.turned_dim,
        is_interleaved=config.is_interleaved,
        query_scale=config.query_scale,
    )  # fmt: skip


def _feed_forward(weights: Weights, config: DeepseekConfig, prefix: str) -> FeedForward:
    prefix, is_dense = f"{prefix}.mlp", layer_index(prefix) in config.dense_layers
    if is_dense:
        return weights.feed_forward(prefix)
    routing = config.routing
    if config.has_score_bias:
        bias = weights.offsets(f"{prefix}.gate.e_score_correction_bias", config.num_experts)
        routing = routing._replace(bias=bias)
    chosen = weights.experts(prefix, config.num_experts, routing, inner=config.expert_size)
    if not config.num_shared_experts:
        return chosen
    inner = config.num_shared_experts * config.expert_size
    return SharedExpert(chosen, weights.feed_forward(f"{prefix}.shared_experts", inner=inner))


DEEPSEEK_V2 = ModelFamily("deepseek_v2", parse_v2, build)
DEEPSEEK_V3 = ModelFamily("deepseek_v3", parse_v3, build)

"""Hunyuan: heads that are normalised behind the rotation, whose base some files stretch by a fixed `alpha`; dense, or
with experts in all layers beside one for all tokens. Hunyuan 3 has other attention and chooses experts otherwise."""

from dataclasses import dataclass, replace
from typing import Any

from fairlead_common.models.families.dense import attention_bias
from fairlead_common.models.families.experts import (
    RoutedExpertsConfig,
    expert_counts,
    first_dense,
    from_zero,
    named_dense,
)
from fairlead_common.models.families.family import Family
from fairlead_common.models.json_fields import MOST, JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import ModelConfig, QueryNorm, parse_shape
from fairlead_common.models.rope_config import RopeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class HunyuanExpertsConfig(RoutedExpertsConfig):
    """Experts of the width of a feed-forward."""

    @property
    def inner_sizes(self) -> dict[str, int]:
        return {"intermediate_size": self.intermediate_size}


def parse_hunyuan_dense(fields: JsonFields) -> ModelConfig:
    return ModelConfig(**_shape(fields))


def parse_hunyuan_moe(fields: JsonFields) -> HunyuanExpertsConfig:
    """`num_experts`, `moe_topk`, `num_shared_expert` and `moe_intermediate_size` may be lists, of a number for each
    layer."""
    shape = _shape(fields)
    inner, num_experts = shape["intermediate_size"], fields.same_positive("num_experts", 1)
    if fields.same_positive("moe_intermediate_size", inner) != inner:
        raise refuse(
            "moe_intermediate_size other than intermediate_size", "of a Hunyuan experts as wide as that are supported"
        )
    if (num_shared := fields.same_positive("num_shared_expert", 1)) != 1:
        raise refuse(f"num_shared_expert {num_shared}", "of a Hunyuan one shared expert is supported")
    if skipped := fields.whole_number("moe_layer_num_skipped"):
        raise refuse(f"moe_layer_num_skipped {skipped}", "of a Hunyuan experts in all layers are supported")
    if not fields.boolean("norm_topk_prob", True):
        raise refuse("norm_topk_prob false", "of a Hunyuan weights of experts that sum to 1 are supported")
    per_token = fields.same_positive("moe_topk", fields.same_positive("num_experts_per_tok", 1))
    if per_token > num_experts:
        raise fields.invalid("moe_topk", f"must be at most num_experts ({num_experts})")
    return HunyuanExpertsConfig(
        **shape, num_experts=num_experts, num_experts_per_token=per_token, expert_size=inner, has_score_bias=False,
        num_shared_experts=1,
    )  # fmt: skip


def parse_hunyuan_3(fields: JsonFields) -> RoutedExpertsConfig:
    """Qwen3's attention before experts chosen by sigmoids and a bias."""
    if fields.boolean("mlp_bias", False):
        raise refuse("mlp_bias", "use a model whose feed-forward layers add no bias")
    return RoutedExpertsConfig(
        **parse_shape(fields, num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, rope_theta=11_158_840.0),
        **expert_counts(fields, "num_experts", fields.positive_int("num_experts", 192), 8),
        **attention_bias(fields, False),
        query_norm=QueryNorm.HEADS,
        expert_size=fields.positive_int("moe_intermediate_size", 1536),
        routed_scale=fields.positive_number("router_scaling_factor", 2.826),
        num_shared_experts=from_zero(fields, "num_shared_experts", 1),
        dense_layers=named_dense(fields, first_dense(fields, 1)),
    )


def _shape(fields: JsonFields) -> dict[str, Any]:
    for name, usual in (("use_cla", False), ("use_qk_norm", True), ("mlp_bias", False)):
        if fields.boolean(name, usual) is not usual:
            raise refuse(f"{name} {str(not usual).lower()}", f"of a Hunyuan {name} {str(usual).lower()} is supported")
    shape = parse_shape(fields, rms_norm_eps=1e-5)
    scaling, rope = fields.section("rope_parameters") or fields.section("rope_scaling"), shape["rope"]
    if scaling is not None and rope.kind is RopeKind.DYNAMIC and scaling.has("alpha"):
        turned, alpha = rope.num_turned(shape["head_dim"]), scaling.positive_number("alpha")
        if alpha > MOST:
            raise scaling.invalid("alpha", f"must be {MOST} at most")
        stretch: float = alpha ** (turned / (turned - 2)) if turned > 2 else 1.0
        shape["rope"] = replace(rope, theta=rope.theta * stretch)
    return {**shape, **attention_bias(fields, False), "query_norm": QueryNorm.TURNED_HEADS}


FAMILIES = (
    Family(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        parse_hunyuan_dense,
        "Hunyuan, dense (0.5B to 7B)",
        built_as="LlamaForCausalLM",
    ),
    Family(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        parse_hunyuan_moe,
        "Hunyuan-A13B: sparse experts beside one that every token takes",
    ),
    Family(
        "HYV3ForCausalLM",
        "hy_v3",
        parse_hunyuan_3,
        "Hy3: sparse experts; the layer for multi-token prediction is left out",
    ),
)

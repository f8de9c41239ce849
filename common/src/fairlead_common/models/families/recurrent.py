"""Families whose layers keep a state of each sequence, except every few, which attend: Qwen3-Next and Qwen3.5, by the
gated delta rule (arXiv 2412.06464)."""

from typing import Any

from fairlead_common.models.families.dense import QWEN3_HEAD_DIM, attention_bias
from fairlead_common.models.families.experts import QwenExpertsConfig, qwen_experts
from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.load_errors import refuse
from fairlead_common.models.model_config import ModelConfig, QueryNorm, StateShape, parse_shape

_ATTENDS, _RECURS = "full_attention", "linear_attention"


def parse_qwen3_next(fields: JsonFields) -> QwenExpertsConfig:
    shape = qwen_experts(
        fields,
        _shape(fields, num_kv_heads=2, num_projections=1),
        expert_size=512,
        num_experts=512,
        chosen=10,
        sums=True,
    )
    return QwenExpertsConfig(**shape, shared_expert_size=fields.positive_int("shared_expert_intermediate_size", 512))


def parse_qwen3_5(fields: JsonFields) -> ModelConfig:
    return ModelConfig(**_shape(fields, num_kv_heads=4))


def parse_qwen3_5_moe(fields: JsonFields) -> QwenExpertsConfig:
    shape = qwen_experts(
        fields,
        _shape(fields, num_kv_heads=2, intermediate_size=512),
        expert_size=512,
        num_experts=256,
        chosen=8,
        sums=True,
    )
    return QwenExpertsConfig(**shape, shared_expert_size=fields.positive_int("shared_expert_intermediate_size", 512))


def _shape(
    fields: JsonFields, num_kv_heads: int, num_projections: int = 2, intermediate_size: int | None = None
) -> dict[str, Any]:
    """Fields of all of these families."""
    shape = parse_shape(
        fields, num_kv_heads=num_kv_heads, head_dim=2 * QWEN3_HEAD_DIM, windows=_everything, turned_share=0.25,
        intermediate_size=intermediate_size,
    )  # fmt: skip
    state = StateShape(
        num_key_heads=fields.positive_int("linear_num_key_heads", 16),
        num_heads=fields.positive_int("linear_num_value_heads", 32),
        key_dim=fields.positive_int("linear_key_head_dim", 128),
        value_dim=fields.positive_int("linear_value_head_dim", 128),
        kernel_size=fields.positive_int("linear_conv_kernel_dim", 4),
        num_projections=num_projections,
    )
    if state.num_heads % state.num_key_heads:
        raise fields.invalid(
            "linear_num_value_heads", f"must be a multiple of linear_num_key_heads ({state.num_key_heads})"
        )
    return {
        **shape,
        **attention_bias(fields, False),
        "query_norm": QueryNorm.HEADS,
        "norm_offset": 1.0,
        "gates_attention": True,
        "recurrent": _recurrent_layers(fields, shape["num_layers"]),
        "state": state,
    }


def _everything(fields: JsonFields) -> tuple[int, ...]:
    return (0,) * fields.positive_int("num_hidden_layers")


def _recurrent_layers(fields: JsonFields, num_layers: int) -> frozenset[int]:
    """Those that `layer_types` names, or all but every `full_attention_interval`-th."""
    kinds = fields.texts("layer_types")
    if not kinds:
        every = fields.positive_int("full_attention_interval", 4)
        return frozenset(index for index in range(num_layers) if (index + 1) % every)
    if unknown := sorted({*kinds} - {_ATTENDS, _RECURS}):
        raise refuse(f"layer_types {', '.join(unknown)}", f"supported are {_ATTENDS} and {_RECURS}")
    if len(kinds) != num_layers:
        raise fields.invalid("layer_types", f"must name as many as num_hidden_layers ({num_layers})")
    if _ATTENDS not in kinds:
        raise fields.invalid("layer_types", f"must name {_ATTENDS} at least once")
    return frozenset(index for index, kind in enumerate(kinds) if kind == _RECURS)
